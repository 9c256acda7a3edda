"""The database's shape, as the steps that build it. A step, once released, is never changed: add one."""

from __future__ import annotations

__all__ = ["APPLICATION_ID", "STEPS", "VERSION"]

# Written into the file's header, so that `file` and we can tell our databases from others ("AGKF").
APPLICATION_ID = 0x41474B46

# What `entries.state` says. Only 1 is in the context.
PENDING, SHOWN, SUBSUMED, CLEARED = 0, 1, 2, 3

# `shown_rev` and `hidden_rev` are the session's revision at which an entry appeared and went. Each
# question asked in every turn has an index of just the rows it is about, so that none depends on the
# length of the history: what is new, what has gone, what is waiting.
STEPS: tuple[tuple[str, ...], ...] = (
    (
        """
        CREATE TABLE sessions (
            sid INTEGER PRIMARY KEY,
            session_id TEXT NOT NULL UNIQUE,
            revision INTEGER NOT NULL DEFAULT 0,
            last_stamp INTEGER NOT NULL DEFAULT 0,
            plan BLOB
        )
        """,
        """
        CREATE TABLE entries (
            seq INTEGER PRIMARY KEY,
            sid INTEGER NOT NULL REFERENCES sessions(sid),
            id TEXT NOT NULL,
            created_at INTEGER NOT NULL,
            state INTEGER NOT NULL,
            shown_rev INTEGER NOT NULL DEFAULT 0,
            hidden_rev INTEGER NOT NULL DEFAULT 0,
            body BLOB NOT NULL,
            UNIQUE (sid, id)
        )
        """,
        "CREATE INDEX entries_shown ON entries (sid, shown_rev) WHERE state = 1",
        "CREATE INDEX entries_hidden ON entries (sid, hidden_rev) WHERE hidden_rev > 0",
        "CREATE INDEX entries_pending ON entries (sid) WHERE state = 0",
    ),
    (
        "CREATE INDEX entries_history ON entries (sid, created_at, id) WHERE state > 0",
        """
        CREATE TABLE notices (
            seq INTEGER PRIMARY KEY,
            sid INTEGER NOT NULL REFERENCES sessions(sid),
            group_by TEXT NOT NULL,
            key TEXT NOT NULL,
            entry_id TEXT NOT NULL,
            expires_at INTEGER NOT NULL DEFAULT 0,
            claimed INTEGER NOT NULL DEFAULT 0
        )
        """,
        "CREATE INDEX notices_of ON notices (sid, group_by, key)",
    ),
    (
        """
        CREATE TABLE open_calls (
            seq INTEGER PRIMARY KEY,
            sid INTEGER NOT NULL REFERENCES sessions(sid),
            entry_id TEXT NOT NULL,
            tool_call_id TEXT NOT NULL,
            begun_at INTEGER NOT NULL DEFAULT 0
        )
        """,
        "CREATE INDEX open_calls_of ON open_calls (sid, tool_call_id)",
        """
        CREATE TABLE parked_calls (
            sid INTEGER NOT NULL REFERENCES sessions(sid),
            correlation_id TEXT NOT NULL,
            tool_call_id TEXT NOT NULL,
            tool_name TEXT NOT NULL,
            deadline INTEGER NOT NULL DEFAULT 0,
            PRIMARY KEY (sid, correlation_id)
        ) WITHOUT ROWID
        """,
    ),
)
VERSION = len(STEPS)
