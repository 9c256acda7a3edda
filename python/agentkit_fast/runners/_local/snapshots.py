"""Sequences put aside: in host memory, milliseconds away, and on disk for the next process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from agentkit_fast.runners._local.sequences import common
from agentkit_fast.runners._local.state_cache import StateCache, Stored

__all__ = ["Snapshot", "Snapshots"]

Ids = NDArray[np.int32]
State = NDArray[np.uint8]


@dataclass(eq=False, slots=True)
class Snapshot:
    """A sequence's ids and its state, or the file that holds it."""

    ids: Ids
    size: int
    state: State | None = None
    stored: Stored | None = None


class Snapshots:
    """Snapshots up to a number of bytes in memory; the oldest go first, to the disk where there is a cache.

    `rewinds`: a longer state serves for its own beginnings.
    """

    def __init__(self, limit: int, disk: StateCache | None = None, *, rewinds: bool = True) -> None:
        self.limit = limit
        self._rewinds = rewinds
        self._disk = disk
        self._kept: list[Snapshot] = []  # in memory, oldest first
        self._stored = (
            [Snapshot(stored.ids, stored.size, stored=stored) for stored in disk.stored()] if disk else []
        )

    @property
    def size(self) -> int:
        """Bytes in memory."""
        return sum(snapshot.size for snapshot in self._kept)

    def candidates(self) -> list[Snapshot]:
        return [*self._kept, *self._stored]

    def serves(self, longer: Ids, ids: Ids) -> bool:
        """Whether a state of `longer` makes one of `ids` needless."""
        if len(longer) < len(ids) or (len(longer) > len(ids) and not self._rewinds):
            return False
        return common(longer, ids) == len(ids)

    def put(self, ids: Ids, save: Callable[[], State]) -> None:
        """Keep a sequence, unless what is kept holds it already; what it holds in turn is dropped."""
        for snapshot in list(self._kept):
            if self.serves(snapshot.ids, ids):
                self._kept.remove(snapshot)
                self._kept.append(snapshot)
                return
            if self.serves(ids, snapshot.ids):
                self._kept.remove(snapshot)
        state = save()
        if state.nbytes > self.limit:
            self._spill(ids, state)
            return
        self._kept.append(Snapshot(ids, state.nbytes, state))
        while self.size > self.limit:
            oldest = self._kept.pop(0)
            if oldest.state is not None:
                self._spill(oldest.ids, oldest.state)

    def _spill(self, ids: Ids, state: State) -> None:
        """To the disk, unless a file there holds it; shorter files of the same conversation go."""
        if self._disk is None:
            return
        for snapshot in list(self._stored):
            if self.serves(snapshot.ids, ids):
                return
            if self.serves(ids, snapshot.ids) and snapshot.stored is not None:
                self._stored.remove(snapshot)
                self._disk.drop(snapshot.stored)
        stored = self._disk.save(ids, state)
        if stored is not None:
            self._stored.append(Snapshot(stored.ids, stored.size, stored=stored))

    def load(self, snapshot: Snapshot, progress: Callable[[float], None]) -> State | None:
        """Its state, and the snapshot counts as used; `None` where it cannot be had. `progress` is told what part of
        a file is read."""
        if snapshot in self._kept:
            self._kept.remove(snapshot)
            self._kept.append(snapshot)
            return snapshot.state
        if snapshot.stored is not None and self._disk is not None:
            return self._disk.load(snapshot.stored, progress)
        return None

    def drop(self, snapshot: Snapshot) -> None:
        for kept in (self._kept, self._stored):
            if snapshot in kept:
                kept.remove(snapshot)

    def flush(self, live: list[tuple[Ids, Callable[[], State]]]) -> None:
        """Write everything to disk, live sequences too: the end of a process."""
        if self._disk is None:
            return
        kept = [(snapshot.ids, snapshot.state) for snapshot in self._kept if snapshot.state is not None]
        everything = [*live, *((ids, lambda state=state: state) for ids, state in kept)]
        written: list[Ids] = []
        # Longest first, so that the beginning of another conversation is not written again.
        for ids, save in sorted(everything, key=lambda pair: -len(pair[0])):
            if not any(self.serves(done, ids) for done in written):
                self._spill(ids, save())
                written.append(ids)
