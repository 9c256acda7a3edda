"""Tool calls inside a reply's text, for callers that hand their tools to the runner.

Two dialects: heredoc calls, which the runner teaches and enforces itself, and the JSON in `<tool_call>` tags
of models whose template renders tools that way.
"""

from __future__ import annotations

import json
from typing import Any, Protocol

from agentkit_fast.entries import new_id
from agentkit_fast.messages import StreamChunk, ToolCall
from agentkit_fast.text import CallReady, HeredocStream, ProseDelta

__all__ = ["CallParser", "HeredocCalls", "TaggedCalls"]


class CallParser(Protocol):
    """Takes content as it comes and gives chunks of prose and of complete calls."""

    calls: int
    partial: tuple[ToolCall, ...]

    def push(self, text: str) -> list[StreamChunk]: ...

    def finish(self) -> list[StreamChunk]:
        """What is left. A call that was cut off is in `partial` then, never a chunk."""
        ...


class HeredocCalls:
    """`@@call` blocks."""

    def __init__(self) -> None:
        self._stream = HeredocStream()
        self.calls = 0
        self.partial: tuple[ToolCall, ...] = ()

    def push(self, text: str) -> list[StreamChunk]:
        chunks = []
        for event in self._stream.push(text):
            if isinstance(event, ProseDelta):
                chunks.append(StreamChunk(content=event.text))
            elif isinstance(event, CallReady):
                self.calls += 1
                chunks.append(StreamChunk(tool_call=event.call))
        return chunks

    def finish(self) -> list[StreamChunk]:
        parsed = self._stream.finish()
        if parsed.problem is not None:
            self.partial = (ToolCall(id=new_id(), name=parsed.problem.tool_name, arguments=""),)
        chunks = [StreamChunk(content=parsed.tail)] if parsed.tail else []
        for call in parsed.calls[self.calls :]:
            self.calls += 1
            chunks.append(StreamChunk(tool_call=call))
        return chunks


class TaggedCalls:
    """`<tool_call>{"name": ..., "arguments": {...}}</tool_call>`."""

    OPEN, CLOSE = "<tool_call>", "</tool_call>"

    def __init__(self) -> None:
        self._held = ""
        self._inside = False
        self.calls = 0
        self.partial: tuple[ToolCall, ...] = ()

    def push(self, text: str) -> list[StreamChunk]:
        chunks: list[StreamChunk] = []
        self._held += text
        while True:
            mark = self.CLOSE if self._inside else self.OPEN
            at = self._held.find(mark)
            if at < 0:
                break
            body, self._held = self._held[:at], self._held[at + len(mark) :]
            if self._inside:
                chunks.append(self._call(body))
            elif body:
                chunks.append(StreamChunk(content=body))
            self._inside = not self._inside
        if not self._inside:
            keep = next(
                (n for n in range(len(self.OPEN) - 1, 0, -1) if self._held.endswith(self.OPEN[:n])), 0
            )
            shown = self._held[: len(self._held) - keep]
            self._held = self._held[len(shown) :]
            if shown:
                chunks.append(StreamChunk(content=shown))
        return chunks

    def _call(self, body: str) -> StreamChunk:
        try:
            value: Any = json.loads(body)
        except (ValueError, RecursionError):
            value = None
        if not isinstance(value, dict) or not isinstance(value.get("name"), str):
            # Not what the template taught: shown as it is, so that nothing the model said is lost.
            return StreamChunk(content=f"{self.OPEN}{body}{self.CLOSE}")
        self.calls += 1
        arguments = value.get("arguments", value.get("parameters"))
        return StreamChunk(
            tool_call=ToolCall.from_wire({"id": new_id(), "name": value["name"], "arguments": arguments})
        )

    def finish(self) -> list[StreamChunk]:
        held, self._held = self._held, ""
        if self._inside:
            self.partial = (ToolCall(id=new_id(), name="", arguments=held),)
            return []
        return [StreamChunk(content=held)] if held else []
