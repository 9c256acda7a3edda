"""`RevalidatingPreparer`: settled notices leave, flaky checks keep them, store failures are raised."""

from __future__ import annotations

import asyncio
import inspect
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from agentkit_fast import Entry, MemoryStore, PreparerChain, RevalidatingPreparer, SQLiteStore, StoreError


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    return (
        MemoryStore() if request.param == "memory" else SQLiteStore(tmp_path / "s.db", synchronous="normal")
    )


def notice(store: Any, key: str, group_by: str = "file") -> None:
    entry = Entry(kind="notification", content=f"{key} is red")
    store.publish_notice("s", entry, group_by=group_by, key=key)


def keys(store: Any) -> list[str]:
    return [found.key for found in store.pending_notices("s")]


ANSWERS = [
    ("resolved-blank", "", False),
    ("resolved-null", "null", False),
    ("resolved-list", "[]", False),
    ("still-red", "red", True),
    ("false-is-a-value", "false", True),
    ("no-check", None, True),
]


@pytest.mark.parametrize(("answer", "stays"), [row[1:] for row in ANSWERS], ids=[row[0] for row in ANSWERS])
@pytest.mark.parametrize("claimed", [False, True], ids=["unclaimed", "claimed"])
def test_by_answer(store: Any, answer: str | None, stays: bool, claimed: bool) -> None:
    notice(store, "a")
    if claimed:
        store.claim_pending("s", 1)
    RevalidatingPreparer(store, lambda group_by, key: answer).prepare("s")
    assert keys(store) == (["a"] if stays else [])
    assert store.claim_pending("s", 1) == (1 if stays and not claimed else 0)
    assert len(store.context("s")) == int(stays)


def test_each_notice_is_asked_about_once_by_group_and_key(store: Any) -> None:
    asked = []

    class Check:
        def revalidate(self, group_by: str, key: str) -> str:
            asked.append((group_by, key))
            return "red"

    notice(store, "a")
    store.claim_pending("s", 1)
    notice(store, "a")
    notice(store, "a", "test")
    RevalidatingPreparer(store, Check()).prepare("s")
    assert asked == [("file", "a"), ("test", "a")]


def test_a_failing_check_keeps_its_notice_only(store: Any, caplog: pytest.LogCaptureFixture) -> None:
    def check(group_by: str, key: str) -> str:
        if key == "b":
            raise RuntimeError("the tool is down")
        return ""

    for key in "abc":
        notice(store, key)
    RevalidatingPreparer(store, check).prepare("s")
    assert keys(store) == ["b"]
    assert "the tool is down" in caplog.text


def test_a_hanging_check_cannot_hold_a_turn(store: Any) -> None:
    release = threading.Event()
    notice(store, "a")
    begun = time.monotonic()
    RevalidatingPreparer(store, lambda group_by, key: release.wait(20), timeout_s=0.05).prepare("s")
    assert time.monotonic() - begun < 5
    assert keys(store) == ["a"]
    release.set()


def test_an_async_check_makes_an_async_preparer(store: Any) -> None:
    async def check(group_by: str, key: str) -> str:
        await asyncio.sleep(0)
        if key == "b":
            await asyncio.sleep(20)
        return ""

    for key in "ab":
        notice(store, key)
    preparer = RevalidatingPreparer(store, check, timeout_s=0.05)
    assert inspect.iscoroutinefunction(preparer.prepare)
    asyncio.run(preparer.prepare("s"))
    assert keys(store) == ["b"]


def test_a_failing_store_is_raised() -> None:
    class Broken(MemoryStore):
        def clear(self, session_id: str, group_by: str, key: str) -> int:
            raise StoreError("no disk")

    store = Broken()
    notice(store, "a")
    with pytest.raises(StoreError, match="no disk"):
        RevalidatingPreparer(store, lambda group_by, key: "").prepare("s")


def test_a_store_without_notices_is_refused() -> None:
    with pytest.raises(TypeError, match="keeps no notices"):
        RevalidatingPreparer(object(), lambda group_by, key: "")


def test_a_chain_runs_each_in_order(store: Any) -> None:
    ran = []

    class Step:
        def prepare(self, session_id: str) -> None:
            ran.append(session_id)

    PreparerChain(Step(), lambda session_id: ran.append(session_id + "!")).prepare("s")
    assert ran == ["s", "s!"]

    async def step(session_id: str) -> None:
        ran.append(session_id + "?")

    chain = PreparerChain(Step(), step)
    asyncio.run(chain.prepare("t"))
    assert ran[2:] == ["t", "t?"]
