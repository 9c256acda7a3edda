"""What a docstring says of a function and of each parameter (Google, NumPy or Sphinx style)."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable

__all__ = ["parse_docstring"]

_GOOGLE_ARGS = frozenset(
    {"args:", "arguments:", "parameters:", "params:", "keyword args:", "other parameters:"}
)
_GOOGLE_END = frozenset(
    {
        "returns:",
        "return:",
        "yields:",
        "raises:",
        "example:",
        "examples:",
        "note:",
        "notes:",
        "warning:",
        "see also:",
    }
)
_NUMPY_ARGS = frozenset({"parameters", "other parameters"})
_GOOGLE_ITEM = re.compile(r"^\*{0,2}(\w+)\s*(?:\([^)]*\))?\s*:\s*(.*)$")
_NUMPY_ITEM = re.compile(r"^\*{0,2}(\w+(?:\s*,\s*\w+)*)\s*(?::.*)?$")
_SPHINX_PARAM = re.compile(
    r"^:(?:param|parameter|arg|argument|key|keyword)\s+(?:[^:]*\s)?\*{0,2}(\w+)\s*:\s*(.*)$"
)
_SPHINX_FIELD = re.compile(r"^:\w+[^:]*:")


def parse_docstring(doc: str | None) -> tuple[str, dict[str, str]]:
    """The description (all prose before the first section) and the description of each parameter."""
    if not doc:
        return "", {}
    lines = inspect.cleandoc(doc).splitlines()
    prose: list[str] = []
    params: dict[str, str] = {}
    at = 0
    while at < len(lines):
        line = lines[at].strip()
        flat = not lines[at][:1].isspace()
        if flat and line.lower() in _GOOGLE_ARGS:
            at = _block(lines, at + 1, params, _google_item)
        elif flat and _underlined(lines, at):
            numpy = line.lower() in _NUMPY_ARGS
            at = _numpy_section(lines, at + 2, params if numpy else {})
        elif flat and line.lower() in _GOOGLE_END and at + 1 < len(lines) and lines[at + 1][:1].isspace():
            at = _block(lines, at + 1, {}, _google_item)
        elif flat and _SPHINX_FIELD.match(line):
            at = _sphinx_field(lines, at, params)
        else:
            prose.append(lines[at].rstrip())
            at += 1
    return "\n".join(prose).strip(), params


def _underlined(lines: list[str], at: int) -> bool:
    if at + 1 >= len(lines) or not lines[at].strip():
        return False
    rule = lines[at + 1].strip()
    return len(rule) >= 3 and not rule.strip("-")


def _google_item(line: str) -> tuple[list[str], str] | None:
    found = _GOOGLE_ITEM.match(line)
    return ([found[1]], found[2]) if found else None


def _block(
    lines: list[str], at: int, into: dict[str, str], item: Callable[[str], tuple[list[str], str] | None]
) -> int:
    """An indented section: items at its own indentation, their continuation deeper."""
    indent = 0
    names: list[str] = []
    words: list[str] = []

    def close() -> None:
        for name in names:
            into[name] = " ".join(words).strip()

    while at < len(lines):
        line = lines[at]
        if line.strip():
            depth = len(line) - len(line.lstrip())
            if depth == 0:
                break
            indent = indent or depth
            found = item(line.strip()) if depth <= indent else None
            if found:
                close()
                names, words = found[0], [found[1]]
            else:
                words.append(line.strip())
        at += 1
    close()
    return at


def _numpy_section(lines: list[str], at: int, into: dict[str, str]) -> int:
    names: list[str] = []
    words: list[str] = []
    while at < len(lines) and not _underlined(lines, at):
        line = lines[at]
        if line.strip() and not line[:1].isspace():
            found = _NUMPY_ITEM.match(line.strip())
            for name in names:
                into[name] = " ".join(words).strip()
            names, words = ([part.strip() for part in found[1].split(",")] if found else []), []
        elif line.strip():
            words.append(line.strip())
        at += 1
    for name in names:
        into[name] = " ".join(words).strip()
    return at


def _sphinx_field(lines: list[str], at: int, into: dict[str, str]) -> int:
    found = _SPHINX_PARAM.match(lines[at].strip())
    words = [found[2]] if found else []
    at += 1
    while at < len(lines) and lines[at].strip() and lines[at][:1].isspace():
        words.append(lines[at].strip())
        at += 1
    if found:
        into[found[1]] = " ".join(words).strip()
    return at
