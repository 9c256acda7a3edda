"""What a session changes in the model's view of a window, and in nothing else.

Long tool results are cut in the middle, and text that is not the host's own is kept from spelling control
tokens. The store keeps every byte. A window that is a `Shaper`'s own is left to it where it can do the same.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec

from agentkit_fast import model_words
from agentkit_fast.messages import Message
from agentkit_fast.text import (
    neutralize_special_tokens,
    restore_special_tokens,
    section_names,
    truncate_middle,
)

__all__ = ["StreamRestorer", "View", "ViewedWindow", "restore_arguments"]

JOINERS = "\u2060\u2063\u2064"
"""The invisible characters that reversible neutralization is written with."""

# A server that encodes arguments anew may write them as escapes; a backslash that is escaped itself is none.
_ESCAPE = re.compile(r"\\(?:u(206[034])|u(db40)\\u(dd[0-3][0-9a-f])|.)", re.IGNORECASE | re.DOTALL)


class ViewedWindow(list[Any]):
    """The messages of a window after the view's changes, with the window's facts."""

    tokens = 0
    stable_prefix = 0
    break_reason = ""
    degraded = ""
    compactions: Sequence[Any] = ()

    @property
    def messages(self) -> list[Any]:
        """The messages themselves."""
        return self


class View:
    """Changes windows; costs what is new, where the window says how much of the last one it repeats.

    - `max_tool_result`: bytes of a tool result shown; 0: all.
    - `user`: user messages are neutralized.
    - `joiner`: every message but the system prompt is neutralized reversibly.
    """

    def __init__(
        self, *, max_tool_result: int, user: bool, joiner: bool, count: Callable[[str], int]
    ) -> None:
        self._limit = max_tool_result
        self._user = user
        self._joiner = joiner
        self._count = count
        self._last: list[Any] = []
        self._extra: list[int] = []

    @property
    def idle(self) -> bool:
        """Whether there is nothing to do."""
        return not (self._limit > 0 or self._user or self._joiner)

    def leave_cutting(self) -> int:
        """Leave the cutting of results to whoever builds the window; gives the limit."""
        limit, self._limit = self._limit, 0
        return limit

    def apply(self, window: Any) -> Any:
        """The window as it is shown."""
        window = _window(window)
        if self.idle:
            return window
        source: Sequence[Any] = getattr(window, "messages", window)
        kept = min(getattr(window, "stable_prefix", 0), len(self._last), len(source))
        out = ViewedWindow(self._last[:kept])
        extra = self._extra[:kept]
        for at in range(kept, len(source)):
            message = source[at]
            shown = self._changed(message)
            out.append(shown)
            extra.append(0 if shown is message else self._count(_text(shown)) - self._count(_text(message)))
        self._last, self._extra = list(out), extra
        tokens = getattr(window, "tokens", None)
        if isinstance(tokens, int):
            out.tokens = max(0, tokens + sum(extra))
        else:
            out.tokens = sum(self._count(_text(message)) + 4 for message in out)
        for name in ("stable_prefix", "break_reason", "degraded", "compactions"):
            setattr(out, name, getattr(window, name, getattr(out, name)))
        return out

    def _changed(self, message: Any) -> Any:
        if isinstance(message, dict):
            content = message.get("content")
            if not isinstance(content, str):
                return message
            shown = self._text(message.get("role", ""), content)
            return message if shown is content else {**message, "content": shown}
        content = self._text(message.role, message.content)
        parts = message.parts
        if parts and (self._joiner or self._user) and message.role != "system":
            parts = tuple(
                msgspec.structs.replace(part, text=self._text(message.role, part.text))
                if part.type == "text"
                else part
                for part in parts
            )
        calls = message.tool_calls
        if calls and self._joiner:
            calls = tuple(
                msgspec.structs.replace(
                    call, arguments=neutralize_special_tokens(call.arguments, style="joiner")
                )
                for call in calls
            )
        if content is message.content and parts == message.parts and calls == message.tool_calls:
            return message
        return msgspec.structs.replace(message, content=content, parts=parts, tool_calls=calls)

    def _text(self, role: str, text: str) -> str:
        if role == "tool" and self._limit > 0:
            text = truncate_middle(text, self._limit, hint=model_words.cut_hint(section_names(text)))
        if role == "system":
            return text
        if self._joiner:
            return neutralize_special_tokens(text, style="joiner")
        if self._user and role == "user":
            return neutralize_special_tokens(text)
        return text


def _text(message: Any) -> str:
    if isinstance(message, Message):
        return message.content + "".join(call.arguments for call in message.tool_calls)
    content = message.get("content")
    return content if isinstance(content, str) else ""


def restore_arguments(arguments: str, restore: Callable[[str], str]) -> str:
    """JSON text restored, also where the invisible characters in it are written as escapes."""
    if "\\u" in arguments:
        arguments = _ESCAPE.sub(_unescaped, arguments)
    return restore(arguments)


def _unescaped(match: re.Match[str]) -> str:
    joiner, high, low = match.groups()
    if joiner:
        return chr(int(joiner, 16))
    if high:
        return chr(0xE0000 + int(low, 16) - 0xDC00)
    return match[0]


def _window(found: Any) -> Any:
    """What a host's `build` gave: a window, or a list of messages."""
    if hasattr(found, "messages") or isinstance(found, (list, tuple)):
        return found
    if isinstance(found, (str, bytes, dict)) or not isinstance(found, Iterable):
        raise TypeError(f"build= gives a Window or a list of messages, not {type(found).__name__}")
    return list(found)  # an iterator can be read once, a window is read for counting and for sending


class StreamRestorer:
    """Undoes reversible neutralization in a stream: what `push` gives out, together, is the whole restored.

    Text after a joiner is held back until the token that it breaks must have ended.
    """

    LONGEST = 96
    """Characters; longer than any control token with its joiners."""

    def __init__(self) -> None:
        self._held = ""

    def push(self, text: str) -> str:
        """The text that cannot change any more."""
        self._held += text
        held = self._held
        last = max(held.rfind(joiner) for joiner in JOINERS)
        if last < 0:
            ready = len(held) - 1  # a joiner that comes next belongs to this character
        elif len(held) - last > self.LONGEST:
            ready = len(held) - 1
        else:
            ready = max(0, min(at for joiner in JOINERS if (at := held.find(joiner)) >= 0) - 1)
        self._held = held[ready:]
        return restore_special_tokens(held[:ready])

    def finish(self) -> str:
        """The rest."""
        held, self._held = self._held, ""
        return restore_special_tokens(held)
