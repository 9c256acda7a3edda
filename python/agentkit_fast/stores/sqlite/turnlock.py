"""One turn at a time in each session, across threads and processes.

The lock is the operating system's, on one byte of a file beside the database (the session's number is the
byte's place): it ends with its process, however that ends, and needs no clock.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from agentkit_fast.errors import SessionBusy, StoreError

__all__ = ["TurnLocks"]

_guard = threading.Lock()
# By the lock file's real path: POSIX ends all locks of a process on a file when any handle of it is closed,
# so the stores of a process share one handle, and it stays open.
_handles: dict[str, int] = {}
_held: dict[str, set[int]] = {}


def _forget() -> None:
    """A forked child holds none of its parent's locks."""
    global _guard  # noqa: PLW0603 - the parent may have held it at the fork
    _guard = threading.Lock()
    _handles.clear()
    _held.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


class TurnLocks:
    """The turn locks of one database file; `path` `""` for one that is in memory only."""

    def __init__(self, path: str) -> None:
        self._path = str(Path(path).resolve()) + "-turns" if path else f":memory:{id(self)}"
        self._on_disk = bool(path)

    def take(self, number: int, session_id: str) -> Callable[[], None]:
        """Take the lock of session `number` or raise `SessionBusy`; gives what frees it."""
        with _guard:
            held = _held.setdefault(self._path, set())
            if number in held or (self._on_disk and not _lock(self._handle(), number)):
                raise SessionBusy(
                    f"a turn of session {session_id!r} is running already, in this process or another. Wait for "
                    "it, or publish the message to its inbox so that the running turn sees it"
                )
            held.add(number)
        free = [number]

        def release() -> None:
            with _guard:
                while free:
                    free.pop()
                    _held.get(self._path, set()).discard(number)
                    if self._on_disk and self._path in _handles:
                        _unlock(_handles[self._path], number)

        return release

    def _handle(self) -> int:
        handle = _handles.get(self._path)
        if handle is None:
            try:
                handle = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o644)
            except OSError as error:
                raise StoreError(f"{self._path} cannot be opened: {error.strerror or error}") from error
            _handles[self._path] = handle
        return handle


if sys.platform != "win32":
    import fcntl

    def _lock(handle: int, place: int) -> bool:
        try:
            fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, place)
        except (BlockingIOError, PermissionError):
            return False
        return True

    def _unlock(handle: int, place: int) -> None:
        fcntl.lockf(handle, fcntl.LOCK_UN, 1, place)

else:
    import msvcrt

    def _lock(handle: int, place: int) -> bool:
        os.lseek(handle, place, os.SEEK_SET)
        try:
            msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        return True

    def _unlock(handle: int, place: int) -> None:
        os.lseek(handle, place, os.SEEK_SET)
        msvcrt.locking(handle, msvcrt.LK_UNLCK, 1)
