"""Folding: what a summary may cost, what is refused, what is left when it fails."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from agentkit_fast.entries import Entry
from agentkit_fast.errors import CompactionFailed, ContextOverflow
from agentkit_fast.messages import StreamChunk, image_part, text_part
from agentkit_fast.protocols import RunnerProfile
from agentkit_fast.shaping import ShapePolicy, Shaper, read_entry_tool
from agentkit_fast.stores.memory import MemoryStore
from shaping_checks import History, ListStore, check_valid, count_text
from shaping_talks import Summarizer


class Answers:
    """Gives one answer after the other: a text, or an exception to raise."""

    def __init__(self, *answers: str | BaseException, context_tokens: int = 0) -> None:
        self.answers = list(answers)
        self.profile = RunnerProfile(context_tokens=context_tokens)
        self.prompts: list[tuple[Any, Any]] = []

    def chat_stream(self, messages: Any, tools: Any = (), options: Any = None) -> Iterator[StreamChunk]:
        self.prompts.append((messages, options))
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, BaseException):
            raise answer
        yield StreamChunk(content=answer)
        yield StreamChunk(done=True, finish_reason="stop")


def bays(count: int, size: int = 200) -> History:
    history = History()
    for n in range(count):
        history.add("user", f"check bay {n} please")
        history.round(
            f"c{n}", "box " * size + f"end {n}", text=f"looking at bay {n}", name="bay", args=f'{{"n":{n}}}'
        )
        history.add("assistant", f"bay {n} is fine")
    return history


POLICY = ShapePolicy(
    budget_tokens=1500, preserve_last_messages=2, preserve_last_tool_calls=1, headroom_tokens=-1
)


@pytest.mark.parametrize("answer", [ConnectionError("dead"), "", "   ", "long " * 9000], ids=repr)
def test_a_bad_summary_changes_nothing(answer: Any) -> None:
    store = ListStore(bays(20).entries)
    runner = Answers(answer)
    before = list(store.entries)
    shaper = Shaper(store, runner, POLICY)
    window = shaper.build("s", "s")
    if isinstance(answer, str) and len(answer) > 99:
        # Too long an answer is cut to the room a marker has, and is still smaller than what it replaces.
        assert window.compactions
        assert window.tokens <= 1500
        return
    assert store.entries == before
    assert not store.compacted
    assert window.degraded
    assert window.tokens <= 1500
    check_valid(window.messages, system="s", newest_user="check bay 19")
    assert len(runner.prompts) == 1
    shaper.build("s", "s")
    assert len(runner.prompts) == 1, "not tried again before something is new"
    runner.answers = ["S"]
    store.append("s", Entry(kind="user", content="and now?"))
    window = shaper.build("s", "s")
    assert window.compactions
    assert not window.degraded
    assert [m.content for m in window.messages if m.content.splitlines()[-1] == "S"]


@pytest.mark.parametrize(
    "answer", ["notes \ud800", "\udc00 " * 9000, ConnectionError("dead \ud800")], ids=ascii
)
def test_lone_surrogates_of_a_runner_are_repaired(answer: Any) -> None:
    store = MemoryStore()
    store.append_many("s", bays(20).entries)
    window = Shaper(store, Answers(answer), POLICY).build("s", "s")
    assert "\ufffd".encode() in window.to_json() + window.degraded.encode()
    assert bool(window.compactions) != bool(window.degraded)
    assert window.degraded.encode() in store.load_plan("s")


def test_a_fold_that_another_process_was_first_with() -> None:
    """Between the last look and the write: the window says so, and the next one has the other's marker."""

    class Raced(MemoryStore):
        def compact(self, session_id: str, compaction: Any) -> None:
            if not first.answers:
                super().compact(session_id, compaction)
                return
            first.answers = []
            assert Shaper(self, Answers("theirs"), POLICY).build("s", "s").compactions
            super().compact(session_id, compaction)

    first = Answers("ours")
    store = Raced()
    store.append_many("s", bays(20).entries)
    shaper = Shaper(store, first, POLICY)
    window = shaper.build("s", "s")
    assert "the history changed" in window.degraded
    assert window.tokens <= 1500
    assert len(store.history("s")) == len(bays(20).entries) + 1, "one marker, nothing lost"
    window = shaper.build("s", "s")
    assert "theirs" in window.messages[2].content
    check_valid(window.messages, system="s", newest_user="check bay 19")


def test_an_interrupted_summary_propagates() -> None:
    store = ListStore(bays(20).entries)
    before = list(store.entries)
    shaper = Shaper(store, Answers(KeyboardInterrupt()), POLICY)
    with pytest.raises(KeyboardInterrupt):
        shaper.build("s", "s")
    assert store.entries == before
    shaper = Shaper(store, Answers("S"), POLICY)
    assert shaper.build("s", "s").compactions


def test_a_cancelled_task_propagates() -> None:
    class Slow:
        async def achat_stream(self, messages: Any, tools: Any = (), options: Any = None) -> Any:
            await asyncio.sleep(30)
            yield StreamChunk(content="never")

    async def run() -> None:
        store = MemoryStore()
        store.append_many("s", bays(20).entries)
        shaper = Shaper(store, Slow(), POLICY)  # type: ignore[arg-type] # async only
        task = asyncio.create_task(shaper.abuild("s", "s"))
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert len(store.context("s")) == len(store.history("s"))

    asyncio.run(run())


def test_async_twins_do_the_same() -> None:
    async def run() -> tuple[bytes, Any]:
        store = MemoryStore()
        store.append_many("s", bays(20).entries)
        shaper = Shaper(store, Answers("S"), POLICY)
        window = await shaper.abuild("s", "sys")
        return window.to_json(), await shaper.acompact("s")

    store = MemoryStore()
    store.append_many("s", bays(20).entries)
    shaper = Shaper(store, Answers("S"), POLICY)
    assert (shaper.build("s", "sys").to_json(), shaper.compact("s")) == asyncio.run(run())


def test_an_async_store_needs_the_async_build() -> None:
    class Late(ListStore):
        async def context(self, session_id: str) -> list[Entry]:  # type: ignore[override] # the point
            return list(self.entries)

    shaper = Shaper(Late(bays(2).entries))  # type: ignore[arg-type] # async on purpose
    with pytest.raises(TypeError, match="abuild"):
        shaper.build("s")
    assert len(asyncio.run(shaper.abuild("s"))) == 8


def test_pieces_fit_and_tell_each_entry_once() -> None:
    history = bays(60)
    store = MemoryStore()
    store.append_many("s", history.entries)
    runner = Answers("notes so far", context_tokens=900)
    policy = ShapePolicy(budget_tokens=6000, lod_above=300, preserve_last_messages=4)
    window = Shaper(store, runner, policy).build("s", "sys")
    assert window.compactions[0].summary == "notes so far"
    assert len(runner.prompts) > 3
    for messages, options in runner.prompts:
        size = sum(count_text(m.role) + count_text(m.content) + 4 for m in messages)
        assert size + options.max_tokens <= 900
        assert options.max_tokens == min(1024, 4500 // 10)
    kept = {entry.id for entry in store.context("s")}
    folded = [e for e in history.entries if e.id not in kept and e.kind == "assistant"]
    assert len(folded) > 40
    for entry in folded:
        line = f"Assistant: {entry.content}\n"
        told = sum((m[1].content + "\n").count(line) for m, _ in runner.prompts)
        assert told == 1, entry.content


def test_one_marker_and_the_task_lives_on() -> None:
    store = MemoryStore()
    runner = Summarizer()
    policy = ShapePolicy(
        budget_tokens=2500, preserve_last_messages=2, preserve_last_tool_calls=1, headroom_tokens=500
    )
    shaper = Shaper(store, runner, policy)
    store.append("s", Entry(kind="user", content="remember: gate code is 7714"))
    total = 0
    for turn in range(12):
        for n in range(6):
            call = f"c{turn}_{n}"
            store.append("s", Entry(kind="user", content=f"check bay {turn}-{n} please"))
            store.append("s", Entry(kind="tool_call", content="{}", tool_call_id=call, tool_name="bay"))
            store.append(
                "s", Entry(kind="tool_result", content="box " * 300, tool_call_id=call, tool_name="bay")
            )
            window = shaper.build("s", "s")
            assert window.tokens <= 2500
            total += len(window.compactions)
            store.append("s", Entry(kind="assistant", content="fine"))
        markers = [entry for entry in store.context("s") if entry.kind == "compaction"]
        assert len(markers) <= 1
        assert any("7714" in m.content for m in window.messages)
        assert sum(count_text(m.content) for m in markers) < 2500 // 4
    assert total > 3
    assert len(store.history("s")) == len({e.id for e in store.history("s")}) == 1 + 12 * 6 * 4 + total


def test_a_long_tool_loop_keeps_its_task() -> None:
    history = History()
    history.add("user", "sort out the whole depot; ticket D-4417")
    for n in range(60):
        history.round(f"c{n}", "y" * 400, name="bay")
    runner = Answers("S")
    policy = ShapePolicy(
        budget_tokens=2000, preserve_last_messages=4, preserve_last_tool_calls=3, headroom_tokens=-1
    )
    window = Shaper(ListStore(history.entries), runner, policy).build("s", "s")
    check_valid(window.messages, system="s", newest_user="D-4417")
    assert window.compactions
    assert "D-4417" in runner.prompts[0][0][-1].content


def test_large_results_are_not_looped_over() -> None:
    store = MemoryStore()
    runner = Summarizer(40)
    policy = ShapePolicy(
        budget_tokens=4000,
        preserve_last_messages=2,
        preserve_last_tool_calls=1,
        headroom_tokens=800,
        lod_above=1200,
    )
    shaper = Shaper(store, runner, policy)
    store.append("s", Entry(kind="user", content="dump the ledger"))
    sizes = [20_000] + [9_000] * 10
    folds = 0
    for n, size in enumerate(sizes):
        store.append(
            "s", Entry(kind="tool_call", content=f'{{"page":{n}}}', tool_call_id=f"d{n}", tool_name="dump")
        )
        store.append(
            "s", Entry(kind="tool_result", content="z" * size, tool_call_id=f"d{n}", tool_name="dump")
        )
        window = shaper.build("s", "s")
        assert window.tokens <= 4000
        folds += len(window.compactions)
        assert any(m.tool_call_id == f"d{n}" and "z" * 400 in m.content for m in window.messages)
    assert folds <= 4


def test_compact_by_hand() -> None:
    store = MemoryStore()
    assert Shaper(store, Answers("S")).compact("s") is None
    store.append_many("s", bays(20).entries)
    with pytest.raises(CompactionFailed, match="no runner"):
        Shaper(store).compact("s")
    with pytest.raises(CompactionFailed, match="dead"):
        Shaper(store, Answers(ConnectionError("dead"))).compact("s")
    with pytest.raises(CompactionFailed, match="empty"):
        Shaper(store, Answers(" ")).compact("s")
    with pytest.raises(CompactionFailed, match="refused"):
        Shaper(store, Answers("word " * 90_000)).compact("s")
    assert len(store.context("s")) == 100
    shaper = Shaper(store, Answers("S"), ShapePolicy(preserve_last_messages=6))
    info = shaper.compact("s")
    assert info is not None
    assert info.summary == "S"
    assert info.tokens_after < info.tokens_before
    assert info.subsumed_count + len(store.context("s")) - 1 == 100
    assert store.context("s")[0].content == "check bay 0 please"
    assert shaper.compact("s") is None
    assert len(store.history("s")) == 101


def test_images_never_reach_the_summary() -> None:
    history = History()
    image = image_part("data:image/png;base64," + "A" * 400_000)
    history.add("user", "what is on this label?", parts=(text_part("what is on this label?"), image))
    history.add("assistant", "Pallet 9")
    fresh = Shaper(
        ListStore(history.entries), Answers("S"), ShapePolicy(budget_tokens=4000, headroom_tokens=-1)
    )
    assert not fresh.build("s").compactions
    for n in range(12):
        history.add("user", f"and {n}? " + "word " * 300)
        history.add("assistant", "no")
    runner = Answers("S")
    policy = ShapePolicy(budget_tokens=4000, headroom_tokens=-1, preserve_first_messages=0)
    Shaper(ListStore(history.entries), runner, policy).build("s")
    texts = "".join(m.content for messages, _ in runner.prompts for m in messages)
    assert "base64" not in texts
    assert "entry e00001" in texts


def test_overflow_names_the_parts_and_folds_nothing() -> None:
    store = ListStore(bays(20).entries)
    runner = Answers("S")
    with pytest.raises(ContextOverflow, match="system prompt 2506"):
        Shaper(store, runner, POLICY).build("s", "x" * 10_000)
    assert not runner.prompts
    assert len(store.entries) == 100


@pytest.mark.parametrize("method", ["context", "compact"])
def test_a_store_that_fails_in_the_middle(method: str) -> None:
    class Failing(ListStore):
        broken = True

    def fail(*args: Any) -> Any:
        raise OSError("disk is gone")

    store = Failing(bays(20).entries)
    shaper = Shaper(store, Answers("S"), POLICY)
    setattr(store, method, fail)
    with pytest.raises(OSError, match="disk is gone"):
        shaper.build("s", "s")
    delattr(store, method)
    assert len(store.entries) == 100, "nothing is lost"
    assert shaper.build("s", "s").compactions


@pytest.mark.parametrize("method", ["context", "context_since", "save_plan", "compact"])
def test_a_store_that_fails_once_breaks_no_window(method: str) -> None:
    store: Any = ListStore() if method == "context" else MemoryStore()
    for entry in bays(20).entries:
        store.append("s", entry)
    shaper = Shaper(store, Answers("S" * 80), POLICY)
    last = shaper.build("s", "s")

    def fail(*args: Any) -> Any:
        raise OSError("disk is gone")

    setattr(store, method, fail)
    failed = 0
    for n in range(40):
        store.append("s", Entry(id=f"u{n}", kind="user", content=f"more {n} " + "word " * 40))
        store.append("s", Entry(id=f"a{n}", kind="assistant", content=f"yes {n}"))
        try:
            window = shaper.build("s", "s")
        except OSError:
            failed += 1
            delattr(store, method)
            window = shaper.build("s", "s")
        assert window.stable_prefix == len(last) or window.break_reason.startswith("over budget")
        last = window
    assert failed == 1


def test_reading_an_entry_again() -> None:
    store = MemoryStore()
    store.append("s", Entry(id="e1", kind="tool_result", content="é" * 3000))
    read = read_entry_tool(store, "s")
    assert read.name == "read_entry"
    assert set(read.parameters["properties"]) == {"entry_id", "offset"}
    whole, offset = "", 0
    for _ in range(3):
        head, _, text = read("e1", offset).partition("\n")
        whole += text
        if "the end" in head:
            break
        offset = int(head.rstrip("]").rsplit(" ", 1)[1])
    assert whole == "é" * 3000
    assert read("e1", 1).partition("\n")[2].startswith("é")
    assert "nothing from byte 6000" in read("e1", 10**9)
    assert read("nope").startswith("ERROR")


def test_an_id_that_two_entries_share_takes_neither_away() -> None:
    """A store that gives one id twice takes both entries out where a fold names it."""
    history = bays(20)
    entries = [*history.entries, *bays(1).entries]
    kept = Entry(id=entries[8].id, kind="user", content="the newest task", created_at=10**9)
    store = ListStore([*entries[:80], kept])
    before = list(store.entries)
    window = Shaper(store, Answers("notes"), POLICY).build("s", "s")
    assert store.entries == before
    assert window.degraded
    assert "the newest task" in window.messages[-1].content
    with pytest.raises(CompactionFailed, match="different entries under the id"):
        Shaper(store, Answers("notes"), POLICY).compact("s")
    assert store.entries == before
    # The same entry twice is one.
    store = ListStore([*entries[:80], entries[8]])
    assert Shaper(store, Answers("notes"), POLICY).build("s", "s").compactions
