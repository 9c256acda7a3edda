"""Noticing early, in tokens, that a reply has begun to repeat itself.

The guard that judges a repetition needs several copies to be sure. Text of the copies after the first two is
held back meanwhile, so that a loop can be escaped by going back without the reader having seen it all.
"""

from __future__ import annotations

__all__ = ["LoopWatch"]

# So many tokens in a row must come again before anything is held back: a phrase, not a word.
_WINDOW = 8
_LONGEST = 512


class LoopWatch:
    """Follows the tokens of one reply."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.period = 0
        self._run = 0  # tokens in a row that equal the one a period before
        self._seen: dict[tuple[int, ...], int] = {}

    def push(self, token: int) -> bool:
        """Take the next token; whether the reply is now repeating, by a whole copy at least."""
        tokens = self.tokens
        tokens.append(token)
        at = len(tokens) - 1
        if self.period and token == tokens[at - self.period]:
            self._run += 1
        else:
            self.period = self._run = 0
        if at + 1 >= _WINDOW:
            key = tuple(tokens[-_WINDOW:])
            before = self._seen.get(key)
            if not self.period and before is not None and at - before <= _LONGEST:
                self.period, self._run = at - before, _WINDOW
            self._seen[key] = at
        return self.repeating

    @property
    def repeating(self) -> bool:
        return bool(self.period) and self._run >= max(_WINDOW, self.period)

    def boundary(self, shown: int) -> int:
        """How many tokens to keep so that the reply ends with a whole copy, and with all that was shown."""
        first = len(self.tokens) - self._run
        copies = max(0, -(-(shown - first) // self.period)) if self.period else 0
        return min(first + copies * self.period, len(self.tokens))

    def rewind(self, keep: int) -> None:
        del self.tokens[keep:]
        self.period = self._run = 0
        self._seen = {key: at for key, at in self._seen.items() if at < keep}
