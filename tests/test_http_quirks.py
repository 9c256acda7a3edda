"""Every quirk of `http_quirks.py`: over a real socket, and cut at every byte."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from agentkit_fast import errors
from agentkit_fast.messages import ChatOptions, Message, StreamChunk
from agentkit_fast.runners._http.reply import ErrorInStream, ReplyReader
from agentkit_fast.runners.http import HttpRunner
from http_quirks import ROWS, Quirk
from servers import Wire, WireServer

BY_ID = [pytest.param(row, id=row.id) for row in ROWS]


def answer(row: Quirk) -> Any:
    def reply(wire: Wire) -> None:
        if row.status != 200 or row.headers:
            wire.whole(row.body, row.status, **{k.replace("-", "_"): v for k, v in row.headers.items()})
        else:
            wire.sse(row.body)

    return reply


def check(row: Quirk, chunks: list[StreamChunk], error: BaseException | None) -> None:
    if row.error:
        assert error is not None, chunks
        assert type(error).__name__ == row.error, error
        assert isinstance(error, errors.RunnerError)
        for name, want in row.attributes.items():
            if name == "calls":
                assert isinstance(error, errors.StreamInterrupted)
                assert [(call.name, call.arguments) for call in error.partial_tool_calls] == want
            elif name == "body":
                assert want in error.body
            else:
                assert getattr(error, name) == want, name
        assert not any(chunk.tool_call for chunk in chunks)
        return
    assert error is None
    assert "".join(chunk.content for chunk in chunks) == row.content
    assert "".join(chunk.reasoning for chunk in chunks) == row.reasoning
    got = [chunk.tool_call for chunk in chunks if chunk.tool_call is not None]
    want = [
        (name, arguments if isinstance(arguments, str) else json.loads(json.dumps(arguments)))
        for name, arguments in row.calls
    ]
    assert [
        (call.name, call.arguments if isinstance(arguments, str) else json.loads(call.arguments))
        for call, (_, arguments) in zip(got, want, strict=True)
    ] == want
    ids = [call.id for call in got]
    assert len(set(ids)) == len(ids)
    assert all(ids)
    if row.ids is not None:
        assert tuple(ids) == row.ids
    assert [chunk.done for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
    last = chunks[-1]
    assert last.finish_reason == row.finish
    if row.usage is None:
        assert last.usage is None
    else:
        assert last.usage is not None
        figures = ("prompt_tokens", "completion_tokens", "total_tokens", "cached_tokens")
        assert [getattr(last.usage, f) for f in figures] == [getattr(row.usage, f) for f in figures]


def options_of(row: Quirk) -> ChatOptions:
    return ChatOptions(max_tokens=row.max_tokens)


@pytest.mark.parametrize("row", BY_ID)
def test_over_a_socket(row: Quirk) -> None:
    chunks: list[StreamChunk] = []
    error = None
    with (
        WireServer(answer(row)) as wire,
        HttpRunner(wire.url, "m", retry_5xx_attempts=1) as runner,
    ):
        try:
            chunks.extend(
                runner.chat_stream([Message(role="user", content=row.sent)], options=options_of(row))
            )
        except errors.AgentkitError as caught:
            error = caught
        if not (row.error == "RunnerError" and row.status >= 500):
            assert len(wire.posts) == 1
    if isinstance(error, errors.RetryBudgetExhausted) and row.error == "RunnerError":
        error = error.__cause__
    check(row, chunks, error)


@pytest.mark.parametrize("row", BY_ID)
def test_async_over_a_socket(row: Quirk) -> None:
    async def run(url: str) -> tuple[list[StreamChunk], BaseException | None]:
        chunks = []
        async with HttpRunner(url, "m", retry_5xx_attempts=1) as runner:
            try:
                async for chunk in runner.achat_stream(
                    [Message(role="user", content=row.sent)], options=options_of(row)
                ):
                    chunks.append(chunk)  # noqa: PERF401 -- what came before an error is kept
            except errors.AgentkitError as caught:
                return chunks, caught
        return chunks, None

    with WireServer(answer(row)) as wire:
        chunks, error = asyncio.run(run(wire.url))
    if isinstance(error, errors.RetryBudgetExhausted) and row.error == "RunnerError":
        error = error.__cause__
    check(row, chunks, error)


def read(row: Quirk, pieces: list[bytes]) -> tuple[list[StreamChunk], BaseException | None]:
    reader = ReplyReader("here", max_tokens=row.max_tokens)
    if row.headers:
        reader.expect_json()
    chunks: list[StreamChunk] = []
    try:
        for piece in pieces:
            chunks += reader.feed(piece)
            if reader.done:
                break
        else:
            chunks += reader.end()
        chunks += reader.close(0)
    except ErrorInStream as found:
        return chunks, found.error
    except errors.StreamInterrupted as caught:
        return chunks, caught
    return chunks, None


STREAMS = [
    pytest.param(row, id=row.id) for row in ROWS if row.status == 200 and row.error != "ContextTruncated"
]


@pytest.mark.parametrize("row", STREAMS)
def test_cut_at_every_byte(row: Quirk) -> None:
    body = row.body
    cuts = [[body[:at], body[at:]] for at in range(len(body) + 1)]
    for pieces in [*cuts, [body[at : at + 1] for at in range(len(body))]]:
        check(row, *read(row, pieces))
