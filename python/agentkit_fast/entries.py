"""Durable records: what a store keeps and the shaper reasons over.

An *entry* is a record of the conversation; a *message* (`agentkit_fast.messages`) is what goes over the
wire. Hosts map their own rows onto entries and back.
"""

from __future__ import annotations

import os
from enum import StrEnum

import msgspec

from agentkit_fast._unicode import repair_text
from agentkit_fast.messages import ContentPart, ToolCall

__all__ = [
    "Compaction",
    "CompactionInfo",
    "Entry",
    "EntryKind",
    "EntryUsage",
    "OpenCall",
    "ParkedCall",
    "PendingNotice",
    "RequestRetry",
    "new_id",
]


class EntryKind(StrEnum):
    """What an entry records. A kind that is none of these is rendered as a notification."""

    user = "user"
    assistant = "assistant"
    tool_call = "tool_call"
    tool_result = "tool_result"
    compaction = "compaction"
    notification = "notification"


class RequestRetry(msgspec.Struct, kw_only=True, frozen=True, omit_defaults=True, gc=False):
    """A request that failed before the one that was answered: why, and the wait after it (seconds)."""

    reason: str
    attempt: int = 0
    delay_s: float = 0.0

    def __post_init__(self) -> None:
        if not self.reason.isascii():
            msgspec.structs.force_setattr(self, "reason", repair_text(self.reason))


class EntryUsage(msgspec.Struct, kw_only=True, frozen=True, omit_defaults=True, gc=False):
    """What the round-trip that produced an assistant entry cost (tokens, milliseconds).

    All counts are 0 where only `retries` are known: the endpoint made the runner wait and reported no tokens.
    """

    latency_ms: int = 0
    cached: int = 0
    processed: int = 0
    generated: int = 0
    retries: tuple[RequestRetry, ...] = ()


class Entry(msgspec.Struct, kw_only=True, omit_defaults=True, gc=False):
    """One durable record of a conversation.

    `created_at` is in nanoseconds and orders the history (then `id`). `parts` is the multimodal content of
    a user entry: rendered instead of `content`, which stays the text that stubs and summaries show.
    `reasoning` is what a reasoning model thought before an assistant entry. `tag` labels a notification.
    `origin` is opaque to us and handed back in `Compaction.subsumes`. `usage` is `None` when the provider
    reported nothing and no request failed.

    Lone surrogates in any text field are repaired on construction.
    """

    id: str = ""
    kind: str
    content: str = ""
    parts: tuple[ContentPart, ...] = ()
    reasoning: str = ""
    tool_call_id: str = ""
    tool_name: str = ""
    tag: str = ""
    origin: str = ""
    usage: EntryUsage | None = None
    created_at: int = 0

    def __post_init__(self) -> None:
        # A subclass of `str` (a tool's outcome, markup, numpy's) cannot be encoded as JSON.
        if type(self.content) is not str:
            self.content = str.__str__(self.content)
        # `isascii` is one flag test, so the common entry pays seven of them and no call.
        if not (
            self.content.isascii()
            and self.reasoning.isascii()
            and self.tool_name.isascii()
            and self.tool_call_id.isascii()
            and self.tag.isascii()
            and self.id.isascii()
            and self.kind.isascii()
        ):
            self.kind = repair_text(self.kind)
            self.content = repair_text(self.content)
            self.reasoning = repair_text(self.reasoning)
            self.tool_name = repair_text(self.tool_name)
            self.tool_call_id = repair_text(self.tool_call_id)
            self.tag = repair_text(self.tag)
            self.id = repair_text(self.id)


class Compaction(msgspec.Struct, kw_only=True):
    """What a store writes in one transaction: the `marker`, and the entries it `subsumes`."""

    marker: Entry
    subsumes: list[Entry]


class CompactionInfo(msgspec.Struct, kw_only=True, frozen=True):
    """A fold that happened: its summary, how many entries it covers, window tokens before and after."""

    summary: str
    subsumed_count: int
    tokens_before: int
    tokens_after: int


class PendingNotice(msgspec.Struct, kw_only=True, frozen=True):
    """A keyed notice the model has not answered after. `claimed`: it is in the context already."""

    group_by: str
    key: str
    entry_id: str = ""
    claimed: bool = False


class OpenCall(msgspec.Struct, kw_only=True, frozen=True):
    """A stored tool call without a stored result. `begun_at` is when it was dispatched (ns); 0: never was."""

    entry_id: str
    call: ToolCall
    begun_at: int = 0


class ParkedCall(msgspec.Struct, kw_only=True, frozen=True):
    """A call whose result comes later. `deadline` is in nanoseconds since the epoch; 0: none."""

    correlation_id: str
    tool_call_id: str
    tool_name: str
    deadline: int = 0


def new_id() -> str:
    """A random UUID (version 4) in canonical form."""
    # What `uuid.uuid4` gives, at a third of its price: the loop makes several in each round.
    digits = os.urandom(16).hex()
    variant = "89ab"[int(digits[16], 16) & 3]
    return f"{digits[:8]}-{digits[8:12]}-4{digits[13:16]}-{variant}{digits[17:20]}-{digits[20:]}"
