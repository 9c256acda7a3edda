"""What every store of ours has in common: the order of history, when two entries are the same, page rules."""

from __future__ import annotations

import time
from copy import copy

import msgspec

from agentkit_fast._unicode import repair_text
from agentkit_fast.entries import Entry, EntryKind
from agentkit_fast.messages import ContentPart

__all__ = ["ANSWERS", "deadline_ns", "decode_body", "encode_body", "order", "repaired", "same"]

# After one of these the model has read what came before: taking a notice out would break its window.
ANSWERS = frozenset({EntryKind.assistant.value})
_COMPARED = ("kind", "content", "parts", "reasoning", "tool_call_id", "tool_name", "tag", "origin")
_TEXTS = ("id", "kind", "content", "reasoning", "tool_call_id", "tool_name", "tag", "origin")
_MAX_NS = 2**62

_encode = msgspec.json.Encoder().encode
decode_body = msgspec.json.Decoder(Entry).decode
"""The entry in a stored body; its `id` and `created_at` are kept beside it."""


def order(entry: Entry) -> tuple[int, str]:
    """The order of history."""
    return entry.created_at, entry.id


def same(known: Entry, entry: Entry) -> bool:
    """Whether two entries say the same: a repeated append of one is harmless."""
    return all(getattr(known, name) == getattr(entry, name) for name in _COMPARED)


def encode_body(entry: Entry) -> bytes:
    """An entry, `repaired` before, as JSON."""
    return _encode(entry)


def repaired(entry: Entry) -> Entry:
    """A copy of an entry; in it, lone surrogates that got in after it was made are repaired."""
    ready = copy(entry)
    for name in _TEXTS:
        value = getattr(ready, name)
        if not value.isascii():
            setattr(ready, name, repair_text(value))
    if ready.parts:
        ready.parts = tuple(
            ContentPart(type=part.type, text=repair_text(part.text), url=repair_text(part.url))
            for part in ready.parts
        )
    return ready


def deadline_ns(ttl_s: float | None) -> int:
    """When something that lives `ttl_s` seconds from now ends (ns since the epoch); 0: never."""
    if ttl_s is None:
        return 0
    return min(_MAX_NS, time.time_ns() + int(max(0.0, min(ttl_s, 1e9)) * 1e9))
