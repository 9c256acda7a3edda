"""What `Session.stream()` and `Session.astream()` yield, in the order it happens."""

from __future__ import annotations

from typing import Any

import msgspec

from agentkit_fast.entries import CompactionInfo, Entry
from agentkit_fast.messages import ToolCall

__all__ = [
    "CallReady",
    "CallStarted",
    "Compacted",
    "Event",
    "Notice",
    "ReasoningDelta",
    "Retrying",
    "TextDelta",
    "ToolResult",
    "TurnDone",
    "UsageUpdated",
]


class Event(msgspec.Struct, kw_only=True, frozen=True):
    """Base of all events."""


class TextDelta(Event, frozen=True, tag=True):
    """New text of the reply; never a part of a tool call."""

    text: str


class ReasoningDelta(Event, frozen=True, tag=True):
    """New text of the model's reasoning."""

    text: str


class CallStarted(Event, frozen=True, tag=True):
    """The model began a call. `index` counts the calls of the round from 0."""

    index: int
    name: str


class CallReady(Event, frozen=True, tag=True):
    """The call is complete."""

    index: int
    call: ToolCall


class ToolResult(Event, frozen=True, tag=True):
    """A call's result, in the order in which calls end."""

    call: ToolCall
    content: str
    entry_id: str = ""


class Notice(Event, frozen=True, tag=True):
    """A notification was added to the history, by the loop's guards or from the inbox."""

    entry: Entry


class Compacted(Event, frozen=True, tag=True):
    """History was folded into a summary."""

    info: CompactionInfo


class UsageUpdated(Event, frozen=True, tag=True):
    """Running totals after a chat round (a `TokenUsage`)."""

    usage: Any


class Retrying(Event, frozen=True, tag=True):
    """A round or a request is tried again; `reason` says why."""

    reason: str
    attempt: int = 0
    delay_s: float = 0.0


class TurnDone(Event, frozen=True, tag=True):
    """The turn is over; `result` is its `TurnResult`."""

    result: Any
