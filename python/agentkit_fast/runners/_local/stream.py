"""A reply as the caller reads it: an iterator over chunks that any thread may close."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, Self

from agentkit_fast.messages import StreamChunk
from agentkit_fast.runners._local.request import END

__all__ = ["Channel", "ChatStream"]

# A cancelled batch ends within 100 ms; this is only so that a hung backend cannot hang the caller too.
_CLOSE_TIMEOUT = 10.0


class Channel:
    """Between engine and reader. The engine holds only this, so that a forgotten stream ends."""

    def __init__(self) -> None:
        self.items: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.done = threading.Event()

    def deliver(self, item: Any) -> None:
        self.items.put(item)
        if item is END or isinstance(item, BaseException):
            self.done.set()


class ChatStream(Iterator[StreamChunk]):
    """Chunks of one reply. `close()` stops it, from any thread; a waiting `next()` then ends."""

    def __init__(self, channel: Channel, cancel: Callable[[], None]) -> None:
        self._channel = channel
        self._cancel = cancel
        self._over = False

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> StreamChunk:
        if self._over:
            raise StopIteration
        try:
            item = self._channel.items.get()
        except BaseException:  # Ctrl-C while waiting: nobody reads on
            self._stop()
            raise
        if isinstance(item, StreamChunk):
            return item
        self._over = True
        if isinstance(item, BaseException):
            raise item
        raise StopIteration

    def close(self) -> None:
        """Stop; returns when the engine has let go of the request."""
        self._stop()
        self._channel.done.wait(_CLOSE_TIMEOUT)

    def _stop(self) -> None:
        self._over = True
        if not self._channel.done.is_set():
            self._cancel()
        self._channel.items.put(END)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __del__(self) -> None:
        self._stop()
