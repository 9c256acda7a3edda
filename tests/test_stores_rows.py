"""One row for each thing that once broke in a store of ours: every row holds for all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from agentkit_fast import Compaction, Entry, SQLiteStore, StoreError
from agentkit_fast.entries import ParkedCall
from test_stores_contract import KINDS, make, note, said, texts, user

PAIR = "\ud83d\ude00"  # one emoji, in two halves as JavaScript counts
ODD = ["", "\x00", "a\x00b", "\ud800", PAIR + "!", "\u2028", "\ufdd0", "'; DROP TABLE entries; --"]


@pytest.fixture(params=KINDS)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    return make(request.param, tmp_path)


@pytest.mark.parametrize("name", ODD, ids=ascii)
def test_any_characters_in_any_name(store: Any, name: str) -> None:
    stored = store.append(name, user(name, id=name, tag=name, origin=name, reasoning=name))
    assert store.context(name) == [stored]
    odd_kind = store.append("kinds", Entry(kind=name, content="x"))
    assert store.context("kinds") == [odd_kind]
    assert store.history(name, before=name or stored.id) == []
    store.publish_notice(name, note("n"), group_by=name, key=name)
    assert store.clear(name, name, name) == 1
    store.publish_notice(name, note("n"), group_by=name, key=name)
    for correlation_id in (name, "other"):
        store.park_call(
            name, ParkedCall(correlation_id=correlation_id, tool_call_id=name, tool_name=name, deadline=5)
        )
    assert store.settle_call(name, name, note("r")) is not None
    copy = store.import_(list(store.export(name)), session_id="copy")
    assert store.context(copy) == store.context(name)
    assert store.claim_pending(copy, 1) == 2


def a_pair_is_one_character(store: Any) -> None:
    store.append(PAIR, user("a", id=PAIR))
    assert store.sessions() == ["😀"]
    store.park_call("😀", ParkedCall(correlation_id=PAIR, tool_call_id="c", tool_name="t"))
    assert store.settle_call("😀", "😀", note("r")) is not None
    store.publish_notice("😀", note("n"), group_by=PAIR, key="k")
    assert store.clear("😀", "😀", "k") == 1


def a_batch_may_be_made_by_what_uses_the_store(store: Any) -> None:
    def entries() -> Iterator[Entry]:
        for n in range(2):
            store.append("s", user(f"inner {n}"))
            yield user(f"outer {n}")

    store.append_many("s", entries())
    assert texts(store.context("s")) == ["inner 0", "inner 1", "outer 0", "outer 1"]


def a_refused_notice_replaces_nothing(store: Any) -> None:
    store.append("s", user("u", id="taken"))
    store.publish_notice("s", note("first"), group_by="g", key="k")
    with pytest.raises(StoreError, match="taken"):
        store.publish_notice("s", note("second", id="taken"), group_by="g", key="k")
    assert [found.key for found in store.pending_notices("s")] == ["k"]
    assert store.claim_pending("s", 1) == 1
    assert texts(store.context("s")) == ["u", "first"]


def the_same_notice_after_its_claim_is_no_second_one(store: Any) -> None:
    same = note("n", id="N")
    for _ in range(2):
        store.publish_notice("s", same, group_by="g", key="k")
    assert store.claim_pending("s", 1) == 1
    store.publish_notice("s", same, group_by="g", key="k")
    assert [found.claimed for found in store.pending_notices("s")] == [True]
    store.append("s", said())
    store.publish_notice("s", same, group_by="g", key="k")
    assert store.pending_notices("s") == []


def an_answer_in_the_inbox_answers_what_came_before_it(store: Any) -> None:
    store.publish_notice("s", note("before"), group_by="g", key="before")
    store.publish("s", said("from elsewhere"))
    store.publish_notice("s", note("after"), group_by="g", key="after")
    assert store.claim_pending("s", 1) == 3
    assert [(found.key, found.claimed) for found in store.pending_notices("s")] == [("after", True)]
    assert store.clear("s", "g", "before") == 0
    assert store.clear("s", "g", "after") == 1
    assert texts(store.context("s")) == ["before", "from elsewhere"]


def only_an_assistant_entry_is_an_answer(store: Any) -> None:
    store.publish_notice("s", note("n"), group_by="g", key="k")
    store.claim_pending("s", 1)
    store.append("s", Entry(kind="tool_call", content="{}", tool_call_id="c", tool_name="t"))
    store.append("s", Entry(kind="tool_result", content="done", tool_call_id="c"))
    store.append("s", user("and?"))
    assert [found.claimed for found in store.pending_notices("s")] == [True]
    store.append("s", said())
    assert store.pending_notices("s") == []


def clearing_what_is_folded_is_no_change(store: Any) -> None:
    shown = store.publish_notice("s", note("n"), group_by="g", key="k")
    store.claim_pending("s", 1)
    marker = Entry(kind="compaction", content="m", id="M")
    store.compact("s", Compaction(marker=marker, subsumes=[shown]))
    revision = store.context_since("s", 0)[1]
    store.clear("s", "g", "k")
    assert store.context_since("s", revision) == ([], revision, [])
    assert sorted(texts(store.history("s"))) == ["m", "n"]
    store.import_(list(store.export("s")), session_id="copy")


def a_store_takes_in_its_own_export(store: Any) -> None:
    store.append_many("s", [user(str(n)) for n in range(5)])
    store.import_(store.export("s"), session_id="t")
    assert store.context("t") == store.context("s")
    lines = iter(store.export("s"))
    next(lines)
    store.append("s", user("while it is read"))
    assert len(list(lines)) == 6
    lines = iter(store.export("s"))
    next(lines)
    del lines
    store.append("s", user("after it was dropped"))
    assert len(store.context("s")) == 7


ROWS: list[Callable[[Any], None]] = [
    a_batch_may_be_made_by_what_uses_the_store,
    a_pair_is_one_character,
    a_refused_notice_replaces_nothing,
    a_store_takes_in_its_own_export,
    an_answer_in_the_inbox_answers_what_came_before_it,
    clearing_what_is_folded_is_no_change,
    only_an_assistant_entry_is_an_answer,
    the_same_notice_after_its_claim_is_no_second_one,
]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.__name__)
def test_row(store: Any, row: Callable[[Any], None]) -> None:
    row(store)


# What somebody changed in a good export, as (old, new); the session holds a user entry and a call.
EDITS = [
    ("negative-revision", '"revision":2', '"revision":-1'),
    ("huge-revision", '"revision":2', '"revision":1000000000000'),
    ("low-revision", '"revision":2', '"revision":1'),
    ("negative-shown", '"shown_rev":1', '"shown_rev":-7'),
    ("shown-twice", '"shown_rev":1', '"shown_rev":2'),
    ("unknown-state", '"state":1', '"state":77'),
    ("folded-never-hidden", '"state":1', '"state":2'),
    ("waiting-but-shown", '"state":1', '"state":0'),
    ("unknown-entry", '"entry_id":"2"', '"entry_id":"9"'),
    ("call-that-is-none", '"entry_id":"2"', '"entry_id":"1"'),
    ("id-twice", '"id":"2"', '"id":"1"'),
    ("no-id", '"id":"2"', '"id":""'),
    ("stamp-too-large", '"created_at":1', '"created_at":99999999999999999999'),
    ("last-stamp-too-large", '"last_stamp":', '"last_stamp":99999999999999999999'),
    ("newer", '"format":1', '"format":2'),
    ("miscounted", '"records":3', '"records":2'),
    ("half-a-pair", '"session_id":"s"', '"session_id":"\\ud800"'),
]


@pytest.mark.parametrize(("old", "new"), [row[1:] for row in EDITS], ids=[row[0] for row in EDITS])
def test_edited_exports_are_refused_whole(store: Any, old: str, new: str) -> None:
    store.append("s", user("a", id="1"))
    store.append("s", Entry(kind="tool_call", content="{}", tool_call_id="c", tool_name="t", id="2"))
    lines = [line.replace(old, new, 1) for line in store.export("s")]
    assert lines != list(store.export("s"))
    with pytest.raises(StoreError):
        store.import_(lines, session_id="t")
    assert store.sessions() == ["s"]


def test_nothing_may_follow_the_closing_line(store: Any) -> None:
    store.append("s", user("a"))
    lines = list(store.export("s"))
    with pytest.raises(StoreError, match="closing"):
        store.import_([*lines, *lines], session_id="t")
    assert store.sessions() == ["s"]


def test_a_path_with_a_nul_character_is_a_store_error() -> None:
    with pytest.raises(StoreError, match="NUL"):
        SQLiteStore("a\x00b.db")
