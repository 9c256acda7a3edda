"""Shaping for the OpenAI Agents SDK: an input filter.

RunConfig(call_model_input_filter=lambda data: input_filter(data, budget=6000))
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import msgspec

from agentkit_fast.messages import ToolDef
from agentkit_fast.protocols import TokenCounter
from agentkit_fast.shaping import ShapePolicy, shape_messages

__all__ = ["input_filter", "shape_items"]

_PLACES = "agentkit_places"
_PLACE = "agentkit_place"


def input_filter(
    data: Any,
    *,
    budget: int,
    tools: Sequence[ToolDef | dict[str, Any]] = (),
    counter: TokenCounter | None = None,
    policy: ShapePolicy | None = None,
) -> Any:
    """For `RunConfig(call_model_input_filter=...)`: instructions and input within `budget` tokens.

    `tools` are schemas in OpenAI's format that are to count, too, for the SDK does not hand them to a filter.
    Raises `ContextOverflow` when not even the newest message fits beside the instructions.
    """
    given = data.model_data
    shown = shape_items(
        given.input,
        budget=budget,
        instructions=given.instructions or "",
        tools=tools,
        counter=counter,
        policy=policy,
    )
    return replace(given, input=shown)


def shape_items(
    items: Sequence[Any],
    *,
    budget: int,
    instructions: str = "",
    tools: Sequence[ToolDef | dict[str, Any]] = (),
    counter: TokenCounter | None = None,
    policy: ShapePolicy | None = None,
) -> list[Any]:
    """The items of the Responses API that go into a window of `budget` tokens: valid, and as stable as can be.

    As `shape_messages`. An item that stays as it is comes back as the same object, one that is shortened or repaired
    as a copy. A call goes with its output, and reasoning with what followed it.
    """
    dicts = _dicts(items)
    head = [{"role": "system", "content": instructions}] if instructions else []
    shown = shape_messages([*head, *dicts], budget=budget, tools=tools, counter=counter, policy=policy)
    given = {id(wire) for wire in dicts}
    out: list[Any] = []
    for wire in shown[len(head) :]:
        places = wire.get(_PLACES)
        if places is None:
            out.append(_made(wire))
        elif id(wire) in given:
            out += [items[place] for place in places]
        else:
            out += _changed(wire, items)
    return out


def _made(wire: dict[str, Any]) -> dict[str, Any]:
    """An item for a message of ours."""
    if wire["role"] == "tool":
        return {"type": "function_call_output", "call_id": wire["tool_call_id"], "output": wire["content"]}
    content = wire["content"]
    if isinstance(content, list):
        content = "\n".join(piece.get("text", "") for piece in content)
    return {"role": "user", "content": content}


def _fields(item: Any) -> dict[str, Any]:
    fields: dict[str, Any] = item if isinstance(item, dict) else item.model_dump(exclude_unset=True)
    return fields


def _dicts(items: Sequence[Any]) -> list[dict[str, Any]]:
    """Chat messages that stand for the items: what the assistant says and calls in one go is one of them."""
    dicts: list[dict[str, Any]] = []
    for place, item in enumerate(items):
        fields = _fields(item)
        kind = fields.get("type") or "message"
        if kind == "message" and fields.get("role") != "assistant":
            content = _content(fields.get("content"))
            dicts.append({"role": fields.get("role", "user"), "content": content, _PLACES: [place]})
            continue
        if kind.endswith("_output"):
            output = fields.get("output")
            content = _content(output) if isinstance(output, (str, list)) else _json(output)
            wire = {"role": "tool", "tool_call_id": fields.get("call_id") or "", "content": content}
            dicts.append({**wire, _PLACES: [place]})
            continue
        last = dicts[-1] if dicts else {}
        if last.get("role") != "assistant":
            last = {"role": "assistant", "content": [], _PLACES: []}
            dicts.append(last)
        last[_PLACES].append(place)
        if kind.endswith("_call") and fields.get("call_id"):
            arguments = fields.get("arguments")
            if not isinstance(arguments, str):
                rest = {key: value for key, value in fields.items() if key not in ("type", "id", "call_id")}
                arguments = _json(rest)
            function = {"name": fields.get("name") or kind, "arguments": arguments}
            call = {"id": fields["call_id"], "type": "function", "function": function, _PLACE: place}
            last.setdefault("tool_calls", []).append(call)
        elif kind == "message":
            content = _content(fields.get("content"))
            last["content"] += [{"type": "text", "text": content}] if isinstance(content, str) else content
        else:
            # Reasoning, and the provider's own tools: counted by their texts.
            last["content"].append({"type": "thinking", "thinking": fields})
    return dicts


def _json(value: Any) -> str:
    return msgspec.json.encode(value, enc_hook=str).decode()


def _content(content: Any) -> Any:
    if content is None or isinstance(content, str):
        return content or ""
    pieces: list[dict[str, Any]] = []
    for piece in content:
        fields = piece if isinstance(piece, dict) else {"text": piece}
        text = fields.get("text", fields.get("refusal"))
        pieces.append(
            {"type": "text", "text": text}
            if isinstance(text, str)
            else {"type": "image_url", "image_url": {}}
        )
    return pieces


def _changed(wire: dict[str, Any], items: Sequence[Any]) -> list[Any]:
    """The items of a message that was shortened or repaired."""
    places, content = wire[_PLACES], wire.get("content")
    if wire["role"] == "tool":
        fields = _fields(items[places[0]])
        changes: dict[str, Any] = {"call_id": wire["tool_call_id"]}
        output = fields.get("output")
        if isinstance(content, str) and isinstance(output, (str, list)):
            changes["output"] = content
        elif isinstance(output, list) and isinstance(content, list):
            changes["output"] = [
                {**piece, "text": shown["text"]} if "text" in piece and "text" in shown else piece
                for piece, shown in zip(output, content, strict=True)
            ]
        return [{**fields, **changes}]
    if wire["role"] != "assistant":
        return [{**_fields(items[places[0]]), "content": content}]
    out: list[Any] = []
    calls = {call[_PLACE]: call for call in wire.get("tool_calls") or ()}
    if isinstance(content, str):
        # One text stands for all that was said; thoughts alone need none.
        said = (_fields(items[place]) for place in places if place not in calls)
        if any(fields.get("type") in (None, "message") for fields in said):
            out.append({"role": "assistant", "content": content})
        places = [place for place in places if place in calls]
    for place in places:
        call = calls.get(place)
        if call is None:
            out.append(items[place])
            continue
        fields = _fields(items[place])
        changes = {"call_id": call["id"]}
        if isinstance(fields.get("arguments"), str):
            changes["arguments"] = call["function"]["arguments"]
        elif isinstance(fields.get("input"), str) and "_shortened" in call["function"]["arguments"]:
            changes["input"] = call["function"]["arguments"]
        same = all(fields.get(key) == value for key, value in changes.items())
        out.append(items[place] if same else {**fields, **changes})
    return out
