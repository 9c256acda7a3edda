"""What shaping costs, beside msgspec's encoder, LangChain's trimmer, and a history ten times as long."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from agentkit_fast import _core
from agentkit_fast.entries import Entry
from agentkit_fast.protocols import RunnerProfile
from agentkit_fast.shaping import ShapePolicy, Shaper, plain_window, shape_messages
from agentkit_fast.stores.memory import MemoryStore

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from shaping_checks import History, ListStore

pytestmark = pytest.mark.skipif(_core.DEBUG_BUILD, reason="a debug build says nothing about speed")


def history(rounds: int) -> list[Entry]:
    made = History()
    for n in range(rounds):
        made.add("user", f"question {n} about the thing " * 8)
        made.add("assistant", f"looking at it {n} " * 6)
        made.add("tool_call", f'{{"path":"/a/b/c{n}","n":{n}}}', tool_call_id=f"c{n}", tool_name="read")
        made.add(
            "tool_result", f"line of text\n of result {n} " * 20, tool_call_id=f"c{n}", tool_name="read"
        )
    return made.entries


@pytest.mark.benchmark(group="first build of 10,000 entries to request bytes")
class TestFirstBuild:
    """A fresh shaper with a budget in which everything fits, from the store to the bytes of a request."""

    def test_from_memory_store(self, benchmark: Any) -> None:
        store = MemoryStore()
        store.append_many("s", history(2500))
        policy = ShapePolicy(budget_tokens=10**7, lod_above=800)
        benchmark(lambda: Shaper(store, None, policy).build("s", "sys").to_json())

    def test_from_a_list_of_entries(self, benchmark: Any) -> None:
        store = ListStore(history(2500))
        benchmark(lambda: plain_window(store, "s", "sys").to_json())

    def test_msgspec_encodes_the_same_dicts(self, benchmark: Any) -> None:
        dicts = plain_window(ListStore(history(2500)), "s", "sys").to_wire()
        benchmark(lambda: msgspec.json.encode(dicts))


class Strict:
    """A runner whose template merges roles; it is asked for no summary."""

    profile = RunnerProfile(alternate=True, system_role=False)

    def chat_stream(self, messages: Any, tools: Any = (), options: Any = None) -> Any:
        raise AssertionError("nothing is to be summarized")


WAYS = {
    "plain": (None, ShapePolicy()),
    "alternate": (Strict(), ShapePolicy()),
    "always_lod": (None, ShapePolicy(always_lod=True, lod_above=100)),
}


@pytest.mark.parametrize("entries", [1_000, 10_000, 100_000])
@pytest.mark.parametrize("way", WAYS)
def test_next_build(benchmark: Any, way: str, entries: int) -> None:
    benchmark.group = f"one more entry, built, {way}"
    store = MemoryStore()
    made = [Entry(kind=("user", "assistant")[n % 2], content=f"message {n} " * 10) for n in range(entries)]
    store.append_many("s", made)
    runner, policy = WAYS[way]
    shaper = Shaper(store, runner, policy)
    shaper.build("s", "sys")
    turn = iter(range(10**9))

    def step() -> None:
        store.append("s", Entry(kind=("user", "assistant")[next(turn) % 2], content="one more " * 10))
        shaper.build("s", "sys")

    benchmark.pedantic(step, rounds=500)


@pytest.mark.parametrize("entries", [1_000, 10_000])
def test_next_build_without_context_since(benchmark: Any, entries: int) -> None:
    """A store that can only hand over everything."""
    benchmark.group = "one more entry, built, store without context_since"

    def made(n: int) -> Entry:
        kind = ("user", "assistant")[n % 2]
        return Entry(kind=kind, content=f"message {n} " * 10, id=f"e{n}", created_at=n + 1)

    store = ListStore([made(n) for n in range(entries)])
    shaper = Shaper(store, None, ShapePolicy())
    shaper.build("s", "sys")
    place = iter(range(entries, 10**9))

    def step() -> None:
        store.append("s", made(next(place)))
        shaper.build("s", "sys")

    benchmark.pedantic(step, rounds=200)


def dicts() -> list[dict[str, Any]]:
    out: list[dict[str, Any]] = [{"role": "system", "content": "You keep a depot."}]
    for n in range(2500):
        call = {"id": f"c{n}", "type": "function", "function": {"name": "look", "arguments": '{"n":1}'}}
        out.append({"role": "user", "content": f"check bay {n}"})
        out.append({"role": "assistant", "content": "", "tool_calls": [call]})
        out.append({"role": "tool", "tool_call_id": f"c{n}", "content": f"{n} " + "box " * 50})
        out.append({"role": "assistant", "content": f"bay {n} is fine"})
    return out


@pytest.mark.benchmark(group="10,000 messages into 4,000 tokens")
class TestList:
    """2,500 rounds of user, call, result and reply, behind a system message.

    LangChain's parameters are those that come nearest to what `shape_messages` does: the newest messages within so many
    tokens and the system message (`strategy="last"`, `include_system=True`), counted without a tokenizer
    (`token_counter="approximate"`: characters by four and three a message, where we take UTF-8 bytes by four and four a
    message). It looks for no orphan; with `start_on="human"` it would, and drop more. Given its own message objects
    it has no conversion to do; given the same dicts as we are it makes objects of all of them first.
    """

    def test_shape_messages(self, benchmark: Any) -> None:
        given = dicts()
        benchmark(lambda: shape_messages(given, budget=4000))

    @pytest.mark.parametrize("form", ["objects", "dicts"])
    def test_langchain_trim_messages(self, benchmark: Any, form: str) -> None:
        langchain = pytest.importorskip("langchain_core.messages")
        given = dicts()
        if form == "objects":
            given = langchain.convert_to_messages(given)
        benchmark(
            lambda: langchain.trim_messages(
                given, max_tokens=4000, token_counter="approximate", strategy="last", include_system=True
            )
        )
