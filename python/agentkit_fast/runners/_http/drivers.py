"""The two drivers: they perform a rule's effects on httpx2, one for threads, one for event loops.

Nothing is decided here.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from types import TracebackType
from typing import Any, Self

from agentkit_fast.errors import RunnerError
from agentkit_fast.messages import StreamChunk
from agentkit_fast.runners._http.connection import Abort, current_abort
from agentkit_fast.runners._http.exchange import Answer, Close, Failed, Read, Rule, Send, Wait

__all__ = ["SyncReply", "adrive", "areply", "drive"]


def _failed(error: Exception, timeouts: tuple[type[Exception], ...]) -> Failed:
    import httpx2

    said = f"{type(error).__name__}: {error}".rstrip(": ")
    if isinstance(error, (httpx2.LocalProtocolError, httpx2.UnsupportedProtocol)):
        raise RunnerError(
            f"The request cannot be sent: {said}. Check base_url, api_key and headers."
        ) from error
    return Failed(said, isinstance(error, timeouts), error)


def _answer(response: Any) -> Answer:
    return Answer(response.status_code, dict(response.headers))


class _SyncEffects:
    """Performs effects in the calling thread."""

    def __init__(self, client: Any, abort: Abort) -> None:
        import httpx2

        self._client = client
        self._abort = abort
        self._response: Any = None
        self._body: Iterator[bytes] | None = None
        self._errors = (httpx2.TransportError, httpx2.StreamError, httpx2.DecodingError)
        # A connection that cannot be made in time is a failed connection, not a silent server.
        self._timeouts = (httpx2.ReadTimeout, httpx2.WriteTimeout)

    def perform(self, effect: Any) -> Any:
        kind = type(effect)
        if kind is Read:
            self._abort.within_s = effect.within_s
            try:
                return next(self._body, b"") if self._body is not None else b""
            except self._errors as error:
                return _failed(error, self._timeouts)
        if kind is Send:
            self._abort.within_s = None
            request = _build(self._client, effect)
            try:
                self._response = self._client.send(request, stream=True)
            except self._errors as error:
                return _failed(error, self._timeouts)
            self._body = (data for data in self._response.iter_bytes() if data)
            return _answer(self._response)
        if kind is Close:
            return self.close()
        if kind is Wait:
            self._abort.wait(effect.seconds)
            return None
        raise AssertionError(f"unknown effect {effect!r}")

    def close(self) -> None:
        response, self._response, self._body = self._response, None, None
        if response is not None:
            response.close()


def _build(client: Any, effect: Send) -> Any:
    import httpx2

    limit = effect.timeout_s if effect.timeout_s is not None and math.isfinite(effect.timeout_s) else None
    timeout = httpx2.Timeout(limit, connect=10.0 if limit is None else min(10.0, limit), pool=None)
    return client.build_request(
        effect.method, effect.url, headers=effect.headers, content=effect.content, timeout=timeout
    )


def drive(client: Any, rule: Rule) -> Any:
    """Run a rule that yields no chunks to its end; what it returns."""
    abort = Abort()
    effects = _SyncEffects(client, abort)
    outcome: Any = None
    token = current_abort.set(abort)
    try:
        while True:
            outcome = effects.perform(rule.send(outcome))
    except StopIteration as stop:
        return stop.value
    finally:
        current_abort.reset(token)
        effects.close()


class SyncReply(Iterator[StreamChunk]):
    """The chunks of a reply, read as they are asked for.

    `close` stops the server's work by closing the connection. It may come from another thread while
    one waits in `next`: that one then ends at once, without an error.
    """

    def __init__(self, client: Callable[[], Any], rule: Rule) -> None:
        self._client = client
        self._rule = rule
        self._abort = Abort()
        self._effects: _SyncEffects | None = None
        self._chunks: deque[StreamChunk] = deque()
        self._lock = threading.Lock()
        self._over = False

    def __next__(self) -> StreamChunk:
        if self._chunks:
            return self._chunks.popleft()
        if self._over:
            raise StopIteration
        if not self._lock.acquire(blocking=False):
            raise RuntimeError("This reply is being read by another thread already.")
        try:
            return self._advance()
        except BaseException:
            self._finish()
            raise
        finally:
            self._lock.release()

    def _advance(self) -> StreamChunk:
        if self._effects is None:
            self._effects = _SyncEffects(self._client(), self._abort)
        token = current_abort.set(self._abort)
        try:
            outcome: Any = None
            while True:
                if self._abort.flag:
                    raise StopIteration
                effect = self._rule.send(outcome)
                if type(effect) is list:
                    self._chunks.extend(effect)
                    return self._chunks.popleft()
                outcome = self._effects.perform(effect)
        except Exception:
            if self._abort.flag:
                raise StopIteration from None
            raise
        finally:
            current_abort.reset(token)

    def _finish(self) -> None:
        self._over = True
        self._rule.close()
        if self._effects is not None:
            self._effects.close()

    def close(self) -> None:
        """Stop. Safe from any thread, any number of times."""
        self._abort.set()
        self._chunks.clear()
        if self._lock.acquire(blocking=False):
            try:
                self._finish()
            finally:
                self._lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        if not self._over:
            self.close()


class _AsyncEffects:
    """Performs effects in the running event loop."""

    def __init__(self, client: Any) -> None:
        import httpx2

        self._client = client
        self._response: Any = None
        self._body: AsyncIterator[bytes] | None = None
        self._errors = (httpx2.TransportError, httpx2.StreamError, httpx2.DecodingError)
        self._timeouts = (httpx2.ReadTimeout, httpx2.WriteTimeout)

    async def perform(self, effect: Any) -> Any:
        kind = type(effect)
        if kind is Read:
            if effect.within_s is None:
                return await self._read()
            import anyio

            with anyio.move_on_after(effect.within_s):
                return await self._read()
            return Failed(f"nothing came for {effect.within_s:g} s", timeout=True)
        if kind is Send:
            request = _build(self._client, effect)
            try:
                self._response = await self._client.send(request, stream=True)
            except self._errors as error:
                return _failed(error, self._timeouts)
            self._body = self._response.aiter_bytes()
            return _answer(self._response)
        if kind is Close:
            return await self.close()
        if kind is Wait:
            import anyio

            await anyio.sleep(effect.seconds)
            return None
        raise AssertionError(f"unknown effect {effect!r}")

    async def _read(self) -> Any:
        if self._body is None:
            return b""
        try:
            async for data in self._body:
                if data:
                    return data
        except self._errors as error:
            return _failed(error, self._timeouts)
        return b""

    async def close(self) -> None:
        response, self._response, self._body = self._response, None, None
        if response is not None:
            await response.aclose()


async def adrive(client: Any, rule: Rule) -> Any:
    """As `drive`, awaited."""
    effects = _AsyncEffects(client)
    outcome: Any = None
    try:
        while True:
            outcome = await effects.perform(rule.send(outcome))
    except StopIteration as stop:
        return stop.value
    finally:
        await effects.close()


async def areply(client: Callable[[], Any], rule: Rule) -> AsyncIterator[StreamChunk]:
    """The chunks of a reply. Cancelling the task or closing the iterator closes the connection."""
    effects = _AsyncEffects(client())
    outcome: Any = None
    try:
        while True:
            try:
                effect = rule.send(outcome)
            except StopIteration:
                return
            if type(effect) is list:
                outcome = None
                for chunk in effect:
                    yield chunk
            else:
                outcome = await effects.perform(effect)
    finally:
        rule.close()
        await effects.close()
