"""Async code for sync callers, on one long-lived loop; sync code for async callers, in threads.

Async tools often hold connections that belong to a loop, so all of them share one loop in a daemon thread
for the life of the process. The rules of a turn never run there.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from agentkit_fast.asyncbridge import shared_loop

__all__ = ["LoopCall", "call_in_thread", "wait_on_loop"]

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
