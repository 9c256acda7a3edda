"""Opening the file, transactions, and SQLite's errors in our words."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from agentkit_fast.errors import StoreError
from agentkit_fast.stores.sqlite.schema import APPLICATION_ID, STEPS, VERSION

__all__ = ["Database"]

_MAGIC = b"SQLite format 3\x00"
_ADVICE = {
    sqlite3.SQLITE_BUSY: "another program holds it locked; nothing was stored. Try again, or raise timeout_s",
    sqlite3.SQLITE_LOCKED: "another program holds it locked; nothing was stored. Try again, or raise timeout_s",
    sqlite3.SQLITE_FULL: "the disk is full; nothing was stored. Free some space and try again",
    sqlite3.SQLITE_READONLY: "it may not be written to; nothing was stored. Check the permissions of file and folder",
    sqlite3.SQLITE_CORRUPT: "it is damaged; nothing was changed. Keep a copy, then try `sqlite3 FILE .recover`",
    sqlite3.SQLITE_NOTADB: "it is not a SQLite database; nothing was changed. Give another path",
    sqlite3.SQLITE_CANTOPEN: "it cannot be opened. Check that its folder exists and may be written to",
    sqlite3.SQLITE_IOERR: "the disk gave an error; nothing was stored. Check its space and its health",
    sqlite3.SQLITE_TOOBIG: "an entry is larger than SQLite can keep (about 1 GB); nothing was stored. Split it",
    sqlite3.SQLITE_PERM: "the system denies access. Check the permissions of file and folder",
    sqlite3.SQLITE_NOMEM: "there was not enough memory; nothing was stored",
}


class Database:
    """One file: a connection that writes, one that reads, each behind a lock.

    Two, so that a long read holds up no writer. They are opened anew in a forked child: SQLite forbids
    carrying a connection over.
    """

    def __init__(self, path: str, *, timeout_s: float, synchronous: str) -> None:
        self.path = path
        self.memory = path == ":memory:"
        # The working directory may change while the file is open.
        self._file = path if self.memory else os.path.abspath(path)  # noqa: PTH100 - as it is, links and all
        self._timeout_s = timeout_s
        self._synchronous = synchronous
        self._closed = True
        self._abandoned: list[Any] = []
        self._open()

    def _open(self) -> None:
        self._pid = os.getpid()
        self._write_lock = threading.RLock()
        self._read_lock = self._write_lock if self.memory else threading.RLock()
        if not self.memory:
            self._look_first()
        with self._errors():
            self.writer = self._connect()
            try:
                self._closed = False
                self._place = self._look_up()
                self._prepare()
                self._reader = self.writer if self.memory else self._connect()
            except BaseException:
                self._closed = True
                self.writer.close()
                raise

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(
            self._file,
            timeout=self._timeout_s,
            isolation_level=None,
            check_same_thread=False,
            cached_statements=256,
        )
        try:
            connection.execute(f"PRAGMA synchronous = {self._synchronous}")
        except BaseException:
            connection.close()
            raise
        return connection

    def _look_first(self) -> None:
        """Refuse what we must not touch, by its first bytes, before SQLite opens it."""
        if "\0" in self._file:
            raise StoreError(f"{self.path!r} holds a NUL character, which no path may; give another path")
        path = Path(self._file)
        try:
            if path.is_dir():
                raise StoreError(
                    f"{path} is a folder; give the path of a file in it, such as {path / 'agent.db'}"
                )
            if not path.parent.is_dir():
                raise StoreError(f"{path} cannot be made: there is no folder {path.parent}. Make it first")
            if not path.exists():
                return
            # Root may write to what is marked read-only; whoever marked it did not want that.
            if not os.access(path, os.W_OK) or not path.stat().st_mode & 0o222:
                raise StoreError(
                    f"{path} is read-only; nothing was changed. Make it writable (chmod u+w) or copy it"
                )
            with path.open("rb") as file:
                head = file.read(100)
        except OSError as error:
            raise StoreError(f"{path} cannot be read: {error.strerror or error}") from error
        if not head:
            return
        if len(head) < 100 or not head.startswith(_MAGIC):
            raise StoreError(
                f"{path} is not a SQLite database (or its first bytes are damaged); nothing was changed. "
                "Give another path, or restore it from a copy"
            )
        self._refuse_newer(int.from_bytes(head[60:64]), int.from_bytes(head[68:72]))
        if Path(f"{self._file}-wal").exists():
            # The version may be in the log only, and an ordinary connection would write the log back.
            with contextlib.suppress(sqlite3.Error):
                self._look_read_only(path)

    def _look_read_only(self, path: Path) -> None:
        connection = sqlite3.connect(
            f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=self._timeout_s
        )
        try:
            self._refuse_newer(*_versions(connection))
        finally:
            connection.close()

    def _refuse_newer(self, version: int, application: int) -> None:
        if application not in (0, APPLICATION_ID):
            raise StoreError(
                f"{self.path} is the database of another program (application id {application:#x}); nothing "
                "was changed. Give another path"
            )
        if application == APPLICATION_ID and version > VERSION:
            raise StoreError(
                f"{self.path} has schema version {version}, written by a newer agentkit-fast; this one knows "
                f"up to {VERSION}. Nothing was changed: upgrade agentkit-fast, or give another path"
            )

    def _prepare(self) -> None:
        """Write-ahead logging, and the schema brought up to date in one transaction."""
        writer = self.writer
        version, application = _versions(self.writer)
        self._refuse_newer(version, application)
        if not application:
            found = writer.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
            if found or version:
                raise StoreError(
                    f"{self.path} is the database of another program ({found} tables and indexes); nothing was "
                    "changed. Give another path"
                )
        if not self.memory:
            self._wal()
        if version == VERSION and application == APPLICATION_ID:
            # A damaged schema or first pages show here rather than in the middle of a turn.
            writer.execute("SELECT sid, revision, last_stamp FROM sessions LIMIT 1").fetchone()
            writer.execute("SELECT seq FROM entries ORDER BY seq DESC LIMIT 1").fetchone()
            return
        with self.write() as connection:
            # Another process may have done it while this one waited for the lock.
            version, application = _versions(self.writer)
            self._refuse_newer(version, application)
            for step in STEPS[version:]:
                for statement in step:
                    connection.execute(statement)
            connection.execute(f"PRAGMA user_version = {VERSION}")
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")

    def _wal(self) -> None:
        """Switch to WAL. SQLite does not wait here for another process doing the same, so we do."""
        deadline = time.monotonic() + self._timeout_s
        while True:
            try:
                self.writer.execute("PRAGMA journal_mode = WAL").fetchone()
            except sqlite3.OperationalError as error:
                if _code(error) not in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
                    raise
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.005)
            else:
                return

    # -- use --

    def _look_up(self) -> tuple[int, int] | None:
        """Which file the path names now."""
        if self.memory:
            return None
        try:
            found = os.stat(self._file)  # noqa: PTH116 - asked at each write, and this is the quick way
        except FileNotFoundError:
            return None
        return found.st_dev, found.st_ino

    @contextlib.contextmanager
    def write(self) -> Iterator[sqlite3.Connection]:
        """A transaction that writes: all of it is stored, or nothing."""
        self._check()
        with self._errors(), self._write_lock:
            if self._look_up() != self._place:
                # SQLite would go on writing to a file that nobody can open any more.
                raise StoreError(
                    f"{self.path} has been deleted, moved or replaced while it was open; nothing was stored. "
                    "Put it back and open a new SQLiteStore"
                )
            connection = self.writer
            if connection.in_transaction:
                # A KeyboardInterrupt between two steps of ours left it; nothing in it was reported as stored.
                connection.execute("ROLLBACK")
            try:
                connection.execute("BEGIN IMMEDIATE")
                yield connection
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:
                    with contextlib.suppress(sqlite3.Error):  # the first error is the one to tell
                        connection.execute("ROLLBACK")
                raise

    @contextlib.contextmanager
    def read(self) -> Iterator[sqlite3.Connection]:
        """One consistent view of the file, for several questions."""
        self._check()
        with self._errors(), self._read_lock:
            connection = self._reader
            inside = self.memory and connection.in_transaction  # there, reader and writer are one
            try:
                if not connection.in_transaction:
                    connection.execute("BEGIN")
                yield connection
            finally:
                if not inside and connection.in_transaction:
                    connection.execute("ROLLBACK")

    @contextlib.contextmanager
    def snapshot(self) -> Iterator[sqlite3.Connection]:
        """As `read`, on a connection of its own that may stay open for long."""
        if self.memory:
            with self.read() as connection:
                yield connection
            return
        self._check()
        with self._errors():
            connection = self._connect()
            try:
                connection.execute("BEGIN")
                yield connection
            finally:
                connection.close()

    def _check(self) -> None:
        if self._closed:
            raise StoreError(f"{self.path}: this store is closed; open a new SQLiteStore")
        if self._pid != os.getpid():
            if self.memory:
                raise StoreError(":memory: stores do not reach a forked process; use a file")
            # Kept, never closed: closing them here would drop the parent's locks.
            self._abandoned += [self.writer, self._reader]
            self._open()

    def close(self) -> None:
        """Close the file. What is stored is stored already."""
        if self._closed:
            return
        self._closed = True
        if self._pid == os.getpid():
            with self._write_lock, self._read_lock, self._errors():
                if self._reader is not self.writer:
                    self._reader.close()
                self.writer.close()

    def __del__(self) -> None:
        # A store that was simply dropped: nothing is lost by it, and Python need not warn.
        if not getattr(self, "_closed", True) and self._pid == os.getpid():
            for connection in {id(each): each for each in (self._reader, self.writer)}.values():
                connection.close()

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise StoreError(f"{self.path}: {_words(error)}") from error
        except OverflowError as error:
            raise StoreError(
                f"{self.path}: a number does not fit 64 bits (created_at is in nanoseconds); nothing was stored"
            ) from error


def _versions(connection: sqlite3.Connection) -> tuple[int, int]:
    """Schema version and application id."""
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    application = connection.execute("PRAGMA application_id").fetchone()[0]
    return version, application & 0xFFFFFFFF


def _code(error: sqlite3.Error) -> int:
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


def _words(error: sqlite3.Error) -> str:
    advice = _ADVICE.get(_code(error))
    name = getattr(error, "sqlite_errorname", type(error).__name__)
    if advice is None:
        return f"SQLite could not do it ({name}: {error}); nothing was stored"
    return f"{advice} ({name})"
