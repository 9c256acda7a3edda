"""How a reply comes out: UTF-8, stops, reasoning, loops, calls, grammars."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("llama_cpp")

from agentkit_fast._core import LoopWatch
from agentkit_fast.messages import ChatOptions, Message, ToolDef
from agentkit_fast.runners import LocalRunner
from agentkit_fast.runners._local import llama
from agentkit_fast.runners._local.calls import HeredocCalls, TaggedCalls
from agentkit_fast.runners._local.constraint import CallTrigger, Constraints, GbnfConstraint
from agentkit_fast.runners._local.fallback import fallback_template
from agentkit_fast.runners._local.gbnf import parse_gbnf
from agentkit_fast.runners._local.output import StopFinder, Thinking, Utf8
from agentkit_fast.runners._local.sampling import Sampler, Sampling
from agentkit_fast.text import heredoc_grammar, parse_tool_calls

sys.path.insert(0, str(Path(__file__).parent))
CASES = {
    case["id"]: case
    for case in map(
        json.loads,
        (Path(__file__).parent / "data/cases/local_cases.jsonl").read_text(encoding="utf-8").splitlines(),
    )
}
TOOLS = [
    ToolDef(
        name="write_file",
        parameters={
            "type": "object",
            "properties": {
                "path": {"type": "string"},
                "content": {"type": "string"},
                "mode": {"enum": ["a", "w"]},
                "lines": {"type": "integer"},
                "options": {"type": "object"},
            },
        },
    ),
    ToolDef(name="read-file", parameters={"type": "object", "properties": {"path": {"type": "string"}}}),
]


def test_case_l11() -> None:
    case = CASES["L11"]
    utf8 = Utf8()
    emitted = [utf8.push(bytes.fromhex(piece)) for piece in case["input"]["pieces_hex"]]
    emitted[-1] += utf8.finish()
    assert emitted == case["expected"]["emitted"]


@given(st.text(max_size=60), st.lists(st.text(min_size=1, max_size=4), min_size=1, max_size=3), st.data())
@settings(max_examples=150, deadline=None)
def test_stops_are_found_wherever_the_text_is_cut(text: str, stops: list[str], data: st.DataObject) -> None:
    at = min((text.find(stop) for stop in stops if stop in text), default=len(text))
    finder = StopFinder(stops)
    shown, rest = "", text
    while rest:
        size = data.draw(st.integers(1, len(rest)))
        shown += finder.push(rest[:size])
        rest = rest[size:]
    shown += finder.finish()
    assert shown == text[:at]
    assert bool(finder.found) == (at < len(text))


@pytest.mark.parametrize("size", [1, 2, 5, 100])
@pytest.mark.parametrize(
    ("text", "open_already", "reasoning", "content"),
    [
        ("hello <think>", False, "", "hello <think>"),
        ("<think>\na b\n</think>\n\nreply</think>", False, "\na b\n", "reply</think>"),
        ("a b</think>reply", True, "a b", "reply"),
        ("<think>never closed", False, "never closed", ""),
        ("<thin", False, "", "<thin"),
        ("  <think>x</think>", False, "x", ""),
        ("", False, "", ""),
    ],
)
def test_reasoning(text: str, open_already: bool, reasoning: str, content: str, size: int) -> None:
    thinking = Thinking(open_already=open_already)
    parts = [thinking.push(text[n : n + size]) for n in range(0, len(text), size)] + [thinking.finish()]
    assert ("".join(r for r, _ in parts), "".join(c for _, c in parts)) == (reasoning, content)


@pytest.mark.parametrize(
    "text",
    [
        "@@call f",
        "say\n@@call f",
        "x @@call f",
        "@@ca\n@@call f",
        "\n\n@@call f",
        "@@@call f",
        "@@call\nf",
        "a",
    ],
)
def test_the_trigger_is_found_at_line_starts_only(text: str) -> None:
    expected = [m.end() for m in re.finditer(r"^@@call ", text, re.MULTILINE)][:1]
    for size in range(1, len(text) + 1):
        trigger = CallTrigger()
        found = []
        for start in range(0, len(text), size):
            piece = text[start : start + size].encode()
            at = trigger.find(piece)
            if at >= 0:
                found = [start + at]
                break
            trigger.push(piece)
        assert found == expected, size


def test_tagged_calls() -> None:
    text = 'I read.\n<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call> x <tool_call>no json</tool_call>'
    for size in (1, 3, 500):
        parser = TaggedCalls()
        chunks = [
            c for n in range(0, len(text), size) for c in parser.push(text[n : n + size])
        ] + parser.finish()
        assert [(c.tool_call.name, c.tool_call.arguments) for c in chunks if c.tool_call] == [
            ("f", '{"a":1}')
        ]
        assert "".join(c.content for c in chunks) == "I read.\n x <tool_call>no json</tool_call>"
        assert parser.partial == ()
    parser = TaggedCalls()
    assert parser.push('<tool_call>{"name": "rm"') == []
    assert parser.finish() == []
    assert len(parser.partial) == 1


def test_heredoc_calls() -> None:
    text = 'I read.\n@@call f\n{ a: 1 }\n@@end\n@@call g\n{ b: "x'
    parser = HeredocCalls()
    chunks = [c for n in range(0, len(text), 3) for c in parser.push(text[n : n + 3])] + parser.finish()
    assert [c.tool_call.name for c in chunks if c.tool_call] == ["f"]
    assert [call.name for call in parser.partial] == ["g"]
    assert "".join(c.content for c in chunks).strip() == "I read."


def logits(values: dict[int, float], size: int = 1000) -> np.ndarray:
    made = np.full(size, -50, dtype=np.float32)
    for token, value in values.items():
        made[token] = value
    return made


def test_sampling_follows_the_weights() -> None:
    sampler = Sampler(
        Sampling(temperature=1.0, top_p=1.0, min_p=0.0, top_k=0, seed=7), np.empty(0, dtype=np.int32)
    )
    given = logits({3: 2.0, 5: 1.0, 7: 0.0})
    drawn = [sampler.choose(given) for _ in range(4000)]
    weights = np.exp([2.0, 1.0, 0.0])
    weights /= weights.sum()
    assert [drawn.count(t) / 4000 for t in (3, 5, 7)] == pytest.approx(weights, abs=0.03)


@pytest.mark.parametrize(
    ("options", "allowed"),
    [
        ({"temperature": 0.0}, {3}),
        ({"temperature": 5.0, "top_k": 2}, {3, 5}),
        ({"temperature": 5.0, "top_p": 0.6}, {3}),
        ({"temperature": 5.0, "min_p": 0.3}, {3, 5}),
        ({"temperature": 5.0, "top_k": 0, "top_p": 1.0, "min_p": 0.1}, {3, 5, 7}),
    ],
)
def test_sampling_bounds(options: dict[str, float], allowed: set[int]) -> None:
    base = {"min_p": 0.0, "top_p": 1.0, "top_k": 0, "seed": 1}
    sampler = Sampler(Sampling(**{**base, **options}), np.empty(0, dtype=np.int32))
    assert {sampler.choose(logits({3: 2.0, 5: 1.0, 7: 0.0})) for _ in range(300)} == allowed


def test_penalties() -> None:
    sampling = Sampling(temperature=0, repeat_penalty=2.0, frequency_penalty=0.25, presence_penalty=0.5)
    sampler = Sampler(sampling, np.array([3, 3, 5], dtype=np.int32))
    sampler.accept(7)
    given = logits({3: 4.0, 5: -1.0, 7: 0.0})
    sampler.prepare(given)
    assert given[[3, 5, 7]].tolist() == [4.0 / 2 - 2 * 0.25 - 0.5, -1.0 * 2 - 0.25 - 0.5, 0.0 - 0.25 - 0.5]


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": -1.0},
        {"temperature": float("nan")},
        {"repeat_penalty": 0.0},
        {"extra": {"top_k": "many"}},
        {"extra": {"min_p": 2}},
    ],
)
def test_options_that_mean_nothing(options: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="must be"):
        Sampling.from_options(ChatOptions(**options))  # type: ignore[arg-type]


def test_loop_watch() -> None:
    watch = LoopWatch()
    assert not any(watch.push(n) for n in range(50))
    cycle = list(range(100, 112))
    states = [watch.push(t) for t in cycle * 4]
    assert not any(states[: 2 * 12 - 1])
    assert all(states[2 * 12 :])
    assert watch.period == 12
    keep = watch.boundary(50 + 24)
    assert (keep - 50) % 12 == 0
    assert keep >= 74
    watch.rewind(keep)
    assert len(watch.tokens) == keep
    assert not watch.push(999)


@pytest.mark.parametrize(
    ("tokens", "name"),
    [
        ({"<|im_start|>": 1, "<|im_end|>": 2}, "ChatML"),
        ({"<start_of_turn>": 1, "<end_of_turn>": 2}, "Gemma"),
        ({"<|start_header_id|>": 1, "<|end_header_id|>": 2, "<|eot_id|>": 3}, "Llama 3"),
        ({"[INST]": 1, "[/INST]": 2}, "Mistral"),
        ({"<unk>": 0}, "plain"),
    ],
)
def test_fallback_templates(tokens: dict[str, int], name: str) -> None:
    assert fallback_template(tokens)[0] == name


# Both engines, on both vocabularies.


@pytest.fixture(scope="module", params=["smollm2", "gemma"])
def vocab_model(request: pytest.FixtureRequest) -> llama.Model:
    return llama.Model(request.getfixturevalue(f"{request.param}_path"), vocab_only=True)


@pytest.fixture(scope="module")
def vocab(vocab_model: llama.Model) -> llama.Vocab:
    return vocab_model.vocab


@pytest.fixture(scope="module", params=["gbnf", "llguidance"])
def constraints(request: pytest.FixtureRequest, vocab: llama.Vocab) -> Constraints:
    if request.param == "llguidance":
        pytest.importorskip("llguidance")
    return Constraints(vocab, request.param)


@pytest.mark.model
@pytest.mark.parametrize("seed", range(4))
def test_what_is_drawn_at_random_parses(constraints: Constraints, vocab: llama.Vocab, seed: int) -> None:
    """The model is replaced by noise: whatever comes out is held together by the grammar alone."""
    plan = constraints.plan(heredoc_grammar(TOOLS, max_calls=2, allow_prose=False))
    assert plan is not None
    assert not plan.prose
    constraint = plan.begin()
    noise = np.random.default_rng(seed)
    sampler = Sampler(Sampling(temperature=1.0, seed=seed), np.empty(0, dtype=np.int32))
    favoured = [
        int(t)
        for text in ("}", '"', "\n", "\n@@end", " }", "~~~", ":")
        for t in vocab.tokenize(text.encode())
    ]
    out: list[int] = []
    for _ in range(160):
        scores = noise.normal(size=vocab.size).astype(np.float32)
        scores[favoured] += 8
        scores[list(vocab.eog)] += 8
        scores[vocab.banned] = -np.inf
        token = sampler.choose(scores)
        if not constraint.allows(token):
            chosen = constraint.choose(sampler, scores)
            assert chosen is not None
            token = chosen
        if token in vocab.eog:
            break
        constraint.accept(token)
        out.append(token)
        for forced in constraint.forced():
            assert constraint.allows(forced)
            constraint.accept(forced)
            out.append(forced)
    text = vocab.bytes_of(out).decode("utf-8", "replace")
    parsed = parse_tool_calls(text)
    if token in vocab.eog:
        assert parsed.problem is None, text
        assert parsed.calls
    else:
        assert parsed.problem is None or parsed.problem.kind == "truncated", text
    assert {call.name for call in parsed.calls} <= {"write_file", "read-file"}


@pytest.mark.model
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_refused_token_is_replaced_as_a_look_at_all_would(vocab: llama.Vocab, temperature: float) -> None:
    """The search from the top and by first bytes, against the whole vocabulary put to the grammar."""
    grammar = llama.Grammar(vocab, heredoc_grammar(TOOLS, max_calls=1, allow_prose=False))
    constraint = GbnfConstraint(grammar, vocab)
    everything = np.arange(vocab.size)
    noise = np.random.default_rng(5)
    for step in range(14):
        scores = noise.normal(scale=4, size=vocab.size).astype(np.float32)
        scores[vocab.banned] = -np.inf
        allowed = everything[grammar.allowed(everything)]
        allowed = allowed[np.isfinite(scores[allowed])]
        sampling = Sampling(temperature=temperature, seed=step)
        empty = np.empty(0, dtype=np.int32)
        expected = Sampler(sampling, empty).choose(scores[allowed], allowed)
        assert constraint.choose(Sampler(sampling, empty), scores) == expected, step
        # On by a way that is not over soon.
        token = next(t for t in allowed[np.argsort(-scores[allowed])] if int(t) not in vocab.eog)
        grammar.accept(int(token))
    constraint.close()


@pytest.mark.model
def test_prose_is_free_until_a_call(constraints: Constraints) -> None:
    plan = constraints.plan(heredoc_grammar(TOOLS))
    assert plan is not None
    assert plan.prose
    own = constraints.plan('root ::= ("a" | call)\ncall ::= "@@call " "x"')
    assert own is not None
    assert not own.prose


@pytest.mark.model
@pytest.mark.parametrize(
    "gbnf",
    [
        r'root ::= [a-z\-]+ "\-"? [^\]\[]{2}',
        r'root ::= "\x41\u0042\U00000043" [\u3040-\u309f]+',
        'root ::= a | b\na ::= "x" a | "y"\nb ::= ("(" b ")")?',
        'root ::= "a" | "" | "b" root',
        "root ::= . .{2,3} #comment\n",
        'root ::= (\n  "a"\n  | "b"\n)\n',
    ],
)
def test_all_of_gbnf(constraints: Constraints, gbnf: str) -> None:
    plan = constraints.plan(gbnf)
    assert plan is not None
    plan.begin().close()


def test_gbnf_errors_say_where() -> None:
    with pytest.raises(ValueError, match="line 2, column 7"):
        parse_gbnf("root ::= a\na ::= %")


@pytest.fixture(scope="module")
def runner(smollm2_path: Path) -> Iterator[LocalRunner]:
    with LocalRunner(smollm2_path, n_ctx=1024, n_threads=1) as made:
        yield made


def ask(runner: LocalRunner, text: str, tools=(), **options):
    options.setdefault("temperature", 0.0)
    chunks = list(runner.chat_stream([Message(role="user", content=text)], tools, ChatOptions(**options)))
    return "".join(c.content for c in chunks), chunks


@pytest.mark.model
def test_tools_handed_to_the_runner(runner: LocalRunner) -> None:
    text, chunks = ask(runner, "Read a.py", TOOLS, tool_choice="read-file", max_tokens=90)
    calls = [c.tool_call for c in chunks if c.tool_call]
    assert calls
    assert {call.name for call in calls} == {"read-file"}
    assert all(isinstance(json.loads(call.arguments), dict) for call in calls)
    assert "@@" not in text
    with pytest.raises(ValueError, match="none of the tools"):
        ask(runner, "x", TOOLS, tool_choice="rm")
    _, chunks = ask(runner, "x", TOOLS, tool_choice="none", max_tokens=2)
    assert chunks[-1].usage.prompt_tokens < 60


@pytest.mark.model
def test_response_format(runner: LocalRunner) -> None:
    schema = {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer"}},
        "required": ["name", "age"],
    }
    wanted = {"type": "json_schema", "json_schema": {"name": "person", "schema": schema}}
    text, chunks = ask(runner, "Invent a person.", response_format=wanted, max_tokens=80)
    assert chunks[-1].finish_reason == "stop"
    assert set(json.loads(text)) == {"name", "age"}
    with pytest.raises(ValueError, match="response_format"):
        ask(runner, "x", response_format={"type": "yaml"})
    with pytest.raises(ValueError, match=r"response_format|Schema"):
        ask(
            runner,
            "x",
            response_format={"type": "json_schema", "json_schema": {"schema": {"type": "nonsense"}}},
        )


@pytest.mark.model
def test_a_loop_is_left_once_and_then_cut(runner: LocalRunner) -> None:
    prompt = "Repeat exactly this and nothing else:\nI will read the file and then I will tell you.\n" * 2
    text, chunks = ask(
        runner, prompt, max_tokens=700, grammar='root ::= ("I will read the file and tell you. "){200}'
    )
    last = chunks[-1]
    # Under a grammar there is no way back: the stream ends at the source.
    assert (last.stop_reason, last.done) == ("repetition", True)
    found = last.repetition
    assert found.reps >= 3
    kept = text.encode()[: len(text.encode()) - found.trailing]
    assert kept.count(b"I will read the file and tell you.") <= 2
    assert last.usage.completion_tokens < 400


@pytest.mark.model
def test_a_loop_is_escaped_by_going_back(runner: LocalRunner) -> None:
    prompt = "Write this line again and again, forever:\nThe parcel runs north along the fence line."
    history = [Message(role="user", content=prompt)]
    line = "The parcel runs north along the fence line to the iron pin.\n"
    history += [
        Message(role="assistant", content=line * 4),
        Message(role="user", content="Go on, the same line."),
    ]
    chunks = list(runner.chat_stream(history, options=ChatOptions(temperature=0, max_tokens=200)))
    record = runner.stats().turns[-1]
    text = "".join(c.content for c in chunks)
    looped = record.escaped or chunks[-1].stop_reason == "repetition"
    # What the reader saw is what the cache holds: the next turn finds all of it.
    history += [Message(role="assistant", content=text), Message(role="user", content="Stop.")]
    list(runner.chat_stream(history, options=ChatOptions(temperature=0, max_tokens=1)))
    after = runner.stats().turns[-1]
    assert after.evaluated <= 24, (record, after)
    assert looped or chunks[-1].finish_reason in ("stop", "length")


@pytest.mark.model
def test_embeddings(runner: LocalRunner) -> None:
    vectors = runner.embed(["a cat", "a cat", "The stock market fell sharply today."])
    assert [len(v) for v in vectors] == [576] * 3
    assert vectors[0] == pytest.approx(vectors[1])
    assert np.dot(vectors[0], vectors[0]) == pytest.approx(1, abs=1e-4)
    assert np.dot(vectors[0], vectors[2]) < 0.999
    assert runner.embed([]) == []


@pytest.mark.model
@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"constraint": "magic"}, ValueError),
        ({"n_ctx": -1}, ValueError),
        ({"n_sessions": 0}, ValueError),
        ({"draft_model": object()}, ValueError),
        ({"n_contexts": 3}, TypeError),
        ({"repetition": {"min_period": 0, "max_period": 0}}, ValueError),
        ({"chat_template": "{% if %}"}, Exception),
        ({"lora_path": "/nowhere/lora.gguf"}, OSError),
    ],
)
def test_bad_arguments(smollm2_path: Path, options: dict[str, object], error: type[Exception]) -> None:
    with pytest.raises(error):
        LocalRunner(smollm2_path, n_threads=1, **{"n_ctx": 256, **options})  # type: ignore[arg-type]
