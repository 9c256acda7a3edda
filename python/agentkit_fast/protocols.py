"""What the session and the shaper ask of their partners.

Each is a `Protocol`: any class with these methods works, nothing has to be inherited. Methods marked
"optional" are used when they are there.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from typing import Any, Protocol, runtime_checkable

import msgspec

from agentkit_fast.entries import Compaction, Entry
from agentkit_fast.messages import ChatOptions, Message, StreamChunk, ToolCall, ToolDef

__all__ = [
    "AsyncRunner",
    "Dispatcher",
    "Preparer",
    "Runner",
    "RunnerProfile",
    "Span",
    "Store",
    "TokenCounter",
    "Tracer",
    "Validator",
    "profile_of",
]


@runtime_checkable
class TokenCounter(Protocol):
    """Counts tokens. The same text always gives the same number."""

    def count(self, text: str) -> int:
        """Tokens in `text`, control-token spellings counted as the text they are."""
        ...


@runtime_checkable
class Store(Protocol):
    """Where a session's entries live.

    Optional, used when present:

    - `append_many(session_id, entries)`: all in one transaction;
    - `context_since(session_id, revision) -> (entries, revision, subsumed_ids)`: what is new since a
      revision (0 is everything); a fold shows as its marker among the entries and the ids it subsumed;
    - `packed_since(session_id, revision) -> (pieces, revision, subsumed_ids)`: the same, the entries as an iterable
      of MessagePack arrays (`agentkit_fast.packing`), which spares the shaper the copies;
    - `save_plan(session_id, plan: bytes)` and `load_plan(session_id) -> bytes | None`: the shaper's memory;
    - `publish(session_id, entry)`: the inbox that `claim_pending` shows, for what arrives during a turn;
    - `publish_notice(session_id, entry, *, group_by, key, ttl_s=None)`, `pending_notices(session_id) ->
      list[PendingNotice]` and `clear(session_id, group_by, key) -> int`: notices that can be taken back;
    - `begin_calls(session_id, entry_ids)` and `open_calls(session_id) -> list[OpenCall]`: which stored calls
      were handed to their tools and have no stored result, so that after a crash none runs twice;
    - `park_call(session_id, parked: ParkedCall)`, `parked_calls(session_id) -> list[ParkedCall]` and
      `settle_call(session_id, correlation_id, entry) -> Entry | None`: results that come later survive a
      restart;
    - `lock_turn(session_id) -> release`: one turn at a time, across processes; raises `SessionBusy`;
    - `blocking`: false when no method waits for anything, so that an event loop may call them directly.
    """

    def claim_pending(self, session_id: str, at: int) -> int:
        """Make waiting inbox entries visible, stamped after everything shown; how many there were."""
        ...

    def append(self, session_id: str, entry: Entry) -> Any:
        """Store one entry; an empty `id` or `created_at` is filled in."""
        ...

    def context(self, session_id: str) -> list[Entry]:
        """The visible entries that no compaction has subsumed, in any order."""
        ...

    def compact(self, session_id: str, compaction: Compaction) -> Any:
        """Write the marker and flag the entries it subsumes, in one transaction."""
        ...


class RunnerProfile(msgspec.Struct, kw_only=True, frozen=True):
    """What a runner and its model take, by which session and shaper decide what to send.

    `system_role=False`: the template knows no system role. `alternate=True`: roles must alternate.
    `safe_prompts=True`: prompts are built so that no text can forge a control token, so nothing is
    neutralized. `context_tokens` is the window (0: unknown), `counter` the model's own token counter.
    `image_tokens` is what one image costs. `reasoning=True`: earlier reasoning goes out as
    `reasoning_content`.
    """

    native_tools: bool = True
    grammar: bool = False
    json_schema: bool = False
    system_role: bool = True
    alternate: bool = False
    safe_prompts: bool = False
    context_tokens: int = 0
    counter: Any = None
    image_tokens: int = 800
    reasoning: bool = False


_PLAIN = RunnerProfile()


@runtime_checkable
class Runner(Protocol):
    """Does one streaming chat round.

    Optional: `achat_stream` with the same arguments, returning an `AsyncIterator`, and `profile`. A
    runner without `profile` is taken for a plain OpenAI endpoint.
    """

    def chat_stream(
        self,
        messages: Sequence[Message] | Sequence[dict[str, Any]] | Any,
        tools: Sequence[ToolDef] = (),
        options: ChatOptions | None = None,
    ) -> Iterator[StreamChunk]:
        """Chunks of the reply; closing the iterator aborts the generation. The last has `done=True`."""
        ...


@runtime_checkable
class AsyncRunner(Protocol):
    """A runner's async twin."""

    def achat_stream(
        self,
        messages: Sequence[Message] | Sequence[dict[str, Any]] | Any,
        tools: Sequence[ToolDef] = (),
        options: ChatOptions | None = None,
    ) -> AsyncIterator[StreamChunk]:
        """As `Runner.chat_stream`, awaited."""
        ...


def profile_of(runner: Any) -> RunnerProfile:
    """The runner's profile, or the plain OpenAI one where it has none."""
    profile = getattr(runner, "profile", None)
    return profile if isinstance(profile, RunnerProfile) else _PLAIN


Dispatcher = Callable[[ToolCall], str | Awaitable[str]]
"""Runs one tool call and gives the text the model will see. May be async."""


class Validator(Protocol):
    """Checks a call's arguments before it is dispatched."""

    def validate(self, name: str, arguments_json: str) -> str:
        """Empty when good, else what the model must fix."""
        ...


class Preparer(Protocol):
    """Runs at the top of every iteration, after the inbox is claimed and before the window is built."""

    def prepare(self, session_id: str) -> Any:
        """May be async."""
        ...


class Span(Protocol):
    """One open span; exactly one of `end` and `end_error` closes it."""

    def set(self, key: str, value: Any) -> Span:
        """Attach an attribute."""
        ...

    def end(self) -> None: ...

    def end_error(self, error: BaseException) -> None: ...


class Tracer(Protocol):
    """Opens spans."""

    def start(self, name: str, parent: Span | None = None) -> Span: ...
