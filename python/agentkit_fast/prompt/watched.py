"""What templates get to see, and tell of: namespaces, the messages, `loop`.

Each tells the loop that runs (`Watcher`) what is read of it, and is otherwise what Jinja would give.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import Any, Protocol, SupportsIndex

from jinja2.runtime import Undefined
from jinja2.utils import Namespace

__all__ = [
    "END",
    "MISSING",
    "Key",
    "LoopView",
    "Messages",
    "Space",
    "Watcher",
    "WireMessage",
    "values_of",
    "watch",
    "watched_by",
]

END = sys.maxsize
"""Stands for the message behind the last one: whoever looks there knows how many there are."""
MISSING = object()

Key = tuple[int, str | None]
"""A value a loop found: of which name (by number), and of which attribute where the name is a namespace's."""


class Watcher(Protocol):
    """A loop that runs."""

    index: int
    lead: int
    stable: bool

    def look(self, message: int) -> None:
        """A message was looked at, counted from the conversation's first."""

    def read(self, key: Key, value: Any) -> None:
        """A namespace's value was read; `MISSING` where there is none."""

    def write(self, key: Key, value: Any) -> None:
        """A namespace's value is set."""


class Watched(Protocol):
    """The rendering in which a loop may run."""

    @property
    def active(self) -> Watcher | None: ...


class WireMessage(dict[str, Any]):
    """A message, or a tool, as templates see it. Nothing changes it once it is made."""

    __slots__ = ()


class Space(Namespace):
    """Jinja's `namespace`, which tells the loop that runs what is read and written."""

    def __init__(*args: Any, **values: Any) -> None:
        Namespace.__init__(*args, **values)
        object.__setattr__(args[0], "_Space__watch", None)

    def __getattribute__(self, name: str) -> Any:
        if name in _INNER:
            return object.__getattribute__(self, name)
        values = object.__getattribute__(self, "_Namespace__attrs")
        watch = object.__getattribute__(self, "_Space__watch")
        if watch is not None:
            run, number = watch
            run.read((number, name), values.get(name, MISSING))
        try:
            return values[name]
        except KeyError:
            raise AttributeError(name) from None

    def __setitem__(self, name: str, value: Any) -> None:
        watch = object.__getattribute__(self, "_Space__watch")
        if watch is not None:
            run, number = watch
            run.write((number, name), value)
        object.__getattribute__(self, "_Namespace__attrs")[name] = value

    def __repr__(self) -> str:
        watch = object.__getattribute__(self, "_Space__watch")
        if watch is not None:
            watch[0].stable = False
        return super().__repr__()


_INNER = frozenset({"_Namespace__attrs", "__class__"})


def values_of(space: Space) -> dict[str, Any]:
    values: dict[str, Any] = object.__getattribute__(space, "_Namespace__attrs")
    return values


class Messages(list[Any]):
    """The messages, or all but the first few: a list that tells the loop that runs how far it is read."""

    __slots__ = ("_lead", "_recorder")

    def __init__(self, items: Sequence[Any], lead: int, recorder: Watched, size: int | None = None) -> None:
        super().__init__(items)
        if size is not None:
            del self[size:]
        self._lead = lead
        self._recorder = recorder

    def _note(self, index: int = END) -> None:
        run = self._recorder.active
        if run is not None:
            run.look(END if index == END else self._lead + index)

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, slice):
            self._note()
            found = list.__getitem__(self, key)
            start = 0 if key.start is None else key.start
            if key.step in (None, 1) and key.stop is None and start >= 0:
                return Messages(found, self._lead + min(start, list.__len__(self)), self._recorder)
            return found
        index = key.__index__()
        self._note(index if 0 <= index < list.__len__(self) else END)
        return list.__getitem__(self, index)

    def __len__(self) -> int:
        self._note()
        return list.__len__(self)

    def __bool__(self) -> bool:
        there = list.__len__(self) > 0
        self._note(0 if there else END)
        return there

    def __iter__(self) -> Iterator[Any]:
        every: Iterator[Any] = list.__iter__(self)
        return every if self._recorder.active is None else self._walk()

    def _walk(self) -> Iterator[Any]:
        for index, item in enumerate(list.__iter__(self)):
            self._note(index)
            yield item
        self._note()

    # All else looks at the whole list.

    def _whole(self) -> list[Any]:
        self._note()
        return list(list.__iter__(self))

    def __reversed__(self) -> Iterator[Any]:
        return iter(self._whole()[::-1])

    def __contains__(self, item: object) -> bool:
        return item in self._whole()

    def __add__(self, other: Any) -> Any:
        return self._whole() + other

    def __radd__(self, other: Any) -> Any:
        return other + self._whole()

    def __mul__(self, times: SupportsIndex) -> list[Any]:
        return self._whole() * times

    __rmul__ = __mul__

    def __eq__(self, other: object) -> bool:
        return self._whole() == (other._whole() if isinstance(other, Messages) else other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __lt__(self, other: Any) -> bool:
        return bool(self._whole() < other)

    def __le__(self, other: Any) -> bool:
        return bool(self._whole() <= other)

    def __gt__(self, other: Any) -> bool:
        return bool(self._whole() > other)

    def __ge__(self, other: Any) -> bool:
        return bool(self._whole() >= other)

    __hash__ = None

    def __repr__(self) -> str:
        return repr(self._whole())

    def copy(self) -> list[Any]:
        return self._whole()

    def index(self, *args: Any) -> int:
        return self._whole().index(*args)

    def count(self, item: Any) -> int:
        return self._whole().count(item)


class LoopView:
    """Jinja's `loop` in a loop that may have begun later than with its first message."""

    __slots__ = ("_items", "_last_changed", "_run")

    depth = 1
    depth0 = 0

    def __init__(self, run: Watcher, items: list[Any]) -> None:
        self._run = run
        self._items = items
        self._last_changed: Any = MISSING

    @property
    def index(self) -> int:
        return self._run.index + 1

    @property
    def index0(self) -> int:
        return self._run.index

    @property
    def first(self) -> bool:
        return self._run.index == 0

    def _has_next(self) -> bool:
        run = self._run
        there = run.index + 1 < list.__len__(self._items)
        run.look(run.lead + run.index + 1 if there else END)
        return there

    @property
    def last(self) -> bool:
        return not self._has_next()

    @property
    def previtem(self) -> Any:
        run = self._run
        if run.index == 0:
            return Undefined("there is no previous item")
        return list.__getitem__(self._items, run.index - 1)

    @property
    def nextitem(self) -> Any:
        if not self._has_next():
            return Undefined("there is no next item")
        return list.__getitem__(self._items, self._run.index + 1)

    @property
    def length(self) -> int:
        self._run.look(END)
        return list.__len__(self._items)

    def __len__(self) -> int:
        return self.length

    @property
    def revindex(self) -> int:
        return self.length - self.index0

    @property
    def revindex0(self) -> int:
        return self.length - self.index

    def cycle(self, *args: Any) -> Any:
        if not args:
            raise TypeError("no items for cycling given")
        return args[self.index0 % len(args)]

    def changed(self, *value: Any) -> bool:
        # Remembers the round before, also one that was not rendered this time.
        self._run.stable = False
        if self._last_changed != value:
            self._last_changed = value
            return True
        return False

    def __call__(self, *args: Any) -> Any:
        raise TypeError("The loop must have the 'recursive' marker to be called recursively.")

    def __repr__(self) -> str:
        return f"<LoopContext {self.index}/{self.length}>"


def watch(space: Space, watcher: tuple[Watcher, int] | None) -> None:
    """From now on `space` tells `watcher` what is read and written, under this number."""
    object.__setattr__(space, "_Space__watch", watcher)


def watched_by(space: Space) -> tuple[Watcher, int] | None:
    watcher: tuple[Watcher, int] | None = object.__getattribute__(space, "_Space__watch")
    return watcher
