"""Sequences put aside in host memory: milliseconds to save or restore, where evaluating takes seconds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from agentkit_fast.runners._local.sequences import common

__all__ = ["Snapshot", "Snapshots"]

Ids = NDArray[np.int32]
State = NDArray[np.uint8]


@dataclass(eq=False, slots=True)
class Snapshot:
    """A sequence's ids and its state."""

    ids: Ids
    state: State | None
    size: int
    from_disk: bool = False


class Snapshots:
    """Snapshots up to a number of bytes; the oldest go first."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._kept: list[Snapshot] = []  # oldest first

    @property
    def size(self) -> int:
        return sum(snapshot.size for snapshot in self._kept)

    def candidates(self) -> list[Snapshot]:
        return list(self._kept)

    def put(self, ids: Ids, save: Callable[[], State]) -> None:
        """Keep a sequence, unless what is kept holds it already; what it holds in turn is dropped."""
        for snapshot in list(self._kept):
            shared = common(snapshot.ids, ids)
            if shared == len(ids):
                self._kept.remove(snapshot)
                self._kept.append(snapshot)
                return
            if shared == len(snapshot.ids):
                self._kept.remove(snapshot)
        state = save()
        if state.nbytes > self.limit:
            return
        self._kept.append(Snapshot(ids, state, state.nbytes))
        while self.size > self.limit:
            self._kept.pop(0)

    def load(self, snapshot: Snapshot) -> State | None:
        """Its state; the snapshot counts as used."""
        if snapshot in self._kept:
            self._kept.remove(snapshot)
            self._kept.append(snapshot)
        return snapshot.state

    def drop(self, snapshot: Snapshot) -> None:
        if snapshot in self._kept:
            self._kept.remove(snapshot)
