"""What the turn relies on in `MemoryStore`."""

from __future__ import annotations

import threading

import pytest

from agentkit_fast import Compaction, Entry, MemoryStore, StoreError


def user(text: str, **more: object) -> Entry:
    return Entry(kind="user", content=text, **more)  # type: ignore[arg-type]


def test_append_fills_id_and_stamp_and_copies() -> None:
    store = MemoryStore()
    given = user("hi")
    stored = store.append("s", given)
    assert stored.id
    assert stored.created_at
    assert given.id == ""
    stored.content = "changed outside"
    assert store.context("s")[0].content == "hi"


def test_stamps_strictly_increase_across_threads() -> None:
    store = MemoryStore()
    threads = [
        threading.Thread(target=lambda: [store.append("s", user("x")) for _ in range(200)])
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    stamps = [entry.created_at for entry in store.context("s")]
    assert len(set(stamps)) == 800


def test_same_id_again_is_a_no_op_and_other_content_an_error() -> None:
    store = MemoryStore()
    first = store.append("s", user("a", id="e1"))
    assert store.append("s", user("a", id="e1")) == first
    with pytest.raises(StoreError, match="e1"):
        store.append("s", user("b", id="e1"))
    with pytest.raises(StoreError):
        store.append_many("s", [user("c", id="e2"), user("d", id="e2")])
    assert [entry.id for entry in store.context("s")] == ["e1"]


def test_claim_stamps_after_everything_shown() -> None:
    store = MemoryStore()
    store.publish("s", user("waiting"))
    late = store.append("s", user("shown", created_at=2**62))
    assert [entry.content for entry in store.context("s")] == ["shown"]
    assert store.claim_pending("s", 5) == 1
    assert store.claim_pending("s", 6) == 0
    found = store.context("s")
    assert [entry.content for entry in found] == ["shown", "waiting"]
    assert found[1].created_at > late.created_at


def test_context_since_and_compact() -> None:
    store = MemoryStore()
    entries = store.append_many("s", [user(str(n)) for n in range(4)])
    found, revision, gone = store.context_since("s", 0)
    assert (found, gone) == (entries, [])
    marker = store.compact(
        "s", Compaction(marker=Entry(kind="compaction", content="sum"), subsumes=entries[:2])
    )
    assert marker.created_at == entries[1].created_at
    found, after, gone = store.context_since("s", revision)
    assert found == [marker]
    assert gone == [entries[0].id, entries[1].id]
    assert store.context_since("s", after) == ([], after, [])
    assert [entry.content for entry in store.context_since("s", 0)[0]] == ["2", "3", "sum"]
    assert len(store.history("s")) == 5
    with pytest.raises(StoreError, match="out of date"):
        store.compact("s", Compaction(marker=Entry(kind="compaction"), subsumes=entries[:1]))
    assert len(store.context("s")) == 3


def test_notices_supersede_expire_and_clear() -> None:
    store = MemoryStore()
    note = Entry(kind="notification", content="old")
    store.publish_notice("s", note, group_by="file", key="a")
    store.publish_notice("s", Entry(kind="notification", content="new"), group_by="file", key="a")
    store.publish_notice("s", note, group_by="file", key="gone", ttl_s=0)
    assert store.claim_pending("s", 1) == 1
    assert [entry.content for entry in store.context("s")] == ["new"]
    assert [(notice.key, notice.claimed) for notice in store.pending_notices("s")] == [("a", True)]
    assert store.clear("s", "file", "a") == 1
    assert store.context("s") == []
    store.publish_notice("s", note, group_by="file", key="b")
    store.claim_pending("s", 1)
    store.append("s", Entry(kind="assistant", content="seen"))
    assert store.pending_notices("s") == []
    assert store.clear("s", "file", "b") == 0
    assert len(store.context("s")) == 2
