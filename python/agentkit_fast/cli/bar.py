"""A bar for what a model in this process takes its time with: loading, reading a prompt, taking up a kept session."""

from __future__ import annotations

import threading
import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

__all__ = ["LongWork"]

_WORDS = {"load": "loading the model", "prefill": "reading the prompt", "restore": "taking up the session"}
# What is done sooner shows no bar: a flicker before each reply tells nobody anything.
_PATIENCE_S = 0.7


class LongWork:
    """A runner's `on_progress`: shows a bar on a terminal for work that takes longer than a moment, and takes it away.

    Called from the runner's own thread. Writes nothing where the console is no terminal.
    """

    def __init__(self, console: Console, *, patience: float = _PATIENCE_S) -> None:
        self._console = console
        self._patience = patience
        self._lock = threading.Lock()
        self._what = ""
        self._begun = 0.0
        self._shown: Progress | None = None

    def __call__(self, what: str, fraction: float) -> None:
        with self._lock:
            now = time.monotonic()
            if what != self._what:
                self._end()
                self._what, self._begun = what, now
            if fraction >= 1:
                self._end()
                return
            if self._shown is None and self._console.is_terminal and now - self._begun >= self._patience:
                self._shown = Progress(
                    TextColumn("[dim]{task.description}"),
                    BarColumn(bar_width=30),
                    TaskProgressColumn(),
                    TimeRemainingColumn(),
                    console=self._console,
                    transient=True,
                )
                self._shown.add_task(_WORDS.get(what, what), total=1.0)
                self._shown.start()
            if self._shown is not None:
                self._shown.update(self._shown.task_ids[0], completed=fraction)

    def _end(self) -> None:
        if self._shown is not None:
            self._shown.stop()
        self._shown, self._what = None, ""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:
            self._end()
