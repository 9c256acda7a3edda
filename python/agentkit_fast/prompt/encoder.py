"""`PromptEncoder`: messages to token ids."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from itertools import pairwise
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from agentkit_fast.errors import RunnerError
from agentkit_fast.messages import Message, ToolDef
from agentkit_fast.prompt.template import ChatTemplate, Owned, owned_runs
from agentkit_fast.prompt.wire import template_messages, template_tools

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
    """`ids`, an int32 array, and `message_starts`: how many ids precede each message.

    `text` is the rendered template. `message_starts` is worked out when first asked for: by
    rendering every beginning of the conversation, which for a long one takes seconds (500 messages, 0.9 MB: 10 s on
    a busy machine); after that, by the same encoder, only the beginnings that are new are rendered.
    """

    __slots__ = ("_starts", "ids", "text")

    def __init__(
        self, ids: Ids, message_starts: Sequence[int] | Callable[[], list[int]], text: str = ""
    ) -> None:
        self.ids = ids
        self.text = text
        self._starts = message_starts

    @property
    def message_starts(self) -> list[int]:
        if callable(self._starts):
            self._starts = self._starts()
        return list(self._starts)

    def __len__(self) -> int:
        return len(self.ids)

    def __repr__(self) -> str:
        return f"Prompt({len(self.ids)} ids)"


class _Marks(NamedTuple):
    """After each control token: how many characters and how many ids there are up to there."""

    chars: list[int]
    ids: list[int]


class _Request(NamedTuple):
    """The messages and variables of one rendering."""

    wire: list[dict[str, Any]]
    tools: list[dict[str, Any]]
    variables: dict[str, Any]


class _Trunk(NamedTuple):
    """A conversation's beginning: its request, that rendered, where its messages and the next start."""

    request: _Request
    head: Owned
    starts: list[int]


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
        self._trunks: deque[_Trunk] = deque(maxlen=16)

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
        request = self._request(messages, tools, enable_thinking, variables)
        return _plain(self._render(request, len(request.wire), prompted=add_generation_prompt))

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
        """
        request = self._request(messages, tools, enable_thinking, variables)
        text = self._render(request, len(request.wire), prompted=add_generation_prompt)
        ids, marks = self._ids(text)
        return Prompt(ids, lambda: self._message_starts(request, text, ids, marks), _plain(text))

    def encode_text(self, text: str) -> Ids:
        """Ids of `text` as a message's text: none of them is a control token."""
        return self._gap(text)

    # --- from messages to text

    def _request(
        self,
        messages: Messages,
        tools: Tools,
        enable_thinking: bool | None,
        variables: dict[str, Any],
    ) -> _Request:
        if enable_thinking is not None:
            variables["enable_thinking"] = enable_thinking
        wire = template_messages(messages, object_arguments=self._object_arguments)
        return _Request(wire, template_tools(tools), variables)

    def _render(self, request: _Request, count: int, *, prompted: bool = False) -> Owned:
        return self._template.render(
            request.wire[:count],
            add_generation_prompt=prompted,
            tools=request.tools,
            variables=request.variables,
        )

    # --- from text to ids

    def _ids(self, text: Owned) -> tuple[Ids, _Marks]:
        np = self._np
        plain = _plain(text)
        parts: list[Ids] = []
        marks = _Marks([0], [0])
        at = count = 0
        for start, run in owned_runs(text):
            for a, b, token in self._control_tokens(run):
                if start + a > at:
                    gap = self._gap(plain[at : start + a])
                    parts.append(gap)
                    count += len(gap)
                parts.append(np.array([token], dtype=np.int32))
                count += 1
                at = start + b
                marks.chars.append(at)
                marks.ids.append(count)
        if at < len(plain):
            parts.append(self._gap(plain[at:]))
        return (np.concatenate(parts) if parts else np.empty(0, dtype=np.int32)), marks

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
                return _plain(self._template.render(messages, add_generation_prompt=False))
            except RunnerError:
                return ""

        return '"needle"' not in rendered('{"needle": 1}') and '"needle"' in rendered({"needle": 1})

    def _message_starts(self, request: _Request, text: Owned, ids: Ids, marks: _Marks) -> list[int]:
        # What was worked out for the beginning of the same conversation holds: only what came since
        # costs a rendering.
        starts: list[int] = []
        count = len(request.wire)
        for trunk in list(self._trunks):
            known = trunk.request
            shared = len(known.wire)
            if (
                len(starts) < len(trunk.starts) <= count
                and known[1:] == request[1:]
                and known.wire == request.wire[:shared]
                and _begins(text, trunk.head)
            ):
                starts = list(trunk.starts)
        head = Owned("")
        appends = len(starts) < count
        for index in range(len(starts), count):
            try:
                head = self._render(request, index)
            except RunnerError:
                # The template takes no such beginning (it wants a user first, say).
                starts.append(starts[-1] if starts else 0)
                continue
            if _begins(text, head):
                mark = bisect_right(marks.chars, len(head)) - 1
                rest = _plain(head)[marks.chars[mark] :]
                starts.append(marks.ids[mark] + (len(self._gap(rest)) if rest else 0))
            else:
                appends = False
                begun, _ = self._ids(head)
                starts.append(max(_common(self._np, begun, ids), starts[-1] if starts else 0))
        if appends:
            self._trunks.append(_Trunk(request._replace(wire=request.wire[:-1]), head, list(starts)))
        return starts


def _plain(text: Owned) -> str:
    return str.__getitem__(text, slice(None))


def _begins(text: Owned, head: Owned) -> bool:
    """Whether `text` begins with `head`, owners included."""
    if not text.startswith(head):
        return False
    if not head.spans:
        return not text.spans or text.spans[0][0] >= len(head)
    last = len(head.spans) - 1
    if len(text.spans) <= last or head.spans[:last] != text.spans[:last]:
        return False
    (a, b), (c, d) = head.spans[last], text.spans[last]
    return a == c and (b == d or (b == len(head) and d > b))


def _common(np: Any, left: Ids, right: Ids) -> int:
    """How many ids two sequences begin with in common."""
    shorter = min(len(left), len(right))
    differ = np.flatnonzero(left[:shorter] != right[:shorter])
    return int(differ[0]) if len(differ) else shorter


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
