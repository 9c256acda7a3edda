"""What a store keeps of a session's shaping, for those who look into it later."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from agentkit_fast import Entry, MemoryStore, ShapePolicy, Shaper, SQLiteStore, ToolDef
from agentkit_fast.shaping.plan import Plan, recorded

POLICY = ShapePolicy(budget_tokens=4000, lod_above=200, headroom_tokens=500)
TOOLS = [ToolDef(name="look", description="Look at a shelf.")]


@pytest.mark.parametrize("store_kind", ["memory", "sqlite"])
def test_the_first_window_tells_what_it_was_built_with(store_kind: str, tmp_path: Path) -> None:
    store = MemoryStore() if store_kind == "memory" else SQLiteStore(tmp_path / "s.db")
    store.append("s", Entry(kind="user", content="hello"))
    shaper = Shaper(store, None, POLICY)
    first = shaper.build("s", "You \ud800 keep a depot.", TOOLS)
    found = recorded(store.load_plan("s"))
    assert found is not None
    policy, setup = found
    assert policy == POLICY
    assert setup.system == "You \ufffd keep a depot."
    assert msgspec.json.decode(setup.tools) == [tool.to_wire() for tool in TOOLS]
    assert setup.counter == "CharsByFour"
    assert shaper.build("s", "You \ud800 keep a depot.", TOOLS).to_json() == first.to_json()


def test_nothing_is_written_twice_or_over_the_plan_of_another_policy() -> None:
    class Counted(MemoryStore):
        saves = 0

        def save_plan(self, session_id: str, plan: bytes) -> None:
            self.saves += 1
            super().save_plan(session_id, plan)

    store = Counted()
    store.append("s", Entry(kind="user", content="hello"))
    shaper = Shaper(store, None, POLICY)
    for at in range(5):
        shaper.build("s", f"It is {at} o'clock.")
    assert store.saves == 1
    Shaper(store, None, POLICY).build("s", "It is 0 o'clock.")
    assert store.saves == 1
    Shaper(store, None, ShapePolicy(budget_tokens=9000)).build("s", "other")
    Shaper(store, None, ShapePolicy()).build("s", "other")
    assert store.saves == 1
    plain = Counted()
    plain.append("s", Entry(kind="user", content="hello"))
    Shaper(plain, None, ShapePolicy()).build("s", "other")
    assert plain.saves == 0


def test_an_older_plan_is_still_read() -> None:
    old = msgspec.json.encode(
        {
            "version": 1,
            "policy": msgspec.json.encode(POLICY).decode(),
            "runs": [],
            "silent": False,
            "hidden": 0,
            "degraded": "",
        }
    )
    found = recorded(old)
    assert found is not None
    assert found[0] == POLICY
    assert found[1].system == ""
    assert msgspec.json.decode(old, type=Plan).runs == []
    assert recorded(None) is None
    assert recorded(b"somebody else's") is None
