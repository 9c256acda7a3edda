"""One session's history in the core, kept in step with its store."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from agentkit_fast._core import Transcript
from agentkit_fast._unicode import repair_value
from agentkit_fast.entries import Entry
from agentkit_fast.messages import ToolDef
from agentkit_fast.packing import PIECE, Pieces, pack_entries
from agentkit_fast.tokens import CharsByFour

__all__ = ["count_of", "packs", "read_packed", "schema_json", "take_in"]

_json = msgspec.json.Encoder()


def count_of(counter: Any) -> Callable[[str], int] | None:
    """The counter's `count`, or `None` where the core counts by itself."""
    if counter is None or type(counter) is CharsByFour:
        return None
    count: Callable[[str], int] = counter.count
    return count


def packs(store: Any) -> bool:
    """Whether the store gives entries as the core reads them: `packed_since`.

    Not where its `context_since` is somebody else's, who may mean to change what is seen.
    """
    if "context_since" in getattr(store, "__dict__", ()):
        return False
    owners = [
        next((kind for kind in type(store).__mro__ if name in vars(kind)), None)
        for name in ("packed_since", "context_since")
    ]
    return owners[0] is not None and owners[0] is owners[1]


def read_packed(transcript: Transcript, pieces: Any) -> bool:
    """Gives pieces to the core; false when one sorts before the end of what is there."""
    if type(pieces) is Pieces:
        return transcript.ingest_entries(pieces.entries, pack_entries)
    if hasattr(pieces, "__len__"):
        transcript.expect(len(pieces))
    return all(map(transcript.ingest, pieces))


def take_in(transcript: Transcript, entries: list[Entry]) -> bool:
    """Gives the entries to the core, in any order; false when some sort before the end of what is there."""
    if len(entries) <= PIECE:
        return transcript.ingest_entries(entries, pack_entries)
    begun = transcript.taken() > 0
    if not begun:
        # A store nearly always hands over a history in its order.
        if read_packed(transcript, Pieces(entries)):
            return True
        transcript.clear()
    return read_packed(transcript, Pieces(sorted(entries, key=_order)))


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
