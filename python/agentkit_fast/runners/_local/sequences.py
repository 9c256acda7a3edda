"""Which tokens lie in which sequence of the cache, and what of a new prompt is there already.

Token ids are a conversation's truth. A prompt is recognized by its tokens, and a stretch of text that
the model wrote in other tokens than the tokenizer would choose keeps the model's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Sequence", "TokenLog", "adopt", "common"]

Ids = NDArray[np.int32]


class TokenLog:
    """The ids of a sequence, in order; grows by amortized doubling."""

    __slots__ = ("_data", "_length", "_tail")

    def __init__(self, ids: Ids | None = None) -> None:
        self._length = 0 if ids is None else len(ids)
        self._data: Ids = np.empty(max(256, self._length), dtype=np.int32)
        if ids is not None:
            self._data[: self._length] = ids
        # A reply's tokens come one at a time, and go into the array when somebody looks.
        self._tail: list[int] = []

    def __len__(self) -> int:
        return self._length + len(self._tail)

    @property
    def ids(self) -> Ids:
        """A view; valid until the log changes."""
        self._settle()
        return self._data[: self._length]

    def append(self, token: int) -> None:
        self._tail.append(token)

    def extend(self, ids: Any) -> None:
        self._settle()
        self._extend(ids)

    def _settle(self) -> None:
        if self._tail:
            self._extend(self._tail)
            self._tail.clear()

    def _extend(self, ids: Any) -> None:
        end = self._length + len(ids)
        if end > len(self._data):
            grown = np.empty(max(end, 2 * len(self._data)), dtype=np.int32)
            grown[: self._length] = self._data[: self._length]
            self._data = grown
        self._data[self._length : end] = ids
        self._length = end

    def truncate(self, length: int) -> None:
        self._settle()
        self._length = min(length, self._length)


@dataclass(eq=False, slots=True)
class Sequence:
    """One sequence of the context. `log` is exactly what the cache holds of it."""

    number: int
    log: TokenLog = field(default_factory=TokenLog)
    session: str = ""
    used: int = 0
    busy: bool = False


def common(left: Ids, right: Ids) -> int:
    """How many ids two sequences begin with in common."""
    shorter = min(len(left), len(right))
    # Compared in growing pieces: most pairs differ early, and a long match is one memory scan.
    start, step = 0, 256
    while start < shorter:
        end = min(shorter, start + step)
        differ = np.flatnonzero(left[start:end] != right[start:end])
        if len(differ):
            return start + int(differ[0])
        start, step = end, step * 4
    return shorter


def adopt(
    log: Ids,
    ids: Ids,
    control: NDArray[np.bool_],
    bytes_of: Callable[[Ids], bytes],
    encode_text: Callable[[str], Ids],
) -> tuple[Ids, int]:
    """`ids` with the log's spelling wherever only the spelling differs, and how many they then share.

    Between two control tokens the same bytes are the same text: the ids the model wrote, and the cache
    holds, stand for it as well as the tokenizer's. Nothing but plain text is ever exchanged.
    """
    shared = common(log, ids)
    while shared < min(len(log), len(ids)):
        before = np.flatnonzero(control[log[:shared]])
        start = int(before[-1]) + 1 if len(before) else 0
        log_end = _next(control, log, shared)
        ids_end = _next(control, ids, shared)
        ours, theirs = bytes_of(log[start:log_end]), bytes_of(ids[start:ids_end])
        if ours == theirs:
            ids = np.concatenate([ids[:start], log[start:log_end], ids[ids_end:]])
            shared = log_end + common(log[log_end:], ids[log_end:])
            continue
        if log_end == len(log) and theirs.startswith(ours):
            try:
                rest = encode_text(theirs[len(ours) :].decode())
            except UnicodeDecodeError:  # the log ends inside a character
                break
            ids = np.concatenate([ids[:start], log[start:], rest, ids[ids_end:]])
            shared = len(log)
        break
    return ids, shared


def _next(control: NDArray[np.bool_], ids: Ids, start: int) -> int:
    found = np.flatnonzero(control[ids[start:]])
    return start + int(found[0]) if len(found) else len(ids)
