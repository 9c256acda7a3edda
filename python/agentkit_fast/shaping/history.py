"""One session's history in the core, kept in step with its store."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from agentkit_fast._core import Transcript
from agentkit_fast._unicode import repair_text, repair_value
from agentkit_fast.entries import Entry
from agentkit_fast.messages import ToolDef
from agentkit_fast.tokens import CharsByFour

__all__ = ["count_of", "encode_entries", "schema_json", "take_in"]

_encoder = msgspec.msgpack.Encoder()
_json = msgspec.json.Encoder()
# Entries are handed over in pieces of this many, so that a long history is never in memory twice.
_BATCH = 65_536


def count_of(counter: Any) -> Callable[[str], int] | None:
    """The counter's `count`, or `None` where the core counts by itself."""
    if counter is None or type(counter) is CharsByFour:
        return None
    count: Callable[[str], int] = counter.count
    return count


def _repaired(entry: Entry) -> dict[str, Any]:
    """The entry's fields with valid Unicode, where somebody changed it after it was made."""
    return {
        name: repair_text(value) if isinstance(value, str) else value
        for name, value in msgspec.structs.asdict(entry).items()
    }


def encode_entries(entries: Sequence[Entry]) -> bytes:
    """Entries as the core reads them."""
    try:
        return _encoder.encode(entries)
    except UnicodeEncodeError:
        return _encoder.encode([_repaired(entry) for entry in entries])


def take_in(transcript: Transcript, entries: list[Entry]) -> bool:
    """Gives the entries to the core, oldest first; false when some sort before the end."""
    if len(entries) > _BATCH:
        entries = sorted(entries, key=_order)
        return all(
            transcript.ingest(encode_entries(entries[at : at + _BATCH]))
            for at in range(0, len(entries), _BATCH)
        )
    return transcript.ingest(encode_entries(entries))


def _order(entry: Entry) -> tuple[int, bool, str]:
    return entry.created_at, entry.kind != "compaction", entry.id


def schema_json(tools: Sequence[ToolDef | dict[str, Any]]) -> str:
    """The tools as they go over the wire; empty where there are none."""
    if not tools:
        return ""
    wire = [tool if isinstance(tool, dict) else tool.to_wire() for tool in tools]
    try:
        return _json.encode(wire).decode()
    except UnicodeEncodeError:
        return _json.encode(repair_value(wire)).decode()
