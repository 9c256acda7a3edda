"""Puts streamed tool-call fragments together, whatever a server leaves out. No I/O.

OpenAI's own stream gives every fragment an `index` and the first of each call an `id` and a `name`.
Servers in the wild drop the index, use one index for two calls, send no id, an empty id, one constant id or
a new one with every fragment, repeat the name, or send arguments as an object. The rules, in this order:

1. an index seen before continues its call, unless the fragment plainly opens another one;
2. without an index, an id seen before does;
3. without both, a fragment with a name opens a call, and one without a name continues the last.

A fragment plainly opens another call when it has a name and the call it would continue is a complete JSON
object already, or when it brings both a name and an id of its own and does not read like the middle of the
arguments. Empty strings never overwrite anything.
"""

from __future__ import annotations

import re
import uuid
from typing import Any

from agentkit_fast._unicode import repair_text
from agentkit_fast.messages import ToolCall
from agentkit_fast.runners._http.errors import dumps

__all__ = ["CallAssembler"]

_STRUCTURE = re.compile(r'["\\{}\[\]]')


class _Completeness:
    """Whether text pushed piece by piece is one closed JSON object or array; each byte is read once."""

    __slots__ = ("_depth", "_escaped", "_in_string", "closed")

    def __init__(self) -> None:
        self._depth = 0
        self._in_string = False
        self._escaped = False
        self.closed = False

    def push(self, text: str) -> None:
        at = 0
        if self._escaped and text:
            self._escaped = False
            at = 1
        find = _STRUCTURE.search
        while (hit := find(text, at)) is not None:
            mark = hit.group()
            at = hit.end()
            if self._in_string:
                if mark == '"':
                    self._in_string = False
                elif mark == "\\":
                    if at == len(text):
                        self._escaped = True
                    at += 1
            elif mark == '"':
                self._in_string = True
            elif mark in "{[":
                self._depth += 1
            elif mark in "}]":
                self._depth -= 1
                if self._depth <= 0:
                    self.closed = True


class _Call:
    __slots__ = ("_scanned", "_shape", "empty", "id", "index", "name", "number", "pieces")

    def __init__(self, number: int, index: int | None, call_id: str, name: str) -> None:
        self.number = number
        self.index = index
        self.id = call_id
        self.name = name
        self.pieces: list[str] = []
        self.empty = True
        self._shape = _Completeness()
        self._scanned = 0

    @property
    def closed(self) -> bool:
        """The arguments are a closed object. Scans only what came since the last look."""
        for piece in self.pieces[self._scanned :]:
            self._shape.push(piece)
        self._scanned = len(self.pieces)
        return self._shape.closed

    def parses(self) -> bool:
        """The arguments pass the gate every tool call has to pass."""
        from agentkit_fast.text import check_arguments

        return self.empty or check_arguments(repair_text("".join(self.pieces))).kind == "ok"

    def add(self, text: str) -> None:
        self.pieces.append(text)
        if self.empty and not text.isspace():
            self.empty = False

    @property
    def expects_value(self) -> bool:
        """The text so far ends where a nested value may begin."""
        for piece in reversed(self.pieces):
            stripped = piece.rstrip()
            if stripped:
                return stripped[-1] in ":,["
        return True

    def finish(self, taken: set[str]) -> ToolCall:
        call_id = self.id
        if not call_id or call_id in taken:
            call_id = f"call_{uuid.uuid4().hex[:24]}"
        taken.add(call_id)
        arguments = "".join(self.pieces)
        return ToolCall(
            id=repair_text(call_id),
            name=repair_text(_clean_name(self.name)),
            arguments=repair_text(arguments) if arguments.strip() else "{}",
        )


def _clean_name(name: str) -> str:
    # Some gpt-oss servers leak a channel token into the name: `bash<|channel|>commentary`.
    return name.partition("<|")[0].strip()


def _text_of(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    return dumps(value)


class CallAssembler:
    """Collects the fragments of one reply's tool calls."""

    def __init__(self) -> None:
        self._calls: list[_Call] = []
        self._by_index: dict[int, _Call] = {}
        self._by_id: dict[str, _Call] = {}

    def __bool__(self) -> bool:
        return bool(self._calls)

    def push(self, fragments: Any) -> list[tuple[int, str]]:
        """Take the `tool_calls` of one delta; gives `(call number, new argument text)` pairs."""
        if isinstance(fragments, dict):
            fragments = [fragments]
        if not isinstance(fragments, list):
            return []
        added = []
        for fragment in fragments:
            if isinstance(fragment, dict):
                number, text = self._push_one(fragment)
                if text:
                    added.append((number, text))
        return added

    def _push_one(self, fragment: dict[str, Any]) -> tuple[int, str]:
        function = fragment.get("function")
        if not isinstance(function, dict):
            function = fragment
        index = fragment.get("index")
        if isinstance(index, bool) or not isinstance(index, int):
            index = int(index) if isinstance(index, str) and index.isdecimal() else None
        raw_id = fragment.get("id")
        call_id = raw_id if isinstance(raw_id, str) else "" if raw_id is None else str(raw_id)
        raw_name = function.get("name")
        name = raw_name if isinstance(raw_name, str) else ""
        text = _text_of(function.get("arguments"))

        call = self._find(index, call_id, name, text)
        if call is None:
            call = _Call(len(self._calls), index, call_id, name)
            self._calls.append(call)
        else:
            if name and name != call.name:
                call.name = name if not call.name or name.startswith(call.name) else call.name + name
            if call_id and not call.id:
                call.id = call_id
            if index is not None and call.index is None:
                call.index = index
        if index is not None:
            self._by_index[index] = call
        if call_id:
            self._by_id[call_id] = call
        if text:
            call.add(text)
        return call.number, text

    def _find(self, index: int | None, call_id: str, name: str, text: str) -> _Call | None:
        if not self._calls:
            return None
        last = self._calls[-1]
        if index is not None and index in self._by_index:
            call = self._by_index[index]
        elif call_id and call_id in self._by_id:
            call = self._by_id[call_id]
            if index is not None and call.index is not None and call.index != index:
                # One constant id for all calls: here the index tells them apart.
                return None
        elif name:
            if index is not None or call_id:
                return None
            call = last
            if name != call.name:
                return None
        elif index is not None and last.index is not None:
            return None
        else:
            return last
        return None if self._opens_another(call, call_id, name, text) else call

    @staticmethod
    def _opens_another(call: _Call, call_id: str, name: str, text: str) -> bool:
        if not name:
            return False
        starts_object = text.lstrip()[:1] == "{"
        new_id = bool(call_id and call.id and call_id != call.id)
        if call.closed:
            # A server that repeats the name with an empty fragment at the end opens nothing.
            return starts_object or name != call.name or new_id
        if call.empty:
            return new_id
        # In the middle of an object: `{` after `:`, `,` or `[` is a nested value, anything else that is not
        # an object is more text of the same call (some servers repeat the name, or send a new id, each time).
        if starts_object:
            return not call.expects_value
        return new_id and name != call.name

    def is_closed(self, number: int) -> bool:
        """The arguments of that call are a closed JSON object."""
        return self._calls[number].closed

    def closed(self) -> bool:
        """Every call has a name and arguments that parse, or none at all."""
        return all(call.name and call.parses() for call in self._calls)

    def finish(self) -> tuple[ToolCall, ...]:
        """The calls in the order in which they began. Missing, empty and repeated ids are replaced."""
        taken: set[str] = set()
        return tuple(call.finish(taken) for call in self._calls)
