"""Break a long turn at every single effect, in every way, and look at what is left.

The turn has everything in it: two parallel calls of which one fails, a truncated call, a refused one, a
reply that repeats itself, an empty reply, a message that arrives in the middle, and a final text. Each effect
of it is broken once: not done, done but reported as failed, cancelled, interrupted, or the process dies there.
After each, every stored call must have its result (a dead process may leave calls without one, never
anything else), and the next turn must answer.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agentkit_fast import Entry, MemoryStore, ScriptedRunner, Session, ToolCall, ToolDef, session
from agentkit_fast.drivers import AsyncDriver, SyncDriver
from agentkit_fast.shaping import plain_window
from session_kit import LOOK, broken, call, reply

FAIL = ToolDef(name="fail")
GUARDED = ToolDef(name="guarded")


class Broken(Exception):
    """The failure put in by the test."""


class Died(BaseException):
    """Stands for a process that is gone: nothing after it is carried out."""


class HostStore:
    """A host's own store: the four methods of the protocol and nothing more."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.waiting: list[Entry] = []

    def claim_pending(self, session_id: str, at: int) -> int:
        claimed, self.waiting = self.waiting, []
        for entry in claimed:
            entry.created_at = at
            self.entries.append(entry)
        return len(claimed)

    def append(self, session_id: str, entry: Entry) -> None:
        self.entries.append(entry)

    def context(self, session_id: str) -> list[Entry]:
        return list(self.entries)

    def compact(self, session_id: str, compaction: Any) -> None:
        raise NotImplementedError

    def publish(self, session_id: str, entry: Entry) -> None:
        self.waiting.append(entry)


STORES: dict[str, Callable[[Path], Any]] = {
    "memory": lambda _: MemoryStore(),
    "host": lambda _: HostStore(),
}
try:
    from agentkit_fast import SQLiteStore

    STORES["sqlite"] = lambda folder: SQLiteStore(folder / "s.db")
except ImportError:
    pass

WAYS = ["fails", "fails-after", "cancel", "interrupt", "interrupt-after", "dies", "dies-after", "fails-on"]


def script() -> list[Any]:
    loop = "and then I say the very same words again, " * 400
    return [
        reply("Two at once.", call('{"shelf":"A"}', id="k"), call(name="fail", id="k")),
        reply("Cut.", call('{"shelf":"B', id="cut"), finish="length"),
        reply(call('{"shelf":"C"}'), call(name="guarded"), call('{"shelf":"D"}')),
        reply("Well, ", loop),
        reply(""),
        "It is on shelf B.",
    ]


def dispatch_of(store: Any) -> Callable[[ToolCall], str]:
    def dispatch(asked: ToolCall) -> str:
        if asked.name == "fail":
            raise ValueError("no such shelf")
        if "C" in asked.arguments:
            store.publish("s", Entry(id="late", kind="user", content="Please be quick."))
        return f"saw {asked.arguments}"

    return dispatch


def make(store: Any, replies: list[Any]) -> Session:
    return Session(
        "s",
        store,
        ScriptedRunner(replies),
        tools=[LOOK, FAIL, GUARDED],
        dispatch=dispatch_of(store),
        approve=lambda asked: asked.name != "guarded",
        approve_all=True,
    )


class Breaker:
    """Counts effects and breaks the `at`-th; with `"fails-on"` also each one after it, three in all."""

    def __init__(self, way: str, at: int) -> None:
        self.way, self.at, self.count, self.dead = way, at, -1, False
        self.kind = ""

    def wrap(self, driver: Any) -> None:
        for kind, function in driver.perform.items():
            driver.perform[kind] = self.wrapped(driver, kind.__name__, function)

    def due(self, name: str) -> bool:
        if self.dead:
            raise Died
        self.count += 1
        if self.count == self.at:
            self.kind = name
        return self.count == self.at or (self.way == "fails-on" and self.at <= self.count < self.at + 3)

    def before(self, driver: Any) -> None:
        if self.way.startswith("fails") and self.way != "fails-after":
            raise Broken
        if self.way == "interrupt":
            raise KeyboardInterrupt
        if self.way == "cancel":
            driver.cancel()
        if self.way == "dies":
            self.dead = True
            raise Died

    def after(self) -> None:
        if self.way == "fails-after":
            raise Broken
        if self.way == "interrupt-after":
            raise KeyboardInterrupt
        if self.way == "dies-after":
            self.dead = True
            raise Died

    def wrapped(self, driver: Any, name: str, function: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def sync(effect: Any) -> Any:
            due = self.due(name)
            if due:
                self.before(driver)
            value = function(effect)
            if due:
                self.after()
            return value

        async def later(effect: Any) -> Any:
            due = self.due(name)
            if due:
                self.before(driver)
            value = await function(effect)
            if due:
                self.after()
            return value

        return sync if isinstance(driver, SyncDriver) else later


def run_broken(made: Session, breaker: Breaker, mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class Sync(SyncDriver):
        def __init__(self, ports: Any) -> None:
            super().__init__(ports)
            breaker.wrap(self)

    class Async(AsyncDriver):
        def __init__(self, ports: Any) -> None:
            super().__init__(ports)
            breaker.wrap(self)

    with monkeypatch.context() as patched:
        patched.setattr(session, "SyncDriver", Sync)
        patched.setattr(session, "AsyncDriver", Async)
        try:
            result = made.turn() if mode == "sync" else asyncio.run(made.aturn())
            assert result.cancelled or result.reply
        except Broken as error:
            assert error.result.stop_reason == "error"  # noqa: PT017  # type: ignore[attr-defined]
        except KeyboardInterrupt as error:
            assert error.result.cancelled  # noqa: PT017  # type: ignore[attr-defined]
        except Died:
            pass


def pairs_are_whole(messages: list[Any]) -> None:
    """What every endpoint demands of a request."""
    waiting: list[str] = []
    for message in messages:
        if message.role == "tool":
            assert message.tool_call_id in waiting
            waiting.remove(message.tool_call_id)
        else:
            assert not waiting
            waiting = [asked.id for asked in message.tool_calls]
            assert len(set(waiting)) == len(waiting)
    assert not waiting


def effects_of_whole_turn(store: Any, mode: str, monkeypatch: pytest.MonkeyPatch) -> int:
    breaker = Breaker("none", -5)
    made = make(store, script())
    store.append("s", Entry(id="ask", kind="user", content="Where is it?", created_at=1))
    run_broken(made, breaker, mode, monkeypatch)
    assert broken(store.context("s")) == []
    assert len(made.runner.requests) == 6
    return breaker.count + 1


@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", list(STORES))
def test_every_effect_can_break(
    kind: str, way: str, mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fresh(name: str) -> Any:
        folder = tmp_path / name
        folder.mkdir()
        return STORES[kind](folder)

    count = effects_of_whole_turn(fresh("whole"), mode, monkeypatch)
    assert count > 60
    # Files take their time: each way takes every fourth effect, another for each; AGENTKIT_EVERY_EFFECT=1 takes all.
    step = 1 if kind == "memory" or os.environ.get("AGENTKIT_EVERY_EFFECT") else 4
    first = (WAYS.index(way) + 2 * (mode == "async")) % step
    for at in range(first, count, step):
        store = fresh(str(at))
        store.append("s", Entry(id="ask", kind="user", content="Where is it?", created_at=1))
        breaker = Breaker(way, at)
        run_broken(make(store, script()), breaker, mode, monkeypatch)
        where = f"{way} at effect {at} ({breaker.kind})"

        wrong = broken(store.context("s"))
        if way.startswith("dies"):
            wrong = [line for line in wrong if "has no result" not in line]
        if way != "fails-on":  # three failures in a row may be more than the cleaning up can repair
            assert wrong == [], where

        pairs_are_whole(list(plain_window(store, "s", "").messages))
        store.append("s", Entry(id="next", kind="user", content="And now?"))
        after = make(store, ["Here."])
        result = after.turn() if mode == "sync" else asyncio.run(after.aturn())
        assert result.reply == "Here.", where
        pairs_are_whole(list(after.runner.requests[-1].messages))
        if hasattr(store, "close"):
            store.close()
