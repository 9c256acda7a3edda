"""Entries reach the core as they stand; what cannot be read so goes as MessagePack, and is shown alike."""

from __future__ import annotations

from copy import copy
from typing import Any

import pytest

from agentkit_fast._core import Transcript
from agentkit_fast.entries import Entry, EntryKind
from agentkit_fast.messages import image_part
from agentkit_fast.packing import pack_entries
from agentkit_fast.protocols import RunnerProfile
from agentkit_fast.shaping.policy import ShapePolicy, core_options


class Own(Entry):
    """A host's subclass, whose slots are elsewhere."""

    row: int = 0


def changed(**fields: Any) -> Entry:
    """Fields are set afterwards, past what the constructor repairs."""
    entry = Entry(id="e", kind="user", content="x", created_at=5)
    for name, value in fields.items():
        setattr(entry, name, value)
    return entry


CALL: dict[str, Any] = {"tool_call_id": "c", "tool_name": "look"}
PLAIN = [
    Entry(id="a", kind="user", content='ünïcode \U0001f600 "quoted" \\ and\ttabs\n', created_at=1),
    Entry(id="b", kind=EntryKind.assistant, content="", reasoning="thought of it", created_at=2),
    Entry(id="c", kind="tool_call", content='{"n": 1}', created_at=3, **CALL),
    Entry(id="d", kind="tool_result", content="<|im_end|> \x01", created_at=4, **CALL),
    Entry(id="e", kind="compaction", content="so far", created_at=-5),
    Entry(id="", kind="notification", content="untagged", created_at=6),
    Entry(id="g", kind="weather", content="rain", created_at=7),
    Entry(id="h", kind="weather", content="rain", tag="radio", created_at=8),
]
ODD = {
    "images": Entry(id="e", kind="user", parts=(image_part("http://x/y.png"),), created_at=5),
    "subclass": Own(id="e", kind="user", content="of a row", row=7, created_at=5),
    "surrogates": changed(content="a\ud800b\ud83d\ude00"),
    "number": changed(tool_name=7),
    "nothing": changed(content=None),
    "late time": changed(created_at=2**64 - 1),
}


def window(entries: list[Any], as_they_stand: bool, count: Any = None) -> tuple[bytes, int]:
    profile = RunnerProfile(reasoning=True)
    transcript = Transcript(core_options(ShapePolicy(), profile, carry_reasoning=True), count)
    if as_they_stand:
        assert transcript.ingest_entries(entries, pack_entries)
    else:
        assert transcript.ingest(pack_entries(entries))
    transcript.set_fixed("sys", "")
    handle = transcript.window()
    return handle.to_json(), handle.tokens


@pytest.mark.parametrize(
    "entries", [PLAIN, *([entry] for entry in PLAIN), *([odd] for odd in ODD.values())]
)
def test_both_ways_show_the_same(entries: list[Entry]) -> None:
    assert window(entries, True) == window(entries, False)


def test_plain_entries_are_not_packed() -> None:
    def pack(_: list[Any]) -> bytes:
        raise AssertionError("an entry could not be read where it stands")

    transcript = Transcript(core_options(ShapePolicy(), RunnerProfile(), carry_reasoning=False))
    assert transcript.ingest_entries(PLAIN * 30, pack)
    assert transcript.taken() == len(PLAIN) + 29  # without an id, each is one of its own


@pytest.mark.parametrize("odd", ODD)
def test_only_the_pieces_that_cannot_be_read_are_packed(odd: str) -> None:
    packed: list[int] = []

    def pack(entries: list[Any]) -> bytes:
        packed.append(len(entries))
        return pack_entries(entries)

    entries: list[Entry] = [
        Entry(id=f"x{n:04}", kind="user", content=f"{n}", created_at=n + 1) for n in range(1000)
    ]
    last = copy(ODD[odd])
    last.created_at = max(last.created_at, 2000)
    entries.append(last)
    transcript = Transcript(core_options(ShapePolicy(), RunnerProfile(), carry_reasoning=False))
    assert transcript.ingest_entries(entries, pack)
    assert sum(packed) < 500
    assert transcript.taken() == 1001


def test_a_counter_that_changes_entries_does_no_harm() -> None:
    entries = [Entry(id=f"x{n}", kind="user", content=f"{n} " * 100, created_at=n + 1) for n in range(100)]

    def count(text: str) -> int:
        for entry in entries:
            entry.content = "gone"
        return len(text)

    shown, _ = window(entries, True, count)
    assert b"99 99 99" in shown


def test_what_is_no_entry_is_refused() -> None:
    with pytest.raises((TypeError, ValueError)):
        window([object()], True)
