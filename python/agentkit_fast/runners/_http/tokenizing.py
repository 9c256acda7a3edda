"""Counting by an endpoint's own tokenizer: llama.cpp's dialect and vLLM's. Rules without I/O."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from hashlib import blake2b
from typing import Any

import msgspec

from agentkit_fast._unicode import repair_text
from agentkit_fast.errors import RunnerError
from agentkit_fast.runners._http.errors import loads
from agentkit_fast.runners._http.exchange import Context, Endpoint, Rule, Send, ask, ask_once

__all__ = ["Dialect", "count", "count_prompt", "encode", "probe_dialect"]

Dialect = str
"""`"llama.cpp"`, `"vllm"`, or empty: the endpoint has no tokenizer."""


class Counts:
    """Counts already asked for, the least recently used forgotten first. Safe from many threads."""

    def __init__(self, size: int = 8192) -> None:
        self._size = size
        self._counts: OrderedDict[bytes, int] = OrderedDict()
        self._lock = threading.Lock()

    @staticmethod
    def key(text: str) -> bytes:
        """16 bytes that stand for `text`."""
        return blake2b(text.encode(), digest_size=16).digest()

    def get(self, key: bytes) -> int | None:
        with self._lock:
            count = self._counts.get(key)
            if count is not None:
                self._counts.move_to_end(key)
            return count

    def put(self, key: bytes, count: int) -> None:
        with self._lock:
            self._counts[key] = count
            if len(self._counts) > self._size:
                self._counts.popitem(last=False)


def _send(url: str, headers: dict[str, str], body: dict[str, Any]) -> Send:
    return Send("POST", url, headers, msgspec.json.encode(body))


def _llama_body(text: str, *, parse_special: bool = False) -> dict[str, Any]:
    # `parse_special` is true unless told otherwise, and then `<|im_end|>` in a file counts as one token.
    return {"content": text, "add_special": False, "parse_special": parse_special}


def _vllm_body(model: str, text: str) -> dict[str, Any]:
    # `add_special_tokens` is true unless told otherwise, and then every fragment counts a BOS.
    return {"model": model, "prompt": text, "add_special_tokens": False}


def _ids(value: Any) -> list[int] | None:
    tokens = value.get("tokens") if isinstance(value, dict) else None
    if isinstance(tokens, list) and all(type(token) is int and 0 <= token < 1 << 31 for token in tokens):
        return tokens
    return None


def _count_in(value: Any) -> int | None:
    """How many tokens an answer tells of: its ids, or where it gives none, its `count`."""
    ids = _ids(value)
    if ids is not None:
        return len(ids)
    if isinstance(value, dict) and value.get("tokens") is not None:
        return None
    count = value.get("count") if isinstance(value, dict) else None
    return count if isinstance(count, int) and not isinstance(count, bool) and count >= 0 else None


def probe_dialect(context: Context, endpoint: Endpoint) -> Rule:
    """The dialect `/tokenize` understands, or `""`; `None` where nobody answered yet, so that it may be asked again.

    The probe is a text that is two tokens or more to any of them, so that a server that answers anything
    with 200 is not believed.
    """
    answered = False
    for dialect, body in (
        ("llama.cpp", _llama_body("probe text")),
        ("vllm", _vllm_body(endpoint.model, "probe text")),
    ):
        send = msgspec.structs.replace(
            _send(f"{endpoint.root}/tokenize", endpoint.headers, body), timeout_s=5.0
        )
        status, _, answer = yield from ask_once(context, send)
        # A server that is loading its model (503), is too busy (429) or not reached (502, 504) has not said no.
        answered = answered or status not in (0, 429, 502, 503, 504)
        value = loads(answer) if status == 200 else None
        # A tokenizer that ignored the text it does not know by that name gives none, or only a BOS.
        if (_count_in(value) or 0) >= 2:
            return dialect
    return "" if answered else None


def _pieces(text: str) -> list[str]:
    """`text` cut inside every spelling of a control token, for a tokenizer that always parses them."""
    from agentkit_fast.text import SpecialTokens

    raw = text.encode()
    pieces, at = [], 0
    for start, _end, token in SpecialTokens.default().find(text):
        cut = start + len(token[:1].encode())
        pieces.append(raw[at:cut].decode())
        at = cut
    pieces.append(raw[at:].decode())
    return [piece for piece in pieces if piece]


def encode(
    context: Context, endpoint: Endpoint, dialect: Dialect, text: str, *, parse_special: bool = False
) -> Rule:
    """The token ids of `text`: no BOS, control-token spellings as the text they are."""
    ids: list[int] = []
    for part in (
        yield from _ask_all(context, endpoint, dialect, text, read=_ids, parse_special=parse_special)
    ):
        ids += part
    return ids


def count(context: Context, endpoint: Endpoint, dialect: Dialect, text: str) -> Rule:
    """How many tokens `encode` would give; also where the endpoint tells only their number."""
    return sum((yield from _ask_all(context, endpoint, dialect, text, read=_count_in)))


def _ask_all(
    context: Context,
    endpoint: Endpoint,
    dialect: Dialect,
    text: str,
    *,
    read: Callable[[Any], Any],
    parse_special: bool = False,
) -> Rule:
    text = repair_text(text)
    if not text:
        return []
    url = f"{endpoint.root}/tokenize"
    if dialect == "llama.cpp":
        bodies = [_llama_body(text, parse_special=parse_special)]
    else:
        bodies = [
            _vllm_body(endpoint.model, piece) for piece in ([text] if parse_special else _pieces(text))
        ]
    parts = []
    for body in bodies:
        _, answer = yield from ask(context, _send(url, endpoint.headers, body))
        got = read(loads(answer))
        if got is None:
            raise RunnerError(
                f"{url} answered without token ids.", body=answer[:2000].decode("utf-8", "replace")
            )
        parts.append(got)
    return parts


_PROMPT_FIELDS: tuple[str, ...] = ("model", "messages", "tools", "chat_template_kwargs")


def count_prompt(context: Context, endpoint: Endpoint, dialect: Dialect, body: dict[str, Any]) -> Rule:
    """Tokens of a whole chat request, template and tools included; `None` where the endpoint cannot say."""
    asked: dict[str, Any] = {key: body[key] for key in _PROMPT_FIELDS if key in body}
    if dialect == "vllm":
        send = _send(
            f"{endpoint.root}/tokenize", endpoint.headers, {**asked, "add_generation_prompt": True}
        )
        key = "count"
    elif dialect == "llama.cpp":
        send = _send(f"{endpoint.api}/chat/completions/input_tokens", endpoint.headers, asked)
        key = "input_tokens"
    else:
        return None
    status, _, answer = yield from ask_once(context, send)
    value = loads(answer) if status == 200 else None
    count = value.get(key) if isinstance(value, dict) else None
    return count if isinstance(count, int) and count > 0 else None
