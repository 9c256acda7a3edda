"""Message lists for templates that demand alternating roles or know no system role. No I/O."""

from __future__ import annotations

from typing import Any

__all__ = ["for_template"]


def for_template(
    messages: list[dict[str, Any]], *, system_role: bool, alternate: bool, native_tools: bool = True
) -> list[dict[str, Any]]:
    """`messages` as the template takes them; the same list where nothing has to change.

    Without a system role its text goes before the first user message. With `alternate`, neighbours of one
    role become one message; without `native_tools`, tool results become user text and calls
    assistant text. The given dicts are never changed. Applying it twice gives the same as once.
    """
    if system_role and not alternate and native_tools:
        return messages
    out = messages
    if not native_tools:
        out = [_tools_as_text(message) for message in out]
    if not system_role:
        out = _fold_system(out)
    if alternate:
        out = _merge_neighbours(out)
        if out and out[0].get("role") == "assistant":
            out = [{"role": "user", "content": "(The conversation begins with the assistant.)"}, *out]
    return out


def _tools_as_text(message: dict[str, Any]) -> dict[str, Any]:
    role = message.get("role")
    if role == "tool":
        label = message.get("name") or message.get("tool_call_id") or "tool"
        return {"role": "user", "content": f"Result of {label}:\n{_text(message.get('content'))}"}
    calls = message.get("tool_calls")
    if role == "assistant" and calls:
        lines = [_text(message.get("content"))] if message.get("content") else []
        for call in calls:
            function = call.get("function", {})
            lines.append(_call_as_text(str(function.get("name", "")), function.get("arguments") or "{}"))
        return {"role": "assistant", "content": "\n".join(lines)}
    return message


def _call_as_text(name: str, arguments: Any) -> str:
    """A call in the words the model is taught, so that it goes on writing them."""
    from agentkit_fast.text import render_tool_call

    return render_tool_call(name, arguments).rstrip("\n")


def _fold_system(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    system = [m for m in messages if m.get("role") in ("system", "developer")]
    if not system:
        return messages
    text = "\n\n".join(_text(m.get("content")) for m in system)
    rest = [m for m in messages if m.get("role") not in ("system", "developer")]
    for at, message in enumerate(rest):
        if message.get("role") == "user":
            rest[at] = {**message, "content": _joined(text, message.get("content"))}
            return rest
    return [{"role": "user", "content": text}, *rest]


def _merge_neighbours(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    out: list[dict[str, Any]] = []
    for message in messages:
        last = out[-1] if out else None
        if last is None or last.get("role") != message.get("role") or message.get("role") == "tool":
            out.append(message)
            continue
        merged = {**last, "content": _joined(last.get("content"), message.get("content"))}
        calls = [*(last.get("tool_calls") or ()), *(message.get("tool_calls") or ())]
        if calls:
            merged["tool_calls"] = calls
        out[-1] = merged
    return out


def _joined(first: Any, second: Any) -> Any:
    if isinstance(first, list) or isinstance(second, list):
        return [*_parts(first), *_parts(second)]
    return "\n\n".join(text for text in (first, second) if text)


def _parts(content: Any) -> list[Any]:
    if isinstance(content, list):
        return content
    return [{"type": "text", "text": content}] if content else []


def _text(content: Any) -> str:
    if isinstance(content, list):
        return "\n".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return content if isinstance(content, str) else ""
