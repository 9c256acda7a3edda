"""What a host decides about its windows."""

from __future__ import annotations

from typing import Any

import msgspec

from agentkit_fast.protocols import RunnerProfile

__all__ = ["ShapePolicy", "core_options"]

_DEFAULT_HEADROOM = 10_000
_FORMATS = ("native", "heredoc")


class ShapePolicy(msgspec.Struct, frozen=True):
    """How windows are shaped. Sizes of texts are UTF-8 bytes, budgets are tokens.

    `budget_tokens`: no window is larger; 0 or less: unbudgeted, nothing is shortened or folded.
    `preserve_last_messages`, `preserve_last_tool_calls`: the tail kept verbatim, in user and assistant
    texts and in tool rounds; the first to run out ends it.
    `lod_above`: older entries larger than this become stubs that keep this many bytes; 0: only under
    pressure, then keeping 800.
    `headroom_tokens`: what a restructure leaves free below the budget. `None`: 10,000, or a quarter of
    the budget where that is less; negative: none; more than nine tenths of the budget count as nine tenths.
    `always_lod`: stubs in every build, under pressure or not.
    `preserve_first_messages`: user messages at the start that stay verbatim whatever is folded.
    `verbatim_tool_results`: control-token spellings are left as they are.
    `max_tool_result`: longer results are cut in the middle, in the view only; 0 or less: no limit.
    `summary_tokens`: room for a summary's answer; 0: a tenth of the target, at most 1,024.

    A negative count is taken for 0. Raises `ValueError` for an unknown `tool_format` and `TypeError` for a
    value that is no whole number.
    """

    budget_tokens: int = 0
    preserve_last_messages: int = 10
    preserve_last_tool_calls: int = 10
    lod_above: int = 0
    headroom_tokens: int | None = None
    always_lod: bool = False
    preserve_first_messages: int = 1
    verbatim_tool_results: bool = False
    tool_format: str = "native"
    max_tool_result: int = 0
    summary_tokens: int = 0

    def __post_init__(self) -> None:
        if self.tool_format not in _FORMATS:
            raise ValueError(f"tool_format is {self.tool_format!r}; it can be 'native' or 'heredoc'")
        for name in (
            "budget_tokens",
            "preserve_last_messages",
            "preserve_last_tool_calls",
            "lod_above",
            "preserve_first_messages",
            "max_tool_result",
            "summary_tokens",
        ):
            if not isinstance(getattr(self, name), int):
                raise TypeError(f"ShapePolicy.{name} must be a whole number, not {getattr(self, name)!r}")
        if self.headroom_tokens is not None and not isinstance(self.headroom_tokens, int):
            raise TypeError(
                f"ShapePolicy.headroom_tokens must be a whole number or None, not {self.headroom_tokens!r}"
            )

    @property
    def headroom(self) -> int:
        """What a restructure leaves free, in tokens."""
        budget = max(0, self.budget_tokens)
        if self.headroom_tokens is None:
            return min(_DEFAULT_HEADROOM, budget // 4)
        return min(max(0, self.headroom_tokens), budget * 9 // 10)

    @property
    def target(self) -> int:
        """What a restructure comes down to at most, in tokens."""
        return max(0, self.budget_tokens) - self.headroom


# Counts beyond this mean "all"; it keeps a host's 10**30 out of the core's machine words.
_MANY = 2**62


def _bounded(value: int) -> int:
    return min(max(0, value), _MANY)


def core_options(policy: ShapePolicy, profile: RunnerProfile, *, carry_reasoning: bool) -> dict[str, Any]:
    """The core's options for a policy and the model it is for."""
    return {
        "budget": _bounded(policy.budget_tokens),
        "headroom": _bounded(policy.headroom),
        "keep_messages": _bounded(policy.preserve_last_messages),
        "keep_calls": _bounded(policy.preserve_last_tool_calls),
        "keep_first": _bounded(policy.preserve_first_messages),
        "lod_above": _bounded(policy.lod_above),
        "always_lod": bool(policy.always_lod),
        "summary_tokens": _bounded(policy.summary_tokens),
        "max_tool_result": _bounded(policy.max_tool_result),
        "heredoc": policy.tool_format == "heredoc",
        "verbatim": bool(policy.verbatim_tool_results or profile.safe_prompts),
        "image_tokens": _bounded(profile.image_tokens),
        "reasoning": bool(carry_reasoning or profile.reasoning),
        "count_reasoning": bool(profile.reasoning),
        "alternate": bool(profile.alternate),
        "system_role": bool(profile.system_role),
    }
