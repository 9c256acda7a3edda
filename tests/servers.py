"""Real servers for tests: llama.cpp's own, started in a process of its own, and one that says what it is told.

with llama_server(model) as url: ...
with WireServer(reply, reply, ...) as wire: ... wire.url, wire.requests
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self


@contextlib.contextmanager
def llama_server(
    model: Path, *, n_ctx: int = 4096, slots: int = 2, wait_s: float = 90.0, embedding: bool = False
) -> Iterator[str]:
    """The root URL of a llama.cpp server on loopback with `slots` windows of `n_ctx / slots` tokens."""
    with _started(
        "llama.cpp", str(model), str(n_ctx), str(slots), "1" if embedding else "", wait_s=wait_s
    ) as url:
        yield url


@contextlib.contextmanager
def llama_cpp_python_server(model: Path, *, n_ctx: int = 1024) -> Iterator[str]:
    """The root URL of llama-cpp-python's own server, on loopback."""
    with _started("llama-cpp-python", str(model), str(n_ctx), wait_s=90.0) as url:
        yield url


@contextlib.contextmanager
def _started(*arguments: str, wait_s: float) -> Iterator[str]:
    command = [sys.executable, __file__, *arguments]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    watchdog = threading.Timer(wait_s, process.kill)
    watchdog.start()
    try:
        assert process.stdout is not None
        line = process.stdout.readline().strip()
        watchdog.cancel()
        if not line.startswith("http"):
            raise RuntimeError(f"the server did not start: {line!r}, exit {process.poll()}")
        yield line
    finally:
        watchdog.cancel()
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()


def _serve_llama(model: str, n_ctx: str, slots: str, embedding: str) -> None:
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = model
    params.n_ctx = int(n_ctx)
    params.n_parallel = int(slots)
    params.port = 0
    params.warmup = False
    # A client that hangs up is noticed between two batches, so they are kept short.
    params.n_batch = 256
    params.n_ubatch = 128
    params.cpuparams.n_threads = 1
    params.cpuparams_batch.n_threads = 1
    if embedding:
        params.embedding = True
        params.pooling_type = xllamacpp.llama_pooling_type.LLAMA_POOLING_TYPE_MEAN
    server = xllamacpp.Server(params)
    print(server.listening_address, flush=True)
    sys.stdin.read()  # until the test process is gone


def _serve_llama_cpp_python(model: str, n_ctx: str) -> None:
    import llama_cpp.llama_cpp as binding
    import uvicorn

    defaults = binding.llama_model_default_params

    def without_extra_buffers() -> Any:
        # Virtual machines that announce AMX but do not keep its registers end the process at the first batch.
        params = defaults()
        params.use_extra_bufts = False
        return params

    binding.llama_model_default_params = without_extra_buffers
    from llama_cpp.server.app import create_app
    from llama_cpp.server.settings import ModelSettings, ServerSettings

    settings = ModelSettings(model=model, n_ctx=int(n_ctx), n_threads=1, n_threads_batch=1, verbose=False)
    app = create_app(server_settings=ServerSettings(), model_settings=[settings])
    listener = socket.create_server(("127.0.0.1", 0))
    print(f"http://127.0.0.1:{listener.getsockname()[1]}", flush=True)
    threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()
    uvicorn.Server(uvicorn.Config(app, log_level="critical")).run(sockets=[listener])


@dataclass
class Request:
    """What a client sent."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    connection: int
    at: float = field(default_factory=time.monotonic)

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Wire:
    """The server's side of one request: say bytes, wait, hang up."""

    def __init__(self, sock: socket.socket, server: WireServer, request: Request) -> None:
        self._sock = sock
        self._server = server
        self.request = request
        self.open = True

    def send(self, data: bytes) -> None:
        self._sock.sendall(data)

    def head(self, status: int = 200, kind: str = "text/event-stream", **headers: str) -> None:
        """Headers of a body in chunked encoding."""
        lines = [f"HTTP/1.1 {status} X", f"content-type: {kind}", "transfer-encoding: chunked"]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        self.send(("\r\n".join(lines) + "\r\n\r\n").encode())

    def chunk(self, data: bytes) -> None:
        if data:
            self.send(f"{len(data):x}\r\n".encode() + data + b"\r\n")

    def end(self) -> None:
        self.send(b"0\r\n\r\n")

    def whole(self, body: Any, status: int = 200, **headers: str) -> None:
        """A complete answer of known length."""
        if not isinstance(body, bytes):
            body = json.dumps(body).encode()
        lines = [f"HTTP/1.1 {status} X", f"content-length: {len(body)}"]
        headers.setdefault("content_type", "application/json")
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        self.send(("\r\n".join(lines) + "\r\n\r\n").encode() + body)

    def sse(self, body: bytes, *, cuts: Sequence[int] = ()) -> None:
        """A whole event stream, cut at the given offsets into pieces sent one by one."""
        self.head()
        edges = [0, *sorted(cuts), len(body)]
        for start, stop in itertools.pairwise(edges):
            self.chunk(body[start:stop])
        self.end()

    def hang_up(self, *, reset: bool = False) -> None:
        """Close the connection where it is; with `reset`, by RST."""
        if reset:
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")
        self.open = False

    def client_gone(self, within_s: float) -> bool:
        """Whether the client closes the connection in that time."""
        self._sock.settimeout(within_s)
        try:
            return self._sock.recv(1) == b""
        except TimeoutError:
            return False
        except OSError:
            return True


Reply = Callable[[Wire], None]


class WireServer:
    """Answers each POST with the next of `replies` (the last one again and again), each GET with 404.

    `routes` answer paths of their own, whatever the method.
    """

    def __init__(self, *replies: Reply, routes: dict[str, Reply] | None = None) -> None:
        self._replies = list(replies)
        self._routes = routes or {}
        self.requests: list[Request] = []
        self.errors: list[BaseException] = []
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._threads: list[threading.Thread] = []
        self._sockets: set[socket.socket] = set()
        self.connections = 0

    def __enter__(self) -> Self:
        self._accepter = threading.Thread(target=self._accept, daemon=True)
        self._accepter.start()
        return self

    def __exit__(self, *_: object) -> None:
        # A plain close does not wake a thread that waits in accept.
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._accepter.join(5)
        with self._lock:
            sockets = list(self._sockets)
        for sock in sockets:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(5)

    @property
    def posts(self) -> list[Request]:
        return [request for request in self.requests if request.method == "POST"]

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            with self._lock:
                self._sockets.add(sock)
            thread = threading.Thread(target=self._serve, args=(sock, self.connections), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _serve(self, sock: socket.socket, number: int) -> None:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            with sock, sock.makefile("rb") as reader:
                while (request := _read_request(reader, number)) is not None:
                    wire = Wire(sock, self, request)
                    self._reply_to(request)(wire)
                    if not wire.open:
                        return
        except OSError:
            return  # the client went away
        except BaseException as error:  # noqa: BLE001 -- shown by the test that reads `errors`
            self.errors.append(error)
        finally:
            with self._lock:
                self._sockets.discard(sock)

    def _reply_to(self, request: Request) -> Reply:
        with self._lock:
            self.requests.append(request)
            route = self._routes.get(request.path)
            if route is not None:
                return route
            if request.method != "POST" or not self._replies:
                return lambda wire: wire.whole({"error": {"message": "not found"}}, 404)
            return self._replies.pop(0) if len(self._replies) > 1 else self._replies[0]


def _read_request(reader: Any, number: int) -> Request | None:
    line = reader.readline()
    if not line.strip():
        return None
    method, path, _ = line.decode().split(" ", 2)
    headers = {}
    while (line := reader.readline().strip()) != b"":
        name, _, value = line.decode("latin-1").partition(":")
        headers[name.lower()] = value.strip()
    body = reader.read(int(headers.get("content-length", 0)))
    return Request(method, path, headers, body, number)


def event(value: Any) -> bytes:
    """One SSE event."""
    return b"data: " + json.dumps(value, ensure_ascii=False).encode() + b"\n\n"


def delta(finish: str | None = None, **fields: Any) -> dict[str, Any]:
    """One streamed chunk in OpenAI's shape."""
    return {"choices": [{"index": 0, "delta": fields, "finish_reason": finish}]}


def stream(
    *deltas: dict[str, Any], finish: str | None = "stop", usage: Any = None, done: bool = True
) -> bytes:
    """A whole reply's event stream."""
    body = b"".join(event(delta(**fields)) for fields in deltas)
    if finish is not None:
        body += event(delta(finish))
    if usage is not None:
        body += event({"choices": [], "usage": usage})
    return body + (b"data: [DONE]\n\n" if done else b"")


def calls(name: str, arguments: dict[str, Any]) -> Reply:
    """A reply that is one tool call."""
    call = {
        "index": 0,
        "id": f"call-{name}",
        "type": "function",
        "function": {"name": name, "arguments": json.dumps(arguments)},
    }
    return lambda wire: wire.sse(stream({"tool_calls": [call]}, finish="tool_calls"))


def says(text: str, **fields: Any) -> Reply:
    """A reply that is this text."""
    return lambda wire: wire.sse(stream({"content": text}, **fields))


if __name__ == "__main__":
    {"llama.cpp": _serve_llama, "llama-cpp-python": _serve_llama_cpp_python}[sys.argv[1]](*sys.argv[2:])
