"""Running async code from sync callers and sync code from async ones.

Async tools and MCP servers hold connections that belong to one event loop, so everything async that a sync
caller asks for runs on one long-lived loop in a daemon thread. Sync tools that an async caller asks for
run each in a thread of its own: a pool would be full of abandoned calls after a few time-outs, and
would hold up the end of the process.
"""

from __future__ import annotations

import asyncio
import contextvars
import os
import threading
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

__all__ = [
    "Expired",
    "await_within",
    "call_in_thread",
    "in_event_loop",
    "on_shared_loop",
    "run_async",
    "run_within",
    "shared_loop",
    "spawn",
    "thread_coroutine",
]

T = TypeVar("T")


class Expired(Exception):
    """The time given has passed; distinct from a `TimeoutError` that the called code raised."""


class _Portal:
    """The loop thread. Started on first use, and anew in a forked child."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._pid = 0

    def loop(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            alive = self._thread is not None and self._thread.is_alive()
            if self._loop is None or self._pid != os.getpid() or not alive:
                loop = asyncio.new_event_loop()
                thread = threading.Thread(target=loop.run_forever, name="agentkit-async", daemon=True)
                thread.start()
                self._loop, self._thread, self._pid = loop, thread, os.getpid()
            return self._loop


_portal = _Portal()
_inside: contextvars.ContextVar[bool] = contextvars.ContextVar("agentkit_inside_portal", default=False)
# A lock held by another thread at the moment of a fork stays held for ever in the child.
if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_portal.reset)


def shared_loop() -> asyncio.AbstractEventLoop | None:
    """The loop that async code of sync callers runs on; `None` where this very thread runs it."""
    loop = _portal.loop()
    return None if _portal._thread is threading.current_thread() else loop


def in_event_loop() -> bool:
    """Whether this thread is running an event loop right now."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def run_async(start: Callable[[], Awaitable[T]], timeout_s: float | None = None) -> T:
    """Run `await start()` on the shared loop and wait for it here.

    Raises `Expired` after `timeout_s` seconds and cancels what was running. When the waiting thread is
    interrupted (`KeyboardInterrupt`), what was running is cancelled too.
    """
    # Whoever waits below an async tool holds up the shared loop, so what it asks for gets another one.
    if _inside.get():
        return call_in_thread(lambda: asyncio.run(_awaited(start))).result(timeout_s)
    outcome: Future[T] = Future()
    tasks: list[asyncio.Task[None]] = []

    async def run() -> None:
        _inside.set(True)
        try:
            value = await await_within(start, timeout_s)
        except BaseException as error:  # noqa: BLE001 - handed to the waiting thread, whatever it is
            outcome.set_exception(error)
        else:
            outcome.set_result(value)

    loop = _portal.loop()
    context = contextvars.copy_context()

    def begin() -> None:
        tasks.append(loop.create_task(run(), context=context))

    loop.call_soon_threadsafe(begin)
    try:
        return outcome.result()
    except BaseException:
        if not outcome.done():
            loop.call_soon_threadsafe(lambda: [task.cancel() for task in tasks])
        raise


async def _awaited(start: Callable[[], Awaitable[T]]) -> T:
    return await start()


async def on_shared_loop(start: Callable[[], Awaitable[T]], timeout_s: float | None) -> T:
    """`await start()` on the shared loop, from whichever loop this is; `Expired` after `timeout_s` seconds.

    For what holds a connection: it belongs to one loop, whoever calls. Cancelling this cancels that.
    """
    loop = _portal.loop()
    if asyncio.get_running_loop() is loop:
        return await await_within(start, timeout_s)
    return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(await_within(start, timeout_s), loop))


def spawn(start: Callable[[], Coroutine[Any, Any, None]]) -> Future[None]:
    """Begin `start()` on the shared loop, to run for as long as it takes."""
    return asyncio.run_coroutine_threadsafe(start(), _portal.loop())


async def await_within(start: Callable[[], Awaitable[T]], timeout_s: float | None) -> T:
    """Await `start()`; after `timeout_s` seconds cancel it, wait no longer and raise `Expired`."""
    if timeout_s is None:
        return await start()
    work = asyncio.ensure_future(_awaited(start))
    try:
        done, _ = await asyncio.wait({work}, timeout=timeout_s)
    except asyncio.CancelledError:
        work.cancel()
        raise
    if not done:
        work.cancel()
        work.add_done_callback(_retrieve)
        raise Expired
    return work.result()


def _retrieve(work: asyncio.Future[Any]) -> None:
    """Look at an abandoned task's error, so that the loop does not report it as never retrieved."""
    if not work.cancelled():
        work.exception()


def call_in_thread(func: Callable[[], T]) -> Future[T]:
    """Start `func` in a daemon thread of its own, in a copy of this context."""
    outcome: Future[T] = Future()
    outcome.set_running_or_notify_cancel()  # a thread cannot be cancelled; who gives it up just leaves
    context = contextvars.copy_context()

    def run() -> None:
        try:
            value = context.run(func)
        except BaseException as error:  # noqa: BLE001 - handed to the waiting thread, whatever it is
            outcome.set_exception(error)
        else:
            outcome.set_result(value)

    threading.Thread(target=run, name="agentkit-tool", daemon=True).start()
    return outcome


def run_within(func: Callable[[], T], timeout_s: float | None) -> T:
    """Call `func`; with a time-out in a thread that is left behind when it has passed (`Expired`)."""
    if timeout_s is None:
        return func()
    outcome = call_in_thread(func)
    try:
        return outcome.result(timeout_s)
    except TimeoutError:
        if outcome.done():
            raise  # the called code's own
        raise Expired from None


def thread_coroutine(func: Callable[[], T]) -> Coroutine[Any, Any, T]:
    """A coroutine that runs `func` in a thread of its own."""

    async def wait() -> T:
        return await asyncio.wrap_future(call_in_thread(func))

    return wait()
