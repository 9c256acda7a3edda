"""The gate every tool call passes before it is stored or run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from agentkit_fast import model_words
from agentkit_fast._unicode import repair_text
from agentkit_fast.entries import new_id
from agentkit_fast.messages import ToolCall
from agentkit_fast.text import check_arguments, rejected_arguments

__all__ = ["CutCall", "GatedCall", "distinct_ids", "gate", "heredoc_leftovers", "switched_off", "was_cut"]


# Endpoints refuse a call without a name in the history.
_NAMELESS = "unknown"


class CutCall(ToolCall):
    """A call of which we know, whatever its text looks like, that it is not to be run.

    `kind` is `"truncated"`, `"block"` for a heredoc block that cannot be read (`why` says what is wrong
    with it), or `"off"` for a call in a round that allows none.
    """

    kind: str = "truncated"
    why: str = ""


class GatedCall(msgspec.Struct):
    """A call as it is stored, and why it is not run (empty: it may run)."""

    call: ToolCall
    refusal: str = ""


def gate(call: ToolCall) -> GatedCall:
    """Judge a call. What is stored always has a valid JSON object as arguments.

    Whether the text was cut is decided before any repair: a call that lost its end must never run
    with half its text.
    """
    raw, name = call.arguments, call.name.strip()
    if isinstance(call, CutCall):
        if call.kind == "off":
            refusal = model_words.calls_switched_off()
        elif call.kind == "block":
            refusal = model_words.arguments_unusable(call.why)
        else:
            refusal = model_words.arguments_truncated(len(raw))
        return _refused(call, refusal)
    checked = check_arguments(raw)
    if checked.kind != "ok":
        return _refused(call, model_words.arguments_unusable(checked.message))
    arguments = checked.text if checked.text.strip() else "{}"
    if not name:
        stand_in = ToolCall(id=call.id, name=_NAMELESS, arguments=arguments)
        return GatedCall(stand_in, model_words.call_without_name())
    if name == call.name and arguments is raw:
        return GatedCall(call)
    return GatedCall(ToolCall(id=call.id, name=name, arguments=arguments))


def _refused(call: ToolCall, refusal: str) -> GatedCall:
    stand_in = rejected_arguments(call.arguments, refusal)
    return GatedCall(ToolCall(id=call.id, name=call.name.strip() or _NAMELESS, arguments=stand_in), refusal)


def distinct_ids(calls: Iterable[ToolCall], used: set[str]) -> list[ToolCall]:
    """The calls with ids that are neither empty nor used before; `used` learns them.

    A server that sends one constant id for all its calls gets `k`, `k-2`, `k-3` ...
    """
    out = []
    for given in calls:
        if not isinstance(given, ToolCall):
            raise TypeError(f"calls are ToolCall values, not {type(given).__name__}")
        call = _texts(given)
        wanted = repair_text(call.id)
        name, arguments = repair_text(call.name), repair_text(call.arguments)
        fresh = wanted or new_id()
        number = 2
        while fresh in used:
            fresh = f"{wanted}-{number}"
            number += 1
        used.add(fresh)
        if fresh == call.id and name is call.name and arguments is call.arguments:
            out.append(call)
        elif isinstance(call, CutCall):
            out.append(CutCall(id=fresh, name=name, arguments=arguments, kind=call.kind, why=call.why))
        else:
            out.append(ToolCall(id=fresh, name=name, arguments=arguments))
    return out


def _texts(call: ToolCall) -> ToolCall:
    """The call with texts in its fields: msgspec checks no types when a host builds one by hand."""
    if type(call.id) is str and type(call.name) is str and type(call.arguments) is str:
        return call
    plain = {
        name: value if isinstance(value, str) else "" if value is None else _written(value)
        for name, value in (("id", call.id), ("name", call.name), ("arguments", call.arguments))
    }
    return msgspec.structs.replace(call, **plain)


def _written(value: Any) -> str:
    try:
        return msgspec.json.encode(value).decode()
    except (TypeError, ValueError, RecursionError, UnicodeEncodeError):
        return str(value)


def switched_off(call: ToolCall) -> CutCall:
    """A call made in a round that allows none."""
    return CutCall(id=call.id, name=call.name, arguments=call.arguments, kind="off")


def was_cut(text: str) -> bool:
    """Whether a heredoc reply that ended at the token limit ends inside its last call.

    It does unless an `@@end` line comes after the last `@@call` line: a call that merely happens to parse
    without it may have lost more than that.
    """
    last_call = _last_line_start(text, "@@call")
    return last_call >= 0 and _last_line_start(text, "@@end") < last_call


def _last_line_start(text: str, marker: str) -> int:
    at = text.rfind("\n" + marker)
    if at >= 0:
        return at + 1
    return 0 if text.startswith(marker) else -1


def heredoc_leftovers(text: str, problems: Sequence[Any]) -> list[ToolCall]:
    """Blocks that could not be read, as calls that are answered and not run."""
    if not problems:
        return []
    raw = text.encode()
    starts = [problem.byte_offset for problem in problems]
    found: list[ToolCall] = []
    for at, problem in enumerate(problems):
        end = starts[at + 1] if at + 1 < len(starts) else len(raw)
        block = raw[problem.byte_offset : end].decode(errors="ignore")
        found.append(
            CutCall(id="", name=problem.tool_name, arguments=block, kind="block", why=problem.message)
        )
    return found
