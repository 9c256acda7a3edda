"""EndpointTokenizer, LearningCounter, and the counting methods of HttpRunner."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentkit_fast import (
    CharsByFour,
    EndpointTokenizer,
    GgufTokenizer,
    LearningCounter,
    Message,
    RunnerError,
    ToolDef,
    UnsupportedTokenizer,
)
from agentkit_fast.protocols import TokenCounter
from agentkit_fast.runners.http import HttpRunner
from servers import Wire, WireServer, stream


def llama_tokenize(wire: Wire) -> None:
    """One token a character; a BOS and parsed control tokens unless told otherwise, as the real one does."""
    body = wire.request.json
    text = body.get("content", "")
    if body.get("parse_special", True):
        text = text.replace("<|im_end|>", "E")
    wire.whole({"tokens": [1] * bool(body.get("add_special", False)) + [ord(c) for c in text]})


def vllm_tokenize(wire: Wire) -> None:
    """One token a character, a BOS unless told otherwise; control tokens are always parsed."""
    body = wire.request.json
    if "messages" in body:
        wire.whole({"count": 42 + len(body.get("tools", [])), "max_model_len": 100, "tokens": [0] * 42})
        return
    if "prompt" not in body:
        wire.whole({"detail": "field required"}, 422)
        return
    text = body["prompt"].replace("<|im_end|>", "E")
    tokens = [1] * bool(body.get("add_special_tokens", True)) + [ord(c) for c in text]
    wire.whole({"count": len(tokens), "max_model_len": 100, "tokens": tokens})


@pytest.mark.parametrize(("reply", "dialect"), [(llama_tokenize, "llama.cpp"), (vllm_tokenize, "vllm")])
def test_both_dialects(reply: Any, dialect: str) -> None:
    with WireServer(reply) as wire:
        tokenizer = EndpointTokenizer(f"{wire.url}/v1", "m")
        assert isinstance(tokenizer, TokenCounter)
        assert tokenizer.count("hello") == 5
        assert tokenizer.dialect == dialect
        assert tokenizer.count("") == 0
        assert tokenizer.count("a<|im_end|>b") == 12, "control spellings are text"
        ids = tokenizer.encode("héllo")
        assert ids.dtype == np.int32
        assert ids.tolist() == [ord(c) for c in "héllo"]
        assert tokenizer.encode("a<|im_end|>", parse_special=True).tolist() == [97, 69]
        assert tokenizer.count("a\ud800") == 2
        asked = len(wire.posts)
        assert tokenizer.count("hello") == 5
        assert len(wire.posts) == asked, "a text is asked for once"
        tokenizer.close()


@pytest.mark.parametrize(
    "reply",
    [
        pytest.param(lambda wire: wire.whole({"error": "no"}, 404), id="404"),
        pytest.param(lambda wire: wire.whole({"ok": True}), id="200-of-something-else"),
        pytest.param(lambda wire: wire.whole({"tokens": [1]}), id="only-a-bos"),
        pytest.param(lambda wire: wire.whole({"tokens": "abc"}), id="tokens-of-the-wrong-type"),
        pytest.param(lambda wire: wire.whole({"tokens": [1, 2**31]}), id="no-int32"),
        pytest.param(lambda wire: wire.whole({"tokens": [1, -1]}), id="negative"),
        pytest.param(lambda wire: wire.whole(b"<html>", 200, content_type="text/html"), id="a-page"),
    ],
)
def test_a_no_is_remembered(reply: Any) -> None:
    with WireServer(reply) as wire:
        tokenizer = EndpointTokenizer(wire.url, "m")
        for _ in range(3):
            assert tokenizer.try_count("hello") is None
            with pytest.raises(UnsupportedTokenizer, match="LearningCounter"):
                tokenizer.count("hello")
        tokenizer.close()
        assert len(wire.posts) == 2, "one probe in each dialect"
        with HttpRunner(wire.url, "m") as runner:
            assert runner.count_tokens("hello") is None
            assert runner.count_prompt([Message(role="user", content="a")]) is None


def test_nobody_there_is_no_no() -> None:
    tokenizer = EndpointTokenizer("http://127.0.0.1:9", "m")
    for _ in range(2):
        with pytest.raises(RunnerError, match="server running"):
            tokenizer.count("hello")
    tokenizer.close()


@pytest.mark.parametrize("status", [429, 503])
def test_not_yet_is_no_no(status: int) -> None:
    # llama-server answers 503 while it loads its model.
    ready: list[bool] = []

    def reply(wire: Wire) -> None:
        if ready:
            llama_tokenize(wire)
        else:
            wire.whole({"error": {"message": "Loading model"}}, status)

    with WireServer(reply) as wire:
        tokenizer = EndpointTokenizer(wire.url, "m")
        with pytest.raises(RunnerError, match="server running"):
            tokenizer.count("hello")
        ready.append(True)
        assert tokenizer.count("hello") == 5
        assert tokenizer.dialect == "llama.cpp"
        tokenizer.close()


def test_counting_a_whole_request_the_vllm_way() -> None:
    with WireServer(vllm_tokenize) as wire, HttpRunner(wire.url, "m") as runner:
        assert runner.count_prompt([Message(role="user", content="a")], [ToolDef(name="f")]) == 43


@pytest.mark.model
def test_equal_to_the_vocabulary(llama_url: str, smollm2_path: Path) -> None:
    tokenizer = EndpointTokenizer(llama_url, "smollm2")
    text = Path(__file__).read_text(encoding="utf-8")
    ids = tokenizer.encode(text)
    assert tokenizer.count(text) == len(ids) > 1000
    tokenizer.close()
    assert GgufTokenizer(smollm2_path).encode(text).tolist() == ids.tolist()


def test_learning_begins_with_bytes_by_four() -> None:
    counter = LearningCounter()
    for text in ("", "a", "hello world", "日本語", "\ud800"):
        assert counter.count(text) == CharsByFour().count(text)


def test_learning_from_dense_text() -> None:
    counter = LearningCounter()
    digits = "0123456789" * 300
    counter.observe([digits], 3010)  # one token a digit, ten for the template
    assert counter.count(digits) >= 2996
    assert counter.count("12345678") == 8
    before = counter.count(digits)
    counter.observe([digits], 900)
    assert counter.count(digits) == before, "it never goes down"


def test_the_runner_learns_from_usage() -> None:
    digits = "0123456789" * 300

    def reply(wire: Wire) -> None:
        tokens = 10 + sum(len(message["content"]) for message in wire.request.json["messages"])
        wire.sse(stream({"content": "a"}, usage={"prompt_tokens": tokens, "completion_tokens": 1}))

    with WireServer(reply) as wire, HttpRunner(wire.url, "m") as runner:
        counter = runner.profile.counter
        assert counter.count(digits) == 750
        list(runner.chat_stream([Message(role="user", content=digits)]))
        assert counter.count(digits) >= 2996
        assert counter.count_prompt([digits]) >= 3010
        assert runner.profile.counter is counter


def test_a_short_prompt_does_not_spoil_the_ratio() -> None:
    counter = LearningCounter()
    counter.observe(["hi"], 32)  # a template with a system prompt of its own
    assert counter.count("x" * 4000) == 1000
    assert counter.count_prompt(["hi"]) >= 32


@given(st.lists(st.tuples(st.lists(st.text(max_size=400), max_size=5), st.integers(0, 5000)), max_size=12))
def test_never_below_what_was_reported(observed: list[tuple[list[str], int]]) -> None:
    counter = LearningCounter()
    for texts, tokens in observed:
        counter.observe(texts, tokens)
    for texts, tokens in observed:
        assert counter.count_prompt(texts) >= tokens
