"""MCP servers as tools, by the official `mcp` package (2.x): stdio and streamable HTTP.

    with McpServer.stdio("uvx", "mcp-server-time") as server:
        session = Session(..., tools=ToolSet([*server.tools, my_tool]))

A server is one task on the shared event loop, so that sync and async callers, threads and loops may use it at
once. A call always ends: with its result, or with words that say what happened instead.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import logging
import os
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Self

import msgspec

from agentkit_fast._unicode import repair_text
from agentkit_fast.asyncbridge import Expired, on_shared_loop, run_async, spawn
from agentkit_fast.errors import AgentkitError
from agentkit_fast.messages import ToolCall
from agentkit_fast.signatures import object_members
from agentkit_fast.tools import Tool

__all__ = ["McpError", "McpServer", "normalize_schema"]

_log = logging.getLogger(__name__)
# What is kept of a server's stderr, and what of it an error shows: the last lines say why it ended.
_STDERR_KEPT = 64_000
_STDERR_SHOWN = 1500
# A server may list its tools in pages; one that never stops is cut off here.
_MAX_PAGES = 200
# Closing a server that does not end by itself takes the mcp package up to 6.5 s.
_CLOSE_TIMEOUT_S = 10.0
_LAST_WORDS_S = 0.7


class McpError(AgentkitError, ConnectionError):
    """A server could not be started or reached; carries the last of its stderr."""


class McpServer:
    """One MCP server. Make it with `stdio` or `http`, then `connect()` or use it as a context manager.

    - `tools`: its tools as `Tool` values (async, so calls of one round run side by side).
    - `timeout_s`: seconds one call may take; then it is given up and answered with words that say so.
      `start_timeout_s`: for connecting and listing the tools.
    - `mask`: `{"file": "check_file"}` keeps the tool `check_file` from the model; `revalidate("file", key)` asks
      it whether a notice still holds (`RevalidatingPreparer(store, server)`).
    - `approve`: names of tools that need a person's yes, or `True` for all of them.
    - `prefix`: put before each tool's name, where several servers have tools of one name.
    - `restart`: a server that has ended is started anew by the next call; the call it ended under is
      never repeated.
    """

    def __init__(
        self,
        name: str,
        open_transport: Callable[[_Stderr], Any],
        *,
        timeout_s: float = 60.0,
        start_timeout_s: float = 30.0,
        mask: Mapping[str, str] | None = None,
        approve: bool | Collection[str] = (),
        prefix: str = "",
        restart: bool = True,
    ) -> None:
        if not (timeout_s > 0 and start_timeout_s > 0):
            raise ValueError("timeout_s and start_timeout_s must be more than 0 seconds")
        self.name = name
        self.tools: list[Tool] = []
        self._open_transport = open_transport
        self._timeout_s = timeout_s
        self._start_timeout_s = start_timeout_s
        self._mask = dict(mask or {})
        self._approve = approve
        self._prefix = prefix
        self._restart = restart
        self._schemas: dict[str, dict[str, Any]] = {}
        self._link: _Link | None = None
        self._guard = threading.Lock()
        self._starting: asyncio.Lock | None = None
        self._closed = False

    @classmethod
    def stdio(
        cls,
        command: str,
        *args: str,
        env: Mapping[str, str] | None = None,
        cwd: str | os.PathLike[str] | None = None,
        name: str = "",
        **settings: Any,
    ) -> Self:
        """A server that is a program of ours: started here, spoken to over its stdin and stdout.

        `env` is added to a minimal environment (PATH, HOME and the like, not the whole of ours).
        """
        _package()
        from mcp import StdioServerParameters, stdio_client

        parameters = StdioServerParameters(
            command=command,
            args=list(args),
            env=dict(env) if env else None,
            cwd=os.fspath(cwd) if cwd else None,
        )
        return cls(
            name or os.path.basename(command),  # noqa: PTH119 - a command, not a path
            lambda stderr: stdio_client(parameters, errlog=stderr.file()),
            **settings,
        )

    @classmethod
    def http(
        cls, url: str, *, headers: Mapping[str, str] | None = None, name: str = "", **settings: Any
    ) -> Self:
        """A server at a streamable HTTP address, such as `http://127.0.0.1:8000/mcp`."""
        _package()

        @contextlib.asynccontextmanager
        async def open_transport(_: _Stderr) -> AsyncIterator[Any]:
            from mcp.client import streamable_http

            make_client = streamable_http.create_mcp_http_client  # type: ignore[attr-defined]  # takes headers
            async with (
                make_client(headers=dict(headers or {})) as client,
                # A result may be one event of any size; the package's own bound is 1 MiB.
                streamable_http.streamable_http_client(
                    url, http_client=client, max_sse_event_size=None
                ) as streams,
            ):
                yield streams

        return cls(name or url, open_transport, **settings)

    # -- life --

    def connect(self) -> Self:
        """Start or reach the server and list its tools. Raises `McpError`."""
        run_async(self._connected)
        return self

    async def aconnect(self) -> Self:
        """As `connect`, awaited."""
        await on_shared_loop(self._connected, None)
        return self

    def close(self) -> None:
        """End the connection, and the program where it is ours."""
        link = self._shut()
        if link is not None:
            with contextlib.suppress(Expired):
                run_async(link.close, _CLOSE_TIMEOUT_S)

    async def aclose(self) -> None:
        """As `close`, awaited."""
        link = self._shut()
        if link is not None:
            with contextlib.suppress(Expired):
                await on_shared_loop(link.close, _CLOSE_TIMEOUT_S)

    def _shut(self) -> _Link | None:
        with self._guard:
            self._closed = True
            link, self._link = self._link, None
        return link

    def __enter__(self) -> Self:
        return self.connect()

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return await self.aconnect()

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    @property
    def alive(self) -> bool:
        """Whether there is a connection that has not ended."""
        link = self._link
        return link is not None and link.alive

    # -- calls --

    def call(
        self, name: str, arguments: Mapping[str, Any] | None = None, *, timeout_s: float | None = None
    ) -> str:
        """Call a tool by the server's own name for it; its result as text."""
        return run_async(lambda: self._call(name, dict(arguments or {}), timeout_s or self._timeout_s))

    async def acall(
        self, name: str, arguments: Mapping[str, Any] | None = None, *, timeout_s: float | None = None
    ) -> str:
        """As `call`, awaited, in whatever event loop."""
        given = dict(arguments or {})
        return await on_shared_loop(lambda: self._call(name, given, timeout_s or self._timeout_s), None)

    def revalidate(self, group_by: str, key: str) -> str | None:
        """The masked tool's word on `key`; `None` where no tool is masked for this group.

        The tool gets `key` under the name of its group, or as `key`, or as its one required argument. Raises
        `McpError` when it gives no answer, so that the notice is kept.
        """
        name = self._mask.get(group_by)
        if name is None:
            return None
        return run_async(lambda: self._checked(name, group_by, key))

    async def _checked(self, name: str, group_by: str, key: str) -> str:
        try:
            return await self._answer(name, self._about(name, group_by, key), self._timeout_s)
        except _Trouble as trouble:
            raise McpError(str(trouble)) from trouble

    def _about(self, name: str, group_by: str, key: str) -> dict[str, Any]:
        schema = self._schemas.get(name, {})
        known = schema.get("properties") or {}
        if group_by in known:
            return {group_by: key}
        required = schema.get("required") or []
        if "key" not in known and len(required) == 1:
            return {required[0]: key}
        return {"key": key, **({"group_by": group_by} if "group_by" in known else {})}

    async def _call(self, name: str, arguments: dict[str, Any], timeout_s: float) -> str:
        try:
            return await self._answer(name, arguments, timeout_s)
        except _Trouble as trouble:
            return f"ERROR: {trouble}"

    async def _answer(self, name: str, arguments: dict[str, Any], timeout_s: float) -> str:
        try:
            link = await self._connected()
        except McpError as error:
            raise _Trouble(f"{name} was not run: {error}") from error
        return await link.call(name, arguments, timeout_s)

    async def _connected(self) -> _Link:
        """The living connection, made if there is none. Runs on the shared loop only."""
        link = self._link
        if link is not None and link.alive:
            return link
        if self._starting is None:
            self._starting = asyncio.Lock()
        async with self._starting:
            link = self._link
            if link is not None and link.alive:
                return link
            if self._closed:
                raise McpError(f"MCP server {self.name!r} is closed; make a new McpServer")
            if link is not None and not self._restart:
                raise McpError(link.ended())
            link = _Link(self.name, self._open_transport)
            listed = await link.start(self._start_timeout_s)
            if not self.tools:
                self._take(listed)
            if self._keep(link):
                return link
            await link.close()
            raise McpError(f"MCP server {self.name!r} was closed while it was starting")

    def _keep(self, link: _Link) -> bool:
        """Whether the new connection is wanted: `close` may have been called meanwhile."""
        with self._guard:
            if not self._closed:
                self._link = link
            return not self._closed

    def _take(self, listed: Sequence[Any]) -> None:
        masked = set(self._mask.values())
        tools = []
        for item in listed:
            schema = normalize_schema(item.input_schema)
            self._schemas[item.name] = schema
            if item.name not in masked:
                tools.append(self._tool(item, schema))
        missing = masked - set(self._schemas)
        if missing:
            known = ", ".join(sorted(self._schemas)) or "none"
            raise McpError(
                f"MCP server {self.name!r} has no tool {sorted(missing)[0]!r} to mask; its tools are: {known}"
            )
        self.tools = tools

    def _tool(self, item: Any, schema: dict[str, Any]) -> Tool:
        name = item.name

        async def function(arguments: dict[str, Any]) -> str:
            return await self.acall(name, arguments)

        hints = item.annotations
        return Tool(
            name=repair_text(self._prefix + name),
            description=repair_text(item.description or item.title or ""),
            parameters=schema,
            function=function,
            signature=_WholeObject(),
            is_async=True,
            approve=self._approve is True
            or (not isinstance(self._approve, bool) and name in self._approve),
            # A tool that only reads may be run again when a crash hid its outcome.
            idempotent=bool(hints and (hints.idempotent_hint or hints.read_only_hint)),
        )


class _Trouble(Exception):
    """Why a call has no result, in words for the model."""


class _WholeObject:
    """A `Signature` that hands the arguments object over as it is: the server knows what it takes."""

    def bind(self, arguments: str, call: ToolCall) -> tuple[list[Any], dict[str, Any]]:
        return [], {
            "arguments": {name: msgspec.json.decode(raw) for name, raw in object_members(arguments).items()}
        }


class _Link:
    """One connection: the task that holds it, and the calls made over it. Lives on the shared loop."""

    def __init__(self, name: str, open_transport: Callable[[_Stderr], Any]) -> None:
        self._name = name
        self._open_transport = open_transport
        self._stderr = _Stderr()
        self._client: Any = None
        self._ready = asyncio.Event()
        self._stop = asyncio.Event()
        self._over = asyncio.Event()
        self._why = ""
        self._task: Future[None] | None = None

    @property
    def alive(self) -> bool:
        return self._client is not None and not self._over.is_set()

    async def start(self, timeout_s: float) -> list[Any]:
        """Connect and list the tools."""
        self._task = spawn(self._hold)
        try:
            async with asyncio.timeout(timeout_s):
                ready = asyncio.ensure_future(self._ready.wait())
                over = asyncio.ensure_future(self._over.wait())
                await asyncio.wait({ready, over}, return_when=asyncio.FIRST_COMPLETED)
                ready.cancel()
                over.cancel()
                if self._over.is_set():
                    await self._last_words()
                    raise McpError(
                        f"MCP server {self._name!r} could not be started or reached{self._reason()}"
                    )
                found: list[Any] = await self._until_over(self._list())
                return found
        except TimeoutError:
            await self._give_up()
            raise McpError(
                f"MCP server {self._name!r} was not ready within {timeout_s:g} s{self._reason()}. Raise "
                "start_timeout_s, or try the command by hand"
            ) from None
        except McpError:
            await self._give_up()
            raise
        except Exception as error:
            await self._give_up()
            raise McpError(
                f"MCP server {self._name!r} failed while starting: {error}{self._reason()}"
            ) from error

    async def _list(self) -> list[Any]:
        from mcp import types

        found: list[Any] = []
        cursor = None
        for _ in range(_MAX_PAGES):
            params = types.PaginatedRequestParams(cursor=cursor) if cursor else None
            page = await self._client.session.list_tools(params=params)
            found.extend(page.tools)
            if not page.next_cursor or page.next_cursor == cursor:
                break
            cursor = page.next_cursor
        return found

    async def _hold(self) -> None:
        """Keep the connection open until `close`: the package wants it opened and closed in one task."""
        from mcp import Client

        try:
            async with Client(
                _Watched(self._open_transport(self._stderr), self._ended), cache=None
            ) as client:
                self._client = client
                self._ready.set()
                await self._stop.wait()
        except BaseException as error:
            self._why = self._why or _first_words(error)
            if isinstance(error, asyncio.CancelledError):
                raise
        finally:
            self._over.set()
            self._stderr.close()

    def _ended(self) -> None:
        """The other end closed the stream: nobody will answer any more."""
        self._over.set()
        self._stop.set()

    async def call(self, name: str, arguments: dict[str, Any], timeout_s: float) -> str:
        """The tool's result as text, or `_Trouble`."""
        try:
            async with asyncio.timeout(timeout_s):
                result = await self._until_over(self._client.call_tool(name, arguments))
        except TimeoutError:
            raise _Trouble(
                f"{name} gave no result within {timeout_s:g} s and was given up (MCP server {self._name!r}); what it "
                f"had begun may or may not have happened. Check before you try again.{self._said()}"
            ) from None
        except McpError as error:
            raise _Trouble(
                f"{error} while {name} was running; whether it had its effect is not known. Check before you "
                "try again."
            ) from error
        except Exception as error:
            if self._over.is_set():
                await self._last_words()
                raise _Trouble(
                    f"{self.ended()} while {name} was running; whether it had its effect is not known."
                ) from error
            raise _Trouble(f"{name} failed: {_first_words(error)}") from error
        text = _text(result)
        return f"ERROR: {text}" if result.is_error else text

    async def _until_over(self, work: Any) -> Any:
        """Await `work`, but not past the end of the connection."""
        task = asyncio.ensure_future(work)
        over = asyncio.ensure_future(self._over.wait())
        try:
            await asyncio.wait({task, over}, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return task.result()
        finally:
            over.cancel()
            if not task.done():
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError, Exception):
                    await asyncio.wait({task}, timeout=0.2)
        await self._last_words()
        raise McpError(self.ended())

    async def _last_words(self) -> None:
        """Wait a moment for the transport to close: a server's stdout may end before its stderr is read."""
        if self._task is not None:
            await asyncio.wait({asyncio.wrap_future(self._task)}, timeout=_LAST_WORDS_S)

    def ended(self) -> str:
        """That the server has ended, with its last words."""
        return f"MCP server {self._name!r} has ended{self._reason()}"

    def _reason(self) -> str:
        why = f": {self._why}" if self._why else ""
        return why + self._said()

    def _said(self) -> str:
        tail = self._stderr.tail()
        return f"\nIts stderr ends:\n{tail}" if tail else ""

    async def _give_up(self) -> None:
        with contextlib.suppress(Exception):
            await self.close()

    async def close(self) -> None:
        """Let go of the connection; waits until the transport has closed."""
        self._stop.set()
        task = self._task
        if task is not None and not task.done():
            if self._client is None:  # still connecting: there is nobody to hear the event
                task.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await asyncio.wait_for(asyncio.shield(asyncio.wrap_future(task)), _CLOSE_TIMEOUT_S)


class _Watched:
    """A transport that tells when the other end has closed the stream we read from."""

    def __init__(self, transport: Any, ended: Callable[[], None]) -> None:
        self._transport = transport
        self._ended = ended

    async def __aenter__(self) -> Any:
        read, write = await self._transport.__aenter__()
        return _WatchedStream(read, self._ended), write

    async def __aexit__(self, *error: object) -> Any:
        return await self._transport.__aexit__(*error)


class _WatchedStream:
    """A read stream; what it does not do itself is the inner one's."""

    def __init__(self, inner: Any, ended: Callable[[], None]) -> None:
        self._inner = inner
        self._told = ended

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        try:
            return await self._inner.__anext__()
        except StopAsyncIteration:
            self._told()
            raise

    async def receive(self) -> Any:
        import anyio

        try:
            return await self._inner.receive()
        except (anyio.EndOfStream, anyio.ClosedResourceError):
            self._told()
            raise

    async def __aenter__(self) -> Self:
        await self._inner.__aenter__()
        return self

    async def __aexit__(self, *error: object) -> Any:
        return await self._inner.__aexit__(*error)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class _Stderr:
    """The last of what a server writes to its stderr, read by a thread so that its pipe never fills."""

    def __init__(self) -> None:
        self._chunks: deque[bytes] = deque()
        self._size = 0
        self._lock = threading.Lock()
        self._write_end: Any = None
        self._reader: threading.Thread | None = None

    def file(self) -> Any:
        """The end a child process writes to."""
        read_fd, write_fd = os.pipe()
        self._write_end = os.fdopen(write_fd, "w")
        self._reader = threading.Thread(
            target=self._read, args=(read_fd,), name="agentkit-mcp-stderr", daemon=True
        )
        self._reader.start()
        return self._write_end

    def _read(self, fd: int) -> None:
        with os.fdopen(fd, "rb", buffering=0) as pipe:
            while chunk := pipe.read(8192):
                with self._lock:
                    self._chunks.append(chunk)
                    self._size += len(chunk)
                    while self._size - len(self._chunks[0]) > _STDERR_KEPT:
                        self._size -= len(self._chunks.popleft())

    def close(self) -> None:
        """Close our end; the thread ends with the server's."""
        if self._write_end is not None:
            with contextlib.suppress(OSError):
                self._write_end.close()
            self._write_end = None
            if self._reader is not None:
                self._reader.join(0.5)  # its last words are in the pipe at most that long

    def tail(self) -> str:
        with self._lock:
            text = b"".join(self._chunks).decode("utf-8", "replace").strip()
        return text if len(text) <= _STDERR_SHOWN else "…" + text[-_STDERR_SHOWN:]


def _package() -> None:
    try:
        import mcp  # noqa: F401
    except ImportError as error:
        raise ImportError("MCP servers need the package mcp: pip install 'agentkit-fast[mcp]'") from error


def _first_words(error: BaseException) -> str:
    """The innermost cause of an exception group, in words."""
    while isinstance(error, BaseExceptionGroup) and error.exceptions:
        error = error.exceptions[0]
    return str(error) or type(error).__name__


def _text(result: Any) -> str:
    """A tool's result as text: its text blocks, what else there is named, else its structured content."""
    parts = [_block(block) for block in result.content]
    if not parts and result.structured_content is not None:
        parts = [msgspec.json.encode(result.structured_content).decode()]
    return repair_text("\n".join(parts))


def _block(block: Any) -> str:
    kind = getattr(block, "type", "")
    if kind == "text":
        return str(block.text)
    if kind == "resource":
        inner = block.resource
        text = getattr(inner, "text", None)
        return str(text) if text is not None else f"[{inner.uri}: {_size(inner.blob)} bytes, not text]"
    if kind == "resource_link":
        return f"[{block.name}: {block.uri}]"
    data = getattr(block, "data", "")
    return f"[{kind or 'content'} {getattr(block, 'mime_type', '')}: {_size(data)} bytes, not shown]"


def _size(data: str) -> int:
    try:
        return len(base64.b64decode(data))
    except ValueError:
        return len(data)


def normalize_schema(schema: Any) -> dict[str, Any]:
    """A tool's schema as models and grammars take it, else unchanged.

    `required: null` becomes `[]`, as does what is no list; `properties: null` `{}`; an absent, null or empty `type`
    at the top `"object"`; inside, a null or empty `type` is left out, as is `null` in place of a schema.
    """
    fixed = _fixed(schema) if isinstance(schema, dict) else {}
    if fixed.get("type") in (None, "", []):
        fixed = {"type": "object", **{key: value for key, value in fixed.items() if key != "type"}}
    if fixed["type"] == "object" and not isinstance(fixed.get("properties"), dict):
        fixed["properties"] = {}
    return fixed


_MAPS = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})
_SCHEMAS = frozenset(
    {
        "items",
        "additionalProperties",
        "not",
        "if",
        "then",
        "else",
        "contains",
        "propertyNames",
        "unevaluatedProperties",
    }
)
_LISTS = frozenset({"anyOf", "oneOf", "allOf", "prefixItems"})
_MAX_DEPTH = 100


def _fixed(schema: dict[str, Any], depth: int = 0) -> dict[str, Any]:
    if depth > _MAX_DEPTH:
        return {}
    found: dict[str, Any] = {}
    for key, value in schema.items():
        if key == "required":
            found[key] = (
                [name for name in value if isinstance(name, str)] if isinstance(value, list) else []
            )
        elif key == "type" and value in (None, "", []):
            continue
        elif key in _MAPS:
            members = value if isinstance(value, dict) else {}
            found[key] = {name: _inner(item, depth) for name, item in members.items()}
        elif key in _SCHEMAS:
            if value is not None:
                found[key] = (
                    [_inner(item, depth) for item in value]
                    if isinstance(value, list)
                    else _inner(value, depth)
                )
        elif key in _LISTS:
            if isinstance(value, list) and value:
                found[key] = [_inner(item, depth) for item in value]
        else:
            found[key] = value
    return found


def _inner(value: Any, depth: int) -> Any:
    if isinstance(value, dict):
        return _fixed(value, depth + 1)
    return value if isinstance(value, bool) else {}
