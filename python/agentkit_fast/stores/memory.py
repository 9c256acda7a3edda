"""`MemoryStore`: the whole store contract in process memory."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from copy import copy

import msgspec

from agentkit_fast.entries import Compaction, Entry, EntryKind, PendingNotice, new_id
from agentkit_fast.errors import StoreError

__all__ = ["MemoryStore"]

# After one of these the model has read what came before: taking a notice out would break its window.
_ANSWERS = frozenset({EntryKind.assistant.value, EntryKind.tool_call.value})
_COMPARED = ("kind", "content", "parts", "reasoning", "tool_call_id", "tool_name", "tag", "origin")


class _Notice(msgspec.Struct):
    """A keyed notice the model has not answered after."""

    group_by: str
    key: str
    entry_id: str
    expires_at: int = 0
    claimed: bool = False


class _Session:
    """One session's rows. `log` is what happened to the visible history; its length is the revision."""

    __slots__ = ("entries", "last_stamp", "log", "notices", "pending", "plan", "visible")

    def __init__(self) -> None:
        self.entries: dict[str, Entry] = {}  # everything ever shown, by id
        self.visible: dict[str, Entry] = {}
        self.log: list[tuple[bool, str]] = []  # (appeared?, id)
        self.pending: dict[str, Entry] = {}
        self.notices: list[_Notice] = []
        self.plan: bytes | None = None
        self.last_stamp = 0

    def stamp(self, floor: int) -> int:
        """A stamp after every other of this session, and not before `floor`."""
        return max(floor, self.last_stamp + 1)

    def show(self, entry: Entry) -> None:
        self.entries[entry.id] = entry
        self.visible[entry.id] = entry
        self.log.append((True, entry.id))
        self.last_stamp = max(self.last_stamp, entry.created_at)
        if self.notices and entry.kind in _ANSWERS:
            self.notices = [notice for notice in self.notices if not notice.claimed]

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
        session = self._sessions.get(session_id)
        if session is None:
            session = self._sessions[session_id] = _Session()
        return session

    def _ready(self, session: _Session, entry: Entry, batch: dict[str, Entry]) -> Entry | None:
        """A copy with id and stamp filled in; `None` when the very same entry is stored already."""
        if entry.id:
            known = batch.get(entry.id) or session.entries.get(entry.id) or session.pending.get(entry.id)
            if known is not None:
                if _same(known, entry):
                    return None
                raise StoreError(
                    f"MemoryStore: the session already has an entry {entry.id!r} with other content;"
                    " nothing was stored. Leave the id empty to get a fresh one."
                )
        ready = copy(entry)
        if not ready.id:
            ready.id = new_id()
        if not ready.created_at:
            ready.created_at = session.stamp(time.time_ns())
            session.last_stamp = ready.created_at
        return ready

    def append(self, session_id: str, entry: Entry) -> Entry:
        """Store one entry and show it; returns it as stored, with id and `created_at` filled in."""
        return self.append_many(session_id, (entry,))[0]

    def append_many(self, session_id: str, entries: Iterable[Entry]) -> list[Entry]:
        """Store several entries, all or none; returns them as stored."""
        with self._lock:
            session = self._session(session_id)
            batch: dict[str, Entry] = {}
            stored: list[Entry] = []
            for entry in entries:
                ready = self._ready(session, entry, batch)
                if ready is None:
                    known = batch.get(entry.id) or session.entries.get(entry.id) or entry
                    stored.append(copy(known))
                    continue
                batch[ready.id] = ready
                stored.append(copy(ready))
            for ready in batch.values():
                session.show(ready)
            return stored

    def context(self, session_id: str) -> list[Entry]:
        """The visible entries, oldest first (`created_at`, then `id`)."""
        with self._lock:
            session = self._sessions.get(session_id)
            found = [copy(entry) for entry in session.visible.values()] if session else []
        found.sort(key=_order)
        return found

    def context_since(self, session_id: str, revision: int) -> tuple[list[Entry], int, list[str]]:
        """What changed since `revision`: `(new entries, revision now, ids no longer visible)`.

        Revision 0 gives everything. A fold shows as its marker among the entries and the subsumed ids.
        """
        with self._lock:
            session = self._sessions.get(session_id)
            if session is None:
                return [], 0, []
            log = session.log
            fresh: dict[str, None] = {}
            gone: list[str] = []
            for at in range(max(0, revision), len(log)):
                appeared, entry_id = log[at]
                if appeared:
                    fresh[entry_id] = None
                elif entry_id in fresh:
                    del fresh[entry_id]
                else:
                    gone.append(entry_id)
            return [copy(session.entries[entry_id]) for entry_id in fresh], len(log), gone

    def compact(self, session_id: str, compaction: Compaction) -> Entry:
        """Show the marker and hide what it subsumes, at once; returns the marker as stored.

        Refused, with nothing changed, when an entry to be subsumed is no longer visible: somebody else
        has folded it meanwhile.
        """
        with self._lock:
            session = self._session(session_id)
            subsumed = list(dict.fromkeys(entry.id for entry in compaction.subsumes))
            for entry_id in subsumed:
                if entry_id not in session.visible:
                    raise StoreError(
                        f"MemoryStore: entry {entry_id!r} is not in the context any more, so the fold is"
                        " out of date; nothing was changed. Read the context again and fold anew."
                    )
            marker = copy(compaction.marker)
            if not marker.created_at and subsumed:
                marker.created_at = max(session.visible[entry_id].created_at for entry_id in subsumed)
            ready = self._ready(session, marker, {})
            if ready is None:
                raise StoreError(
                    f"MemoryStore: a marker {marker.id!r} is stored already; nothing was changed."
                )
            for entry_id in subsumed:
                session.hide(entry_id)
            session.show(ready)
            return copy(ready)

    def history(self, session_id: str) -> list[Entry]:
        """Every entry that was ever shown, subsumed ones included, oldest first."""
        with self._lock:
            session = self._sessions.get(session_id)
            found = [copy(entry) for entry in session.entries.values()] if session else []
        found.sort(key=_order)
        return found

    def sessions(self) -> list[str]:
        """Ids of all sessions, in order of first use."""
        with self._lock:
            return list(self._sessions)

    # -- inbox ------------------------------------------------------------------------------------------

    def publish(self, session_id: str, entry: Entry) -> Entry:
        """Put an entry into the inbox; the session's next claim makes it visible."""
        with self._lock:
            session = self._session(session_id)
            ready = self._ready(session, entry, {})
            if ready is None:
                return copy(session.pending.get(entry.id) or session.entries[entry.id])
            session.pending[ready.id] = ready
            return copy(ready)

    def claim_pending(self, session_id: str, at: int) -> int:
        """Show everything in the inbox, stamped from `at` on and after all that is shown; how many."""
        with self._lock:
            session = self._sessions.get(session_id)
            if session is None or not session.pending:
                return 0
            self._expire(session)
            claimed = list(session.pending.values())
            session.pending.clear()
            for notice in session.notices:
                notice.claimed = True
            for entry in claimed:
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
        with self._lock:
            session = self._session(session_id)
            for notice in session.notices:
                if not notice.claimed and notice.group_by == group_by and notice.key == key:
                    session.pending.pop(notice.entry_id, None)
            session.notices = [
                notice
                for notice in session.notices
                if notice.claimed or notice.group_by != group_by or notice.key != key
            ]
            stored = self.publish(session_id, entry)
            expires_at = 0 if ttl_s is None else time.time_ns() + int(ttl_s * 1e9)
            session.notices.append(
                _Notice(group_by=group_by, key=key, entry_id=stored.id, expires_at=expires_at)
            )
            return stored

    def pending_notices(self, session_id: str) -> list[PendingNotice]:
        """The keyed notices the model has not answered after."""
        with self._lock:
            session = self._sessions.get(session_id)
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
        with self._lock:
            session = self._sessions.get(session_id)
            if session is None:
                return 0
            found = [note for note in session.notices if note.group_by == group_by and note.key == key]
            for notice in found:
                if notice.claimed:
                    if notice.entry_id in session.visible:
                        session.hide(notice.entry_id)
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

    # -- the shaper's memory ----------------------------------------------------------------------------

    def save_plan(self, session_id: str, plan: bytes) -> None:
        """Keep the shaper's plan of a session."""
        with self._lock:
            self._session(session_id).plan = plan

    def load_plan(self, session_id: str) -> bytes | None:
        """The plan last saved."""
        with self._lock:
            session = self._sessions.get(session_id)
            return session.plan if session else None


def _order(entry: Entry) -> tuple[int, str]:
    return entry.created_at, entry.id


def _same(known: Entry, entry: Entry) -> bool:
    return all(getattr(known, name) == getattr(entry, name) for name in _COMPARED)
