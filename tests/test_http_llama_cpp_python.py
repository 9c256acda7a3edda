"""HttpRunner against llama-cpp-python's own server, whose dialect is OpenAI's of some years ago."""

from __future__ import annotations

import asyncio
import importlib.util
from collections.abc import Iterator
from pathlib import Path

import pytest

import servers
from agentkit_fast import ChatOptions, InputTooLarge, Message
from agentkit_fast.runners.http import HttpRunner

NEEDED = ("llama_cpp", "uvicorn", "fastapi", "sse_starlette", "starlette_context", "pydantic_settings")
MISSING = [name for name in NEEDED if importlib.util.find_spec(name) is None]
pytestmark = [
    pytest.mark.model,
    pytest.mark.skipif(bool(MISSING), reason=f"needs llama-cpp-python[server]: no {', '.join(MISSING)}"),
]


@pytest.fixture(scope="module")
def url(smollm2_path: Path) -> Iterator[str]:
    with servers.llama_cpp_python_server(smollm2_path) as url:
        yield url


def test_a_round(url: str) -> None:
    messages = [Message(role="user", content="Say hello.")]
    options = ChatOptions(max_tokens=6, temperature=0.0, seed=1)
    with HttpRunner(url, "smollm2") as runner:
        chunks = list(runner.chat_stream(messages, options=options))
        text = "".join(chunk.content for chunk in chunks)
        assert chunks[-1].done
        assert chunks[-1].finish_reason in ("length", "stop")
        assert runner.chat(messages, options=options).content == text != ""

        async def run() -> str:
            return "".join(
                [chunk.content async for chunk in runner.achat_stream(messages, options=options)]
            )

        assert asyncio.run(run()) == text


def test_overflow(url: str) -> None:
    with HttpRunner(url, "smollm2") as runner, pytest.raises(InputTooLarge) as caught:
        list(runner.chat_stream([Message(role="user", content="word " * 2000)]))
    assert caught.value.context_tokens == 1024
    assert caught.value.prompt_tokens > 2000


def test_what_it_is(url: str) -> None:
    with HttpRunner(url, "smollm2") as runner:
        assert runner.provider.name == "unknown"
        assert runner.profile.native_tools
        assert runner.count_tokens("hello") is None
