"""Tool calls in plain text (docs/heredoc.md): reading, streaming, rendering, grammars, instructions."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from agentkit_fast import _core
from agentkit_fast.entries import new_id
from agentkit_fast.errors import HeredocError
from agentkit_fast.messages import ToolCall

__all__ = [
    "PROSE_GRAMMAR",
    "CallReady",
    "CallStarted",
    "HeredocProblem",
    "HeredocStream",
    "ParsedReply",
    "ProseDelta",
    "heredoc_grammar",
    "heredoc_lark",
    "heredoc_prompt",
    "parse_tool_calls",
    "render_tool_call",
]


class HeredocProblem(msgspec.Struct, frozen=True, eq=False):
    """A block of a reply that is no call.

    `kind` is `"truncated"` (the block never closed) or `"malformed"` (it closed, but cannot be read).
    `tool_name` is the name in its header as far as it came, `byte_offset` where its `@@call` begins, in
    UTF-8 bytes. `message` is what the model must hear; it does not count when problems are compared.
    """

    kind: str
    tool_name: str
    byte_offset: int
    message: str = ""

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, HeredocProblem):
            return NotImplemented
        return (self.kind, self.tool_name, self.byte_offset) == (
            other.kind,
            other.tool_name,
            other.byte_offset,
        )

    def __hash__(self) -> int:
        return hash((self.kind, self.tool_name, self.byte_offset))


class ParsedReply(msgspec.Struct, frozen=True):
    """What a reply holds: complete `calls` in order, the `prose` outside all blocks, and what was no call.

    `problem` is the first of `problems`. `tail` is, after `HeredocStream.finish`, the end of `prose`
    that no `ProseDelta` has given out; after `parse_tool_calls` it is empty.
    """

    calls: list[ToolCall]
    prose: str = ""
    problem: HeredocProblem | None = None
    problems: tuple[HeredocProblem, ...] = ()
    tail: str = ""


class ProseDelta(msgspec.Struct, frozen=True):
    """New text of the reply that is no part of a call."""

    text: str


class CallStarted(msgspec.Struct, frozen=True):
    """The header of a call is there. `index` is the place that the call will have in `ParsedReply.calls`."""

    index: int
    name: str


class CallReady(msgspec.Struct, frozen=True):
    """The call `index` is complete: nothing that follows can take it back."""

    index: int
    call: ToolCall


def _reply(
    calls: list[ToolCall], prose: str, fields: list[tuple[str, str, int, str]], tail: str = ""
) -> ParsedReply:
    problems = tuple(HeredocProblem(*field) for field in fields)
    return ParsedReply(calls, prose, problems[0] if problems else None, problems, tail)


def parse_tool_calls(text: str) -> ParsedReply:
    """Splits a reply into calls, prose and problems. Never raises; linear in the length of `text`.

    The arguments of each call are strict JSON text, its `id` is fresh. A block that never closes is no
    call, whatever it holds; calls before it are kept. An object that closes is a call, also without
    `@@end`.
    """
    calls, prose, problems = _core.parse_tool_calls(text)
    return _reply(
        [ToolCall(id=new_id(), name=name, arguments=arguments) for name, arguments in calls],
        prose,
        problems,
    )


class HeredocStream:
    """Reads a reply piece by piece, however it is cut, in time linear in its length.

    The `ProseDelta` texts and `finish().tail` together are the prose of `parse_tool_calls` on the
    whole; the calls are the same. Safe to use from several threads, one push at a time. A second
    `finish` gives the same reply; `push` after it raises `ValueError`.
    """

    def __init__(self) -> None:
        self._core = _core.HeredocStream()
        self._calls: list[ToolCall] = []
        self._reply: ParsedReply | None = None

    def push(self, delta: str) -> list[ProseDelta | CallStarted | CallReady]:
        """Takes new text; gives what became certain by it, in the order of the text."""
        events: list[ProseDelta | CallStarted | CallReady] = []
        for event in self._core.push(delta):
            if len(event) == 1:
                events.append(ProseDelta(event[0]))
            elif len(event) == 2:
                events.append(CallStarted(event[0], event[1]))
            else:
                call = ToolCall(id=new_id(), name=event[1], arguments=event[2])
                self._calls.append(call)
                events.append(CallReady(event[0], call))
        return events

    def finish(self) -> ParsedReply:
        """The whole reply, once no more text comes. Its calls are those that `push` gave out."""
        if self._reply is None:
            prose, released, problems = self._core.finish()
            self._reply = _reply(self._calls, prose, problems, prose[released:])
        return self._reply


def _tools_json(tools: Iterable[Any]) -> str:
    """Names, descriptions and schemas of `tools` as JSON: `ToolDef`s, anything with its fields, or wire
    dicts."""
    rows: list[dict[str, Any]] = []
    for tool in tools:
        if isinstance(tool, Mapping):
            fields = tool.get("function")
            fields = fields if isinstance(fields, Mapping) else tool
            row = {key: fields.get(key) for key in ("name", "description", "parameters")}
        else:
            row = {
                "name": tool.name,
                "description": getattr(tool, "description", ""),
                "parameters": getattr(tool, "parameters", None),
            }
        if not isinstance(row["name"], str):
            raise TypeError(f"a tool's name must be a str, not {type(row['name']).__name__}")
        rows.append(row)
    return json.dumps(rows, ensure_ascii=False, allow_nan=False)


def heredoc_grammar(tools: Iterable[Any], *, max_calls: int = 4, allow_prose: bool = True) -> str:
    """GBNF of the replies a model may write with `tools` (`ToolDef`s, or OpenAI's dicts of them).

    A reply is prose, or up to `max_calls` calls with prose before the first (none where `allow_prose`
    is false). Every text the grammar accepts is read by `parse_tool_calls` without a problem, and what
    `render_tool_call` writes is accepted where the arguments fit the schema. Values are held to the
    schema's type, `enum`, `const` and item type; that required parameters are there is left to the
    validator.

    Raises `ValueError` where nothing could be written (no tools and no prose), for more than 1,000 calls
    or parameters (llama.cpp bounds repetitions), and for schemas that are no JSON.
    """
    return _core.heredoc_grammar(
        _tools_json(tools), max_calls=_count(max_calls), allow_prose=bool(allow_prose)
    )


def heredoc_lark(tools: Iterable[Any], *, max_calls: int = 4, allow_prose: bool = True) -> str:
    """The language of `heredoc_grammar` as a Lark grammar for llguidance. Raises `ValueError` likewise."""
    return _core.heredoc_lark(
        _tools_json(tools), max_calls=_count(max_calls), allow_prose=bool(allow_prose)
    )


PROSE_GRAMMAR = r"""root ::= p ("\n" root?)? | "\n" root? | "```" x ("\n" in?)?
in ::= c ("\n" in?)? | "\n" in? | "```" x ("\n" root?)?
p ::= [^@`\n] x | f
c ::= [^@`\n] x | "@" ([^@\n] x | "@" ([^c\n] x | "c" ([^a\n] x | "a" ([^l\n] x | "l" ([^l\n] x)?)?)?)?)? | f
f ::= "`" ([^`\n] x | "`" ([^`\n] x)?)?
x ::= [^\n]*
"""
"""GBNF of a reply without calls (`tool_choice="none"`), nor anything a reader would take for one.

A model that wants to call and may not writes something like it (`@@read_file`, `@call`), so no line begins with `@`.
Inside a fence only a true header is kept out: a patch has lines that begin with `@@`, and code has decorators."""


def _count(max_calls: int) -> int:
    if max_calls < 0:
        raise ValueError(f"max_calls must not be negative, but is {max_calls}")
    return max_calls


def heredoc_prompt(tools: Iterable[Any]) -> str:
    """Instructions for the model: an example, a batch of two calls, and `name(param, param?)` per tool.

    The examples use the tools that are there. Empty where there are none.
    """
    return _core.heredoc_prompt(_tools_json(tools))


def render_tool_call(name: str, arguments: str | Mapping[str, Any]) -> str:
    """A call as the model writes it, ending in a line break; `parse_tool_calls` gives back an equal one.

    `arguments` is a JSON object, as text or as a dict of JSON values (`TypeError` or `ValueError` for
    what JSON cannot hold). Text that is no JSON object is first repaired; what cannot be is rendered as
    `rejected_arguments` gives it, so that a damaged history can still be shown.
    """
    if not isinstance(arguments, str):
        text = json.dumps(dict(arguments), ensure_ascii=False, allow_nan=False)
        return _core.render_tool_call(name, text)
    try:
        return _core.render_tool_call(name, arguments)
    except HeredocError:
        kind, text, message = _core.check_arguments(arguments)
        if kind != "ok":
            text = _core.rejected_arguments(arguments, message)
        return _core.render_tool_call(name, text)
