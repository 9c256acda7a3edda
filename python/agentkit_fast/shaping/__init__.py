"""From a session's entries to the messages of a request: always valid, always within budget.

`Shaper` keeps a session's windows within its budget and its prompt cache alive; `shape_messages` does it
for a plain list of OpenAI-format dicts; `plain_window` shows everything.
"""

from __future__ import annotations

from agentkit_fast.shaping.lists import shape_messages
from agentkit_fast.shaping.plain import plain_window
from agentkit_fast.shaping.policy import ShapePolicy
from agentkit_fast.shaping.reading import read_entry_tool
from agentkit_fast.shaping.shaper import Shaper
from agentkit_fast.shaping.window import PlacedUnit, Window

__all__ = [
    "PlacedUnit",
    "ShapePolicy",
    "Shaper",
    "Window",
    "plain_window",
    "read_entry_tool",
    "shape_messages",
]
