"""Async code for sync callers, on one long-lived loop; sync code for async callers, in threads.

Async tools often hold connections that belong to a loop, so all of them share one loop in a daemon thread
for the life of the process. The rules of a turn never run there.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import logging
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Any

from agentkit_fast.asyncbridge import shared_loop
from agentkit_fast.errors import RunnerError

__all__ = ["LoopCall", "LoopStream", "call_in_thread", "chunks_here", "no_stream", "wait_on_loop"]

_log = logging.getLogger("agentkit_fast.session")
_lock = threading.Lock()
_nested: list[tuple[int, asyncio.AbstractEventLoop, threading.Thread]] = []


def _loop() -> asyncio.AbstractEventLoop:
    """The shared loop; another where this very thread runs it (a tool that runs a session of its own)."""
    loop = shared_loop()
    if loop is not None:
        return loop
    with _lock:
        for pid, other, thread in _nested:
            if pid == os.getpid() and thread is not threading.current_thread():
                return other
        other = asyncio.new_event_loop()
        thread = threading.Thread(target=other.run_forever, name="agentkit-nested", daemon=True)
        thread.start()
        _nested.append((os.getpid(), other, thread))
        return other


class LoopCall:
    """An awaitable that runs on the shared loop. `ended(value, error)` is called there when it is over."""

    def __init__(
        self,
        awaitable: Any,
        ended: Callable[[Any, BaseException | None], None],
        context: contextvars.Context | None = None,
    ) -> None:
        self._awaitable = awaitable
        self._ended = ended
        self._task: asyncio.Task[None] | None = None
        self._began = False
        self._cancelled = False
        self._loop = _loop()
        context = context or contextvars.copy_context()
        self._loop.call_soon_threadsafe(self._start, context)

    def _start(self, context: contextvars.Context) -> None:
        self._task = self._loop.create_task(self._run(), context=context)

    async def _run(self) -> None:
        value, error = None, None
        self._began = True
        try:
            if self._cancelled:
                close = getattr(self._awaitable, "close", None)
                if close is not None:
                    close()
                raise asyncio.CancelledError
            value = await self._awaitable
        except BaseException as caught:  # noqa: BLE001 - handed to whoever waits
            error = caught
        self._ended(value, error)

    def cancel(self) -> None:
        """Cancel it, from any thread; `ended` is called when that has happened."""
        self._loop.call_soon_threadsafe(self._cancel)

    def _cancel(self) -> None:
        self._cancelled = True
        # A task that has not taken its first step would drop its awaitable without closing it.
        if self._task is not None and self._began:
            self._task.cancel()


def wait_on_loop(awaitable: Any) -> Any:
    """What an awaitable gives, waited for here. An interrupt while waiting cancels it."""
    future: Future[Any] = Future()

    def ended(value: Any, error: BaseException | None) -> None:
        if error is None:
            future.set_result(value)
        else:
            future.set_exception(error)

    running = LoopCall(awaitable, ended)
    try:
        return future.result()
    except BaseException:
        if not future.done():
            running.cancel()
        raise


class LoopStream:
    """An async stream, read from a thread that waits: each step runs on the shared loop.

    `close` may come from another thread; it ends the step that is under way.
    """

    GRACE_S = 2.0
    """How long an interrupted step may take to end."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._stepping = False
        self._running: LoopCall | None = None
        self._task: asyncio.Task[Any] | None = None
        self._closed = False

    def __iter__(self) -> LoopStream:
        return self

    def __next__(self) -> Any:
        future: Future[Any] = Future()

        def ended(value: Any, error: BaseException | None) -> None:
            if error is None:
                future.set_result(value)
            else:
                future.set_exception(error)

        self._stepping = True
        try:
            self._running = LoopCall(self._step(), ended)
            if self._closed:  # perhaps meanwhile, by the step itself or another thread
                self._running.cancel()
            return future.result()
        except StopAsyncIteration:
            raise StopIteration from None
        except asyncio.CancelledError as error:
            # Not this thread was cancelled, the step was.
            raise RunnerError("the runner's stream was cancelled") from error
        except BaseException:
            if self._running is not None and not future.done():
                self._running.cancel()
                wait([future], timeout=self.GRACE_S)
            raise
        finally:
            self._running = None
            self._stepping = False

    async def _step(self) -> Any:
        self._task = asyncio.current_task()
        return await anext(self._stream)

    async def _end(self, aclose: Callable[[], Any]) -> None:
        # An interrupt may have left a step behind that nobody waits for; a generator is not closed under it.
        task = self._task
        if task is not None and not task.done():
            task.cancel()
            await asyncio.wait([task], timeout=self.GRACE_S)
        await aclose()

    def close(self) -> None:
        """End the generation."""
        self._closed = True
        if self._stepping:
            running = self._running
            if running is not None:
                running.cancel()
            return
        aclose = getattr(self._stream, "aclose", None)
        if aclose is not None:
            wait_on_loop(self._end(aclose))


def no_stream(found: Any) -> RunnerError:
    """The error for what a runner gave in place of a stream."""
    return RunnerError(
        f"the runner's chat_stream gave a value of type {type(found).__name__}; it must give an iterator of"
        " StreamChunk values."
    )


def chunks_here(stream: Any) -> Any:
    """An iterator over a runner's stream for a thread that waits, whether the runner is sync or async."""
    if inspect.isawaitable(stream):
        stream = wait_on_loop(stream)
    if hasattr(stream, "__aiter__"):
        return LoopStream(aiter(stream))
    try:
        return iter(stream)
    except TypeError:
        raise no_stream(stream) from None


async def call_in_thread(function: Callable[..., Any], *args: Any) -> Any:
    """Run in a daemon thread of its own.

    A pool would fill with calls that were left, and hold up the end of the process.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Any] = loop.create_future()

    def tell(value: Any, error: BaseException | None) -> None:
        if future.done():
            return
        if error is None:
            future.set_result(value)
        else:
            future.set_exception(error)

    def run() -> None:
        value: Any = None
        error: BaseException | None = None
        try:
            value = function(*args)
        except StopIteration as stop:  # a future refuses it
            error = RuntimeError(f"raised StopIteration({stop.value!r})")
        except BaseException as caught:  # noqa: BLE001 - handed to whoever awaits
            error = caught
        try:
            loop.call_soon_threadsafe(tell, value, error)
        except RuntimeError:
            _log.debug("a thread ended after its event loop was closed")

    context = contextvars.copy_context()
    threading.Thread(target=context.run, args=(run,), name="agentkit-call", daemon=True).start()
    return await future
