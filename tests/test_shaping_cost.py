"""What a build touches: counted, not timed."""

from __future__ import annotations

from collections import Counter

from agentkit_fast.entries import Entry
from agentkit_fast.shaping import ShapePolicy, Shaper
from agentkit_fast.stores.memory import MemoryStore


class Asked:
    """An exact counter that remembers what it was asked."""

    def __init__(self) -> None:
        self.texts: Counter[str] = Counter()

    def count(self, text: str) -> int:
        self.texts[text] += 1
        return len(text) // 3 + 1


def test_each_entry_is_counted_once() -> None:
    store = MemoryStore()
    counter = Asked()
    shaper = Shaper(store, None, ShapePolicy(budget_tokens=10**7), counter)
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
