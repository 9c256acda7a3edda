"""`FinderPreparer` and `FtsFinder`."""

from __future__ import annotations

import asyncio
import math
import sqlite3
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from agentkit_fast import (
    Compaction,
    DocHit,
    Entry,
    FinderOptions,
    FinderPreparer,
    MemoryStore,
    SQLiteStore,
    StoreError,
)
from agentkit_fast.stores.fts import FtsFinder


class Plain:
    """A host's own store: the four methods, nothing else."""

    def __init__(self) -> None:
        self._inner = MemoryStore()
        for name in ("claim_pending", "append", "context", "compact"):
            setattr(self, name, getattr(self._inner, name))


@pytest.fixture(params=["memory", "sqlite", "plain"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    if request.param == "sqlite":
        return SQLiteStore(tmp_path / "s.db", synchronous="normal")
    return MemoryStore() if request.param == "memory" else Plain()


class Finder:
    def __init__(self, *hits: DocHit) -> None:
        self.hits = list(hits)
        self.asked: list[list[str]] = []
        self.error: Exception | None = None

    def find(self, texts: list[str]) -> list[DocHit]:
        self.asked.append(texts)
        if self.error:
            raise self.error
        return self.hits


def hit(doc_id: str, score: float = 1.0, **more: Any) -> DocHit:
    return DocHit(doc_id=doc_id, title=f"About {doc_id}", score=score, **more)


def say(store: Any, text: str, kind: str = "user") -> None:
    store.append("s", Entry(kind=kind, content=text))


def mentions(store: Any) -> list[str]:
    found = sorted(store.context("s"), key=lambda entry: (entry.created_at, entry.id))
    return [entry.origin.removeprefix("doc:") for entry in found if entry.tag == "rag"]


def test_pointers_are_added_once_best_first(store: Any) -> None:
    finder = Finder(hit("b", 2), hit("a", 3), hit("c", 1), hit("d", 0.5))
    preparer = FinderPreparer(store, finder)
    say(store, "How do I bake bread?")
    preparer.prepare("s")
    assert finder.asked == [["How do I bake bread?"]]
    assert mentions(store) == ["a", "b", "c"]
    preparer.prepare("s")
    assert len(finder.asked) == 1  # nothing new was said, its own notices do not count
    say(store, "With rye.", kind="assistant")
    preparer.prepare("s")
    assert finder.asked[1] == ["With rye."]
    assert mentions(store) == ["a", "b", "c", "d"]


def test_the_pointer_is_one_line_with_the_id(store: Any) -> None:
    say(store, "x")
    FinderPreparer(store, Finder(hit("d1", line="first\nsecond " + "y" * 5000))).prepare("s")
    entry = store.context("s")[-1]
    assert (entry.kind, entry.tag) == ("notification", "rag")
    assert "d1" in entry.content
    assert "About d1" in entry.content
    assert "\n" not in entry.content
    assert len(entry.content) < 500


OPTIONS: list[tuple[str, FinderOptions, list[str]]] = [
    ("min-score", FinderOptions(min_score=1.5), ["a"]),
    ("max-hits", FinderOptions(max_hits=1), ["a"]),
    ("no-bound", FinderOptions(max_hits=0), ["a", "b", "c", "d", "e"]),
    ("default", FinderOptions(), ["a", "b", "c"]),
]


@pytest.mark.parametrize(
    ("options", "wanted"), [row[1:] for row in OPTIONS], ids=[row[0] for row in OPTIONS]
)
def test_options(store: Any, options: FinderOptions, wanted: list[str]) -> None:
    say(store, "x")
    finder = Finder(
        hit("e", 0.1), hit("a", 2), hit("a", 9), hit("b", 1.2), hit("c"), hit("d"), hit("n", math.nan)
    )
    if options.min_score:
        finder.hits[2] = hit("a", 2)
    FinderPreparer(store, finder, options).prepare("s")
    assert mentions(store) == wanted


def test_kinds_tag_and_render(store: Any) -> None:
    options = FinderOptions(kinds=("tool_result",), tag="docs", render=lambda found: f"see {found.doc_id}")
    finder = Finder(hit("a"))
    say(store, "not listened to")
    FinderPreparer(store, finder, options).prepare("s")
    assert finder.asked == []
    say(store, "seen", kind="tool_result")
    FinderPreparer(store, finder, options).prepare("s")
    assert finder.asked == [["seen"]]
    entry = store.context("s")[-1]
    assert (entry.tag, entry.content) == ("docs", "see a")


def test_a_failing_finder_is_asked_again_about_the_same(
    store: Any, caplog: pytest.LogCaptureFixture
) -> None:
    finder = Finder(hit("a"))
    finder.error = RuntimeError("index is being built")
    preparer = FinderPreparer(store, finder)
    say(store, "one")
    preparer.prepare("s")
    assert mentions(store) == []
    assert "index is being built" in caplog.text
    say(store, "two")
    finder.error = None
    preparer.prepare("s")
    assert finder.asked[-1] == ["one", "two"]
    assert mentions(store) == ["a"]


def test_a_slow_finder_is_left_behind_and_not_piled_up(store: Any) -> None:
    release = threading.Event()
    started = []

    def find(texts: list[str]) -> list[DocHit]:
        started.append(texts)
        release.wait(20)
        return [hit("a")]

    preparer = FinderPreparer(store, find, FinderOptions(timeout_s=0.05))  # type: ignore[arg-type]
    say(store, "one")
    begun = time.monotonic()
    preparer.prepare("s")
    preparer.prepare("s")
    assert time.monotonic() - begun < 5
    assert len(started) == 1
    release.set()
    deadline = time.monotonic() + 10
    while not mentions(store) and time.monotonic() < deadline:
        preparer.prepare("s")
        time.sleep(0.01)
    assert mentions(store) == ["a"]
    assert started[-1] == ["one"]


def test_an_async_finder(store: Any) -> None:
    class Async:
        async def find(self, texts: list[str]) -> list[DocHit]:
            await asyncio.sleep(10 if texts == ["slow"] else 0)
            return [hit("a")]

    preparer = FinderPreparer(store, Async(), FinderOptions(timeout_s=0.1))  # type: ignore[arg-type]
    say(store, "slow")
    asyncio.run(preparer.prepare("s"))
    assert mentions(store) == []
    say(store, "quick")
    asyncio.run(preparer.prepare("s"))
    assert mentions(store) == ["a"]


def test_a_failing_store_is_raised_and_the_same_is_tried_again() -> None:
    class Broken(MemoryStore):
        broken = False

        def append_many(self, session_id: str, entries: Any) -> list[Entry]:
            if self.broken:
                raise StoreError("no disk")
            return super().append_many(session_id, entries)

    store = Broken()
    say(store, "one")
    store.broken = True
    finder = Finder(hit("a"))
    preparer = FinderPreparer(store, finder)
    with pytest.raises(StoreError, match="no disk"):
        preparer.prepare("s")
    store.broken = False
    preparer.prepare("s")
    assert finder.asked == [["one"], ["one"]]
    assert mentions(store) == ["a"]


def test_a_new_process_does_not_mention_again_what_is_in_the_context(store: Any) -> None:
    say(store, "one")
    FinderPreparer(store, Finder(hit("a"))).prepare("s")
    again = Finder(hit("a"), hit("b"))
    FinderPreparer(store, again).prepare("s")
    assert mentions(store) == ["a", "b"]


def test_sessions_are_kept_apart(store: Any) -> None:
    preparer = FinderPreparer(store, Finder(hit("a")))
    say(store, "one")
    store.append("t", Entry(kind="user", content="other"))
    preparer.prepare("s")
    preparer.prepare("t")
    assert mentions(store) == ["a"]
    assert [entry.tag for entry in store.context("t")] == ["", "rag"]


def test_the_first_look_at_a_long_history_is_bounded() -> None:
    store = MemoryStore()
    store.append_many("s", [Entry(kind="user", content=str(n)) for n in range(500)])
    finder = Finder()
    FinderPreparer(store, finder).prepare("s")
    assert finder.asked == [[str(n) for n in range(468, 500)]]


def test_a_fold_between_two_passes(store: Any) -> None:
    finder = Finder(hit("a"))
    preparer = FinderPreparer(store, finder)
    say(store, "one")
    say(store, "two")
    preparer.prepare("s")
    entries = store.context("s")
    store.compact("s", Compaction(marker=Entry(kind="compaction", content="sum"), subsumes=entries))
    say(store, "three")
    preparer.prepare("s")
    assert finder.asked[-1] == ["three"]
    assert mentions(store) == []


# -- FtsFinder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = tmp_path / "docs"
    (root / "deep").mkdir(parents=True)
    (root / "bread.md").write_text(
        "# Baking bread\n\nKnead the dough, let it rise.\n\nBake at 230 degrees."
    )
    (root / "deep" / "tea.txt").write_text("Tea wants water just off the boil. Naïve café owners burn it.")
    (root / "code.py").write_text("def knead(dough):\n    return dough.fold(4)\n")
    (root / "picture.txt").write_bytes(b"\x00\x01binary")
    (root / ".hidden.md").write_text("bread bread bread")
    (root / "unknown.bin").write_text("bread")
    return root


def test_a_folder_is_indexed_and_found(folder: Path) -> None:
    with FtsFinder() as finder:
        report = finder.index_folder(folder)
        assert (report.added, report.skipped) == (3, 1)
        found = finder.find(["How do I bake bread from dough?"])
        assert [item.doc_id for item in found] == ["bread.md", "code.py"]
        assert found[0].title == "Baking bread"
        assert found[0].score > found[1].score > 0
        assert "\n" not in found[0].line
        assert finder.find(["naive CAFE"])[0].doc_id == "deep/tea.txt"  # accents and case do not count
        assert finder.find(["zzz"]) == []
        assert finder.find([]) == []
        assert finder.read("deep/tea.txt") == (folder / "deep" / "tea.txt").read_text()
        assert finder.read("nope") is None


def test_indexing_again_takes_only_what_changed(folder: Path, tmp_path: Path) -> None:
    with FtsFinder(tmp_path / "index.db") as finder:
        finder.index_folder(folder)
    (folder / "bread.md").write_text("# Baking rolls\n\nSmaller, hotter.")
    (folder / "code.py").unlink()
    (folder / "new.md").write_text("Porridge.")
    with FtsFinder(tmp_path / "index.db") as finder:
        report = finder.index_folder(folder)
        assert (report.added, report.updated, report.removed, report.unchanged) == (1, 1, 1, 1)
        assert finder.find(["knead"]) == []
        assert finder.find(["rolls porridge"])[0].doc_id in ("bread.md", "new.md")
        assert finder.index_folder(folder).unchanged == 3


HOSTILE = [
    '"',
    '" OR 1=1 --',
    "a* NEAR(b) AND NOT c",
    "col:title ^x",
    "\ud83d bread",
    "\x00",
    "(((",
    "x" * 100_000,
]


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_any_text_is_a_question(text: str) -> None:
    with FtsFinder() as finder:
        finder.add("a", "bread " + text, title=text)
        finder.find([text])
        assert finder.find([text + " bread"])[0].doc_id == "a"


def test_long_documents_are_found_by_any_passage_and_read_in_pages() -> None:
    with FtsFinder() as finder:
        text = "".join(f"Section {n}.\n\n" + "filler é " * 100 + f"word{n}\n\n" for n in range(50))
        finder.add("long", text)
        assert [item.doc_id for item in finder.find(["word37"])] == ["long"]
        assert "word37" in finder.find(["word37"])[0].line
        read = finder.read_tool(page_bytes=1000)
        whole, offset = "", 0
        while True:
            page = read(doc_id="long", offset=offset)
            body, mark, rest = page.rpartition("\n[bytes ")
            whole += body if mark else page
            if not mark:
                break
            offset = int(rest.split("offset=")[1].rstrip("]"))
        assert whole == text
        assert "no document" in read(doc_id="x")


def test_add_replaces_and_remove_forgets() -> None:
    with FtsFinder() as finder:
        finder.add("a", "bread")
        finder.add("a", "tea")
        assert finder.find(["bread"]) == []
        assert finder.remove("a")
        assert not finder.remove("a")
        assert finder.find(["tea"]) == []


def test_scripts_without_spaces() -> None:
    with FtsFinder(tokenize="trigram") as finder:
        finder.add("zh", "如何在家里烤面包,先把面粉和水混合。")
        assert [item.doc_id for item in finder.find(["在家里烤面包"])] == ["zh"]


def test_files_that_are_no_index(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no database " * 100)
    connection = sqlite3.connect(tmp_path / "theirs")
    connection.execute("CREATE TABLE theirs (x)")
    connection.close()
    for name in ("text", "theirs"):
        before = (tmp_path / name).read_bytes()
        with pytest.raises(StoreError, match=name):
            FtsFinder(tmp_path / name)
        assert (tmp_path / name).read_bytes() == before
    with FtsFinder() as finder, pytest.raises(StoreError, match="not a folder"):
        finder.index_folder(tmp_path / "nowhere")


def test_the_feature_works_out_of_the_box(folder: Path, tmp_path: Path) -> None:
    store = SQLiteStore(tmp_path / "s.db")
    finder = FtsFinder(tmp_path / "index.db")
    finder.index_folder(folder)
    say(store, "I want to bake bread")
    FinderPreparer(store, finder).prepare("s")
    assert mentions(store) == ["bread.md"]
    assert "Baking bread (document id bread.md): " in store.context("s")[-1].content


def test_many_threads() -> None:
    with FtsFinder() as finder:
        failures: list[BaseException] = []

        def work(number: int) -> None:
            try:
                for n in range(20):
                    finder.add(f"{number}.{n}", f"bread {number}")
                    assert finder.find([f"bread {number}"])
            except (StoreError, AssertionError) as error:
                failures.append(error)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert failures == []


def lazily_broken(texts: list[str]) -> Any:
    yield hit("a", 1)
    raise RuntimeError("the index went away")


async def _found(texts: list[str]) -> list[DocHit]:
    return [hit("a", 1)]


def awaited_by_whoever_calls(texts: list[str]) -> Any:
    return _found(texts)


class AsyncObject:
    async def __call__(self, texts: list[str]) -> list[DocHit]:
        return [hit("a", 1)]


# (finder, whether it finds): whatever comes back is the finder's work, and its faults are the finder's.
FINDERS: list[tuple[str, Any, bool]] = [
    ("gives-none", lambda texts: None, False),
    ("gives-numbers", lambda texts: [1, 2], False),
    ("score-is-text", lambda texts: [DocHit("a", "A", "high")], False),  # type: ignore[arg-type]  # on purpose
    ("id-is-none", lambda texts: [DocHit(None, "A", 1.0)], False),  # type: ignore[arg-type]  # on purpose
    ("breaks-in-the-middle", lazily_broken, False),
    ("generator", lambda texts: (found for found in [hit("a", 1)]), True),
    ("awaitable", awaited_by_whoever_calls, True),
    ("async-object", AsyncObject(), True),
]


@pytest.mark.parametrize(("finder", "finds"), [row[1:] for row in FINDERS], ids=[row[0] for row in FINDERS])
@pytest.mark.parametrize("timeout_s", [0, 3.0], ids=["unbounded", "bounded"])
def test_a_fault_in_what_a_finder_gives_is_a_finders_fault(
    store: Any, finder: Any, finds: bool, timeout_s: float
) -> None:
    say(store, "x")
    preparer = FinderPreparer(store, finder, FinderOptions(timeout_s=timeout_s))
    preparer.prepare("s")
    assert mentions(store) == (["a"] if finds else [])
    preparer._find = lambda texts: [hit("b", 1)]
    preparer.prepare("s")  # asked again about the same, where nothing was found
    assert mentions(store) == (["a"] if finds else ["b"])


def test_a_store_of_four_methods_gets_whole_entries() -> None:
    class Four:
        def __init__(self) -> None:
            self.entries: list[Entry] = []

        def claim_pending(self, session_id: str, at: int) -> int:
            return 0

        def append(self, session_id: str, entry: Entry) -> None:
            assert entry.id
            assert entry.created_at > max((known.created_at for known in self.entries), default=0)
            self.entries.append(entry)

        def context(self, session_id: str) -> list[Entry]:
            return list(reversed(self.entries))

        def compact(self, session_id: str, compaction: Any) -> None:
            raise AssertionError

    far = time.time_ns() + 10**15
    four = Four()
    four.append("s", Entry(id="u", kind="user", content="x", created_at=far))
    FinderPreparer(four, Finder(hit("a", 2), hit("b", 1))).prepare("s")
    assert [entry.origin for entry in four.entries[1:]] == ["doc:a", "doc:b"]


def test_sessions_do_not_wait_for_each_other() -> None:
    store = MemoryStore()
    both = threading.Barrier(2, timeout=20)

    def find(texts: list[str]) -> list[DocHit]:
        both.wait()
        return [hit("a", 1)]

    preparer = FinderPreparer(store, find, FinderOptions(timeout_s=20))
    for name in "pq":
        store.append(name, Entry(kind="user", content="x"))
    threads = [threading.Thread(target=preparer.prepare, args=(name,)) for name in "pq"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [len(store.context(name)) for name in "pq"] == [2, 2]
