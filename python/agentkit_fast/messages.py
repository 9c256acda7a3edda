"""Wire values: what goes to a model and what comes back.

The shapes are OpenAI's chat-completions shapes; `to_wire` gives plain dicts of them.
"""

from __future__ import annotations

import base64
import math
from typing import Any, Self

import msgspec

from agentkit_fast._unicode import repair_text

__all__ = [
    "ChatOptions",
    "ContentPart",
    "Message",
    "StreamChunk",
    "ToolCall",
    "ToolDef",
    "Usage",
    "image_data",
    "image_part",
    "text_part",
]


class ContentPart(msgspec.Struct, kw_only=True, frozen=True, omit_defaults=True, gc=False):
    """One piece of multimodal content: `type` is `"text"` (see `text`) or `"image_url"` (see `url`)."""

    type: str
    text: str = ""
    url: str = ""

    def to_wire(self) -> dict[str, Any]:
        """OpenAI's shape of this part."""
        if self.type == "text":
            return {"type": "text", "text": self.text}
        return {"type": "image_url", "image_url": {"url": self.url}}


def text_part(text: str) -> ContentPart:
    """A part that is text."""
    return ContentPart(type="text", text=repair_text(text))


def image_part(url: str) -> ContentPart:
    """A part that is the image at `url` (`https:` or `data:`)."""
    return ContentPart(type="image_url", url=repair_text(url))


def image_data(mime: str, raw: bytes) -> ContentPart:
    """A part that is the image `raw`, sent as a base64 data URI of type `mime` (such as `image/png`)."""
    return image_part(f"data:{mime};base64,{base64.b64encode(raw).decode('ascii')}")


class ToolCall(msgspec.Struct, kw_only=True):
    """A call the model asks for. `arguments` is JSON text, as the model wrote it."""

    id: str
    name: str
    arguments: str = "{}"

    @classmethod
    def from_wire(cls, wire: dict[str, Any]) -> Self:
        """From OpenAI's shape (or the bare `{"id", "name", "arguments"}`).

        `arguments` may be a JSON string or a bare value, as servers send either; absent and null mean "no
        arguments" and give `{}`.
        """
        function = wire.get("function")
        if not isinstance(function, dict):
            function = wire
        arguments = function.get("arguments")
        if arguments is None:
            arguments = "{}"
        elif not isinstance(arguments, str):
            arguments = msgspec.json.encode(arguments).decode()
        return cls(
            id=repair_text(str(wire.get("id") or "")),
            name=repair_text(str(function.get("name") or "")),
            arguments=repair_text(arguments),
        )

    def to_wire(self) -> dict[str, Any]:
        """OpenAI's shape: `{"id", "type": "function", "function": {"name", "arguments"}}`."""
        return {
            "id": self.id,
            "type": "function",
            "function": {"name": self.name, "arguments": self.arguments},
        }


def _any_object() -> dict[str, Any]:
    return {"type": "object", "properties": {}}


class ToolDef(msgspec.Struct, kw_only=True):
    """A tool as the model is told of it. `parameters` is the JSON Schema of its arguments object."""

    name: str
    description: str = ""
    parameters: dict[str, Any] = msgspec.field(default_factory=_any_object)

    def to_wire(self) -> dict[str, Any]:
        """OpenAI's shape: `{"type": "function", "function": {...}}`."""
        return {
            "type": "function",
            "function": {
                "name": self.name,
                "description": self.description,
                "parameters": self.parameters,
            },
        }


class Message(msgspec.Struct, kw_only=True, gc=False):
    """One message of a request.

    `parts`, where there are any, go out instead of `content`. `reasoning` goes out as `reasoning_content`
    only where the runner's profile says so (`to_wire(reasoning=True)`).
    """

    role: str
    content: str = ""
    parts: tuple[ContentPart, ...] = ()
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str = ""
    name: str = ""

    def to_wire(self, *, reasoning: bool = False) -> dict[str, Any]:
        """OpenAI's shape. Empty fields are left out; `content` is always there."""
        wire: dict[str, Any] = {"role": self.role}
        if self.parts:
            wire["content"] = [part.to_wire() for part in self.parts]
        else:
            wire["content"] = repair_text(self.content)
        if reasoning and self.reasoning:
            wire["reasoning_content"] = repair_text(self.reasoning)
        if self.tool_calls:
            wire["tool_calls"] = [call.to_wire() for call in self.tool_calls]
        if self.tool_call_id:
            wire["tool_call_id"] = self.tool_call_id
        if self.name:
            wire["name"] = self.name
        return wire


class Usage(msgspec.Struct, kw_only=True, frozen=True, gc=False):
    """What one round-trip cost, in tokens. `prompt_tokens` includes `cached_tokens`."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    total_tokens: int = 0
    cached_tokens: int = 0
    latency_ms: int = 0

    @property
    def new_prompt_tokens(self) -> int:
        """Prompt tokens that had to be evaluated."""
        return max(0, self.prompt_tokens - self.cached_tokens)

    @classmethod
    def from_wire(cls, wire: dict[str, Any], *, latency_ms: int = 0) -> Self:
        """From a provider's `usage` object.

        Cached tokens are read from OpenAI's nested `prompt_tokens_details.cached_tokens` or
        Anthropic's flat `cache_read_input_tokens`; a missing total is the sum.
        """
        prompt = _count(wire, "prompt_tokens") or _count(wire, "input_tokens")
        completion = _count(wire, "completion_tokens") or _count(wire, "output_tokens")
        details = wire.get("prompt_tokens_details") or wire.get("input_tokens_details")
        cached = _count(details, "cached_tokens") if isinstance(details, dict) else 0
        return cls(
            prompt_tokens=prompt,
            completion_tokens=completion,
            total_tokens=_count(wire, "total_tokens") or prompt + completion,
            cached_tokens=cached or _count(wire, "cache_read_input_tokens"),
            latency_ms=latency_ms,
        )


def _count(wire: dict[str, Any], key: str) -> int:
    """A token count from a provider: a whole number that is not negative, else 0."""
    value = wire.get(key)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        return 0
    return max(0, int(value))


class StreamChunk(msgspec.Struct, kw_only=True, gc=False):
    """One step of a streamed reply.

    `content` and `reasoning` are new text. `tool_call` is one complete call. The last chunk has
    `done=True`, the provider's `finish_reason` and `usage`; `stop_reason` is ours (`"repetition"` when a
    guard closed the stream, then with `repetition` set). `error` is a provider's error inside a
    stream. `partial_tool_calls` is what had arrived of calls that were cut: never to be run.
    """

    content: str = ""
    reasoning: str = ""
    tool_call: ToolCall | None = None
    done: bool = False
    error: str = ""
    usage: Usage | None = None
    stop_reason: str = ""
    repetition: Any = None
    finish_reason: str = ""
    partial_tool_calls: tuple[ToolCall, ...] = ()


class ChatOptions(msgspec.Struct, kw_only=True):
    """Options of one chat round. `None` (or empty) means "not sent"; 0 is a value.

    `tool_choice` is `None`, `"auto"`, `"none"`, `"required"` or a tool's name. `grammar` is GBNF.
    `response_format` is OpenAI's object. `session_id` is a hint for cache affinity, `trace_id` goes out as
    `X-Trace-Id`. `max_tokens` 0 means "not sent". `extra` is merged into the request body as it is.
    """

    tool_choice: str | None = None
    session_id: str = ""
    trace_id: str = ""
    grammar: str = ""
    response_format: dict[str, Any] | None = None
    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None
    stop: tuple[str, ...] = ()
    max_tokens: int = 0
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    repeat_penalty: float | None = None
    reasoning_budget_tokens: int | None = None
    reasoning_budget_message: str = ""
    enable_thinking: bool | None = None
    extra: dict[str, Any] = msgspec.field(default_factory=dict)
