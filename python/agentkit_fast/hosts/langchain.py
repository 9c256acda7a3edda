"""`trim_messages` with LangChain's arguments and messages, and windows that stay valid; a middleware for its agents.

Change `from langchain_core.messages import trim_messages` to
`from agentkit_fast.hosts.langchain import trim_messages`; nothing else.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import lru_cache
from typing import Any

from agentkit_fast.errors import ContextOverflow
from agentkit_fast.protocols import TokenCounter
from agentkit_fast.shaping import ShapePolicy, shape_messages

__all__ = ["shaping_middleware", "trim_messages"]

_PLACE = "agentkit_place"


def _langchain() -> Any:
    """LangChain's messages, imported when they are first needed; it is no dependency of ours."""
    return importlib.import_module("langchain_core.messages")


class _Texts:
    """A LangChain token counter, asked text by text."""

    def __init__(self, count_messages: Callable[[list[Any]], int]) -> None:
        human = _langchain().HumanMessage
        empty = count_messages([human("")])

        @lru_cache(maxsize=8192)
        def count(text: str) -> int:
            return max(0, count_messages([human(text)]) - empty)

        self.count = count


class _Nothing:
    """For `token_counter=len`: only the messages themselves count."""

    def count(self, text: str) -> int:
        return 0


def trim_messages(
    messages: Iterable[Any] | None = None,
    *,
    max_tokens: int,
    token_counter: Any = "approximate",  # noqa: S107 tokens of text, no password
    strategy: str = "last",
    allow_partial: bool = False,
    end_on: Any = None,
    start_on: Any = None,
    include_system: bool = False,
    text_splitter: Any = None,
    policy: ShapePolicy | None = None,
) -> Any:
    """As `langchain_core.messages.trim_messages`, but what it returns is always a valid history.

    A tool message never stands without its call, results are never lost half-way, the first task and the newest
    user message stay, and a growing history keeps its prefix. `policy` adds shortening; see `ShapePolicy`.
    Without `messages` it gives a `Runnable`, as LangChain's does.

    `token_counter`: `"approximate"` (four bytes a token), `len`, a model, a callable on messages, or one of our
    counters. With `end_on="ai"` a last message that calls tools stays last, its calls unanswered, as LangChain's
    does. The system message is kept with `include_system=False`, too. `allow_partial` and `text_splitter`
    are accepted and not needed: texts are shortened by `policy.lod_above`. `strategy="first"` is LangChain's own.
    Raises `ValueError` for an unknown strategy and `ContextOverflow` when not even the newest user message fits.
    """
    arguments = {
        "max_tokens": max_tokens,
        "token_counter": token_counter,
        "strategy": strategy,
        "allow_partial": allow_partial,
        "end_on": end_on,
        "start_on": start_on,
        "include_system": include_system,
        "text_splitter": text_splitter,
    }
    if messages is None:
        runnables = importlib.import_module("langchain_core.runnables")
        return runnables.RunnableLambda(lambda given: trim_messages(given, policy=policy, **arguments))
    if strategy == "first":
        return _langchain().trim_messages(messages, **arguments)
    if strategy != "last":
        raise ValueError(f"strategy is {strategy!r}; it can be 'last' or 'first'")
    langchain = _langchain()
    given: list[Any] = list(langchain.convert_to_messages(messages))
    if end_on is not None:
        while given and not _is(given[-1], end_on):
            given.pop()
    if not given:
        return []
    wire = langchain.convert_to_openai_messages(given)
    dicts = [{**message, _PLACE: place} for place, message in enumerate(wire)]
    counter, budget, check = _counter_of(token_counter, max_tokens)
    while True:
        if budget <= 0:
            raise ContextOverflow(
                f"max_tokens={max_tokens} cannot hold what must always be sent: the system message and the newest"
                " user message. Raise it, or shorten one of them."
            )
        shaped = shape_messages(dicts, budget=budget, counter=counter, policy=policy)
        result = [_back(message, given, dicts) for message in shaped]
        used = check(result) if check is not None else 0
        if used <= max_tokens:
            break
        # The counter adds more around a message than we do.
        budget = min(budget - 1, budget * max_tokens // used)
    if end_on is not None and given[-1].type == "ai":
        # A call that the history ends with is still to be answered: what stands in for its result goes again.
        while shaped and _PLACE not in shaped[-1]:
            shaped.pop()
            result.pop()
    if start_on is not None:
        head = [message for message in result[:1] if message.type == "system"]
        body = result[len(head) :]
        # A result cannot begin a history: its call would be missing.
        while body and (body[0].type == "tool" or not _is(body[0], start_on)):
            body.pop(0)
        result = head + body
    return result


def shaping_middleware(
    *,
    max_tokens: int,
    token_counter: Any = "approximate",  # noqa: S107 tokens of text, no password
    policy: ShapePolicy | None = None,
) -> Any:
    """A middleware for `langchain.agents.create_agent`: each call of the model sees a window of `max_tokens`.

    The agent's own state keeps every message. The system prompt counts, the tools' schemas do not: leave them room.
    `token_counter` and `policy` as for `trim_messages`. Needs the `langchain` package; serves `invoke` and `ainvoke`.
    """
    base: Any = importlib.import_module("langchain.agents.middleware").AgentMiddleware

    def shaped(request: Any) -> Any:
        system = [] if request.system_message is None else [request.system_message]
        shown = trim_messages(
            [*system, *request.messages], max_tokens=max_tokens, token_counter=token_counter, policy=policy
        )
        if not system:
            return request.override(messages=shown)
        return request.override(system_message=shown[0], messages=shown[1:])

    class ShapingMiddleware(base):  # type: ignore[misc]  # known at run time only
        def wrap_model_call(self, request: Any, handler: Callable[[Any], Any]) -> Any:
            return handler(shaped(request))

        async def awrap_model_call(self, request: Any, handler: Callable[[Any], Awaitable[Any]]) -> Any:
            return await handler(shaped(request))

    return ShapingMiddleware()


def _is(message: Any, kinds: Any) -> bool:
    for kind in [kinds] if isinstance(kinds, (str, type)) else kinds:
        if isinstance(kind, str) and message.type == kind:
            return True
        if isinstance(kind, type) and isinstance(message, kind):
            return True
    return False


def _counter_of(
    given: Any, max_tokens: int
) -> tuple[TokenCounter | None, int, Callable[[Sequence[Any]], int] | None]:
    if given == "approximate" or getattr(given, "__name__", "") == "count_tokens_approximately":
        utils = importlib.import_module("langchain_core.messages.utils")
        return None, max_tokens, utils.count_tokens_approximately
    if given is len:
        return _Nothing(), 4 * max_tokens, len
    if hasattr(given, "get_num_tokens_from_messages"):
        ask = given.get_num_tokens_from_messages
        return _Texts(ask), max_tokens, ask
    if hasattr(given, "count"):
        return given, max_tokens, None
    if callable(given):
        ask = _for_lists(given)
        return _Texts(ask), max_tokens, ask
    raise ValueError(f"token_counter {given!r} is neither a counter, a model nor a callable")


def _for_lists(count: Callable[[Any], int]) -> Callable[[Sequence[Any]], int]:
    """A callable on lists of messages; LangChain takes one on single messages, too, told by its annotation."""
    try:
        first = next(iter(inspect.signature(count).parameters.values()), None)
    except (TypeError, ValueError):
        return count
    annotation = None if first is None else first.annotation
    single = annotation is _langchain().BaseMessage or annotation in ("BaseMessage", "messages.BaseMessage")
    return (lambda messages: sum(count(message) for message in messages)) if single else count


def _back(shown: dict[str, Any], given: list[Any], dicts: list[dict[str, Any]]) -> Any:
    """The LangChain message a dict came from, changed where the dict is."""
    place = shown.get(_PLACE)
    if place is None:
        if shown["role"] == "tool":
            return _langchain().ToolMessage(content=shown["content"], tool_call_id=shown["tool_call_id"])
        return _langchain().HumanMessage(shown["content"])
    message, before = given[place], dicts[place]
    if shown is before:
        return message
    if shown["role"] != before["role"]:
        # The older pair of a function call and its result.
        return _langchain().ToolMessage(content=shown["content"], tool_call_id=shown["tool_call_id"])
    changes: dict[str, Any] = {}
    if shown.get("content") != before.get("content"):
        changes["content"] = shown["content"]
    if shown.get("tool_call_id") != before.get("tool_call_id"):
        changes["tool_call_id"] = shown["tool_call_id"]
    if shown.get("tool_calls") != before.get("tool_calls"):
        changes["tool_calls"] = [_call(call) for call in shown["tool_calls"]]
        changes["additional_kwargs"] = {
            key: value for key, value in message.additional_kwargs.items() if key != "tool_calls"
        }
    return message.model_copy(update=changes)


def _call(call: dict[str, Any]) -> dict[str, Any]:
    import msgspec

    return {
        "name": call["function"]["name"],
        "args": msgspec.json.decode(call["function"]["arguments"]),
        "id": call["id"],
        "type": "tool_call",
    }
