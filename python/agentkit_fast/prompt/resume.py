"""Renderings that go on from an earlier one.

While a template runs, a `Recorder` notes for every round of a prepared loop (`prompt/loops.py`) where its
output begins and everything the round looked at besides its own message: other messages, the end of the
list, a namespace's values. The next rendering, of a longer conversation, takes the output of all
rounds for which these are the same, sets the namespaces to what they were then, and goes on.

What is read is noted where it is read, so nothing has to be guessed from the template's text. Where a
round looks at something that cannot be noted, or that has changed, it and all after it are rendered anew.
"""

from __future__ import annotations

import operator
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from jinja2.environment import Environment
from jinja2.runtime import Context, LoopContext, Macro, Undefined
from jinja2.utils import pass_context, pass_environment

from agentkit_fast.prompt.loops import RECORDER, Loop
from agentkit_fast.prompt.owned import Owned, Owners, Text, concat, plain, repaired
from agentkit_fast.prompt.watched import (
    MISSING,
    Key,
    LoopView,
    Messages,
    Space,
    WireMessage,
    values_of,
    watch,
    watched_by,
)

__all__ = [
    "Messages",
    "Past",
    "Recorder",
    "Rendering",
    "Space",
    "WireMessage",
    "compare_index",
    "enter_loop",
]


class Past(NamedTuple):
    """What one loop did. The lists have one item a round."""

    lead: int  # messages before the loop's first
    stable: bool  # all it depended on could be noted
    values: list[Any]  # of the names its body may read
    reads: dict[Key, tuple[int, Any]]  # from outside: the round that read it first, what it found
    compared: dict[Key, tuple[int, int]]  # numbers that were only compared with the index
    reach: array[int]  # the last message looked at so far; rounds that were finished
    written: list[dict[Key, Any]]  # namespaces' values written before this round
    starts: array[int]  # where in the text a round begins, and at last where the loop ends


class Rendering(NamedTuple):
    """A prompt's text, which of it is the template's, and how the loops came by it.

    The first `shared` characters, owners included, are those of the rendering it went on from; `reused`
    characters were not rendered anew.
    """

    text: Text
    owners: Owners
    loops: dict[int, Past]
    messages: int
    shared: int = 0
    reused: int = 0

    def cut(self, start: int, stop: int) -> Owned:
        return Owned(self.text.cut(start, stop), self.owners.within(start, stop))


class _Noted(NamedTuple):
    """Stands for a value that is watched instead of compared: messages after so many, a namespace's first name."""

    kind: str
    number: int


class Recorder:
    """One rendering while it runs. `common`: how many messages are those of `kept`, from the first on."""

    def __init__(
        self,
        loops: Sequence[Loop],
        pure: frozenset[int],
        kept: Rendering | None,
        common: int,
        count: int,
    ) -> None:
        self.plans = loops
        self.pure = pure
        self.kept = kept
        self.common = common
        self.count = count
        self.active: _Run | None = None
        self.runs: dict[int, _Run] = {}
        self.pieces: list[str | slice] = []
        self.at = 0

    def add(self, piece: str) -> None:
        self.pieces.append(piece)
        self.at += len(piece)

    def keep(self, start: int, stop: int) -> None:
        if start < stop:
            self.pieces.append(slice(start, stop))
            self.at += stop - start

    def finish(self) -> Rendering:
        """The whole text, of what was kept and what was added."""
        loops = {number: run.past() for number, run in self.runs.items()}
        kept = self.kept
        pieces = self.pieces
        first = next((at for at, piece in enumerate(pieces) if isinstance(piece, slice)), None)
        if kept is None or first is None:
            return self._whole(concat(piece for piece in pieces if isinstance(piece, str)), loops, 0)
        ranges = [piece for piece in pieces if isinstance(piece, slice)]
        reused = sum(piece.stop - piece.start for piece in ranges)
        head = concat(piece for piece in pieces[:first] if isinstance(piece, str))
        before = kept.cut(0, ranges[0].start)
        shared = ranges[0].stop if before == head and before.spans == head.spans else 0
        rest = pieces[first + 1 :] if shared else pieces
        tail = concat(
            piece if isinstance(piece, str) else kept.cut(piece.start, piece.stop) for piece in rest
        )
        if not shared or repaired(tail)[0] is not tail:
            return self._whole(concat((kept.cut(0, shared), tail)), loops, reused)
        return Rendering(
            kept.text.grown(shared, plain(tail)),
            kept.owners.grown(shared, tail.spans),
            loops,
            self.count,
            shared,
            reused,
        )

    def _whole(self, text: Owned, loops: dict[int, Past], reused: int) -> Rendering:
        text, pairs = repaired(before := text)
        if text is not before:
            # What became of half a pair depends on what came next: nothing to go on from.
            for number, past in loops.items():
                starts = array("q", (at - bisect_left(pairs, at) for at in past.starts))
                loops[number] = past._replace(stable=False, starts=starts)
        return Rendering(Text(plain(text)), Owners.of(text.spans), loops, self.count, 0, reused)


# --- values that stay what they are


def _is_settled(value: Any, macros: frozenset[str], pure: frozenset[int], room: list[int]) -> bool:
    """Whether nothing a template does can change `value`, and `_same` can compare it."""
    kind = type(value)
    if kind in _SCALARS or kind is WireMessage:
        return True
    if kind is Macro:
        return value.name in macros
    if kind is list or kind is tuple or kind is dict:
        items = value.values() if kind is dict else value
        if all(type(item) is WireMessage for item in items):
            return True
        room[0] -= len(value)
        return room[0] >= 0 and all(_is_settled(item, macros, pure, room) for item in items)
    return id(value) in pure


_SCALARS = frozenset({str, Owned, int, bool, float, type(None), Undefined})
_COMPARABLE = frozenset({str, int, bool, type(None), _Noted})


def _same(left: Any, right: Any) -> bool:
    """Whether a template would see the same: types, owners and the order of keys included."""
    if left is right:
        return True
    kind = type(left)
    if kind is not type(right):
        return False
    if kind is Owned:
        return bool(left == right) and left.spans == right.spans
    if kind is float:
        return repr(left) == repr(right)
    if kind is list or kind is tuple:
        return len(left) == len(right) and all(map(_same, left, right))
    if kind is dict or kind is WireMessage:
        return (
            len(left) == len(right)
            and all(map(_same, left, right))
            and all(map(_same, left.values(), right.values()))
        )
    if kind is Macro:
        return left._func.__code__ is right._func.__code__
    return kind is Undefined or (kind in _COMPARABLE and bool(left == right))


class _Run:
    """One loop in one rendering."""

    def __init__(
        self, recorder: Recorder, number: int, items: Messages, *, values: list[Any], compared: list[Any]
    ) -> None:
        self.recorder = recorder
        self.number = number
        self.lead = items._lead
        self.items = items
        self.size = list.__len__(items)
        self.compared_values = compared
        self.first_compared = len(values)
        plan = recorder.plans[number]
        self.macros = plan.macros
        self.spaces: dict[int, Space] = {}
        self.stable = True
        self.values = [self._noted(place, value) for place, value in enumerate(values)]
        self.index = self.first = 0
        self.farthest = -1
        self.reads: dict[Key, tuple[int, Any]] = {}
        self.compared: dict[Key, tuple[int, int]] = {}
        self.reach: array[int] = array("q")
        self.written: dict[Key, Any] = {}
        self.states: list[dict[Key, Any]] = []
        self.starts: array[int] = array("q")
        kept = recorder.kept
        past = kept.loops.get(number) if kept is not None else None
        if past is not None and self.stable and past.stable:
            self._go_on(past, recorder.common == recorder.count == (kept.messages if kept else -1))
        for place, space in self.spaces.items():
            watch(space, (self, place))
        recorder.runs[number] = self
        recorder.active = self

    def _noted(self, place: int, value: Any) -> Any:
        """What has to be the same for an earlier round to hold."""
        if type(value) is Messages:
            return _Noted("messages", value._lead)
        if type(value) is Space:
            same = next((known for known, space in self.spaces.items() if space is value), place)
            if same == place:
                self.spaces[place] = value
            return _Noted("space", same)
        self._check(value)
        return value

    def _check(self, value: Any) -> None:
        if not _is_settled(value, self.macros, self.recorder.pure, [4096]):
            self.stable = False

    def _now(self, key: Key) -> Any:
        place, name = key
        if name is None:
            return self.compared_values[place - self.first_compared]
        return values_of(self.spaces[place]).get(name, MISSING)

    def _go_on(self, past: Past, unchanged: bool) -> None:
        """Take over the rounds that would come out as they did."""
        if past.lead != self.lead or not _same(past.values, self.values):
            return
        rounds = len(past.reach)
        if not unchanged:
            rounds = bisect_right(past.reach, self.recorder.common - 1)
        rounds = min(rounds, self.size - 1)
        for key, (first, value) in past.reads.items():
            if first < rounds and not _same(value, self._now(key)):
                rounds = first
        for key, (first, number) in past.compared.items():
            now = self._now(key)
            if first < rounds and not _same(number, now):
                # Below both numbers every comparison comes out the same.
                rounds = min(rounds, max(first, min(number, now) - 1 if type(now) is int else 0))
        if rounds <= 0:
            return
        self.first = rounds
        self.reach = past.reach[:rounds]
        self.farthest = self.reach[-1]
        self.written = past.written[rounds]
        self.states = past.written[:rounds]
        self.reads = {key: found for key, found in past.reads.items() if found[0] < rounds}
        self.compared = {
            key: (first, self._now(key)) for key, (first, _) in past.compared.items() if first < rounds
        }
        for (place, name), value in self.written.items():
            values_of(self.spaces[place])[str(name)] = value
        start, stop = past.starts[0], past.starts[rounds]
        moved = self.recorder.at - start
        self.starts = past.starts[:rounds]
        if moved:
            self.starts = array("q", (at + moved for at in self.starts))
        self.recorder.keep(start, stop)

    def __iter__(self) -> Iterator[tuple[Any, LoopView]]:
        items = self.items
        view = LoopView(self, items)
        try:
            for index in range(self.first, self.size):
                self._begin(index)
                yield list.__getitem__(items, index), view
                self.reach.append(self.farthest)
            self.states.append(self.written)
        finally:
            self.leave()

    def _begin(self, index: int) -> None:
        self.index = index
        self.states.append(self.written)
        self.starts.append(self.recorder.at)
        self.look(self.lead + index)

    def leave(self) -> None:
        self.starts.append(self.recorder.at)
        for space in self.spaces.values():
            watch(space, None)
        if self.recorder.active is self:
            self.recorder.active = None

    def past(self) -> Past:
        return Past(
            self.lead,
            self.stable,
            self.values,
            self.reads,
            self.compared,
            self.reach,
            self.states,
            self.starts,
        )

    # --- what a round looks at

    def look(self, message: int) -> None:
        self.farthest = max(self.farthest, message)

    def read(self, key: Key, value: Any) -> None:
        if key not in self.written and key not in self.reads:
            if value is not MISSING:
                self._check(value)
            self.reads[key] = (self.index, value)

    def write(self, key: Key, value: Any) -> None:
        self._check(value)
        self.written = {**self.written, key: value}

    def compare(self, key: Key, value: Any) -> None:
        if type(value) is not int or key in self.reads:
            self.read(key, value)
        elif key not in self.written and key not in self.compared:
            self.compared[key] = (self.index, value)


@pass_context
def enter_loop(
    context: Context, items: Any, number: int, values: list[Any], compared: list[Any]
) -> Iterator[tuple[Any, Any]]:
    """The filter every prepared loop takes its items through."""
    recorder = context.resolve_or_missing(RECORDER)
    if type(items) is not Messages or recorder.active is not None:
        return LoopContext(items, context.environment.undefined)
    return iter(_Run(recorder, number, items, values=values, compared=compared))


_COMPARED: dict[str, Callable[[Any, Any], Any]] = {
    "eq": operator.eq,
    "ne": operator.ne,
    "gt": operator.gt,
    "gteq": operator.ge,
    "lt": operator.lt,
    "lteq": operator.le,
}


@pass_environment
def compare_index(
    environment: Environment, loop: Any, pattern: tuple[str, str, str, str | None], value: Any
) -> Any:
    """`loop.index0 > value`, or a namespace's attribute in its place: only the outcome is noted."""
    which, op, name, attribute = pattern
    index = environment.getattr(loop, which)
    run = loop._run if type(loop) is LoopView and isinstance(loop._run, _Run) else None
    if attribute is not None:
        known = watched_by(value) if type(value) is Space else None
        if known is not None and known[0] is run and attribute in values_of(value):
            found = values_of(value)[attribute]
            run.compare((known[1], attribute), found)
        else:
            found = environment.getattr(value, attribute)
        value = found
    elif run is not None:
        plan = run.recorder.plans[run.number]
        if name in plan.compared:
            run.compare((run.first_compared + plan.compared.index(name), None), value)
    return _COMPARED[op](index, value)
