"""Transclusion: the model writes `{OUTPUT}` or `{name}`, the user sees the tool's output in that place."""

from __future__ import annotations

from agentkit_fast import model_words
from agentkit_fast.text import capture_slots, expand_slots

__all__ = ["Slots"]


class Slots:
    """The slots of one turn. A later result replaces an earlier one of the same name."""

    def __init__(self) -> None:
        self._slots: dict[str, str] = {}

    def capture(self, result: str) -> None:
        """Learn from a raw tool result."""
        self._slots.update(capture_slots(result))

    def expand(self, reply: str) -> str:
        """The reply as the user sees it."""
        if not self._slots or "{" not in reply:
            return reply
        return expand_slots(reply, self._slots)

    @staticmethod
    def note() -> str:
        """What the system prompt says about them."""
        return model_words.slot_note()
