"""What the tests of the turn share: scripts, both ways to run a turn, and the invariants of a history."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

from agentkit_fast import (
    ChatOptions,
    Entry,
    MemoryStore,
    ScriptedRunner,
    Session,
    StreamChunk,
    ToolCall,
    ToolDef,
    TurnResult,
    Usage,
)

LOOK = ToolDef(
    name="look", description="Look at a shelf.", parameters={"type": "object", "properties": {"shelf": {}}}
)


def call(arguments: str = "{}", *, name: str = "look", id: str = "") -> ToolCall:  # noqa: A002
    return ToolCall(id=id, name=name, arguments=arguments)


def reply(
    *parts: str | ToolCall, finish: str = "", usage: Usage | None = None, **more: Any
) -> list[StreamChunk]:
    """A good stream of text and calls."""
    chunks = [
        StreamChunk(content=part) if isinstance(part, str) else StreamChunk(tool_call=part)
        for part in parts
    ]
    has_call = any(isinstance(part, ToolCall) for part in parts)
    finish = finish or ("tool_calls" if has_call else "stop")
    return [*chunks, StreamChunk(done=True, finish_reason=finish, usage=usage, **more)]


def session(
    script: Iterable[Any],
    *,
    store: Any = None,
    dispatch: Callable[[ToolCall], Any] | None = lambda call: f"saw {call.arguments}",
    tools: Any = (LOOK,),
    task: str = "Where is the red book?",
    runner: Any = None,
    **settings: Any,
) -> Session:
    """A session over a scripted runner, with one user message waiting for an answer."""
    store = store if store is not None else MemoryStore()
    made = Session("s", store, runner or ScriptedRunner(script), tools=tools, dispatch=dispatch, **settings)
    if task:
        store.append("s", Entry(kind="user", content=task))
    return made


def run_sync(made: Session) -> TurnResult:
    return made.turn()


def run_async(made: Session) -> TurnResult:
    return asyncio.run(made.aturn())


BOTH = (run_sync, run_async)


def shown(made: Session) -> list[tuple[str, str]]:
    """The history in short: kinds and texts, results as `tool_result`."""
    return [(entry.kind, entry.content) for entry in made.store.context(made.session_id)]


def kinds(made: Session) -> list[str]:
    return [kind for kind, _ in shown(made)]


def last_messages(made: Session) -> list[Any]:
    """The messages of the last request."""
    asked = made.runner.requests[-1].messages
    return list(getattr(asked, "messages", asked))


def last_options(made: Session) -> ChatOptions:
    options = made.runner.requests[-1].options
    assert options is not None
    return options


def broken(entries: Iterable[Entry]) -> list[str]:
    """What is wrong with a history, in words; nothing for one the next turn can use.

    Every call has exactly one result and every result its call, in that order; ids are never empty (one may
    come again in a later turn: a window gives it another name); arguments are JSON objects; no assistant
    entry is empty.
    """
    import json

    found: list[str] = []
    open_calls: dict[str, Entry] = {}
    ids: set[str] = set()
    for entry in sorted(entries, key=lambda entry: (entry.created_at, entry.id)):
        if not entry.id or entry.id in ids:
            found.append(f"entry id {entry.id!r} is empty or used twice")
        ids.add(entry.id)
        if entry.kind == "tool_call":
            if not entry.tool_call_id or entry.tool_call_id in open_calls:
                found.append(f"call id {entry.tool_call_id!r} is empty or used by an open call")
            if not isinstance(json.loads(entry.content), dict):
                found.append(f"arguments of {entry.tool_call_id} are no object")
            open_calls[entry.tool_call_id] = entry
        elif entry.kind == "tool_result":
            if open_calls.pop(entry.tool_call_id, None) is None:
                found.append(f"result of {entry.tool_call_id!r} has no call before it, or is its second")
        elif entry.kind == "assistant":
            empty = not entry.content.strip() and not entry.reasoning and entry.usage is None
            if empty:
                found.append("an assistant entry is empty")
        if entry.kind in ("user", "assistant") and open_calls:
            found.append(f"a {entry.kind} entry stands between a call and its result")
    found += [f"call {call_id} has no result" for call_id in open_calls]
    return found
