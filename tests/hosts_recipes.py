"""The recipes of docs/hosts.md for frameworks with message types of their own."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from agentkit_fast.shaping import shape_messages


def shape_history(history: list[Any], *, budget: int) -> list[Any]:
    """A pydantic-ai history within `budget`: whole messages, chosen by shaping their texts."""
    from pydantic_ai.messages import ModelRequest, UserPromptPart

    dicts: list[dict[str, Any]] = []
    for place, message in enumerate(history):
        for part in message.parts:
            kind = part.part_kind
            if (
                kind in ("tool-return", "retry-prompt")
                and part.tool_call_id
                and getattr(part, "tool_name", None)
            ):
                content = part.model_response_str() if kind == "tool-return" else part.model_response()
                wire = {"role": "tool", "tool_call_id": part.tool_call_id, "content": content}
            elif kind == "tool-call":
                function = {"name": part.tool_name, "arguments": part.args_as_json_str()}
                call = {"id": part.tool_call_id, "type": "function", "function": function}
                wire = {"role": "assistant", "content": "", "tool_calls": [call]}
            else:
                role = {"system-prompt": "system", "user-prompt": "user"}.get(kind, "assistant")
                wire = {"role": role, "content": str(getattr(part, "content", ""))}
            wire["place"] = place
            last = dicts[-1] if dicts else {}
            if wire["role"] == last.get("role") == "assistant" and last["place"] == place:
                last["content"] = last["content"] or wire["content"]
                last["tool_calls"] = [*last.get("tool_calls", ()), *wire.get("tool_calls", ())]
                if not last["tool_calls"]:
                    del last["tool_calls"]
            else:
                dicts.append(wire)
    shown: list[Any] = []
    used: set[int] = set()
    for wire in shape_messages(dicts, budget=budget):
        place = wire.get("place")
        if place is None:
            shown.append(ModelRequest(parts=[UserPromptPart(wire["content"])]))
        elif place not in used:
            used.add(place)
            shown.append(history[place])
    return shown


def input_filter(data: Any, *, budget: int) -> Any:
    """For `RunConfig(call_model_input_filter=...)` of the OpenAI Agents SDK."""
    dicts: list[dict[str, Any]] = [{"role": "system", "content": data.model_data.instructions or ""}]
    for place, item in enumerate(data.model_data.input):
        kind = item.get("type", "message")
        if kind == "function_call":
            function = {"name": item["name"], "arguments": item["arguments"]}
            call = {"id": item["call_id"], "type": "function", "function": function}
            if dicts[-1].get("tool_calls"):
                dicts[-1]["tool_calls"].append(call)
                dicts[-1]["places"].append(place)
            else:
                wire = {"role": "assistant", "content": "", "tool_calls": [call]}
                dicts.append({**wire, "places": [place]})
        elif kind == "function_call_output":
            wire = {"role": "tool", "tool_call_id": item["call_id"], "content": str(item["output"])}
            dicts.append({**wire, "places": [place]})
        else:
            content = item.get("content") or ""
            wire = {
                "role": item.get("role", "user"),
                "content": content if isinstance(content, str) else str(content),
            }
            dicts.append({**wire, "places": [place]})
    shown: list[Any] = []
    for wire in shape_messages(dicts, budget=budget)[1:]:
        if "places" in wire:
            shown += [data.model_data.input[place] for place in wire["places"]]
        else:
            shown.append({"role": "user", "content": wire["content"]})
    return replace(data.model_data, input=shown)
