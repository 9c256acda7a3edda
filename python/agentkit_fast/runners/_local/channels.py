"""gpt-oss's channels: control tokens inside a reply that tell thought, talk and calls apart."""

from __future__ import annotations

import re
from collections.abc import Mapping

__all__ = ["FINAL", "MARKS", "Channels", "has_channels"]

MARKS = ("<|start|>", "<|channel|>", "<|constrain|>", "<|message|>", "<|end|>", "<|call|>", "<|return|>")
# Where a reply must obey a grammar from its first token on, the prompt already opens the channel of the answer.
FINAL = "<|channel|>final<|message|>"
_MESSAGE = "<|message|>"
_OVER = ("<|end|>", "<|call|>", "<|return|>", "<|start|>", "<|channel|>")
_HEADS = ("<|channel|>", "<|constrain|>", "<|message|>", "<|start|>", " to=")


def has_channels(template: str, special_tokens: Mapping[str, int]) -> bool:
    """Whether a model's template names channels, and its vocabulary has the tokens."""
    return all(mark in special_tokens for mark in MARKS[1:5]) and "<|channel|>" in template


class Channels:
    """Takes a reply's text, control tokens spelled out, and gives what is reasoning and what is content.

    `analysis` is reasoning, `final` content, and so is what `commentary` says to the user. A message to a function
    becomes the `<tool_call>` form that `TaggedCalls` reads. A reply without any channel is content.
    """

    over = False
    """Another channel may always follow."""

    def __init__(self, *, open_already: bool = False) -> None:
        self._held = ""
        self._kind = "content" if open_already else ""  # nothing: in a header
        self._first = True

    @property
    def inside(self) -> bool:
        return self._kind == "reasoning"

    def push(self, text: str) -> tuple[str, str]:
        """(reasoning, content) that this text adds."""
        self._held += text
        parts: dict[str, list[str]] = {"reasoning": [], "content": []}
        while self._held:
            if not self._kind:
                if not self._read_header(parts["content"]):
                    break
                continue
            ends = [(at, mark) for mark in _OVER if (at := self._held.find(mark)) >= 0]
            if not ends:
                keep = _could_begin(self._held)
                shown, self._held = (
                    self._held[: len(self._held) - keep],
                    self._held[len(self._held) - keep :],
                )
                self._say(parts, shown)
                break
            at, mark = min(ends)
            self._say(parts, self._held[:at])
            # A channel's or a message's own beginning is part of the next header.
            self._held = self._held[at:] if mark in _HEADS else self._held[at + len(mark) :]
            self._close(parts["content"])
        return "".join(parts["reasoning"]), "".join(parts["content"])

    def _read_header(self, content: list[str]) -> bool:
        """Whether a header, or a reply that has none, could be told."""
        at = self._held.find(_MESSAGE)
        if at >= 0:
            header, self._held = self._held[:at], self._held[at + len(_MESSAGE) :]
            to = re.search(r"\bto=functions\.([A-Za-z0-9_-]+)", header)
            channel = re.search(r"<\|channel\|>\s*(\w+)", header)
            if to is not None:
                self._kind = "call"
                content.append(f'<tool_call>{{"name": "{to[1]}", "arguments": ')
            else:
                self._kind = "reasoning" if channel is not None and channel[1] == "analysis" else "content"
            self._first = False
            return True
        if self._first and not any(
            self._held.startswith(head) or head.startswith(self._held) for head in _HEADS
        ):
            self._kind, self._first = "content", False
            return True
        return False

    def _say(self, parts: dict[str, list[str]], text: str) -> None:
        if text:
            parts["reasoning" if self._kind == "reasoning" else "content"].append(text)

    def _close(self, content: list[str]) -> None:
        if self._kind == "call":
            content.append("}</tool_call>")
        self._kind = ""

    def finish(self, *, cut: bool = False) -> tuple[str, str]:
        """What is left. A call that was cut off stays open, so that it is never taken for a whole one."""
        held, self._held = self._held, ""
        if not self._kind:
            return "", ""  # a header that was cut off says nothing
        parts: dict[str, list[str]] = {"reasoning": [], "content": []}
        self._say(parts, held)
        if not cut:
            self._close(parts["content"])
        return "".join(parts["reasoning"]), "".join(parts["content"])


def _could_begin(text: str) -> int:
    """Length of the longest end of `text` that a mark begins with."""
    for size in range(min(len(text), 12), 0, -1):
        end = text[-size:]
        if any(mark.startswith(end) for mark in _OVER):
            return size
    return 0
