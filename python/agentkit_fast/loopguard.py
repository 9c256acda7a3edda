"""Notices when a turn goes in circles: the same calls with the same results, also in cycles of rounds."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import msgspec

from agentkit_fast._unicode import repair_text
from agentkit_fast.messages import ToolCall

__all__ = ["Circle", "LoopGuard", "same_arguments"]

# A cycle of four rounds is the longest seen in traces of stuck agents (look, edit, test, revert); longer
# ones cost more memory of rounds and are rarer than honest work that happens to repeat.
MAX_CYCLE = 4


class Circle(msgspec.Struct, frozen=True):
    """`cycle` rounds came `times` times in a row, with the same results; the turn ends at `stop_at`."""

    cycle: int
    times: int
    stop_at: int
    stop: bool


class LoopGuard:
    """Counts repeated exchanges.

    `push` takes a round and says when it is the `limit`-th of its kind in a row (once) and when it is the
    twice `limit`-th (`stop`). A round whose calls or results differ from those one cycle before begins the
    count anew, so a poll whose answer changes never trips it. A negative `limit` switches the guard off.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._recent: deque[object] = deque(maxlen=MAX_CYCLE)
        self._equal = [0] * (MAX_CYCLE + 1)  # rounds in a row equal to the one `cycle` before

    def push(self, calls: Sequence[ToolCall], results: Sequence[str]) -> Circle | None:
        """Note a round."""
        if self._limit < 1:
            return None
        # Results can be huge: their hash (cached by the string) and length stand in for them.
        sign = tuple(
            (call.name, same_arguments(call.arguments), len(result), hash(result))
            for call, result in zip(calls, results, strict=True)
        )
        if sign not in self._recent:  # as nearly always: nothing repeats
            self._equal = [0] * (MAX_CYCLE + 1)
            self._recent.append(sign)
            return None
        found = None
        for cycle in range(1, MAX_CYCLE + 1):
            if len(self._recent) >= cycle and self._recent[-cycle] == sign:
                self._equal[cycle] += 1
            else:
                self._equal[cycle] = 0
            if found is None and not self._explained(cycle):
                found = self._judge(cycle)
        self._recent.append(sign)
        return found

    def _explained(self, cycle: int) -> bool:
        """Whether the last rounds repeat with a shorter cycle already."""
        return any(
            cycle % shorter == 0 and self._equal[shorter] >= self._equal[cycle] > 0
            for shorter in range(1, cycle)
        )

    def _judge(self, cycle: int) -> Circle | None:
        rounds = self._equal[cycle] + cycle
        if self._equal[cycle] == 0 or rounds % cycle:
            return None
        times = rounds // cycle
        if times not in (self._limit, 2 * self._limit) or times < 2:
            return None
        return Circle(cycle=cycle, times=times, stop_at=2 * self._limit, stop=times == 2 * self._limit)


def same_arguments(arguments: str) -> bytes:
    """A text that is the same for equal JSON values, whatever their spelling and key order."""
    try:
        value = msgspec.json.decode(arguments)
        return msgspec.json.encode(
            _canonical(value) if "." in arguments or "e" in arguments.lower() else value,
            order="deterministic",
        )
    except (msgspec.DecodeError, msgspec.ValidationError, RecursionError, UnicodeEncodeError):
        return repair_text(arguments).encode()


def _canonical(value: object) -> object:
    """`1.0` and `1` are one JSON number."""
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return int(value)
    if isinstance(value, list):
        return [_canonical(item) for item in value]
    if isinstance(value, dict):
        return {key: _canonical(item) for key, item in value.items()}
    return value
