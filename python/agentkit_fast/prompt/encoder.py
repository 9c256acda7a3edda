"""`PromptEncoder`: messages to token ids."""

from __future__ import annotations

import re
from array import array
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from itertools import pairwise
from threading import Lock
from typing import TYPE_CHECKING, Any, Protocol

from agentkit_fast._core import same_beginning
from agentkit_fast.errors import RunnerError
from agentkit_fast.messages import Message, ToolDef
from agentkit_fast.prompt.growing import Beginning, GrowingIds, id_bytes, ids_in
from agentkit_fast.prompt.owned import Text
from agentkit_fast.prompt.resume import Rendering
from agentkit_fast.prompt.starts import message_starts
from agentkit_fast.prompt.template import ChatTemplate
from agentkit_fast.prompt.trunk import Marks, Request, Trunk, alike, starts_before
from agentkit_fast.prompt.wire import (
    copied,
    message_list,
    template_messages,
    template_tools,
    template_variables,
)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Ids = NDArray[np.int32]

Messages = Sequence[Message] | Sequence[Mapping[str, Any]]
Tools = Sequence[ToolDef] | Sequence[Mapping[str, Any]]

__all__ = ["Prompt", "PromptEncoder", "Tokenizer"]

# Tokenized gaps are kept so that a growing conversation costs its new messages. The bound is on text:
# ids take about as much again.
_CACHE_CHARS = 8_000_000
# And whole prompts, so many and within the same bound.
_TRUNKS = 16


class Tokenizer(Protocol):
    """What the encoder asks of a tokenizer. `bos_token` and `eos_token` (text) are used where present."""

    @property
    def special_tokens(self) -> Mapping[str, int]:
        """Text to id of every CONTROL, UNKNOWN and USER_DEFINED token."""
        ...

    def encode(self, text: str, *, parse_special: bool = False) -> Any:
        """Ids of `text`, no BOS or EOS added."""

    def decode(self, ids: Any) -> bytes:
        """The bytes `ids` stand for, control tokens as their text."""
        ...


class Prompt:
    """`ids`, an int32 array to read, and `message_starts`: how many ids precede each message.

    `text` is the rendered template; `reused` of its characters were taken from an earlier prompt of the
    same conversation instead of being rendered again. `message_starts` is worked out when first asked for.
    """

    __slots__ = ("_starts", "_text", "ids", "reused")

    def __init__(
        self,
        ids: Ids,
        message_starts: Sequence[int] | Callable[[], list[int]],
        text: str | Text = "",
        reused: int = 0,
    ) -> None:
        self.ids = ids
        self._text = text
        self.reused = reused
        self._starts = message_starts

    @property
    def text(self) -> str:
        self._text = str(self._text)
        return self._text

    @property
    def message_starts(self) -> list[int]:
        if callable(self._starts):
            self._starts = self._starts()
        return list(self._starts)

    def ends_with(self, words: str) -> bool:
        """Whether the text, blanks at its end left aside, ends with `words`. Only its end is looked at."""
        text, size, take = self._text, len(self._text), len(words) + 64
        while True:
            start = max(0, size - take)
            tail = (text[start:] if isinstance(text, str) else text.cut(start, size)).rstrip()
            if len(tail) >= len(words) or not start:
                return tail.endswith(words)
            take *= 4

    def __len__(self) -> int:
        return len(self.ids)

    def __repr__(self) -> str:
        return f"Prompt({len(self.ids)} ids)"


class PromptEncoder:
    """Renders messages by a model's chat template straight to token ids.

    `tokenizer` is a `GgufTokenizer` or anything with its interface; `chat_template` is Jinja source.
    No message's text can become a control token, and none is changed: `tokenizer.decode(prompt.ids)` is
    the rendered template. Gaps between control tokens, template and message text together, are
    tokenized in one piece, so that text without control sequences gives the ids llama.cpp gives.

    Safe to use from many threads.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        chat_template: str,
        *,
        bos_token: str | None = None,
        eos_token: str | None = None,
        now: Callable[[], datetime] | None = None,
    ) -> None:
        import numpy as np

        self._np = np
        self.tokenizer = tokenizer
        self.chat_template = chat_template
        self._template = ChatTemplate(
            chat_template,
            bos_token=_spelling(tokenizer, "bos_token") if bos_token is None else bos_token,
            eos_token=_spelling(tokenizer, "eos_token") if eos_token is None else eos_token,
            now=now,
        )
        # A token that is white space only is a way to write white space, not a sign of structure.
        self._special = {
            text: int(token)
            for text, token in tokenizer.special_tokens.items()
            if text and not text.isspace()
        }
        self._spellings: dict[int, list[str]] = {}
        for text, token in self._special.items():
            self._spellings.setdefault(token, []).append(text)
        self._forbidden = np.zeros(max(self._spellings, default=-1) + 2, dtype=bool)
        self._forbidden[list(self._spellings)] = True
        # Longest first, as llama.cpp partitions.
        longest = sorted(self._special, key=lambda text: (-len(text.encode()), text))
        self._pattern = re.compile("|".join(map(re.escape, longest))) if longest else None
        self._found: dict[str, list[tuple[int, int, int]]] = {}
        self._cache: OrderedDict[str, Ids] = OrderedDict()
        self._cached_chars = 0
        self._lock = Lock()
        # A tokenizer that itself keeps special tokens out of others' text also spells those of one character.
        self._untrusted: Callable[[str], Any] | None = getattr(tokenizer, "encode_untrusted", None)
        self._adds_space: bool | None = None
        self._object_arguments = self._wants_objects()
        self._last_tools: tuple[list[Any], list[Any]] = ([], [])
        self._trunks: list[Trunk] = []  # the last used one at the end

    def render(
        self,
        messages: Messages,
        *,
        add_generation_prompt: bool = True,
        tools: Tools = (),
        enable_thinking: bool | None = None,
        **variables: Any,
    ) -> str:
        """The prompt as text: what the template makes of the messages. Arguments as for `encode`."""
        wire = template_messages(message_list(messages), object_arguments=self._object_arguments)
        request = Request(Beginning(wire), self._offered(tools), _variables(enable_thinking, variables))
        return str(self._render(request, prompted=add_generation_prompt).text)

    def encode(
        self,
        messages: Messages,
        *,
        add_generation_prompt: bool = True,
        tools: Tools = (),
        enable_thinking: bool | None = None,
        **variables: Any,
    ) -> Prompt:
        """The prompt of `messages` (`Message` values or OpenAI dicts) as ids.

        `tools`, `enable_thinking` (unless `None`) and further keyword arguments are the template's
        variables. `RunnerError` where the template refuses the messages, in the template's words;
        `ValueError` for a message that is none.

        Of a conversation seen before only what is new is rendered and tokenized, where the template
        allows it (`Prompt.reused` says how much of the text was not rendered again).
        """
        given = message_list(messages)
        trunk, common = self._nearest(given)
        new = template_messages(given[common:], object_arguments=self._object_arguments)
        wire = Beginning(new) if trunk is None else trunk.wire.grown(common, new)
        request = Request(wire, self._offered(tools), _variables(enable_thinking, variables))
        rendering = self._render(
            request,
            prompted=add_generation_prompt,
            kept=trunk.rendering if trunk is not None else None,
            common=common,
        )
        shared = rendering.shared
        if trunk is not None and not shared:
            shared = alike(trunk.rendering, rendering)
        copies = [copied(message) for message in given[common:]]
        kept = Beginning(copies) if trunk is None else trunk.given.grown(common, copies)
        memory, ids, marks, cut = self._grown(rendering, trunk, shared, common)
        made = Trunk(kept, wire, rendering, memory, marks)
        if trunk is not None and rendering.shared and trunk.starts is not None:
            made.starts_kept = starts_before(trunk, rendering, cut)
        self._remember(made, trunk, common)
        return Prompt(
            ids, lambda: message_starts(self, request, made, ids), rendering.text, rendering.reused
        )

    def encode_text(self, text: str) -> Ids:
        """Ids of `text` as a message's text: none of them is a control token."""
        return self._gap(text)

    # --- what is kept of earlier prompts

    def _offered(self, tools: Tools) -> list[Any]:
        """The tools as templates see them; the same list as the last time where they are the same."""
        given: list[Any] = list(tools)
        known, wire = self._last_tools
        if len(given) != len(known) or same_beginning(given, known) < len(given):
            wire = template_tools(given)
            self._last_tools = ([copied(tool) for tool in given], wire)
        return wire

    def _nearest(self, given: list[Any]) -> tuple[Trunk | None, int]:
        """The prompt that has most messages in common with these, and how many."""
        with self._lock:
            trunks = self._trunks[::-1]
        found, most = None, 0
        for trunk in trunks:
            kept = trunk.given
            if kept.size > most and (common := min(same_beginning(given, kept.items), kept.size)) > most:
                found, most = trunk, common
        return found, most

    def _remember(self, new: Trunk, old: Trunk | None, common: int) -> None:
        """Keep `new`, in the place of `old` where it is the same conversation gone on."""
        with self._lock:
            replaces = old is not None and _goes_on(old, common)
            trunks = [trunk for trunk in self._trunks if not (replaces and trunk is old)]
            trunks.append(new)
            room = _CACHE_CHARS
            first = len(trunks) - 1
            while first and len(trunks) - first < _TRUNKS:
                room -= len(trunks[first].rendering.text)
                if room < len(trunks[first - 1].rendering.text):
                    break
                first -= 1
            self._trunks = trunks[first:]

    # --- from messages to text

    def _render(
        self, request: Request, *, prompted: bool = False, kept: Rendering | None = None, common: int = 0
    ) -> Rendering:
        return self._template.render(
            request.wire.items,
            count=request.wire.size,
            add_generation_prompt=prompted,
            tools=request.tools,
            variables=request.variables,
            kept=kept,
            common=common,
        )

    # --- from text to ids

    def _grown(
        self, rendering: Rendering, old: Trunk | None, shared: int, common: int
    ) -> tuple[GrowingIds, Ids, Marks, int]:
        """The ids, and up to which character they were taken from `old`: only what is new is written."""
        if old is not None:
            marks, more, known = self._ids(rendering, old, shared)
            try:
                memory, ids = old.ids.grown(marks.ids[known], more, last=_goes_on(old, common))
                return memory, ids, marks, marks.chars[known]
            except LookupError:
                pass  # another thread went on from there in the meantime
        marks, more, _ = self._ids(rendering, None, 0)
        return GrowingIds(more), ids_in(more), marks, 0

    def _ids(self, rendering: Rendering, old: Trunk | None, shared: int) -> tuple[Marks, bytearray, int]:
        """The ids behind those taken from `old`, and the number of the mark up to which these go: the texts'
        beginnings, `shared` characters, are alike in letters and owners."""
        text, owners = rendering.text, rendering.owners
        more = bytearray()
        marks = Marks(array("q", [0]), array("q", [0]))
        if old is not None and shared:
            # A run of the template's text that goes on behind the beginning may spell another token now.
            last = bisect_right(owners.starts, shared) - 1
            settled = owners.starts[last] if last >= 0 and owners.stops[last] >= shared else shared
            known = bisect_right(old.marks.chars, settled)
            marks = Marks(old.marks.chars[:known], old.marks.ids[:known])
        taken, at, count = len(marks.chars) - 1, marks.chars[-1], marks.ids[-1]
        for place in range(bisect_left(owners.starts, at), len(owners)):
            start, stop = owners.starts[place], owners.stops[place]
            for a, b, token in self._control_tokens(text.cut(start, stop)):
                if start + a > at:
                    gap = self._gap(text.cut(at, start + a))
                    more += gap.data
                    count += len(gap)
                more += id_bytes(token)
                count += 1
                at = start + b
                marks.chars.append(at)
                marks.ids.append(count)
        if at < len(text):
            more += self._gap(text.cut(at, len(text))).data
        return marks, more, taken

    def _control_tokens(self, run: str) -> list[tuple[int, int, int]]:
        """Control tokens in a run of template text. The same few runs come again and again."""
        found = self._found.get(run)
        if found is None:
            matches = self._pattern.finditer(run) if self._pattern else ()
            found = [(m.start(), m.end(), self._special[m.group()]) for m in matches]
            if len(self._found) >= 4096:
                self._found.clear()
            self._found[run] = found
        return found

    def _gap(self, text: str) -> Ids:
        with self._lock:
            cached = self._cache.get(text)
            if cached is not None:
                self._cache.move_to_end(text)
                return cached
        ids = self._text_ids(text)
        ids.setflags(write=False)
        with self._lock:
            if text not in self._cache:
                self._cache[text] = ids
                self._cached_chars += len(text)
            while self._cached_chars > _CACHE_CHARS and len(self._cache) > 1:
                dropped, _ = self._cache.popitem(last=False)
                self._cached_chars -= len(dropped)
        return ids

    def _text_ids(self, text: str) -> Ids:
        """Ids of plain text, none of them special.

        A tokenizer matches USER_DEFINED spellings also in plain text, and a merge may end in any special
        token. Such a spelling is cut after its first character and the sides are tokenized apart. Every
        round cuts at all spellings found at once, so the work stays linear however many there are.
        """
        if self._untrusted is not None:
            return self._np.asarray(self._untrusted(text), dtype=self._np.int32)
        ids = self._encode(text)
        hits = self._hits(ids)
        if not hits or len(text) < 2:
            return ids
        done: list[Ids] = []
        todo = list(reversed(self._cut(text, hits)))
        while todo:
            piece = todo.pop()
            ids = self._continued(piece) if done else self._encode(piece)
            hits = self._hits(ids)
            if hits and len(piece) > 1:
                todo.extend(reversed(self._cut(piece, hits)))
            else:
                # One character that gives a special id: the vocabulary cannot spell it (UNKNOWN).
                done.append(ids)
        return self._np.concatenate(done)

    def _cut(self, text: str, hits: set[int]) -> list[str]:
        spellings = sorted((s for token in hits for s in self._spellings[token]), key=len, reverse=True)
        pattern = f"(?=({'|'.join(map(re.escape, spellings))}))"
        cuts = [match.start() + 1 for match in re.finditer(pattern, text)]
        if not cuts or cuts == [len(text)]:
            cuts = [len(text) // 2]  # no spelling: an unknown character, or a merge of other text
        return [text[a:b] for a, b in pairwise([0, *cuts, len(text)]) if a < b]

    def _encode(self, text: str) -> Ids:
        return self._np.asarray(self.tokenizer.encode(text, parse_special=False), dtype=self._np.int32)

    def _hits(self, ids: Ids) -> set[int]:
        marked = self._forbidden[self._np.minimum(ids, len(self._forbidden) - 1)]
        return {int(token) for token in ids[marked]} if marked.any() else set()

    def _continued(self, text: str) -> Ids:
        """Ids of `text` that goes on from other text: without the blank some vocabularies put in front."""
        if self._adds_space is None:
            told = getattr(self.tokenizer, "add_space_prefix", None)
            if not isinstance(told, bool):
                told = len(self._encode(" a")) > len(self._encode("a"))
            self._adds_space = told
        if self._adds_space:
            for anchor in ("\n", "a", ".", "<", "0"):
                head, ids = self._encode(anchor), self._encode(anchor + text)
                if len(ids) >= len(head) and bool((ids[: len(head)] == head).all()):
                    tail: Ids = ids[len(head) :]
                    return tail
        return self._encode(text)

    # --- what the template is like

    def _wants_objects(self) -> bool:
        """Whether the template wants a call's arguments as a value: JSON text it would quote once more.

        Found as llama.cpp finds it, by rendering one call both ways.
        """

        def rendered(arguments: object) -> str:
            function = {"name": "f", "arguments": arguments}
            call = {"id": "call00000", "type": "function", "function": function}
            messages: list[dict[str, Any]] = [
                {"role": "user", "content": "q"},
                {"role": "assistant", "content": "", "tool_calls": [call]},
            ]
            try:
                return str(self._template.render(messages, add_generation_prompt=False).text)
            except RunnerError:
                return ""

        return '"needle"' not in rendered('{"needle": 1}') and '"needle"' in rendered({"needle": 1})


def _goes_on(old: Trunk, common: int) -> bool:
    """Whether a prompt with so many messages of `old` is the same conversation gone on."""
    return common >= old.given.size - 1


def _variables(enable_thinking: bool | None, variables: dict[str, Any]) -> dict[str, Any]:
    thinking = {} if enable_thinking is None else {"enable_thinking": enable_thinking}
    return template_variables({**variables, **thinking})


def _spelling(tokenizer: Any, name: str) -> str:
    """`bos_token` and the like: the tokenizer's text for it, or that of `bos_id`, or nothing."""
    value = getattr(tokenizer, name, None)
    if isinstance(value, str):
        return value
    token = getattr(tokenizer, name.replace("_token", "_id"), value)
    if isinstance(token, int) and token >= 0:
        for text, known in tokenizer.special_tokens.items():
            if known == token:
                return str(text)
    return ""
