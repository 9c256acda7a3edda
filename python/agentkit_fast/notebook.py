"""The small HTML that a notebook shows of a value: a line of facts and a table of texts, all of it escaped."""

from __future__ import annotations

import html
from collections.abc import Iterable

__all__ = ["HEAD_ROWS", "TAIL_ROWS", "details_html"]

# A window may hold thousands of messages; a notebook keeps what a cell shows in its file.
HEAD_ROWS = 5
TAIL_ROWS = 15
_TEXT_CHARS = 400


def _cut(text: str) -> str:
    text = text.encode("utf-8", "replace").decode("utf-8")  # a lone surrogate cannot be written to a page
    if len(text) <= _TEXT_CHARS:
        return text
    return f"{text[:_TEXT_CHARS]}… ({len(text):,} characters)"


def details_html(facts: str, rows: Iterable[tuple[str, str]]) -> str:
    """`facts` above a table of `(name, text)`; long texts are cut, and nothing in them is read as markup."""
    body = "".join(
        f"<tr><th style='text-align:left;vertical-align:top'>{html.escape(_cut(name))}</th>"
        f"<td style='text-align:left;white-space:pre-wrap'>{html.escape(_cut(text))}</td></tr>"
        for name, text in rows
    )
    return f"<div><p>{html.escape(_cut(facts))}</p><table>{body}</table></div>"
