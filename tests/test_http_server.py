"""HttpRunner against a real llama.cpp server."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from agentkit_fast import ChatOptions, InputTooLarge, Message
from agentkit_fast.runners.http import HttpRunner

pytestmark = pytest.mark.model


def user(text: str) -> list[Message]:
    return [Message(role="user", content=text)]


def test_a_streamed_reply_and_its_usage(llama_url: str) -> None:
    with HttpRunner(llama_url, "smollm2") as runner:
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
        async with HttpRunner(f"{llama_url}/v1/", "smollm2") as runner:
            return "".join([c.content async for c in runner.achat_stream(user("Count."), options=options)])

    with HttpRunner(llama_url, "smollm2") as runner:
        sync = "".join(c.content for c in runner.chat_stream(user("Count."), options=options))
    assert asyncio.run(run()) == sync != ""


def test_a_prompt_that_does_not_fit(llama_url: str) -> None:
    with (
        HttpRunner(llama_url, "smollm2") as runner,
        pytest.raises(InputTooLarge) as caught,
    ):
        list(runner.chat_stream(user("word " * 5000)))
    assert caught.value.context_tokens == 2048
    assert caught.value.prompt_tokens > 5000
    assert "exceeds" in caught.value.body


def test_a_grammar_is_obeyed(llama_url: str) -> None:
    options = ChatOptions(grammar='root ::= "yes" | "no"', max_tokens=5)
    with HttpRunner(llama_url, "smollm2") as runner:
        text = "".join(c.content for c in runner.chat_stream(user("Is water wet?"), options=options))
    assert text in ("yes", "no")


def test_closing_from_another_thread_ends_a_wait_for_the_prompt(llama_url: str) -> None:
    with HttpRunner(llama_url, "smollm2") as runner:
        reply = runner.chat_stream(user("word " * 1900), options=ChatOptions(max_tokens=1))
        timer = threading.Timer(0.3, reply.close)
        timer.start()
        began = time.monotonic()
        assert list(reply) == []
        assert time.monotonic() - began < 3  # reading that prompt takes longer on one thread
        timer.join()


def test_what_the_server_says_it_is(llama_url: str) -> None:
    with HttpRunner(llama_url, "smollm2") as runner:
        profile = runner.profile
        assert runner.provider.name == "llama.cpp"
        assert profile.context_tokens == runner.context_window() == runner.discover_context() == 2048
        assert profile.grammar
        assert profile.json_schema
        assert profile.system_role
        assert not profile.alternate
        # This model's template has no place for tools: the server would drop them without a word.
        assert not profile.native_tools
        assert profile.counter.count("hello") == 1

        async def run() -> None:
            async with HttpRunner(llama_url, "smollm2") as other:
                assert (await other.aprofile()).context_tokens == 2048

        asyncio.run(run())


def test_counting(llama_url: str) -> None:
    with HttpRunner(llama_url, "smollm2") as runner:
        assert runner.count_tokens("") == 0
        assert runner.count_tokens("hello world") == 2
        # Text is text: as a control token it would count 1.
        assert runner.count_tokens("<|im_end|>") == 7
        messages = user("Say hello.")
        count = runner.count_prompt(messages)
        last = list(runner.chat_stream(messages, options=ChatOptions(max_tokens=1)))[-1]
        assert count == last.usage.prompt_tokens


def test_a_reply_not_streamed(llama_url: str) -> None:
    options = ChatOptions(max_tokens=8, temperature=0.0, seed=1)
    with HttpRunner(llama_url, "smollm2") as runner:
        reply = runner.chat(user("Say hello."), options=options)
        streamed = "".join(c.content for c in runner.chat_stream(user("Say hello."), options=options))
    assert reply.role == "assistant"
    assert reply.content == streamed != ""
