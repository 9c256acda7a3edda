"""`shape_messages`: the same shaping for a plain list of OpenAI-format dicts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from agentkit_fast._core import shape_list
from agentkit_fast.messages import ToolDef
from agentkit_fast.protocols import RunnerProfile, TokenCounter
from agentkit_fast.shaping.history import count_of, schema_json
from agentkit_fast.shaping.policy import ShapePolicy, core_options

__all__ = ["shape_messages"]


def shape_messages(
    messages: Iterable[dict[str, Any]],
    *,
    budget: int,
    tools: Sequence[ToolDef | dict[str, Any]] = (),
    counter: TokenCounter | None = None,
    policy: ShapePolicy | None = None,
) -> list[dict[str, Any]]:
    """The messages that go into a window of `budget` tokens (`tools` included): valid, and as stable as can be.

    For hosts with a message list of their own: no store, no model. What does not fit is shortened where
    `policy` says so (`lod_above`), then the oldest exchanges are left out behind one line. Decisions are taken
    again from the start of the list, so a list that grows keeps the prefix of its last window until the budget is
    crossed. `policy.budget_tokens` is not used; `budget` 0 or less repairs and leaves everything in.

    The input is never changed. A message that stays as it is comes back as the same dict, one that is shortened
    or repaired as a copy; keys we do not know survive. A result without its call becomes a user message that
    names it, a call without a result gets one that says so, texts of the assistant in a row become one message
    with the keys of both; arguments that are an object become its JSON text, and `function_call` becomes
    `tool_calls`. Messages that are ours (the line, the missing result, the late one) have no other keys.

    Raises `ContextOverflow` when system message, tools and newest user message alone are larger than the budget;
    `TypeError` or `ValueError` naming the place when a message is no dict, has no role, or a content or calls of
    a kind there is not.
    """
    chosen = msgspec.structs.replace(policy or ShapePolicy(), budget_tokens=budget)
    options = core_options(chosen, RunnerProfile(), carry_reasoning=False)
    given = messages if isinstance(messages, list) else list(messages)
    shaped: list[dict[str, Any]] = shape_list(given, options, schema_json(tools), count_of(counter))
    return shaped
