"""Decoding a reply's stream: ours beside the `openai` package, in one run and over the same bytes.

Both clients get the bytes from a transport in memory, so that what is measured is the client: HTTP layer (httpx2 for
both), SSE, JSON, and the objects the caller sees. Ours also runs the repetition guard and joins tool calls;
`openai` leaves both to its caller. The ratio is in `extra_info`.

    make bench  (or: python -m pytest benches/test_http.py --benchmark-only -q)
"""

from __future__ import annotations

import http.client
import json
import random
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx2
import pytest

from agentkit_fast.messages import Message
from agentkit_fast.runners._http.reply import ReplyReader
from agentkit_fast.runners.http import HttpRunner

EVENTS = 4000
ROUNDS = 5
WORDS = [
    "the ",
    "sea ",
    "wind ",
    "ship ",
    "harbour ",
    "people ",
    "live ",
    "there ",
    "and ",
    "sail ",
    "home ",
]


def chunk(delta: dict[str, Any], finish: str | None = None) -> bytes:
    """One event, in the shape and size llama.cpp sends."""
    value = {
        "choices": [{"finish_reason": finish, "index": 0, "delta": delta}],
        "created": 1796115980,
        "id": "chatcmpl-2DShua5hHfCm2Zj7SjmAkEVFR3CeqFSl",
        "model": "SmolLM2-135M-Instruct.Q4_1.gguf",
        "system_fingerprint": "b0-unknown",
        "object": "chat.completion.chunk",
    }
    return b"data: " + json.dumps(value).encode() + b"\n\n"


def text_events() -> list[bytes]:
    rng = random.Random(1)
    return [chunk({"content": rng.choice(WORDS) + str(rng.random())}) for _ in range(EVENTS)]


def call_events() -> list[bytes]:
    rng = random.Random(2)
    first = {
        "index": 0,
        "id": "k",
        "type": "function",
        "function": {"name": "save", "arguments": '{"body":"'},
    }
    pieces = [chunk({"tool_calls": [first]})]
    for _ in range(EVENTS - 2):
        text = rng.choice(WORDS) + str(rng.random())
        pieces.append(chunk({"tool_calls": [{"index": 0, "function": {"arguments": text}}]}))
    pieces.append(chunk({"tool_calls": [{"index": 0, "function": {"arguments": '"}'}}]}))
    return pieces


STREAMS = {"text": text_events, "arguments": call_events}
# A server on this machine sends an event a segment; a cloud's segments hold many.
SEGMENTS = {"an event each": 1, "32 events each": 32}


class Body(httpx2.SyncByteStream):
    def __init__(self, pieces: list[bytes]) -> None:
        self._pieces = pieces

    def __iter__(self) -> Iterator[bytes]:
        yield from self._pieces


def transport(pieces: list[bytes]) -> Any:
    headers = {"content-type": "text/event-stream"}
    return httpx2.MockTransport(lambda request: httpx2.Response(200, headers=headers, stream=Body(pieces)))


def best_of(run: Callable[[], int], rounds: int = ROUNDS) -> float:
    best = float("inf")
    for _ in range(rounds):
        began = time.perf_counter()
        run()
        best = min(best, time.perf_counter() - began)
    return best


@pytest.mark.parametrize("segments", list(SEGMENTS))
@pytest.mark.parametrize("kind", list(STREAMS))
def test_events_per_second(benchmark: Any, kind: str, segments: str) -> None:
    openai = pytest.importorskip("openai")
    events = [*STREAMS[kind](), chunk({}, "stop"), b"data: [DONE]\n\n"]
    size = SEGMENTS[segments]
    pieces = [b"".join(events[at : at + size]) for at in range(0, len(events), size)]
    runner = HttpRunner("http://bench", "m", transport=transport(pieces))
    client = openai.OpenAI(
        base_url="http://bench/v1", api_key="k", http_client=httpx2.Client(transport=transport(pieces))
    )
    message = {"role": "user", "content": "hello"}

    def ours() -> int:
        return sum(len(c.content) for c in runner.chat_stream([Message(role="user", content="hello")]))

    def theirs() -> int:
        size = 0
        for event in client.chat.completions.create(model="m", messages=[message], stream=True):
            size += len(event.choices[0].delta.content or "")
        return size

    assert ours() == theirs()
    peer = best_of(theirs)
    benchmark.pedantic(ours, rounds=ROUNDS, warmup_rounds=1)
    mine = benchmark.stats.stats.min
    benchmark.extra_info.update(
        events_per_s=round(len(events) / mine),
        openai_events_per_s=round(len(events) / peer),
        ratio_to_openai=round(peer / mine, 1),
    )
    print(
        f"\n{kind}, {segments}: {len(events) / mine:,.0f} events/s, "
        f"openai {len(events) / peer:,.0f}: {peer / mine:.1f} x"
    )


@pytest.mark.parametrize("cut", [1448, 65536])
def test_one_line_of_20_megabytes(benchmark: Any, cut: int) -> None:
    """A file in one argument, as a server sends it that does not stream calls; read in segments."""
    body = json.dumps({"body": "0123456789abcdef" * (20 * 1024 * 64)})
    call = {"index": 0, "id": "k", "function": {"name": "save", "arguments": body}}
    data = chunk({"tool_calls": [call]}) + chunk({}, "tool_calls") + b"data: [DONE]\n\n"
    pieces = [data[at : at + cut] for at in range(0, len(data), cut)]

    def read() -> int:
        reader = ReplyReader("here")
        for piece in pieces:
            reader.feed(piece)
        (first, _) = reader.close(0)
        assert first.tool_call is not None
        return len(first.tool_call.arguments)

    assert benchmark.pedantic(read, rounds=3, warmup_rounds=1) == len(body)
    benchmark.extra_info["mb_per_s"] = round(len(data) / 1e6 / benchmark.stats.stats.min)
    print(f"\n20 MB in segments of {cut}: {len(data) / 1e6 / benchmark.stats.stats.min:,.0f} MB/s")


def one_reply(listener: socket.socket, reply: bytes) -> None:
    """A server that answers each request on each connection with the same bytes at once."""

    def serve(sock: socket.socket) -> None:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with sock:
            seen = b""
            while data := sock.recv(65536):
                seen += data
                head, found, rest = seen.partition(b"\r\n\r\n")
                if not found:
                    continue
                length = next(
                    (
                        int(line.split(b":")[1])
                        for line in head.lower().split(b"\r\n")
                        if line.startswith(b"content-length")
                    ),
                    0,
                )
                if len(rest) >= length:
                    seen = b""
                    sock.sendall(reply)

    while True:
        try:
            sock, _ = listener.accept()
        except OSError:
            return
        threading.Thread(target=serve, args=(sock,), daemon=True).start()


@pytest.mark.parametrize("who", ["ours", "openai", "http.client"])
def test_time_to_the_first_token(benchmark: Any, who: str) -> None:
    """From the call to the first text over loopback, the server answering at once, on a kept connection.

    `http.client` reads the first line and decodes nothing: the floor for a blocking client in Python.
    """
    body = chunk({"content": "a"}) + chunk({}, "stop") + b"data: [DONE]\n\n"
    head = f"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: {len(body)}\r\n\r\n"
    listener = socket.create_server(("127.0.0.1", 0))
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    threading.Thread(target=one_reply, args=(listener, head.encode() + body), daemon=True).start()
    message = {"role": "user", "content": "hello"}
    request = json.dumps({"model": "m", "messages": [message], "stream": True})
    runner = HttpRunner(url, "m")
    plain = http.client.HTTPConnection("127.0.0.1", listener.getsockname()[1])

    def ours() -> float:
        began = time.perf_counter()
        reply = runner.chat_stream([message])
        assert next(reply).content == "a"
        first = time.perf_counter() - began
        for _ in reply:
            pass
        return first

    def floor() -> float:
        began = time.perf_counter()
        plain.request("POST", "/v1/chat/completions", request, {"content-type": "application/json"})
        answer = plain.getresponse()
        assert answer.readline().startswith(b"data: ")
        first = time.perf_counter() - began
        answer.read()
        return first

    def theirs() -> float:
        began = time.perf_counter()
        reply = client.chat.completions.create(model="m", messages=[message], stream=True)
        for event in reply:
            if event.choices[0].delta.content:
                first = time.perf_counter() - began
        return first

    run = {"ours": ours, "http.client": floor, "openai": theirs}[who]
    if who == "openai":
        openai = pytest.importorskip("openai")
        client = openai.OpenAI(base_url=f"{url}/v1", api_key="k")
    firsts: list[float] = []
    run()
    benchmark.pedantic(lambda: firsts.append(run()), rounds=200, warmup_rounds=20)
    firsts.sort()
    benchmark.extra_info["first_token_ms_median"] = round(firsts[len(firsts) // 2] * 1000, 3)
    print(f"\nfirst token, {who}: median {firsts[len(firsts) // 2] * 1000:.3f} ms")
    runner.close()
    plain.close()
    if who == "openai":
        client.close()
    listener.close()
