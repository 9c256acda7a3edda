"""Entries as the core reads them: MessagePack, piece by piece."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from agentkit_fast._unicode import repair_text
from agentkit_fast.entries import Entry

__all__ = ["PIECE", "Pieces", "pack_entries"]

PIECE = 256
"""Entries of one piece: with 256 the bytes are still in the processor's cache when they are read."""

_encoder = msgspec.msgpack.Encoder()


def _repaired(entry: Entry) -> dict[str, Any]:
    """The entry's fields with valid Unicode, where somebody changed it after it was made."""
    return {
        name: repair_text(value) if isinstance(value, str) else value
        for name, value in msgspec.structs.asdict(entry).items()
    }


def pack_entries(entries: Sequence[Entry]) -> bytes:
    """One MessagePack array of all entries."""
    try:
        return _encoder.encode(entries)
    except UnicodeEncodeError:
        return _encoder.encode([_repaired(entry) for entry in entries])


class Pieces:
    """Entries in pieces, each made when it is asked for, so that a long history is never in memory twice.

    `len()` is the number of entries. `entries`: they themselves, which the core reads faster than their bytes.
    """

    __slots__ = ("entries",)

    def __init__(self, entries: list[Entry]) -> None:
        self.entries = entries

    def __len__(self) -> int:
        return len(self.entries)

    def __iter__(self) -> Iterator[bytes]:
        for at in range(0, len(self.entries), PIECE):
            yield pack_entries(self.entries[at : at + PIECE])
