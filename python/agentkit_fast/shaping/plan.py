"""What a store keeps of a session's shaping: the decisions, and what the windows were built with."""

from __future__ import annotations

from typing import Any

import msgspec

from agentkit_fast._unicode import repair_text
from agentkit_fast.shaping.policy import ShapePolicy

__all__ = ["PLAN_VERSION", "Plan", "Setup", "recorded", "setup_of"]

PLAN_VERSION = 1


class Setup(msgspec.Struct, frozen=True, omit_defaults=True):
    """What windows are built with beside the policy.

    `tools` are the schemas as wire JSON, `counter` names the counter's class, `vocabulary` its file.
    """

    system: str = ""
    tools: str = ""
    counter: str = ""
    vocabulary: str = ""


class Plan(msgspec.Struct):
    """The decisions of a session's last restructure under one policy (its JSON), and the setup."""

    version: int
    policy: str
    runs: list[tuple[int, bool, str, int]]
    silent: bool
    hidden: int
    degraded: str
    setup: Setup = Setup()


def setup_of(system: str, schemas: str, counter: Any) -> Setup:
    """The setup of a window."""
    path = getattr(counter, "path", "")
    return Setup(
        system=repair_text(system),
        tools=schemas,
        counter=type(counter).__name__,
        vocabulary=path if isinstance(path, str) else "",
    )


def recorded(raw: bytes | None) -> tuple[ShapePolicy, Setup] | None:
    """Policy and setup out of a stored plan; `None` where there is none that can be read."""
    if not raw:
        return None
    try:
        plan = msgspec.json.decode(raw, type=Plan)
        policy = msgspec.json.decode(plan.policy, type=ShapePolicy)
    except (msgspec.DecodeError, ValueError, TypeError):
        return None
    return policy, plan.setup
