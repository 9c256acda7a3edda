"""What a build touches: counted, not timed."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path
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


class Failing:
    """A runner whose summaries fail; it remembers after how many entries it was asked."""

    def __init__(self, store: MemoryStore) -> None:
        self.store = store
        self.asked_at: list[int] = []

    def chat_stream(self, messages: Any, tools: Any = (), options: Any = None) -> Any:
        self.asked_at.append(len(self.store.context("s")))
        raise ConnectionError("down")


def test_a_summary_that_goes_on_failing_costs_little_more_than_what_is_new() -> None:
    """It looks at everything before the tail: with each of the next four entries, then at twice the distance."""
    store = MemoryStore()
    counter = Asked()
    runner = Failing(store)
    shaper = Shaper(store, runner, ShapePolicy(budget_tokens=3000, headroom_tokens=1000), counter)
    store.append("s", Entry(kind="user", content="sort the depot"))
    while not runner.asked_at:
        store.append("s", Entry(kind="user", content=f"question {len(store.context('s'))}"))
        assert shaper.build("s", "sys").tokens <= 3000
    first, counted, builds = runner.asked_at[0], counter.texts.total(), 30
    for _ in range(builds):
        store.append("s", Entry(kind="user", content=f"question {len(store.context('s'))}"))
        assert shaper.build("s", "sys").degraded
    assert [at - first for at in runner.asked_at] == [0, 1, 2, 3, 4, 6, 10, 18]
    # Without a wait each of these builds would count the whole prompt.
    tries = len(runner.asked_at) - 1
    assert counter.texts.total() - counted <= 3 * builds + tries * (first + 20)


HELD = """
import re
from pathlib import Path
from agentkit_fast.entries import Entry
from agentkit_fast.shaping import ShapePolicy, Shaper
from agentkit_fast.stores.memory import MemoryStore

def peak():
    # Not `ru_maxrss`: that also knows the process this one was started from.
    return int(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1]) * 1024

store = MemoryStore()
shaper = Shaper(store, None, ShapePolicy(budget_tokens=10**8))
store.append("other", Entry(kind="user", content="x"))
shaper.build("other")
before = peak()
for n in range(25_000):
    call = {"tool_call_id": f"c{n}", "tool_name": "read"}
    store.append_many("s", [
        Entry(kind="user", content=f"question {n} about the thing " * 8),
        Entry(kind="assistant", content=f"looking at it {n} " * 6),
        Entry(kind="tool_call", content=f'{{"path":"/a/b/c{n}","n":{n}}}', **call),
        Entry(kind="tool_result", content=f"line of text of result {n} " * 20, **call),
    ])
window = shaper.build("s", "sys")
print(len(window), peak() - before)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the peak is read from Linux's /proc")
def test_100_000_entries_take_less_than_200_mb() -> None:
    """Store, transcript and window together, at their highest, in a process of their own."""
    run = subprocess.run([sys.executable, "-c", HELD], capture_output=True, text=True, check=True)
    messages, grown = map(int, run.stdout.split())
    assert messages == 75_001
    assert 20_000_000 < grown < 200_000_000  # the texts alone are over 20 MB
