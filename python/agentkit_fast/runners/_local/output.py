"""From a reply's bytes to the text that is streamed: UTF-8, stop strings, reasoning."""

from __future__ import annotations

import codecs
from collections.abc import Sequence

__all__ = ["StopFinder", "Thinking", "Utf8"]


class Utf8:
    """Bytes to text. An unfinished character waits for its rest; cut off at the end it is one U+FFFD."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self.waits = False
        """Whether an unfinished character waits."""

    def push(self, piece: bytes) -> str:
        text = self._decoder.decode(piece)
        self.waits = bool(self._decoder.getstate()[0])
        return text

    def finish(self) -> str:
        return self._decoder.decode(b"", final=True)


class StopFinder:
    """Lets text through up to the earliest of some strings, keeping back what may yet begin one."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = [stop for stop in stops if stop]
        self._longest = max((len(stop) for stop in self._stops), default=0)
        self._held = ""
        self.found = ""

    def push(self, text: str) -> str:
        """What can be shown of it. Once a stop is found (`found`), nothing more."""
        if not self._stops:
            return text
        if self.found:
            return ""
        held = self._held + text
        at, found = min(
            ((held.find(stop), stop) for stop in self._stops if stop in held),
            default=(-1, ""),
            key=lambda pair: (pair[0], -len(pair[1])),
        )
        if at >= 0:
            self.found, self._held = found, ""
            return held[:at]
        keep = self._could_begin(held)
        self._held = held[len(held) - keep :] if keep else ""
        return held[: len(held) - keep]

    def _could_begin(self, text: str) -> int:
        """Length of the longest end of `text` that a stop begins with."""
        for size in range(min(len(text), self._longest - 1), 0, -1):
            end = text[-size:]
            if any(stop.startswith(end) for stop in self._stops):
                return size
        return 0

    def finish(self) -> str:
        held, self._held = self._held, ""
        return held


class Thinking:
    """Tells reasoning from content: `<think>` first in a reply, up to `</think>`.

    `open_already`: the prompt itself ended inside the thought, as some templates make it.
    """

    OPEN, CLOSE = "<think>", "</think>"

    def __init__(self, *, open_already: bool = False) -> None:
        self._state = "inside" if open_already else "start"
        self._held = ""
        self.over = False
        """Whether all that comes is content."""

    @property
    def inside(self) -> bool:
        return self._state == "inside"

    def push(self, text: str) -> tuple[str, str]:
        """(reasoning, content) that this text adds."""
        if self.over:
            return "", text
        self._held += text
        if self._state == "start":
            begun = self._held.lstrip()
            if len(begun) < len(self.OPEN) and self.OPEN.startswith(begun):
                return "", ""
            if not begun.startswith(self.OPEN):
                return "", self._release("content")
            self._held = begun[len(self.OPEN) :]
            self._state = "inside"
        if self._state == "inside":
            at = self._held.find(self.CLOSE)
            if at < 0:
                keep = next(
                    (n for n in range(len(self.CLOSE) - 1, 0, -1) if self._held.endswith(self.CLOSE[:n])), 0
                )
                reasoning = self._held[: len(self._held) - keep]
                self._held = self._held[len(reasoning) :]
                return reasoning, ""
            reasoning, self._held = self._held[:at], self._held[at + len(self.CLOSE) :]
            self._state = "after"
            return reasoning, self._after()
        return "", self._after()

    def _after(self) -> str:
        # The line breaks between a thought and the reply belong to neither.
        text = self._held.lstrip("\n")
        if not text:
            self._held = ""
            return ""
        self._held = text
        return self._release("content")

    def _release(self, state: str) -> str:
        held, self._held, self._state = self._held, "", state
        self.over = state == "content"
        return held

    def finish(self, *, cut: bool = False) -> tuple[str, str]:
        held, self._held = self._held, ""
        return (held, "") if self._state == "inside" else ("", held)
