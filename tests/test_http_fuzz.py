"""Hostile streams: whatever a server sends, there are chunks or one of our errors, in linear time."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentkit_fast import AgentkitError, RunnerError
from agentkit_fast.runners._http.assembly import CallAssembler
from agentkit_fast.runners._http.errors import classify, loads, read_refusal, retry_after_of
from agentkit_fast.runners._http.reply import ErrorInStream, ReplyReader
from agentkit_fast.runners._http.sse import SseDecoder

ATOMS: list[Any] = [None, True, 0, -1, 1e308, 10**30, "", "a", "\ud800", [], {}, "{", '{"a":1}', "stop"]
KEYS = [
    "choices",
    "delta",
    "content",
    "tool_calls",
    "function",
    "name",
    "arguments",
    "index",
    "id",
    "error",
    "message",
    "code",
    "usage",
    "prompt_tokens",
    "prompt_tokens_details",
    "cached_tokens",
    "finish_reason",
    "timings",
    "cache_n",
    "reasoning",
    "stop",
    "detail",
    "type",
    "object",
    "retry_after",
    "function_call",
    "text",
]


def value(rng: random.Random, depth: int = 0) -> Any:
    """Something of the right words in the wrong places."""
    roll = rng.random()
    if depth > 4 or roll < 0.5:
        return rng.choice(ATOMS)
    if roll < 0.7:
        return [value(rng, depth + 1) for _ in range(rng.randrange(3))]
    return {rng.choice(KEYS): value(rng, depth + 1) for _ in range(rng.randrange(6))}


def events(rng: random.Random) -> bytes:
    data = b""
    for _ in range(rng.randrange(6)):
        thing = value(rng)
        if rng.random() < 0.6:
            finish = rng.choice([None, "stop", 3])
            thing = {"choices": [{"delta": thing, "finish_reason": finish}], "usage": value(rng)}
        event = b"data: " + json.dumps(thing).encode() + b"\n\n"
        data += event[: rng.randrange(len(event))] if rng.random() < 0.1 else event
    return data


def outcome(pieces: list[bytes], *, whole: bool) -> Any:
    reader = ReplyReader("x", max_tokens=1)
    if whole:
        reader.expect_json()
    shown = []
    try:
        for piece in pieces:
            shown += reader.feed(piece)
        shown += reader.end()
        shown += reader.close(1)
    except ErrorInStream as found:
        return "error", str(found.error)
    except AgentkitError as error:
        return "error", str(error)
    text = "".join(chunk.content + chunk.reasoning for chunk in shown)
    text.encode()
    return (
        text,
        [(c.tool_call.name, c.tool_call.arguments) for c in shown if c.tool_call],
        shown[-1].finish_reason,
    )


@pytest.mark.parametrize("seed", range(10))
def test_any_stream(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(300):
        data = events(rng)
        whole = rng.random() < 0.2
        at_once = outcome([data], whole=whole)
        cuts = sorted(rng.randrange(len(data) + 1) for _ in range(5))
        pieces = [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True)]
        assert outcome(pieces, whole=whole) == at_once


@given(st.binary(max_size=300), st.integers(100, 599))
@settings(max_examples=200)
def test_any_refusal(body: bytes, status: int) -> None:
    str(classify(status, body, "x")).encode()
    given_back = loads(body)
    read_refusal(given_back)
    retry_after_of(given_back)


@pytest.mark.parametrize("seed", range(3))
def test_any_error_object(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(500):
        body = json.dumps(
            {"error": value(rng), **({"retry_after": value(rng)} if rng.random() < 0.5 else {})}
        ).encode()
        str(classify(400, body, "x")).encode()
        wait = retry_after_of(loads(body))
        assert wait is None or wait >= 0


@given(st.lists(st.binary(max_size=20), max_size=20))
def test_framing_does_not_depend_on_the_cuts(pieces: list[bytes]) -> None:
    def read(parts: list[bytes]) -> list[bytes]:
        decoder = SseDecoder()
        return [event for part in parts for event in decoder.feed(part)] + decoder.finish()

    whole = b"".join(pieces)
    assert read(pieces) == read([whole]) == read([whole[n : n + 1] for n in range(len(whole))])


def test_deep_nesting_and_long_rows_of_fragments() -> None:
    for body in (b"[" * 100_000, b'{"error":' * 50_000, b'{"choices":[' * 50_000):
        assert outcome([b"data: " + body + b"\n\n"], whole=False)[0] == "error"
        classify(500, body, "x")
    assembler = CallAssembler()
    for number in range(50_000):
        assembler.push([{"index": number, "id": "k", "function": {"name": "f", "arguments": "{}"}}])
    calls = assembler.finish()
    assert len({call.id for call in calls}) == 50_000


@pytest.mark.parametrize(
    "piece", [b"x" * 1000, b"data: xxxxxxxxx\n" * 60], ids=["one-line", "many-data-lines"]
)
def test_an_event_without_end_is_bounded(piece: bytes) -> None:
    decoder = SseDecoder(max_event_bytes=100_000)

    def feed() -> None:
        for _ in range(1000):
            decoder.feed(piece)

    with pytest.raises(RunnerError, match="100,000 bytes"):
        feed()
