"""What stubs, pointers, markers, lines and repairs look like: the golden windows that the Rust tests read too."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from agentkit_fast.entries import Entry
from agentkit_fast.shaping import ShapePolicy, Shaper
from agentkit_fast.stores.memory import MemoryStore
from shaping_checks import ListStore

_FILE = Path(__file__).parent / "data" / "golden" / "shape_window.jsonl"
ROWS = [json.loads(line) for line in _FILE.read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize("memory", [True, False], ids=["memory-store", "four-methods"])
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["name"])
def test_window(row: dict[str, Any], memory: bool) -> None:
    given = row["in"]
    entries = [msgspec.convert(entry, Entry) for entry in given["entries"]]
    store: Any = ListStore(entries)
    if memory:
        store = MemoryStore()
        store.append_many("s", entries)
    window = Shaper(store, None, ShapePolicy(**given["policy"])).build("s", given["system"])
    assert window.to_wire() == row["out"]["messages"]
    assert window.tokens == row["out"]["tokens"]
