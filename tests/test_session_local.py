"""The turn over a real model in process."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

pytest.importorskip("llama_cpp")

from agentkit_fast import ChatOptions, Entry, MemoryStore, Session, tool
from agentkit_fast.runners.local import LocalRunner

pytestmark = pytest.mark.model


class Book(msgspec.Struct):
    title: str
    pages: int


@pytest.fixture(scope="module")
def runner(smollm2_path: Path) -> Iterator[LocalRunner]:
    with LocalRunner(smollm2_path, n_ctx=2048, n_threads=1, seed=1) as made:
        yield made


def ask(runner: LocalRunner, text: str, **settings: object) -> Session:
    store = MemoryStore()
    store.append("s", Entry(kind="user", content=text))
    return Session("s", store, runner, **settings)  # type: ignore[arg-type]


def test_a_forced_call_and_then_words(runner: LocalRunner) -> None:
    ran: list[tuple[int, int]] = []

    @tool
    def add(a: int, b: int) -> int:
        """Add two numbers."""
        ran.append((a, b))
        return a + b

    made = ask(
        runner,
        "Use the tool to add 2 and 3.",
        tools=[add],
        tool_format="heredoc",
        options=lambda n: ChatOptions(
            tool_choice="none" if n else "required", temperature=0.0, max_tokens=60
        ),
    )
    result = asyncio.run(made.aturn())
    assert ran
    assert result.reply
    assert "@@call" not in result.reply
    assert result.usage.cached > 0


def test_a_typed_value_by_grammar(runner: LocalRunner) -> None:
    made = ask(
        runner,
        "The book Moby Dick has 635 pages.",
        options=ChatOptions(temperature=0.0, max_tokens=60),
    )
    book = made.extract(Book, retries=0)
    assert isinstance(book, Book)


def test_cancelling_a_generation(runner: LocalRunner) -> None:
    seen: list[str] = []
    made = ask(runner, "Write a long story about the sea.", on_token=seen.append)
    threading.Timer(0.3, made.cancel).start()
    result = made.turn()
    assert result.cancelled
    made.store.append("s", Entry(kind="user", content="Say hello."))
    made._options = ChatOptions(temperature=0.0, max_tokens=8)
    assert made.turn().reply
