"""`MemoryStore`: the whole store contract in process memory."""

from __future__ import annotations

import threading
import time
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterable, Iterator
from copy import copy

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
from agentkit_fast.errors import SessionBusy, StoreError
from agentkit_fast.messages import ToolCall
from agentkit_fast.packing import Pieces
from agentkit_fast.stores import jsonl
from agentkit_fast.stores.common import ANSWERS, deadline_ns, order, repaired, same

__all__ = ["MemoryStore"]

_PENDING, _SHOWN, _SUBSUMED, _CLEARED = 0, 1, 2, 3


class _Notice(msgspec.Struct):
    """A keyed notice the model has not answered after."""

    group_by: str
    key: str
    entry_id: str
    expires_at: int = 0
    claimed: bool = False


class _Session:
    """One session's rows. `log` is what happened to the visible history; its length is the revision."""

    __slots__ = (
        "busy",
        "cleared",
        "entries",
        "last_stamp",
        "log",
        "notices",
        "open_calls",
        "ordered",
        "parked",
        "pending",
        "plan",
        "visible",
    )

    def __init__(self) -> None:
        self.entries: dict[str, Entry] = {}  # everything ever shown, by id
        self.ordered: list[Entry] = []  # the same, in the order of history
        self.visible: dict[str, Entry] = {}
        self.cleared: set[str] = set()
        self.log: list[tuple[bool, str] | None] = []  # (appeared?, id)
        self.pending: dict[str, Entry] = {}
        self.notices: list[_Notice] = []
        self.open_calls: dict[str, int] = {}  # entry id -> when it began
        self.parked: dict[str, ParkedCall] = {}
        self.plan: bytes | None = None
        self.busy = False
        self.last_stamp = 0

    def stamp(self, floor: int) -> int:
        """A stamp after every other of this session, and not before `floor`."""
        return max(floor, self.last_stamp + 1)

    def show(self, entry: Entry) -> None:
        self.entries[entry.id] = entry
        self.visible[entry.id] = entry
        self.place(entry)
        self.log.append((True, entry.id))
        self.last_stamp = max(self.last_stamp, entry.created_at)
        if self.notices and entry.kind in ANSWERS:
            self.notices = [notice for notice in self.notices if not notice.claimed]
        if entry.kind == EntryKind.tool_call.value:
            self.open_calls[entry.id] = 0
        elif entry.kind == EntryKind.tool_result.value:
            # Call ids may be used again, so only the oldest open call of this id is answered.
            for entry_id in self.open_calls:
                if self.entries[entry_id].tool_call_id == entry.tool_call_id:
                    del self.open_calls[entry_id]
                    break

    def place(self, entry: Entry) -> None:
        """Put an entry where it belongs in `ordered`: nearly always at the end."""
        if self.ordered and order(entry) < order(self.ordered[-1]):
            insort(self.ordered, entry, key=order)
        else:
            self.ordered.append(entry)

    def hide(self, entry_id: str) -> None:
        del self.visible[entry_id]
        self.log.append((False, entry_id))


class MemoryStore:
    """A `Store` in memory, with inbox, notices and revisions; safe from many threads.

    Entries are copied on their way in and out, so that nobody can change the history from outside.
    """

    blocking = False
    """No method waits for anything: an event loop may call them directly."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._sessions: dict[str, _Session] = {}

    def _session(self, session_id: str) -> _Session:
        name = repair_text(session_id)
        session = self._sessions.get(name)
        if session is None:
            session = self._sessions[name] = _Session()
        return session

    def _ready(self, session: _Session, entry: Entry, batch: dict[str, Entry]) -> tuple[Entry, bool]:
        """A copy with id and stamp filled in, and whether it is new; else the same entry as stored."""
        ready = repaired(entry)
        if ready.id:
            known = batch.get(ready.id) or session.entries.get(ready.id) or session.pending.get(ready.id)
            if known is not None:
                if same(known, ready):
                    return known, False
                raise StoreError(
                    f"MemoryStore: the session already has an entry {ready.id!r} with other content;"
                    " nothing was stored. Leave the id empty to get a fresh one."
                )
        else:
            ready.id = new_id()
        if ready.created_at:
            session.last_stamp = max(session.last_stamp, ready.created_at)
        else:
            ready.created_at = session.stamp(time.time_ns())
            session.last_stamp = ready.created_at
        return ready, True

    def append(self, session_id: str, entry: Entry) -> Entry:
        """Store one entry and show it; returns it as stored, with id and `created_at` filled in."""
        return self.append_many(session_id, (entry,))[0]

    def append_many(self, session_id: str, entries: Iterable[Entry]) -> list[Entry]:
        """Store several entries, all or none; returns them as stored."""
        entries = list(entries)  # made before: what makes them may use this store
        with self._lock:
            name = repair_text(session_id)
            session = self._sessions.get(name) or _Session()
            batch: dict[str, Entry] = {}
            stored: list[Entry] = []
            for entry in entries:
                ready, new = self._ready(session, entry, batch)
                if new:
                    batch[ready.id] = ready
                stored.append(copy(ready))
            self._sessions.setdefault(name, session)
            for ready in batch.values():
                session.show(ready)
            return stored

    def context(self, session_id: str) -> list[Entry]:
        """The visible entries, oldest first (`created_at`, then `id`)."""
        with self._lock:
            session = self._sessions.get(repair_text(session_id))
            found = [copy(entry) for entry in session.visible.values()] if session else []
        found.sort(key=order)
        return found

    def context_since(self, session_id: str, revision: int) -> tuple[list[Entry], int, list[str]]:
        """What changed since `revision`: `(new entries, revision now, ids no longer visible)`.

        Revision 0 gives everything. A fold shows as its marker among the entries and the subsumed ids.
        """
        entries, revision, gone = self._since(session_id, revision)
        return [copy(entry) for entry in entries], revision, gone

    def packed_since(self, session_id: str, revision: int) -> tuple[Pieces, int, list[str]]:
        """As `context_since`, the entries as MessagePack arrays, in pieces: nothing is copied but the bytes."""
        entries, revision, gone = self._since(session_id, revision)
        return Pieces(entries), revision, gone

    def _since(self, session_id: str, revision: int) -> tuple[list[Entry], int, list[str]]:
        """The entries themselves, which nobody changes once they are shown."""
        with self._lock:
            session = self._sessions.get(repair_text(session_id))
            if session is None:
                return [], 0, []
            log = session.log
            if revision <= 0:
                return list(session.visible.values()), len(log), []
            fresh: dict[str, None] = {}
            gone: list[str] = []
            for at in range(revision, len(log)):
                appeared, entry_id = log[at] or (False, "")
                if not entry_id:
                    continue
                if appeared:
                    fresh[entry_id] = None
                elif entry_id in fresh:
                    del fresh[entry_id]
                else:
                    gone.append(entry_id)
            return [session.entries[entry_id] for entry_id in fresh], len(log), gone

    def compact(self, session_id: str, compaction: Compaction) -> Entry:
        """Show the marker and hide what it subsumes, at once; returns the marker as stored.

        Refused, with nothing changed, when an entry to be subsumed is no longer visible: somebody else
        has folded it meanwhile. The very same fold again changes nothing.
        """
        with self._lock:
            name = repair_text(session_id)
            session = self._sessions.get(name) or _Session()
            subsumed = list(dict.fromkeys(repair_text(entry.id) for entry in compaction.subsumes))
            known = session.entries.get(repair_text(compaction.marker.id))
            folded = not any(entry_id in session.visible for entry_id in subsumed)
            if known is not None and folded and same(known, repaired(compaction.marker)):
                return copy(known)
            for entry_id in subsumed:
                if entry_id not in session.visible:
                    raise StoreError(
                        f"MemoryStore: entry {entry_id!r} is not in the context any more, so the fold is"
                        " out of date; nothing was changed. Read the context again and fold anew."
                    )
            marker = copy(compaction.marker)
            if not marker.created_at and subsumed:
                marker.created_at = max(session.visible[entry_id].created_at for entry_id in subsumed)
            ready, new = self._ready(session, marker, {})
            if not new:
                raise StoreError(
                    f"MemoryStore: a marker {marker.id!r} is stored already; nothing was changed."
                )
            self._sessions.setdefault(name, session)
            for entry_id in subsumed:
                session.hide(entry_id)
            session.show(ready)
            return copy(ready)

    def history(self, session_id: str, *, before: str = "", after: str = "", limit: int = 0) -> list[Entry]:
        """Every entry that was ever shown, subsumed ones included, oldest first.

        In pages: the newest `limit` entries, those just before the entry with the id `before`, or those
        just after the one with the id `after`.
        """
        with self._lock:
            session = self._sessions.get(repair_text(session_id))
            if session is None:
                return []
            before, after = repair_text(before), repair_text(after)
            for entry_id in (before, after):
                if entry_id and entry_id not in session.entries:
                    raise StoreError(f"MemoryStore: the session has no entry {entry_id!r} to page from")
            start, end = 0, len(session.ordered)
            if before:
                end = bisect_left(session.ordered, order(session.entries[before]), key=order)
            if after:
                start = bisect_right(session.ordered, order(session.entries[after]), key=order)
            if limit > 0 and after:
                end = min(end, start + limit)
            elif limit > 0:
                start = max(start, end - limit)
            return [copy(entry) for entry in session.ordered[start:end]]

    def sessions(self) -> list[str]:
        """Ids of all sessions, in order of first use."""
        with self._lock:
            return list(self._sessions)

    # -- inbox ------------------------------------------------------------------------------------------

    def publish(self, session_id: str, entry: Entry) -> Entry:
        """Put an entry into the inbox; the session's next claim makes it visible."""
        with self._lock:
            session = self._session(session_id)
            ready, new = self._ready(session, entry, {})
            if new:
                session.pending[ready.id] = ready
            return copy(ready)

    def claim_pending(self, session_id: str, at: int) -> int:
        """Show everything in the inbox, stamped from `at` on and after all that is shown; how many."""
        with self._lock:
            session = self._sessions.get(repair_text(session_id))
            if session is None or not session.pending:
                return 0
            self._expire(session)
            claimed = list(session.pending.values())
            session.pending.clear()
            for entry in claimed:
                # One by one: an assistant entry in the inbox answers only what came before it.
                for notice in session.notices:
                    if notice.entry_id == entry.id:
                        notice.claimed = True
                entry.created_at = session.stamp(at)
                session.show(entry)
            return len(claimed)

    # -- notices ----------------------------------------------------------------------------------------

    def publish_notice(
        self, session_id: str, entry: Entry, *, group_by: str, key: str, ttl_s: float | None = None
    ) -> Entry:
        """Publish a notice about `key` of group `group_by`, instead of one that is not shown yet.

        A notice that is not claimed within `ttl_s` seconds vanishes.
        """
        group_by, key = repair_text(group_by), repair_text(key)
        expires_at = deadline_ns(ttl_s)
        with self._lock:
            session = self._session(session_id)
            replaced = [
                notice
                for notice in session.notices
                if not notice.claimed and notice.group_by == group_by and notice.key == key
            ]
            removed = {
                note.entry_id: session.pending.pop(note.entry_id)
                for note in replaced
                if note.entry_id in session.pending
            }
            try:
                stored = self.publish(session_id, entry)
            except BaseException:
                session.pending = {**removed, **session.pending}
                raise
            session.notices = [notice for notice in session.notices if notice not in replaced]
            if stored.id in session.entries:  # the same notice once more, after it was claimed
                return stored
            session.notices.append(
                _Notice(group_by=group_by, key=key, entry_id=stored.id, expires_at=expires_at)
            )
            return stored

    def pending_notices(self, session_id: str) -> list[PendingNotice]:
        """The keyed notices the model has not answered after."""
        with self._lock:
            session = self._sessions.get(repair_text(session_id))
            if session is None:
                return []
            self._expire(session)
            return [
                PendingNotice(
                    group_by=notice.group_by,
                    key=notice.key,
                    entry_id=notice.entry_id,
                    claimed=notice.claimed,
                )
                for notice in session.notices
            ]

    def clear(self, session_id: str, group_by: str, key: str) -> int:
        """Retract the notices for `key` that the model has not answered after; how many there were."""
        group_by, key = repair_text(group_by), repair_text(key)
        with self._lock:
            session = self._sessions.get(repair_text(session_id))
            if session is None:
                return 0
            self._expire(session)
            found = [note for note in session.notices if note.group_by == group_by and note.key == key]
            for notice in found:
                if notice.claimed:
                    if notice.entry_id in session.visible:
                        session.hide(notice.entry_id)
                        session.cleared.add(notice.entry_id)
                else:
                    session.pending.pop(notice.entry_id, None)
                session.notices.remove(notice)
            return len(found)

    def _expire(self, session: _Session) -> None:
        if not session.notices:
            return
        now = time.time_ns()
        kept = []
        for notice in session.notices:
            if not notice.claimed and notice.expires_at and notice.expires_at <= now:
                session.pending.pop(notice.entry_id, None)
            else:
                kept.append(notice)
        session.notices = kept

    # -- tool calls -------------------------------------------------------------------------------------

    def begin_calls(self, session_id: str, entry_ids: Iterable[str]) -> None:
        """Write down that these stored calls (ids of their entries) are about to run."""
        now = time.time_ns()
        with self._lock:
            session = self._sessions.get(repair_text(session_id))
            for entry_id in map(repair_text, entry_ids):
                if session and session.open_calls.get(entry_id) == 0:
                    session.open_calls[entry_id] = now

    def open_calls(self, session_id: str) -> list[OpenCall]:
        """Stored calls without a stored result, oldest first.

        One with `begun_at` had been handed to its tool: whether it had its effect is not known.
        """
        with self._lock:
            session = self._sessions.get(repair_text(session_id))
            found: list[OpenCall] = []
            if session is None:
                return found
            for entry_id, begun_at in session.open_calls.items():
                entry = session.entries[entry_id]
                call = ToolCall(id=entry.tool_call_id, name=entry.tool_name, arguments=entry.content)
                found.append(OpenCall(entry_id=entry_id, call=call, begun_at=begun_at))
            return found

    def park_call(self, session_id: str, parked: ParkedCall) -> None:
        """Remember a call whose result comes later; the same correlation id again replaces it."""
        kept = ParkedCall(
            correlation_id=repair_text(parked.correlation_id),
            tool_call_id=repair_text(parked.tool_call_id),
            tool_name=repair_text(parked.tool_name),
            deadline=parked.deadline,
        )
        with self._lock:
            self._session(session_id).parked[kept.correlation_id] = kept

    def parked_calls(self, session_id: str) -> list[ParkedCall]:
        """The calls whose results are still to come, nearest deadline first, those without one last."""
        with self._lock:
            session = self._sessions.get(repair_text(session_id))
            found = list(session.parked.values()) if session else []
        return sorted(found, key=lambda call: (call.deadline == 0, call.deadline, call.correlation_id))

    def settle_call(self, session_id: str, correlation_id: str, entry: Entry) -> Entry | None:
        """Put what became of a parked call into the inbox and forget the call, at once.

        `None`, and nothing stored, when no such call is parked: somebody else was first.
        """
        correlation_id = repair_text(correlation_id)
        with self._lock:
            session = self._sessions.get(repair_text(session_id))
            if session is None or correlation_id not in session.parked:
                return None
            stored = self.publish(session_id, entry)
            del session.parked[correlation_id]
            return stored

    def lock_turn(self, session_id: str) -> Callable[[], None]:
        """Take the session for one turn; gives what frees it. `SessionBusy` while a turn runs."""
        with self._lock:
            session = self._session(session_id)
            if session.busy:
                raise SessionBusy(
                    f"a turn of session {session_id!r} is running already. Wait for it, or publish the"
                    " message to its inbox so that the running turn sees it"
                )
            session.busy = True
        held = [session]

        def release() -> None:
            while held:
                held.pop().busy = False

        return release

    # -- in and out -------------------------------------------------------------------------------------

    def export(self, session_id: str) -> Iterator[str]:
        """The whole session as JSON lines (see `import_`), as it is at this moment."""
        with self._lock:
            session = self._sessions.get(repair_text(session_id))
            if session is None:
                raise StoreError(f"MemoryStore: there is no session {session_id!r} to export")
            header = jsonl.Header(
                session_id=repair_text(session_id),
                revision=len(session.log),
                last_stamp=session.last_stamp,
                plan=session.plan,
            )
            records = list(self._records(session))
        return jsonl.write(header, records)

    def _records(self, session: _Session) -> Iterator[jsonl.Record]:
        shown: dict[str, int] = {}
        hidden: dict[str, int] = {}
        for at, event in enumerate(session.log, 1):
            if event is not None:
                (shown if event[0] else hidden)[event[1]] = at
        for entry in session.entries.values():
            state = _SHOWN
            if entry.id not in session.visible:
                state = _CLEARED if entry.id in session.cleared else _SUBSUMED
            yield jsonl.Stored(
                entry=copy(entry),
                state=state,
                shown_rev=shown[entry.id],
                hidden_rev=hidden.get(entry.id, 0),
            )
        for entry in session.pending.values():
            yield jsonl.Stored(entry=copy(entry), state=_PENDING)
        for notice in session.notices:
            yield jsonl.KeyedNotice(
                group_by=notice.group_by,
                key=notice.key,
                entry_id=notice.entry_id,
                expires_at=notice.expires_at,
                claimed=notice.claimed,
            )
        for entry_id, begun_at in session.open_calls.items():
            call_id = session.entries[entry_id].tool_call_id
            yield jsonl.Open(entry_id=entry_id, tool_call_id=call_id, begun_at=begun_at)
        for parked in session.parked.values():
            yield jsonl.Parked(
                correlation_id=parked.correlation_id,
                tool_call_id=parked.tool_call_id,
                tool_name=parked.tool_name,
                deadline=parked.deadline,
            )

    def import_(self, lines: Iterable[str], *, session_id: str = "") -> str:
        """Take in an exported session, all or nothing, under its own id or `session_id`; returns that id.

        A session that is there already is a `StoreError`, as are lines that were cut off.
        """
        header, found = jsonl.read(lines)
        records = list(found)
        name = repair_text(session_id or header.session_id)
        session = _Session()
        session.log = [None] * header.revision
        session.last_stamp = header.last_stamp
        session.plan = header.plan
        for record in records:
            _restore(session, record)
        with self._lock:
            if name in self._sessions:
                raise StoreError(
                    f"MemoryStore: there is a session {name!r} already; nothing was changed. Import under"
                    " another id"
                )
            self._sessions[name] = session
        return name

    # -- the shaper's memory ----------------------------------------------------------------------------

    def save_plan(self, session_id: str, plan: bytes) -> None:
        """Keep the shaper's plan of a session."""
        with self._lock:
            self._session(session_id).plan = plan

    def load_plan(self, session_id: str) -> bytes | None:
        """The plan last saved."""
        with self._lock:
            session = self._sessions.get(repair_text(session_id))
            return session.plan if session else None


def _restore(session: _Session, record: jsonl.Record) -> None:
    if isinstance(record, jsonl.Stored):
        entry = record.entry
        if record.state == _PENDING:
            session.pending[entry.id] = entry
            return
        session.entries[entry.id] = entry
        session.place(entry)
        if record.state == _SHOWN:
            session.visible[entry.id] = entry
        elif record.state == _CLEARED:
            session.cleared.add(entry.id)
        for revision, appeared in ((record.shown_rev, True), (record.hidden_rev, False)):
            if revision:
                session.log[revision - 1] = (appeared, entry.id)
    elif isinstance(record, jsonl.KeyedNotice):
        session.notices.append(
            _Notice(
                group_by=record.group_by,
                key=record.key,
                entry_id=record.entry_id,
                expires_at=record.expires_at,
                claimed=record.claimed,
            )
        )
    elif isinstance(record, jsonl.Open):
        session.open_calls[record.entry_id] = record.begun_at
    else:
        session.parked[record.correlation_id] = ParkedCall(
            correlation_id=record.correlation_id,
            tool_call_id=record.tool_call_id,
            tool_name=record.tool_name,
            deadline=record.deadline,
        )
