"""Stores: where sessions live. Names are loaded when first used; no database is opened before."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agentkit_fast.stores.memory import MemoryStore
    from agentkit_fast.stores.sqlite import SQLiteStore

_HOMES: dict[str, str] = {
    "MemoryStore": "memory",
    "SQLiteStore": "sqlite",
}

__all__ = ["MemoryStore", "SQLiteStore"]


def __getattr__(name: str) -> Any:
    module = _HOMES.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{module}"), name)
    globals()[name] = value
    return value
