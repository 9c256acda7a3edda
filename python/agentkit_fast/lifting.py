"""Tool results that speak to the loop: "the answer comes later" and "these notices are settled".

A tool *lifts* a call by returning `{"pending": true, "correlation_id": "..", "ttl_s": 60}`: the model gets
a placeholder now and the real result later, as new context. A tool *clears* notices by returning
`{"clear": true, "group_by": "file", "key": "src/main.rs"}`.
"""

from __future__ import annotations

from typing import Self

import msgspec

from agentkit_fast._unicode import repair_text

__all__ = [
    "ClearRequest",
    "LiftRequest",
    "ToolOutcome",
    "is_resolved_truth",
    "parse_clear_request",
    "parse_lift_request",
    "pending_result",
]


class LiftRequest(msgspec.Struct, frozen=True):
    """A tool's word that its result comes later, under `correlation_id`.

    `ttl_s` is how many seconds to wait for it; 0: no deadline.
    """

    correlation_id: str
    ttl_s: int = 0


class ClearRequest(msgspec.Struct, frozen=True):
    """A tool's word that the notices of group `group_by` about `key` are settled."""

    group_by: str
    key: str


class _Lift(msgspec.Struct):
    pending: bool = False
    correlation_id: str = ""
    ttl_s: int | None = 0


class _Clear(msgspec.Struct):
    clear: bool = False
    group_by: str = ""
    key: str = ""


# A century: keeps a deadline in nanoseconds inside 64 bits, whatever a tool says.
_MAX_TTL_S = 3_155_760_000
_decode_lift = msgspec.json.Decoder(_Lift).decode
_decode_clear = msgspec.json.Decoder(_Clear).decode


def parse_lift_request(result: str) -> LiftRequest | None:
    """The lift a tool's result asks for, or `None`.

    Only a JSON object with `pending` true and a non-empty `correlation_id` is one; it must begin with
    `{`, so that an ordinary result costs one look at its first character.
    """
    if not result.startswith("{") or '"pending"' not in result:
        return None
    try:
        lift = _decode_lift(repair_text(result))
    except (msgspec.DecodeError, RecursionError):
        return None
    if not lift.pending or not lift.correlation_id:
        return None
    return LiftRequest(correlation_id=lift.correlation_id, ttl_s=min(max(0, lift.ttl_s or 0), _MAX_TTL_S))


def parse_clear_request(result: str) -> ClearRequest | None:
    """The clearing a tool's result asks for, or `None`.

    Only a JSON object with `clear` true and non-empty `group_by` and `key` is one.
    """
    if not result.startswith("{") or '"clear"' not in result:
        return None
    try:
        clear = _decode_clear(repair_text(result))
    except (msgspec.DecodeError, RecursionError):
        return None
    if not clear.clear or not clear.group_by or not clear.key:
        return None
    return ClearRequest(group_by=clear.group_by, key=clear.key)


def pending_result(correlation_id: str, tool_call_id: str, ttl_s: int = 0) -> str:
    """What the model sees as the result of a lifted call: it is under way, go on meanwhile."""
    within = f" within {ttl_s} s" if ttl_s > 0 else ""
    return repair_text(
        f"PENDING: this call (id {tool_call_id}, correlation {correlation_id}) is under way. Its result "
        f"arrives later{within} as a new message that names the call. This is not the result: do not act "
        "on it, do not repeat the call. Do what does not depend on it, then end your turn."
    )


_RESOLVED = frozenset({"", "null", "{}", "[]", '""'})


def is_resolved_truth(result: str) -> bool:
    """Whether a revalidator's answer says that nothing is left to report.

    So it is when the answer is blank or an empty JSON value: `null`, `{}`, `[]`, `""`. `false` and `0`
    are values.
    """
    return result.strip() in _RESOLVED


class ToolOutcome(str):
    """The text a model sees as a call's result, with what the tool asked of the loop.

    `lift` is set when the call was parked (the text is then `pending_result`), `clear` when notices are
    to be cleared. A `str` in every other way.
    """

    __slots__ = ("clear", "lift")

    lift: LiftRequest | None
    clear: ClearRequest | None

    def __new__(
        cls, text: str, *, lift: LiftRequest | None = None, clear: ClearRequest | None = None
    ) -> Self:
        self = super().__new__(cls, text)
        self.lift = lift
        self.clear = clear
        return self
