"""What the model wrote, against what a history makes of it.

A history keeps a reply as prose and calls and writes the calls anew, perhaps with other blanks. For the model
both are the same, but its cache holds the tokens it wrote. So a message that says the same is given in the
model's own words.
"""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from typing import Any

from agentkit_fast.text import parse_tool_calls

__all__ = ["Replies"]

_KEPT = 512
_VARIANTS = 16
_MARK = "@@call "


class Replies:
    """The last replies that hold calls."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # Several replies may mean the same: the last is likeliest, and one that is there as it is stays.
        self._written: OrderedDict[tuple[Any, ...], list[str]] = OrderedDict()

    def note(self, content: str) -> None:
        """Remember a reply as it was written."""
        key = _meaning(content)
        if key is None:
            return
        with self._lock:
            known = self._written.setdefault(key, [])
            if content in known:
                known.remove(content)
            known.append(content)
            del known[:-_VARIANTS]
            self._written.move_to_end(key)
            while len(self._written) > _KEPT:
                self._written.popitem(last=False)

    def as_written(self, content: str) -> str:
        """The same message in the model's words, or `content` where it wrote no such."""
        if not self._written or _MARK not in content:
            return content
        key = _meaning(content)
        with self._lock:
            known = [] if key is None else self._written.get(key, [])
            return known[-1] if known and content not in known else content


def _meaning(content: str) -> tuple[Any, ...] | None:
    if _MARK not in content:
        return None
    parsed = parse_tool_calls(content)
    if parsed.problem is not None or not parsed.calls:
        return None
    calls = []
    for call in parsed.calls:
        try:
            arguments = json.dumps(json.loads(call.arguments), sort_keys=False)
        except (ValueError, RecursionError):
            return None
        calls.append((call.name, arguments))
    return (parsed.prose, *calls)
