"""`read_entry_tool`: the way back from a stub to the whole entry."""

from __future__ import annotations

import inspect
from typing import Any

from agentkit_fast.asyncbridge import run_async
from agentkit_fast.entries import Entry
from agentkit_fast.protocols import Store
from agentkit_fast.tools import Tool, tool

__all__ = ["read_entry_tool"]

# A page is a few stubs large: enough to go on with, small enough not to press anything else out.
_PAGE = 4000


def read_entry_tool(store: Store, session_id: str) -> Tool:
    """A tool `read_entry(entry_id, offset)` by which the model reads an entry it sees shortened.

    It gives up to 4,000 bytes of the entry's text from byte `offset` on (moved to the start of a character),
    and says where the next page begins. Entries that a summary covers can be read where the store keeps a
    `history`.
    """

    @tool(name="read_entry", idempotent=True)
    def read_entry(entry_id: str, offset: int = 0) -> str:
        """Read the whole of an entry that is shown shortened, page by page.

        Args:
            entry_id: the id that stands in the shortened entry
            offset: the byte to begin at; a page names the one the next page begins at
        """
        entry = _find(store, session_id, entry_id.strip())
        if entry is None:
            return (
                f"ERROR: there is no entry {entry_id!r}. Use an id exactly as a shortened entry names it."
            )
        return _page(entry, offset)

    return read_entry


def _find(store: Any, session_id: str, entry_id: str) -> Entry | None:
    read = getattr(store, "history", None) or store.context
    entries = read(session_id)
    if inspect.isawaitable(entries):
        waiting = entries
        entries = run_async(lambda: waiting)
    return next((entry for entry in entries if entry.id == entry_id), None)


def _text(entry: Entry) -> str:
    if entry.content or not entry.parts:
        return entry.content
    return "\n".join(part.text if part.type == "text" else "[image]" for part in entry.parts)


def _page(entry: Entry, offset: int) -> str:
    raw = _text(entry).encode()
    start = min(max(0, offset), len(raw))
    while start < len(raw) and raw[start] & 0xC0 == 0x80:
        start += 1
    end = min(start + _PAGE, len(raw))
    while end > start and end < len(raw) and raw[end] & 0xC0 == 0x80:
        end -= 1
    page = raw[start:end].decode(errors="replace")
    if start >= len(raw):
        return f"[entry {entry.id}: {len(raw)} bytes, nothing from byte {start} on]"
    rest = f"go on with offset {end}" if end < len(raw) else "this is the end"
    return f"[entry {entry.id}: bytes {start} to {end} of {len(raw)}; {rest}]\n{page}"
