"""`agentkit-fast sessions`: what a session file holds."""

from __future__ import annotations

import datetime as dt
import json
from collections import Counter
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from agentkit_fast.cli.connect import UsageProblem
from agentkit_fast.entries import EntryKind
from agentkit_fast.shaping.plan import recorded
from agentkit_fast.stores.sqlite import SQLiteStore

__all__ = ["open_store", "run_sessions"]


def open_store(file: Path) -> SQLiteStore:
    """The store in `file`, which must be there: looking must not make a new one."""
    if not file.is_file():
        raise UsageProblem(f"there is no session file {file}; `--session FILE` of run and chat makes one")
    return SQLiteStore(file)


def _row(store: SQLiteStore, session_id: str) -> dict[str, Any]:
    entries = store.history(session_id)
    kinds = Counter(entry.kind for entry in entries)
    first = next((entry.content for entry in entries if entry.kind == EntryKind.user), "")
    known = recorded(store.load_plan(session_id))
    return {
        "budget": known[0].budget_tokens if known else 0,
        "counter": (known[1].vocabulary or known[1].endpoint or known[1].counter) if known else "",
        "session": session_id,
        "entries": len(entries),
        "in_context": len(store.context(session_id)),
        "calls": kinds[EntryKind.tool_call],
        "last": entries[-1].created_at if entries else 0,
        "task": " ".join(first.split())[:80],
    }


def _when(nanoseconds: int) -> str:
    if nanoseconds <= 0:
        return ""
    moment = dt.datetime.fromtimestamp(nanoseconds / 1e9, tz=dt.UTC).astimezone()
    return moment.strftime("%Y-%m-%d %H:%M")


def run_sessions(file: Path, *, json_output: bool) -> int:
    """List the sessions of a file."""
    store = open_store(file)
    try:
        rows = [_row(store, session_id) for session_id in store.sessions()]
    finally:
        store.close()
    if json_output:
        print(json.dumps(rows))
        return 0
    table = Table(box=None, pad_edge=False, expand=True)
    # What is typed again, the id, is shown whole; the first task is cut to the room that is left.
    table.add_column(
        "session", overflow="fold", min_width=min(24, max([7, *(len(r["session"]) for r in rows)]))
    )
    for name in ("entries", "in context", "calls", "budget"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("last", no_wrap=True)
    table.add_column("first task", overflow="ellipsis", no_wrap=True, ratio=1)
    for row in rows:
        table.add_row(
            row["session"],
            f"{row['entries']:,}",
            f"{row['in_context']:,}",
            f"{row['calls']:,}",
            f"{row['budget']:,}" if row["budget"] else "",
            _when(row["last"]),
            row["task"],
        )
    Console(highlight=False).print(table if rows else "no sessions")
    return 0
