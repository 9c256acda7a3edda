"""What a build touches: counted, not timed."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from agentkit_fast.entries import Entry
from agentkit_fast.protocols import RunnerProfile
from agentkit_fast.shaping import ShapePolicy, Shaper
from agentkit_fast.stores.memory import MemoryStore


class Asked:
    """An exact counter that remembers what it was asked."""

    def __init__(self) -> None:
        self.texts: Counter[str] = Counter()

    def count(self, text: str) -> int:
        self.texts[text] += 1
        return len(text) // 3 + 1


class Strict:
    """A runner for what a template demands; it is never asked anything."""

    def __init__(self, **profile: bool) -> None:
        self.profile = RunnerProfile(**profile)

    def chat_stream(self, messages: Any, tools: Any = (), options: Any = None) -> Any:
        raise AssertionError("nothing is to be summarized")


@pytest.mark.parametrize(
    "runner",
    [None, Strict(alternate=True), Strict(system_role=False)],
    ids=["plain", "alternate", "no-system-role"],
)
def test_each_entry_is_counted_once(runner: Any) -> None:
    """Also where roles are merged: a build that walked the whole window would count again."""
    store = MemoryStore()
    counter = Asked()
    shaper = Shaper(store, runner, ShapePolicy(budget_tokens=10**7), counter)
    for n in range(300):
        store.append("s", Entry(kind="user", content=f"question {n}"))
        shaper.build("s", "sys")
        store.append("s", Entry(kind="assistant", content=f"thinking {n}"))
        store.append(
            "s", Entry(kind="tool_call", content=f'{{"n":{n}}}', tool_call_id=f"c{n}", tool_name="t")
        )
        shaper.build("s", "sys")
        store.append(
            "s", Entry(kind="tool_result", content=f"result {n}", tool_call_id=f"c{n}", tool_name="t")
        )
        shaper.build("s", "sys")
        store.append("s", Entry(kind="assistant", content=f"answer {n}"))
    assert len(counter.texts) > 1200
    assert max(counter.texts.values()) == 1


@pytest.mark.parametrize("always_lod", [True, False])
def test_a_stub_is_counted_once(always_lod: bool) -> None:
    store = MemoryStore()
    counter = Asked()
    policy = ShapePolicy(budget_tokens=3000, lod_above=200, always_lod=always_lod)
    shaper = Shaper(store, None, policy, counter)
    for n in range(200):
        store.append("s", Entry(kind="user", content=f"question {n}"))
        store.append(
            "s", Entry(kind="tool_call", content=f'{{"n":{n}}}', tool_call_id=f"c{n}", tool_name="t")
        )
        store.append(
            "s", Entry(kind="tool_result", content=f"result {n} " * 40, tool_call_id=f"c{n}", tool_name="t")
        )
        assert shaper.build("s", "sys").tokens <= 3000
        store.append("s", Entry(kind="assistant", content=f"answer {n}"))
    stubs = [count for text, count in counter.texts.items() if text.startswith("[shortened")]
    assert len(stubs) >= 150
    assert max(stubs) == 1
