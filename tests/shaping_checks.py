"""What every window must fulfil, written slowly and obviously, and makers of histories."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

from agentkit_fast.entries import Compaction, Entry
from agentkit_fast.messages import Message


class ListStore:
    """The four methods and nothing else, in any order the test likes."""

    def __init__(self, entries: Sequence[Entry] = ()) -> None:
        self.entries = list(entries)
        self.compacted: list[Compaction] = []
        self._named = len(self.entries)  # an id is given once, also after a fold

    def claim_pending(self, session_id: str, at: int) -> int:
        return 0

    def append(self, session_id: str, entry: Entry) -> Entry:
        if not entry.created_at:
            entry.created_at = max((e.created_at for e in self.entries), default=0) + 1
        if not entry.id:
            entry.id = f"e{self._named:05d}"
            self._named += 1
        self.entries.append(entry)
        return entry

    def context(self, session_id: str) -> list[Entry]:
        return list(self.entries)

    def compact(self, session_id: str, compaction: Compaction) -> None:
        gone = {entry.id for entry in compaction.subsumes}
        self.entries = [entry for entry in self.entries if entry.id not in gone] + [compaction.marker]
        self.compacted.append(compaction)


def count_text(text: str) -> int:
    return math.ceil(len(text.encode()) / 4)


def count_messages(messages: Sequence[Message], image_tokens: int = 800, count: Any = count_text) -> int:
    """The contract's formula, message by message."""
    total = 0
    for message in messages:
        total += count(message.role) + 4
        total += count(message.name) if message.name else 0
        if message.parts:
            for part in message.parts:
                total += count(part.text) if part.type == "text" else image_tokens
        elif message.content:
            total += count(message.content)
        for call in message.tool_calls:
            total += count(call.name) + count(call.arguments) + 4
    return total


def check_valid(messages: Sequence[Message], *, system: str = "", newest_user: str | None = None) -> None:
    """Invariants 2 to 4: pairs, arguments, roles."""
    roles = [message.role for message in messages]
    if system:
        assert roles[0] == "system"
        assert messages[0].content == system
    assert "system" not in roles[1:]
    assert system or "system" not in roles
    open_calls: list[str] = []
    seen: set[str] = set()
    last = ""
    for message in messages:
        if message.role == "tool":
            assert open_calls, "a tool message without an open call"
            assert message.tool_call_id == open_calls.pop(0), "results in the order of the calls"
            assert message.content, "an empty result"
        else:
            assert not open_calls, f"calls without results: {open_calls}"
        if message.role == "assistant":
            assert last != "assistant", "two assistant messages in a row"
            assert message.content.strip() or message.tool_calls, "an empty assistant message"
            for call in message.tool_calls:
                assert call.id, "an empty call id"
                assert call.id not in seen, "a call id used twice"
                seen.add(call.id)
                open_calls.append(call.id)
                assert isinstance(json.loads(call.arguments), dict)
        if message.role == "user":
            assert message.content or message.parts
        last = message.role
    assert not open_calls, f"calls without results: {open_calls}"
    if newest_user is not None:
        assert any(m.role == "user" and newest_user in m.content for m in messages), "newest user message"


class History:
    """Writes entries with growing stamps and readable ids."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []

    def add(self, kind: str, content: str = "", **fields: Any) -> Entry:
        n = len(self.entries) + 1
        fields.setdefault("id", f"e{n:05d}")
        fields.setdefault("created_at", n * 1000)
        entry = Entry(kind=kind, content=content, **fields)
        self.entries.append(entry)
        return entry

    def round(
        self, call_id: str, result: str, *, text: str = "", name: str = "look", args: str = "{}"
    ) -> None:
        if text:
            self.add("assistant", text)
        self.add("tool_call", args, tool_call_id=call_id, tool_name=name)
        self.add("tool_result", result, tool_call_id=call_id, tool_name=name)
