"""What a growing conversation has in common from one prompt to the next, kept without copying it each time."""

from __future__ import annotations

from sys import byteorder
from threading import Lock
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Ids = NDArray[np.int32]

__all__ = ["Beginning", "GrowingIds", "id_bytes", "ids_in"]


class Beginning:
    """The first `size` items of a list that may have been continued since."""

    __slots__ = ("_lock", "items", "size")

    def __init__(self, items: list[Any]) -> None:
        self.items = items
        self.size = len(items)
        self._lock = Lock()

    def grown(self, size: int, more: list[Any]) -> Beginning:
        """The first `size` items and `more`: in the same list, where nobody has put others there."""
        with self._lock:
            if size == self.size == len(self.items):
                self.items += more
                made = Beginning.__new__(Beginning)
                made.items, made.size, made._lock = self.items, size + len(more), self._lock
                return made
        return Beginning(self.items[:size] + more)


def id_bytes(token: int) -> bytes:
    """One id as it is in memory."""
    return token.to_bytes(4, byteorder)


def ids_in(memory: bytearray | bytes) -> Ids:
    """The ids in a piece of memory, to look at: the array cannot be written to."""
    import numpy as np

    if not memory:
        return np.frombuffer(b"\0\0\0\0", dtype=np.int32)[:0]
    return np.frombuffer(memoryview(memory).toreadonly(), dtype=np.int32)


class GrowingIds:
    """The ids of a prompt, in memory that serves for the next ones of the conversation too.

    Two pieces of memory take turns, as the next prompt rarely ends as the last one did: while somebody looks at
    the newer one, the older is brought up to date and grown. Python refuses to resize memory that is looked at;
    then (somebody keeps older prompts) new memory is taken and everything copied.
    """

    __slots__ = ("_alike", "_lock", "_memory", "_older", "_taken")

    def __init__(self, memory: bytearray, older: bytearray | None = None, alike: int = 0) -> None:
        self._memory = memory
        self._older = older
        self._alike = alike  # bytes that both begin with
        self._taken = False
        self._lock = Lock()

    def grown(self, count: int, more: bytearray, *, last: bool) -> tuple[GrowingIds, Ids]:
        """The first `count` ids and those in `more`. With `last` these here are not needed any more."""
        kept = 4 * count
        with self._lock:
            if self._taken:
                raise LookupError
            memory, alike = bytearray(), 0
            if last and self._older is not None:
                try:
                    del self._older[min(kept, self._alike) :]
                    memory, alike = self._older, len(self._older)
                except BufferError:
                    pass
            self._taken = last
            with memoryview(self._memory) as whole:
                memory += whole[alike:kept]
        memory += more
        return GrowingIds(memory, self._memory if last else None, kept), ids_in(memory)
