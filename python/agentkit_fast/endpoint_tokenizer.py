"""Counting where the model is behind an endpoint: by its own tokenizer, or by what it reports."""

from __future__ import annotations

import math
import random
import threading
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from agentkit_fast.errors import UnsupportedTokenizer

if TYPE_CHECKING:
    import numpy as np

__all__ = ["EndpointTokenizer", "LearningCounter"]


class EndpointTokenizer:
    """Counts and encodes by asking the endpoint's `/tokenize`, in llama.cpp's dialect or vLLM's.

    Text is text: control-token spellings in it count as the characters they are, and no BOS is added. The
    endpoint is probed once; a "no" is remembered. Counts are remembered too (8,192 texts), so the same
    text is asked for once.

    `count` and `encode` raise `UnsupportedTokenizer` where the endpoint has no tokenizer, and
    `RunnerError` where it cannot be reached; `try_count` gives `None` for the former.
    """

    def __init__(
        self,
        base_url: str,
        model: str = "",
        *,
        api_key: str = "",
        timeout: float = 30.0,
        headers: dict[str, str] | None = None,
        clients: Any = None,
    ) -> None:
        from agentkit_fast.runners._http.connection import Clients
        from agentkit_fast.runners._http.exchange import Endpoint
        from agentkit_fast.runners._http.request import endpoint_of
        from agentkit_fast.runners._http.tokenizing import Counts

        self.model = model
        self.root, api = endpoint_of(base_url)
        self._headers = {
            "content-type": "application/json",
            "accept": "application/json",
            **(headers or {}),
        }
        if api_key:
            self._headers["authorization"] = f"Bearer {api_key}"
        self._endpoint = Endpoint(self.root, api, model, self._headers)
        self._timeout_s = timeout
        self._owns = clients is None
        self._clients: Any = Clients(self.root) if clients is None else clients
        self._counts = Counts()
        self._dialect: str | None = None
        self._lock = threading.Lock()

    @property
    def dialect(self) -> str:
        """`"llama.cpp"`, `"vllm"`, or empty where the endpoint has no tokenizer. Asks on first use.

        Raises `RunnerError` where nobody answers; then it is asked again the next time.
        """
        with self._lock:
            if self._dialect is None:
                from agentkit_fast.errors import RunnerError
                from agentkit_fast.runners._http.tokenizing import probe_dialect

                found = self._drive(probe_dialect(self._context(), self._endpoint))
                if found is None:
                    raise RunnerError(
                        f"No answer from {self.root}/tokenize yet. Is the server running, its model loaded?"
                    )
                self._dialect = found
            return self._dialect

    def try_count(self, text: str) -> int | None:
        """Tokens in `text`, or `None` where the endpoint has no tokenizer."""
        key = self._counts.key(_repaired(text))
        known = self._counts.get(key)
        if known is not None:
            return known
        if not self.dialect:
            return None
        from agentkit_fast.runners._http.tokenizing import count as count_rule

        count: int = self._drive(count_rule(self._context(), self._endpoint, self.dialect, text))
        self._counts.put(key, count)
        return count

    def count(self, text: str) -> int:
        """Tokens in `text`."""
        count = self.try_count(text)
        if count is None:
            raise self._none()
        return count

    def encode(self, text: str, *, parse_special: bool = False) -> np.ndarray[Any, Any]:
        """Token ids as int32. With `parse_special`, control-token spellings become control tokens."""
        import numpy as np

        if not self.dialect:
            raise self._none()
        return np.array(self._encode(text, parse_special=parse_special), dtype=np.int32)

    def close(self) -> None:
        """Close its connections."""
        if self._owns:
            self._clients.close()

    def _encode(self, text: str, *, parse_special: bool = False) -> list[int]:
        from agentkit_fast.runners._http.tokenizing import encode

        rule = encode(self._context(), self._endpoint, self.dialect, text, parse_special=parse_special)
        ids: list[int] = self._drive(rule)
        return ids

    def _none(self) -> UnsupportedTokenizer:
        return UnsupportedTokenizer(
            f"{self.root} has no /tokenize in a dialect known here (llama.cpp, vLLM). Count with the model's GGUF or "
            "tokenizer.json, or with LearningCounter."
        )

    def _context(self) -> Any:
        from agentkit_fast.runners._http.exchange import Context
        from agentkit_fast.runners._http.retry import RetryPolicy

        return Context(
            where=self.root,
            policy=RetryPolicy(budget_s=30.0, attempts=3),
            on_retry=None,
            now=time.monotonic,
            wall=time.time,
            random=random.random,
            timeout_s=self._timeout_s,
        )

    def _drive(self, rule: Any) -> Any:
        from agentkit_fast.runners._http.drivers import drive

        return drive(self._clients.sync(), rule)


def _repaired(text: str) -> str:
    from agentkit_fast._unicode import repair_text

    return repair_text(text)


# Below this many bytes a prompt says more about the template, or a gateway's own system prompt, than about the text.
_ENOUGH_BYTES = 2048


class LearningCounter:
    """Counts by bytes, with a ratio learned from the prompt tokens an endpoint reports.

    For endpoints without a tokenizer. It begins with four bytes a token and only ever goes up: after
    `observe(texts, tokens)`, `count_prompt(texts)` is never below `tokens`. Short prompts, whose size is mostly
    the chat template's, go into `overhead` instead of the ratio. Safe from many threads.

    Counting a text again gives the same number until an observation has shown it to be too low.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.tokens_per_byte = 0.25
        self.overhead = 0
        """Tokens a prompt has besides its texts and four for each message."""

    def count(self, text: str) -> int:
        """Estimated tokens in `text`."""
        return math.ceil(_bytes(text) * self.tokens_per_byte)

    def count_prompt(self, texts: Iterable[str]) -> int:
        """Estimated tokens of a prompt made of these messages' texts."""
        texts = list(texts)
        return sum(map(self.count, texts)) + 4 * len(texts) + self.overhead

    def observe(self, texts: Iterable[str], tokens: int) -> None:
        """An endpoint reported `tokens` for a prompt made of these messages' texts."""
        texts = list(texts)
        size = sum(map(_bytes, texts))
        with self._lock:
            if tokens <= self.count_prompt(texts):
                return
            if size >= _ENOUGH_BYTES:
                # No tokenizer with byte fallback makes more tokens than bytes; what is more is template.
                missing = tokens - 4 * len(texts) - self.overhead
                self.tokens_per_byte = min(1.0, max(self.tokens_per_byte, missing / size))
            short = tokens - self.count_prompt(texts)
            if short > 0:
                self.overhead += short


def _bytes(text: str) -> int:
    return len(text) if text.isascii() else len(_repaired(text).encode())
