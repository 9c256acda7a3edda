"""Chunks back into server-sent events, for a host that passes a reply on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from agentkit_fast.messages import StreamChunk

__all__ = ["relay", "to_sse"]


def to_sse(chunk: StreamChunk, *, model: str = "", reply_id: str = "", index: int = 0) -> bytes:
    """A chunk as the event (or events) an OpenAI-compatible server would send.

    `index` numbers the reply's tool calls from 0; `relay` counts them for you. The last chunk becomes the
    finish event, the usage event where there is usage, and `[DONE]`.
    """
    delta: dict[str, Any] = {}
    if chunk.content:
        delta["content"] = chunk.content
    if chunk.reasoning:
        delta["reasoning_content"] = chunk.reasoning
    if chunk.tool_call is not None:
        delta["tool_calls"] = [{"index": index, **chunk.tool_call.to_wire()}]
    frame: dict[str, Any] = {"object": "chat.completion.chunk"}
    if reply_id:
        frame["id"] = reply_id
    if model:
        frame["model"] = model
    out = b""
    if chunk.error:
        return _event({"error": {"message": chunk.error}})
    finish = (chunk.finish_reason or chunk.stop_reason or "stop") if chunk.done else None
    if delta or finish is not None:
        out += _event({**frame, "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]})
    if chunk.usage is not None:
        usage = chunk.usage
        out += _event(
            {
                **frame,
                "choices": [],
                "usage": {
                    "prompt_tokens": usage.prompt_tokens,
                    "completion_tokens": usage.completion_tokens,
                    "total_tokens": usage.total_tokens,
                    "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
                },
            }
        )
    return out + b"data: [DONE]\n\n" if chunk.done else out


def relay(chunks: Iterable[StreamChunk], *, model: str = "", reply_id: str = "") -> Iterator[bytes]:
    """The events of a whole reply, its tool calls numbered."""
    index = 0
    for chunk in chunks:
        data = to_sse(chunk, model=model, reply_id=reply_id, index=index)
        index += chunk.tool_call is not None
        if data:
            yield data


def _event(value: dict[str, Any]) -> bytes:
    return b"data: " + msgspec.json.encode(value) + b"\n\n"
