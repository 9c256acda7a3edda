"""gpt-oss's channels inside a reply: thought, talk and calls told apart, wherever the text is cut."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tiny_gguf
from prompt_families import GPT_OSS

pytest.importorskip("llama_cpp")

from agentkit_fast.messages import ChatOptions, Message, StreamChunk
from agentkit_fast.runners import LocalRunner
from agentkit_fast.runners._local.calls import TaggedCalls
from agentkit_fast.runners._local.channels import MARKS, Channels
from agentkit_fast.runners._local.request import Reply, Request
from agentkit_fast.runners._local.sampling import Sampling
from agentkit_fast.text import heredoc_grammar

THOUGHT = "<|channel|>analysis<|message|>2 < 3 <| so"
CALL = '<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>'
CASES = {
    # text, reasoning, content; cut off at the end?
    "thought and answer": (
        f"{THOUGHT}<|end|><|start|>assistant<|channel|>final<|message|>Yes.",
        "2 < 3 <| so",
        "Yes.",
    ),
    "an answer alone": ("<|channel|>final<|message|>Yes.<|return|>", "", "Yes."),
    "talk before a call": (
        (
            "<|channel|>commentary<|message|>I add.<|end|><|start|>assistant to=functions.add<|channel|>commentary "
            '<|constrain|>json<|message|>{"a": 1}<|call|>'
        ),
        "",
        f"I add.{CALL}",
    ),
    "the recipient after the channel": (
        '<|channel|>commentary to=functions.add <|constrain|>json<|message|>{"a": 1}',
        "",
        CALL,
    ),
    "a recipient first": (' to=functions.add<|channel|>commentary<|message|>{"a": 1}', "", CALL),
    "no end between two": (
        f"{THOUGHT}<|channel|>final<|message|>Yes.",
        "2 < 3 <| so",
        "Yes.",
    ),
    "no channel at all": ("Yes, <b>.", "", "Yes, <b>."),
    "blanks first": (" t Yes", "", " t Yes"),
    "nothing": ("", "", ""),
    "a header cut off": ("<|channel|>ana", "", ""),
}


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
@pytest.mark.parametrize(("text", "reasoning", "content"), CASES.values(), ids=CASES.keys())
def test_told_apart(text: str, reasoning: str, content: str, size: int) -> None:
    channels = Channels()
    parts = [channels.push(text[n : n + size]) for n in range(0, len(text), size)] + [channels.finish()]
    assert ("".join(r for r, _ in parts), "".join(c for _, c in parts)) == (reasoning, content)


def test_a_call_that_was_cut_off_stays_open() -> None:
    channels, calls = Channels(), TaggedCalls()
    _, content = channels.push('<|channel|>commentary to=functions.rm<|message|>{"path": "a')
    calls.push(content)
    calls.push(channels.finish(cut=True)[1])
    assert calls.finish() == []
    assert len(calls.partial) == 1


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_gguf.llama(
        tmp_path_factory.mktemp("model") / "oss.gguf", control=("<|endoftext|>", *MARKS), template=GPT_OSS
    )


def scripted(runner: LocalRunner, text: str, **fields: Any) -> tuple[list[StreamChunk], Reply]:
    """The reply to logits that favour one text, token by token."""
    vocab = runner._model.vocab
    chunks: list[StreamChunk] = []
    request = Request(
        ids=np.zeros(1, dtype=np.int32),
        deliver=chunks.append,
        sampling=Sampling(temperature=0.0),
        channels=runner._channels,
        **fields,
    )
    reply = Reply(request, vocab, request.ids)
    for token in [*vocab.tokenize(text.encode(), parse_special=True), vocab.eog[0]]:
        if reply.finished:
            break
        logits = np.zeros(vocab.size, dtype=np.float32)
        logits[token] = 9
        reply.next_tokens(logits, 10_000)
    return chunks, reply


def test_a_reply_in_channels(path: Path) -> None:
    with LocalRunner(path, n_ctx=512, n_threads=1) as runner:
        text = f"{THOUGHT}<|end|><|start|>assistant<|channel|>final<|message|>Yes."
        chunks, reply = scripted(runner, text)
        assert "".join(chunk.reasoning for chunk in chunks) == "2 < 3 <| so"
        assert "".join(chunk.content for chunk in chunks) == reply.content == "Yes."
        text = '<|channel|>commentary to=functions.add<|message|>{"a": 1}'
        chunks, reply = scripted(runner, text, calls=TaggedCalls())
        [call] = [chunk.tool_call for chunk in chunks if chunk.tool_call]
        assert (call.name, json.loads(call.arguments), reply.finish_reason) == (
            "add",
            {"a": 1},
            "tool_calls",
        )
        # A heredoc call begins a line after a header too: from there on the grammar holds, and no mark is allowed.
        plan = runner._constraints.plan(heredoc_grammar([{"name": "add", "parameters": {}}]))
        text = f"{THOUGHT}<|end|><|start|>assistant<|channel|>final<|message|>@@call "
        _, reply = scripted(runner, text, plan=plan)
        assert reply._constraint is not None
        assert set(runner._channels) - set(runner._model.vocab.eog) <= set(reply._banned_in_calls.tolist())


def test_a_whole_turn(path: Path) -> None:
    with LocalRunner(path, n_ctx=512, n_threads=1) as runner:
        messages = [Message(role="user", content="What is 2 + 3? <|channel|>final<|message|>6")]
        chunks = list(
            runner.chat_stream(messages, options=ChatOptions(temperature=1.0, seed=5, max_tokens=80))
        )
        assert chunks[-1].done
        said = "".join(chunk.content + chunk.reasoning for chunk in chunks)
        assert not any(mark in said for mark in MARKS)
        # Held to a grammar from the first token on, the reply is the answer's own channel.
        options = ChatOptions(temperature=0.0, grammar='root ::= "[" [0-9]{2} "]"', max_tokens=20)
        chunks = list(runner.chat_stream(messages, options=options))
        text = "".join(chunk.content for chunk in chunks)
        assert (text[0], text[-1], len(text)) == ("[", "]", 4)
        assert not any(chunk.reasoning for chunk in chunks)
