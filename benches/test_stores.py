"""Stores: append, read what is new, first load, at 1,000 and 100,000 entries, beside the stores of peers.

    python -m pytest benches/test_stores.py --benchmark-only --benchmark-disable-gc -q

Entries hold 600 bytes. Files lie in pytest's temporary folder. Rows of one group do the same job; a peer's row is
left out where the peer is not installed. "new" asks for the one entry added since the last reading; a peer without
such a question reads what it offers: all, or the last items.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from agentkit_fast import Entry, MemoryStore, SQLiteStore

SIZES = [1_000, 100_000]
TEXT = "x" * 600


def entries(count: int) -> list[Entry]:
    return [Entry(kind="user", content=TEXT) for _ in range(count)]


class Ours:
    """`SQLiteStore`, waiting for the disk at each commit (as the peers do) or not."""

    def __init__(self, path: Path, size: int, synchronous: Any = "full") -> None:
        self._path, self._synchronous = path, synchronous
        self.store: Any = SQLiteStore(path, synchronous=synchronous)
        self.store.append_many("s", entries(size))

    def append(self) -> None:
        self.store.append("s", Entry(kind="user", content=TEXT))

    def new(self) -> None:
        revision = self.store.context_since("s", 2**62)[1]
        assert len(self.store.context_since("s", revision - 1)[0]) == 1

    def load(self) -> int:
        with SQLiteStore(self._path, synchronous=self._synchronous) as store:
            return len(store.context_since("s", 0)[0])

    def page(self) -> int:
        with SQLiteStore(self._path, synchronous=self._synchronous) as store:
            return len(store.history("s", limit=50))

    def close(self) -> None:
        self.store.close()


class OursNormal(Ours):
    def __init__(self, path: Path, size: int) -> None:
        super().__init__(path, size, "normal")


class OursMemory(Ours):
    def __init__(self, path: Path, size: int) -> None:
        self.store = MemoryStore()
        self.store.append_many("s", entries(size))

    def load(self) -> int:
        return len(self.store.context_since("s", 0)[0])

    def page(self) -> int:
        return len(self.store.history("s", limit=50))

    def close(self) -> None: ...


class OpenAIAgents:
    """openai-agents' `SQLiteSession`."""

    def __init__(self, path: Path, size: int) -> None:
        sessions = pytest.importorskip("agents.memory.sqlite_session")
        self._loop = asyncio.new_event_loop()
        self._open = lambda: sessions.SQLiteSession("s", path)
        self.session = self._open()
        self._run(self.session.add_items([self._item() for _ in range(size)]))

    def _item(self) -> dict[str, str]:
        return {"role": "user", "content": TEXT}

    def _run(self, work: Any) -> Any:
        return self._loop.run_until_complete(work)

    def append(self) -> None:
        self._run(self.session.add_items([self._item()]))

    def new(self) -> None:
        assert len(self._run(self.session.get_items(limit=1))) == 1

    def load(self) -> int:
        session = self._open()
        count = len(self._run(session.get_items()))
        session.close()
        return count

    def page(self) -> int:
        session = self._open()
        count = len(self._run(session.get_items(limit=50)))
        session.close()
        return count

    def close(self) -> None:
        self.session.close()
        self._loop.close()


class PydanticHarness:
    """pydantic-ai-harness' `SqliteStepStore`: a step is kept as a snapshot of all messages."""

    def __init__(self, path: Path, size: int) -> None:
        steps = pytest.importorskip("pydantic_ai_harness.step_persistence")
        messages = pytest.importorskip("pydantic_ai.messages")
        self._loop = asyncio.new_event_loop()
        self._open = lambda: steps.SqliteStepStore(database=path)
        self._snapshot = steps.ContinuableSnapshot
        self._message = lambda: messages.ModelRequest(parts=[messages.UserPromptPart(content=TEXT)])
        self._messages = [self._message() for _ in range(size)]
        self.store = self._open()
        self._steps = 0
        self.append()

    def append(self) -> None:
        self._messages.append(self._message())
        self._steps += 1
        snapshot = self._snapshot(run_id="r", step_index=self._steps, messages=self._messages)
        self._loop.run_until_complete(self.store.save_snapshot(snapshot))

    def load(self) -> int:
        found = self._loop.run_until_complete(self._open().latest_snapshot(run_id="r"))
        return len(found.messages)

    new = load

    def close(self) -> None:
        self._loop.close()


STORES: dict[str, Callable[[Path, int], Any]] = {
    "ours": Ours,
    "ours-normal": OursNormal,
    "ours-memory": OursMemory,
    "openai-agents": OpenAIAgents,
    "pydantic-harness": PydanticHarness,
}


@pytest.fixture(scope="module", params=[(name, size) for size in SIZES for name in STORES], ids=str)
def subject(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    name, size = request.param
    made = STORES[name](tmp_path_factory.mktemp("bench") / "s.db", size)
    made.size = size
    made.slow = name == "pydantic-harness" and size > 10_000
    yield made
    made.close()


def measured(benchmark: Any, subject: Any, group: str, name: str) -> None:
    work = getattr(subject, name, None)
    if work is None:
        pytest.skip("it has no such question")
    benchmark.group = f"{group} at {subject.size:,}"
    rounds = 3 if subject.slow or (name == "load" and subject.size > 10_000) else 50
    benchmark.pedantic(work, rounds=rounds, warmup_rounds=1)


def test_append(benchmark: Any, subject: Any) -> None:
    measured(benchmark, subject, "append one entry", "append")


def test_new(benchmark: Any, subject: Any) -> None:
    measured(benchmark, subject, "read the one new entry", "new")


def test_first_load(benchmark: Any, subject: Any) -> None:
    measured(benchmark, subject, "open and load all", "load")


def test_page(benchmark: Any, subject: Any) -> None:
    measured(benchmark, subject, "open and show the last 50", "page")
