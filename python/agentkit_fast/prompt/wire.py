"""Messages as a chat template expects to see them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.structs import astuple

from agentkit_fast._unicode import repair_text
from agentkit_fast.messages import ContentPart, Message, ToolCall, ToolDef
from agentkit_fast.prompt.owned import Owned
from agentkit_fast.prompt.watched import WireMessage

__all__ = ["ROLES", "copied", "message_list", "template_messages", "template_tools", "template_variables"]

# Some templates build a control token from the role (`'<|' + role + '|>'`). These few may: no text of a
# conversation can choose among them.
ROLES = frozenset({"system", "developer", "user", "assistant", "tool", "function", "ipython"})
_ROLE = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}")


def template_messages(
    messages: Sequence[Message] | Sequence[Mapping[str, Any]], *, object_arguments: bool = False
) -> list[WireMessage]:
    """Dicts, as templates in the wild expect them.

    `content` is always a string (`None` becomes `""`, text parts are joined by newlines), an empty
    `tool_calls` is left out, and with `object_arguments` a call's arguments are a value, not JSON text.
    Raises `ValueError` for a role that is no plain word and for content a text template cannot carry.
    """
    return [_one(message, object_arguments) for message in messages]


def _one(message: Message | Mapping[str, Any], object_arguments: bool) -> WireMessage:
    given: Mapping[str, Any]
    if isinstance(message, Message):
        given = message.to_wire(reasoning=True)
    elif isinstance(message, Mapping):
        given = message
    else:
        raise ValueError(f"A message is a Message or a dict, not {type(message).__name__}.")
    role = given.get("role")
    if not isinstance(role, str) or not _ROLE.fullmatch(role):
        raise ValueError(f"{role!r:.80} is no role; use one of {', '.join(sorted(ROLES))}.")
    wire = WireMessage({str(key): _repair(value) for key, value in given.items()})
    wire["role"] = Owned.whole(role) if role in ROLES else role
    wire["content"] = _text(wire.get("content"))
    calls = wire.get("tool_calls")
    if not calls:
        wire.pop("tool_calls", None)
    elif not isinstance(calls, list) or not all(isinstance(call, dict) for call in calls):
        raise ValueError("A message's tool_calls are a list of calls.")
    elif object_arguments:
        wire["tool_calls"] = [_with_object(call) for call in wire["tool_calls"]]
    return wire


def message_list(messages: Any) -> list[Any]:
    """The messages in a list of their own. `ValueError` for what is no list of any."""
    if isinstance(messages, (str, bytes, Mapping)):
        raise ValueError(f"Messages are a list, not {type(messages).__name__}.")
    return list(messages)


_PLAIN = frozenset({str, int, float, bool, type(None)})
_OURS = frozenset({Message, ContentPart, ToolCall, ToolDef})


def copied(value: Any) -> Any:
    """`value` as it is now, to be compared with what is given later by `same_beginning`.

    A dict becomes a tuple of `dict`, a key, its value and so on, a struct one of its type and its fields: little
    memory to go through the next time. In the place of an object that may say something else at any time stands
    one that nothing is the same as.
    """
    kind = type(value)
    if kind in _PLAIN:
        return value
    if kind is dict:
        flat: list[Any] = [dict]
        for key, item in value.items():
            flat += (copied(key), copied(item))
        return tuple(flat)
    if kind is list:
        return [copied(item) for item in value]
    if kind is tuple:
        return (tuple, *map(copied, value))
    if kind in _OURS:
        return (kind, *map(copied, astuple(value)))
    return object()


def _text(content: Any) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, (list, tuple)):
        raise ValueError(f"A message's content is text or a list of parts, not {type(content).__name__}.")
    texts = []
    for part in content:
        if isinstance(part, str):
            texts.append(part)
        elif isinstance(part, dict) and isinstance(part.get("text"), str):
            texts.append(part["text"])
        else:
            kind = part.get("type", "?") if isinstance(part, dict) else type(part).__name__
            raise ValueError(f"This model reads text only; a message holds a part of type {kind!r:.40}.")
    return "\n".join(texts)


def _with_object(call: dict[str, Any]) -> dict[str, Any]:
    call = dict(call)
    holder = call
    if isinstance(call.get("function"), dict):
        holder = call["function"] = dict(call["function"])
    arguments = holder.get("arguments")
    if arguments is None:
        holder["arguments"] = {}
    elif isinstance(arguments, str):
        try:
            value = json.loads(arguments or "{}")
        except (ValueError, RecursionError):
            return call
        if isinstance(value, dict):
            holder["arguments"] = value
    return call


def _repair(value: Any, depth: int = 0) -> Any:
    if isinstance(value, str):
        return repair_text(value)
    if depth > 64:
        raise ValueError("A message is nested more than 64 levels deep.")
    if isinstance(value, Mapping):
        return {_repair(key, depth + 1): _repair(item, depth + 1) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_repair(item, depth + 1) for item in value]
    if isinstance(value, (ContentPart, ToolCall)):
        return _repair(value.to_wire(), depth + 1)
    return value


def template_tools(tools: Sequence[ToolDef] | Sequence[Mapping[str, Any]]) -> list[Any]:
    """Tools in OpenAI's shape."""
    shaped = (
        _repair(
            tool.to_wire() if isinstance(tool, ToolDef) else getattr(tool, "to_wire", lambda t=tool: t)()
        )
        for tool in tools
    )
    return [WireMessage(tool) if isinstance(tool, dict) else tool for tool in shaped]


def template_variables(given: Mapping[str, Any]) -> dict[str, Any]:
    """Further variables as they are now: the caller may change lists and dicts in place before the next prompt."""
    return {name: _snapshot(value) for name, value in given.items()}


def _snapshot(value: Any, depth: int = 0) -> Any:
    kind = type(value)
    if kind is not dict and kind is not list and kind is not tuple:
        return value
    if depth > 64:
        raise ValueError("A variable of the template is nested more than 64 levels deep.")
    if kind is dict:
        return {key: _snapshot(item, depth + 1) for key, item in value.items()}
    return kind(_snapshot(item, depth + 1) for item in value)
