"""Runners: what talks to a model. Names are loaded when first used; no partner is imported before."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agentkit_fast.runners.http import HttpRunner, Provider, RetryEvent, relay, to_sse
    from agentkit_fast.runners.local import LocalRunner
    from agentkit_fast.runners.recording import RecordingRunner, ReplayRunner
    from agentkit_fast.runners.scripted import ScriptedRunner

_HOMES: dict[str, str] = {
    "HttpRunner": "http",
    "LocalRunner": "local",
    "Provider": "http",
    "RecordingRunner": "recording",
    "ReplayRunner": "recording",
    "RetryEvent": "http",
    "ScriptedRunner": "scripted",
    "relay": "http",
    "to_sse": "http",
}

__all__ = [
    "HttpRunner",
    "LocalRunner",
    "Provider",
    "RecordingRunner",
    "ReplayRunner",
    "RetryEvent",
    "ScriptedRunner",
    "relay",
    "to_sse",
]


def __getattr__(name: str) -> Any:
    module = _HOMES.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{module}"), name)
    globals()[name] = value
    return value
