"""Stopping a turn: from another thread, by the task, by Ctrl-C, by leaving the stream; and two at once."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from agentkit_fast import (
    MemoryStore,
    ScriptedRunner,
    Session,
    SessionBusy,
    StreamChunk,
    ToolCall,
    cancel_requested,
)
from session_kit import BOTH, broken, call, kinds, reply, session, shown

both = pytest.mark.parametrize("run", BOTH, ids=["sync", "async"])


def results(made: Any) -> list[str]:
    return [text for kind, text in shown(made) if kind == "tool_result"]


class Endless:
    """A runner that never stops by itself; counts what it was asked for."""

    def __init__(self, *, asynchronous: bool) -> None:
        self.given = 0
        self.closed = threading.Event()
        if asynchronous:
            self.achat_stream = self._achat_stream

    def chat_stream(self, messages: Any, tools: Any = (), options: Any = None) -> Iterator[StreamChunk]:
        try:
            while True:
                time.sleep(0.005)
                self.given += 1
                yield StreamChunk(content=f"word{self.given} ")
        finally:
            self.closed.set()

    async def _achat_stream(self, messages: Any, tools: Any = (), options: Any = None) -> Any:
        try:
            while True:
                await asyncio.sleep(0.005)
                self.given += 1
                yield StreamChunk(content=f"word{self.given} ")
        finally:
            self.closed.set()


@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync-runner", "async-runner"])
@both
def test_cancel_from_another_thread_stops_the_generation(run: Any, asynchronous: bool) -> None:
    runner = Endless(asynchronous=asynchronous)
    at: list[int] = []
    made = session([], runner=runner, on_token=lambda text: stop() if runner.given == 5 else None)

    def stop() -> None:
        def cancel() -> None:
            at.append(runner.given)
            assert made.cancel()

        thread = threading.Thread(target=cancel)
        thread.start()
        thread.join()

    result = run(made)
    assert result.cancelled
    assert result.stop_reason == "cancelled"
    assert result.reply.startswith("word1 word2")
    assert runner.closed.wait(1)
    # A runner without an async stream is read by a thread that may be one token ahead.
    assert runner.given <= at[0] + (2 if run is BOTH[1] and not asynchronous else 1)
    assert kinds(made) == ["user", "notification"]
    assert made.store.context("s")[-1].tag == "cancelled"
    assert not made.cancel()


@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync-runner", "async-runner"])
def test_cancelling_the_task(asynchronous: bool) -> None:
    runner = Endless(asynchronous=asynchronous)
    made = session([], runner=runner)

    async def main() -> None:
        task = asyncio.create_task(made.aturn())
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError) as caught:
            await task
        assert caught.value.result.cancelled  # type: ignore[attr-defined]

    asyncio.run(main())
    assert runner.closed.wait(1)
    given = runner.given
    time.sleep(0.05)
    assert runner.given == given
    assert kinds(made) == ["user", "notification"]


def test_a_time_out_around_the_turn_is_a_time_out() -> None:
    made = session([], runner=Endless(asynchronous=True))

    async def main() -> None:
        async with asyncio.timeout(0.05):
            await made.aturn()

    with pytest.raises(TimeoutError):
        asyncio.run(main())
    assert broken(made.store.context("s")) == []


def interrupt_soon(seconds: float = 0.1) -> None:
    threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGINT)).start()


@pytest.mark.parametrize("calls", [1, 3], ids=["alone", "beside-others"])
def test_ctrl_c_during_a_tool(calls: int) -> None:
    def dispatch(asked: ToolCall) -> str:
        if asked.arguments == '{"n":0}':
            until = time.monotonic() + 5
            while time.monotonic() < until and not cancel_requested():
                time.sleep(0.01)
        return "finished"

    made = session([reply(*(call(f'{{"n":{n}}}') for n in range(calls)))], dispatch=dispatch)
    interrupt_soon()
    with pytest.raises(KeyboardInterrupt) as caught:
        made.turn()
    assert caught.value.result.cancelled  # type: ignore[attr-defined]
    assert broken(made.store.context("s")) == []
    assert len(results(made)) == calls
    if calls == 3:
        # Those that had ended are kept; the one that looked at `cancel_requested` ended in time too.
        assert results(made) == ["finished"] * 3
    made.runner._replies.append("Here.")
    assert made.turn().reply == "Here."


def test_ctrl_c_during_generation() -> None:
    runner = Endless(asynchronous=False)
    made = session([], runner=runner)
    interrupt_soon()
    with pytest.raises(KeyboardInterrupt):
        made.turn()
    assert runner.closed.is_set()
    assert kinds(made) == ["user", "notification"]


@both
def test_cancel_while_one_of_two_tools_is_done(run: Any) -> None:
    stopped = threading.Event()
    started: list[str] = []

    async def dispatch(asked: ToolCall) -> str:
        started.append(asked.arguments)
        if asked.arguments == '{"n":1}':
            return "sent"
        threading.Timer(0.05, made.cancel).start()
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            stopped.set()
            raise
        return "never"

    made = session(
        [reply(call('{"n":1}'), call('{"n":2}'), call('{"n":3}'))], dispatch=dispatch, max_parallel_tools=2
    )

    async def slow(asked: ToolCall) -> str:
        return await dispatch(asked)

    began = time.perf_counter()
    result = run(made)
    assert time.perf_counter() - began < 1.5
    assert result.cancelled
    assert stopped.wait(1)
    assert results(made)[0] == "sent"
    assert any("outcome is unknown" in text for text in results(made))
    assert broken(made.store.context("s")) == []


@both
def test_calls_not_begun_are_said_to_be_so(run: Any) -> None:
    def dispatch(asked: ToolCall) -> str:
        made.cancel()
        return "ran"

    made = session([reply(call('{"n":1}'), call('{"n":2}'))], dispatch=dispatch, max_parallel_tools=1)
    assert run(made).cancelled
    assert results(made) == ["ran", "ERROR: not run. The turn was stopped before this call began."]


def test_leaving_the_stream_stops_the_turn() -> None:
    runner = Endless(asynchronous=False)
    made = session([], runner=runner)
    events = made.stream()
    next(events)
    next(events)
    events.close()  # type: ignore[attr-defined]
    assert runner.closed.is_set()
    assert kinds(made) == ["user", "notification"]
    made.runner = None
    assert not made.cancel()


def test_leaving_the_async_stream_stops_the_turn() -> None:
    runner = Endless(asynchronous=True)
    made = session([], runner=runner)

    async def main() -> None:
        events = made.astream()
        await anext(events)
        await events.aclose()  # type: ignore[attr-defined]

    asyncio.run(main())
    assert runner.closed.is_set()
    assert kinds(made) == ["user", "notification"]


def test_closing_a_stream_that_is_no_generator_comes_from_the_cancelling_thread() -> None:
    class Stream:
        def __init__(self) -> None:
            self.closed = threading.Event()

        def __iter__(self) -> Any:
            return self

        def __next__(self) -> StreamChunk:
            # A long prefill: nothing comes until somebody closes the stream.
            assert self.closed.wait(10)
            raise StopIteration

        def close(self) -> None:
            self.closed.set()

    class Runner:
        def chat_stream(self, *args: Any) -> Stream:
            return Stream()

    for run in BOTH:
        made = session([], runner=Runner())
        threading.Timer(0.1, made.cancel).start()
        began = time.perf_counter()
        assert run(made).cancelled
        assert time.perf_counter() - began < 1


# -- two at once -----------------------------------------------------------------------------------------


def test_a_second_turn_in_another_thread_is_refused() -> None:
    inside, go = threading.Event(), threading.Event()

    def dispatch(asked: ToolCall) -> str:
        inside.set()
        assert go.wait(5)
        return "ok"

    made = session([reply(call()), "ok"], dispatch=dispatch)
    other = Session("s", made.store, ScriptedRunner(["never"]))
    elsewhere = Session("t", made.store, ScriptedRunner(["fine"]))
    thread = threading.Thread(target=made.turn)
    thread.start()
    assert inside.wait(5)
    for second in (made, other):
        with pytest.raises(SessionBusy, match="'s'"):
            second.turn()
        with pytest.raises(SessionBusy):
            asyncio.run(second.aturn())
    assert elsewhere.turn().reply == "fine"
    go.set()
    thread.join()
    assert broken(made.store.context("s")) == []
    assert other.turn().reply == "never"


def test_two_tasks() -> None:
    async def dispatch(asked: ToolCall) -> str:
        await asyncio.sleep(0.05)
        return "ok"

    made = session([reply(call()), reply(call('{"n":2}')), "ok"], dispatch=dispatch)

    async def main() -> list[Any]:
        return await asyncio.gather(made.aturn(), made.aturn(), return_exceptions=True)

    first, second = asyncio.run(main())
    assert first.reply == "ok"
    assert isinstance(second, SessionBusy)
    assert broken(made.store.context("s")) == []


class Slotted(MemoryStore):
    """A store that can neither be hashed nor referred to weakly."""

    __hash__ = None  # type: ignore[assignment]


@both
@pytest.mark.parametrize("session_id", ["", "a/b c", "naïve\0", "\udce9", "x" * 10_000])
def test_any_session_id(run: Any, session_id: str) -> None:
    from agentkit_fast import Entry

    store = Slotted()
    made = Session(session_id, store, ScriptedRunner(["ok"]))
    store.append(made.session_id, Entry(kind="user", content="hi"))
    assert run(made).reply == "ok"


@both
def test_a_store_that_fails_once_is_safe_to_try_again(run: Any) -> None:
    class Flaky(MemoryStore):
        fail_at = -1
        count = 0

        def append_many(self, session_id: str, entries: Any) -> Any:
            self.count += 1
            if self.count == self.fail_at:
                raise OSError("disk")
            return super().append_many(session_id, entries)

    for at in range(2, 6):
        store = Flaky()
        made = session([reply("a", call(id="k")), "ok"], store=store)
        store.count, store.fail_at = 1, at
        try:
            run(made)
        except OSError as error:
            assert error.result.stop_reason == "error"  # type: ignore[attr-defined]  # noqa: PT017
        assert broken(store.context("s")) == []
