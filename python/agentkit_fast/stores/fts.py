"""`FtsFinder`: a ready finder over SQLite's full-text index. Offline, no model."""

from __future__ import annotations

import contextlib
import os
import re
import sqlite3
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Self

import msgspec

from agentkit_fast._unicode import repair_text
from agentkit_fast.errors import StoreError
from agentkit_fast.finder import DocHit

__all__ = ["FtsFinder", "IndexReport"]

_VERSION = 1
# A passage is what BM25 compares: long documents would win by length alone, single lines have no context.
_PASSAGE_CHARS = 1500
# The newest words count; more would only slow the query down.
_MAX_TERMS = 48
_MAX_FILE_BYTES = 5_000_000
_WORD = re.compile(r"\w+")
_SUFFIXES = frozenset(
    f".{name}"
    for names in (
        "md markdown rst txt adoc org tex html htm csv tsv json jsonl yaml yml toml ini cfg xml",
        "py pyi rs go c h cc cpp hpp java kt js jsx ts tsx rb php sh sql lua swift scala",
    )
    for name in names.split()
)


class IndexReport(msgspec.Struct, kw_only=True, frozen=True):
    """What `index_folder` did, in files. `skipped`: binary, too large or unreadable."""

    added: int = 0
    updated: int = 0
    removed: int = 0
    unchanged: int = 0
    skipped: int = 0


class FtsFinder:
    """Finds documents by their words (BM25), as one-line pointers.

    The index is the file `path`, by default in memory. `tokenize` is FTS5's: `"unicode61 remove_diacritics 2"`
    splits at anything that is no letter; `"porter unicode61"` also joins English word forms; `"trigram"` is for
    scripts without spaces. `DocHit.score` is SQLite's bm25 with its sign turned: higher is better, its scale
    depends on the collection. Safe from many threads.
    """

    def __init__(
        self, path: str | os.PathLike[str] = ":memory:", *, tokenize: str = "unicode61 remove_diacritics 2"
    ) -> None:
        self.path = os.fspath(path)
        self._lock = threading.RLock()
        self._trigram = tokenize.startswith("trigram")
        with self._errors():
            self._db = sqlite3.connect(self.path, timeout=30, isolation_level=None, check_same_thread=False)
            try:
                self._prepare(tokenize)
            except BaseException:
                self._db.close()
                raise

    def _prepare(self, tokenize: str) -> None:
        version = self._db.execute("PRAGMA user_version").fetchone()[0]
        tables = self._db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
        if version > _VERSION:
            raise StoreError(
                f"{self.path} has index version {version}, written by a newer agentkit-fast; nothing was changed. "
                "Upgrade, or give another path"
            )
        if tables and version != _VERSION:
            raise StoreError(
                f"{self.path} is the database of another program; give another path for the index"
            )
        if tables:
            return
        if self.path != ":memory:":
            self._db.execute("PRAGMA journal_mode = WAL")
        with self._write():
            self._db.execute(
                "CREATE TABLE docs (doc INTEGER PRIMARY KEY, doc_id TEXT NOT NULL UNIQUE, title TEXT NOT NULL, "
                "place TEXT NOT NULL DEFAULT '', stamp TEXT NOT NULL DEFAULT '', text TEXT NOT NULL)"
            )
            self._db.execute(
                f"CREATE VIRTUAL TABLE passages USING fts5 (title, text, doc UNINDEXED, tokenize = {_quoted(tokenize)})"
            )
            self._db.execute(f"PRAGMA user_version = {_VERSION}")

    # -- filling --

    def add(self, doc_id: str, text: str, *, title: str = "") -> None:
        """Index one document, instead of any of the same id."""
        with self._write():
            self._put(doc_id, title or doc_id, text)

    def remove(self, doc_id: str) -> bool:
        """Forget a document; whether it was there."""
        with self._write():
            return self._drop(repair_text(doc_id))

    def index_folder(
        self, folder: str | os.PathLike[str], *, suffixes: Iterable[str] | None = None
    ) -> IndexReport:
        """Index the text files below `folder`; again, only what changed. Ids are paths relative to it.

        `suffixes`: such as `{".md", ".txt"}`; by default those of prose, data and source code. Hidden
        files and folders are left out, as is what is binary or larger than 5 MB.
        """
        root = Path(folder)
        if not root.is_dir():
            raise StoreError(f"{root} is not a folder; give the folder whose text files are to be found")
        wanted = frozenset(suffixes) if suffixes is not None else _SUFFIXES
        place = repair_text(str(root.resolve()))
        counts = dict.fromkeys(IndexReport.__struct_fields__, 0)
        with self._write():
            known = dict(self._db.execute("SELECT doc_id, stamp FROM docs WHERE place = ?", (place,)))
            for path in _files(root, wanted):
                doc_id = repair_text(path.relative_to(root).as_posix())
                try:
                    stat = path.stat()
                    stamp = f"{stat.st_mtime_ns}.{stat.st_size}"
                    before = known.pop(doc_id, None)
                    if before == stamp:
                        counts["unchanged"] += 1
                        continue
                    text = _read(path) if stat.st_size <= _MAX_FILE_BYTES else None
                except OSError:
                    text = None
                if text is None:
                    counts["skipped"] += 1
                    self._drop(doc_id)
                    continue
                self._put(doc_id, _title(path, text), text, place=place, stamp=stamp)
                counts["added" if before is None else "updated"] += 1
            for doc_id in known:
                self._drop(doc_id)
                counts["removed"] += 1
        return IndexReport(**counts)

    def _put(self, doc_id: str, title: str, text: str, *, place: str = "", stamp: str = "") -> None:
        doc_id, title, text = repair_text(doc_id), repair_text(title), repair_text(text)
        self._drop(doc_id)
        doc = self._db.execute(
            "INSERT INTO docs (doc_id, title, place, stamp, text) VALUES (?, ?, ?, ?, ?)",
            (doc_id, title, place, stamp, text),
        ).lastrowid
        self._db.executemany(
            "INSERT INTO passages (title, text, doc) VALUES (?, ?, ?)",
            [(title, passage, doc) for passage in _passages(text)],
        )

    def _drop(self, doc_id: str) -> bool:
        row = self._db.execute("SELECT doc FROM docs WHERE doc_id = ?", (doc_id,)).fetchone()
        if row is None:
            return False
        self._db.execute("DELETE FROM passages WHERE doc = ?", row)
        self._db.execute("DELETE FROM docs WHERE doc = ?", row)
        return True

    # -- asking --

    def find(self, texts: list[str], *, limit: int = 10) -> list[DocHit]:
        """The documents whose best passage fits the words of `texts` best, best first."""
        terms = self._terms(texts)
        if not terms:
            return []
        query = " OR ".join(_quoted(term) for term in terms)
        with self._lock, self._errors():
            rows = self._db.execute(
                # A title says what a document is about in few words, so a word there counts four times.
                "SELECT d.doc_id, d.title, -bm25(passages, 4.0, 1.0) AS score, "
                "snippet(passages, 1, '', '', '…', 24) FROM passages JOIN docs d ON d.doc = passages.doc "
                "WHERE passages MATCH ? ORDER BY rank LIMIT ?",
                (query, limit * 8),
            ).fetchall()
        best: dict[str, DocHit] = {}
        for doc_id, title, score, line in sorted(rows, key=lambda row: (-row[2], row[0])):
            if doc_id not in best and len(best) < limit:
                best[doc_id] = DocHit(doc_id=doc_id, title=title, score=score, line=" ".join(line.split()))
        return list(best.values())

    def read(self, doc_id: str) -> str | None:
        """The text of a document, as it was indexed."""
        with self._lock, self._errors():
            row = self._db.execute(
                "SELECT text FROM docs WHERE doc_id = ?", (repair_text(doc_id),)
            ).fetchone()
        return row[0] if row else None

    def read_tool(self, *, page_bytes: int = 8000) -> Any:
        """A `Tool`, `read_document`, by which the model reads what a pointer names, in pages."""
        if page_bytes < 4:
            raise ValueError("page_bytes must be at least 4: a page holds a whole character")
        from agentkit_fast.tools import tool

        @tool(idempotent=True)
        def read_document(doc_id: str, offset: int = 0) -> str:
            """Read a document by its id, a page at a time.

            Args:
                doc_id: The id a pointer names.
                offset: Where to begin, in bytes; 0 is the start.
            """
            text = self.read(doc_id)
            if text is None:
                return f"ERROR: there is no document {doc_id!r}."
            data = text.encode()
            start = _boundary(data, min(max(0, offset), len(data)))
            end = _boundary(data, min(start + page_bytes, len(data)))
            page = data[start:end].decode()
            if end == len(data):
                return page
            return f"{page}\n[bytes {start} to {end} of {len(data)}; go on with offset={end}]"

        return read_document

    def _terms(self, texts: list[str]) -> list[str]:
        shortest = 3 if self._trigram else 2
        found: dict[str, None] = {}
        for text in reversed(texts):
            for word in _WORD.findall(repair_text(text)[-20_000:].lower()):
                if len(word) >= shortest:
                    found[word] = None
                    if len(found) >= _MAX_TERMS:
                        return list(found)
        return list(found)

    # -- plumbing --

    def close(self) -> None:
        """Close the index."""
        with self._lock:
            self._db.close()

    def __del__(self) -> None:
        db = getattr(self, "_db", None)  # an index that was simply dropped
        if db is not None:
            db.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextlib.contextmanager
    def _write(self) -> Iterator[None]:
        with self._lock, self._errors():
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise StoreError(
                f"{self.path}: the full-text index failed ({error}). It holds copies only: delete the file and "
                "index anew"
            ) from error


def _quoted(term: str) -> str:
    return '"' + term.replace('"', '""') + '"'


def _boundary(data: bytes, place: int) -> int:
    """`place`, or the beginning of the code point it falls into."""
    while 0 < place < len(data) and data[place] & 0xC0 == 0x80:
        place -= 1
    return place


def _files(root: Path, suffixes: frozenset[str]) -> Iterator[Path]:
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            path = Path(folder, name)
            if not name.startswith(".") and path.suffix.lower() in suffixes and path.is_file():
                yield path


def _read(path: Path) -> str | None:
    data = path.read_bytes()
    return None if b"\x00" in data[:8192] else data.decode("utf-8", "replace")


def _title(path: Path, text: str) -> str:
    """The first Markdown heading near the top, else the file's name."""
    for line in text[:2000].splitlines():
        if line.startswith("# "):
            return line[2:].strip()
    return path.name


def _passages(text: str) -> Iterator[str]:
    """`text` in pieces of about `_PASSAGE_CHARS`, cut at blank lines, else lines, else anywhere."""
    start = 0
    while start < len(text):
        end = start + _PASSAGE_CHARS
        if end < len(text):
            for mark in ("\n\n", "\n", " "):
                cut = text.rfind(mark, start + _PASSAGE_CHARS // 2, end)
                if cut > 0:
                    end = cut + len(mark)
                    break
        piece = text[start:end]
        if piece.strip():
            yield piece
        start = end
