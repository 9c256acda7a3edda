"""A floor under the size of a prompt: fewer tokens than this no tokenizer makes of it. No I/O."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import msgspec

from agentkit_fast.runners._http.request import messages_in

__all__ = ["prompt_estimate", "prompt_floor", "prompt_texts", "text_of"]

# Ordinary text has 2 to 5 characters a token in every vocabulary measured; only runs of one character
# (indentation, rules of dashes) go into long tokens, so they are cut short before counting.
CHARS_PER_TOKEN = 12
_RUNS = re.compile(r"(\s)\s{2,}|(.)\2{6,}")
_NEVER_BELOW = 1000


def text_of(message: dict[str, Any]) -> Iterable[str]:
    """The texts of a wire message that become prompt: content, text parts, names, arguments."""
    content = message.get("content")
    if isinstance(content, str):
        yield content
    elif isinstance(content, list):
        for part in content:
            if isinstance(part, dict) and isinstance(part.get("text"), str):
                yield part["text"]
    for call in message.get("tool_calls") or ():
        function = call.get("function", {}) if isinstance(call, dict) else {}
        yield str(function.get("name", ""))
        yield str(function.get("arguments", ""))


def prompt_texts(body: dict[str, Any]) -> list[str] | None:
    """The texts a request's prompt is made of, tools included; `None` where there are images among them."""
    texts = []
    for message in messages_in(body):
        content = message.get("content")
        if isinstance(content, list) and any(
            not isinstance(part, dict) or part.get("type") != "text" for part in content
        ):
            return None
        texts.append("".join(text_of(message)))
    if "tools" in body:
        texts.append(msgspec.json.encode(body["tools"]).decode())
    return texts


def prompt_estimate(messages: list[dict[str, Any]]) -> int:
    """Tokens the messages have by four bytes a token."""
    return (
        sum(len(text.encode("utf-8", "replace")) for message in messages for text in text_of(message)) // 4
    )


def prompt_floor(messages: list[dict[str, Any]], *, chars_per_token: int = CHARS_PER_TOKEN) -> int:
    """Tokens the messages have at least; 0 where they are too short to say."""
    chars = 0
    for message in messages:
        for text in text_of(message):
            chars += len(_RUNS.sub(r"\1\2", text)) if len(text) > 64 else len(text)
    floor = chars // chars_per_token
    return floor if floor >= _NEVER_BELOW else 0
