"""The two drivers of a turn: they perform effects, one by waiting, one by awaiting. No rule of the turn
is here.

Both hand the outcome of each effect back into the rules, or throw its error there, and yield the events in
between. A stopped turn (`TurnStopped`, `KeyboardInterrupt`, task cancellation, a consumer that goes
away) is thrown into the rules once; what the rules still want done after that is done.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import itertools
import logging
import queue
import threading
import time
from collections.abc import AsyncGenerator, Callable, Generator
from typing import Any

import msgspec

from agentkit_fast.dispatch import with_cancel
from agentkit_fast.effects import (
    Append,
    Approve,
    BeginCalls,
    Build,
    Claim,
    ClearNotice,
    CloseChat,
    Effect,
    Emit,
    Hook,
    LeftOpen,
    NextChunk,
    NextResult,
    Now,
    OpenChat,
    Outcome,
    Park,
    Prepare,
    StartCall,
    StopCalls,
    Stored,
    TurnStopped,
)
from agentkit_fast.events import Event
from agentkit_fast.loopthread import LoopCall, call_in_thread, chunks_here, no_stream, wait_on_loop
from agentkit_fast.messages import ToolCall
from agentkit_fast.ports import Ports

__all__ = ["AsyncDriver", "SyncDriver"]

_log = logging.getLogger("agentkit_fast.session")

# What partners give back in nearly every case; the general question takes ten times as long.
_PLAIN = frozenset({int, str, list, tuple, bool})
# After a stop, how long running calls may still take to end by themselves: long enough for a tool that
# looks at `cancel_requested`, short enough for a person who pressed Ctrl-C.
GRACE_S = 2.0


class _Ended(msgspec.Struct, frozen=True):
    """A call has ended, wherever it ran."""

    ticket: int
    value: Any = None
    error: BaseException | None = None


class _Stop:
    """Wakes a driver that waits for a call."""


_WAKE = _Stop()


class _Driver:
    """What both drivers share: the ports, the stop flag, the open stream."""

    def __init__(self, ports: Ports) -> None:
        self.ports = ports
        self.stop = threading.Event()  # what tools look at, too
        self.stopping = False  # as `stop`, but as cheap to read as it is often read
        self.stopped = False  # the rules have been told
        self.stream: Any = None
        # Each start of a call has a ticket of its own, so that a call that was left cannot be taken, when it
        # ends after all, for one of a later round in the same place.
        self.tickets = itertools.count()
        self.live: dict[int, int] = {}  # ticket -> the call's index in its round
        self.deadlines: dict[int, tuple[float, float]] = {}  # ticket -> (when, seconds)

    def tell_tools(self) -> None:
        """Set the flags that say: stop."""
        self.stopping = True
        self.stop.set()

    def close_stream(self) -> None:
        """Abort a generation from another thread, where the stream allows it.

        A generator that is running cannot be closed from outside; it is closed after its current step.
        """
        stream = self.stream
        close = getattr(stream, "close", None)
        if close is None or inspect.isgenerator(stream):
            return
        try:
            close()
        except Exception as error:  # noqa: BLE001 - the flag stops the turn after the step in any case
            _log.debug("closing a stream from another thread: %r", error)

    def admit(self, index: int, timeout_s: float | None) -> int:
        """A ticket for a call that starts now."""
        ticket = next(self.tickets)
        self.live[ticket] = index
        if timeout_s is not None:
            self.deadlines[ticket] = (time.monotonic() + timeout_s, timeout_s)
        return ticket

    def outcome(self, ended: _Ended) -> Outcome | None:
        """How a call ended; `None` for one that was left before."""
        self.deadlines.pop(ended.ticket, None)
        index = self.live.pop(ended.ticket, None)
        return None if index is None else Outcome(index=index, value=ended.value, error=ended.error)

    def expired(self, now: float) -> tuple[int, Outcome] | None:
        """The ticket and the outcome of a call whose time has passed."""
        for ticket, (when, seconds) in self.deadlines.items():
            if when <= now:
                del self.deadlines[ticket]
                return ticket, Outcome(index=self.live.pop(ticket), timed_out_s=seconds)
        return None

    def next_deadline(self) -> float | None:
        return min((when for when, _ in self.deadlines.values()), default=None)


class SyncDriver(_Driver):
    """Performs effects by waiting. Calls that run beside others run in threads, async ones on a loop."""

    def __init__(self, ports: Ports) -> None:
        super().__init__(ports)
        self.results: queue.SimpleQueue[_Ended | _Stop] = queue.SimpleQueue()
        self.pending: dict[int, LoopCall | None] = {}  # ticket -> an async call, or None for a thread
        self.inline: tuple[int, ToolCall] | None = None
        self.perform: dict[type[Effect], Callable[[Any], Any]] = {
            NextChunk: self.next_chunk,
            Append: lambda effect: self.settle(self.ports.append(effect.entries)),
            Claim: lambda _: self.settle(self.ports.claim()),
            Build: lambda _: self.settle(self.ports.build()),
            Now: lambda _: self.ports.now(),
            OpenChat: self.open_chat,
            CloseChat: self.close_chat,
            StartCall: self.start_call,
            NextResult: self.next_result,
            StopCalls: self.stop_calls,
            Hook: lambda effect: self.settle(effect.function(*effect.arguments)),
            Prepare: lambda _: self.settle(self.ports.prepare()),
            Approve: lambda effect: self.settle(self.ports.approve(effect.call)),
            Stored: lambda effect: self.settle(self.ports.stored(effect.ids)),
            ClearNotice: lambda effect: self.settle(self.ports.clear(effect.group_by, effect.key)),
            LeftOpen: lambda _: self.settle(self.ports.left_open()),
            BeginCalls: lambda effect: self.settle(self.ports.begin_calls(effect.entry_ids)),
            Park: lambda effect: self.ports.park(effect.lift, effect.call),
        }

    def drive(self, rules: Generator[Effect, Any, Any]) -> Generator[Event, None, Any]:
        """Run the rules to their end; yields events, returns what the rules return."""
        value: Any = None
        error: BaseException | None = None
        leaving: GeneratorExit | None = None
        while True:
            try:
                if error is None:
                    effect = rules.send(value)
                else:
                    thrown, error = error, None
                    effect = rules.throw(thrown)
                value = None
                if self.stopping and not self.stopped:
                    raise TurnStopped
                if type(effect) is Emit:
                    if leaving is None:
                        yield effect.event
                    continue
                value = self.perform[type(effect)](effect)
                if self.stopping and not self.stopped and type(effect) is NextChunk:
                    raise TurnStopped
            except BaseException as caught:
                if inspect.getgeneratorstate(rules) == inspect.GEN_CLOSED:
                    if not isinstance(caught, StopIteration):
                        raise  # the rules are over, and this is how they ended
                    if leaving is not None:
                        raise leaving from None
                    return caught.value
                if isinstance(caught, StopIteration):
                    caught = _stray(caught)
                if isinstance(caught, GeneratorExit):
                    leaving = caught
                error, value = self.note(caught), None

    def note(self, caught: BaseException) -> BaseException:
        """Remember a stop; what a closed stream raises after one is the stop itself.

        `GeneratorExit` (a consumer that went away) cannot be thrown through `yield from`: Python would
        close the inner generators without letting them clean up.
        """
        if not isinstance(caught, Exception):
            self.stopped = True
            self.tell_tools()
            return TurnStopped() if isinstance(caught, GeneratorExit) else caught
        if self.stopping and not self.stopped:
            self.stopped = True
            return TurnStopped()
        return caught

    def settle(self, value: Any) -> Any:
        """A value, or what an awaitable gives, run on the loop for async code."""
        if value is None or type(value) in _PLAIN or not inspect.isawaitable(value):
            return value
        return wait_on_loop(value)

    def cancel(self) -> None:
        """Stop the turn, from any thread."""
        self.tell_tools()
        self.results.put(_WAKE)
        self.close_stream()

    # -- chat --

    def open_chat(self, effect: OpenChat) -> None:
        self.stream = None
        self.stream = chunks_here(self.ports.chat_stream(effect))

    def next_chunk(self, _: NextChunk) -> Any:
        return next(self.stream, None)

    def close_chat(self, _: CloseChat) -> None:
        stream, self.stream = self.stream, None
        close = getattr(stream, "close", None)
        if close is not None:
            close()

    # -- calls --

    def start_call(self, effect: StartCall) -> None:
        call, desk = effect.call, self.ports.desk
        timeout_s = desk.timeout_s(call)
        start = desk.start_async(call)
        if start is None and effect.alone and timeout_s is None:
            # In the caller's own thread: no cost, Ctrl-C reaches it, and what belongs to this thread works.
            self.inline = (effect.index, call)
            return
        ticket = self.admit(effect.index, timeout_s)
        self.pending[ticket] = None
        if start is not None:
            self.submit(ticket, start())
            return
        context = with_cancel(self.stop)
        threading.Thread(
            target=context.run, args=(self.run_in_thread, ticket, call), name="agentkit-tool", daemon=True
        ).start()

    def run_in_thread(self, ticket: int, call: ToolCall) -> None:
        try:
            value = self.ports.dispatch(call)
            if inspect.isawaitable(value):
                self.submit(ticket, value)
                return
        except BaseException as error:  # noqa: BLE001 - whatever a tool raises becomes its result
            self.results.put(_Ended(ticket, error=error))
        else:
            self.results.put(_Ended(ticket, value=value))

    def submit(self, ticket: int, awaitable: Any) -> None:
        def ended(value: Any, error: BaseException | None) -> None:
            self.results.put(_Ended(ticket, value, error))

        running = LoopCall(awaitable, ended, with_cancel(self.stop))
        if ticket in self.live:
            self.pending[ticket] = running
        else:  # it was left while its thread was still on the way
            running.cancel()

    def next_result(self, _: NextResult) -> Outcome:
        if self.inline is not None:
            (index, call), self.inline = self.inline, None
            try:
                value = with_cancel(self.stop).run(self.ports.dispatch, call)
            except Exception as error:  # noqa: BLE001 - whatever a tool raises becomes its result
                return Outcome(index=index, error=error)
            if not inspect.isawaitable(value):
                return Outcome(index=index, value=value)
            self.submit(self.admit(index, None), value)
        while True:
            outcome = self.wait(self.next_deadline())
            if outcome is not None:
                return outcome
            if self.stopping and not self.stopped:
                raise TurnStopped

    def wait(self, until: float | None) -> Outcome | None:
        """The next outcome; `None` when woken. A call past its deadline is left behind."""
        try:
            timeout = None if until is None else max(0.0, until - time.monotonic())
            ended = self.results.get(timeout=timeout)
        except queue.Empty:
            late = self.expired(time.monotonic())
            if late is None:
                return None
            self.leave(late[0])
            return late[1]
        if isinstance(ended, _Stop):
            return None
        self.pending.pop(ended.ticket, None)
        return self.outcome(ended)

    def leave(self, ticket: int) -> None:
        self.live.pop(ticket, None)
        running = self.pending.pop(ticket, None)
        if running is not None:
            running.cancel()

    def stop_calls(self, _: StopCalls) -> list[Outcome]:
        self.stopped = True
        self.tell_tools()
        self.inline = None
        for running in self.pending.values():
            if running is not None:
                running.cancel()
        found: list[Outcome] = []
        until = time.monotonic() + GRACE_S
        self.deadlines.clear()
        while self.pending and time.monotonic() < until:
            outcome = self.wait(until)
            if outcome is not None and not isinstance(outcome.error, asyncio.CancelledError):
                found.append(outcome)
        for ticket in list(self.pending):
            _log.warning("a tool is still running %g s after the turn was stopped; it is left", GRACE_S)
            self.leave(ticket)
        return found


class AsyncDriver(_Driver):
    """Performs effects by awaiting. Sync tools, runners and stores that block run in threads."""

    def __init__(self, ports: Ports) -> None:
        super().__init__(ports)
        self.results: asyncio.Queue[_Ended] = asyncio.Queue()
        self.tasks: dict[int, asyncio.Future[Any]] = {}
        self.loop = asyncio.get_running_loop()
        self.waiter: asyncio.Task[Any] | None = None
        self.own_cancels = 0
        self.late_cancel: asyncio.CancelledError | None = None
        self.async_calls: set[int] = set()
        self.perform: dict[type[Effect], Callable[[Any], Any]] = {
            NextChunk: self.next_chunk,
            OpenChat: self.open_chat,
            CloseChat: self.close_chat,
            StartCall: self.start_call,
            NextResult: self.next_result,
            StopCalls: self.stop_calls,
            Append: lambda effect: self.whole(self.ports.append, effect.entries),
            Claim: lambda _: self.whole(self.ports.claim),
            Stored: lambda effect: self.whole(self.ports.stored, effect.ids),
            ClearNotice: lambda effect: self.whole(self.ports.clear, effect.group_by, effect.key),
            LeftOpen: lambda _: self.whole(self.ports.left_open),
            BeginCalls: lambda effect: self.whole(self.ports.begin_calls, effect.entry_ids),
            Park: lambda effect: self.whole(self.ports.park, effect.lift, effect.call),
            Build: self.build,
            Prepare: self.prepare,
            Hook: self.hook,
            Approve: self.approve,
        }

    async def drive(self, rules: Generator[Effect, Any, Any]) -> AsyncGenerator[Any, None]:
        """Run the rules to their end; yields events, and last a `Finished` with what the rules return."""
        value: Any = None
        error: BaseException | None = None
        leaving: GeneratorExit | None = None
        while True:
            try:
                if error is None:
                    effect = rules.send(value)
                else:
                    thrown, error = error, None
                    effect = rules.throw(thrown)
                value = None
                if not self.stopped:
                    self.look_for_stop()
                kind = type(effect)
                if kind is Emit:
                    if leaving is None:
                        yield effect.event  # type: ignore[attr-defined]  # it is an Emit
                elif kind is Now:
                    value = self.ports.now()
                else:
                    value = await self.awaited(self.perform[kind](effect))
            except BaseException as caught:
                if inspect.getgeneratorstate(rules) == inspect.GEN_CLOSED:
                    if not isinstance(caught, StopIteration):
                        raise  # the rules are over, and this is how they ended
                    if leaving is not None:
                        raise leaving from None
                    value = caught.value
                    break
                if isinstance(caught, StopIteration):
                    caught = _stray(caught)
                if isinstance(caught, GeneratorExit):
                    leaving = caught
                error, value = self.note(caught), None
        if self.late_cancel is not None and not self.stopped:
            late = self.note(self.late_cancel)
            if not isinstance(late, TurnStopped):
                raise late
        yield Finished(value)

    def look_for_stop(self) -> None:
        """Raise what came while an operation was seen to its end."""
        if self.late_cancel is not None:
            late, self.late_cancel = self.late_cancel, None
            raise late
        if self.stopping:
            raise TurnStopped

    async def awaited(self, step: Any) -> Any:
        self.waiter = asyncio.current_task()
        try:
            return await step
        finally:
            self.waiter = None

    def note(self, caught: BaseException) -> BaseException:
        """Remember a stop. A cancellation that we asked for ourselves is `TurnStopped`."""
        if isinstance(caught, asyncio.CancelledError) and self.own_cancels:
            task = asyncio.current_task()
            self.own_cancels = 0
            if task is not None and task.uncancel() == 0:
                caught = TurnStopped()
        if not isinstance(caught, Exception):
            self.stopped = True
            self.tell_tools()
            return TurnStopped() if isinstance(caught, GeneratorExit) else caught
        if self.stopping and not self.stopped:
            self.stopped = True
            return TurnStopped()
        return caught

    def cancel(self) -> None:
        """Stop the turn, from any thread."""
        self.tell_tools()
        try:
            self.loop.call_soon_threadsafe(self.interrupt)
        except RuntimeError:
            _log.debug("cancel() came after the event loop of the turn was closed")

    def interrupt(self) -> None:
        if self.waiter is not None and not self.stopped and not self.own_cancels:
            self.own_cancels = 1
            self.waiter.cancel()

    # -- stores: an operation that has begun is always seen to its end, so that its outcome is known --

    async def whole(self, function: Callable[..., Any], *args: Any) -> Any:
        if not self.ports.store_blocks:
            value = function(*args)
            if not inspect.isawaitable(value):
                return value
            work = asyncio.ensure_future(value)
        else:
            work = asyncio.ensure_future(asyncio.to_thread(function, *args))
        cancelled: asyncio.CancelledError | None = None
        while not work.done():
            try:
                await asyncio.shield(work)
            except asyncio.CancelledError as error:
                cancelled = error
            except BaseException:  # noqa: BLE001, S110 - raised below, from the work itself
                pass
        value = work.result()
        if inspect.isawaitable(value):
            value = await value
        self.late_cancel = self.late_cancel or cancelled
        return value

    async def build(self, _: Build) -> Any:
        return await self.called(self.ports.build, blocks=self.ports.build_blocks)

    async def prepare(self, _: Prepare) -> Any:
        return await self.called(self.ports.prepare, blocks=self.ports.prepare_blocks)

    async def hook(self, effect: Hook) -> Any:
        return await self.called(effect.function, *effect.arguments)

    async def approve(self, effect: Approve) -> Any:
        return await self.called(self.ports.approve, effect.call, blocks=self.ports.approve_blocks)

    async def called(self, function: Callable[..., Any], *args: Any, blocks: bool = False) -> Any:
        value = await call_in_thread(function, *args) if blocks else function(*args)
        if inspect.isawaitable(value):
            return await value
        return value

    # -- chat --

    async def open_chat(self, effect: OpenChat) -> None:
        self.stream = None
        if self.ports.achat_stream is None:
            self.stream = _Pump(self.loop, lambda: self.ports.chat_stream(effect))
            return
        stream = self.ports.achat_stream(effect)
        if inspect.isawaitable(stream):
            stream = await stream
        if not hasattr(stream, "__aiter__"):
            raise no_stream(stream)
        self.stream = aiter(stream)

    async def next_chunk(self, _: NextChunk) -> Any:
        return await anext(self.stream, None)

    async def close_chat(self, _: CloseChat) -> None:
        stream, self.stream = self.stream, None
        close = getattr(stream, "aclose", None)
        if close is not None:
            await close()

    # -- calls --

    async def start_call(self, effect: StartCall) -> None:
        call, desk = effect.call, self.ports.desk
        ticket = self.admit(effect.index, desk.timeout_s(call))
        start = desk.start_async(call)
        if start is not None:
            self.async_calls.add(ticket)
        self.tasks[ticket] = self.loop.create_task(
            self.run_call(ticket, call, start), context=with_cancel(self.stop)
        )

    async def run_call(self, ticket: int, call: ToolCall, start: Callable[[], Any] | None) -> None:
        try:
            value = start() if start is not None else await call_in_thread(self.ports.dispatch, call)
            if inspect.isawaitable(value):
                self.async_calls.add(ticket)
                value = await value
        except asyncio.CancelledError as error:
            if self.stopped or ticket not in self.live:
                raise
            self.results.put_nowait(_Ended(ticket, error=error))
        except BaseException as error:  # noqa: BLE001 - whatever a tool raises becomes its result
            self.results.put_nowait(_Ended(ticket, error=error))
        else:
            self.results.put_nowait(_Ended(ticket, value=value))

    async def next_result(self, _: NextResult) -> Outcome:
        while True:
            until = self.next_deadline()
            timeout = None if until is None else max(0.0, until - time.monotonic())
            try:
                if timeout is None:
                    ended = await self.results.get()
                else:
                    async with asyncio.timeout(timeout):
                        ended = await self.results.get()
            except TimeoutError:
                late = self.expired(time.monotonic())
                if late is None:
                    continue
                self.tasks.pop(late[0]).cancel()
                return late[1]
            self.tasks.pop(ended.ticket, None)
            outcome = self.outcome(ended)
            if outcome is not None:
                return outcome

    async def stop_calls(self, _: StopCalls) -> list[Outcome]:
        self.tell_tools()
        self.stopped = True
        # An async tool ends at its next await; the thread of a sync one goes on, so it gets a moment.
        for ticket, task in self.tasks.items():
            if ticket in self.async_calls:
                task.cancel()
        if self.tasks:
            unfinished = (await asyncio.wait(self.tasks.values(), timeout=GRACE_S))[1]
            for task in unfinished:
                _log.warning("a tool is still running %g s after the turn was stopped; it is left", GRACE_S)
                task.cancel()
        self.tasks.clear()
        self.deadlines.clear()
        found = []
        while not self.results.empty():
            outcome = self.outcome(self.results.get_nowait())
            if outcome is not None:
                found.append(outcome)
        self.live.clear()
        return found


def _stray(stop: StopIteration) -> RuntimeError:
    """A partner's `StopIteration` (a bare `next()` in a hook, say), which would look like the end of the rules."""
    error = RuntimeError(f"a hook, a store, a builder or a runner raised StopIteration({stop.value!r})")
    error.__cause__ = stop
    return error


class Finished:
    """The last thing an `AsyncDriver` yields: what the rules returned."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value


class _Pump:
    """Drives a sync stream from a thread of its own and hands its chunks to the event loop.

    `aclose` stops it after the current step; a stream that is no generator is closed at once, from outside,
    which ends a long prefill too. At most `AHEAD` chunks are read before they are asked for.
    """

    AHEAD = 16

    def __init__(self, loop: asyncio.AbstractEventLoop, open_stream: Callable[[], Any]) -> None:
        self._loop = loop
        self._chunks: asyncio.Queue[tuple[str, Any]] = asyncio.Queue()
        self._room = threading.Semaphore(self.AHEAD)
        self._stop = threading.Event()
        self._stream: Any = None
        self._ended = asyncio.Event()
        context = contextvars.copy_context()
        self._thread = threading.Thread(
            target=context.run, args=(self._run, open_stream), name="agentkit-stream", daemon=True
        )
        self._thread.start()

    def _run(self, open_stream: Callable[[], Any]) -> None:
        try:
            self._stream = stream = chunks_here(open_stream())
            try:
                for chunk in stream:
                    self._room.acquire()
                    if self._stop.is_set():
                        break
                    self._tell("chunk", chunk)
                    if self._stop.is_set():
                        break
            finally:
                close = getattr(stream, "close", None)
                if close is not None:
                    close()
        except BaseException as error:  # noqa: BLE001 - raised where the chunks are read
            self._tell("error", error)
        else:
            self._tell("end", None)
        self._call(self._ended.set)

    def _tell(self, kind: str, value: Any) -> None:
        self._call(self._chunks.put_nowait, (kind, value))

    def _call(self, function: Callable[..., Any], *args: Any) -> None:
        try:
            self._loop.call_soon_threadsafe(function, *args)
        except RuntimeError:
            _log.debug("a stream ended after its event loop was closed")

    def __aiter__(self) -> _Pump:
        return self

    async def __anext__(self) -> Any:
        kind, value = await self._chunks.get()
        self._room.release()
        if kind == "chunk":
            return value
        self._chunks.put_nowait(("end", None))
        if kind == "error":
            raise value
        raise StopAsyncIteration

    async def aclose(self) -> None:
        self._stop.set()
        self._room.release()
        stream = self._stream
        if stream is not None and not inspect.isgenerator(stream) and not self._ended.is_set():
            close = getattr(stream, "close", None)
            if close is not None:
                try:
                    close()
                except Exception as error:  # noqa: BLE001 - the thread closes it after its step
                    _log.debug("closing a stream from another thread: %r", error)
        try:
            async with asyncio.timeout(GRACE_S):
                await self._ended.wait()
        except TimeoutError:
            _log.warning("the runner is still in one step %g s after it was stopped; it is left", GRACE_S)
