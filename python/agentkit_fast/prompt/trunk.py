"""A prompt that was made, as the next one of the same conversation goes on from it."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from typing import Any, NamedTuple

from agentkit_fast.prompt.growing import Beginning, GrowingIds
from agentkit_fast.prompt.resume import Past, Rendering

__all__ = ["Marks", "Request", "Trunk", "alike", "main_loop", "starts_before"]


class Marks(NamedTuple):
    """After each control token: how many characters and how many ids there are up to there."""

    chars: array[int]
    ids: array[int]


class Request(NamedTuple):
    """The messages, as templates see them, and variables of one rendering."""

    wire: Beginning
    tools: list[Any]
    variables: dict[str, Any]


class Trunk:
    """A prompt that was made: what the next one of the same conversation begins with."""

    __slots__ = ("given", "ids", "marks", "rendering", "starts", "starts_kept", "wire")

    def __init__(
        self, given: Beginning, wire: Beginning, rendering: Rendering, ids: GrowingIds, marks: Marks
    ) -> None:
        self.given = given  # the messages as they were then
        self.wire = wire
        self.rendering = rendering
        self.ids = ids
        self.marks = marks
        self.starts: list[int] | None = None
        self.starts_kept: list[int] = []  # those that an earlier prompt had worked out


def _written(loop: Past) -> int:
    return loop.starts[-1] - loop.starts[0]


def main_loop(rendering: Rendering) -> Past | None:
    """The loop that writes the messages: of several the one that writes most."""
    loop = max(rendering.loops.values(), key=_written, default=None)
    return loop if loop is not None and _written(loop) else None


def starts_before(old: Trunk, new: Rendering, cut: int) -> list[int]:
    """Of the messages' starts that `old` has worked out those that hold: up to the character `cut`."""
    before, loop = main_loop(old.rendering), main_loop(new)
    if before is None or loop is None or before.lead != loop.lead or old.starts is None:
        return []
    known = bisect_right(before.starts, cut)
    return old.starts[: loop.lead + known] if loop.starts[:known] == before.starts[:known] else []


def alike(left: Rendering, right: Rendering) -> int:
    """How many characters two renderings have in common from the beginning, owners included."""
    one, other = str(left.text), str(right.text)
    low, high = 0, min(len(one), len(other))
    if one[:high] != other[:high]:
        while low < high:
            middle = (low + high + 1) // 2
            if one[low:middle] == other[low:middle]:
                low = middle
            else:
                high = middle - 1
    a, b = left.owners, right.owners
    both = min(len(a), len(b))
    if a.starts[:both] != b.starts[:both] or a.stops[:both] != b.stops[:both]:
        both = next(n for n in range(both) if (a.starts[n], a.stops[n]) != (b.starts[n], b.stops[n]))
        if a.starts[both] == b.starts[both]:
            return min(high, a.stops[both], b.stops[both])
    return min([high, *a.starts[both : both + 1], *b.starts[both : both + 1]])
