"""What the rules of a turn ask to have done.

The rules (`turn.py`) yield these and receive the outcome; the drivers (`drivers.py`) perform them. An
effect that fails is thrown into the rules at the point where it was asked for; so is a cancellation.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from agentkit_fast.entries import Entry
from agentkit_fast.lifting import LiftRequest
from agentkit_fast.messages import ChatOptions, ToolCall, ToolDef

__all__ = [
    "Append",
    "Approve",
    "BeginCalls",
    "Build",
    "Claim",
    "ClearNotice",
    "CloseChat",
    "Effect",
    "Emit",
    "Hook",
    "LeftOpen",
    "NextChunk",
    "NextResult",
    "Now",
    "OpenChat",
    "Outcome",
    "Park",
    "Prepare",
    "StartCall",
    "StopCalls",
    "Stored",
    "TurnStopped",
]


class TurnStopped(BaseException):
    """Thrown into the rules when `session.cancel()` was called.

    A `BaseException`, so that no host code between takes it for an error of its own.
    """


class Effect(msgspec.Struct, frozen=True, gc=False):
    """Base of all effects."""


class Claim(Effect, frozen=True):
    """Claim the inbox. Gives the entries that became visible, or only how many where nobody looks."""


class Prepare(Effect, frozen=True):
    """Run the preparer."""


class Build(Effect, frozen=True):
    """Build the window. Gives a `Window` or a list of messages."""


class OpenChat(Effect, frozen=True):
    """Begin a chat round."""

    messages: Any
    tools: tuple[ToolDef, ...]
    options: ChatOptions


class NextChunk(Effect, frozen=True):
    """Gives the next chunk, or `None` at the end."""


class CloseChat(Effect, frozen=True):
    """Close the stream, which aborts the generation where it is still going on."""


class Append(Effect, frozen=True):
    """Store entries, in one transaction where the store can."""

    entries: tuple[Entry, ...]


class Stored(Effect, frozen=True):
    """Gives those of the ids that are in the store. Asked only when an `Append` was broken off."""

    ids: tuple[str, ...]


class LeftOpen(Effect, frozen=True):
    """Gives the stored calls without a result that a dead process left, where the store knows them."""


class BeginCalls(Effect, frozen=True):
    """Write down which stored calls are about to run, where the store keeps that."""

    entry_ids: tuple[str, ...]


class Approve(Effect, frozen=True):
    """Ask a person. Gives what they said."""

    call: ToolCall


class StartCall(Effect, frozen=True):
    """Start a call. `alone`: nothing else will run beside it."""

    index: int
    call: ToolCall
    alone: bool = False


class NextResult(Effect, frozen=True):
    """Wait for a started call to end. Gives its `Outcome`."""


class StopCalls(Effect, frozen=True):
    """Cancel what runs and wait a moment for it. Gives the outcomes that were still to be had."""


class Park(Effect, frozen=True):
    """Keep a call whose result comes later."""

    lift: LiftRequest
    call: ToolCall


class ClearNotice(Effect, frozen=True):
    """Retract the notices about a key."""

    group_by: str
    key: str


class Now(Effect, frozen=True):
    """Gives nanoseconds of the session's clock."""


class Emit(Effect, frozen=True):
    """Hand an event to whoever listens."""

    event: Any


class Hook(Effect, frozen=True):
    """Call one of the host's functions. Gives what it returned, awaited where needed."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...]


class Outcome(msgspec.Struct, frozen=True):
    """How a call ended: with a `value`, with an `error`, or not within `timed_out_s` seconds."""

    index: int
    value: Any = None
    error: BaseException | None = None
    timed_out_s: float = 0.0
