"""A reply read in pieces equals the reply read whole; a cut reply holds no call that the whole does not."""

from __future__ import annotations

import json
import random
import threading
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from agentkit_fast.text import (
    CallReady,
    CallStarted,
    HeredocStream,
    ParsedReply,
    ProseDelta,
    parse_tool_calls,
)

GOLDEN = Path(__file__).parent / "data" / "golden" / "parse_tool_calls.jsonl"
REPLIES = [json.loads(line)["in"] for line in GOLDEN.read_text(encoding="utf-8").splitlines()]

# Pieces that replies are made of, good and bad.
PIECES = [
    "@@call f\n{ a: 1 }\n@@end\n", "@@call ", "@@call", "@@", "@@end", "@@end\n", "@", "\n", "\r\n",
    " ", "\t", "g_2", "\"a b\"", "{", "}", "[", "]", ":", ",", "\"", "'", "\\", "\\n", "\\u00e9",
    "\\ud83d", "\\ude00", "\\q", "~~~", "~~~py\n", "\n~~~py", "\n~~~py,", "~~~py x\n", "```", "```\n",
    "\n```", "\n````", "`", "a: ", "true", "True", "None", "nul", "1", "-", "01", "1.5e3", "x", "é",
    "日本", "😀", "\u2028", "\x00", "word and word", "it's", "{}", "{ }", "@@callx ", " @@call f\n{}\n",
    "f",
]  # fmt: skip
replies = st.one_of(
    st.lists(st.sampled_from(PIECES), max_size=40).map("".join),
    st.sampled_from(REPLIES),
    st.lists(st.sampled_from(REPLIES), max_size=3).map("\n".join),
    st.tuples(st.sampled_from(REPLIES), st.integers(0, 200), st.sampled_from(PIECES)).map(
        lambda row: row[0][: row[1]] + row[2] + row[0][row[1] :]
    ),
    st.text(max_size=50),
)
calls_of = lambda reply: [(call.name, call.arguments) for call in reply.calls]  # noqa: E731


def streamed(pieces: list[str]) -> tuple[ParsedReply, str]:
    """The final reply, and the prose that was given out; checks what events promise."""
    stream = HeredocStream()
    prose, ready, started = "", [], []
    for piece in pieces:
        for event in stream.push(piece):
            if isinstance(event, ProseDelta):
                assert event.text
                prose += event.text
            elif isinstance(event, CallStarted):
                assert event.index == len(ready)
                started.append(event.name)
            else:
                assert isinstance(event, CallReady)
                assert event.index == len(ready)
                assert started[-1] == event.call.name
                ready.append(event.call)
    reply = stream.finish()
    assert stream.finish() is reply
    assert all(one is other for one, other in zip(ready, reply.calls, strict=True))
    assert prose + reply.tail == reply.prose
    return reply, prose


def assert_same(whole: ParsedReply, reply: ParsedReply) -> None:
    assert calls_of(reply) == calls_of(whole)
    assert reply.prose == whole.prose
    assert reply.problem == whole.problem
    assert reply.problems == whole.problems


@pytest.mark.parametrize("text", REPLIES[::7], ids=lambda text: str(len(text)))
def test_every_single_cut(text: str) -> None:
    whole = parse_tool_calls(text)
    for cut in range(len(text) + 1):
        assert_same(whole, streamed([text[:cut], text[cut:]])[0])


@pytest.mark.parametrize("text", REPLIES, ids=range(len(REPLIES)))
def test_letter_by_letter(text: str) -> None:
    assert_same(parse_tool_calls(text), streamed(list(text))[0])


@given(replies, st.randoms(use_true_random=False))
@example("@@call f\n{ a: '\\ud83d\\ude00' }@@end\nx", random.Random(0))
def test_any_cutting(text: str, rng: random.Random) -> None:
    pieces, at = [], 0
    while at < len(text):
        size = rng.choice([1, 1, 2, 3, 7, 40])
        pieces.append(text[at : at + size])
        at += size
    assert_same(parse_tool_calls(text), streamed(pieces)[0])


@given(replies)
def test_truncation_never_becomes_a_call(text: str) -> None:
    whole = calls_of(parse_tool_calls(text))
    before: list[tuple[str, str]] = []
    for cut in range(len(text) + 1):
        reply = parse_tool_calls(text[:cut])
        calls = calls_of(reply)
        # A prefix of the whole's calls, and never fewer than a shorter cut gave.
        assert calls == whole[: len(calls)]
        assert calls[: len(before)] == before
        before = calls
        for call in reply.calls:
            assert type(json.loads(call.arguments)) is dict
        for problem in reply.problems:
            assert problem.kind in {"truncated", "malformed"}
            assert problem.message
            assert text.encode()[problem.byte_offset :].startswith(b"@@call")


@given(st.text(alphabet=st.characters(), max_size=30), st.integers(0, 30))
def test_surrogates_cut_anywhere(text: str, cut: int) -> None:
    # As UTF-16 units, one code point each: pairs are cut in the middle.
    units = text.encode("utf-16-le", "surrogatepass")
    split = "".join(chr(int.from_bytes(units[at : at + 2], "little")) for at in range(0, len(units), 2))
    assert_same(parse_tool_calls(split), streamed([split[:cut], split[cut:]])[0])
    assert_same(parse_tool_calls(split), streamed(list(split))[0])


RELEASED = [
    ("word", "word"),
    ("two words ", "two words"),
    ("line\n", "line"),
    ("line\n@", "line"),
    ("line\n@@call", "line"),
    ("line\n@@calls", "line\n@@calls"),
    ("line\n@x", "line\n@x"),
    ("see @@call ", "see @@call"),
    ("line\n@@call f\n{", "line"),
    (" @@call", "@@call"),
    ("a@", "a@"),
]


@pytest.mark.parametrize(("text", "released"), RELEASED, ids=[repr(text) for text, _ in RELEASED])
def test_prose_is_released_as_soon_as_it_cannot_be_a_call(text: str, released: str) -> None:
    for pieces in ([text], list(text)):
        stream = HeredocStream()
        events = [event for piece in pieces for event in stream.push(piece)]
        assert "".join(event.text for event in events if isinstance(event, ProseDelta)) == released


def test_a_call_is_ready_at_its_brace() -> None:
    stream = HeredocStream()
    assert stream.push("@@call f") == []
    assert stream.push("\n") == [CallStarted(0, "f")]
    assert stream.push("{ a: 1 ") == []
    (event,) = stream.push("}")
    assert isinstance(event, CallReady)
    assert json.loads(event.call.arguments) == {"a": 1}


def test_push_after_finish() -> None:
    stream = HeredocStream()
    stream.finish()
    with pytest.raises(ValueError, match="finished"):
        stream.push("x")


def test_from_many_threads() -> None:
    stream = HeredocStream()
    threads = [
        threading.Thread(target=lambda: [stream.push("@@call f\n{ a: 1 }\n@@end\n") for _ in range(200)])
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    reply = stream.finish()
    assert len(reply.calls) == 800
    assert len({call.id for call in reply.calls}) == 800
    assert reply.problem is None
