"""httpx2 clients as a runner needs them: made when first used, pooled, and able to be interrupted."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import ipaddress
import socket
import threading
import weakref
from collections.abc import AsyncGenerator
from typing import Any
from urllib.parse import urlsplit

__all__ = ["Abort", "Clients", "current_abort", "http_client"]

current_abort: contextvars.ContextVar[Abort | None] = contextvars.ContextVar(
    "agentkit_fast_abort", default=None
)


class Abort:
    """Interrupts a thread that waits for a socket or sleeps before a retry.

    httpx2 has no way to cancel a blocking read, and a server that reads a long prompt sends nothing for
    minutes; so the socket in use is remembered and shut down from outside.
    """

    def __init__(self) -> None:
        self._event = threading.Event()
        self._lock = threading.Lock()
        self._stream: Any = None
        self.within_s: float | None = None
        """The longest the next reads may take, where it is less than the request's own timeout."""

    @property
    def flag(self) -> bool:
        return self._event.is_set()

    def wait(self, seconds: float) -> None:
        """Sleep, but wake when aborted."""
        self._event.wait(seconds)

    def set(self) -> None:
        with self._lock:
            self._event.set()
            stream = self._stream
        sock = stream.get_extra_info("socket") if stream is not None else None
        if sock is not None:
            try:
                sock.shutdown(socket.SHUT_RDWR)
            except OSError:
                return  # the peer was faster

    def enter(self, stream: Any) -> bool:
        """Say which stream the thread is about to block on; false when it must not."""
        with self._lock:
            self._stream = stream
            return not self._event.is_set()

    def leave(self) -> None:
        with self._lock:
            self._stream = None


def _abortable_backend(inner: Any) -> Any:
    """A network backend whose reads an `Abort` can end."""
    import httpcore2

    class Stream(httpcore2.NetworkStream):
        def __init__(self, stream: Any) -> None:
            self._stream = stream

        def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
            abort = current_abort.get()
            if abort is None:
                return self._stream.read(max_bytes, timeout)  # type: ignore[no-any-return]  # from httpcore2
            if not abort.enter(self._stream):
                raise httpcore2.ReadError("aborted")
            if abort.within_s is not None:
                timeout = abort.within_s if timeout is None else min(timeout, abort.within_s)
            try:
                return self._stream.read(max_bytes, timeout)  # type: ignore[no-any-return]  # from httpcore2
            finally:
                abort.leave()

        def write(self, buffer: bytes, timeout: float | None = None) -> None:
            self._stream.write(buffer, timeout)

        def close(self) -> None:
            self._stream.close()

        def start_tls(
            self, ssl_context: Any, server_hostname: str | None = None, timeout: float | None = None
        ) -> Any:
            return Stream(self._stream.start_tls(ssl_context, server_hostname, timeout))

        def get_extra_info(self, info: str) -> Any:
            return self._stream.get_extra_info(info)

    class Backend(httpcore2.NetworkBackend):
        def connect_tcp(self, *args: Any, **kwargs: Any) -> Any:
            return Stream(inner.connect_tcp(*args, **kwargs))

        def connect_unix_socket(self, *args: Any, **kwargs: Any) -> Any:
            return Stream(inner.connect_unix_socket(*args, **kwargs))

        def sleep(self, seconds: float) -> None:
            inner.sleep(seconds)

    return Backend()


def http_client() -> Any:
    """The httpx2 module, or an `ImportError` that says how to get it."""
    try:
        import httpx2
    except ImportError as error:
        raise ImportError("HttpRunner needs httpx2: pip install 'agentkit-fast[http]'") from error
    return httpx2


def _is_loopback(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


class _Kept:
    """An async client that is closed at the latest when its event loop shuts down.

    Idle connections left to the garbage collector warn about unclosed transports. A loop closes the async
    generators it knows when it ends (`asyncio.run` and its like do), so the client lives in one.
    """

    def __init__(self, client: Any) -> None:
        self.client = client
        self._keeper = self._keep(client)
        # Runs to the `yield`, which nothing before it awaits; this makes the generator known to the loop.
        with contextlib.suppress(StopIteration):
            self._keeper.__anext__().send(None)

    @staticmethod
    async def _keep(client: Any) -> AsyncGenerator[None, None]:
        try:
            yield
        finally:
            await client.aclose()

    async def aclose(self) -> None:
        await self._keeper.aclose()


class Clients:
    """One pool of connections for threads, and one for each event loop that uses the runner.

    Any number of requests may be under way at once; 64 idle connections are kept for half a minute. A server
    on this machine is never reached through a proxy, whatever the environment says.
    """

    def __init__(self, url: str, *, transport: Any = None, async_transport: Any = None) -> None:
        self._transport = transport
        self._async_transport = async_transport
        self._options: dict[str, Any] = {"trust_env": not _is_loopback(url), "timeout": None}
        self._lock = threading.Lock()
        self._sync: Any = None
        self._async: dict[Any, _Kept] = {}
        self._trio: Any = None

    def sync(self) -> Any:
        """The client for blocking calls."""
        with self._lock:
            if self._sync is None:
                client = http_client().Client(transport=self._transport, limits=_limits(), **self._options)
                if self._transport is None:
                    _make_abortable(client)
                self._sync = client
                # A forgotten runner must not leave open sockets to the garbage collector.
                weakref.finalize(self, client.close)
            return self._sync

    def for_loop(self) -> Any:
        """The client of the running event loop: connections cannot be shared between loops."""
        try:
            loop: Any = asyncio.get_running_loop()
        except RuntimeError:
            loop = None  # trio: one run at a time is what there is
        with self._lock:
            kept = self._trio if loop is None else self._async.get(loop)
            if kept is None or kept.client.is_closed:
                client = http_client().AsyncClient(
                    transport=self._async_transport, limits=_limits(), **self._options
                )
                kept = _Kept(client)
                if loop is None:
                    self._trio = kept
                else:
                    # A connection holds its loop, so a loop that is over has to be forgotten by hand.
                    for old in [old for old in self._async if old.is_closed()]:
                        del self._async[old]
                    self._async[loop] = kept
            return kept.client

    def close(self) -> None:
        """Close the pool for threads."""
        with self._lock:
            client, self._sync = self._sync, None
        if client is not None:
            client.close()

    async def aclose(self) -> None:
        """Close the running loop's pool, and the one for threads."""
        self.close()
        try:
            loop: Any = asyncio.get_running_loop()
        except RuntimeError:
            loop = None
        with self._lock:
            kept = self._async.pop(loop, None) if loop is not None else self._trio
        if kept is not None:
            await kept.aclose()


def _limits() -> Any:
    return http_client().Limits(max_connections=None, max_keepalive_connections=64, keepalive_expiry=30.0)


def _make_abortable(client: Any) -> None:
    """Wrap the network backend of every transport of `client`.

    httpx2 has no parameter for it. Should a version name it otherwise, reads are merely not interrupted.
    """
    for transport in (client._transport, *client._mounts.values()):
        pool = getattr(transport, "_pool", None)
        backend = getattr(pool, "_network_backend", None)
        if pool is not None and backend is not None:
            pool._network_backend = _abortable_backend(backend)
