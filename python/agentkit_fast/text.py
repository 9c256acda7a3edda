"""Reading and rewriting text: control tokens, repetition, slots, cuts, tool calls, repair.

All of it is exact on any input, linear in its length, and gives back the caller's own `str` where
nothing changes. Lengths and offsets are UTF-8 bytes.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from agentkit_fast import _core
from agentkit_fast._core import (
    RepetitionGuard,
    capture_slots,
    decode_tight,
    encode_tight,
    expand_slots,
    neutralize_special_tokens,
    restore_special_tokens,
    section_names,
    truncate_middle,
)
from agentkit_fast.arguments import (
    Arguments,
    Repair,
    check_arguments,
    loose_json,
    rejected_arguments,
    repair_json,
)
from agentkit_fast.entries import Entry
from agentkit_fast.heredoc import (
    CallReady,
    CallStarted,
    HeredocProblem,
    HeredocStream,
    ParsedReply,
    ProseDelta,
    heredoc_grammar,
    heredoc_lark,
    heredoc_prompt,
    parse_tool_calls,
    render_tool_call,
)

__all__ = [
    "Arguments",
    "CallReady",
    "CallStarted",
    "HeredocProblem",
    "HeredocStream",
    "ParsedReply",
    "ProseDelta",
    "Repair",
    "Repetition",
    "RepetitionGuard",
    "SpecialTokens",
    "capture_slots",
    "check_arguments",
    "decode_tight",
    "encode_tight",
    "expand_entries",
    "expand_slots",
    "heredoc_grammar",
    "heredoc_lark",
    "heredoc_prompt",
    "loose_json",
    "neutralize_special_tokens",
    "parse_tool_calls",
    "rejected_arguments",
    "render_tool_call",
    "repair_json",
    "restore_special_tokens",
    "section_names",
    "truncate_middle",
]


# llama.cpp's token type for what only a template may write.
_CONTROL = 3


class Repetition(msgspec.Struct, frozen=True):
    """A cycle that a `RepetitionGuard` found at the end of a stream.

    `where` is the guard's own label; `period` the bytes of one copy (the smallest true period; for lines
    that count, the newest line); `reps` how many copies stand there; `trailing == (reps - 1) * period`
    the bytes that can be cut, leaving one copy. `sample` is the newest copy. `after` is 0 but where one
    large delta held the whole cycle and other text after it: then the cycle ends that many bytes before
    the end of what was pushed.
    """

    where: str
    period: int
    reps: int
    trailing: int
    sample: str
    after: int = 0


class SpecialTokens(_core.SpecialTokens):
    """A set of control-token spellings: from any iterable, a model's own file, a family, or the default.

    `find(text)` lists `(start, end, token)` in byte offsets, leftmost longest; `neutralize(text)` breaks
    each one, so that `find` then returns nothing.
    """

    @classmethod
    def default(cls) -> SpecialTokens:
        """What no ordinary text spells: every `<|` and `<｜`, and the clear tokens of all families."""
        return cls(_core.default_special_tokens())

    @classmethod
    def family(cls, name: str) -> SpecialTokens:
        """The tokens of one model family, such as `"gemma"` or `"mistral"`, ambiguous ones included.

        Raises `ValueError` for an unknown name; the message lists the known ones.
        """
        return cls(_core.special_token_family(name))

    @classmethod
    def from_gguf(cls, path: str | os.PathLike[str]) -> SpecialTokens:
        """The vocabulary entries that a GGUF file marks as control tokens. Only its header is read.

        Structural spellings that are ordinary vocabulary (such as `<tool_call>` in Qwen's) are not among
        them. Raises `OSError` where the file cannot be read, `ModelLoadError` where it is no GGUF file,
        `ValueError` where it holds no vocabulary.
        """
        header = _core.GgufHeader(path)
        tokens = header.get("tokenizer.ggml.tokens")
        kinds = header.get("tokenizer.ggml.token_type")
        if not isinstance(tokens, list) or not isinstance(kinds, list):
            raise ValueError(f"{path} holds no vocabulary with token types; take a model file")
        return cls([token for token, kind in zip(tokens, kinds, strict=False) if kind == _CONTROL])

    @classmethod
    def from_tokenizer_json(cls, path: str | os.PathLike[str]) -> SpecialTokens:
        """The added tokens that a Hugging Face `tokenizer.json` marks as special.

        Raises `OSError` where the file cannot be read, `ValueError` where it is no tokenizer.
        """
        try:
            document = json.loads(Path(path).read_bytes())
            added = document["added_tokens"]
            return cls([token["content"] for token in added if token.get("special")])
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise ValueError(
                f"{path} is no tokenizer.json: a list `added_tokens` of objects with `content` is expected"
            ) from error


def expand_entries(entries: Sequence[Entry] | Iterable[Entry]) -> list[Entry]:
    """A copy for display: assistant entries with the slots of the tool results among `entries` put in.

    The slots of all results are merged and the last writer wins, so `{OUTPUT}` is the last result. Entries
    in which nothing changes are the caller's own; none is mutated.
    """
    listed = list(entries)
    slots: dict[str, str] = {}
    for entry in listed:
        if entry.kind == "tool_result":
            slots.update(capture_slots(entry.content))
    if not slots:
        return listed
    return [_expanded(entry, slots) if entry.kind == "assistant" else entry for entry in listed]


def _expanded(entry: Entry, slots: dict[str, str]) -> Entry:
    content = expand_slots(entry.content, slots)
    return entry if content is entry.content else msgspec.structs.replace(entry, content=content)
