"""`SQLiteStore`: sessions in one file that survives crashes, shared by threads and processes.

connection.py   opening, transactions, errors in our words
schema.py       tables and indexes, as migration steps
turnlock.py     one turn at a time in a session, across processes
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator
from copy import copy
from sqlite3 import Connection
from typing import Any, Literal, Self

import msgspec

from agentkit_fast._unicode import repair_text
from agentkit_fast.entries import (
    Compaction,
    Entry,
    EntryKind,
    OpenCall,
    ParkedCall,
    PendingNotice,
    new_id,
)
from agentkit_fast.errors import StoreError
from agentkit_fast.messages import ToolCall
from agentkit_fast.stores import jsonl
from agentkit_fast.stores.common import (
    ANSWERS,
    deadline_ns,
    decode_body,
    encode_body,
    order,
    repaired,
    same,
)
from agentkit_fast.stores.sqlite.connection import Database
from agentkit_fast.stores.sqlite.schema import CLEARED, PENDING, SHOWN
from agentkit_fast.stores.sqlite.turnlock import TurnLocks

__all__ = ["SQLiteStore"]

_CALL = EntryKind.tool_call.value
_RESULT = EntryKind.tool_result.value


class _Row:
    """A session's row during one transaction."""

    __slots__ = ("last_stamp", "revision", "sid")

    def __init__(self, sid: int, revision: int, last_stamp: int) -> None:
        self.sid = sid
        self.revision = revision
        self.last_stamp = last_stamp

    def stamp(self, floor: int) -> int:
        """A stamp after every other of this session, and not before `floor`."""
        self.last_stamp = max(floor, self.last_stamp + 1)
        return self.last_stamp

    def next_revision(self) -> int:
        self.revision += 1
        return self.revision


class SQLiteStore:
    """A `Store` in the SQLite file `path` (made when it is not there; its folder must be).

    Each call is one transaction: what it reported as stored is on the disk, whatever happens to the process
    afterwards. Any number of threads and processes may use the file at once; a writer waits up to `timeout_s`
    seconds for another. `synchronous="normal"` leaves out the wait for the disk at each commit: faster, a
    killed process still loses nothing, a power cut may lose the last moments but never damages the file.

    `":memory:"` keeps it in memory. Every failure is a `StoreError` that names the file.
    """

    blocking = True
    """Methods wait for the disk: under an event loop, call them in a thread."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        timeout_s: float = 30.0,
        synchronous: Literal["full", "normal"] = "full",
    ) -> None:
        if synchronous not in ("full", "normal"):
            raise ValueError(f"synchronous is 'full' or 'normal', not {synchronous!r}")
        self.path = os.fspath(path)
        self._db = Database(self.path, timeout_s=timeout_s, synchronous=synchronous)
        self._turns = TurnLocks("" if self._db.memory else self.path)
        self._sids: dict[str, int] = {}

    def __repr__(self) -> str:
        return f"SQLiteStore({self.path!r})"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file. Not needed for anything to be stored."""
        self._db.close()

    # -- entries ------------------------------------------------------------------------------------------

    def append(self, session_id: str, entry: Entry) -> Entry:
        """Store one entry and show it; returns it as stored, with id and `created_at` filled in.

        The same id and content again changes nothing; other content under a used id is a `StoreError`.
        """
        return self.append_many(session_id, (entry,))[0]

    def append_many(self, session_id: str, entries: Iterable[Entry]) -> list[Entry]:
        """Store several entries in one transaction, all or none; returns them as stored."""
        entries = list(entries)  # made outside the transaction: what makes them may use this store
        with self._db.write() as connection:
            session = self._session(connection, session_id)
            before = session.revision
            stored = [self._insert(connection, session, entry, SHOWN) for entry in entries]
            if session.revision != before:
                self._update(connection, session)
            return stored

    def context(self, session_id: str) -> list[Entry]:
        """The visible entries, oldest first (`created_at`, then `id`)."""
        return sorted(self.context_since(session_id, 0)[0], key=order)

    def context_since(self, session_id: str, revision: int) -> tuple[list[Entry], int, list[str]]:
        """What changed since `revision`: `(new entries, revision now, ids no longer visible)`.

        Revision 0 gives everything. A fold shows as its marker among the entries and the subsumed ids. The
        cost is that of what is new, whatever the length of the history.
        """
        revision = min(revision, 2**62)
        with self._db.read() as connection:
            sid = self._find(connection, session_id)
            if sid is None:
                return [], 0, []
            now = connection.execute("SELECT revision FROM sessions WHERE sid = ?", (sid,)).fetchone()[0]
            rows = connection.execute(
                "SELECT id, created_at, body FROM entries WHERE sid = ? AND state = 1 AND shown_rev > ? "
                "ORDER BY shown_rev",
                (sid, revision),
            ).fetchall()
            gone: list[str] = []
            if revision > 0:
                gone = [
                    row[0]
                    for row in connection.execute(
                        "SELECT id FROM entries WHERE sid = ? AND hidden_rev > ? AND hidden_rev > 0 "
                        "AND shown_rev <= ? ORDER BY hidden_rev",
                        (sid, revision, revision),
                    )
                ]
        return [self._entry(row) for row in rows], now, gone

    def compact(self, session_id: str, compaction: Compaction) -> Entry:
        """Show the marker and hide what it subsumes, in one transaction; returns the marker as stored.

        Refused, with nothing changed, when an entry to be subsumed is no longer visible: somebody else has
        folded it meanwhile. The very same fold again changes nothing.
        """
        subsumed = list(dict.fromkeys(repair_text(entry.id) for entry in compaction.subsumes))
        with self._db.write() as connection:
            session = self._session(connection, session_id)
            marker = repaired(compaction.marker)
            known = self._known(connection, session.sid, marker)
            visible = self._visible(connection, session.sid, subsumed)
            if known is not None and not visible:
                return known
            missing = next((entry_id for entry_id in subsumed if entry_id not in visible), None)
            if missing is not None or known is not None:
                raise StoreError(
                    f"{self.path}: entry {missing or marker.id!r} is not as the fold expects it (it is not in the "
                    "context any more), so the fold is out of date; nothing was changed. Read the context "
                    "again and fold anew"
                )
            if not marker.created_at and subsumed:
                marker.created_at = max(visible.values())
            connection.executemany(
                "UPDATE entries SET state = 2, hidden_rev = ? WHERE sid = ? AND id = ?",
                [(session.next_revision(), session.sid, entry_id) for entry_id in subsumed],
            )
            stored = self._insert(connection, session, marker, SHOWN)
            self._update(connection, session)
            return stored

    def history(self, session_id: str, *, before: str = "", after: str = "", limit: int = 0) -> list[Entry]:
        """Every entry that was ever shown, subsumed ones included, oldest first.

        In pages: the newest `limit` entries, those just before the entry with the id `before`, or those just
        after the one with the id `after`. A page costs what it holds.
        """
        with self._db.read() as connection:
            sid = self._find(connection, session_id)
            if sid is None:
                return []
            where, arguments = "", [sid]
            for entry_id, sign in ((before, "<"), (after, ">")):
                if entry_id:
                    where += f" AND (created_at, id) {sign} (?, ?)"
                    arguments += self._place(connection, sid, entry_id)
            backwards = limit > 0 and not after
            way = "DESC" if backwards else "ASC"
            rows = connection.execute(
                # Only the signs and directions above go into the text.
                "SELECT id, created_at, body FROM entries WHERE sid = ? AND state > 0"  # noqa: S608
                f"{where} ORDER BY created_at {way}, id {way} LIMIT ?",
                (*arguments, limit if limit > 0 else -1),
            ).fetchall()
        return [self._entry(row) for row in (reversed(rows) if backwards else rows)]

    def _place(self, connection: Connection, sid: int, entry_id: str) -> list[Any]:
        row = connection.execute(
            "SELECT created_at, id FROM entries WHERE sid = ? AND id = ?", (sid, repair_text(entry_id))
        ).fetchone()
        if row is None:
            raise StoreError(f"{self.path}: the session has no entry {entry_id!r} to page from")
        return list(row)

    def sessions(self) -> list[str]:
        """Ids of all sessions, in order of first use."""
        with self._db.read() as connection:
            return [row[0] for row in connection.execute("SELECT session_id FROM sessions ORDER BY sid")]

    # -- inbox --------------------------------------------------------------------------------------------

    def publish(self, session_id: str, entry: Entry) -> Entry:
        """Put an entry into the inbox; the session's next claim, in whatever process, makes it visible."""
        with self._db.write() as connection:
            session = self._session(connection, session_id)
            stored = self._insert(connection, session, entry, PENDING)
            self._update(connection, session)
            return stored

    def claim_pending(self, session_id: str, at: int) -> int:
        """Show everything in the inbox, stamped from `at` on and after all that is shown; how many."""
        with self._db.read() as connection:
            sid = self._find(connection, session_id)
            if (
                sid is None
                or not connection.execute(
                    "SELECT 1 FROM entries WHERE sid = ? AND state = 0 LIMIT 1", (sid,)
                ).fetchone()
            ):
                return 0
        with self._db.write() as connection:
            session = self._session(connection, session_id)
            self._expire(connection, session.sid)
            rows = connection.execute(
                "SELECT id, created_at, body, seq FROM entries WHERE sid = ? AND state = 0 ORDER BY seq",
                (session.sid,),
            ).fetchall()
            for row in rows:
                # One by one: an assistant entry in the inbox answers only what came before it.
                connection.execute(
                    "UPDATE notices SET claimed = 1 WHERE sid = ? AND entry_id = ?", (session.sid, row[0])
                )
                connection.execute(
                    "UPDATE entries SET state = 1, created_at = ?, shown_rev = ? WHERE seq = ?",
                    (session.stamp(at), session.next_revision(), row[3]),
                )
                self._shown(connection, session.sid, self._entry(row))
            if rows:
                self._update(connection, session)
            return len(rows)

    # -- notices ------------------------------------------------------------------------------------------

    def publish_notice(
        self, session_id: str, entry: Entry, *, group_by: str, key: str, ttl_s: float | None = None
    ) -> Entry:
        """Publish a notice about `key` of group `group_by`, instead of one that is not shown yet.

        A notice that is not claimed within `ttl_s` seconds vanishes.
        """
        group_by, key = repair_text(group_by), repair_text(key)
        with self._db.write() as connection:
            session = self._session(connection, session_id)
            about = (session.sid, group_by, key)
            connection.execute(
                "DELETE FROM entries WHERE sid = ?1 AND state = 0 AND id IN (SELECT entry_id FROM notices "
                "WHERE sid = ?1 AND group_by = ?2 AND key = ?3 AND claimed = 0)",
                about,
            )
            connection.execute(
                "DELETE FROM notices WHERE sid = ? AND group_by = ? AND key = ? AND claimed = 0", about
            )
            stored = self._insert(connection, session, entry, PENDING)
            shown = connection.execute(
                "SELECT 1 FROM entries WHERE sid = ? AND id = ? AND state > 0", (session.sid, stored.id)
            ).fetchone()
            if shown:  # the same notice once more, after it was claimed
                self._update(connection, session)
                return stored
            connection.execute(
                "INSERT INTO notices (sid, group_by, key, entry_id, expires_at) VALUES (?, ?, ?, ?, ?)",
                (*about, stored.id, deadline_ns(ttl_s)),
            )
            self._update(connection, session)
            return stored

    def pending_notices(self, session_id: str) -> list[PendingNotice]:
        """The keyed notices the model has not answered after."""
        with self._db.read() as connection:
            sid = self._find(connection, session_id)
            rows = connection.execute(
                "SELECT group_by, key, entry_id, claimed FROM notices WHERE sid = ? "
                "AND (claimed = 1 OR expires_at = 0 OR expires_at > ?) ORDER BY seq",
                (sid, time.time_ns()),
            ).fetchall()
        return [
            PendingNotice(group_by=row[0], key=row[1], entry_id=row[2], claimed=bool(row[3]))
            for row in rows
        ]

    def clear(self, session_id: str, group_by: str, key: str) -> int:
        """Retract the notices for `key` that the model has not answered after; how many there were."""
        about = (repair_text(group_by), repair_text(key))
        if not self._exists(session_id):
            return 0
        with self._db.write() as connection:
            session = self._session(connection, session_id)
            self._expire(connection, session.sid)
            rows = connection.execute(
                "SELECT seq, entry_id, claimed FROM notices WHERE sid = ? AND group_by = ? AND key = ?",
                (session.sid, *about),
            ).fetchall()
            for seq, entry_id, claimed in rows:
                if claimed:
                    hidden = connection.execute(
                        "UPDATE entries SET state = ?, hidden_rev = ? WHERE sid = ? AND id = ? AND state = 1",
                        (CLEARED, session.revision + 1, session.sid, entry_id),
                    ).rowcount
                    session.revision += hidden  # a fold may have been quicker
                else:
                    connection.execute(
                        "DELETE FROM entries WHERE sid = ? AND id = ? AND state = 0",
                        (session.sid, entry_id),
                    )
                connection.execute("DELETE FROM notices WHERE seq = ?", (seq,))
            if rows:
                self._update(connection, session)
            return len(rows)

    def _expire(self, connection: Connection, sid: int) -> None:
        """Drop notices that were not claimed in time; they were never shown."""
        rows = connection.execute(
            "SELECT seq, entry_id FROM notices WHERE sid = ? AND claimed = 0 AND expires_at > 0 "
            "AND expires_at <= ?",
            (sid, time.time_ns()),
        ).fetchall()
        for seq, entry_id in rows:
            connection.execute(
                "DELETE FROM entries WHERE sid = ? AND id = ? AND state = 0", (sid, entry_id)
            )
            connection.execute("DELETE FROM notices WHERE seq = ?", (seq,))

    # -- tool calls ---------------------------------------------------------------------------------------

    def begin_calls(self, session_id: str, entry_ids: Iterable[str]) -> None:
        """Write down that these stored calls (ids of their entries) are about to run."""
        now = time.time_ns()
        entry_ids = list(entry_ids)
        if not self._exists(session_id):
            return
        with self._db.write() as connection:
            session = self._session(connection, session_id)
            connection.executemany(
                "UPDATE open_calls SET begun_at = ? WHERE sid = ? AND entry_id = ? AND begun_at = 0",
                [(now, session.sid, repair_text(entry_id)) for entry_id in entry_ids],
            )

    def open_calls(self, session_id: str) -> list[OpenCall]:
        """Stored calls without a stored result, oldest first: what a crash left behind.

        One with `begun_at` had been handed to its tool: whether it had its effect is not known. Costs what
        is open, whatever the length of the history.
        """
        with self._db.read() as connection:
            sid = self._find(connection, session_id)
            rows = connection.execute(
                "SELECT e.id, e.created_at, e.body, c.begun_at FROM open_calls c "
                "JOIN entries e ON e.sid = c.sid AND e.id = c.entry_id WHERE c.sid = ? ORDER BY c.seq",
                (sid,),
            ).fetchall()
        found = []
        for row in rows:
            entry = self._entry(row)
            call = ToolCall(id=entry.tool_call_id, name=entry.tool_name, arguments=entry.content)
            found.append(OpenCall(entry_id=entry.id, call=call, begun_at=row[3]))
        return found

    def park_call(self, session_id: str, parked: ParkedCall) -> None:
        """Remember a call whose result comes later; the same correlation id again replaces it."""
        with self._db.write() as connection:
            session = self._session(connection, session_id)
            connection.execute(
                "INSERT OR REPLACE INTO parked_calls (sid, correlation_id, tool_call_id, tool_name, deadline) "
                "VALUES (?, ?, ?, ?, ?)",
                (
                    session.sid,
                    repair_text(parked.correlation_id),
                    repair_text(parked.tool_call_id),
                    repair_text(parked.tool_name),
                    parked.deadline,
                ),
            )

    def parked_calls(self, session_id: str) -> list[ParkedCall]:
        """The calls whose results are still to come, nearest deadline first, those without one last."""
        with self._db.read() as connection:
            sid = self._find(connection, session_id)
            rows = connection.execute(
                "SELECT correlation_id, tool_call_id, tool_name, deadline FROM parked_calls WHERE sid = ? "
                "ORDER BY deadline = 0, deadline, correlation_id",
                (sid,),
            ).fetchall()
        return [
            ParkedCall(correlation_id=row[0], tool_call_id=row[1], tool_name=row[2], deadline=row[3])
            for row in rows
        ]

    def settle_call(self, session_id: str, correlation_id: str, entry: Entry) -> Entry | None:
        """Put what became of a parked call into the inbox and forget the call, in one transaction.

        `None`, and nothing stored, when no such call is parked: somebody else was first.
        """
        if not self._exists(session_id):
            return None
        with self._db.write() as connection:
            session = self._session(connection, session_id)
            done = connection.execute(
                "DELETE FROM parked_calls WHERE sid = ? AND correlation_id = ?",
                (session.sid, repair_text(correlation_id)),
            ).rowcount
            if not done:
                return None
            stored = self._insert(connection, session, entry, PENDING)
            self._update(connection, session)
            return stored

    def lock_turn(self, session_id: str) -> Callable[[], None]:
        """Take the session for one turn; gives what frees it.

        `SessionBusy` while a turn runs, in this process or another. The lock ends with its process.
        """
        with self._db.read() as connection:
            sid = self._find(connection, session_id)
        if sid is None:
            with self._db.write() as connection:
                sid = self._session(connection, session_id).sid
        return self._turns.take(sid, session_id)

    # -- the shaper's memory ------------------------------------------------------------------------------

    def save_plan(self, session_id: str, plan: bytes) -> None:
        """Keep the shaper's plan of a session."""
        with self._db.write() as connection:
            session = self._session(connection, session_id)
            connection.execute("UPDATE sessions SET plan = ? WHERE sid = ?", (plan, session.sid))

    def load_plan(self, session_id: str) -> bytes | None:
        """The plan last saved."""
        with self._db.read() as connection:
            sid = self._find(connection, session_id)
            row = connection.execute("SELECT plan FROM sessions WHERE sid = ?", (sid,)).fetchone()
        return row[0] if row else None

    # -- in and out ---------------------------------------------------------------------------------------

    def export(self, session_id: str) -> Iterator[str]:
        """The whole session as JSON lines (see `import_`): one consistent view, read as it is taken."""
        if self._db.memory:
            # Its one connection cannot be read from between two lines while others write by it.
            yield from list(self._export(session_id))
        else:
            yield from self._export(session_id)

    def _export(self, session_id: str) -> Iterator[str]:
        with self._db.snapshot() as connection:
            sid = self._find(connection, session_id)
            if sid is None:
                raise StoreError(f"{self.path}: there is no session {session_id!r} to export")
            revision, last_stamp, plan = connection.execute(
                "SELECT revision, last_stamp, plan FROM sessions WHERE sid = ?", (sid,)
            ).fetchone()
            yield from jsonl.write(
                jsonl.Header(
                    session_id=repair_text(session_id), revision=revision, last_stamp=last_stamp, plan=plan
                ),
                self._records(connection, sid),
            )

    def _records(self, connection: Connection, sid: int) -> Iterator[jsonl.Record]:
        for row in connection.execute(
            "SELECT id, created_at, body, state, shown_rev, hidden_rev FROM entries WHERE sid = ? ORDER BY seq",
            (sid,),
        ):
            yield jsonl.Stored(entry=self._entry(row), state=row[3], shown_rev=row[4], hidden_rev=row[5])
        for row in connection.execute(
            "SELECT group_by, key, entry_id, expires_at, claimed FROM notices WHERE sid = ? ORDER BY seq",
            (sid,),
        ):
            yield jsonl.KeyedNotice(
                group_by=row[0], key=row[1], entry_id=row[2], expires_at=row[3], claimed=bool(row[4])
            )
        for row in connection.execute(
            "SELECT entry_id, tool_call_id, begun_at FROM open_calls WHERE sid = ? ORDER BY seq", (sid,)
        ):
            yield jsonl.Open(entry_id=row[0], tool_call_id=row[1], begun_at=row[2])
        for row in connection.execute(
            "SELECT correlation_id, tool_call_id, tool_name, deadline FROM parked_calls WHERE sid = ?",
            (sid,),
        ):
            yield jsonl.Parked(
                correlation_id=row[0], tool_call_id=row[1], tool_name=row[2], deadline=row[3]
            )

    def import_(self, lines: Iterable[str], *, session_id: str = "") -> str:
        """Take in an exported session, all or nothing, under its own id or `session_id`; returns that id.

        A session that is there already is a `StoreError`, as are lines that were cut off.
        """
        header, records = jsonl.read(lines)
        name = repair_text(session_id or header.session_id)
        with self._db.write() as connection:
            if self._find(connection, name) is not None:
                raise StoreError(
                    f"{self.path}: there is a session {name!r} already; nothing was changed. Import under another id"
                )
            session = self._session(connection, name)
            session.revision, session.last_stamp = header.revision, header.last_stamp
            for record in records:
                self._restore(connection, session.sid, record)
            self._update(connection, session)
            connection.execute("UPDATE sessions SET plan = ? WHERE sid = ?", (header.plan, session.sid))
        return name

    def _restore(self, connection: Connection, sid: int, record: jsonl.Record) -> None:
        if isinstance(record, jsonl.Stored):
            entry = record.entry
            connection.execute(
                "INSERT INTO entries (sid, id, created_at, state, shown_rev, hidden_rev, body) "
                "VALUES (?, ?, ?, ?, ?, ?, ?)",
                (
                    sid,
                    entry.id,
                    entry.created_at,
                    record.state,
                    record.shown_rev,
                    record.hidden_rev,
                    _body(entry),
                ),
            )
        elif isinstance(record, jsonl.KeyedNotice):
            connection.execute(
                "INSERT INTO notices (sid, group_by, key, entry_id, expires_at, claimed) VALUES (?, ?, ?, ?, ?, ?)",
                (sid, record.group_by, record.key, record.entry_id, record.expires_at, record.claimed),
            )
        elif isinstance(record, jsonl.Open):
            connection.execute(
                "INSERT INTO open_calls (sid, entry_id, tool_call_id, begun_at) VALUES (?, ?, ?, ?)",
                (sid, record.entry_id, record.tool_call_id, record.begun_at),
            )
        else:
            connection.execute(
                "INSERT INTO parked_calls (sid, correlation_id, tool_call_id, tool_name, deadline) "
                "VALUES (?, ?, ?, ?, ?)",
                (sid, record.correlation_id, record.tool_call_id, record.tool_name, record.deadline),
            )

    # -- rows ---------------------------------------------------------------------------------------------

    def _find(self, connection: Connection, session_id: str) -> int | None:
        """The session's number; sessions are never deleted, so a number found once stays right."""
        sid = self._sids.get(session_id)
        if sid is None:
            row = connection.execute(
                "SELECT sid FROM sessions WHERE session_id = ?", (repair_text(session_id),)
            ).fetchone()
            if row is not None:
                # Found under a write that is rolled back later, it would be wrong.
                sid = row[0]
                if not connection.in_transaction or connection is not self._db.writer:
                    self._sids[session_id] = row[0]
        return sid

    def _exists(self, session_id: str) -> bool:
        if session_id in self._sids:
            return True
        with self._db.read() as connection:
            return self._find(connection, session_id) is not None

    def _session(self, connection: Connection, session_id: str) -> _Row:
        name = repair_text(session_id)
        row = connection.execute(
            "SELECT sid, revision, last_stamp FROM sessions WHERE session_id = ?", (name,)
        ).fetchone()
        if row is None:
            sid = connection.execute("INSERT INTO sessions (session_id) VALUES (?)", (name,)).lastrowid
            return _Row(sid or 0, 0, 0)
        return _Row(*row)

    def _entry(self, row: tuple[Any, ...]) -> Entry:
        try:
            entry = decode_body(row[2])
        except msgspec.DecodeError as error:
            raise StoreError(
                f"{self.path}: it is damaged, entry {row[0]!r} cannot be read ({error}); nothing was changed. "
                "Restore it from a copy"
            ) from error
        entry.id = row[0]
        entry.created_at = row[1]
        return entry

    def _update(self, connection: Connection, session: _Row) -> None:
        connection.execute(
            "UPDATE sessions SET revision = ?, last_stamp = ? WHERE sid = ?",
            (session.revision, session.last_stamp, session.sid),
        )

    def _known(self, connection: Connection, sid: int, entry: Entry) -> Entry | None:
        """The entry stored under this id, if it says the same; of other content a `StoreError`."""
        if not entry.id:
            return None
        row = connection.execute(
            "SELECT id, created_at, body FROM entries WHERE sid = ? AND id = ?",
            (sid, entry.id),
        ).fetchone()
        if row is None:
            return None
        known = self._entry(row)
        if not same(known, entry):
            raise StoreError(
                f"{self.path}: the session already has an entry {entry.id!r} with other content; nothing was stored. "
                "Leave the id empty to get a fresh one"
            )
        return known

    def _visible(self, connection: Connection, sid: int, ids: list[str]) -> dict[str, int]:
        found = {}
        for entry_id in ids:
            row = connection.execute(
                "SELECT created_at FROM entries WHERE sid = ? AND id = ? AND state = 1", (sid, entry_id)
            ).fetchone()
            if row is not None:
                found[entry_id] = row[0]
        return found

    def _insert(self, connection: Connection, session: _Row, entry: Entry, state: int) -> Entry:
        ready = repaired(entry)
        known = self._known(connection, session.sid, ready)
        if known is not None:
            return known
        ready.id = ready.id or new_id()
        if ready.created_at:
            session.last_stamp = max(session.last_stamp, ready.created_at)
        else:
            ready.created_at = session.stamp(time.time_ns())
        revision = session.next_revision() if state == SHOWN else 0
        connection.execute(
            "INSERT INTO entries (sid, id, created_at, state, shown_rev, body) VALUES (?, ?, ?, ?, ?, ?)",
            (session.sid, ready.id, ready.created_at, state, revision, _body(ready)),
        )
        if state == SHOWN:
            self._shown(connection, session.sid, ready)
        return ready

    def _shown(self, connection: Connection, sid: int, entry: Entry) -> None:
        """What an entry's appearance settles: notices it answers, the call it answers."""
        if entry.kind in ANSWERS:
            connection.execute("DELETE FROM notices WHERE sid = ? AND claimed = 1", (sid,))
        if entry.kind == _CALL:
            connection.execute(
                "INSERT INTO open_calls (sid, entry_id, tool_call_id) VALUES (?, ?, ?)",
                (sid, entry.id, repair_text(entry.tool_call_id)),
            )
        elif entry.kind == _RESULT:
            # Call ids may be used again, so only the oldest open call of this id is answered.
            connection.execute(
                "DELETE FROM open_calls WHERE seq = (SELECT min(seq) FROM open_calls WHERE sid = ? "
                "AND tool_call_id = ?)",
                (sid, repair_text(entry.tool_call_id)),
            )


def _body(entry: Entry) -> bytes:
    """The body of a row, which holds id and stamp itself."""
    bare = copy(entry)
    bare.id = ""
    bare.created_at = 0
    return encode_body(bare)
