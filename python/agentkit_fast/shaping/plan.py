"""What a store keeps of a session's shaping: the decisions, and what the windows were built with."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

import msgspec

from agentkit_fast._unicode import repair_text
from agentkit_fast.protocols import RunnerProfile
from agentkit_fast.shaping.policy import ShapePolicy

__all__ = ["PLAN_VERSION", "Plan", "Setup", "recorded", "setup_of"]

PLAN_VERSION = 1


class Setup(msgspec.Struct, frozen=True, omit_defaults=True):
    """What windows are built with beside the policy.

    `tools` are the schemas as wire JSON, `counter` names the counter's class, `vocabulary` its file, `endpoint` the
    server that counted and `endpoint_model` the model asked for there. `profile` is what the windows were told
    of the model, as far as it is not usual.
    """

    system: str = ""
    tools: str = ""
    counter: str = ""
    vocabulary: str = ""
    endpoint: str = ""
    endpoint_model: str = ""
    profile: dict[str, bool | int] = {}

    def runner_profile(self) -> RunnerProfile:
        """The profile the windows were built for."""
        return RunnerProfile(**{name: value for name, value in self.profile.items() if name in _SHAPING})  # type: ignore[arg-type]


# What a profile says that shapes a window (`core_options`).
_SHAPING = ("alternate", "image_tokens", "reasoning", "safe_prompts", "system_role")
_USUAL = RunnerProfile()


class Plan(msgspec.Struct):
    """The decisions of a session's last restructure under one policy (its JSON), and the setup."""

    version: int
    policy: str
    runs: list[tuple[int, bool, str, int]]
    silent: bool
    hidden: int
    degraded: str
    setup: Setup = Setup()


def setup_of(system: str, schemas: str, counter: Any, profile: RunnerProfile = _USUAL) -> Setup:
    """The setup of a window."""
    path, root = getattr(counter, "path", ""), getattr(counter, "root", "")
    found = {name: getattr(profile, name) for name in _SHAPING}
    return Setup(
        system=repair_text(system),
        tools=schemas,
        counter=type(counter).__name__,
        vocabulary=path if isinstance(path, str) else "",
        endpoint=_without_secrets(root) if isinstance(root, str) else "",
        endpoint_model=str(getattr(counter, "model", "")) if root else "",
        profile={name: value for name, value in found.items() if value != getattr(_USUAL, name)},
    )


def _without_secrets(url: str) -> str:
    """An address without the user and password that may stand in it."""
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


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
