"""Limits of one turn, and the running totals of a session."""

from __future__ import annotations

import msgspec

from agentkit_fast.entries import CompactionInfo
from agentkit_fast.errors import LimitExceeded
from agentkit_fast.notebook import details_html

__all__ = ["Limits", "TokenUsage", "TurnResult"]


class Limits(msgspec.Struct, kw_only=True, frozen=True):
    """What one `turn()` may use. `None`: no limit.

    `tokens` counts prompt (cached ones included) and generated tokens of all rounds, `tool_calls` the calls
    that were run, `seconds` wall time. They are looked at before each round, so a turn ends between rounds,
    with everything so far stored; a round whose window alone would pass `tokens` is not begun, and calls
    beyond `tool_calls` are answered, not run.

    `handover`: instead of raising at one of these, or at the session's `max_turns`, tell the model that the limit
    is reached and ask it once more, with `tool_choice="none"`, for what is done and what is left. The turn then
    returns with `stop_reason="limit"`. That round comes on top of the limit; where it fails or gives no text
    the error is raised after all.
    """

    tokens: int | None = None
    tool_calls: int | None = None
    seconds: float | None = None
    handover: bool = False

    def check_time_and_calls(self, *, calls: int, elapsed_s: float) -> None:
        """Raise `LimitExceeded` when time or calls are used up."""
        if self.tool_calls is not None and calls >= self.tool_calls:
            raise LimitExceeded(
                f"this turn ran {calls} tool calls, its limit is {self.tool_calls}. All is stored:"
                f" call turn()"
                " again to go on, or raise Limits(tool_calls=...)."
            )
        if self.seconds is not None and elapsed_s >= self.seconds:
            raise LimitExceeded(
                f"this turn took {elapsed_s:.1f} s, its limit is {self.seconds:g} s. All is stored:"
                f" call turn()"
                " again to go on, or raise Limits(seconds=...)."
            )

    def check_tokens(self, *, used: int, window: int) -> None:
        """Raise `LimitExceeded` when the tokens are used up, or the next window alone would do it."""
        if self.tokens is None:
            return
        if used >= self.tokens:
            raise LimitExceeded(
                f"this turn used {used} tokens, its limit is {self.tokens}. All is stored: call"
                f" turn() again to"
                " go on, or raise Limits(tokens=...)."
            )
        if used + window > self.tokens:
            raise LimitExceeded(
                f"this turn used {used} tokens and the next window has {window}, which would pass"
                f" its limit of"
                f" {self.tokens}. All is stored: call turn() again to go on, or raise Limits(tokens=...)."
            )


class TokenUsage(msgspec.Struct, kw_only=True):
    """Tokens of all chat rounds of a session object.

    `total` is prompt plus generated tokens of all rounds; `cached`, `processed` (prompt tokens that had
    to be evaluated) and `generated` are its parts. `active` is the size of the window sent last, by the
    session's counter. `turns` counts chat rounds. A provider that reports no cache has everything in
    `processed`.
    """

    total: int = 0
    active: int = 0
    cached: int = 0
    processed: int = 0
    generated: int = 0
    turns: int = 0


class TurnResult(msgspec.Struct, kw_only=True):
    """What a turn gave.

    `reply` is the model's last text, with placeholders expanded. `stop_reason` says why the turn ended:
    `"reply"`, `"length"` (a reply cut by the token limit), `"closed"` (a tool raised `SessionClosed`),
    `"cancelled"`, `"limit"` (one of `Limits`, or `max_turns`), or `"error"` in the `.result` of an
    exception. `rounds` and `tool_calls` count this turn's chat rounds and the calls it ran.
    """

    reply: str = ""
    compactions: list[CompactionInfo] = msgspec.field(default_factory=list)
    usage: TokenUsage = msgspec.field(default_factory=TokenUsage)
    cancelled: bool = False
    stop_reason: str = ""
    rounds: int = 0
    tool_calls: int = 0

    def __str__(self) -> str:
        return self.reply

    def _repr_html_(self) -> str:
        usage = self.usage
        facts = [
            self.stop_reason,
            f"{self.rounds:,} rounds",
            f"{self.tool_calls:,} tool calls",
            f"window {usage.active:,} tokens",
            f"cached {usage.cached:,}",
            f"evaluated {usage.processed:,}",
            f"generated {usage.generated:,}",
        ]
        facts += [f"{info.subsumed_count:,} entries folded" for info in self.compactions]
        return details_html(" · ".join(filter(None, facts)), [("reply", self.reply)])
