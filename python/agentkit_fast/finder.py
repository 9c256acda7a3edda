"""Pointers to documents, found before the model asks for them.

Before each round the finder is asked about what was newly said; each document it finds is mentioned once a
session, as one line. The model reads the document itself with a tool when it wants to.
"""

from __future__ import annotations

import inspect
import logging
import math
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import msgspec

from agentkit_fast._unicode import repair_text
from agentkit_fast.asyncbridge import Expired, await_within, call_in_thread, run_async
from agentkit_fast.entries import Entry, EntryKind, new_id

__all__ = ["DocHit", "Finder", "FinderOptions", "FinderPreparer"]

_log = logging.getLogger(__name__)
# A pointer is one line; a finder that hands over a body is cut here.
_MAX_LINE_CHARS = 300
# What a preparer looks at when it first meets a session: enough for the matter at hand, whatever the history.
_FIRST_LOOK = 32


class DocHit(msgspec.Struct, frozen=True):
    """A document that may help: a pointer, never its body.

    `doc_id` is stable: what the model passes to the tool that reads it. A higher `score` is better. `line`
    is one line of what it is about.
    """

    doc_id: str
    title: str = ""
    score: float = 0.0
    line: str = ""


class Finder(Protocol):
    """Finds documents for a few texts of a conversation; ranking is its business."""

    def find(self, texts: list[str]) -> list[DocHit]:
        """May be async."""
        ...


class FinderOptions(msgspec.Struct, frozen=True):
    """How a `FinderPreparer` works.

    - `min_score`: hits below it are dropped. `max_hits`: mentioned in one pass, at most (0: no bound).
    - `tag`: of the notices. `kinds`: of the entries it listens to.
    - `timeout_s`: seconds the finder may take (0: no bound).
    - `render(DocHit) -> str`: the notice's text; `None`: a line with title, id and what it is about.
    """

    min_score: float = 0.0
    max_hits: int = 3
    tag: str = "rag"
    kinds: tuple[str, ...] = (EntryKind.user.value, EntryKind.assistant.value)
    timeout_s: float = 3.0
    render: Callable[[DocHit], str] | None = None


class _Seen:
    """What one session has been shown, and up to where it was read."""

    __slots__ = ("docs", "known", "mark", "revision", "running")

    def __init__(self) -> None:
        self.docs: set[str] = set()
        self.mark: tuple[int, str] = (0, "")
        self.revision = 0
        self.known = False
        self.running: Any = None  # the finder at work for this session, in its thread


class FinderPreparer:
    """Mentions documents that fit what was newly said: best first, each once a session.

    Use one for the life of a process. A document mentioned before, also by an earlier process, is not mentioned
    again as long as the mention is in the context. When the finder fails or takes too long, nothing is
    mentioned and the same texts are tried again in the next round; a failing store ends the turn.
    """

    def __init__(self, store: Any, finder: Finder, options: FinderOptions | None = None) -> None:
        self._store = store
        self._find: Callable[[list[str]], Any] = getattr(finder, "find", finder)  # type: ignore[arg-type]
        self._options = options or FinderOptions()
        self._lock = threading.Lock()
        self._sessions: dict[str, _Seen] = {}
        if inspect.iscoroutinefunction(self._find):
            self.prepare = self._aprepare  # type: ignore[method-assign]  # then awaited by the caller

    def prepare(self, session_id: str) -> Any:
        """Look at what is new in this session. A coroutine function where the finder is one."""
        seen, texts, advance = self._news(session_id)
        if texts:
            try:
                entries = self._chosen(seen, self._ask(seen, texts))
            except Exception as error:  # noqa: BLE001 - fail-open: tried again in the next round
                self._failed(error)
                return
            self._mention(session_id, seen, entries)
        advance()

    async def _aprepare(self, session_id: str) -> None:
        seen, texts, advance = self._news(session_id)
        if texts:
            timeout_s = self._options.timeout_s
            try:
                hits = await await_within(lambda: self._find(texts), timeout_s if timeout_s > 0 else None)
                entries = self._chosen(seen, hits)
            except Exception as error:  # noqa: BLE001 - fail-open: tried again in the next round
                self._failed(error)
                return
            self._mention(session_id, seen, entries)
        advance()

    def _ask(self, seen: _Seen, texts: list[str]) -> Sequence[DocHit]:
        timeout_s = self._options.timeout_s
        if timeout_s <= 0:
            return self._found(texts, None)
        # One at a time in a session: a finder that hangs is left in its thread, and more would not help it.
        if seen.running is not None and not seen.running.done():
            raise Expired
        running = seen.running = call_in_thread(lambda: self._found(texts, timeout_s))
        try:
            hits: Sequence[DocHit] = running.result(timeout_s)
        except TimeoutError:
            if running.done():
                raise
            raise Expired from None
        seen.running = None
        return hits

    def _found(self, texts: list[str], timeout_s: float | None) -> Sequence[DocHit]:
        found = self._find(texts)
        if inspect.isawaitable(found):  # a finder that is async without saying so
            waiting = found
            found = run_async(lambda: waiting, timeout_s)
        # What comes from a generator is the finder's work still, and its errors are the finder's.
        return list(found)

    def _failed(self, error: Exception) -> None:
        why = (
            f"no answer within {self._options.timeout_s:g} s" if isinstance(error, Expired) else repr(error)
        )
        _log.warning("the finder gave nothing this round and is asked again in the next: %s", why)

    def _news(self, session_id: str) -> tuple[_Seen, list[str], Callable[[], None]]:
        """What was said since the last pass, and what moves the mark past it."""
        with self._lock:
            seen = self._sessions.setdefault(session_id, _Seen())
        since = getattr(self._store, "context_since", None)
        if since is not None:
            entries, revision, _ = since(session_id, seen.revision)
        else:
            entries, revision = self._store.context(session_id), 0
        entries = sorted(entries, key=lambda entry: (entry.created_at, entry.id))
        if since is None:
            entries = [entry for entry in entries if (entry.created_at, entry.id) > seen.mark]
        options = self._options
        mentioned = [entry for entry in entries if _is_mention(entry, options.tag)]
        seen.docs.update(_doc_of(entry) for entry in mentioned)
        fresh = [
            entry
            for entry in entries
            if entry.kind in options.kinds and entry.content.strip() and not _is_mention(entry, options.tag)
        ]
        if not seen.known:
            fresh = fresh[-_FIRST_LOOK:]

        def advance() -> None:
            seen.known = True
            seen.revision = revision
            if entries:
                seen.mark = (entries[-1].created_at, entries[-1].id)

        return seen, [entry.content for entry in fresh], advance

    def _chosen(self, seen: _Seen, hits: Sequence[DocHit]) -> list[Entry]:
        """The notices of the best hits that are new to the session."""
        options = self._options
        chosen: dict[str, DocHit] = {}
        for hit in sorted(hits, key=_rank):
            good = hit.score >= options.min_score and not math.isnan(hit.score)
            doc_id = repair_text(hit.doc_id)  # as a store gives it back
            if good and doc_id not in seen.docs and doc_id not in chosen:
                chosen[doc_id] = hit
            if 0 < options.max_hits <= len(chosen):
                break
        render = options.render or _pointer
        return [
            Entry(
                id=new_id(),
                kind=EntryKind.notification.value,
                tag=options.tag,
                content=render(hit),
                origin=_ORIGIN + doc_id,
            )
            for doc_id, hit in chosen.items()
        ]

    def _mention(self, session_id: str, seen: _Seen, entries: list[Entry]) -> None:
        if not entries:
            return
        append_many = getattr(self._store, "append_many", None)
        if append_many is not None:
            append_many(session_id, entries)
        else:
            # Such a store may take entries as they are, so they come with id and stamp.
            shown = self._store.context(session_id)
            stamp = max(time.time_ns(), *(entry.created_at + 1 for entry in shown))
            for place, entry in enumerate(entries):
                entry.created_at = stamp + place
                self._store.append(session_id, entry)
        seen.docs.update(_doc_of(entry) for entry in entries)


_ORIGIN = "doc:"


def _is_mention(entry: Entry, tag: str) -> bool:
    return entry.tag == tag and entry.origin.startswith(_ORIGIN)


def _doc_of(mention: Entry) -> str:
    return mention.origin.removeprefix(_ORIGIN)


def _rank(hit: DocHit) -> float:
    return math.inf if math.isnan(hit.score) else -hit.score


def _pointer(hit: DocHit) -> str:
    line = " ".join(hit.line.split())
    if len(line) > _MAX_LINE_CHARS:
        line = line[: _MAX_LINE_CHARS - 1] + "…"
    title = " ".join(hit.title.split()) or hit.doc_id
    about = f": {line}" if line else ""
    return f"{title} (document id {hit.doc_id}){about} [a pointer only; read the document by its id if it helps]"
