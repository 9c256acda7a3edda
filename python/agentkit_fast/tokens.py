"""Counting tokens."""

from __future__ import annotations

from agentkit_fast import _core
from agentkit_fast.endpoint_tokenizer import EndpointTokenizer, LearningCounter

__all__ = ["CharsByFour", "EndpointTokenizer", "LearningCounter", "budget"]


class CharsByFour:
    """Four UTF-8 bytes a token, rounded up: the default where no vocabulary is at hand.

    It is an estimate and can be below the truth: for Python source by a few per cent, for digits, hex
    and CJK by far more. Use a real tokenizer where there is one.
    """

    def count(self, text: str) -> int:
        """Estimated tokens in `text`."""
        return _core.chars_by_four(text)


def budget(context_tokens: int, reserve_pct: int) -> int:
    """The part of a context window that history may use: `context_tokens` less `reserve_pct` per cent.

    A reserve outside 0 to 99 is taken for the nearest of these; the result is rounded down.
    """
    return context_tokens * (100 - min(99, max(0, reserve_pct))) // 100
