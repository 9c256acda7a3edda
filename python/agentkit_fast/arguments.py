"""Arguments of tool calls, as models write them: judged before anything is repaired, given back strict."""

from __future__ import annotations

import msgspec

from agentkit_fast import _core

__all__ = ["Arguments", "Repair", "check_arguments", "loose_json", "rejected_arguments", "repair_json"]


class Repair(msgspec.Struct, frozen=True):
    """What `repair_json` found.

    `outcome` is `"ok"` (`text` is strict JSON of one object), `"truncated"` (the text stops too early)
    or `"failed"` (it is no object, or wrong); for the last two `text` is empty. `repairs` names what
    was changed: `markdown_fence unquoted_key single_quotes python_literal trailing_comma
    control_character lone_surrogate`.
    """

    outcome: str
    text: str = ""
    repairs: tuple[str, ...] = ()


class Arguments(msgspec.Struct, frozen=True):
    """What `check_arguments` says.

    `kind` is `"ok"` (`text` is strict JSON of one object), `"truncated"`, `"malformed"` or
    `"not_object"`; then `text` is empty and `message` says what happened and what to send instead, in
    words meant for the model.
    """

    kind: str
    text: str = ""
    message: str = ""


def loose_json(text: str) -> str:
    """Strict JSON for `text`, one value of json-loose-heredoc (docs/heredoc.md); `text` itself if it is strict.

    White space around it is kept, and so are the text of numbers and duplicate keys (readers take
    the last). Escapes of lone surrogates become U+FFFD. Nesting is read to 900 levels.

    Raises `HeredocError` with `kind` `"truncated"` or `"malformed"` and the `byte_offset` of the fault.
    """
    return _core.loose_json(text)


def repair_json(text: str) -> Repair:
    """Strict JSON where `text` is one JSON object but for what `Repair.repairs` lists.

    Never closes an open string, brace, bracket or fence: what was cut off is `"truncated"`. Text after
    the object, or a value that is no object, is `"failed"`. A bare word at the very end where a key
    belongs (`{ pa`) is `"failed"` too: nothing says that it is a key. Blank text is `"truncated"`.
    """
    return Repair(*_core.repair_json(text))


def check_arguments(raw: str) -> Arguments:
    """The gate that every tool call passes before it is stored or dispatched.

    Truncation is decided before repair is tried; text after the closing brace is `"malformed"`;
    blank means `{}`. What is `"ok"` is strict JSON that Python's `json` can load (900 levels deep and whole
    numbers of 4,300 digits at most).
    """
    return Arguments(*_core.check_arguments(raw))


def rejected_arguments(raw: str, message: str) -> str:
    """A JSON object that stands in for arguments that cannot be used, so that the history stays valid.

    Keys: `_error` (`message`), `_raw_chars` (characters of `raw`) and `_tail` (its last 800 bytes; no
    character is cut).
    """
    return _core.rejected_arguments(raw, message)
