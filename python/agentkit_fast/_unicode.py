"""Repair of text that UTF-8 cannot hold."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["repair_text", "repair_value"]


def repair_text(text: str) -> str:
    """`text` itself, or a copy with surrogate pairs joined and each lone surrogate as one U+FFFD.

    A `str` may hold surrogates (from `os.fsdecode`, or from JSON cut inside an escape); one of them
    in a history makes every later request fail to encode, so text is repaired once, where it enters.
    """
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def repair_value(value: Any) -> Any:
    """A JSON value with every text in it repaired. Only worth its copy after encoding has failed."""
    if isinstance(value, str):
        return repair_text(value)
    if isinstance(value, Mapping):
        return {repair_value(key): repair_value(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [repair_value(item) for item in value]
    return value
