"""What a server's refusal means: its body in, one of our exceptions out. No I/O.

Type and code are asked first, wording last, since wording changes with every version.
"""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec

from agentkit_fast._unicode import repair_text
from agentkit_fast.errors import InputTooLarge, RunnerError, TruncatedToolCall

__all__ = ["Refusal", "classify", "dumps", "loads", "read_refusal", "retry_after_of"]

# Enough for any message and for the raw text of a tool call a server could not parse.
MAX_BODY_SHOWN = 2000

_OVERFLOW_CODES = frozenset(
    {
        "exceed_context_size_error",
        "context_length_exceeded",
        "context_window_exceeded",
        "string_above_max_length",
    }
)
_OVERFLOW_WORDS = re.compile(
    r"exceeds? (?:the |its )?(?:available |maximum |model'?s? |max(?:imum)? )*(?:context|input|prompt|token)"
    r"|maximum context length"
    r"|max(?:imum)?[_ ]tokens must be at least 1, got -"
    r"|context (?:length|size|window)[^.]{0,60}(?:exceed|overflow|too (?:small|long|large))"
    r"|(?:exceed|overflow|larger than|longer than|greater than|beyond|fit (?:in|within))[^.]{0,60}"
    r"context (?:length|size|window)"
    r"|when context the overflows|context the overflows|context overflow"
    r"|prompt (?:is )?too (?:long|large)|input (?:is )?too (?:long|large)"
    r"|(?:prompt|input)[^.]{0,40}longer than the (?:context|maximum)"
    r"|no user query found in messages"
    r"|must have less than \d+ tokens"
    r"|requested tokens[^.]{0,30}exceed"
    r"|reduce the length of the (?:messages|prompt|input)"
    r"|exceeds the maximum number of (?:input )?tokens"
    r"|too many (?:input |prompt )?tokens\b(?![^.]*per (?:minute|second|day))",
    re.IGNORECASE,
)
_TOOL_CALL_WORDS = re.compile(
    r"error parsing tool call|failed to parse tool[ _]?calls?|failed to parse (?:tool call )?arguments"
    r"|failed to parse input at pos|failed to parse input|unable to parse tool"
    r"|could not parse tool call|invalid diff: ",
    re.IGNORECASE,
)
_ASKED = re.compile(
    r"(?:request|requested|prompt|input)[^.]{0,40}?\(?(\d[\d,]*) tokens|requested (\d[\d,]*)|"
    r"resulted in (\d[\d,]*) tokens|first (\d[\d,]*) tokens",
    re.IGNORECASE,
)
_WINDOW = re.compile(
    r"(?:context (?:length|size|window)(?: of)?(?: only| is|:)?) ?\(?(\d[\d,]*)|maximum of (\d[\d,]*) tokens"
    r"|tokens > (\d[\d,]*) maximum|maximum number of (?:input )?tokens allowed \(?(\d[\d,]*)"
    r"|with (\d[\d,]*) maximum context length",
    re.IGNORECASE,
)


class Refusal(msgspec.Struct, kw_only=True, frozen=True):
    """A server's error object, read leniently. `code` is the HTTP-like status it names (0: none)."""

    message: str
    kind: str = ""
    code: int = 0
    prompt_tokens: int = 0
    context_tokens: int = 0


def loads(body: bytes | str) -> Any:
    """The JSON value in `body`, or `None` where it is none. Lone surrogates and NaN are let through."""
    try:
        return msgspec.json.decode(body)
    except (msgspec.MsgspecError, RecursionError):
        pass
    try:
        return json.loads(body if isinstance(body, str) else body.decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return None


def dumps(value: Any) -> str:
    """`value`, which came out of a JSON text, as JSON again. Lone surrogates are repaired."""
    try:
        return msgspec.json.encode(value).decode()
    except (ValueError, OverflowError, RecursionError, msgspec.MsgspecError):
        try:
            return repair_text(json.dumps(value, ensure_ascii=False, separators=(",", ":")))
        except (ValueError, RecursionError):
            return ""


def _number(value: Any) -> float | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            return None
    if isinstance(value, (int, float)) and 0 <= value < float("inf"):
        return float(value)
    return None


def _count(*values: Any) -> int:
    for value in values:
        number = _number(value.replace(",", "") if isinstance(value, str) else value)
        if number:
            return int(number)
    return 0


def read_refusal(value: Any) -> Refusal | None:
    """The error in a decoded body or event; `None` where there is none.

    Known shapes: OpenAI's `{"error": {...}}`, Ollama's `{"error": "text"}`, the older vLLM's flat
    `{"object": "error", ...}`, FastAPI's `{"detail": ...}` and `{"message": ...}` with a code.
    """
    if not isinstance(value, dict):
        return None
    error = value.get("error")
    if isinstance(error, str) and error:
        inner: dict[str, Any] = {"message": error}
    elif isinstance(error, dict) and error:
        inner = error
    elif value.get("object") == "error" or value.get("type") == "error":
        inner = value
    elif "detail" in value and "choices" not in value:
        inner = {"message": value["detail"]}
    elif "message" in value and "choices" not in value and ("code" in value or "status" in value):
        inner = value
    else:
        return None
    message = inner.get("message")
    if not isinstance(message, str) or not message:
        message = dumps(inner)
    code = inner.get("code", value.get("code"))
    kind = inner.get("type")
    words = " ".join(word for word in (kind, code) if isinstance(word, str))
    status = _count(code, inner.get("status"), value.get("status_code"))
    return Refusal(
        message=repair_text(message),
        kind=words,
        code=status if 100 <= status < 600 else 0,
        prompt_tokens=_count(inner.get("n_prompt_tokens")),
        context_tokens=_count(inner.get("n_ctx"), inner.get("max_model_len")),
    )


def retry_after_of(value: Any) -> float | None:
    """Seconds to wait that a decoded body asks for, at its top or under `error`."""
    if not isinstance(value, dict):
        return None
    wait = _number(value.get("retry_after"))
    inner = value.get("error")
    return _number(inner.get("retry_after")) if wait is None and isinstance(inner, dict) else wait


def _first_number(pattern: re.Pattern[str], text: str) -> int:
    hit = pattern.search(text)
    return _count(*(group for group in hit.groups() if group)) if hit else 0


def is_overflow(status: int, refusal: Refusal | None, text: str) -> bool:
    """The server says, in whatever words, that the prompt does not fit."""
    if status == 413:
        return True
    if status in (401, 403, 404, 429):
        return False
    if refusal is not None and not _OVERFLOW_CODES.isdisjoint(refusal.kind.split()):
        return True
    return _OVERFLOW_WORDS.search(text) is not None


def classify(status: int, body: bytes, where: str) -> RunnerError:
    """The exception for a response that is an error. `where` names the endpoint in the message."""
    text = body.decode("utf-8", "replace")
    refusal = read_refusal(loads(body))
    said = refusal.message if refusal is not None else text.strip()
    if is_overflow(status, refusal, said):
        asked = (refusal.prompt_tokens if refusal else 0) or _first_number(_ASKED, said)
        window = (refusal.context_tokens if refusal else 0) or _first_number(_WINDOW, said)
        sizes = f" ({asked or 'unknown'} tokens asked, window {window or 'unknown'})"
        return InputTooLarge(
            f"The prompt does not fit the model at {where}{sizes}. Shorten the history or the tools, or give "
            f"the server a larger context. It said: {_shown(said)}",
            status=status,
            body=text,
            prompt_tokens=asked,
            context_tokens=window,
        )
    if (status >= 500 or status in (200, 400, 422)) and _TOOL_CALL_WORDS.search(said):
        return TruncatedToolCall(
            f"{where} could not parse the tool call its model wrote (HTTP {status}). Ask for a smaller call, "
            f"or let calls come as text. It said: {_shown(said)}",
            status=status,
            body=text,
        )
    name = f"HTTP {status}" if status != 200 else "an error inside a 200 reply"
    return RunnerError(f"{where} answered {name}: {_shown(said) or '(no text)'}", status=status, body=text)


def _shown(text: str) -> str:
    return text if len(text) <= MAX_BODY_SHOWN else f"{text[:MAX_BODY_SHOWN]}… ({len(text):,} characters)"
