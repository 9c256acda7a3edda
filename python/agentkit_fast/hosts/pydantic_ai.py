"""Shaping for pydantic-ai: a history processor.

Agent(model, capabilities=[ProcessHistory(lambda history: shape_history(history, budget=6000))])
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import msgspec

from agentkit_fast.messages import ToolDef
from agentkit_fast.protocols import TokenCounter
from agentkit_fast.shaping import ShapePolicy, shape_messages
from agentkit_fast.tokens import CharsByFour

__all__ = ["shape_history"]

# What `ModelRequest.instructions` cost beside their text.
_MESSAGE = 6
_FROM = "agentkit_from"
"""The place of a message in the history, and the parts of it that a dict stands for."""
_PART = "agentkit_part"


def _messages() -> Any:
    """pydantic-ai's messages, imported when they are first needed; it is no dependency of ours."""
    return importlib.import_module("pydantic_ai.messages")


def shape_history(
    history: Sequence[Any],
    *,
    budget: int,
    tools: Sequence[ToolDef | dict[str, Any]] = (),
    counter: TokenCounter | None = None,
    policy: ShapePolicy | None = None,
) -> list[Any]:
    """The messages of a pydantic-ai history that go into a window of `budget` tokens: valid, and as stable as can be.

    As `shape_messages`, on `ModelRequest` and `ModelResponse`. A message that stays as it is comes back as the same
    object; one that is shortened or repaired, or of which only some parts fit, as a copy. The instructions of the last
    request count; `tools` are schemas in OpenAI's format that are to count, too, for a history does not hold them.

    Raises `ContextOverflow` when not even the newest prompt fits.
    """
    dicts: list[dict[str, Any]] = []
    for place, message in enumerate(history):
        dicts += _response(place, message) if message.kind == "response" else _request(place, message)
    if budget > 0:
        said = next((m.instructions for m in reversed(history) if getattr(m, "instructions", None)), "")
        if said:
            budget = max(1, budget - (counter or CharsByFour()).count(said) - _MESSAGE)
    shown = shape_messages(dicts, budget=budget, tools=tools, counter=counter, policy=policy)
    given = {id(wire) for wire in dicts}
    out: list[tuple[int | None, list[Any]]] = []
    names: dict[str, str] = {}
    for wire in shown:
        origin, parts = _parts(wire, history, id(wire) in given, names)
        if out and origin is not None and out[-1][0] == origin:
            out[-1][1].extend(parts)
        else:
            out.append((origin, parts))
    return [_message(origin, parts, history) for origin, parts in out]


def _message(place: int | None, parts: list[Any], history: Sequence[Any]) -> Any:
    if place is None:
        return _messages().ModelRequest(parts=parts)
    message = history[place]
    same = len(parts) == len(message.parts) and all(
        a is b for a, b in zip(parts, message.parts, strict=True)
    )
    return message if same else replace(message, parts=parts)


def _request(place: int, message: Any) -> list[dict[str, Any]]:
    dicts: list[dict[str, Any]] = []
    riding: list[int] = []
    for index, part in enumerate(message.parts):
        wire = _request_part(part)
        if wire is None:
            # Bookkeeping without a text: it goes where its neighbour goes.
            riding.append(index)
            continue
        wire[_FROM] = (place, [*riding, index])
        riding = []
        dicts.append(wire)
    if riding and dicts:
        dicts[-1][_FROM][1].extend(riding)
    return dicts


def _request_part(part: Any) -> dict[str, Any] | None:
    kind = part.part_kind
    if kind == "system-prompt":
        return {"role": "system", "content": part.content}
    if kind == "user-prompt":
        return {"role": "user", "content": _prompt(part.content)}
    if isinstance(part, _messages().ToolReturnPart):
        return {"role": "tool", "tool_call_id": part.tool_call_id, "content": part.model_response_str()}
    if hasattr(part, "model_response"):  # a retry prompt
        if getattr(part, "tool_name", None):
            return {"role": "tool", "tool_call_id": part.tool_call_id, "content": part.model_response()}
        return {"role": "user", "content": part.model_response()}
    content = getattr(part, "content", None) or getattr(part, "transcript", None)
    return {"role": "user", "content": content} if isinstance(content, str) else None


def _prompt(content: Any) -> Any:
    if isinstance(content, str):
        return content
    pieces: list[dict[str, Any]] = []
    for piece in content:
        text = piece if isinstance(piece, str) else getattr(piece, "content", None)
        pieces.append(
            {"type": "text", "text": text}
            if isinstance(text, str)
            else {"type": "image_url", "image_url": {}}
        )
    return pieces


def _response(place: int, message: Any) -> list[dict[str, Any]]:
    call_part = _messages().ToolCallPart
    calls = []
    pieces: list[dict[str, Any]] = []
    for index, part in enumerate(message.parts):
        if isinstance(part, call_part):
            function = {"name": part.tool_name, "arguments": part.args_as_json_str()}
            calls.append(
                {"id": part.tool_call_id, "type": "function", "function": function, _PART: (place, index)}
            )
            continue
        text = getattr(part, "content", None) or getattr(part, "transcript", None)
        if part.part_kind == "text":
            if text:
                pieces.append({"type": "text", "text": text, _PART: (place, index)})
        elif part.part_kind == "file":
            pieces.append({"type": "image_url", _PART: (place, index)})
        else:
            # Thoughts, and the provider's own tools: counted by their texts.
            told = msgspec.to_builtins({"text": text, "args": getattr(part, "args", None)}, enc_hook=str)
            pieces.append({"type": "thinking", "thinking": told, _PART: (place, index)})
    wire: dict[str, Any] = {"role": "assistant", "content": pieces, _FROM: (place, None)}
    if calls:
        wire["tool_calls"] = calls
    return [wire] if pieces or calls else []


def _parts(
    wire: dict[str, Any], history: Sequence[Any], unchanged: bool, names: dict[str, str]
) -> tuple[int | None, list[Any]]:
    """The place of the message that a shown dict belongs to, and its parts."""
    for call in wire.get("tool_calls") or ():
        names[call["id"]] = call["function"]["name"]
    place, indices = wire.get(_FROM, (None, None))
    content = wire.get("content")
    if place is None:
        if wire["role"] == "tool":
            name = names.get(wire["tool_call_id"], "")
            made = _messages().ToolReturnPart(
                tool_name=name, content=content, tool_call_id=wire["tool_call_id"]
            )
        elif isinstance(content, list):
            made = _messages().UserPromptPart("\n".join(piece.get("text", "") for piece in content))
        else:
            made = _messages().UserPromptPart(content)
        return None, [made]
    parts = history[place].parts
    if wire["role"] != "assistant":
        found = [parts[index] for index in indices]
        if not unchanged:
            part = next(part for part in found if _request_part(part) is not None)
            found[found.index(part)] = _changed(part, wire)
        return place, found
    if unchanged:
        return place, list(parts)
    out: list[Any] = []
    if isinstance(content, str):
        # One text stands for all that was said; thoughts before a call need none.
        if not wire.get("tool_calls") or any(part.part_kind == "text" for part in parts):
            out.append(_messages().TextPart(content))
    else:
        for piece in content or ():
            at, index = piece[_PART]
            out.append(history[at].parts[index])
    for call in wire.get("tool_calls") or ():
        at, index = call[_PART]
        part = history[at].parts[index]
        function = call["function"]
        arguments = part.args if part.args_as_json_str() == function["arguments"] else function["arguments"]
        if arguments is not part.args or call["id"] != part.tool_call_id:
            part = replace(part, args=arguments, tool_call_id=call["id"])
        out.append(part)
    return place, out


def _changed(part: Any, wire: dict[str, Any]) -> Any:
    content = wire.get("content")
    if not isinstance(content, str):
        return part
    if wire["role"] == "tool" and not isinstance(part, _messages().ToolReturnPart):
        return _messages().ToolReturnPart(
            tool_name=part.tool_name, content=content, tool_call_id=wire["tool_call_id"]
        )
    if wire["role"] == "user" and part.part_kind != "user-prompt":
        return _messages().UserPromptPart(content)
    changes: dict[str, Any] = {"content": content}
    if wire["role"] == "tool":
        if content == part.model_response_str():
            del changes["content"]
        changes["tool_call_id"] = wire["tool_call_id"]
    return replace(part, **changes)
