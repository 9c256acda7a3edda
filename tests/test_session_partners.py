"""Hosts' own partners: async and odd runners and stores, hooks that fail in odd ways, a limit's last word."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from agentkit_fast import (
    AgentkitError,
    ChatOptions,
    Entry,
    LimitExceeded,
    Limits,
    MaxTurnsError,
    MemoryStore,
    Message,
    RunnerError,
    ScriptedRunner,
    Session,
    StreamChunk,
    ToolCall,
    ToolDef,
    ToolLoopError,
    TurnResult,
)
from session_kit import (
    BOTH,
    LOOK,
    broken,
    call,
    kinds,
    last_messages,
    last_options,
    reply,
    run_async,
    run_sync,
    session,
    shown,
)

both = pytest.mark.parametrize("run", BOTH)
PARKED = '{"pending": true, "correlation_id": "c1", "ttl_s": 5}'


class PlainStore:
    """The four methods, nothing else."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []

    def claim_pending(self, session_id: str, at: int) -> int:
        return 0

    def append(self, session_id: str, entry: Entry) -> None:
        self.entries.append(entry)

    def context(self, session_id: str) -> list[Entry]:
        return list(self.entries)

    def compact(self, session_id: str, compaction: Any) -> None:
        raise AssertionError("nothing is folded here")


class AsyncStore(PlainStore):
    """The same as four coroutine methods."""

    async def claim_pending(self, session_id: str, at: int) -> int:  # type: ignore[override]
        await asyncio.sleep(0)
        return 0

    async def append(self, session_id: str, entry: Entry) -> None:  # type: ignore[override]
        await asyncio.sleep(0)
        self.entries.append(entry)

    async def context(self, session_id: str) -> list[Entry]:  # type: ignore[override]
        await asyncio.sleep(0)
        return list(self.entries)


class AsyncOnly:
    """A runner with nothing but `achat_stream`."""

    def __init__(self, script: list[Any]) -> None:
        self.scripted = ScriptedRunner(script)

    async def achat_stream(self, messages: Any, tools: Any = (), options: Any = None) -> Any:
        async for chunk in self.scripted.achat_stream(messages, tools, options):
            await asyncio.sleep(0)
            yield chunk


class AsyncByName:
    """A runner whose `chat_stream` is an async generator."""

    def __init__(self, script: list[Any]) -> None:
        self.scripted = ScriptedRunner(script)

    async def chat_stream(self, messages: Any, tools: Any = (), options: Any = None) -> Any:
        async for chunk in self.scripted.achat_stream(messages, tools, options):
            yield chunk


class Coroutine:
    """A runner whose `achat_stream` is a coroutine that gives the stream."""

    def __init__(self, script: list[Any]) -> None:
        self.scripted = ScriptedRunner(script)

    async def achat_stream(self, messages: Any, tools: Any = (), options: Any = None) -> Any:
        return self.scripted.achat_stream(messages, tools, options)


class Gives:
    """A runner that gives a fixed value for a stream."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def chat_stream(self, messages: Any, tools: Any = (), options: Any = None) -> Any:
        return self.value


# -- runners -----------------------------------------------------------------------------------------------


@both
@pytest.mark.parametrize("kind", [AsyncOnly, AsyncByName, Coroutine], ids=lambda kind: kind.__name__)
def test_async_runner_serves_both_ways(kind: Any, run: Any) -> None:
    made = session([], runner=kind([call("{}", id="k"), "done"]))
    assert run(made).reply == "done"
    assert kinds(made) == ["user", "tool_call", "tool_result", "assistant"]


def test_leaving_the_stream_of_an_async_runner_closes_it() -> None:
    closed = []

    class Long:
        async def achat_stream(self, messages: Any, tools: Any = (), options: Any = None) -> Any:
            try:
                while True:
                    yield StreamChunk(content="a")
            finally:
                closed.append(True)

    events = session([], runner=Long()).stream()
    next(events)
    events.close()  # type: ignore[attr-defined]  # it is a generator
    assert closed == [True]


def test_cancel_ends_a_step_of_an_async_runner() -> None:
    class Stuck:
        closed = False

        async def achat_stream(self, messages: Any, tools: Any = (), options: Any = None) -> Any:
            try:
                yield StreamChunk(content="begun")
                made.cancel()
                await asyncio.sleep(60)
            finally:
                self.closed = True

    made = session([], runner=Stuck())
    assert made.turn().cancelled
    assert made.runner.closed


@both
@pytest.mark.parametrize(
    "given",
    [
        None,
        5,
        [StreamChunk(content=b"x", done=True)],  # type: ignore[arg-type]
        [StreamChunk(content=5, done=True)],  # type: ignore[arg-type]
        [StreamChunk(reasoning=7, content="x", done=True)],  # type: ignore[arg-type]
        [StreamChunk(content="x", done=True, usage={"prompt_tokens": 1})],
        [StreamChunk(done=True, partial_tool_calls=(5,))],
    ],
    ids=["none", "int", "bytes", "int-text", "int-thought", "dict-usage", "int-partial"],
)
def test_garbage_from_a_runner_is_a_runner_error(given: Any, run: Any) -> None:
    made = session([], runner=Gives(given))
    with pytest.raises(RunnerError) as raised:
        run(made)
    assert isinstance(raised.value.result, TurnResult)
    assert kinds(made) == ["user"]


def test_runner_without_a_method() -> None:
    for run in BOTH:
        with pytest.raises(RunnerError, match="neither chat_stream nor achat_stream"):
            run(session([], runner=object()))


@both
@pytest.mark.parametrize(
    ("bad", "answer"),
    [
        (ToolCall(id=None, name="look", arguments=None), "saw {}"),  # type: ignore[arg-type]
        (ToolCall(id=5, name="look", arguments={"a": 1}), 'saw {"a":1}'),  # type: ignore[arg-type]
    ],
    ids=["nulls", "objects"],
)
def test_calls_without_texts_are_read_as_such(bad: ToolCall, answer: str, run: Any) -> None:
    made = session([[StreamChunk(tool_call=bad), StreamChunk(done=True)], "done"])
    run(made)
    assert ("tool_result", answer) in shown(made)
    assert not broken(made.store.context("s"))


# -- stores ------------------------------------------------------------------------------------------------


@both
def test_store_of_coroutines(run: Any) -> None:
    store = AsyncStore()
    store.entries.append(Entry(id="u", kind="user", content="hi", created_at=1))
    made = session([call("{}", id="k"), "done"], store=store, task="")
    assert run(made).reply == "done"
    assert [entry.kind for entry in store.entries] == ["user", "tool_call", "tool_result", "assistant"]
    assert not broken(store.entries)


def test_inject_into_a_store_of_coroutines() -> None:
    store = AsyncStore()
    made = Session("s", store, ScriptedRunner(["one", "two"]))
    made.inject(Entry(kind="user", content="a"))

    async def inside() -> None:
        with pytest.raises(TypeError, match="ainject"):
            made.inject(Entry(kind="user", content="lost"))
        entry = await made.ainject(Entry(kind="user", content="b"))
        assert entry.id
        await made.aturn()

    asyncio.run(inside())
    assert [entry.content for entry in store.entries] == ["a", "b", "one"]


def test_late_results_in_a_store_of_coroutines() -> None:
    store, clock = AsyncStore(), [10**18]

    def now() -> int:
        clock[0] += 1
        return clock[0]

    made = Session(
        "s",
        store,
        ScriptedRunner([call(id="a"), "waiting", call(id="b"), "waiting", "told"]),
        tools=(LOOK,),
        dispatch=lambda _: PARKED,
        now=now,
    )

    async def resolved() -> None:
        await made.ainject(Entry(kind="user", content="q"))
        await made.aturn()
        entry = await made.aresolve("c1", "seven")
        assert "seven" in entry.content
        with pytest.raises(KeyError):
            await made.aresolve("c1", "again")
        await made.aturn()
        clock[0] += 6 * 10**9
        await made.aturn()

    asyncio.run(resolved())
    assert any("deadline" in message.content for message in last_messages(made))


# -- hooks -------------------------------------------------------------------------------------------------


def _stop(*_: Any, **__: Any) -> Any:
    return next(iter(()))


class _StopPrepare:
    def prepare(self, session_id: str) -> None:
        _stop()


class _StopStore(MemoryStore):
    def claim_pending(self, session_id: str, at: int) -> int:
        return int(_stop())


class _StopRunner:
    def chat_stream(self, messages: Any, tools: Any = (), options: Any = None) -> Any:
        return _stop()


@both
@pytest.mark.parametrize(
    "settings",
    [
        {"on_token": _stop},
        {"on_usage": _stop},
        {"on_tool_calls": _stop},
        {"preparer": _StopPrepare()},
        {"build": _stop},
        {"options": _stop},
        {"normalize_result": _stop},
        {"now": _stop},
        {"runner": _StopRunner()},
        {"store": _StopStore()},
    ],
    ids=lambda settings: next(iter(settings)),
)
def test_stop_iteration_of_a_partner_is_an_error(settings: dict[str, Any], run: Any) -> None:
    made = session([call("{}", id="k"), "done"], **settings)
    with pytest.raises(RuntimeError, match="StopIteration") as raised:
        run(made)
    assert isinstance(raised.value.result, TurnResult)  # type: ignore[attr-defined]
    assert not broken(made.store.context("s"))


@both
def test_async_encode_tool_result(run: Any) -> None:
    async def shorter(text: str) -> str:
        await asyncio.sleep(0)
        return f"short {text}"

    made = session([call("{}", id="k"), "done"], encode_tool_result=shorter)
    run(made)
    assert ("tool_result", "short saw {}") in shown(made)


@both
def test_async_normalize_result(run: Any) -> None:
    numbers = iter(range(99))

    async def without_number(text: str) -> str:
        return text.split()[1]

    made = session(
        [call("{}")] * 12, dispatch=lambda _: f"{next(numbers)} same", normalize_result=without_number
    )
    with pytest.raises(ToolLoopError) as raised:
        run(made)
    assert raised.value.result.rounds == 10


@both
@pytest.mark.parametrize("given", [5, [5], "abc", [{"id": "a"}], call(id="k")], ids=repr)
def test_on_tool_calls_gives_no_calls(given: Any, run: Any) -> None:
    made = session([call("{}", id="k"), "done"], on_tool_calls=lambda _: given)
    with pytest.raises(TypeError, match="ToolCall"):
        run(made)
    assert not broken(made.store.context("s"))


def test_options_of_another_type() -> None:
    with pytest.raises(TypeError, match="ChatOptions"):
        session(["x"], options={"temperature": 1})
    with pytest.raises(TypeError, match="ChatOptions"):
        session(["x"], options=lambda _: {"temperature": 1}).turn()


# -- parked calls ------------------------------------------------------------------------------------------


def _parking(error: BaseException, times: int) -> MemoryStore:
    class Parking(MemoryStore):
        left = times

        def park_call(self, *args: Any) -> Any:
            if self.left:
                self.left -= 1
                raise error
            return super().park_call(*args)

    return Parking()


def test_interrupt_while_parking_ends_the_turn() -> None:
    made = session(
        [call("{}", id="k"), "done"],
        store=_parking(KeyboardInterrupt(), 1),
        dispatch=lambda _: PARKED,
    )
    with pytest.raises(KeyboardInterrupt):
        made.turn()
    assert "done" not in [text for _, text in shown(made)]
    assert not broken(made.store.context("s"))


@both
def test_parking_is_tried_again(run: Any) -> None:
    store = _parking(OSError("disk"), 1)
    made = session([call("{}", id="k"), "wait", "done"], store=store, dispatch=lambda _: PARKED)
    run(made)
    made.resolve("c1", "late")
    assert run(made).reply == "done"


@both
def test_a_promise_that_cannot_be_kept_is_not_made_silently(run: Any) -> None:
    store = _parking(OSError("disk"), 2)
    made = session([call("{}", id="k"), "wait"], store=store, dispatch=lambda _: PARKED)
    with pytest.raises(OSError, match="disk"):
        run(made)
    assert not broken(store.context("s"))


# -- a limit's last word -----------------------------------------------------------------------------------


def _native(number: int) -> Any:
    return reply(call(f'{{"shelf":{number}}}'))


def _heredoc(number: int) -> Any:
    return f"@@call look\n{{ shelf: {number} }}\n@@end"


LIMITS: list[tuple[Limits, int, int]] = [
    (Limits(tool_calls=2, handover=True), 100, 2),
    (Limits(seconds=0.0, handover=True), 100, 1),
    (Limits(tokens=1, handover=True), 100, 0),
    (Limits(handover=True), 3, 3),
]


@both
@pytest.mark.parametrize(
    ("limits", "max_turns", "before"), LIMITS, ids=["calls", "time", "tokens", "rounds"]
)
@pytest.mark.parametrize("form", ["native", "heredoc"])
def test_handover(limits: Limits, max_turns: int, before: int, form: str, run: Any) -> None:
    asked: Callable[[int], Any] = _native if form == "native" else _heredoc
    rounds = [asked(number) for number in range(before)]
    settings: dict[str, Any] = {"limits": limits, "max_turns": max_turns, "tool_format": form}

    made = session([*rounds, "Two shelves seen."], **settings)
    result = run(made)
    assert (result.reply, result.stop_reason, result.rounds) == ("Two shelves seen.", "limit", before + 1)
    assert "limit" in [entry.tag for entry in made.store.context("s")]
    assert last_options(made).tool_choice == ("none" if form == "native" else None)
    assert not broken(made.store.context("s"))

    for last in (asked(77), "", RunnerError("gone")):
        made = session([*rounds, last], **settings)
        with pytest.raises((LimitExceeded, MaxTurnsError)) as raised:
            run(made)
        assert raised.value.result.stop_reason == "limit"
        assert raised.value.result.tool_calls == before
        assert not broken(made.store.context("s"))


@both
def test_a_limit_without_handover(run: Any) -> None:
    made = session([_native(0), _native(1)], limits=Limits(tool_calls=1))
    with pytest.raises(AgentkitError) as raised:
        run(made)
    assert raised.value.result.stop_reason == "limit"
    assert kinds(made) == ["user", "tool_call", "tool_result"]


def test_cancel_after_the_loop_is_closed() -> None:
    made = session(["done"], options=ChatOptions())
    run_async(made)
    assert made.cancel() is False
    assert run_sync(session(["done"])).reply == "done"


@both
@pytest.mark.parametrize("given", [None, "text", {"role": "user"}, 5], ids=repr)
def test_build_gives_no_window(given: Any, run: Any) -> None:
    with pytest.raises(TypeError, match="Window or a list of messages"):
        run(session(["x"], build=lambda session_id, system: given))


@both
def test_build_gives_an_iterator(run: Any) -> None:
    made = session(["x"], build=lambda session_id, system: iter([Message(role="user", content="q")]))
    run(made)
    assert [message.content for message in last_messages(made)] == ["q"]


@both
@pytest.mark.parametrize("store", [MemoryStore, PlainStore], ids=lambda kind: kind.__name__)
def test_lone_surrogates_from_every_side(store: Any, run: Any) -> None:
    bad = "a\ud800b"
    script = [
        [
            StreamChunk(content=bad, reasoning=bad),
            StreamChunk(tool_call=ToolCall(id=bad, name=bad, arguments=f'{{"a":"{bad}"}}')),
            StreamChunk(done=True, finish_reason="tool_calls"),
        ],
        bad,
    ]
    made = Session(
        bad,
        store(),
        ScriptedRunner(script),
        system=bad,
        tools=[ToolDef(name="look", description=bad, parameters={"properties": {bad: {"enum": [bad]}}})],
        dispatch=lambda _: bad,
        thread_id=bad,
    )
    made.inject(Entry(kind="user", content=bad))
    run(made).reply.encode()
    msgspec.json.encode([message.to_wire() for message in last_messages(made)])
    msgspec.json.encode(made.runner.requests[-1].tools)
