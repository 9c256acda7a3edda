"""Reading one streamed reply: text and calls apart, guards watching, nothing taken for final too early."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

from agentkit_fast._unicode import repair_text
from agentkit_fast.effects import Effect, Emit, Hook, NextChunk
from agentkit_fast.entries import RequestRetry
from agentkit_fast.errors import RunnerError, StreamInterrupted
from agentkit_fast.events import CallReady, CallStarted, ReasoningDelta, Retrying, TextDelta
from agentkit_fast.messages import StreamChunk, ToolCall, Usage
from agentkit_fast.toolcalls import CutCall, distinct_ids, heredoc_leftovers, was_cut
from agentkit_fast.views import StreamRestorer, restore_arguments

__all__ = ["Reply", "read_reply"]

_NEXT = NextChunk()
# A reason may hold a server's whole page, and a rate limit may be waited for all night.
LONGEST_REASON = 500
MOST_RETRIES = 50


class Reply:
    """One reply. `content` is prose alone; `calls` are as the model wrote them."""

    def __init__(self) -> None:
        self.content = ""
        self.reasoning = ""
        self.calls: list[ToolCall] = []
        self.usage: Usage | None = None
        self.finish_reason = ""
        self.repetition: Any = None
        self.latency_ms = 0


class _Reader:
    def __init__(
        self,
        reply: Reply,
        *,
        heredoc: bool,
        guard: Callable[[str], Any] | None,
        restore: Callable[[str], str] | None,
        on_token: Callable[[str], Any] | None,
        events: bool,
        used_ids: set[str],
        retries: list[RequestRetry],
        on_retry: Callable[[Retrying], None],
    ) -> None:
        self.reply = reply
        self.used_ids = used_ids
        self.retries = retries
        self.on_retry = on_retry
        self.ready: dict[int, str] = {}
        self.on_token = on_token
        self.events = events
        self.restore = restore
        self.text: list[str] = []
        self.thought: list[str] = []
        self.content_guard = guard("content") if guard else None
        self.reasoning_guard = guard("reasoning") if guard else None
        self.heredoc: Any = None
        self.restorer = StreamRestorer() if restore else None
        if heredoc:
            from agentkit_fast.text import HeredocStream

            self.heredoc = HeredocStream()

    def run(self) -> Generator[Effect, Any, None]:
        reply = self.reply
        done = False
        while True:
            chunk = yield _NEXT
            if chunk is None:
                break
            if done:
                # Some endpoints send the usage after the finish; nothing else counts any more.
                if isinstance(chunk, StreamChunk) and chunk.usage is not None and reply.usage is None:
                    reply.usage = chunk.usage
                break
            if isinstance(chunk, Retrying):
                self.retries.append(
                    RequestRetry(
                        reason=chunk.reason[:LONGEST_REASON], attempt=chunk.attempt, delay_s=chunk.delay_s
                    )
                )
                del self.retries[:-MOST_RETRIES]
                self.on_retry(chunk)
                if self.events:
                    yield Emit(chunk)
                continue
            if not isinstance(chunk, StreamChunk):
                raise RunnerError(
                    f"the runner yielded a {type(chunk).__name__}; chat_stream must yield"
                    f" StreamChunk values."
                )
            _check(chunk)
            if chunk.error:
                raise RunnerError(
                    f"the model's endpoint reported an error: {chunk.error}", body=chunk.error
                )
            if chunk.reasoning:
                yield from self.take_reasoning(chunk.reasoning)
            if chunk.content and reply.repetition is None:
                yield from self.take_content(chunk.content)
            if chunk.tool_call is not None:
                yield from self.take_call(chunk.tool_call)
            if chunk.usage is not None:
                reply.usage = chunk.usage
            if reply.repetition is not None:
                break
            if chunk.done:
                done = True
                reply.finish_reason = chunk.finish_reason
                if chunk.stop_reason == "repetition":
                    reply.repetition = chunk.repetition or _UNKNOWN_REPETITION
                    break
                for call in chunk.partial_tool_calls:
                    reply.calls += distinct_ids((_cut(_checked_call(call)),), self.used_ids)
        if not done and reply.repetition is None:
            raise StreamInterrupted(
                "the stream ended without a finish; nothing of this reply is stored. Call turn() again.",
                text="".join(self.text),
                partial_tool_calls=tuple(reply.calls),
            )
        yield from self.finish()

    def take_reasoning(self, delta: str) -> Generator[Effect, Any, None]:
        delta = repair_text(delta)
        self.thought.append(delta)
        if self.reasoning_guard is not None and self.reply.repetition is None:
            self.reply.repetition = self.reasoning_guard.push(delta)
        if self.events:
            yield Emit(ReasoningDelta(text=delta))

    def take_content(self, delta: str) -> Generator[Effect, Any, None]:
        delta = repair_text(delta)
        self.text.append(delta)
        if self.content_guard is not None:
            self.reply.repetition = self.content_guard.push(delta)
        if self.heredoc is None:
            yield from self.show(delta)
            return
        for step in self.heredoc.push(delta):
            yield from self.take_step(step)

    def take_step(self, step: Any) -> Generator[Effect, Any, None]:
        kind = type(step).__name__
        if kind == "ProseDelta":
            yield from self.show(step.text)
        elif self.events:
            if kind == "CallStarted":
                yield Emit(CallStarted(index=step.index, name=step.name))
            elif kind == "CallReady":
                self.ready[step.index] = step.call.id
                yield Emit(CallReady(index=step.index, call=step.call))

    def take_call(self, call: ToolCall) -> Generator[Effect, Any, None]:
        index = len(self.reply.calls)
        call = distinct_ids((_checked_call(call),), self.used_ids)[0]
        self.reply.calls.append(call)
        if self.events:
            yield Emit(CallStarted(index=index, name=call.name))
            yield Emit(CallReady(index=index, call=call))

    def show(self, text: str) -> Generator[Effect, Any, None]:
        """New prose, to whoever listens."""
        if self.restorer is not None:
            text = self.restorer.push(text)
        if not text:
            return
        if self.on_token is not None:
            yield Hook(self.on_token, (text,))
        if self.events:
            yield Emit(TextDelta(text=text))

    def finish(self) -> Generator[Effect, Any, None]:
        reply = self.reply
        text = "".join(self.text)
        reply.reasoning = "".join(self.thought)
        found = reply.repetition
        if found is not None:
            reply.calls = []
            if getattr(found, "where", "content") == "reasoning":
                reply.reasoning = _without_copies(reply.reasoning, found)
            else:
                text = _without_copies(text, found)
        if self.heredoc is not None:
            native = len(reply.calls)
            yield from self.finish_heredoc(text)
            reply.calls[native:] = distinct_ids(reply.calls[native:], self.used_ids)
        else:
            reply.content = text
            if reply.finish_reason == "length" and reply.calls and not isinstance(reply.calls[-1], CutCall):
                reply.calls[-1] = _cut(reply.calls[-1])
        if self.restorer is not None:
            yield from self.flush_restorer()
            self.restore_all()

    def finish_heredoc(self, text: str) -> Generator[Effect, Any, None]:
        reply = self.reply
        if reply.repetition is not None:
            from agentkit_fast.text import parse_tool_calls

            reply.content = parse_tool_calls(text).prose
            return
        parsed = self.heredoc.finish()
        if parsed.tail:
            yield from self.show(parsed.tail)
        reply.content = parsed.prose
        calls = list(parsed.calls)
        for at, call_id in self.ready.items():
            if at < len(calls):
                calls[at].id = call_id  # the id that was announced
        left = heredoc_leftovers(text, parsed.problems)
        if reply.finish_reason == "length" and calls and not left and was_cut(text):
            calls[-1] = _cut(calls[-1])
        reply.calls = [*reply.calls, *calls, *left]

    def flush_restorer(self) -> Generator[Effect, Any, None]:
        restorer, self.restorer = self.restorer, None
        if restorer is not None:
            rest = restorer.finish()
            if rest:
                yield from self.show(rest)

    def restore_all(self) -> None:
        restore, reply = self.restore, self.reply
        if restore is None:
            return
        reply.content = restore(reply.content)
        reply.reasoning = restore(reply.reasoning)
        reply.calls = [_restored(call, restore) for call in reply.calls]


def _check(chunk: StreamChunk) -> None:
    """msgspec checks no types when a runner builds a chunk by hand."""
    if (
        isinstance(chunk.content, str)
        and isinstance(chunk.reasoning, str)
        and (chunk.usage is None or isinstance(chunk.usage, Usage))
    ):
        return
    raise RunnerError(
        "the runner yielded a StreamChunk whose content, reasoning and usage are of the types"
        f" {type(chunk.content).__name__}, {type(chunk.reasoning).__name__} and {type(chunk.usage).__name__};"
        " they are str, str and Usage or None."
    )


def _checked_call(call: Any) -> ToolCall:
    if not isinstance(call, ToolCall):
        raise RunnerError(f"the runner yielded a tool call of type {type(call).__name__}, not ToolCall.")
    return call


class _Unknown:
    where, period, reps, trailing = "content", 0, 0, 0


_UNKNOWN_REPETITION = _Unknown()


def _cut(call: ToolCall) -> CutCall:
    return CutCall(id=call.id, name=call.name, arguments=call.arguments, kind="truncated")


def _restored(call: ToolCall, restore: Callable[[str], str]) -> ToolCall:
    arguments = restore_arguments(call.arguments, restore)
    if arguments == call.arguments:
        return call
    if isinstance(call, CutCall):
        return CutCall(id=call.id, name=call.name, arguments=arguments, kind=call.kind, why=call.why)
    return ToolCall(id=call.id, name=call.name, arguments=arguments)


def _without_copies(text: str, found: Any) -> str:
    """`text` with one copy left of the passage that repeats near its end."""
    raw = text.encode()
    end = max(0, len(raw) - getattr(found, "after", 0))
    start = max(0, end - found.trailing)
    return raw[:start].decode(errors="ignore") + raw[end:].decode(errors="ignore")


def read_reply(
    reply: Reply,
    *,
    heredoc: bool,
    guard: Callable[[str], Any] | None,
    restore: Callable[[str], str] | None,
    on_token: Callable[[str], Any] | None,
    events: bool,
    used_ids: set[str],
    retries: list[RequestRetry],
    on_retry: Callable[[Retrying], None],
) -> Generator[Effect, Any, None]:
    """Read the open stream to its end into `reply`; what the runner tells of its waits goes into `retries`.

    Raises `StreamInterrupted` when it ends without a finish and `RunnerError` for what is no chunk. When a
    guard finds repetition, reading stops (the caller closes the stream) and the copies are cut.
    """
    reader = _Reader(
        reply,
        heredoc=heredoc,
        guard=guard,
        restore=restore,
        on_token=on_token,
        events=events,
        used_ids=used_ids,
        retries=retries,
        on_retry=on_retry,
    )
    try:
        yield from reader.run()
    except BaseException:
        reply.content = reply.content or "".join(reader.text)
        raise
