"""Killed at any instant: what was reported as stored is there, once, and the file opens.

Every test here ends its worker with SIGKILL, again and again, at random moments: 60 kills in all by
default, fifty times as many (3,000) with AGENTKIT_KILLS=50.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentkit_fast import Entry, ScriptedRunner, SQLiteStore
from agentkit_fast.stores.sqlite import schema

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
TIMES = int(os.environ.get("AGENTKIT_KILLS", "1"))
WORKER = Path(__file__).with_name("kill_worker.py")


class Worker:
    """The forking process of `kill_worker.py`, and the kills."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(WORKER)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )
        assert self._line() == ["ready"]

    def _line(self) -> list[str]:
        assert self._process.stdout is not None
        return self._process.stdout.readline().split()

    def run(self, mode: str, path: Path, seed: int, *, after: int, then_s: float) -> list[list[str]]:
        """Let a child work, kill it `then_s` seconds after its `after`-th line; what it reported."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"mode": mode, "path": str(path), "seed": seed}) + "\n")
        self._process.stdin.flush()
        told: list[list[str]] = []
        pid = 0
        killed = False
        while True:
            line = self._line()
            assert line, "the worker is gone"
            if line[0] == "reaped":
                break
            if line[0] == "pid":
                pid = int(line[1])
            else:
                assert line[0] != "failed", " ".join(line)
                told.append(line)
            if pid and len(told) >= after and not killed:
                killed = True
                time.sleep(then_s)
                with contextlib.suppress(ProcessLookupError):  # it was done before its time came
                    os.kill(pid, signal.SIGKILL)
        return told

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(30)
        self._process.stdout.close()


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    made = Worker()
    yield made
    made.close()


def sound(path: Path) -> None:
    connection = sqlite3.connect(path)
    assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    connection.close()


def test_appends_and_claims(worker: Worker, tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    chance = random.Random(1)
    shown: set[str] = set()
    waiting: set[str] = set()
    kills = 15 * TIMES
    for seed in range(kills):
        told = worker.run(
            "append", path, seed, after=chance.randrange(1, 12), then_s=chance.random() * 0.003
        )
        for line in told:
            if line[0] == "shown":
                shown.update(line[1:])
            elif line[0] == "waiting":
                waiting.update(line[1:])
            elif line[0] == "claimed":
                shown |= waiting
                waiting.clear()
        with SQLiteStore(path) as store:
            found = [entry.id for entry in store.context("s")]
            assert len(found) == len(set(found))
            assert shown <= set(found), f"lost after kill {seed}"
            # What was in the middle of being stored is whole or absent: batches of four, all or none.
            batches: dict[str, int] = {}
            for name in found:
                if name.count(".") == 2:
                    head = name.rsplit(".", 1)[0]
                    batches[head] = batches.get(head, 0) + 1
            assert set(batches.values()) <= {4}
            # Nothing in the inbox was lost either: claim it and look.
            if seed % 10 == 9:
                store.claim_pending("s", 1)
                found = [entry.id for entry in store.context("s")]
                shown |= waiting
                waiting.clear()
                assert shown <= set(found)
            stamps = [entry.created_at for entry in store.context("s")]
            assert len(stamps) == len(set(stamps))
    sound(path)
    assert len(shown) > kills


def test_compactions(worker: Worker, tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    chance = random.Random(2)
    stored: set[str] = set()
    folded: set[str] = set()
    kills = 10 * TIMES
    for seed in range(kills):
        told = worker.run(
            "compact", path, seed, after=chance.randrange(1, 8), then_s=chance.random() * 0.004
        )
        for line in told:
            if line[0] == "shown":
                stored.update(line[1:])
            elif line[0] == "folded":
                folded.update(line[1:])
        with SQLiteStore(path) as store:
            history = {entry.id: entry for entry in store.history("s")}
            visible = {entry.id for entry in store.context("s")}
        assert stored | folded <= set(history)
        # A marker and what it subsumes: all of a fold, or nothing of it.
        gone = {
            name
            for entry in history.values()
            if entry.kind == "compaction"
            for name in json.loads(entry.content)
        }
        assert gone == set(history) - visible
    sound(path)
    assert folded


def old_file(path: Path, entries: int) -> None:
    """A file as the first schema version left it."""
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("BEGIN")
    for statement in schema.STEPS[0]:
        connection.execute(statement)
    connection.execute("PRAGMA user_version = 1")
    connection.execute(f"PRAGMA application_id = {schema.APPLICATION_ID}")
    connection.execute(
        "INSERT INTO sessions (session_id, revision, last_stamp) VALUES ('s', ?, ?)", (entries, entries)
    )
    connection.executemany(
        "INSERT INTO entries (sid, id, created_at, state, shown_rev, body) VALUES (1, ?, ?, 1, ?, ?)",
        [(f"e{n}", n, n, b'{"kind":"user","content":"hello"}') for n in range(1, entries + 1)],
    )
    connection.execute("COMMIT")
    connection.close()


def test_migrations(worker: Worker, tmp_path: Path) -> None:
    old = tmp_path / "old.db"
    old_file(old, 3000)
    chance = random.Random(3)
    path = tmp_path / "s.db"
    reached = set()
    for seed in range(8 * TIMES):
        for part in ("", "-wal", "-shm", "-journal"):
            Path(f"{path}{part}").unlink(missing_ok=True)
        shutil.copy(old, path)
        told = worker.run("open", path, seed, after=1, then_s=chance.random() * 0.012)
        reached.add(told[-1][0])
        with SQLiteStore(path) as store:
            found = store.context("s")
            assert [entry.id for entry in found[:3000]] == [f"e{n}" for n in range(1, 3001)]
            if told[-1][0] in ("shown", "end"):
                assert found[-1].id == f"o{seed}"
            assert store.open_calls("s") == []
        connection = sqlite3.connect(path)
        assert connection.execute("PRAGMA user_version").fetchone() == (schema.VERSION,)
        connection.close()
    sound(path)
    assert "start" in reached, "no kill came before the file was open: the delays are too long"


def test_the_very_first_opening(worker: Worker, tmp_path: Path) -> None:
    chance = random.Random(4)
    for seed in range(7 * TIMES):
        path = tmp_path / f"{seed}.db"
        told = worker.run("open", path, seed, after=1, then_s=chance.random() * 0.006)
        with SQLiteStore(path) as store:
            found = [entry.id for entry in store.context("s")]
            assert found in ([], [f"o{seed}"])
            if told[-1][0] in ("shown", "end"):
                assert found
            store.append("s", Entry(kind="user", content="goes on"))


def test_turns(worker: Worker, tmp_path: Path) -> None:
    """Killed in the middle of turns: no tool that must not run twice does, and the next turn goes on."""
    from kill_worker import make_session

    path = tmp_path / "s.db"
    effects = Path(f"{path}.effects")
    chance = random.Random(5)
    unknown = 0
    for seed in range(20 * TIMES):
        told = worker.run("turn", path, seed, after=chance.randrange(2, 12), then_s=chance.random() * 0.006)
        results = {line[1] for line in told if line[0] == "result"}
        with SQLiteStore(path) as store:
            before = {entry.id for entry in store.history("s")}
            assert results <= before
            left = store.open_calls("s")
            requests: list[list[dict[str, object]]] = []

            def answer(
                messages: object, tools: object, options: object, seen: list[object] = requests
            ) -> str:  # type: ignore[assignment]
                seen.append([message.to_wire() for message in messages])  # type: ignore[attr-defined]
                return "I see."

            session = make_session(store, str(path), ScriptedRunner([answer]))
            session.inject(Entry(kind="user", content="What happened?"))
            assert session.turn().reply == "I see."
            assert store.open_calls("s") == []
            stored = {
                entry.tool_call_id: entry for entry in store.history("s") if entry.kind == "tool_result"
            }
            for item in left:
                # An id of a call is used once a process here, so the newest result is this call's.
                if item.begun_at and item.call.name == "mail":
                    unknown += 1
                    assert "done" not in stored[item.call.id].content
            open_ids: list[object] = []
            for message in requests[0]:
                if message["role"] == "tool":
                    assert message["tool_call_id"] in open_ids
                    open_ids.remove(message["tool_call_id"])
                else:
                    assert open_ids == []
                    open_ids = [call["id"] for call in message.get("tool_calls", [])]  # type: ignore[attr-defined]
            assert open_ids == []
        ran = effects.read_text().split("\n") if effects.exists() else []
        mails = [line for line in ran if line.startswith("mail")]
        assert len(mails) == len(set(mails)), "a call ran twice"
    sound(path)
    assert unknown, "no kill came while a call was running"
