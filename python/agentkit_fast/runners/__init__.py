"""Runners: what talks to a model. Names are loaded when first used; no partner is imported before."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agentkit_fast.runners.recording import RecordingRunner, ReplayRunner
    from agentkit_fast.runners.scripted import ScriptedRunner

_HOMES: dict[str, str] = {
    "RecordingRunner": "recording",
    "ReplayRunner": "recording",
    "ScriptedRunner": "scripted",
}

__all__ = ["RecordingRunner", "ReplayRunner", "ScriptedRunner"]


def __getattr__(name: str) -> Any:
    module = _HOMES.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{module}"), name)
    globals()[name] = value
    return value
