"""A model that repeats itself is cut at the source, wherever it does so."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from agentkit_fast import Message, StreamChunk
from agentkit_fast.runners.http import HttpRunner
from servers import Wire, WireServer, delta, event, says

HELLO = [Message(role="user", content="hello")]
CYCLE = "The same sentence again and again, for ever. "
PIECES = {
    "content": lambda text: {"content": text},
    "reasoning": lambda text: {"reasoning_content": text},
    "arguments": lambda text: {"tool_calls": [{"index": 0, "function": {"arguments": text}}]},
}


@pytest.mark.parametrize("where", list(PIECES))
@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_loop_closes_the_connection(where: str, mode: str) -> None:
    sent: list[int] = []

    def loops(wire: Wire) -> None:
        wire.head()
        if where == "arguments":
            start = {"index": 0, "id": "k", "function": {"name": "save", "arguments": '{"body":"'}}
            wire.chunk(event(delta(tool_calls=[start])))
        try:
            for number in range(200_000):
                wire.chunk(event(delta(**PIECES[where](CYCLE))))
                sent.append(number)
        finally:
            wire.hang_up()

    async def run(runner: HttpRunner) -> list[StreamChunk]:
        chunks = [chunk async for chunk in runner.achat_stream(HELLO)]
        await runner.aclose()
        return chunks

    with WireServer(loops) as wire, HttpRunner(wire.url, "m") as runner:
        chunks = asyncio.run(run(runner)) if mode == "async" else list(runner.chat_stream(HELLO))
    last = chunks[-1]
    assert last.done
    assert last.stop_reason == "repetition"
    assert last.repetition.where == where
    assert last.repetition.period == len(CYCLE)
    assert not any(chunk.tool_call for chunk in chunks)
    if where == "arguments":
        (call,) = last.partial_tool_calls
        assert call.name == "save"
        assert call.arguments.startswith('{"body":"The same')
    # What the server could send on is what fits the sockets' buffers, not 9 MB.
    assert len(sent) < 100_000


def test_the_guard_takes_its_options_and_can_be_off() -> None:
    text = CYCLE * 40
    with WireServer(says(text)) as wire:
        with HttpRunner(wire.url, "m", repetition=False) as runner:
            assert "".join(chunk.content for chunk in runner.chat_stream(HELLO)) == text
        with HttpRunner(wire.url, "m", repetition={"min_reps": 1000}) as runner:
            assert "".join(chunk.content for chunk in runner.chat_stream(HELLO)) == text
        with HttpRunner(wire.url, "m") as runner:
            assert list(runner.chat_stream(HELLO))[-1].stop_reason == "repetition"
        with pytest.raises((TypeError, ValueError)):
            HttpRunner(wire.url, "m", repetition={"min_repz": 3})


def test_each_call_has_a_guard_of_its_own() -> None:
    """Ten calls with the same arguments are no loop of one call's text."""
    arguments = '{"path":"' + "a" * 400 + '.txt"}'
    calls: list[Any] = [
        {"index": n, "id": f"k{n}", "function": {"name": "read", "arguments": arguments}} for n in range(10)
    ]
    body = event(delta(tool_calls=calls)) + event(delta("tool_calls")) + b"data: [DONE]\n\n"
    with WireServer(lambda wire: wire.sse(body)) as wire, HttpRunner(wire.url, "m") as runner:
        chunks = list(runner.chat_stream(HELLO))
    assert sum(chunk.tool_call is not None for chunk in chunks) == 10
