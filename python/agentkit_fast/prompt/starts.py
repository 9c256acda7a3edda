"""Where in a prompt's ids its messages begin."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable
from itertools import groupby
from typing import TYPE_CHECKING, Any, Protocol

from agentkit_fast.errors import RunnerError
from agentkit_fast.prompt.growing import Beginning, ids_in
from agentkit_fast.prompt.resume import Rendering
from agentkit_fast.prompt.trunk import Marks, Request, Trunk, alike, main_loop

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Ids = NDArray[np.int32]

__all__ = ["ENDLESS_GAP", "LONG_GAP", "Starts", "message_starts"]

# Between control tokens, in characters: where messages begin in a longer text, they are looked for together,
LONG_GAP = 1 << 10
# or, with a tokenizer that cannot do that, in a text longer than this, by the bytes of its ids.
ENDLESS_GAP = 1 << 16


class _Encoder(Protocol):
    @property
    def tokenizer(self) -> Any: ...
    def encode_text(self, text: str) -> Ids: ...
    def _render(self, request: Request) -> Rendering: ...
    def _ids(
        self, rendering: Rendering, old: Trunk | None, shared: int
    ) -> tuple[Marks, bytearray, int]: ...


def message_starts(encoder: _Encoder, request: Request, trunk: Trunk, ids: Ids) -> list[int]:
    """How many ids precede each message. Worked out once a prompt."""
    if trunk.starts is None:
        trunk.starts = Starts(encoder, request, trunk, ids).found()
    return list(trunk.starts)


class Starts:
    """One prompt, looked at for where its messages begin."""

    def __init__(
        self,
        encoder: _Encoder,
        request: Request,
        trunk: Trunk,
        ids: Ids,
        *,
        long_gap: int = LONG_GAP,
        endless_gap: int = ENDLESS_GAP,
    ) -> None:
        self.encoder = encoder
        self.request = request
        self.trunk = trunk
        self.marks = trunk.marks
        self.text = trunk.rendering.text
        self.ids = ids
        self.long_gap = long_gap
        self.endless_gap = endless_gap
        self.count_beginnings: Callable[[str, list[int]], list[int]] | None = getattr(
            encoder.tokenizer, "count_beginnings", None
        )
        self.ends: dict[int, Any] = {}

    def found(self) -> list[int]:
        loop = main_loop(self.trunk.rendering)
        count = self.request.wire.size
        starts: list[int] = []
        # Messages before the loop are part of the prompt's head, and so is whatever stands before
        # the first: a look at the prompt of the beginning alone tells where they end.
        heads = count if loop is None else min(count, max(1, loop.lead))
        for index in range(heads):
            starts.append(max(self.head_ids(index), starts[-1] if starts else 0))
        if loop is not None:
            starts += self.trunk.starts_kept[heads:]
            last = len(loop.starts) - 1
            places = [loop.starts[min(i - loop.lead, last)] for i in range(len(starts), count)]
            for before in self.ids_before(places):
                starts.append(max(before, starts[-1]))
            starts[:heads] = [min([start, *starts[heads : heads + 1]]) for start in starts[:heads]]
        return starts

    def ids_before(self, places: list[int]) -> list[int]:
        """How many ids the text up to each of `places` (ascending) gives on its own."""
        counts: list[int] = []
        for mark, group in groupby(places, lambda place: bisect_right(self.marks.chars, place) - 1):
            ends = [place - self.marks.chars[mark] for place in group]
            counts += [self.marks.ids[mark] + more for more in self.counts(ends, mark)]
        return counts

    def counts(self, ends: list[int], mark: int) -> Iterable[int]:
        """Ids of the text between a mark and each of `ends`, counted from the mark."""
        first = self.marks.chars[mark]
        text = self.text.cut(first, first + ends[-1])
        # To tokenize each beginning of a long text would take quadratic time.
        if len(text) > self.long_gap and self.count_beginnings is not None:
            return self.count_beginnings(text, ends)
        return [self.count(text[:end], mark) for end in ends]

    def count(self, text: str, mark: int) -> int:
        if len(text) > self.endless_gap:
            return int(self.ends_in_gap(mark).searchsorted(len(text.encode()), side="right"))
        return len(self.encoder.encode_text(text)) if text else 0

    def ends_in_gap(self, mark: int) -> Any:
        """Where, in bytes, each id ends that follows a mark, up to the next control token."""
        import numpy as np

        if mark not in self.ends:
            first, last = self.marks.ids[mark], len(self.ids)
            if mark + 1 < len(self.marks.ids):
                last = self.marks.ids[mark + 1] - 1
            used, which = np.unique(self.ids[first:last], return_inverse=True)
            decode = self.encoder.tokenizer.decode
            alone = len(decode(used[:1]))  # behind another id: some vocabularies drop a blank in front
            sizes = [len(decode([used[0], one])) - alone for one in used]
            self.ends[mark] = np.cumsum(np.array(sizes)[which])
        return self.ends[mark]

    def head_ids(self, count: int) -> int:
        """How many ids the prompt of the first `count` messages has in common with the whole one."""
        try:
            head = self.encoder._render(
                self.request._replace(wire=Beginning(self.request.wire.items[:count]))
            )
        except RunnerError:
            return 0  # the template takes no such beginning (it wants a user first, say)
        length = len(head.text)
        if alike(head, self.trunk.rendering) == length:
            return self.ids_before([length])[0]
        return _common(ids_in(self.encoder._ids(head, None, 0)[1]), self.ids)


def _common(left: Ids, right: Ids) -> int:
    """How many ids two sequences begin with in common."""
    import numpy as np

    shorter = min(len(left), len(right))
    differ = np.flatnonzero(left[:shorter] != right[:shorter])
    return int(differ[0]) if len(differ) else shorter
