"""`LocalRunner` used wrongly, interrupted, closed and forked: a clear error each time, and the next reply is right."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tiny_gguf

pytest.importorskip("llama_cpp")

from agentkit_fast.errors import InputTooLarge, ModelLoadError, RunnerError
from agentkit_fast.messages import ChatOptions, Message, ToolDef
from agentkit_fast.runners import LocalRunner
from agentkit_fast.text import heredoc_grammar

TOOLS_200 = [
    ToolDef(
        name=f"tool_{n}",
        parameters={"type": "object", "properties": {"path": {"type": "string"}, "n": {"type": "integer"}}},
    )
    for n in range(200)
]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_gguf.llama(tmp_path_factory.mktemp("model") / "tiny.gguf")


def load(path: Path, **options: Any) -> LocalRunner:
    return LocalRunner(path, n_threads=1, **{"n_ctx": 512, "n_batch": 16, **options})


@pytest.fixture(scope="module")
def runner(path: Path) -> Iterator[LocalRunner]:
    with load(path) as made:
        yield made


def ask(runner: LocalRunner, text: str, tools: Any = (), **options: Any) -> tuple[str, Any]:
    options = {"temperature": 0.0, "max_tokens": 8, **options}
    messages = [Message(role="user", content=text)]
    chunks = list(runner.chat_stream(messages, tools, ChatOptions(**options)))
    return "".join(chunk.content for chunk in chunks), chunks[-1]


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "a call without tools": ({"tool_choice": "required"}, "no tools were given"),
    "a named call without tools": ({"tool_choice": "read"}, "no tools were given"),
    "bias by spelling": ({"extra": {"logit_bias": {"the": 1}}}, "logit_bias must be"),
    "bias of no token": ({"extra": {"logit_bias": {259: 1}}}, "vocabulary has 259"),
    "bias of a negative token": ({"extra": {"logit_bias": {-1: 1}}}, "from 0 on"),
    "endless bias": ({"extra": {"logit_bias": {1: float("inf")}}}, "numbers, or -inf"),
    "every token forbidden": (
        {"extra": {"logit_bias": {n: float("-inf") for n in range(259)}}},
        "No token can be chosen",
    ),
    "every token forbidden, warm": (
        {"extra": {"logit_bias": {n: float("-inf") for n in range(259)}}, "temperature": 0.7},
        "No token can be chosen",
    ),
    "a seed in words": ({"seed": "abc"}, "whole number"),
    "a broken top_k": ({"extra": {"top_k": 1.5}}, "whole number"),
    "top_p beyond": ({"top_p": 1.5}, "within 0 to 1"),
    "an endless temperature": ({"temperature": float("inf")}, "must be a number"),
    "a stop that is a number": ({"stop": (5,)}, "stop is a text"),
}


@pytest.mark.parametrize(("options", "words"), WRONG.values(), ids=WRONG.keys())
def test_wrong_options(runner: LocalRunner, options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        ask(runner, "hello", **options)
    assert ask(runner, "hello")[1].done


IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}}


@pytest.mark.parametrize(
    ("messages", "words"),
    [
        ("hello", "list of messages"),
        ([{"role": "user", "content": 5}], "text or a list"),
        ([{"content": "x"}], "no role"),
        ([{"role": "user", "content": [{"type": "text", "text": "see"}, IMAGE]}], "--mmproj"),
    ],
)
@pytest.mark.parametrize("alternate", [False, True])
def test_wrong_messages(
    runner: LocalRunner, path: Path, messages: Any, words: str, alternate: bool
) -> None:
    if alternate:
        # Where a template folds roles together, nothing may get lost in the folding either.
        from agentkit_fast.runners._local.roles import TemplateRules, conform

        if words == "--mmproj":
            with pytest.raises(ValueError, match=words):
                conform(messages, TemplateRules(system_role=False, alternate=True))
        return
    with pytest.raises(ValueError, match=words):
        list(runner.chat_stream(messages))


def test_bias_is_added(runner: LocalRunner) -> None:
    favourite = ord("A")
    assert ask(runner, "x", extra={"logit_bias": {str(favourite): 100}})[0] == "AAAAAAAA"
    first = ask(runner, "x", max_tokens=1)[0]
    assert ask(runner, "x", max_tokens=1, extra={"logit_bias": [[ord(first), -100]]})[0] != first


def test_no_stop_is_no_stop(runner: LocalRunner) -> None:
    text, _ = ask(runner, "x")
    assert ask(runner, "x", stop=None)[0] == text
    assert ask(runner, "x", stop=("",))[0] == text
    # A stop that lies across tokens, given as one text.
    assert ask(runner, "x", stop=text[2:5])[0] == text[:2]
    cut, last = ask(runner, "x", stop="cd", grammar='root ::= "ab" "cde" "f"')
    assert (cut, last.finish_reason) == ("ab", "stop")


@pytest.mark.parametrize("spare", range(-2, 4))
def test_prompts_that_end_at_the_window(runner: LocalRunner, spare: int) -> None:
    base = len(runner._encoder.encode([{"role": "user", "content": ""}]).ids)
    text = "a" * (512 - spare - base)
    if spare <= 0:
        with pytest.raises(InputTooLarge, match="512"):
            ask(runner, text)
        return
    reply, last = ask(runner, text, max_tokens=0, grammar='root ::= "b"{600}')
    assert (reply, last.finish_reason) == ("b" * spare, "length")
    assert last.usage.total_tokens == 512


def test_a_window_that_is_no_multiple_of_256(path: Path) -> None:
    with load(path, n_ctx=300) as runner:
        base = len(runner._encoder.encode([{"role": "user", "content": ""}]).ids)
        reply, last = ask(runner, "a" * (290 - base), max_tokens=0, grammar='root ::= "b"{600}')
        assert (len(reply), last.usage.total_tokens) == (10, 300)
        with pytest.raises(InputTooLarge, match="300"):
            ask(runner, "a" * (300 - base))


def test_half_a_character_at_the_end(runner: LocalRunner) -> None:
    # Three of the four bytes of an emoji, and then the limit.
    text, last = ask(runner, "x", grammar='root ::= "a\U0001f642b"', max_tokens=4)
    assert (text, last.finish_reason) == ("a\ufffd", "length")
    assert ask(runner, "x", grammar='root ::= "a\U0001f642b"', max_tokens=9)[0] == "a\U0001f642b"
    # A stop string of several bytes a letter.
    assert ask(runner, "x", grammar='root ::= "a\U0001f642b"', stop=("\U0001f642",), max_tokens=9)[0] == "a"


def test_two_hundred_tools(smollm2_path: Path) -> None:
    with LocalRunner(smollm2_path, n_ctx=512, n_threads=1) as runner:
        text, _ = ask(
            runner, "Use a tool.", grammar=heredoc_grammar(TOOLS_200, allow_prose=False), max_tokens=12
        )
    assert text.startswith("@@call tool_")


class Boom(Exception):
    pass


@pytest.mark.parametrize("when", ["load", "prefill", "restore"])
@pytest.mark.parametrize("error", [Boom, KeyboardInterrupt])
def test_a_callback_that_raises(
    path: Path, tmp_path: Path, when: str, error: type[BaseException], capfd: pytest.CaptureFixture[str]
) -> None:
    raising = [True]

    def progress(what: str, fraction: float) -> None:
        assert 0.0 <= fraction <= 1.0
        if raising[0] and what == when:
            raise error(what)

    text = "a question that is long enough to be worth keeping for later"
    with load(path, state_cache=tmp_path) as runner:
        expected, _ = ask(runner, text)
    states = tmp_path if when == "restore" else None
    if when == "load":
        with pytest.raises(error, match="load"):
            load(path, on_progress=progress)
        raising[0] = False
    with load(path, on_progress=progress, state_cache=states) as runner:
        if when != "load":
            with pytest.raises(error, match=when):
                ask(runner, text)
            raising[0] = False
        assert ask(runner, text)[0] == expected
    assert capfd.readouterr() == ("", "")


def test_close_in_a_callback(path: Path) -> None:
    made: list[LocalRunner] = []
    runner = load(path, on_progress=lambda what, _: made[0].close() if what == "prefill" else None)
    made.append(runner)
    with pytest.raises(RunnerError, match="closed"):
        ask(runner, "a long prompt " * 5)
    runner.close()


def test_embed_in_a_callback(path: Path) -> None:
    made: list[LocalRunner] = []
    with load(
        path, on_progress=lambda what, _: made[0].embed("x") if what == "prefill" else None
    ) as runner:
        made.append(runner)
        assert ask(runner, "a long prompt " * 5)[1].done


AFTER_CLOSE: dict[str, Callable[[LocalRunner], Any]] = {
    "chat_stream": lambda runner: ask(runner, "x"),
    "chat_stream with a grammar": lambda runner: ask(runner, "x", grammar='root ::= "never compiled"'),
    "achat_stream": lambda runner: asyncio.run(
        anext(runner.achat_stream([{"role": "user", "content": "x"}]))
    ),
    "embed": lambda runner: runner.embed("x"),
    "its vocabulary": lambda runner: runner._model.vocab.tokenize(b"x"),
}


@pytest.mark.parametrize("use", AFTER_CLOSE.values(), ids=AFTER_CLOSE.keys())
def test_use_after_close(path: Path, use: Callable[[LocalRunner], Any]) -> None:
    runner = load(path)
    stats = runner.stats()
    runner.close()
    runner.close()
    with pytest.raises(RunnerError, match="closed"):
        use(runner)
    assert runner.stats().totals == stats.totals
    assert runner.count_tokens("abc") == 3


def test_close_while_others_ask(path: Path) -> None:
    for round_number in range(8):
        runner = load(path)
        ended: list[type[BaseException]] = []

        def work(runner: LocalRunner = runner, ended: list[type[BaseException]] = ended) -> None:
            try:
                while True:
                    ask(runner, "hello", max_tokens=3, grammar="root ::= [a-z]{2}")
            except RunnerError as error:
                ended.append(type(error))

        threads = [threading.Thread(target=work) for _ in range(3)]
        for thread in threads:
            thread.start()
        time.sleep(0.005 * (round_number % 4))
        closers = [threading.Thread(target=runner.close) for _ in range(2)]
        for thread in closers:
            thread.start()
        for thread in [*threads, *closers]:
            thread.join(20)
            assert not thread.is_alive()
        assert len(ended) == 3


def test_many_threads_on_one_runner(runner: LocalRunner) -> None:
    expected = {n: ask(runner, f"question {n}")[0] for n in range(4)}
    wrong: list[Any] = []

    def work(number: int) -> None:
        for _ in range(8):
            text, _ = ask(runner, f"question {number}", session_id=str(number))
            if text != expected[number]:
                wrong.append((number, text))

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert wrong == []


def test_a_loop_that_is_gone_ends_its_reply(path: Path) -> None:
    with load(path, n_ctx=2048, repetition=False) as runner:
        # Closed in the middle, and the generator is never: nobody will read what comes.
        loop = asyncio.new_event_loop()
        stream = runner.achat_stream(
            [{"role": "user", "content": "x"}], options=ChatOptions(grammar="root ::= [a-c]{2000}")
        )
        loop.run_until_complete(anext(stream))
        loop.close()
        deadline = time.monotonic() + 20
        while runner._engine._running and time.monotonic() < deadline:
            time.sleep(0.01)
        assert not runner._engine._running
        assert runner.stats().turns[-1].sampled < 1900


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_process_is_told(path: Path) -> None:
    script = f"""
import os, sys
from agentkit_fast import LocalRunner, RunnerError
runner = LocalRunner({str(path)!r}, n_ctx=512, n_threads=2)
stream = runner.chat_stream([{{"role": "user", "content": "x"}}])
next(stream)
child = os.fork()
if child == 0:
    for use in (lambda: list(runner.chat_stream([{{"role": "user", "content": "x"}}])), lambda: runner.embed("x")):
        try:
            use()
        except RunnerError as error:
            assert "forked" in str(error)
        else:
            sys.exit(1)
    runner.close()
    sys.exit(7)  # the normal way out, with everything that runs at exit
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), sum(chunk.done for chunk in stream))
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.stdout, done.stderr, done.returncode) == ("7 1\n", "", 0)


@pytest.mark.parametrize("constraint", ["gbnf", "auto"])
def test_a_grammar_that_forces_more_than_a_batch(path: Path, constraint: str) -> None:
    with load(path, constraint=constraint) as runner:
        said = "x" + "forced, word by word; " * 5
        text, last = ask(runner, "x", grammar=f'root ::= [xy] "{said[1:]}"', max_tokens=0)
        assert (text[1:], last.finish_reason) == (said[1:], "stop")
        assert last.usage.completion_tokens == len(said)


def drain(stream: Iterator[Any]) -> None:
    for _ in stream:
        pass
    while True:  # the signal comes while something waits, at the latest here
        pass


def test_ctrl_c_while_waiting(path: Path) -> None:
    with load(path, n_ctx=2048, repetition=False) as runner:
        stream = runner.chat_stream(
            [{"role": "user", "content": "x"}], options=ChatOptions(grammar="root ::= [a-c]{2000}")
        )
        # Ctrl-C's handler, by a timer that needs no thread and is not the one pytest-timeout uses.
        before = signal.signal(signal.SIGVTALRM, signal.default_int_handler)
        signal.setitimer(signal.ITIMER_VIRTUAL, 0.05)
        try:
            with pytest.raises(KeyboardInterrupt) as caught:
                drain(stream)
        finally:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
            signal.signal(signal.SIGVTALRM, before)
        if not any("runners" in line.path.parts for line in caught.traceback):
            stream.close()  # it came between two chunks, in a line of ours: then closing is ours as well
        # Nobody reads on: the reply is stopped without a close.
        deadline = time.monotonic() + 20
        while runner._engine._running and time.monotonic() < deadline:
            time.sleep(0.01)
        assert runner.stats().turns[-1].sampled < 1900
        assert ask(runner, "hello")[1].done


@pytest.mark.parametrize("cut", [4, 100, 5000, 60_000, -1])
def test_a_cut_model(path: Path, tmp_path: Path, cut: int) -> None:
    broken = tmp_path / "cut.gguf"
    broken.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(ModelLoadError, match=r"cut\.gguf"):
        load(broken)


def test_two_processes_on_one_state_cache(path: Path, tmp_path: Path) -> None:
    script = f"""
import sys
from agentkit_fast import ChatOptions, LocalRunner
with LocalRunner({str(path)!r}, n_ctx=512, n_threads=1, n_sessions=1, state_cache={str(tmp_path)!r},
                 snapshot_bytes=20_000, state_cache_bytes=300_000) as runner:
    for n in range(25):
        for text in (f"shared question {{n % 5}}, the same in both", sys.argv[1] + str(n) + " of its own, and long"):
            chunks = list(runner.chat_stream(
                [{{"role": "user", "content": text}}], options=ChatOptions(temperature=0, max_tokens=5)))
            print(text, "".join(c.content for c in chunks))
"""
    runs = [
        subprocess.Popen(
            [sys.executable, "-c", script, name], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for name in ("left", "right")
    ]
    said: dict[str, str] = {}
    for run in runs:
        out, errors = run.communicate(timeout=120)
        assert (run.returncode, errors) == (0, "")
        for line in out.splitlines():
            question, _, reply = line.rpartition(" ")
            assert said.setdefault(question, reply) == reply
    assert sum(file.stat().st_size for file in tmp_path.glob("*.akstate")) <= 300_000
    assert list(tmp_path.glob("*.tmp")) == []


def test_what_a_killed_process_left_half_written_goes(tmp_path: Path) -> None:
    from agentkit_fast.runners._local.state_cache import StateCache

    old, fresh = tmp_path / "old.tmp", tmp_path / "fresh.tmp"
    old.write_bytes(b"half")
    fresh.write_bytes(b"half")
    os.utime(old, (time.time() - 7200,) * 2)
    StateCache(tmp_path, "k" * 64, 1000).save(np.arange(3, dtype=np.int32), np.zeros(10, dtype=np.uint8))
    assert not old.exists()
    assert fresh.exists()


def test_put_aside_on_disk_and_found_again(path: Path, tmp_path: Path) -> None:
    """Where host memory holds no snapshot, the disk does, also within one process; and its reading is told."""
    told: list[tuple[str, float]] = []
    with load(
        path,
        n_sessions=1,
        state_cache=tmp_path,
        snapshot_bytes=0,
        on_progress=lambda what, part: told.append((what, part)),
    ) as runner:
        first, _ = ask(runner, "the first question, which is put aside")
        for n in range(4):
            ask(runner, f"{n} others come in between, one after the other")
        told.clear()
        again, _ = ask(runner, "the first question, which is put aside")
        record = runner.stats().turns[-1]
    assert (again, record.source, record.evaluated) == (first, "disk", 1)
    assert [part for what, part in told if what == "restore"][-1] == 1.0


def test_a_bar_goes_when_the_work_is_given_up(path: Path) -> None:
    told: list[tuple[str, float]] = []
    with load(path, n_ctx=2048, on_progress=lambda what, part: told.append((what, part))) as runner:
        for _ in range(20):
            told.clear()
            stream = runner.chat_stream([{"role": "user", "content": "a long prompt " * 130}])
            while not told:
                time.sleep(0.0005)
            stream.close()
            assert told[-1] == ("prefill", 1.0)
            assert [part for _, part in told] == sorted(part for _, part in told)


def embedding_twin(path: Path, ids: np.ndarray, pooling: int) -> np.ndarray:
    """llama-cpp-python's own call on the same file."""
    from llama_cpp import Llama

    made = Llama(str(path), embedding=True, n_threads=1, verbose=False, pooling_type=pooling)
    vector = np.array(made.embed(made.detokenize(ids.tolist()).decode().strip(), normalize=True))
    made.close()
    return vector


@pytest.mark.parametrize("pooling", [1, 2], ids=["mean", "first token"])
def test_an_embedding_model(tmp_path: Path, pooling: int, recwarn: pytest.WarningsRecorder) -> None:
    path = tiny_gguf.bert(tmp_path / "bert.gguf", pooling=pooling)
    with LocalRunner(path, n_threads=1) as runner:
        vectors = np.array(runner.embed(["a cat sat", "dog", "a cat sat", ""]))
        assert vectors.shape == (4, tiny_gguf.WIDTH)
        assert np.linalg.norm(vectors, axis=1) == pytest.approx(np.ones(4), abs=1e-5)
        assert vectors[0] == pytest.approx(vectors[2])
        for text, vector in (("a cat sat", vectors[0]), ("dog", vectors[1])):
            ids = runner._model.vocab.tokenize(text.encode())
            assert embedding_twin(path, ids, pooling) == pytest.approx(vector, abs=1e-3), text
        # Beyond its table of positions llama.cpp would end the process.
        with pytest.raises(InputTooLarge, match="128"):
            runner.embed("a " * 127)
        assert len(runner.embed("a " * 126)) == 1
        with pytest.raises(RunnerError, match="embedding model"):
            ask(runner, "hello")
    assert [str(warning.message) for warning in recwarn if "template" in str(warning.message)] == []
    with pytest.raises(ValueError, match="beyond 128"):
        LocalRunner(path, n_ctx=512, n_threads=1)


def test_lora(path: Path, tmp_path: Path) -> None:
    adapter = tiny_gguf.lora(tmp_path / "lora.gguf")
    with load(path) as plain, load(path, lora_path=adapter) as changed:
        off = load(path, lora_path=adapter, lora_scale=0.0)
        texts = [ask(runner, "the same question", max_tokens=16)[0] for runner in (plain, changed, off)]
        off.close()
    assert texts[0] == texts[2] != texts[1]
    with pytest.raises(ModelLoadError, match="LoRA"):
        load(path, lora_path=path)
