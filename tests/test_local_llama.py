"""What `LocalRunner` needs of llama-cpp-python, held against the installed release."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from agentkit_fast.errors import ModelLoadError

pytest.importorskip("llama_cpp")

from agentkit_fast.runners._local import llama
from agentkit_fast.runners._local.memory import plan_cells
from agentkit_fast.runners._local.threads import choose_threads, cores

pytestmark = pytest.mark.model


@pytest.fixture(scope="module")
def model(smollm2_path: Path) -> llama.Model:
    return llama.Model(smollm2_path)


@pytest.fixture
def context(model: llama.Model):
    made = llama.Context(model, n_cells=1024, n_sequences=4, n_batch=64)
    yield made
    made.close()


def ids_of(model: llama.Model, text: str) -> np.ndarray:
    return model.vocab.tokenize(text.encode())


def test_long_pieces_are_whole(model: llama.Model) -> None:
    longest = max((model.vocab.piece(t) for t in range(model.vocab.size)), key=len)
    assert len(longest) > 32
    text = "def f():\n" + " " * 32 + "return 1\n" + "-" * 64
    assert model.vocab.bytes_of(ids_of(model, text)).decode() == text


def test_vocabulary(model: llama.Model) -> None:
    vocab = model.vocab
    assert vocab.size == 49152
    assert {vocab.piece(t) for t in vocab.eog} == {b"<|endoftext|>", b"<|im_end|>", b"<reponame>"}
    assert not set(vocab.eog) & set(vocab.banned.tolist())
    assert b"<|im_start|>" in {vocab.piece(int(t)) for t in vocab.banned}
    assert model.n_ctx_train == 8192
    assert model.rewinds
    assert model.kv_bytes_per_token() == 30 * 3 * (64 + 64) * 2


def test_logits_do_not_depend_on_how_the_prompt_is_cut(context: llama.Context, model: llama.Model) -> None:
    ids = ids_of(model, "The quick brown fox jumps over the lazy dog. " * 3)
    assert context.decode(ids, 0, 0) == 0
    whole = context.logits().copy()
    for start in range(0, len(ids), 7):
        assert context.decode(ids[start : start + 7], start, 1) == 0
    assert np.abs(context.logits() - whole).max() < 1.5
    assert int(context.logits().argmax()) == int(whole.argmax())


def test_copy_truncate_save_and_restore(context: llama.Context, model: llama.Model) -> None:
    ids = ids_of(model, "One two three four five six seven eight nine ten.")
    assert context.decode(ids, 0, 0) == 0
    expected = context.logits().copy()
    context.copy(0, 1, len(ids) - 1)
    assert context.length(1) == len(ids) - 1
    assert context.decode(ids[-1:], len(ids) - 1, 1) == 0
    assert int(context.logits().argmax()) == int(expected.argmax())
    assert context.length(0) == len(ids)
    state = context.save(0)
    assert context.truncate(0, 3) == 3
    assert context.truncate(0, 0) == 0
    assert context.length(0) == 0
    assert context.restore(2, state)
    assert context.length(2) == len(ids)
    assert context.truncate(2, len(ids) - 1) == len(ids) - 1
    assert context.decode(ids[-1:], len(ids) - 1, 2) == 0
    assert int(context.logits().argmax()) == int(expected.argmax())
    assert not context.restore(3, state[: len(state) // 2].copy())


def test_abort_leaves_a_usable_context(context: llama.Context, model: llama.Model) -> None:
    ids = ids_of(model, "alpha beta gamma " * 20)[:60]
    context.flag.set()
    assert context.decode(ids, 0, 0) == llama.ABORTED
    context.flag.clear()
    assert context.truncate(0, 0) == 0
    assert context.decode(ids, 0, 0) == 0


def test_a_full_cache_is_an_answer(model: llama.Model) -> None:
    context = llama.Context(model, n_cells=256, n_sequences=2, n_batch=256)
    ids = np.full(200, 100, dtype=np.int32)
    assert context.decode(ids, 0, 0) == 0
    assert context.decode(ids[:100], 0, 1) == llama.NO_ROOM
    context.close()


def test_evaluated_tokens_are_counted_by_llama_cpp_itself(
    context: llama.Context, model: llama.Model
) -> None:
    context.reset_evaluated()
    ids = ids_of(model, "one two three four five six")
    context.decode(ids, 0, 0)
    context.logits()
    context.decode(ids[:1], len(ids), 0)
    assert context.evaluated() == (len(ids), 1)


@pytest.mark.parametrize(
    ("gbnf", "text", "accepted"),
    [
        ('root ::= "yes" | "no"', "yes", True),
        ('root ::= "yes" | "no"', "nope", False),
        ('root ::= [a-z]+ "-" [0-9]{2}', "ab-12", True),
        ('root ::= [a-z]+ "-" [0-9]{2}', "ab-1x", False),
    ],
)
def test_grammar(model: llama.Model, gbnf: str, text: str, accepted: bool) -> None:
    grammar = llama.Grammar(model.vocab, gbnf)
    fits = True
    for token in ids_of(model, text):
        fits = fits and grammar.allows(int(token))
        if fits:
            grammar.accept(int(token))
    assert (fits and grammar.allows(model.vocab.eos)) == accepted


def test_a_rejected_token_is_an_error_and_not_the_end_of_the_process(model: llama.Model) -> None:
    grammar = llama.Grammar(model.vocab, 'root ::= "yes"')
    with pytest.raises(ValueError, match="does not fit"):
        grammar.accept(int(ids_of(model, "no")[0]))
    with pytest.raises(ValueError, match="does not fit"):
        grammar.accept(model.vocab.eos)


def test_bad_files_say_what_is_wrong(tmp_path: Path, smollm2_path: Path) -> None:
    empty, text, cut = tmp_path / "empty.gguf", tmp_path / "text.gguf", tmp_path / "cut.gguf"
    empty.write_bytes(b"")
    text.write_bytes(b"hello, I am no model")
    with smollm2_path.open("rb") as file:
        cut.write_bytes(file.read(10_000_000))
    for path, words in (
        (tmp_path / "missing.gguf", "no file"),
        (tmp_path, "folder"),
        (empty, "empty"),
        (text, "begins with b'hell'"),
        (cut, "cut short"),
    ):
        with pytest.raises(ModelLoadError, match=words):
            llama.Model(path)


def test_unknown_architecture(tmp_path: Path, smollm2_path: Path) -> None:
    data = smollm2_path.read_bytes()
    odd = tmp_path / "odd.gguf"
    odd.write_bytes(data.replace(b"llama", b"lxmaa"))
    with pytest.raises(ModelLoadError, match="architecture"):
        llama.Model(odd)


def test_nothing_is_written_to_the_terminal(smollm2_path: Path) -> None:
    script = (
        "from agentkit_fast.runners._local import llama\n"
        f"m = llama.Model({str(smollm2_path)!r}, vocab_only=True)\n"
        "try:\n    llama.Grammar(m.vocab, 'root ::= root \"a\"')\nexcept ValueError:\n    pass\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True)
    assert (done.stdout, done.stderr) == (b"", b"")


@pytest.mark.parametrize("version", ["0.3.35", "0.2.90", "0.4.0", "1.0.0"])
def test_other_versions_are_refused_by_name(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    import llama_cpp

    monkeypatch.setattr(llama, "_binding", None)
    monkeypatch.setattr(llama_cpp, "__version__", version)
    with pytest.raises(ImportError, match=version):
        llama.binding()


def test_threads_are_measured(context: llama.Context) -> None:
    count, medians = choose_threads(context, 0)
    assert 1 <= count <= cores()
    assert cores() == 1 or (1 in medians and medians[count] <= min(medians.values()) * 1.1)
    assert context.length(0) == 0


@pytest.mark.parametrize(
    ("given", "planned"),
    [
        # A window asked for is taken, whatever memory says; the cache holds one per session within the pool.
        ({"n_ctx": 1000, "memory": 1 << 40}, (1000, 4096)),
        ({"n_ctx": 1024, "memory": 1 << 20}, (1024, 1024)),
        ({"n_ctx": 0, "memory": 1 << 40}, (8192, 10240)),
        ({"n_ctx": 0, "memory": 4 * 2048 * 1000}, (2048, 2048)),
        ({"n_ctx": 0, "memory": 0}, (256, 256)),
        ({"n_ctx": 0, "memory": 1 << 40, "trained": 0}, (4096, 10240)),
    ],
)
def test_windows_fit_the_memory(given: dict[str, int], planned: tuple[int, int]) -> None:
    base = {"trained": 8192, "n_sessions": 4, "token_bytes": 1000, "pool_bytes": 10_000_000}
    assert plan_cells(**{**base, **given}) == planned


def test_a_model_loads_with_nothing_but_its_path(smollm2_path: Path) -> None:
    from agentkit_fast import ChatOptions, LocalRunner

    with LocalRunner(smollm2_path) as runner:
        assert 256 <= runner.profile.context_tokens <= 8192
        chunks = list(
            runner.chat_stream([{"role": "user", "content": "Hi"}], options=ChatOptions(max_tokens=2))
        )
    assert chunks[-1].done


def test_ctrl_c_while_a_model_loads_is_not_swallowed(smollm2_path: Path) -> None:
    seen: list[float] = []

    def press(fraction: float) -> None:
        seen.append(fraction)
        signal.raise_signal(signal.SIGINT)

    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        llama.Model(smollm2_path, progress=press)
    assert len(seen) == 1, "the loading went on"
    assert signal.getsignal(signal.SIGINT) is before
    model = llama.Model(smollm2_path, vocab_only=True)
    model.close()
