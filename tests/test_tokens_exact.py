"""`GgufTokenizer` equals llama.cpp, id for id.

The models are SmolLM2 and Gemma 3; with AGENTKIT_TEST_VOCABS naming the `models` folder of a llama.cpp source
tree (its `ggml-vocab-*.gguf` are whole vocabularies without weights), these too.
"""

from __future__ import annotations

import ctypes
import os
import random
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import models
from agentkit_fast import GgufTokenizer, UnsupportedTokenizer
from token_texts import WRITTEN, random_texts, sources

VOCABS = os.environ.get("AGENTKIT_TEST_VOCABS", "")


class LlamaVocab:
    """llama.cpp's own tokenizer, without the weights."""

    def __init__(self, path: Path) -> None:
        self.api: Any = pytest.importorskip("llama_cpp")
        models.quiet_llama(self.api)
        params = self.api.llama_model_default_params()
        params.vocab_only = True
        self.model = self.api.llama_model_load_from_file(str(path).encode(), params)
        assert self.model, path
        self.vocab = self.api.llama_model_get_vocab(self.model)

    def close(self) -> None:
        self.api.llama_model_free(self.model)

    def encode(self, text: str, parse_special: bool) -> np.ndarray:
        raw = text.encode()
        room = len(raw) + 16
        buffer = (self.api.llama_token * room)()
        count = self.api.llama_tokenize(self.vocab, raw, len(raw), buffer, room, False, parse_special)
        return np.ctypeslib.as_array(buffer)[: max(count, 0)].copy()

    def decode(self, ids: np.ndarray) -> bytes:
        raw = (self.api.llama_token * len(ids))(*ids)
        room = len(ids) * 64 + 64
        buffer = ctypes.create_string_buffer(room)
        size = self.api.llama_detokenize(self.vocab, raw, len(ids), buffer, room, False, True)
        return buffer.raw[: max(size, 0)]


@pytest.fixture(scope="module", params=["smollm2_path", "gemma_path"])
def pair(request: pytest.FixtureRequest) -> Iterator[tuple[GgufTokenizer, LlamaVocab]]:
    path = request.getfixturevalue(request.param)
    theirs = LlamaVocab(path)
    yield GgufTokenizer(path), theirs
    theirs.close()


def spellings(ours: GgufTokenizer, count: int = 60) -> list[str]:
    known = list(ours.special_tokens)
    return random.Random(1).sample(known, min(len(known), count))


def compare(ours: GgufTokenizer, theirs: LlamaVocab, texts: list[str]) -> tuple[int, list[str]]:
    tokens, wrong = 0, []
    for text in texts:
        for parse_special in (False, True):
            want = theirs.encode(text, parse_special)
            got = ours.encode(text, parse_special=parse_special)
            tokens += len(want)
            if not np.array_equal(got, want):
                wrong.append(f"parse_special={parse_special} {text[:200]!r}")
        if ours.count(text) != len(ours.encode(text)):
            wrong.append(f"count of {text[:200]!r}")
    return tokens, wrong


def test_exact(pair: tuple[GgufTokenizer, LlamaVocab], record_property: Any) -> None:
    ours, theirs = pair
    texts = [*WRITTEN, *random_texts(5, 2000, spellings(ours)), *sources(400_000)]
    tokens, wrong = compare(ours, theirs, texts)
    record_property("tokens", tokens)
    print(f"{ours!r}: {len(texts)} documents, {tokens} tokens, {len(wrong)} differences")
    assert not wrong, wrong[:5]
    assert tokens > 250_000


def test_every_token_comes_back(pair: tuple[GgufTokenizer, LlamaVocab]) -> None:
    """Each token's own text, alone and between others, with its blank and without."""
    ours, theirs = pair
    draw = random.Random(3)
    ids = draw.sample(range(ours.n_tokens), 4000)
    texts = [ours.piece(token).decode("utf-8", "replace") for token in ids]
    _, wrong = compare(ours, theirs, ["".join(draw.sample(texts, 3)) for _ in range(2000)] + texts)
    assert not wrong, wrong[:5]


def test_decoding(pair: tuple[GgufTokenizer, LlamaVocab]) -> None:
    ours, theirs = pair
    draw = random.Random(9)
    for _ in range(300):
        ids = np.array(
            [draw.randrange(ours.n_tokens) for _ in range(draw.randrange(1, 40))], dtype=np.int32
        )
        assert ours.decode(ids) == theirs.decode(ids)
        assert b"".join(ours.piece(token) for token in ids) == ours.decode(ids)


def test_special_tokens_have_llama_cpps_kinds(pair: tuple[GgufTokenizer, LlamaVocab]) -> None:
    ours, theirs = pair
    api = theirs.api
    kinds = {token: api.llama_vocab_get_attr(theirs.vocab, token) for token in range(ours.n_tokens)}
    unknown, control, user_defined = 1, 8, 16
    assert set(ours.special_tokens.values()) == {
        token for token, kind in kinds.items() if kind & (unknown | control | user_defined)
    }
    assert set(ours.control_tokens.values()) == {token for token, kind in kinds.items() if kind & control}
    assert set(ours.user_defined_tokens.values()) == {
        token for token, kind in kinds.items() if kind & user_defined and not kind & (control | unknown)
    }
    assert ours.eog_ids == {
        token for token in range(ours.n_tokens) if api.llama_vocab_is_eog(theirs.vocab, token)
    }
    assert ours.bos_id == api.llama_vocab_bos(theirs.vocab)
    assert ours.eos_id == api.llama_vocab_eos(theirs.vocab)
    # Which of several end-of-turn spellings llama.cpp takes follows the order of a hash table.
    assert {ours.eot_id, api.llama_vocab_eot(theirs.vocab)} <= ours.eog_ids
    assert ours.add_bos == api.llama_vocab_get_add_bos(theirs.vocab)
    assert ours.add_eos == api.llama_vocab_get_add_eos(theirs.vocab)


@pytest.mark.slow
@pytest.mark.skipif(not VOCABS, reason="needs AGENTKIT_TEST_VOCABS, the models folder of llama.cpp")
@pytest.mark.parametrize("path", sorted(Path(VOCABS).glob("ggml-vocab-*.gguf")) if VOCABS else [], ids=str)
def test_vocabularies_of_llama_cpp(path: Path) -> None:
    try:
        ours = GgufTokenizer(path)
    except UnsupportedTokenizer as error:
        pytest.skip(str(error))
    theirs = LlamaVocab(path)
    texts = [*WRITTEN, *random_texts(7, 3000, spellings(ours)), *sources(300_000)]
    if "llama" not in ours.model:
        # Some of llama.cpp's patterns recurse once a character and overflow the stack on long runs.
        texts = [text for text in texts if "x" * 2000 not in text]
    tokens, wrong = compare(ours, theirs, texts)
    theirs.close()
    print(f"{path.name} {ours!r}: {len(texts)} documents, {tokens} tokens, {len(wrong)} differences")
    assert not wrong, wrong[:5]


# Every pre-tokenizer, by one name for each set of rules: SmolLM2's vocabulary under that name.
RULES = (
    "afmoe", "bailingmoe", "bloom", "chameleon", "deepseek-coder", "deepseek-llm", "deepseek-v3", "default",
    "exaone-moe", "falcon", "glm4", "gpt-2", "gpt-4o", "granite-embed-multi-97m", "jais-2", "kimi-k2",
    "laguna", "llama-bpe", "minicpm5", "qwen2", "qwen35", "seed-coder", "spark2_5", "starcoder",
    "superbpe", "tekken", "tiny_aya", "ufakzeka", "viking", "youtu",
)  # fmt: skip


def renamed(source: Path, target: Path, name: str) -> Path:
    """The vocabulary of `source` under another `tokenizer.ggml.pre`, without its tensors."""
    from agentkit_fast._core import GgufHeader

    with source.open("rb") as file:
        raw = file.read(GgufHeader(source).byte_len)
    key = b"tokenizer.ggml.pre"
    at = raw.index(struct.pack("<Q", len(key)) + key) + 8 + len(key) + 4
    (old,) = struct.unpack_from("<Q", raw, at)
    value = name.encode()
    changed = raw[:at] + struct.pack("<Q", len(value)) + value + raw[at + 8 + old :]
    target.write_bytes(changed[:8] + struct.pack("<Q", 0) + changed[16:])
    return target


# Special tokens of SmolLM2 given other texts of the same length, so that occurrences overlap.
OVERLAPPING = {
    "<repo_name>": "abcabcabcab",
    "<issue_closed>": "bcabcabcabcabc",
    "<jupyter_output>": "cabcabcabcabcabx",
    "<gh_stars>": "\n" * 10,
    "<issue_comment>": "\n" * 15,
}


@pytest.mark.parametrize("mixed", [False, True], ids=["runs-apart", "runs-within-others"])
def test_overlapping_special_tokens(mixed: bool, smollm2_path: Path, tmp_path: Path) -> None:
    """The longest goes first, wherever it stands; half of them are USER_DEFINED and found always."""
    from agentkit_fast._core import GgufHeader

    path = renamed(smollm2_path, tmp_path / "vocab.gguf", "smollm")
    raw = path.read_bytes()
    types = GgufHeader(path).get("tokenizer.ggml.token_type")
    texts = OVERLAPPING | ({"<issue_start>": "\n" * 7 + "abcabc"} if mixed else {})
    for old, new in texts.items():
        assert len(old) == len(new)
        key = struct.pack("<Q", len(old))
        assert raw.count(key + old.encode()) == 1
        raw = raw.replace(key + old.encode(), key + new.encode())
    for token in (3, 8, 9, 14):
        types[token] = 4
    at = raw.index(b"tokenizer.ggml.token_type") + len("tokenizer.ggml.token_type") + 16
    raw = raw[:at] + struct.pack(f"<{len(types)}i", *types) + raw[at + 4 * len(types) :]
    path.write_bytes(raw)
    ours, theirs = GgufTokenizer(path), LlamaVocab(path)
    assert ours.special_tokens["abcabcabcab"] == 3
    draw = random.Random(6)
    samples = ["abc" * 40 + "x", "\n" * 60, "abc" * 2000 + "\n" * 3000]
    for _ in range(500):
        parts = [
            "abc",
            "bca",
            "cab",
            "x",
            "\n",
            "\n" * 5,
            "\n" * 12,
            "abcabcabcab",
            "cabcabcabcabcabx",
            " ",
        ]
        samples.append(
            "".join(draw.choice(parts) * draw.randrange(1, 4) for _ in range(draw.randrange(1, 12)))
        )
    _, wrong = compare(ours, theirs, samples)
    theirs.close()
    assert not wrong, wrong[:5]


COMPARE = """
import sys
from pathlib import Path
sys.path.insert(0, {tests!r})
from test_tokens_exact import GgufTokenizer, LlamaVocab, compare, spellings
from token_texts import WRITTEN, random_texts
path = Path({path!r})
ours, theirs = GgufTokenizer(path), LlamaVocab(path)
texts = [*WRITTEN[:-1], *random_texts(11, {count}, spellings(ours))]
tokens, wrong = compare(ours, theirs, texts)
print(f"{name}: {{len(texts)}} documents, {{tokens}} tokens, {{len(wrong)}} differences")
sys.exit("\\n".join(wrong[:5]) or None)
"""


# The rules of the models most in use run always; the others take a process each and are marked slow.
ALWAYS = {"default", "deepseek-v3", "gpt-2", "gpt-4o", "kimi-k2", "llama-bpe", "qwen2", "qwen35", "tekken"}


@pytest.mark.parametrize(
    "name", [name if name in ALWAYS else pytest.param(name, marks=pytest.mark.slow) for name in RULES]
)
def test_every_pre_tokenizer(name: str, smollm2_path: Path, tmp_path: Path) -> None:
    """In a process of its own: a pattern of llama.cpp that fails ends the process."""
    pytest.importorskip("llama_cpp")
    path = renamed(smollm2_path, tmp_path / "vocab.gguf", name)
    code = COMPARE.format(tests=str(Path(__file__).parent), path=str(path), name=name, count=120)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    print(done.stdout)
    assert done.returncode == 0, done.stderr[-3000:]
