"""`ScriptedRunner`, `RecordingRunner`, `ReplayRunner`."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from agentkit_fast import (
    ChatOptions,
    Message,
    RecordingRunner,
    ReplayRunner,
    RunnerError,
    ScriptedRunner,
    StreamChunk,
    StreamInterrupted,
    ToolCall,
)

ASK = [Message(role="user", content="hi")]


async def collect(stream: Any) -> list[StreamChunk]:
    return [chunk async for chunk in stream]


def both(runner_of: Any, messages: Any = ASK) -> list[list[StreamChunk]]:
    return [
        list(runner_of().chat_stream(messages)),
        asyncio.run(collect(runner_of().achat_stream(messages))),
    ]


def test_every_kind_of_reply() -> None:
    call = ToolCall(id="k", name="look")
    script: list[Any] = ["text", call, [StreamChunk(content="raw")], lambda m, t, o: m[0].content]
    runner = ScriptedRunner(script)
    streams = [list(runner.chat_stream(ASK)) for _ in script]
    assert [chunk.content for chunk in streams[0]] == ["text", ""]
    assert streams[0][-1].finish_reason == "stop"
    assert streams[1][0].tool_call is call
    assert streams[1][-1].finish_reason == "tool_calls"
    assert streams[2] == [StreamChunk(content="raw")]
    assert streams[3][0].content == "hi"
    with pytest.raises(RunnerError, match="4 replies"):
        list(runner.chat_stream(ASK))
    assert len(runner.requests) == 5


def test_exceptions_are_raised_at_once_or_in_the_middle() -> None:
    runner = ScriptedRunner([ValueError("x"), [StreamChunk(content="a"), KeyError("y")]])
    with pytest.raises(ValueError, match="x"):
        list(runner.chat_stream(ASK))
    stream = runner.chat_stream(ASK)
    assert next(stream).content == "a"
    with pytest.raises(KeyError):
        next(stream)
    assert runner.aborted == 0


def test_closing_counts_as_aborted() -> None:
    runner = ScriptedRunner(["text"])
    stream = runner.chat_stream(ASK)
    next(stream)
    stream.close()
    assert runner.aborted == 1


def test_record_and_replay(tmp_path: Path) -> None:
    path = tmp_path / "talk.jsonl"
    script = ["one", StreamInterrupted("cut", text="o", status=502), ToolCall(id="k", name="look")]
    recorder = RecordingRunner(ScriptedRunner(script), path)
    options = ChatOptions(temperature=0.0, session_id="first run")
    want = list(recorder.chat_stream(ASK, (), options))
    with pytest.raises(StreamInterrupted):
        list(recorder.chat_stream(ASK, (), options))
    calls = asyncio.run(collect(recorder.achat_stream([*ASK, Message(role="assistant", content="x")])))

    replay = ReplayRunner(path)
    other = ChatOptions(temperature=0.0, session_id="second run")
    assert list(replay.chat_stream(ASK, (), other)) == want
    with pytest.raises(StreamInterrupted, match="cut") as caught:
        list(replay.chat_stream(ASK, (), other))
    assert (caught.value.text, caught.value.status) == ("o", 502)
    with pytest.raises(RunnerError, match=r"messages has 2 items in the record, 1 in the request"):
        list(replay.chat_stream(ASK))
    assert list(replay.chat_stream([*ASK, Message(role="assistant", content="x")])) == calls
    assert replay.unused == 0
    with pytest.raises(RunnerError, match="all 3 records"):
        list(replay.chat_stream(ASK))


def test_random_ids_do_not_matter(tmp_path: Path) -> None:
    from agentkit_fast import new_id

    def asked() -> list[Message]:
        call_id = new_id()
        return [
            Message(role="assistant", tool_calls=(ToolCall(id=call_id, name="look"),)),
            Message(role="tool", tool_call_id=call_id, content="seen"),
        ]

    path = tmp_path / "talk.jsonl"
    want = list(RecordingRunner(ScriptedRunner(["done"]), path).chat_stream(asked()))
    assert list(ReplayRunner(path).chat_stream(asked())) == want


@pytest.mark.parametrize("content", [None, "not json\n"], ids=["missing", "damaged"])
def test_a_bad_file_is_named(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "talk.jsonl"
    if content is not None:
        path.write_text(content)
    with pytest.raises(RunnerError, match=r"talk\.jsonl"):
        ReplayRunner(path)
