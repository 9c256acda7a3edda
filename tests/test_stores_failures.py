"""What a SQLite store says when its file cannot be used, and that nothing is destroyed by it."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from agentkit_fast import Entry, SessionBusy, SQLiteStore, StoreError
from agentkit_fast.stores.sqlite import schema


def user(text: str, **more: object) -> Entry:
    return Entry(kind="user", content=text, **more)  # type: ignore[arg-type]


def filled(path: Path, count: int = 50) -> list[Entry]:
    with SQLiteStore(path) as store:
        return store.append_many("s", [user(f"{n} " + "x" * 500) for n in range(count)])


def newer(path: Path) -> None:
    filled(path)
    connection = sqlite3.connect(path)
    connection.execute(f"PRAGMA user_version = {schema.VERSION + 1}")
    connection.close()


def newer_in_wal(path: Path) -> None:
    """The version is in the write-ahead log only, as a killed newer program leaves it."""
    filled(path)
    script = f"""
        import os, sqlite3
        connection = sqlite3.connect({str(path)!r})
        connection.execute("PRAGMA user_version = {schema.VERSION + 1}")
        os._exit(0)
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(script)], check=True)


def foreign(path: Path) -> None:
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE theirs (x)")
    connection.execute("INSERT INTO theirs VALUES (1)")
    connection.commit()
    connection.close()


def foreign_marked(path: Path) -> None:
    foreign(path)
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA application_id = 77")
    connection.close()


def damaged_head(path: Path) -> None:
    filled(path)
    with path.open("r+b") as file:
        file.write(b"\x00" * 16)


def damaged_pages(path: Path) -> None:
    filled(path, 2000)
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(b"\xee" * (path.stat().st_size - 4096))


def read_only(path: Path) -> None:
    filled(path)
    path.chmod(0o444)


UNUSABLE: list[tuple[str, Callable[[Path], object], str]] = [
    ("folder", lambda path: path.mkdir(), "is a folder"),
    ("no-folder", lambda path: path.parent.rmdir(), "there is no folder"),
    ("text", lambda path: path.write_text("these are my notes, " * 20), "not a SQLite database"),
    ("short", lambda path: path.write_bytes(b"SQLite format 3\x00"), "not a SQLite database"),
    ("newer", newer, "newer agentkit-fast"),
    ("newer-in-wal", newer_in_wal, "newer agentkit-fast"),
    ("foreign", foreign, "another program"),
    ("foreign-marked", foreign_marked, "another program"),
    ("damaged-head", damaged_head, "not a SQLite database"),
    ("damaged-pages", damaged_pages, "damaged"),
    ("read-only", read_only, "read-only"),
]


@pytest.mark.parametrize(
    ("spoil", "words"), [row[1:] for row in UNUSABLE], ids=[row[0] for row in UNUSABLE]
)
def test_unusable_files_are_named_and_left_alone(
    spoil: Callable[[Path], object], words: str, tmp_path: Path
) -> None:
    path = tmp_path / "inner" / "agent.db"
    path.parent.mkdir()
    spoil(path)
    before = path.read_bytes() if path.is_file() else None
    with pytest.raises(StoreError, match=words) as raised:
        SQLiteStore(path)
    assert str(path) in str(raised.value)
    if before is not None:
        assert path.read_bytes() == before


def test_a_page_damaged_behind_the_back_is_a_store_error(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    entries = filled(path, 3000)
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.seek(size // 2)
        file.write(b"\xee" * (size // 4))
    before = path.read_bytes()
    with pytest.raises(StoreError, match=r"s\.db: it is damaged"), SQLiteStore(path) as store:
        assert len(store.context("s")) == len(entries)
    assert path.read_bytes() == before


def read_all(path: Path) -> None:
    with SQLiteStore(path) as store:
        store.context("s")
        store.history("s")
        store.append("s", user("more"))


def test_a_file_cut_short(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    filled(path, 1000)
    whole = path.read_bytes()
    # (The very last bytes may belong to a page that no reading touches.)
    for size in (1, 99, 100, 4096, 5000, len(whole) // 2):
        path.write_bytes(whole[:size])
        with pytest.raises(StoreError, match=r"s\.db"):
            read_all(path)


def test_an_empty_file_is_a_new_store(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    path.touch()
    with SQLiteStore(path) as store:
        store.append("s", user("a"))
    with SQLiteStore(path) as store:
        assert len(store.context("s")) == 1


def test_the_disk_is_full(tmp_path: Path) -> None:
    """The system's own limit on a file's size stands in for a full disk: every write past it fails."""
    script = """
        import os, resource, signal, sys
        from agentkit_fast import Entry, SQLiteStore, StoreError
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        path = sys.argv[1]
        store = SQLiteStore(path)
        resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000))
        stored = 0
        failures = []
        for n in range(40):
            try:
                store.append("s", Entry(kind="user", content=f"{n} " + "x" * 20_000))
                stored += 1
            except StoreError as error:
                failures.append(str(error))
        assert failures and stored, (failures, stored)
        assert all(path in words and "nothing was stored" in words for words in failures), failures
        assert len(store.context("s")) == stored  # reading goes on
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        print(stored)
    """
    path = tmp_path / "s.db"
    # A soft limit may be raised again only below the hard one, so the last line may fail: what counts is stored.
    script = script.replace("(300_000, 300_000)", "(300_000, resource.RLIM_INFINITY)")
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script), str(path)],
        check=True,
        capture_output=True,
        text=True,
    )
    with SQLiteStore(path) as store:
        assert len(store.context("s")) == int(done.stdout)
        store.append("s", user("there is room again"))


def test_another_program_holds_the_lock(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    filled(path)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with SQLiteStore(path, timeout_s=0.1) as store:
        with pytest.raises(StoreError, match="locked"):
            store.append("s", user("a"))
        assert len(store.context("s")) == 50  # readers do not wait
        other.execute("ROLLBACK")
        store.append("s", user("a"))
    other.close()


@pytest.mark.skipif(os.name != "posix", reason="an open file can be moved on POSIX only")
def test_a_file_that_goes_away_while_it_is_open(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    with SQLiteStore(path) as store:
        store.append("s", user("a"))
        path.rename(tmp_path / "elsewhere.db")
        with pytest.raises(StoreError, match="deleted, moved or replaced"):
            store.append("s", user("b"))
        filled(path)  # a new file under the old name is not it
        with pytest.raises(StoreError, match="deleted, moved or replaced"):
            store.append("s", user("b"))


def test_the_working_directory_may_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with SQLiteStore("s.db") as store:
        (tmp_path / "inner").mkdir()
        monkeypatch.chdir(tmp_path / "inner")
        store.append("s", user("a"))
        assert list(store.export("s"))
    assert not (tmp_path / "inner" / "s.db").exists()


def test_a_number_past_64_bits(tmp_path: Path) -> None:
    with SQLiteStore(tmp_path / "s.db") as store:
        with pytest.raises(StoreError, match="64 bits"):
            store.append("s", user("a", created_at=2**70))
        assert store.context("s") == []


def test_a_closed_store_says_so(tmp_path: Path) -> None:
    store = SQLiteStore(tmp_path / "s.db")
    store.close()
    store.close()
    with pytest.raises(StoreError, match="closed"):
        store.append("s", user("a"))


def test_an_old_file_is_brought_up_to_date(tmp_path: Path) -> None:
    from test_stores_killed import old_file

    path = tmp_path / "s.db"
    old_file(path, 10)
    with SQLiteStore(path) as store:
        assert len(store.context("s")) == 10
        assert store.append("s", user("new")).created_at > 10
        store.publish_notice("s", user("note"), group_by="g", key="k")
        assert len(store.pending_notices("s")) == 1


def test_an_interrupted_transaction_leaves_nothing(tmp_path: Path) -> None:
    with SQLiteStore(tmp_path / "s.db") as store:
        store.append("s", user("before"))

        def entries():  # type: ignore[no-untyped-def]
            yield user("a")
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            store.append_many("s", entries())
        assert len(store.context("s")) == 1
        store.append("s", user("b"))


def test_an_interrupt_between_two_steps_blocks_nothing(tmp_path: Path) -> None:
    """As a KeyboardInterrupt may leave it: a transaction that nobody ends."""
    for path in (tmp_path / "s.db", Path(":memory:")):
        with SQLiteStore(path) as store:
            store.append("s", user("a"))
            store._db.writer.execute("BEGIN IMMEDIATE")
            if str(path) != ":memory:":
                store._db._reader.execute("BEGIN")
            store.append("s", user("b"))
            assert [entry.content for entry in store.context("s")] == ["a", "b"]


def test_what_makes_the_entries_may_use_the_store(tmp_path: Path) -> None:
    with SQLiteStore(tmp_path / "s.db") as store:
        stored = store.append_many("s", (store.append("t", user(str(n))) for n in range(3)))
        assert store.context("s") == stored
        store.import_(store.export("s"), session_id="copy")
        assert store.context("copy") == stored


def test_an_entry_of_many_megabytes(tmp_path: Path) -> None:
    with SQLiteStore(tmp_path / "s.db") as store:
        stored = store.append("s", user("é" * 30_000_000))
        assert store.context("s")[0].content == stored.content


def test_a_dropped_store_is_closed_quietly(tmp_path: Path) -> None:
    script = """
        import sys, warnings
        warnings.simplefilter("error")
        from agentkit_fast import Entry, SQLiteStore, StoreError
        SQLiteStore(sys.argv[1]).append("s", Entry(kind="user", content="a"))
        try:
            SQLiteStore(sys.argv[1] + "/no/such")
        except StoreError:
            pass
    """
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-c", textwrap.dedent(script), str(tmp_path / "s.db")],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == ""


# -- several processes

STRESS = """
    import sys
    from agentkit_fast import Compaction, Entry, SQLiteStore, StoreError
    path, name = sys.argv[1], sys.argv[2]
    store = SQLiteStore(path, synchronous="normal")
    claimed = folds = 0
    for n in range(150):
        store.append("s", Entry(id=f"a{name}.{n}", kind="user", content="x"))
        store.publish("s", Entry(id=f"p{name}.{n}", kind="user", content="x"))
        claimed += store.claim_pending("s", 1)
        if n % 10 == 9:
            visible = store.context("s")
            try:
                store.compact("s", Compaction(
                    marker=Entry(id=f"m{name}.{n}", kind="compaction", content="m"), subsumes=visible[:5]))
                folds += 1
            except StoreError as error:
                assert "out of date" in str(error), error
    print(claimed, folds)
"""


def test_two_processes_at_once(tmp_path: Path) -> None:
    path = tmp_path / "s.db"  # made by whichever comes first
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(STRESS), str(path), str(number)],
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in range(2)
    ]
    results = [worker.communicate(timeout=120)[0].split() for worker in workers]
    assert [worker.returncode for worker in workers] == [0, 0]
    with SQLiteStore(path) as store:
        left = store.claim_pending("s", 1)
        history = store.history("s")
        folds = sum(int(result[1]) for result in results)
        assert sum(int(result[0]) for result in results) + left == 300
        assert len(history) == 600 + folds
        assert len({entry.id for entry in history}) == len(history)
        assert len(store.context("s")) == 600 + folds - 5 * folds
        stamps = [entry.created_at for entry in history if entry.kind == "user"]
        assert len(set(stamps)) == 600


def test_a_turn_lock_reaches_other_processes_and_ends_with_them(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    script = """
        import sys
        from agentkit_fast import SQLiteStore
        store = SQLiteStore(sys.argv[1])
        release = store.lock_turn("s")
        print("held", flush=True)
        sys.stdin.read()
    """
    holder = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script), str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    with SQLiteStore(path) as store:
        with pytest.raises(SessionBusy, match="this process or another"):
            store.lock_turn("s")
        store.lock_turn("t")()
        holder.kill()
        holder.communicate(timeout=30)
        release = store.lock_turn("s")
        # A second store on the same file, opened and closed in between, frees nothing.
        with SQLiteStore(path) as second, pytest.raises(SessionBusy):
            second.lock_turn("s")
        check = "import sys; from agentkit_fast import SQLiteStore; SQLiteStore(sys.argv[1]).lock_turn('s')"
        done = subprocess.run(
            [sys.executable, "-c", check, str(path)], capture_output=True, text=True, check=False
        )
        assert "SessionBusy" in done.stderr
        release()
        assert subprocess.run([sys.executable, "-c", check, str(path)], check=False).returncode == 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_opens_its_own(tmp_path: Path) -> None:
    store = SQLiteStore(tmp_path / "s.db")
    store.append("s", user("parent"))
    release = store.lock_turn("s")
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            store.append("s", user("child"))
            try:
                store.lock_turn("s")
            except SessionBusy:
                code = 0
        finally:
            os._exit(code)
    assert os.waitpid(pid, 0)[1] == 0
    store.append("s", user("parent again"))
    release()
    assert [entry.content for entry in store.context("s")] == ["parent", "child", "parent again"]
    store.close()
