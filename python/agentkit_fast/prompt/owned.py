"""Strings that know which of their characters are a template's own, and long ones that grow."""

from __future__ import annotations

import re
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Self, SupportsIndex

from agentkit_fast._unicode import repair_text

__all__ = ["Owned", "Owners", "Spans", "Text", "concat", "plain", "repaired"]

Spans = tuple[tuple[int, int], ...]
"""Ascending, disjoint, non-touching character ranges that the template owns."""


class Owned(str):
    """A string some ranges of which are the template's own. Made from a plain string it owns nothing."""

    __slots__ = ("spans",)
    spans: Spans

    def __new__(cls, text: object = "", spans: Spans = ()) -> Self:
        made = super().__new__(cls, text)
        made.spans = spans
        return made

    @classmethod
    def whole(cls, text: str) -> Owned:
        """`text`, all of it the template's."""
        return cls(text, ((0, len(text)),) if text else ())

    def __str__(self) -> str:
        return self

    def __add__(self, other: str, /) -> Owned:
        return concat((self, other)) if isinstance(other, str) else NotImplemented

    def __radd__(self, other: str, /) -> Owned:
        return concat((other, self)) if isinstance(other, str) else NotImplemented

    def __mul__(self, times: SupportsIndex, /) -> Owned:
        return concat([self] * times.__index__())

    __rmul__ = __mul__

    def __iter__(self) -> Iterator[Owned]:
        return (self[index] for index in range(len(self)))

    def __mod__(self, values: Any, /) -> str:
        specs = list(_PERCENT.finditer(self))
        given = iter(values if isinstance(values, tuple) else (values,))
        formatted = str.__mod__(self, values)
        if isinstance(values, Mapping) or any("*" in spec.group() or "(" in spec.group() for spec in specs):
            return formatted
        pieces: list[str] = []
        at = 0
        for spec in specs:
            pieces.append(self[at : spec.start()])
            at = spec.end()
            if spec.group() == "%%":
                pieces.append(self[at - 1 : at])
            elif spec.group() == "%s":
                pieces.append(str(next(given)))
            else:
                pieces.append(str.__mod__(spec.group(), (next(given),)))
        return concat([*pieces, self[at:]])

    def __getitem__(self, key: SupportsIndex | slice[Any, Any, Any], /) -> Owned:
        text = str.__getitem__(self, key)
        if isinstance(key, slice):
            start, stop, step = key.indices(len(self))
            if step != 1:
                return Owned(text)
        else:
            start = key.__index__()
            start += len(self) if start < 0 else 0
            stop = start + 1
        cut = tuple(
            (max(a, start) - start, min(b, stop) - start) for a, b in self.spans if a < stop and b > start
        )
        return Owned(text, cut)

    def strip(self, chars: str | None = None, /) -> Owned:
        return self.lstrip(chars).rstrip(chars)

    def lstrip(self, chars: str | None = None, /) -> Owned:
        return self[len(self) - len(str.lstrip(self, chars)) :]

    def rstrip(self, chars: str | None = None, /) -> Owned:
        return self[: len(str.rstrip(self, chars))]

    def _same_length(self, text: str) -> Owned:
        return Owned(text, self.spans if len(text) == len(self) else ())

    def upper(self) -> Owned:
        return self._same_length(str.upper(self))

    def lower(self) -> Owned:
        return self._same_length(str.lower(self))

    def title(self) -> Owned:
        return self._same_length(str.title(self))

    def capitalize(self) -> Owned:
        return self._same_length(str.capitalize(self))

    # What cuts a string up gives parts of it, each with its owner.

    def removeprefix(self, prefix: str, /) -> Owned:
        return self[len(prefix) :] if self.startswith(prefix) else self

    def removesuffix(self, suffix: str, /) -> Owned:
        return self[: len(self) - len(suffix)] if suffix and self.endswith(suffix) else self

    def partition(self, sep: str, /) -> tuple[Owned, Owned, Owned]:
        before, found, _ = str.partition(self, sep)
        start, stop = len(before), len(before) + len(found)
        return self[:start], self[start:stop], self[stop:]

    def rpartition(self, sep: str, /) -> tuple[Owned, Owned, Owned]:
        before, found, _ = str.rpartition(self, sep)
        start, stop = len(before), len(before) + len(found)
        return self[:start], self[start:stop], self[stop:]

    def split(self, sep: str | None = None, maxsplit: SupportsIndex = -1) -> list[str]:
        return self._pieces(str.split(self, sep, maxsplit), sep)

    def rsplit(self, sep: str | None = None, maxsplit: SupportsIndex = -1) -> list[str]:
        return self._pieces(str.rsplit(self, sep, maxsplit), sep)

    def splitlines(self, keepends: bool = False) -> list[str]:
        lines = self._pieces(str.splitlines(self, keepends=True), "")
        return lines if keepends else [line[: len(str.splitlines(line)[0])] for line in lines]

    def _pieces(self, texts: list[str], sep: str | None) -> list[str]:
        pieces: list[str] = []
        at = 0
        for text in texts:
            if sep is None:  # only blanks lie between, and a piece does not begin with one
                at = self.index(text, at)
            pieces.append(self[at : at + len(text)])
            at += len(text) + len(sep or "")
        return pieces

    def replace(self, old: str, new: str, count: SupportsIndex = -1, /) -> Owned:
        if not old:
            return Owned(str.replace(self, old, new, count))
        left = count.__index__()
        pieces: list[str] = []
        at = 0
        while left and (place := self.find(old, at)) >= 0:
            stop = place + len(old)
            # What stands in for text of the messages is theirs: they chose that it is there.
            own = any(a <= place and stop <= b for a, b in self.spans)
            pieces += (self[at:place], new if own else plain(new))
            at = stop
            left -= 1
        return concat([*pieces, self[at:]])

    def join(self, pieces: Iterable[str], /) -> Owned:
        found: list[str] = []
        for piece in pieces:
            if found:
                found.append(self)
            found.append(piece)
        return concat(found)


def concat(pieces: Iterable[str]) -> Owned:
    """The pieces in one string, each owner kept."""
    texts: list[str] = []
    spans: list[tuple[int, int]] = []
    at = 0
    for piece in pieces:
        texts.append(piece)
        if type(piece) is Owned:
            for a, b in piece.spans:
                if spans and spans[-1][1] == at + a:
                    spans[-1] = (spans[-1][0], at + b)
                else:
                    spans.append((at + a, at + b))
        at += len(piece)
    return Owned("".join(texts), tuple(spans))


# A placeholder of `%` formatting.
_PERCENT = re.compile(r"%(?:\([^)]*\))?[-#0 +]*(?:\d+|\*)?(?:\.(?:\d+|\*))?[hlL]?(.)", re.DOTALL)


def plain(text: str) -> str:
    """`text` without owners."""
    return str.__getitem__(text, slice(None))


_SURROGATES = re.compile("[\ud800-\udbff][\udc00-\udfff]|[\ud800-\udfff]")


def repaired(text: Owned) -> tuple[Owned, list[int]]:
    """Without surrogates, which a template can write or bring out of a call's JSON arguments.

    And where it became shorter: the places in `text` of pairs that are one character now.
    """
    if repair_text(text) is text:
        return text, []
    pieces: list[str] = []
    pairs: list[int] = []
    at = 0
    for found in _SURROGATES.finditer(text):
        pieces += (text[at : found.start()], repair_text(found.group()))
        at = found.end()
        if len(found.group()) == 2:
            pairs.append(found.start())
    return concat([*pieces, text[at:]]), pairs


class Text:
    """A string that grows at its end: what was there before is not copied each time."""

    __slots__ = ("_base", "_end", "_tail")

    def __init__(self, text: str) -> None:
        self._base = text
        self._end = len(text)
        self._tail = ""

    def __len__(self) -> int:
        return self._end + len(self._tail)

    def __str__(self) -> str:
        return self._base[: self._end] + self._tail

    def cut(self, start: int, stop: int) -> str:
        end = self._end
        if start >= end:
            return self._tail[start - end : stop - end]
        return self._base[start:stop] if stop <= end else self._base[start:end] + self._tail[: stop - end]

    def grown(self, stop: int, more: str) -> Text:
        """The first `stop` characters and `more`."""
        made = Text.__new__(Text)
        made._base = self._base
        made._end = min(stop, self._end)
        made._tail = self._tail[: stop - made._end] + more
        if len(made._tail) > max(_JOINED, made._end // 8):
            made.__init__(str(made))  # type: ignore[misc] # the same text in one piece
        return made


_JOINED = 1 << 14


class Owners:
    """`Spans` of a long text: where the template's ranges begin and end."""

    __slots__ = ("starts", "stops")

    def __init__(self, starts: Iterable[int], stops: Iterable[int]) -> None:
        self.starts = array("q", starts)
        self.stops = array("q", stops)

    @classmethod
    def of(cls, spans: Spans) -> Owners:
        return cls((a for a, _ in spans), (b for _, b in spans))

    def __len__(self) -> int:
        return len(self.starts)

    def within(self, start: int, stop: int) -> Spans:
        """Those between two places, counted from the first."""
        first = bisect_right(self.stops, start)
        last = bisect_left(self.starts, stop)
        pairs = zip(self.starts[first:last], self.stops[first:last], strict=True)
        return tuple((max(a, start) - start, min(b, stop) - start) for a, b in pairs)

    def grown(self, stop: int, more: Spans) -> Owners:
        """Those before `stop`, and `more` counted from there."""
        count = bisect_left(self.starts, stop)
        made = Owners(self.starts[:count], self.stops[:count])
        if count:
            made.stops[-1] = min(made.stops[-1], stop)
        for a, b in more:
            if len(made.stops) and made.stops[-1] == stop + a:
                made.stops[-1] = stop + b
            else:
                made.starts.append(stop + a)
                made.stops.append(stop + b)
        return made
