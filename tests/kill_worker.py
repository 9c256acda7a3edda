"""A process that works on a store until it is killed. `python kill_worker.py` reads one job a line and
forks a child for each: starting an interpreter for every kill would cost most of the time.

A job is JSON: `{"mode": .., "path": .., "seed": ..}`. The child writes one line for each thing the store
reported as done, straight to the pipe, so that a kill loses none of them.
"""

from __future__ import annotations

import json
import os
import random
import sys
from typing import Any

from agentkit_fast import (
    Compaction,
    Entry,
    ScriptedRunner,
    Session,
    SQLiteStore,
    StreamChunk,
    ToolCall,
    ToolSet,
    tool,
)


def tell(*words: object) -> None:
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


def entry(chance: random.Random, name: str) -> Entry:
    return Entry(id=name, kind="user", content="x" * chance.choice([10, 600, 20_000]))


def work_append(store: SQLiteStore, seed: int) -> None:
    chance = random.Random(seed)
    for step in range(100_000):
        name = f"{seed}.{step}"
        action = chance.randrange(5)
        if action == 0:
            names = [f"{name}.{n}" for n in range(4)]
            store.append_many("s", [entry(chance, each) for each in names])
            tell("shown", *names)
        elif action == 1:
            store.publish("s", entry(chance, name))
            tell("waiting", name)
        elif action == 2:
            store.claim_pending("s", 1)
            tell("claimed")
        else:
            store.append("s", entry(chance, name))
            tell("shown", name)


def work_compact(store: SQLiteStore, seed: int) -> None:
    chance = random.Random(seed)
    for step in range(100_000):
        names = [f"{seed}.{step}.{n}" for n in range(6)]
        store.append_many("s", [entry(chance, each) for each in names])
        tell("shown", *names)
        visible = store.context("s")
        folded = visible[: len(visible) - 2]
        marker = Entry(
            id=f"m{seed}.{step}", kind="compaction", content=json.dumps([item.id for item in folded])
        )
        store.compact("s", Compaction(marker=marker, subsumes=folded))
        tell("folded", marker.id)


def work_open(store: SQLiteStore, seed: int) -> None:
    tell("opened")
    store.append("s", Entry(id=f"o{seed}", kind="user", content="x"))
    tell("shown", f"o{seed}")


def effect(path: str, word: str) -> str:
    handle = os.open(path + ".effects", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(handle, (word + "\n").encode())
    os.close(handle)
    return f"done {word}"


def make_session(store: SQLiteStore, path: str, runner: ScriptedRunner) -> Session:
    """A session whose tools leave a trace outside the store: `mail` must never run twice, `look` may."""

    @tool
    def mail(key: str) -> str:
        return effect(path, f"mail {key}")

    @tool(idempotent=True)
    def look(key: str) -> str:
        return effect(path, f"look {key}")

    return Session("s", store, runner, tools=ToolSet([mail, look]), max_turns=100_000)


def work_turn(store: SQLiteStore, seed: int, path: str) -> None:
    rounds = iter(range(100_000))

    def reply(*_: Any) -> list[StreamChunk]:
        number = next(rounds)
        calls = [
            ToolCall(id=f"c{number}.{n}", name=name, arguments=json.dumps({"key": f"{seed}.{number}.{n}"}))
            for n, name in enumerate(("mail", "look", "mail"))
        ]
        return [
            *(StreamChunk(tool_call=call) for call in calls),
            StreamChunk(done=True, finish_reason="tool_calls"),
        ]

    session = make_session(store, path, ScriptedRunner([reply] * 10_000))
    session.inject(Entry(kind="user", content=f"go {seed}"))
    tell("begun")
    for event in session.stream():
        if type(event).__name__ == "ToolResult":
            tell("result", event.entry_id)


def child(job: dict[str, Any]) -> None:
    tell("start")
    with SQLiteStore(job["path"], synchronous="normal") as store:
        if job["mode"] == "turn":
            work_turn(store, job["seed"], job["path"])
        else:
            {"append": work_append, "compact": work_compact, "open": work_open}[job["mode"]](
                store, job["seed"]
            )
    tell("end")


def main() -> None:
    tell("ready")
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            try:
                child(json.loads(line))
            except BaseException as error:  # noqa: BLE001 - the parent process must hear of it
                tell("failed", repr(error)[:2000].replace("\n", " "))
            os._exit(0)
        tell("pid", pid)
        os.waitpid(pid, 0)
        tell("reaped")


if __name__ == "__main__":
    main()
