"""`Window`: the messages of one request, made into Python objects only when somebody looks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, overload

import msgspec

from agentkit_fast._core import WindowHandle
from agentkit_fast.entries import CompactionInfo
from agentkit_fast.messages import ContentPart, Message, ToolCall
from agentkit_fast.notebook import HEAD_ROWS, TAIL_ROWS, details_html

__all__ = ["PlacedUnit", "Window", "messages_of"]


class _Url(msgspec.Struct):
    url: str = ""


class _WirePart(msgspec.Struct):
    type: str
    text: str = ""
    image_url: _Url = msgspec.field(default_factory=_Url)


class _WireFunction(msgspec.Struct):
    name: str
    arguments: str


class _WireCall(msgspec.Struct):
    id: str
    function: _WireFunction


class _WireMessage(msgspec.Struct):
    role: str
    content: str | list[_WirePart] = ""
    reasoning_content: str = ""
    tool_calls: list[_WireCall] = []
    tool_call_id: str = ""
    name: str = ""


_decoder = msgspec.json.Decoder(_WireMessage)
_encoder = msgspec.json.Encoder()


def _message(raw: bytes) -> Message:
    wire = _decoder.decode(raw)
    content = ""
    parts: tuple[ContentPart, ...] = ()
    if isinstance(wire.content, str):
        content = wire.content
    else:
        parts = tuple(
            ContentPart(type=part.type, text=part.text, url=part.image_url.url) for part in wire.content
        )
    return Message(
        role=wire.role,
        content=content,
        parts=parts,
        reasoning=wire.reasoning_content,
        tool_calls=tuple(
            ToolCall(id=call.id, name=call.function.name, arguments=call.function.arguments)
            for call in wire.tool_calls
        ),
        tool_call_id=wire.tool_call_id,
        name=wire.name,
    )


_list_decoder = msgspec.json.Decoder(list[msgspec.Raw])


def messages_of(raw: bytes) -> tuple[Message, ...]:
    """The messages of a JSON array; of nothing, none."""
    return tuple(_message(bytes(item)) for item in _list_decoder.decode(raw)) if raw else ()


class _Messages(Sequence[Message]):
    """Decodes a message when it is asked for, and once."""

    def __init__(self, handle: WindowHandle) -> None:
        self._handle = handle
        self._made: dict[int, Message] = {}

    def __len__(self) -> int:
        return len(self._handle)

    @overload
    def __getitem__(self, index: int) -> Message: ...
    @overload
    def __getitem__(self, index: slice) -> list[Message]: ...
    def __getitem__(self, index: int | slice) -> Message | list[Message]:
        if isinstance(index, slice):
            return [self[at] for at in range(*index.indices(len(self)))]
        at = index + len(self) if index < 0 else index
        if not 0 <= at < len(self):
            raise IndexError(f"message {index} of a window of {len(self)}")
        message = self._made.get(at)
        if message is None:
            message = self._made[at] = _message(self._handle.message_json(at))
        return message

    def __iter__(self) -> Iterator[Message]:
        return (self[at] for at in range(len(self)))

    def __eq__(self, other: object) -> bool:
        if isinstance(other, (list, tuple, _Messages)):
            return len(self) == len(other) and all(a == b for a, b in zip(self, other, strict=True))
        return NotImplemented

    __hash__ = None  # type: ignore[assignment]  # compared by value, and lists are not hashable either

    def __repr__(self) -> str:
        return repr(list(self))


class PlacedUnit(msgspec.Struct, kw_only=True, frozen=True):
    """A unit of a window: what is shown, shortened or folded together.

    `kind`: `user`, `exchange`, `notice` or `marker`. `form`: `full`, `stub`, `bare` (a pointer alone), `marker`
    or `out` (left out of the view). `tokens`: its share of the window. `shown`: the messages that stand for
    the entries where it is shortened or a marker, else empty.
    """

    kind: str
    form: str
    tokens: int
    entry_ids: tuple[str, ...]
    shown: tuple[Message, ...] = ()


def _row(message: Message) -> tuple[str, str]:
    calls = " ".join(f"→ {call.name} {call.arguments}" for call in message.tool_calls)
    text = message.content or " ".join(part.text or f"[{part.type}]" for part in message.parts)
    return message.role, f"{text} {calls}".strip()


class Window:
    """The messages of one request. It stays as it is while the session goes on.

    `messages`: a sequence of `Message`, made on demand. `tokens`: the count of everything that is sent,
    tools included. `stable_prefix`: messages at the start that are those of the session's last window;
    `break_reason`: why the last window is not wholly among them (empty when it is). `new_tokens`: what a
    server with a prompt cache has to evaluate. `degraded`: why less is shown than should be (empty when
    all is well). `compactions`: the folds this build made.
    """

    __slots__ = (
        "_handle",
        "_send_reasoning",
        "break_reason",
        "compactions",
        "degraded",
        "messages",
        "stable_prefix",
        "tokens",
    )

    def __init__(
        self,
        handle: WindowHandle,
        *,
        degraded: str = "",
        compactions: tuple[CompactionInfo, ...] = (),
        send_reasoning: bool = True,
        break_reason: str | None = None,
    ) -> None:
        self._handle = handle
        self._send_reasoning = send_reasoning
        self.messages: Sequence[Message] = _Messages(handle)
        self.tokens: int = handle.tokens
        self.stable_prefix: int = handle.stable_prefix
        self.break_reason: str = handle.break_reason if break_reason is None else break_reason
        self.degraded = degraded
        self.compactions = compactions

    @property
    def new_tokens(self) -> int:
        """Tokens after the stable prefix: what a prompt cache cannot give."""
        return self.tokens - self._handle.prefix_tokens

    def __len__(self) -> int:
        return len(self._handle)

    def __iter__(self) -> Iterator[Message]:
        return iter(self.messages)

    def __getitem__(self, index: int) -> Message:
        return self.messages[index]

    def _repr_html_(self) -> str:
        facts = [f"{len(self):,} messages", f"{self.tokens:,} tokens", f"{self.new_tokens:,} new"]
        facts += [f"{info.subsumed_count:,} entries folded" for info in self.compactions]
        facts += filter(None, (self.break_reason, self.degraded))
        first = min(len(self), HEAD_ROWS)
        last = max(first, len(self) - TAIL_ROWS)
        rows = [_row(message) for message in self.messages[:first]]
        if last > first:
            rows.append(("…", f"{last - first:,} messages between"))
        rows += [_row(message) for message in self.messages[last:]]
        return details_html(" · ".join(facts), rows)

    def to_json(self) -> bytes:
        """The `messages` array of a request, as JSON."""
        if self._send_reasoning or not self._handle.has_reasoning:
            return self._handle.to_json()
        return _encoder.encode([message.to_wire() for message in self.messages])

    def to_wire(self) -> list[dict[str, Any]]:
        """The messages as OpenAI-format dicts."""
        wire: list[dict[str, Any]] = msgspec.json.decode(self.to_json())
        return wire

    def __repr__(self) -> str:
        broken = f", break_reason={self.break_reason!r}" if self.break_reason else ""
        degraded = f", degraded={self.degraded!r}" if self.degraded else ""
        return (
            f"Window({len(self)} messages, {self.tokens} tokens,"
            f" stable_prefix={self.stable_prefix}{broken}{degraded})"
        )
