"""A chat request's body: messages, tools and options as a provider takes them. No I/O."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

import msgspec

from agentkit_fast._unicode import repair_value
from agentkit_fast.messages import ChatOptions, Message, ToolDef
from agentkit_fast.runners._http.profiles import Provider
from agentkit_fast.runners._http.roles import for_template

__all__ = [
    "adaptation",
    "apply_adaptations",
    "chat_body",
    "encode_body",
    "endpoint_of",
    "merge_extra",
    "messages_in",
    "sampling_options",
    "wire_messages",
    "wire_tools",
]

_VERSION = re.compile(r"/v\d+[a-z0-9]*$")


def endpoint_of(base_url: str) -> tuple[str, str]:
    """`(root, api)` of a base URL given with or without `/v1`: `http://host` and `http://host/v1`."""
    url = base_url.strip()
    if "://" not in url:
        url = f"http://{url}"
    url = url.rstrip("/") if urlsplit(url).netloc else url
    url = url.removesuffix("/chat/completions").rstrip("/")
    _check_url(base_url, url)
    version = _VERSION.search(url)
    if version:
        return url[: version.start()], url
    return url, f"{url}/v1"


def _check_url(given: str, url: str) -> None:
    parts = urlsplit(url)
    try:
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port that is none
        good = False
    if not good or parts.query or parts.fragment:
        raise ValueError(
            f"base_url is http(s)://host[:port][/path], with or without /v1 and without a query, not {given!r}."
        )


def _wire_message(message: Any, reasoning: str) -> dict[str, Any]:
    if isinstance(message, Message):
        wire = message.to_wire(reasoning=bool(reasoning))
    elif isinstance(message, Mapping):
        wire = dict(message)
    else:
        raise TypeError(
            f"A message is a Message or a dict in OpenAI's shape, not {type(message).__name__}."
        )
    if reasoning not in ("", "reasoning_content") and "reasoning_content" in wire:
        wire[reasoning] = wire.pop("reasoning_content")
    if "tool_calls" in wire and not wire["tool_calls"]:
        del wire["tool_calls"]  # an empty list breaks Llama's template (vllm-project/vllm#13978)
    return wire


def wire_messages(
    messages: Any, provider: Provider, *, system_role: bool, alternate: bool, native_tools: bool
) -> list[dict[str, Any]]:
    """Messages, dicts or a window as OpenAI-shaped dicts, with the roles the template takes."""
    sequence = getattr(messages, "messages", messages)
    wire = [_wire_message(message, provider.reasoning_field) for message in sequence]
    return for_template(wire, system_role=system_role, alternate=alternate, native_tools=native_tools)


def wire_tools(tools: Sequence[Any]) -> list[dict[str, Any]]:
    """Tool definitions in OpenAI's shape. Takes `ToolDef`s, anything with `to_wire`, and wire dicts."""
    wire = []
    for tool in tools:
        if isinstance(tool, Mapping):
            wire.append(dict(tool))
        elif isinstance(tool, ToolDef) or callable(getattr(tool, "to_wire", None)):
            wire.append(tool.to_wire())
        else:
            raise TypeError(f"A tool is a ToolDef or a dict in OpenAI's shape, not {type(tool).__name__}.")
    return wire


def _put(body: dict[str, Any], key: str, value: Any) -> None:
    *path, last = key.split(".")
    for step in path:
        inner = body.get(step)
        body[step] = inner = dict(inner) if isinstance(inner, dict) else {}
        body = inner
    body[last] = value


def chat_body(
    model: str,
    messages: Any,
    tools: Sequence[Any],
    options: ChatOptions,
    provider: Provider,
    *,
    stream: bool,
    system_role: bool = True,
    alternate: bool = False,
    native_tools: bool = True,
) -> dict[str, Any]:
    """The body of a chat-completions request. Nothing is in it that was not asked for."""
    to_json = getattr(messages, "to_json", None)
    wire: Any
    if (
        callable(to_json)
        and system_role
        and not alternate
        and native_tools
        and provider.takes_reasoning_content
    ):
        # A window is JSON already, and large: its bytes go into the request as they are.
        wire = msgspec.Raw(to_json())
    else:
        wire = wire_messages(
            messages, provider, system_role=system_role, alternate=alternate, native_tools=native_tools
        )
    body: dict[str, Any] = {"model": model, "messages": wire, "stream": stream}
    if stream and provider.stream_options:
        body["stream_options"] = {"include_usage": True}
    if tools:
        body["tools"] = wire_tools(tools)
    sampling_options(body, options, provider)
    if options.response_format is not None:
        body["response_format"] = options.response_format
    choice = options.tool_choice
    if choice is not None and tools:
        if choice in ("auto", "none", "required"):
            body["tool_choice"] = choice
        elif provider.named_tool_choice:
            body["tool_choice"] = {"type": "function", "function": {"name": choice}}
        else:
            # Where a name cannot be demanded, only that tool is offered and a call is.
            body["tools"] = [t for t in body["tools"] if t.get("function", {}).get("name") == choice]
            body["tool_choice"] = "required"
    merge_extra(body, options.extra)
    return body


def merge_extra(body: dict[str, Any], extra: Mapping[str, Any]) -> None:
    """Put the caller's own fields into `body`; they win, an object's fields one by one."""
    for key, value in extra.items():
        inner = body.get(key)
        if isinstance(inner, dict) and isinstance(value, Mapping):
            body[key] = {**inner, **value}
        else:
            body[key] = value


def messages_in(body: dict[str, Any]) -> list[dict[str, Any]]:
    """The messages of a body, as dicts."""
    messages: Any = body["messages"]
    if isinstance(messages, msgspec.Raw):
        messages = msgspec.json.decode(messages)
    wire: list[dict[str, Any]] = messages
    return wire


def sampling_options(body: dict[str, Any], options: ChatOptions, provider: Provider) -> None:
    """Put the options that steer sampling, constraint and reasoning into `body`."""
    for key, value in (
        ("temperature", options.temperature),
        ("top_p", options.top_p),
        ("seed", options.seed),
        ("frequency_penalty", options.frequency_penalty),
        ("presence_penalty", options.presence_penalty),
        (provider.repeat_penalty_key, options.repeat_penalty),
        (provider.reasoning_budget_key, options.reasoning_budget_tokens),
        (provider.reasoning_message_key, options.reasoning_budget_message or None),
        (provider.grammar_key, options.grammar or None),
        (provider.max_tokens_key, options.max_tokens or None),
        ("stop", list(options.stop) or None),
    ):
        if key and value is not None:
            _put(body, key, value)
    if provider.name == "anthropic" and options.reasoning_budget_tokens is not None:
        _put(body, "thinking.type", "enabled" if options.reasoning_budget_tokens > 0 else "disabled")
    thinking = options.enable_thinking
    if thinking is not None:
        if provider.thinking_key:
            _put(body, provider.thinking_key, thinking)
        elif provider.effort_off:
            body["reasoning_effort"] = provider.effort_on if thinking else provider.effort_off


def encode_body(body: dict[str, Any]) -> bytes:
    """The JSON bytes of a request body."""
    try:
        return msgspec.json.encode(body)
    except UnicodeEncodeError:
        return msgspec.json.encode(repair_value(body))


_OTHER_NAME = {"max_tokens": "max_completion_tokens", "max_completion_tokens": "max_tokens"}


def adaptation(body: dict[str, Any], status: int, said: str) -> str | None:
    """The field of `body` this refusal is about, if it is one we know how to do without; else `None`.

    A server says by its refusal which of two spellings it takes; it is believed, and asked once more.
    """
    if status not in (400, 422):
        return None
    lowered = said.lower()
    if "stream_options" in body and "stream_options" in lowered:
        return "stream_options"
    for name in _OTHER_NAME:
        if name in body and re.search(
            rf"(?:unsupported|unrecognized|unknown|extra|not supported|unexpected)[^.]{{0,60}}\b{name}\b"
            rf"|\b{name}\b[^.]{{0,60}}(?:unsupported|not supported|not permitted|unknown|unexpected|extra)",
            lowered,
        ):
            return name
    return None


def apply_adaptations(body: dict[str, Any], fields: set[str]) -> dict[str, Any]:
    """`body` without the named fields; a token limit goes out under its other name."""
    for name in fields:
        if name in body:
            body = dict(body)
            value = body.pop(name)
            if name in _OTHER_NAME:
                body[_OTHER_NAME[name]] = value
    return body
