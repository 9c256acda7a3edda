"""`GgufTokenizer` by itself: bytes come back, text of others stays text, bad files are refused."""

from __future__ import annotations

import struct
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentkit_fast import AgentkitError, GgufTokenizer, ModelLoadError, UnsupportedTokenizer
from agentkit_fast.prompt import PromptEncoder
from agentkit_fast.protocols import TokenCounter
from token_texts import WRITTEN, random_texts

DAMAGED = (AgentkitError, ValueError, OSError)


@pytest.fixture(scope="module")
def smollm2(smollm2_path: Path) -> GgufTokenizer:
    return GgufTokenizer(smollm2_path)


@pytest.fixture(scope="module")
def gemma(gemma_path: Path) -> GgufTokenizer:
    return GgufTokenizer(gemma_path)


def text(value: str | bytes) -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(raw)) + raw


def string(value: str | bytes) -> bytes:
    return struct.pack("<I", 8) + text(value)


def strings(values: list[Any]) -> bytes:
    return struct.pack("<IIQ", 9, 8, len(values)) + b"".join(text(value) for value in values)


def numbers(values: list[int]) -> bytes:
    return struct.pack("<IIQ", 9, 5, len(values)) + struct.pack(f"<{len(values)}i", *values)


def floats(values: list[float]) -> bytes:
    return struct.pack("<IIQ", 9, 6, len(values)) + struct.pack(f"<{len(values)}f", *values)


def u32(value: int) -> bytes:
    return struct.pack("<II", 4, value)


def flag(value: bool) -> bytes:
    return struct.pack("<IB", 7, value)


def gguf(**keys: bytes) -> bytes:
    """A header; `a__b` stands for `tokenizer.ggml.b` where `a` is `t`, else for `a.b`."""
    body = b"".join(
        text(name.replace("t__", "tokenizer.ggml.").replace("__", ".")) + value
        for name, value in keys.items()
    )
    return b"GGUF" + struct.pack("<IQQ", 3, 0, len(keys)) + body


LETTERS = [chr(byte) for byte in range(0x21, 0x7F)] + ["Ġ", "Ċ"]


def bpe(**changes: bytes) -> bytes:
    tokens = [*LETTERS, "th", "the", "Ġthe", "<|end|>", "<tool>", "ab"]
    kinds = [1] * (len(tokens) - 3) + [3, 4, 1]
    keys = {
        "t__model": string("gpt2"),
        "t__pre": string("gpt-2"),
        "t__tokens": strings(tokens),
        "t__token_type": numbers(kinds),
        "t__merges": strings(["t h", "th e", "Ġ the"]),
    }
    return gguf(**(keys | changes))


def spm(**changes: bytes) -> bytes:
    tokens = [
        "<unk>",
        "<s>",
        "</s>",
        *(f"<0x{byte:02X}>" for byte in range(256)),
        "▁",
        "a",
        "b",
        "ab",
        "▁ab",
        "▁a",
    ]
    kinds = [2, 3, 3, *[6] * 256, *[1] * 6]
    scores = [0.0] * 259 + [-3.0, -2.0, -2.0, -1.0, -0.5, -0.75]
    keys = {
        "t__model": string("llama"),
        "t__tokens": strings(tokens),
        "t__token_type": numbers(kinds),
        "t__scores": floats(scores),
    }
    return gguf(**(keys | changes))


@pytest.fixture
def opened(tmp_path: Path):
    def opened(raw: bytes) -> GgufTokenizer:
        path = tmp_path / "vocab.gguf"
        path.write_bytes(raw)
        return GgufTokenizer(path)

    return opened


def test_is_a_token_counter(smollm2: GgufTokenizer) -> None:
    assert isinstance(smollm2, TokenCounter)
    assert smollm2.count("") == 0
    ids = smollm2.encode("Hello world")
    assert isinstance(ids, np.ndarray)
    assert ids.dtype == np.int32
    assert ids.flags.writeable
    assert smollm2.decode(ids) == b"Hello world"
    assert smollm2.decode(ids.tolist()) == smollm2.decode(tuple(ids)) == b"Hello world"
    assert smollm2.decode([]) == b""
    assert smollm2.encode("").shape == (0,)


def test_attributes(smollm2: GgufTokenizer, gemma: GgufTokenizer) -> None:
    assert (smollm2.model, smollm2.pre, smollm2.n_tokens) == ("gpt2", "smollm", 49152)
    assert (smollm2.bos_id, smollm2.bos_text) == (1, "<|im_start|>")
    assert (smollm2.eos_id, smollm2.eos_text) == (2, "<|im_end|>")
    assert smollm2.control_tokens == smollm2.special_tokens
    assert smollm2.special_tokens["<|im_start|>"] == 1
    assert len(smollm2.special_tokens) == 17
    assert smollm2.user_defined_tokens == {}
    assert smollm2.eog_ids == {0, 2, 4}
    assert (smollm2.add_bos, smollm2.add_space_prefix) == (False, False)
    assert smollm2.context_length == 8192
    assert "im_start" in (smollm2.chat_template or "")
    assert (gemma.model, gemma.n_tokens) == ("llama", 262144)
    assert (gemma.bos_text, gemma.eos_text, gemma.add_bos) == ("<bos>", "<eos>", True)
    assert gemma.user_defined_tokens["\n\n"] == 108
    assert gemma.control_tokens["<start_of_turn>"] == 105


@pytest.mark.parametrize("model", ["smollm2", "gemma"])
def test_bytes_come_back(model: str, request: pytest.FixtureRequest) -> None:
    tokenizer = request.getfixturevalue(model)
    # Bytes SmolLM2's vocabulary has no token for: control bytes, and bytes that UTF-8 never or hardly has.
    singles = {tokenizer.piece(token) for token in range(tokenizer.n_tokens)}
    gone = {byte for byte in range(256) if bytes([byte]) not in singles}
    assert len(gone) == 21 if model == "smollm2" else not gone
    for sample in [*WRITTEN, *random_texts(2, 1500, list(tokenizer.special_tokens)[:50])]:
        text = sample.replace("\u2581", " ") if model == "gemma" else sample
        want = bytes(byte for byte in text.encode() if byte not in gone)
        for parse_special in (False, True):
            assert tokenizer.decode(tokenizer.encode(sample, parse_special=parse_special)) == want


def test_parse_special(smollm2: GgufTokenizer) -> None:
    prompt = "<|im_start|>user\nhi<|im_end|>"
    assert smollm2.encode(prompt, parse_special=True)[[0, -1]].tolist() == [1, 2]
    assert not {1, 2} & set(smollm2.encode(prompt).tolist())
    assert smollm2.count(prompt) == len(smollm2.encode(prompt))


def test_surrogates_are_repaired(smollm2: GgufTokenizer) -> None:
    assert smollm2.decode(smollm2.encode("a\ud800b")).decode() == "a\ufffdb"
    assert smollm2.count("\ud83d\ude00") == smollm2.count("😀")


@pytest.mark.parametrize("token", [-1, 49152, 2**31 - 1, 2**31, 2**40, 2**70, -(2**70)])
def test_ids_outside_the_vocabulary(smollm2: GgufTokenizer, token: int) -> None:
    with pytest.raises(ValueError, match=r"\d"):
        smollm2.decode([5, token])
    with pytest.raises((ValueError, OverflowError)):
        smollm2.piece(token)


@pytest.mark.parametrize("model", ["smollm2", "gemma"])
def test_untrusted_text_gives_no_special_token(model: str, request: pytest.FixtureRequest) -> None:
    tokenizer = request.getfixturevalue(model)
    forbidden = {token for spelling, token in tokenizer.special_tokens.items() if spelling.strip()}
    spellings = list(tokenizer.special_tokens)
    singles = {tokenizer.piece(token) for token in range(tokenizer.n_tokens)}
    gone = {byte for byte in range(256) if bytes([byte]) not in singles}
    for sample in [*spellings[:300], *random_texts(8, 800, spellings), "".join(spellings)]:
        ids = tokenizer.encode_untrusted(sample)
        assert not forbidden & set(ids.tolist()), sample
        want = sample.replace("\u2581", " ") if model == "gemma" else sample
        assert tokenizer.decode(ids) == bytes(byte for byte in want.encode() if byte not in gone)
    plain = "Plain text,  with\n\nblanks."
    assert tokenizer.encode_untrusted(plain).tolist() == tokenizer.encode(plain).tolist()


@settings(max_examples=200, deadline=None)
@given(left=st.text(max_size=40), right=st.text(max_size=40))
def test_counts_of_parts(smollm2_path: Path, left: str, right: str) -> None:
    """A text never takes more tokens than its UTF-8 bytes, and lines apart count what they count together."""
    tokenizer = _shared(smollm2_path)
    both = tokenizer.count(left + right)
    assert both <= len((left + right).encode("utf-8", "replace")) * 3
    whole = f"{left.replace(' ', '')}7{right}"
    assert tokenizer.count(whole) == tokenizer.count(left.replace(" ", "")) + 1 + tokenizer.count(right)


_TOKENIZERS: dict[Path, GgufTokenizer] = {}


def _shared(path: Path) -> GgufTokenizer:
    return (
        _TOKENIZERS.setdefault(path, GgufTokenizer(path)) if path not in _TOKENIZERS else _TOKENIZERS[path]
    )


def test_many_threads(smollm2: GgufTokenizer) -> None:
    texts = random_texts(4, 200, [])
    large = "".join(texts) * 4
    want = [smollm2.count(sample) for sample in texts], smollm2.count(large)
    wrong: list[object] = []

    def work() -> None:
        for _ in range(5):
            got = [smollm2.count(sample) for sample in texts], smollm2.count(large)
            if got != want:
                wrong.append(got)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.parametrize(
    "sample",
    ["a", " ", "\n", "ab", "日", "9", "<", "'", "\u0301", "'s", " \n", "é", "<unused1>"],
    ids=ascii,
)
@pytest.mark.parametrize("model", ["smollm2", "gemma"])
@pytest.mark.timeout(20)
def test_long_runs_take_no_square_time(model: str, sample: str, request: pytest.FixtureRequest) -> None:
    tokenizer = request.getfixturevalue(model)
    whole = sample * 100_000
    ids = tokenizer.encode(whole)
    assert tokenizer.decode(ids).decode() == whole
    assert tokenizer.count(whole) == len(ids)


def test_small_bpe(opened) -> None:
    tokenizer = opened(bpe())
    piece = tokenizer.special_tokens | {}
    assert piece == {"<|end|>": 99, "<tool>": 100}
    assert tokenizer.encode("the the").tolist() == [97, 98]
    assert tokenizer.encode("<|end|>").tolist() != [99]
    assert tokenizer.encode("<|end|>", parse_special=True).tolist() == [99]
    assert tokenizer.encode("a<tool>").tolist() == [64, 100], "USER_DEFINED is found always"
    assert 100 not in tokenizer.encode_untrusted("a<tool>").tolist()
    assert tokenizer.decode(tokenizer.encode_untrusted("a<tool>")) == b"a<tool>"
    assert tokenizer.encode("ab").tolist() == [64, 65], "a token that no merge makes"
    assert tokenizer.encode("é").tolist() == [], "no token for these bytes: llama.cpp leaves them out"


def test_a_user_defined_token_of_one_character(opened) -> None:
    # DeepSeek's vocabularies have such: ø, ÿ, Á.
    tokens = [*LETTERS, "Ã", "©", "é", "<|end|>"]
    tokenizer = opened(
        bpe(
            t__tokens=strings(tokens),
            t__token_type=numbers([1] * (len(tokens) - 2) + [4, 3]),
            t__merges=strings([]),
        )
    )
    single = tokenizer.special_tokens["é"]
    assert single in tokenizer.encode("é").tolist()
    template = "é<|end|>{% for m in messages %}{{ m.content }}{% endfor %}"
    prompt = PromptEncoder(tokenizer, template).encode([{"role": "user", "content": "aéé<|end|>é"}])
    assert prompt.ids.tolist().count(single) == 1
    assert prompt.ids.tolist().count(tokenizer.special_tokens["<|end|>"]) == 1
    assert tokenizer.decode(prompt.ids).decode() == prompt.text == "é<|end|>aéé<|end|>é"


@pytest.mark.parametrize("ids", [[1.5], ["1"], np.array([1.0]), [None], 5, None])
def test_ids_are_whole_numbers(smollm2: GgufTokenizer, ids: Any) -> None:
    with pytest.raises(TypeError):
        smollm2.decode(ids)


@pytest.mark.parametrize("kind", ["i1", "u1", "<i2", ">i2", "<u4", "<i8", ">i8", "<u8"])
def test_ids_of_every_integer_type(smollm2: GgufTokenizer, kind: str) -> None:
    ids = smollm2.encode("!0a")
    assert ids.max() < 128
    assert smollm2.decode(ids.astype(kind)) == smollm2.decode(ids.tolist()) == smollm2.decode(list(ids))
    assert smollm2.decode(np.repeat(ids, 2)[::2]) == b"!0a"


def test_ignore_merges(opened) -> None:
    tokenizer = opened(bpe(t__pre=string("llama-bpe")))
    assert tokenizer.encode("ab").tolist() == [101]
    assert tokenizer.add_bos


def test_small_spm(opened) -> None:
    tokenizer = opened(spm())
    assert tokenizer.add_space_prefix
    assert tokenizer.add_bos
    assert tokenizer.encode("ab").tolist() == [263]
    assert tokenizer.encode("ab</s>ab", parse_special=True).tolist() == [263, 2, 263]
    assert tokenizer.decode([263, 2, 263]) == b"ab</s>ab"
    assert tokenizer.encode("é").tolist() == [259, 3 + 0xC3, 3 + 0xA9]
    assert tokenizer.decode(tokenizer.encode("é")) == "é".encode()
    assert tokenizer.encode("").tolist() == []
    bare = opened(spm(t__add_space_prefix=flag(False)))
    assert bare.encode("ab").tolist() == [262]
    assert bare.decode(bare.encode(" ab")) == b" ab"


BAD = [
    ("no-model", gguf(t__tokens=strings(["a"])), ModelLoadError, "tokenizer.ggml.model"),
    ("bert", bpe(t__model=string("bert")), UnsupportedTokenizer, "WordPiece"),
    ("t5", bpe(t__model=string("t5")), UnsupportedTokenizer, "Unigram"),
    ("rwkv", bpe(t__model=string("rwkv")), UnsupportedTokenizer, "rwkv"),
    ("unknown", bpe(t__model=string("quantum")), UnsupportedTokenizer, "quantum"),
    ("unknown-pre", bpe(t__pre=string("llama9")), UnsupportedTokenizer, "llama9"),
    ("model-is-a-number", bpe(t__model=u32(3)), ModelLoadError, "not a string"),
    ("no-tokens", gguf(t__model=string("gpt2")), ModelLoadError, "tokenizer.ggml.tokens"),
    ("empty", bpe(t__tokens=strings([])), ModelLoadError, "empty"),
    ("tokens-are-numbers", bpe(t__tokens=numbers([1, 2])), ModelLoadError, "array of strings"),
    ("tokens-are-a-string", bpe(t__tokens=string("abc")), ModelLoadError, "not an array"),
    ("not-utf-8", bpe(t__tokens=strings([b"a", b"\xff\xfe"])), ModelLoadError, "token 1 is not UTF-8"),
    ("twice", bpe(t__tokens=strings(["a", "b", "a"])), ModelLoadError, "tokens 0 and 2"),
    ("few-types", bpe(t__token_type=numbers([1])), ModelLoadError, "token types"),
    ("types-are-floats", bpe(t__token_type=floats([1.0] * 102)), ModelLoadError, "32-bit"),
    ("no-merges", gguf(t__model=string("gpt2"), t__tokens=strings(["a"])), ModelLoadError, "merges"),
    ("merges-are-numbers", bpe(t__merges=numbers([1])), ModelLoadError, "array of strings"),
    ("few-scores", spm(t__scores=floats([0.0])), ModelLoadError, "scores"),
    ("score-nan", spm(t__scores=floats([float("nan")] * 265)), ModelLoadError, "not a number"),
    ("scores-are-strings", spm(t__scores=strings(["a"])), ModelLoadError, "scores"),
    ("bos-is-a-string", bpe(t__bos_token_id=string("x")), ModelLoadError, "whole number"),
    ("flag-is-a-number", bpe(t__add_bos_token=u32(1)), ModelLoadError, "boolean"),
]  # fmt: skip


@pytest.mark.parametrize(("raw", "error", "match"), [row[1:] for row in BAD], ids=[row[0] for row in BAD])
def test_bad_vocabularies(opened, raw: bytes, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match) as caught:
        opened(raw)
    assert isinstance(caught.value, DAMAGED)


@pytest.mark.parametrize("raw", [bpe(), spm()], ids=["bpe", "spm"])
def test_cut_at_every_offset(opened, raw: bytes) -> None:
    for end in range(0, len(raw), 3):
        with pytest.raises(DAMAGED):
            opened(raw[:end])


def test_odd_but_usable(opened) -> None:
    """Malformed merges, ids outside the vocabulary and an empty token are passed over, as llama.cpp does."""
    odd = bpe(
        t__merges=strings(["t h", "nonsense", "", " ", "t", "th e", "Ġ the"]), t__eos_token_id=u32(5000)
    )
    tokenizer = opened(odd)
    assert tokenizer.encode("the the").tolist() == [97, 98]
    assert tokenizer.eos_id == 11
    tokenizer = opened(bpe(t__tokens=strings([*LETTERS, "th", "the", "Ġthe", "<|end|>", "<tool>", ""])))
    assert tokenizer.encode("the the").tolist() == [97, 98]


def test_unknown_symbols_break_into_bytes(opened) -> None:
    """A merge into a text that is no token: its characters are looked up one by one."""
    tokenizer = opened(bpe(t__merges=strings(["t h", "x y", "xy z"])))
    assert tokenizer.encode("xyz").tolist() == [LETTERS.index(letter) for letter in "xyz"]


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        GgufTokenizer(tmp_path / "nowhere.gguf")
