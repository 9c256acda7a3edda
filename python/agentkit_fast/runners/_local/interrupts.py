"""Ctrl-C while C code runs that calls back into Python."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["interrupts_wait"]


@contextmanager
def interrupts_wait() -> Iterator[list[Any]]:
    """Holds Ctrl-C back until the block ends, and raises it then.

    A `KeyboardInterrupt` raised inside a callback (llama.cpp logs hundreds of lines through one while it loads) is
    swallowed by ctypes, and the person at the keyboard waits for nothing. Gives a list that is empty until Ctrl-C is
    pressed. Outside the main thread, where no signal arrives, and where the host handles the signal without Python,
    nothing is changed.
    """
    came: list[Any] = []
    handler = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(handler):
        yield came
        return
    signal.signal(signal.SIGINT, lambda *what: came.append(what))
    try:
        yield came
    finally:
        signal.signal(signal.SIGINT, handler)
        if came:
            handler(*came[0])
