"""HttpRunner against a real llama.cpp server."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from agentkit_fast import ChatOptions, InputTooLarge, Message, ToolDef
from agentkit_fast.runners.http import HttpRunner

pytestmark = pytest.mark.model


def user(text: str) -> list[Message]:
    return [Message(role="user", content=text)]


def test_a_streamed_reply_and_its_usage(llama_url: str) -> None:
    with HttpRunner(llama_url, "smollm2", repetition=False) as runner:
        chunks = list(
            runner.chat_stream(user("Say hello."), options=ChatOptions(max_tokens=8, temperature=0.0))
        )
    assert "".join(chunk.content for chunk in chunks)
    last = chunks[-1]
    assert last.done
    assert last.finish_reason in ("length", "stop")
    assert last.usage is not None
    assert last.usage.prompt_tokens > 10
    assert 1 <= last.usage.completion_tokens <= 8
    assert [chunk.done for chunk in chunks[:-1]] == [False] * (len(chunks) - 1)


def test_async_gives_the_same_as_sync(llama_url: str) -> None:
    options = ChatOptions(max_tokens=12, temperature=0.0, seed=1)

    async def run() -> str:
        async with HttpRunner(f"{llama_url}/v1/", "smollm2", repetition=False) as runner:
            return "".join([c.content async for c in runner.achat_stream(user("Count."), options=options)])

    with HttpRunner(llama_url, "smollm2", repetition=False) as runner:
        sync = "".join(c.content for c in runner.chat_stream(user("Count."), options=options))
    assert asyncio.run(run()) == sync != ""


def test_a_prompt_that_does_not_fit(llama_url: str) -> None:
    with (
        HttpRunner(llama_url, "smollm2", repetition=False) as runner,
        pytest.raises(InputTooLarge) as caught,
    ):
        list(runner.chat_stream(user("word " * 5000)))
    assert caught.value.context_tokens == 2048
    assert caught.value.prompt_tokens > 5000
    assert "exceeds" in caught.value.body


def test_a_grammar_is_obeyed(llama_url: str) -> None:
    options = ChatOptions(grammar='root ::= "yes" | "no"', max_tokens=5)
    with HttpRunner(llama_url, "smollm2", repetition=False) as runner:
        text = "".join(c.content for c in runner.chat_stream(user("Is water wet?"), options=options))
    assert text in ("yes", "no")


def test_a_forced_tool_call(llama_url: str) -> None:
    tool = ToolDef(
        name="add",
        description="Add two numbers.",
        parameters={
            "type": "object",
            "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
            "required": ["a", "b"],
        },
    )
    options = ChatOptions(tool_choice="add", max_tokens=120, temperature=0.0)
    with HttpRunner(llama_url, "smollm2", repetition=False, provider="llama.cpp") as runner:
        chunks = list(runner.chat_stream(user("Add 2 and 3."), [tool], options))
    calls = [chunk.tool_call for chunk in chunks if chunk.tool_call is not None]
    assert [call.name for call in calls] == ["add"]


def test_closing_from_another_thread_ends_a_wait_for_the_prompt(llama_url: str) -> None:
    with HttpRunner(llama_url, "smollm2", repetition=False) as runner:
        reply = runner.chat_stream(user("word " * 1900), options=ChatOptions(max_tokens=1))
        timer = threading.Timer(0.3, reply.close)
        timer.start()
        began = time.monotonic()
        assert list(reply) == []
        assert time.monotonic() - began < 3  # reading that prompt takes longer on one thread
        timer.join()
