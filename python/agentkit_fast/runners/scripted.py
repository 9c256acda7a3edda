"""`ScriptedRunner`: a runner that answers from a list. The public test double."""

from __future__ import annotations

import inspect
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from typing import Any

import msgspec

from agentkit_fast.errors import RunnerError
from agentkit_fast.messages import ChatOptions, StreamChunk, ToolCall, ToolDef
from agentkit_fast.protocols import RunnerProfile

__all__ = ["Request", "ScriptedRunner"]


class Request(msgspec.Struct, frozen=True):
    """One request a `ScriptedRunner` was asked."""

    messages: Any
    tools: tuple[ToolDef, ...]
    options: ChatOptions | None


class ScriptedRunner:
    """Answers from `replies`, one a request, in order.

    A reply is

    - a `str`: the text, then a finish with `finish_reason="stop"`;
    - a `ToolCall`: that call, then a finish with `finish_reason="tool_calls"`;
    - a list of `StreamChunk`, given out as it is. Text, calls and exceptions may stand in the list
      too; nothing is added, so a list without a `done` chunk is a stream that ends without a finish;
    - an exception, which is raised;
    - a callable `(messages, tools, options)` that returns one of these; `messages` can be indexed (under
      `achat_stream` also a coroutine of one).

    `requests` holds what was asked. `aborted` counts the streams closed before their end. A request after
    the last reply raises `RunnerError`, unless `repeat_last`.
    """

    def __init__(
        self, replies: Iterable[Any], *, profile: RunnerProfile | None = None, repeat_last: bool = False
    ) -> None:
        self._replies = list(replies)
        self._repeat_last = repeat_last
        self._lock = threading.Lock()
        self._next = 0
        self.profile = profile or RunnerProfile()
        self.requests: list[Request] = []
        self.aborted = 0

    def _take(self, messages: Any, tools: Sequence[ToolDef], options: ChatOptions | None) -> Any:
        with self._lock:
            asked = plain(messages)
            # A caller's own list may grow with the conversation; what was asked stays as it was.
            self.requests.append(
                Request(list(asked) if type(asked) is list else asked, tuple(tools), options)
            )
            at = self._next
            self._next += 1
        if at >= len(self._replies):
            if not (self._repeat_last and self._replies):
                raise RunnerError(
                    f"ScriptedRunner: request {at + 1} came, but the script has {len(self._replies)}"
                    " replies. Add a reply, or end the conversation earlier."
                )
            at = -1
        return self._replies[at]

    def chat_stream(
        self, messages: Any, tools: Sequence[ToolDef] = (), options: ChatOptions | None = None
    ) -> Iterator[StreamChunk]:
        """The next reply, chunk by chunk."""
        reply = self._take(messages, tools, options)
        while callable(reply) and not _is_exception(reply):
            reply = _refuse_awaitable(reply(plain(messages), tools, options))
        ended = False
        try:
            for item in _items(reply):
                yield _chunk(item)
            ended = True
        except GeneratorExit:
            raise
        except BaseException:
            ended = True
            raise
        finally:
            self._note_end(ended)

    async def achat_stream(
        self, messages: Any, tools: Sequence[ToolDef] = (), options: ChatOptions | None = None
    ) -> AsyncIterator[StreamChunk]:
        """As `chat_stream`, awaited."""
        reply = self._take(messages, tools, options)
        while callable(reply) and not _is_exception(reply):
            reply = reply(plain(messages), tools, options)
            if inspect.isawaitable(reply):
                reply = await reply
        ended = False
        try:
            for item in _items(reply):
                yield _chunk(item)
            ended = True
        except GeneratorExit:
            raise
        except BaseException:
            ended = True
            raise
        finally:
            self._note_end(ended)

    def _note_end(self, ended: bool) -> None:
        if not ended:
            with self._lock:
                self.aborted += 1


def plain(messages: Any) -> Any:
    """The messages themselves, where a whole `Window` was given."""
    return getattr(messages, "messages", messages)


_STOP = StreamChunk(done=True, finish_reason="stop")
_TOOL_CALLS = StreamChunk(done=True, finish_reason="tool_calls")


def _items(reply: Any) -> Iterable[Any]:
    if type(reply) is list:
        return reply
    if isinstance(reply, str):
        return (StreamChunk(content=reply), _STOP) if reply else (_STOP,)
    if isinstance(reply, ToolCall):
        return StreamChunk(tool_call=reply), _TOOL_CALLS
    if isinstance(reply, StreamChunk) or _is_exception(reply):
        return (reply,)
    if isinstance(reply, Iterable):
        return reply
    raise TypeError(
        "ScriptedRunner: a reply is a str, a ToolCall, a list of StreamChunk, an exception or a callable,"
        f" not {type(reply).__name__}"
    )


def _chunk(item: Any) -> Any:
    if type(item) is StreamChunk:
        return item
    if _is_exception(item):
        raise item
    if isinstance(item, str):
        return StreamChunk(content=item)
    if isinstance(item, ToolCall):
        return StreamChunk(tool_call=item)
    return item


def _is_exception(value: Any) -> bool:
    return isinstance(value, BaseException) or (
        isinstance(value, type) and issubclass(value, BaseException)
    )


def _refuse_awaitable(reply: Callable[..., Any] | Any) -> Any:
    if inspect.iscoroutine(reply):
        reply.close()
        raise TypeError(
            "ScriptedRunner: a reply that is a coroutine function needs achat_stream (use aturn)"
        )
    return reply
