"""What a chat template can say, and messages brought into that shape."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from agentkit_fast.errors import RunnerError
from agentkit_fast.messages import Message, ToolCall
from agentkit_fast.prompt import PromptEncoder
from agentkit_fast.text import render_tool_call

__all__ = ["TemplateRules", "conform", "flat_text", "probe_template"]


class TemplateRules(msgspec.Struct, kw_only=True, frozen=True):
    """What a template takes, found by rendering small conversations with it.

    `tools`, `tool_calls`, `tool_role`: whether tool definitions, an assistant's calls and a tool's result
    show up in what it renders. `alternate`: user and assistant must take turns.
    """

    system_role: bool = True
    alternate: bool = False
    tools: bool = False
    tool_calls: bool = False
    tool_role: bool = True


_CALL = {
    "id": "call00000",
    "type": "function",
    "function": {"name": "needle_function", "arguments": '{"needle_key": "needle_value"}'},
}
_TOOL = {
    "type": "function",
    "function": {
        "name": "needle_tool",
        "description": "d",
        "parameters": {"type": "object", "properties": {"x": {"type": "string", "description": "x"}}},
    },
}


def probe_template(encoder: PromptEncoder) -> TemplateRules:
    """Find out what a template takes."""

    def rendered(messages: list[dict[str, Any]], **more: Any) -> str | None:
        try:
            return encoder.render(messages, **more)
        except (RunnerError, ValueError):
            return None

    user = {"role": "user", "content": "needle_user"}
    assistant = {"role": "assistant", "content": "needle_reply"}
    calling = {"role": "assistant", "content": "", "tool_calls": [_CALL]}
    result = {
        "role": "tool",
        "content": "needle_result",
        "tool_call_id": "call00000",
        "name": "needle_function",
    }
    system = rendered([{"role": "system", "content": "needle_system"}, user])
    calls = rendered([user, calling, result])
    plain_result = rendered([user, assistant, {"role": "tool", "content": "needle_result"}])
    takes_calls = calls is not None and "needle_function" in calls and "needle_value" in calls
    takes_results = (takes_calls and calls is not None and "needle_result" in calls) or (
        plain_result is not None and "needle_result" in plain_result
    )
    offered = rendered([user], tools=[_TOOL])
    return TemplateRules(
        system_role=system is not None and "needle_system" in system,
        alternate=rendered([user, user]) is None or rendered([user, assistant, assistant, user]) is None,
        tools=offered is not None and "needle_tool" in offered,
        tool_calls=takes_calls,
        tool_role=takes_results,
    )


def conform(
    messages: Sequence[Message] | Sequence[Mapping[str, Any]], rules: TemplateRules
) -> list[dict[str, Any]]:
    """Messages a template with these rules takes, as plain dicts: nothing said is lost, the order is kept.

    Calls a template would not show are written into the content in the heredoc dialect, results it has no
    role for come from the user, a system prompt it has no role for begins the first user message, and
    where turns must alternate neighbours of one role become one message.
    """
    shaped = [_shape(message, rules) for message in messages]
    if not rules.system_role:
        shaped = _fold_system(shaped)
    return _merge(shaped) if rules.alternate else shaped


def _shape(message: Message | Mapping[str, Any], rules: TemplateRules) -> dict[str, Any]:
    wire = message.to_wire(reasoning=True) if isinstance(message, Message) else dict(message)
    if wire.get("content") is None:
        wire["content"] = ""
    _check_parts(wire["content"])
    if wire.get("role") == "developer":
        wire["role"] = "system"
    calls = wire.get("tool_calls")
    if calls and not rules.tool_calls:
        wire.pop("tool_calls")
        written = [_written(call) for call in calls]
        text = flat_text(wire["content"])
        wire["content"] = "\n".join([text, *written] if text else written)
    if wire.get("role") in ("tool", "function") and not rules.tool_role:
        wire = {"role": "user", "content": wire["content"]}
    return wire


def _check_parts(content: Any) -> None:
    """Said here, before anything is flattened: a picture must not get lost in silence."""
    for part in content if isinstance(content, (list, tuple)) else ():
        if isinstance(part, Mapping) and not isinstance(part.get("text"), str):
            kind = part.get("type", "?")
            raise ValueError(
                f"LocalRunner reads text only; a message holds a part of type {kind!r:.40}. For images run "
                "llama-server with the model's --mmproj file and use HttpRunner, or say in words what they show."
            )


def _written(call: Any) -> str:
    parsed = call if isinstance(call, ToolCall) else ToolCall.from_wire(dict(call))
    try:
        return render_tool_call(parsed.name, parsed.arguments)
    except ValueError:
        # Arguments that are no JSON object: shown as they are, there is nothing to render.
        return f"@@call {parsed.name}\n{parsed.arguments}\n@@end"


def _fold_system(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    system = [flat_text(m["content"]) for m in messages if m.get("role") == "system"]
    rest = [m for m in messages if m.get("role") != "system"]
    text = "\n\n".join(part for part in system if part)
    if not text:
        return rest
    for index, message in enumerate(rest):
        if message.get("role") == "user":
            content = flat_text(message["content"])
            rest[index] = {**message, "content": f"{text}\n\n{content}" if content else text}
            return rest
    return [{"role": "user", "content": text}, *rest]


def _merge(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    merged: list[dict[str, Any]] = []
    for message in messages:
        last = merged[-1] if merged else None
        if last is None or last.get("role") != message.get("role") or message.get("role") == "tool":
            if not merged and message.get("role") == "assistant":
                merged.append({"role": "user", "content": ""})
            merged.append(message)
            continue
        texts = [text for text in (flat_text(last["content"]), flat_text(message["content"])) if text]
        merged[-1] = {**last, "content": "\n\n".join(texts)}
        calls = [*(last.get("tool_calls") or ()), *(message.get("tool_calls") or ())]
        if calls:
            merged[-1]["tool_calls"] = calls
    return merged


def flat_text(content: Any) -> str:
    if isinstance(content, str):
        return content
    if isinstance(content, (list, tuple)):
        return "\n".join(
            part["text"] for part in content if isinstance(part, dict) and isinstance(part.get("text"), str)
        )
    return ""
