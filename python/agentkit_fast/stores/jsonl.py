"""A session as JSON lines: the first is the header, the last counts what lies between.

    {"type":"session","format":1,"session_id":"s1","revision":3,"last_stamp":17…,"plan":null}
    {"type":"entry","entry":{"id":"…","kind":"user","content":"hi","created_at":17…},"state":1,"shown_rev":1}
    {"type":"end","records":1}

`state` is 0 in the inbox, 1 in the context, 2 subsumed, 3 cleared. Notices, open calls and parked calls
have lines of their own.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator

import msgspec

from agentkit_fast.entries import Entry, EntryKind
from agentkit_fast.errors import StoreError

__all__ = ["Header", "KeyedNotice", "Open", "Parked", "Record", "Stored", "read", "write"]

_FORMAT = 1
_MAX = 2**63


class Header(msgspec.Struct, kw_only=True, tag="session"):
    """The session itself. `plan` is base64 in the line."""

    session_id: str
    format: int = _FORMAT
    revision: int = 0
    last_stamp: int = 0
    plan: bytes | None = None


class Stored(msgspec.Struct, kw_only=True, tag="entry", omit_defaults=True):
    """One entry and where it stands."""

    entry: Entry
    state: int
    shown_rev: int = 0
    hidden_rev: int = 0


class KeyedNotice(msgspec.Struct, kw_only=True, tag="notice", omit_defaults=True):
    """The key of a notice whose entry came before."""

    group_by: str
    key: str
    entry_id: str
    expires_at: int = 0
    claimed: bool = False


class Open(msgspec.Struct, kw_only=True, tag="open_call", omit_defaults=True):
    """A call without a result."""

    entry_id: str
    tool_call_id: str
    begun_at: int = 0


class Parked(msgspec.Struct, kw_only=True, tag="parked_call", omit_defaults=True):
    """A call whose result comes later."""

    correlation_id: str
    tool_call_id: str
    tool_name: str
    deadline: int = 0


class _End(msgspec.Struct, kw_only=True, tag="end"):
    records: int


Record = Stored | KeyedNotice | Open | Parked
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Header | Stored | KeyedNotice | Open | Parked | _End).decode


def write(header: Header, records: Iterable[Record]) -> Iterator[str]:
    """The lines, each with its newline."""
    count = 0
    yield _line(header)
    for record in records:
        count += 1
        yield _line(record)
    yield _line(_End(records=count))


def _line(record: Header | Record | _End) -> str:
    return _encode(record).decode() + "\n"


def read(lines: Iterable[str]) -> tuple[Header, Iterator[Record]]:
    """The header, and the records as they are read. A `StoreError` for lines that are damaged or cut off."""
    numbered = ((number, line) for number, line in enumerate(lines, 1) if line.strip())
    first = next(numbered, None)
    header = _parse(*first) if first else None
    if not isinstance(header, Header):
        raise StoreError("import: the first line is no session header; nothing was stored")
    if header.format > _FORMAT:
        raise StoreError(
            f"import: these lines have format {header.format}, this version knows up to {_FORMAT}; nothing was "
            "stored. Upgrade agentkit-fast"
        )
    return header, _records(header, numbered)


def _records(header: Header, numbered: Iterator[tuple[int, str]]) -> Iterator[Record]:
    check = _Check(header)
    for count in itertools.count():
        found = next(numbered, None)
        if found is None:
            raise StoreError(
                f"import: the lines stop after {count} records without the closing line, so some are missing; "
                "nothing was stored. Export the session again"
            )
        record = _parse(*found)
        if isinstance(record, _End):
            if record.records != count:
                raise StoreError(
                    f"import: {record.records} records were exported but {count} are here; nothing was stored. "
                    "Export the session again"
                )
            more = next(numbered, None)
            if more is not None:
                raise StoreError(
                    f"import: line {more[0]} comes after the closing line; nothing was stored. Import sessions one "
                    "by one"
                )
            check.whole(count)
            return
        if isinstance(record, Header):
            raise StoreError(f"import: line {found[0]} begins a second session; import them one by one")
        fault = check.fault(record)
        if fault:
            raise StoreError(
                f"import: line {found[0]} {fault}; nothing was stored. Export the session again"
            )
        yield record


class _Check:
    """Whether the records fit each other: lines that somebody edited must not become a broken session."""

    def __init__(self, header: Header) -> None:
        self._header = header
        self._kinds: dict[str, str] = {}
        self._revisions: set[int] = set()
        if header.revision < 0 or not -_MAX < header.last_stamp < _MAX:
            raise StoreError(
                "import: the header's revision or last_stamp is no such number; nothing was stored. Export the "
                "session again"
            )

    def fault(self, record: Record) -> str:
        """What is wrong with a record, "" when nothing is."""
        if isinstance(record, Stored):
            return self._stored(record)
        if isinstance(record, KeyedNotice):
            return "" if record.entry_id in self._kinds else "is about an entry that is not here"
        if isinstance(record, Open) and self._kinds.get(record.entry_id) != EntryKind.tool_call.value:
            return "is about a call that is not here"
        return ""

    def _stored(self, record: Stored) -> str:
        entry = record.entry
        if not entry.id:
            return "holds an entry without an id"
        if entry.id in self._kinds:
            return f"holds the entry {entry.id!r} a second time"
        if not -_MAX < entry.created_at < _MAX:
            return "holds a created_at that is no such number"
        self._kinds[entry.id] = entry.kind
        # Waiting: neither; in the context: shown; folded or cleared: shown, and then hidden.
        expected = {0: 0, 1: 1, 2: 2, 3: 2}.get(record.state)
        given = [revision for revision in (record.shown_rev, record.hidden_rev) if revision]
        if (
            expected != len(given)
            or (given and not record.shown_rev)
            or given != sorted(given)
            or any(not 0 < each <= self._header.revision or each in self._revisions for each in given)
        ):
            return "holds an entry whose state and revisions do not fit"
        self._revisions.update(given)
        return ""

    def whole(self, count: int) -> None:
        """Each record accounts for two revisions at most; a larger number was not written by a store."""
        if self._header.revision > 2 * count:
            raise StoreError(
                f"import: the header says revision {self._header.revision}, too many for {count} records; nothing "
                "was stored. Export the session again"
            )


def _parse(number: int, line: str) -> Header | Record | _End:
    try:
        record: Header | Record | _End = _decode(line)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError) as error:
        raise StoreError(f"import: line {number} is damaged ({error}); nothing was stored") from error
    return record
