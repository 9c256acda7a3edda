"""One suite, run against every store."""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agentkit_fast import (
    Compaction,
    Entry,
    EntryUsage,
    MemoryStore,
    SessionBusy,
    SQLiteStore,
    StoreError,
    image_data,
    text_part,
)
from agentkit_fast.entries import ParkedCall
from agentkit_fast.protocols import Store


class Reopened:
    """A SQLite store that is closed and opened anew around every call: nothing may live in memory only."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            with SQLiteStore(self._path, synchronous="normal") as store:
                found = getattr(store, name)(*args, **kwargs)
                return list(found) if name == "export" else found

        return call


KINDS = ("memory", "sqlite", "sqlite-reopened", "sqlite-in-memory")


def make(kind: str, folder: Path) -> Any:
    if kind == "memory":
        return MemoryStore()
    if kind == "sqlite":
        return SQLiteStore(folder / "s.db", synchronous="normal")
    if kind == "sqlite-reopened":
        return Reopened(folder / "s.db")
    return SQLiteStore(":memory:")


@pytest.fixture(params=KINDS)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    return make(request.param, tmp_path)


def user(text: str, **more: Any) -> Entry:
    return Entry(kind="user", content=text, **more)


def said(text: str = "ok", **more: Any) -> Entry:
    return Entry(kind="assistant", content=text, **more)


def note(text: str, **more: Any) -> Entry:
    return Entry(kind="notification", content=text, **more)


def texts(entries: list[Entry]) -> list[str]:
    return [entry.content for entry in entries]


def test_it_is_a_store(store: Any) -> None:
    if not isinstance(store, Reopened):
        assert isinstance(store, Store)


def test_unknown_sessions_are_empty(store: Any) -> None:
    assert store.context("x") == []
    assert store.context_since("x", 0) == ([], 0, [])
    assert store.context_since("x", 5) == ([], 0, [])
    assert store.history("x") == []
    assert store.claim_pending("x", 1) == 0
    assert store.pending_notices("x") == []
    assert store.open_calls("x") == []
    assert store.parked_calls("x") == []
    assert store.load_plan("x") is None
    assert store.clear("x", "g", "k") == 0
    assert store.settle_call("x", "c", user("never")) is None
    store.begin_calls("x", ["e"])
    with pytest.raises(StoreError):
        store.append_many("x", [user("a", id="e"), user("b", id="e")])
    with pytest.raises(StoreError):
        store.compact("x", Compaction(marker=Entry(kind="compaction"), subsumes=[user("a", id="e")]))
    assert store.sessions() == []


def test_append_fills_id_and_stamp(store: Any) -> None:
    before = time.time_ns()
    given = user("a")
    first = store.append("s", given)
    second = store.append("s", user("b"))
    assert given.id == ""
    assert before <= first.created_at < second.created_at
    assert first.id != second.id
    assert store.context("s") == [first, second]
    assert store.sessions() == ["s"]


def test_entries_come_back_as_they_were(store: Any) -> None:
    whole = Entry(
        id="e1",
        kind="user",
        content="text with NUL \x00, \u2028 and 😀" + "x" * 300_000,
        parts=(text_part("look"), image_data("image/png", bytes(range(256)))),
        reasoning="thought",
        tool_call_id="c1",
        tool_name="t",
        tag="tag",
        origin='{"row": 7}',
        usage=EntryUsage(latency_ms=1, cached=2, processed=3, generated=4),
        created_at=123,
    )
    odd = Entry(id="e2", kind="a host's own kind", content="", created_at=124)
    store.append_many("s", [whole, odd])
    assert store.context("s") == [whole, odd]
    assert store.history("s") == [whole, odd]


@pytest.mark.parametrize(
    ("text", "stored"),
    [
        ("caf\udce9 au lait", "caf\ufffd au lait"),
        ("half \ud83d emoji", "half \ufffd emoji"),
        ("pair \ud83d\ude00", "pair 😀"),
        ("nul \u0000 byte", "nul \u0000 byte"),
    ],
    ids=["escaped-byte", "half", "pair", "nul"],
)
def test_text_that_utf8_cannot_hold_is_repaired_once(store: Any, text: str, stored: str) -> None:
    entry = user("")
    entry.content = entry.origin = text  # past the constructor, which repairs too
    entry.id = text
    first = store.append(text, entry)
    assert (first.content, first.origin, first.id) == (stored, stored, stored)
    assert store.append(text, entry) == first
    assert store.context(stored) == store.context(text) == [first]
    assert store.sessions() == [stored]


def test_the_same_again_is_a_no_op_and_other_content_an_error(store: Any) -> None:
    first = store.append("s", user("a", id="e1"))
    revision = store.context_since("s", 0)[1]
    assert store.append("s", user("a", id="e1")) == first
    assert store.publish("s", user("a", id="e1")) == first
    assert store.context_since("s", revision) == ([], revision, [])
    with pytest.raises(StoreError, match="e1"):
        store.append("s", user("b", id="e1"))
    with pytest.raises(StoreError, match="e3"):
        store.append_many("s", [user("b", id="e2"), user("c", id="e3"), user("d", id="e3")])
    with pytest.raises(StoreError, match="e1"):
        store.publish("s", user("b", id="e1"))
    assert store.claim_pending("s", 1) == 0
    assert texts(store.context("s")) == ["a"]
    store.append("other", user("b", id="e1"))  # ids are a session's own


def test_context_since_gives_what_is_new(store: Any) -> None:
    store.append_many("s", [user("a"), said("b")])
    everything, revision, gone = store.context_since("s", 0)
    assert (texts(everything), gone) == (["a", "b"], [])
    assert store.context_since("s", revision) == ([], revision, [])
    store.append("s", user("old", created_at=5))
    fresh, now, gone = store.context_since("s", revision)
    assert (texts(fresh), gone) == (["old"], [])
    assert now > revision
    assert store.context_since("s", 2**62) == ([], now, [])
    assert texts(store.context("s")) == ["old", "a", "b"]


def test_a_fold_shows_as_its_marker_and_the_ids_it_subsumed(store: Any) -> None:
    entries = store.append_many("s", [user("a"), said("b"), user("c")])
    revision = store.context_since("s", 0)[1]
    marker = Entry(kind="compaction", content="sum")
    stored = store.compact("s", Compaction(marker=marker, subsumes=entries[:2]))
    assert stored.created_at == entries[1].created_at
    fresh, now, gone = store.context_since("s", revision)
    assert (texts(fresh), gone) == (["sum"], [entries[0].id, entries[1].id])
    assert texts(store.context_since("s", 0)[0]) == ["c", "sum"]
    assert store.context_since("s", 0)[2] == []
    assert sorted(texts(store.context("s"))) == ["c", "sum"]
    assert sorted(texts(store.history("s"))) == ["a", "b", "c", "sum"]
    # The next fold takes the marker in, also for who has seen neither.
    store.compact(
        "s", Compaction(marker=Entry(kind="compaction", content="2"), subsumes=[stored, entries[2]])
    )
    fresh, _, gone = store.context_since("s", revision)
    assert texts(fresh) == ["2"]
    assert set(gone) == {entry.id for entry in entries}
    assert texts(store.context("s")) == ["2"]
    assert store.context_since("s", now)[2] == [stored.id, entries[2].id]


def test_a_stale_fold_is_refused_and_a_repeated_one_harmless(store: Any) -> None:
    entries = store.append_many("s", [user("a"), said("b"), user("c")])
    fold = Compaction(marker=Entry(id="m", kind="compaction", content="sum"), subsumes=entries[:2])
    first = store.compact("s", fold)
    state = store.context_since("s", 0)
    assert store.compact("s", fold) == first
    stale = Compaction(marker=Entry(kind="compaction", content="other"), subsumes=entries[1:])
    with pytest.raises(StoreError, match="out of date"):
        store.compact("s", stale)
    with pytest.raises(StoreError):
        store.compact(
            "s", Compaction(marker=Entry(kind="compaction", content="x"), subsumes=[user("?", id="nope")])
        )
    with pytest.raises(StoreError):
        store.compact(
            "s", Compaction(marker=Entry(id="m", kind="compaction", content="x"), subsumes=entries[2:])
        )
    assert store.context_since("s", 0) == state


def test_history_in_pages(store: Any) -> None:
    entries = store.append_many("s", [user(str(n)) for n in range(25)])
    store.compact(
        "s", Compaction(marker=Entry(kind="compaction", content="m", created_at=1), subsumes=entries[:20])
    )
    wanted = ["m", *map(str, range(25))]
    assert texts(store.history("s")) == wanted
    pages: list[str] = []
    page = store.history("s", limit=7)
    while page:
        pages = texts(page) + pages
        page = store.history("s", before=page[0].id, limit=7)
    assert pages == wanted
    assert texts(store.history("s", after=entries[3].id, limit=2)) == ["4", "5"]
    assert texts(store.history("s", after=entries[22].id)) == ["23", "24"]
    assert texts(store.history("s", after=entries[2].id, before=entries[5].id)) == ["3", "4"]
    with pytest.raises(StoreError, match="nope"):
        store.history("s", before="nope")


# -- inbox


def test_published_entries_wait_for_the_claim(store: Any) -> None:
    store.publish("s", user("one"))
    store.publish("s", user("two"))
    late = store.append("s", user("shown", created_at=2**61))
    assert texts(store.context("s")) == ["shown"]
    assert texts(store.history("s")) == ["shown"]
    revision = store.context_since("s", 0)[1]
    assert store.claim_pending("s", 5) == 2
    assert store.claim_pending("s", 6) == 0
    assert texts(store.context("s")) == ["shown", "one", "two"]
    stamps = [entry.created_at for entry in store.context("s")]
    assert stamps[0] == late.created_at
    assert stamps == sorted(set(stamps))
    assert texts(store.context_since("s", revision)[0]) == ["one", "two"]


def test_claim_stamps_from_the_time_given(store: Any) -> None:
    store.publish("s", user("one"))
    at = time.time_ns() + 10**12
    assert store.claim_pending("s", at) == 1
    assert store.context("s")[0].created_at == at
    assert store.append("s", user("next")).created_at > at


# -- notices


def test_a_new_notice_replaces_the_unshown_one_of_its_key(store: Any) -> None:
    store.publish_notice("s", note("a is red"), group_by="file", key="a")
    store.publish_notice("s", note("b is red"), group_by="file", key="b")
    store.publish_notice("s", note("a is green"), group_by="file", key="a")
    assert [(n.group_by, n.key, n.claimed) for n in store.pending_notices("s")] == [
        ("file", "b", False),
        ("file", "a", False),
    ]
    assert store.claim_pending("s", 1) == 2
    assert texts(store.context("s")) == ["b is red", "a is green"]
    assert [n.claimed for n in store.pending_notices("s")] == [True, True]
    # Shown now, so the next one is a second notice.
    store.publish_notice("s", note("a is blue"), group_by="file", key="a")
    assert store.claim_pending("s", 1) == 1
    assert texts(store.context("s")) == ["b is red", "a is green", "a is blue"]
    store.append("s", said())
    assert store.pending_notices("s") == []


def test_clear_takes_out_what_the_model_has_not_answered_after(store: Any) -> None:
    store.publish_notice("s", note("waiting"), group_by="g", key="w")
    assert store.clear("s", "g", "w") == 1
    assert store.claim_pending("s", 1) == 0
    store.publish_notice("s", note("shown"), group_by="g", key="s")
    store.claim_pending("s", 1)
    revision = store.context_since("s", 0)[1]
    shown = store.context("s")[0]
    assert store.clear("s", "g", "s") == 1
    assert store.clear("s", "g", "s") == 0
    assert store.context("s") == []
    assert store.context_since("s", revision)[2] == [shown.id]
    assert texts(store.history("s")) == ["shown"]
    store.publish_notice("s", note("answered"), group_by="g", key="a")
    store.claim_pending("s", 1)
    store.append("s", said())
    assert store.clear("s", "g", "a") == 0
    assert texts(store.context("s")) == ["answered", "ok"]


def test_expired_notices_vanish(store: Any) -> None:
    store.publish_notice("s", note("soon over"), group_by="g", key="a", ttl_s=0.3)
    store.publish_notice("s", note("stays"), group_by="g", key="b", ttl_s=60)
    store.publish_notice("s", note("endless"), group_by="g", key="c", ttl_s=1e300)
    assert [n.key for n in store.pending_notices("s")] == ["a", "b", "c"]
    time.sleep(0.35)
    assert [n.key for n in store.pending_notices("s")] == ["b", "c"]
    assert store.clear("s", "g", "a") == 0
    assert store.claim_pending("s", 1) == 2
    assert texts(store.context("s")) == ["stays", "endless"]
    store.publish_notice("s", note("claimed in time"), group_by="g", key="d", ttl_s=0.3)
    store.claim_pending("s", 1)
    time.sleep(0.35)
    assert [n.key for n in store.pending_notices("s")][-1] == "d"


def test_only_expired_notices_in_the_inbox_claim_nothing(store: Any) -> None:
    store.publish_notice("s", note("x"), group_by="g", key="a", ttl_s=0)
    assert store.claim_pending("s", 1) == 0
    assert store.context("s") == []


# -- tool calls


def call_entry(entry_id: str, call_id: str, name: str = "mail") -> Entry:
    return Entry(id=entry_id, kind="tool_call", content='{"to":"a"}', tool_call_id=call_id, tool_name=name)


def result_entry(call_id: str) -> Entry:
    return Entry(kind="tool_result", content="done", tool_call_id=call_id)


def test_open_calls_are_those_without_a_result(store: Any) -> None:
    store.append_many(
        "s", [said("", id="a1"), call_entry("e1", "c1"), call_entry("e2", "c2"), call_entry("e3", "c3")]
    )
    store.begin_calls("s", ["e1", "e2", "unknown"])
    store.append("s", result_entry("c1"))
    found = store.open_calls("s")
    assert [(item.entry_id, item.call.id, item.call.name) for item in found] == [
        ("e2", "c2", "mail"),
        ("e3", "c3", "mail"),
    ]
    assert found[0].begun_at > 0
    assert found[0].call.arguments == '{"to":"a"}'
    assert found[1].begun_at == 0
    store.append_many("s", [result_entry("c3"), result_entry("c2")])
    assert store.open_calls("s") == []


def test_a_call_id_used_again_is_answered_oldest_first(store: Any) -> None:
    store.append_many("s", [call_entry("e1", "c"), call_entry("e2", "c")])
    store.append("s", result_entry("c"))
    assert [item.entry_id for item in store.open_calls("s")] == ["e2"]


def test_parked_calls_are_settled_once(store: Any) -> None:
    for name, deadline in (("b", 0), ("c", 50), ("a", 20)):
        store.park_call(
            "s", ParkedCall(correlation_id=name, tool_call_id="t", tool_name="n", deadline=deadline)
        )
    assert [item.correlation_id for item in store.parked_calls("s")] == ["a", "c", "b"]
    assert store.settle_call("s", "a", note("came")).content == "came"
    assert store.settle_call("s", "a", note("came again")) is None
    assert store.settle_call("s", "zz", note("never")) is None
    assert store.claim_pending("s", 1) == 1
    assert texts(store.context("s")) == ["came"]
    assert [item.correlation_id for item in store.parked_calls("s")] == ["c", "b"]


def test_one_turn_at_a_time(store: Any) -> None:
    if isinstance(store, Reopened):
        pytest.skip("a turn keeps its store open")
    release = store.lock_turn("s")
    other = store.lock_turn("another session")
    with pytest.raises(SessionBusy, match="'s'"):
        store.lock_turn("s")
    release()
    release()
    again = store.lock_turn("s")
    release()  # an old key opens nothing
    with pytest.raises(SessionBusy):
        store.lock_turn("s")
    again()
    other()


# -- the rest


def test_plans_are_kept(store: Any) -> None:
    store.save_plan("s", b"\x00plan")
    store.save_plan("s", b"\x00plan 2")
    assert store.load_plan("s") == b"\x00plan 2"
    assert store.load_plan("t") is None


def filled(store: Any) -> None:
    entries = store.append_many("s", [user("a", parts=(text_part("p"),)), said("b"), user("c é")])
    store.compact("s", Compaction(marker=Entry(kind="compaction", content="sum"), subsumes=entries[:2]))
    store.publish_notice("s", note("shown"), group_by="g", key="k")
    store.publish_notice("s", note("cleared"), group_by="g", key="gone")
    store.claim_pending("s", 1)
    store.clear("s", "g", "gone")
    store.publish("s", user("waiting"))
    store.publish_notice("s", note("waiting too"), group_by="g", key="w", ttl_s=1000)
    store.append("s", Entry(id="e9", kind="tool_call", content="{}", tool_call_id="c9", tool_name="t"))
    store.begin_calls("s", ["e9"])
    store.park_call("s", ParkedCall(correlation_id="x", tool_call_id="c8", tool_name="t", deadline=9))
    store.save_plan("s", b"\xff\x00")


def whole(store: Any, session_id: str) -> dict[str, Any]:
    return {
        "history": store.history(session_id),
        "context": store.context(session_id),
        "since": store.context_since(session_id, 3),
        "notices": store.pending_notices(session_id),
        "open": store.open_calls(session_id),
        "parked": store.parked_calls(session_id),
        "plan": store.load_plan(session_id),
    }


@pytest.mark.parametrize("target", KINDS)
def test_export_and_import_give_the_whole_session(store: Any, target: str, tmp_path: Path) -> None:
    filled(store)
    lines = list(store.export("s"))
    assert all(line.endswith("\n") and json.loads(line) for line in lines)
    folder = tmp_path / "target"
    folder.mkdir()
    other = make(target, folder)
    other.append("first", user("x"))
    assert other.import_(lines) == "s"
    assert whole(other, "s") == whole(store, "s")
    assert other.import_(lines, session_id="copy") == "copy"
    assert whole(other, "copy") == whole(store, "s")
    with pytest.raises(StoreError, match="already"):
        other.import_(lines)
    assert list(other.export("copy"))[1:] == list(other.export("s"))[1:]
    assert other.claim_pending("copy", 1) == store.claim_pending("s", 1) == 2
    assert other.append("copy", user("goes on")).created_at > max(e.created_at for e in store.history("s"))


def test_damaged_lines_are_refused_whole(store: Any) -> None:
    filled(store)
    lines = list(store.export("s"))
    bad = {
        "none": [],
        "no-header": lines[1:],
        "cut": lines[:-1],
        "cut-in-a-line": [*lines[:3], lines[3][:20]],
        "one-missing": [*lines[:2], *lines[3:]],
        "two-sessions": [*lines[:-1], *lines],
        "newer": [lines[0].replace('"format":1', '"format":9'), *lines[1:]],
        "not-json": ["hello"],
        "deep": ["[" * 100_000],
    }
    for name, given in bad.items():
        with pytest.raises(StoreError):
            store.import_(given, session_id=name)
    assert store.sessions() == ["s"]
    with pytest.raises(StoreError, match="nope"):
        list(store.export("nope"))


def test_stamps_strictly_increase_across_threads(store: Any) -> None:
    def work(number: int) -> None:
        for n in range(15):
            store.append("s", user(f"{number}.{n}"))
            store.publish("s", user(f"p{number}.{n}"))
            store.claim_pending("s", 1)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = store.context("s")
    assert len(found) == 90
    assert len({entry.created_at for entry in found}) == 90
    assert sorted(texts(found)) == sorted(
        f"{p}{t}.{n}" for p in ("", "p") for t in range(3) for n in range(15)
    )


def test_an_incremental_reader_sees_what_a_fresh_one_sees(store: Any) -> None:
    """Random operations; a reader that asks only for what is new keeps the same picture as `context`."""
    chance = random.Random(7)
    picture: dict[str, Entry] = {}
    revision = 0
    for step in range(120):
        action = chance.choice(
            ["append", "append", "publish", "claim", "fold", "notice", "clear", "answer", "read"]
        )
        if action == "append":
            store.append("s", user(str(step)))
        elif action == "publish":
            store.publish("s", user(str(step)))
        elif action == "claim":
            store.claim_pending("s", chance.choice([0, time.time_ns()]))
        elif action == "notice":
            store.publish_notice("s", note(str(step)), group_by="g", key=chance.choice("ab"))
        elif action == "clear":
            store.clear("s", "g", chance.choice("ab"))
        elif action == "answer":
            store.append("s", said(str(step)))
        elif action == "fold":
            visible = store.context("s")
            if len(visible) > 4:
                store.compact(
                    "s",
                    Compaction(
                        marker=Entry(kind="compaction", content=str(step)),
                        subsumes=visible[: len(visible) // 2],
                    ),
                )
        else:
            fresh, revision, gone = store.context_since("s", revision)
            for entry_id in gone:
                del picture[entry_id]
            picture.update((entry.id, entry) for entry in fresh)
            assert picture == {entry.id: entry for entry in store.context("s")}
    assert revision > 0
