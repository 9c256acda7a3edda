"""Counting tokens, and tokenizing by the model's own vocabulary."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from functools import cached_property
from operator import index
from typing import TYPE_CHECKING, Any

from agentkit_fast import _core
from agentkit_fast.endpoint_tokenizer import EndpointTokenizer, LearningCounter

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Ids = npt.NDArray[np.int32]

__all__ = ["CharsByFour", "EndpointTokenizer", "GgufTokenizer", "HfTokenizer", "LearningCounter", "budget"]


class CharsByFour:
    """Four UTF-8 bytes a token, rounded up: the default where no vocabulary is at hand.

    It is an estimate and can be below the truth: for Python source by a few per cent, for digits, hex
    and CJK by far more. Use a real tokenizer where there is one.
    """

    def count(self, text: str) -> int:
        """Estimated tokens in `text`."""
        return _core.chars_by_four(text)


class GgufTokenizer:
    """The tokenizer of a GGUF model, from the header of its file alone: equal to llama.cpp, id for id.

    Vocabularies of the gpt2 (byte-level BPE), gemma4 and llama (SentencePiece) kinds; any other kind, and a
    pre-tokenizer that is not known, raise `UnsupportedTokenizer`. A file that is damaged or no GGUF raises
    `ModelLoadError`, one that cannot be read `OSError`.

    An object holds its vocabulary (a few tens of MB) and bounded caches; it may be used from many threads
    at once, and gives up the interpreter's lock for texts from 16 KiB on.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._vocab = _core.GgufVocab(path)
        self.path = os.fspath(path)

    def __repr__(self) -> str:
        return f"GgufTokenizer({self.path!r}): {self.model}/{self.pre or 'default'}, {self.n_tokens} tokens"

    def count(self, text: str) -> int:
        """Tokens in `text`; spellings of control tokens count as the characters they are."""
        return self._vocab.count(text)

    def encode(self, text: str, *, parse_special: bool = False) -> Ids:
        """Ids of `text` as an int32 array, without BOS or EOS.

        With `parse_special` the spellings of CONTROL and UNKNOWN tokens become these tokens: for text of
        your own only. USER_DEFINED tokens are found either way, as llama.cpp finds them.
        """
        return _array(self._vocab.encode(text, parse_special=parse_special))

    def encode_untrusted(self, text: str) -> Ids:
        """Ids of text that somebody else wrote: no special token comes out of it, whatever it spells.

        Like `encode`, but the spellings of USER_DEFINED tokens are plain characters too. Tokens that are
        nothing but blanks are the exception: they are ordinary text.
        """
        return _array(self._vocab.encode(text, untrusted=True))

    def count_beginnings(self, text: str, places: list[int]) -> list[int]:
        """For each of `places`, `len(encode_untrusted(text[:place]))`; places ascend, in characters.

        Takes the time of counting the text a few times, however many places there are. Only where nothing
        in the text cuts it for long (one endless word) does each place cost the text since the last one.
        """
        return self._vocab.count_beginnings(text, places)

    def decode(self, ids: Iterable[int]) -> bytes:
        """The bytes of `ids`, control tokens as their text; `ValueError` for an id outside the vocabulary.

        `decode(encode(text))` is `text` wherever the vocabulary can spell it: where the model puts a blank
        before a text (`add_space_prefix`) it is taken away again. For the bytes of one generated token use
        `piece`.
        """
        return self._vocab.decode(_raw_ids(ids))

    def piece(self, token: int) -> bytes:
        """The bytes of one token as they stand in a running text (a leading blank included)."""
        return self._vocab.piece(token)

    @cached_property
    def special_tokens(self) -> dict[str, int]:
        """Text to id of every CONTROL, UNKNOWN and USER_DEFINED token, in the order of ids."""
        return {text: token for text, token, _ in self._special}

    @cached_property
    def control_tokens(self) -> dict[str, int]:
        """The CONTROL tokens: what a prompt's structure is made of (`<|im_start|>`, `<end_of_turn>`)."""
        return {text: token for text, token, kind in self._special if kind == "control"}

    @cached_property
    def user_defined_tokens(self) -> dict[str, int]:
        """The USER_DEFINED tokens: found in any text (`<tool_call>` of some models, Gemma's blank runs)."""
        return {text: token for text, token, kind in self._special if kind == "user_defined"}

    @cached_property
    def _special(self) -> list[tuple[str, int, str]]:
        return self._vocab.special()

    @property
    def n_tokens(self) -> int:
        """Size of the vocabulary."""
        return self._vocab.n_tokens

    @property
    def model(self) -> str:
        """`tokenizer.ggml.model` of the file: `"gpt2"`, `"llama"` or `"gemma4"`."""
        return self._vocab.model

    @property
    def pre(self) -> str:
        """`tokenizer.ggml.pre` of the file: which rules cut a text into words. Empty where it has none."""
        return self._vocab.pre

    @property
    def bos_id(self) -> int | None:
        """Id of the token a prompt begins with."""
        return self._vocab.bos_id

    @property
    def eos_id(self) -> int | None:
        """Id of the token a text ends with."""
        return self._vocab.eos_id

    @property
    def eot_id(self) -> int | None:
        """Id of the token a turn ends with, where the vocabulary has one."""
        return self._vocab.eot_id

    @property
    def bos_text(self) -> str:
        """Text of the BOS token, empty where there is none: a template's `bos_token`."""
        return self._text(self.bos_id)

    @property
    def eos_text(self) -> str:
        """Text of the EOS token, empty where there is none: a template's `eos_token`."""
        return self._text(self.eos_id)

    @cached_property
    def eog_ids(self) -> frozenset[int]:
        """Ids that end a generation, by llama.cpp's rules."""
        return frozenset(self._vocab.eog_ids)

    @property
    def add_bos(self) -> bool:
        """True where the model wants a BOS before a whole prompt. `encode` adds none either way."""
        return self._vocab.add_bos

    @property
    def add_eos(self) -> bool:
        """True where the model wants an EOS behind a whole prompt. `encode` adds none either way."""
        return self._vocab.add_eos

    @property
    def add_space_prefix(self) -> bool:
        """True where a blank is put before a text and after each special token, as SentencePiece does."""
        return self._vocab.add_space_prefix

    @property
    def chat_template(self) -> str | None:
        """The Jinja template in the file, if any."""
        return self._vocab.chat_template

    @property
    def architecture(self) -> str:
        """`general.architecture`, such as `"llama"`."""
        return self._vocab.architecture

    @property
    def context_length(self) -> int | None:
        """Tokens the model was trained for, where the file says so."""
        return self._vocab.context_length

    def _text(self, token: int | None) -> str:
        return "" if token is None else self._vocab.piece(token).decode("utf-8", "replace")


class HfTokenizer:
    """Any `tokenizer.json`, through the `tokenizers` package (extra `tokenizers`).

    Takes a path, or a `tokenizers.Tokenizer` (which is copied: its settings stay as they are). Truncation
    and padding that the file asks for are left out: a count is of the whole text.

    The package finds special tokens by its own rules; they are those of llama.cpp for most models, not all.
    """

    def __init__(self, path_or_tokenizer: str | os.PathLike[str] | Any) -> None:
        from tokenizers import Tokenizer

        self.path = ""
        if isinstance(path_or_tokenizer, str | os.PathLike):
            self.path = path = os.fspath(path_or_tokenizer)
            with open(path, encoding="utf-8") as file:  # noqa: PTH123
                source = file.read()
            try:
                parsed = Tokenizer.from_str(source)
            except Exception as error:
                raise ValueError(f"{path}: not a tokenizer.json that can be used: {error}") from error
        else:
            source = path_or_tokenizer.to_str()
            parsed = Tokenizer.from_str(source)
        parsed.no_truncation()
        parsed.no_padding()
        self._parsing = parsed
        self._plain = Tokenizer.from_str(parsed.to_str())
        self._plain.encode_special_tokens = True
        self._bytes = _letters() if _is_byte_level(json.loads(source).get("decoder")) else None

    def count(self, text: str) -> int:
        """Tokens in `text`; spellings of special tokens count as the characters they are."""
        return len(self._plain.encode(_core.repair_surrogates(text), add_special_tokens=False).ids)

    def encode(self, text: str, *, parse_special: bool = False) -> Ids:
        """Ids of `text` as an int32 array; nothing is added at either end.

        With `parse_special` the spellings of special tokens become these tokens. Added tokens that the file
        does not call special are found either way.
        """
        import numpy as np

        tokenizer = self._parsing if parse_special else self._plain
        ids = tokenizer.encode(_core.repair_surrogates(text), add_special_tokens=False).ids
        return np.asarray(ids, dtype=np.int32)

    def decode(self, ids: Iterable[int]) -> bytes:
        """The bytes of `ids`, special tokens as their text; `ValueError` for an id that has none.

        Exact for byte-level vocabularies. For others the package's decoder makes text, in which half of a
        character becomes U+FFFD.
        """
        plain: list[int] = []
        out = bytearray()
        added = self._added
        for token in ids:
            number = index(token)
            text = self._parsing.id_to_token(number) if 0 <= number <= 0x7FFF_FFFF else None
            if text is None:
                raise ValueError(f"{number} is not a token of this vocabulary")
            if self._bytes is None:
                plain.append(number)
            elif number in added:
                out += added[number].encode()
            else:
                out += b"".join(self._bytes.get(letter, letter.encode()) for letter in text)
        if self._bytes is None:
            return str(self._parsing.decode(plain, skip_special_tokens=False)).encode("utf-8")
        return bytes(out)

    @cached_property
    def special_tokens(self) -> dict[str, int]:
        """Text to id of every added token."""
        return {text: token for token, text in sorted(self._added.items())}

    @cached_property
    def _added(self) -> dict[int, str]:
        return {token: added.content for token, added in self._parsing.get_added_tokens_decoder().items()}


def _is_byte_level(decoder: Any) -> bool:
    if not isinstance(decoder, dict):
        return False
    if decoder.get("type") == "Sequence":
        return any(_is_byte_level(part) for part in decoder.get("decoders", ()))
    return decoder.get("type") == "ByteLevel"


def _letters() -> dict[str, bytes]:
    """GPT-2's alphabet: the letter that stands for each byte."""
    shown = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in shown]
    return {chr(byte): bytes([byte]) for byte in shown} | {
        chr(256 + place): bytes([byte]) for place, byte in enumerate(hidden)
    }


def _array(raw: bytearray) -> Ids:
    import numpy as np

    return np.frombuffer(raw, dtype=np.int32)


def _raw_ids(ids: Iterable[int]) -> bytes:
    import numpy as np

    try:
        given = ids if isinstance(ids, np.ndarray) else np.fromiter(map(index, ids), dtype=np.int64)
    except OverflowError:
        raise ValueError(f"ids are between 0 and {0x7FFF_FFFF}; one of these is not") from None
    if given.size and not np.issubdtype(given.dtype, np.integer):
        raise TypeError(f"token ids are whole numbers, not {given.dtype}")
    if given.size and (given.min() < 0 or given.max() > 0x7FFF_FFFF):
        raise ValueError(f"ids are between 0 and {0x7FFF_FFFF}; got {given.min()} to {given.max()}")
    return given.astype(np.int32).tobytes()


def budget(context_tokens: int, reserve_pct: int) -> int:
    """The part of a context window that history may use: `context_tokens` less `reserve_pct` per cent.

    A reserve outside 0 to 99 is taken for the nearest of these; the result is rounded down.
    """
    return context_tokens * (100 - min(99, max(0, reserve_pct))) // 100


def __getattr__(name: str) -> object:
    # Prompts are ids too, but their module brings the template engine: only when asked for.
    if name in ("Prompt", "PromptEncoder"):
        from agentkit_fast import prompt

        return getattr(prompt, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
