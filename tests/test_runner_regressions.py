"""What once went wrong in runners, recordings, the probe and the endpoint's tokenizer: a row for each."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from agentkit_fast import (
    ChatOptions,
    Entry,
    EntryKind,
    InputTooLarge,
    MemoryStore,
    Message,
    RunnerProfile,
    Session,
    SQLiteStore,
    StreamChunk,
    ToolCall,
    ToolSet,
    errors,
    probe_tool_surface,
    tool,
)
from agentkit_fast.errors import RunnerError, StreamInterrupted
from agentkit_fast.events import Retrying, TextDelta
from agentkit_fast.runners import RecordingRunner, ReplayRunner, ScriptedRunner
from agentkit_fast.runners._http.errors import classify
from agentkit_fast.runners.http import HttpRunner
from agentkit_fast.text import Repetition
from agentkit_fast.tokens import EndpointTokenizer
from servers import Wire, WireServer, says

ASK = [Message(role="user", content="hello")]
LOOP = Repetition(where="content", period=30, reps=20, trailing=570, sample="x" * 30)
CUT_CALL = ToolCall(id="k", name="save", arguments='{"a')


def outcome(runner: Any, *, asynchronous: bool, tools: Any = ()) -> tuple[list[StreamChunk], Any]:
    chunks: list[StreamChunk] = []

    async def later() -> None:
        async for chunk in runner.achat_stream(ASK, tools, ChatOptions(temperature=0.0)):
            chunks.append(chunk)  # noqa: PERF401 - what came before an error counts

    try:
        if asynchronous:
            asyncio.run(later())
        else:
            chunks.extend(runner.chat_stream(ASK, tools, ChatOptions(temperature=0.0)))
    except Exception as error:  # noqa: BLE001 - whatever it is, it must be the same again
        return chunks, (type(error), str(error), error.args, vars(error))
    return chunks, None


@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize(
    "reply",
    [
        pytest.param(
            StreamInterrupted("cut", text="a", partial_tool_calls=(CUT_CALL,)), id="partial-calls"
        ),
        pytest.param(InputTooLarge("big", status=400, prompt_tokens=9, context_tokens=4), id="figures"),
        pytest.param(errors.HeredocError("bad", "truncated", 5), id="heredoc-place"),
        pytest.param(errors.SessionClosed("over"), id="closed"),
        pytest.param(KeyError("k"), id="key-error"),
        pytest.param(OSError(5, "broken"), id="os-error"),
        pytest.param(RuntimeError(), id="no-message"),
        pytest.param(
            [
                StreamChunk(content="x"),
                StreamChunk(
                    done=True, stop_reason="repetition", repetition=LOOP, partial_tool_calls=(CUT_CALL,)
                ),
            ],
            id="repetition",
        ),
    ],
)
def test_a_replay_is_what_was_recorded(tmp_path: Path, reply: Any, asynchronous: bool) -> None:
    path = tmp_path / "new" / "talk.jsonl"
    want = outcome(RecordingRunner(ScriptedRunner([reply]), path), asynchronous=asynchronous)
    assert outcome(ReplayRunner(path), asynchronous=asynchronous) == want


def test_what_json_cannot_hold_is_repaired_in_a_recording(tmp_path: Path) -> None:
    path = tmp_path / "talk.jsonl"
    asked = [{"role": "user", "content": "\ud800"}]
    tools = [{"type": "function", "function": {"name": "f"}}]
    list(RecordingRunner(ScriptedRunner(["\udc00 a"]), path).chat_stream(asked, tools))
    assert next(ReplayRunner(path).chat_stream(asked, tools)).content == "\ufffd a"


class SyncOnly:
    def chat_stream(self, messages: Any, tools: Any = (), options: Any = None) -> Iterator[StreamChunk]:
        yield StreamChunk(content="a")
        yield StreamChunk(done=True, finish_reason="stop")


class Waits:
    async def achat_stream(
        self, messages: Any, tools: Any = (), options: Any = None
    ) -> AsyncIterator[StreamChunk]:
        yield StreamChunk(content="a")
        await asyncio.sleep(60)


def test_a_runner_without_an_async_twin_is_recorded(tmp_path: Path) -> None:
    chunks, error = outcome(RecordingRunner(SyncOnly(), tmp_path / "talk.jsonl"), asynchronous=True)
    assert error is None
    assert [chunk.content for chunk in chunks] == ["a", ""]


def test_a_cancelled_round_is_recorded_as_left(tmp_path: Path) -> None:
    path = tmp_path / "talk.jsonl"

    async def cancelled() -> None:
        async def read() -> None:
            async for _ in RecordingRunner(Waits(), path).achat_stream(ASK):
                pass

        task = asyncio.create_task(read())
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancelled())
    with pytest.raises(StreamInterrupted, match="its reader closed") as caught:
        list(ReplayRunner(path).chat_stream(ASK))
    assert caught.value.text == "a"


def test_requests_are_kept_as_they_were() -> None:
    runner = ScriptedRunner(["a", "b"])
    talk = list(ASK)
    list(runner.chat_stream(talk))
    talk.append(Message(role="assistant", content="a"))
    list(runner.chat_stream(talk))
    assert [len(request.messages) for request in runner.requests] == [1, 2]


def test_whatever_a_host_raises_is_part_of_the_report() -> None:
    report = probe_tool_surface(ScriptedRunner([OSError("unplugged")], repeat_last=True))
    assert {row.error for row in report.echo} == {"unplugged"}
    assert report.grammar_error == "unplugged"


def tokenizes(*, busy: int = 0, only_count: bool = False) -> Any:
    refused = [busy]

    def reply(wire: Wire) -> None:
        body = wire.request.json
        if refused[0]:
            refused[0] -= 1
            wire.whole({"error": {"message": "Loading model"}}, 503)
        elif "prompt" not in body:
            wire.whole({"error": {"message": "prompt is missing"}}, 400)
        else:
            ids = list(range(len(body["prompt"])))
            wire.whole({"count": len(ids), **({} if only_count else {"tokens": ids})})

    return reply


def test_a_busy_tokenizer_is_no_no() -> None:
    with WireServer(says("x"), routes={"/tokenize": tokenizes(busy=2)}) as wire:
        tokenizer = EndpointTokenizer(wire.url, "m")
        with pytest.raises(RunnerError, match="server running"):
            tokenizer.count("hello")
        assert tokenizer.count("hello") == 5
        tokenizer.close()


def test_a_tokenizer_that_tells_only_the_number() -> None:
    with WireServer(says("x"), routes={"/tokenize": tokenizes(only_count=True)}) as wire:
        tokenizer = EndpointTokenizer(wire.url, "m")
        assert tokenizer.count("hello") == 5
        tokenizer.close()


@pytest.mark.parametrize(
    ("said", "asked", "window"),
    [
        pytest.param("prompt is too long: 210000 tokens > 200000 maximum", 0, 200000, id="anthropic"),
        pytest.param(
            "The input token count (3000011) exceeds the maximum number of tokens allowed (1048576).",
            0,
            1048576,
            id="gemini",
        ),
        pytest.param(
            "Prompt contains 40000 tokens and 0 draft tokens, too large for model with 32768 maximum context length",
            40000,
            32768,
            id="mistral",
        ),
    ],
)
def test_overflow_in_more_words(said: str, asked: int, window: int) -> None:
    error = classify(400, json.dumps({"error": {"message": said}}).encode(), "here")
    assert isinstance(error, InputTooLarge)
    assert error.context_tokens == window
    assert not asked or error.prompt_tokens == asked


def test_the_refusal_is_asked_for_once() -> None:
    def refuses(wire: Wire) -> None:
        wire.whole({"error": {"message": "no"}}, 400)

    with WireServer(refuses) as wire, HttpRunner(wire.url, "m", provider="unknown") as runner:
        assert [runner.discover_context(), runner.discover_context()] == [0, 0]
        assert sum(request.path.endswith("/chat/completions") for request in wire.requests) == 1


@pytest.mark.parametrize(
    "url", ["", "http://", "ftp://host", "http://host:99999", "http://host/v1?key=1"], ids=repr
)
def test_a_base_url_that_is_none(url: str) -> None:
    with pytest.raises(ValueError, match="base_url is"):
        HttpRunner(url, "m")


@pytest.mark.parametrize(
    ("options", "error"),
    [
        pytest.param({"timeout": 0}, ValueError, id="timeout-zero"),
        pytest.param({"repetition": 5}, TypeError, id="repetition-number"),
    ],
)
def test_a_wrong_setting_is_told_at_once(options: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        HttpRunner("http://127.0.0.1:9", "m", **options)


def test_no_timeout() -> None:
    with WireServer(says("a")) as wire, HttpRunner(wire.url, "m", timeout=None) as runner:
        assert runner.chat_stream(ASK).__next__().content == "a"


def test_a_page_that_is_no_reply_is_shown() -> None:
    def page(wire: Wire) -> None:
        wire.whole(b"<html>sign in</html>", content_type="text/html")

    with WireServer(page) as wire, HttpRunner(wire.url, "m") as runner:
        with pytest.raises(StreamInterrupted, match="sign in") as caught:
            list(runner.chat_stream(ASK))
        assert "sign in" in caught.value.body


def hangs_up(wire: Wire) -> None:
    wire.hang_up()


def busy(wire: Wire) -> None:
    wire.whole({"error": {"message": "slow down"}}, 429, retry_after="0.01")


def asked_session(runner: Any, **options: Any) -> Session:
    session = Session("s", MemoryStore(), runner, **options)
    session.inject(Entry(kind=EntryKind.user, content="hello"))
    return session


@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("wrapped", [False, True], ids=["bare", "recorded"])
def test_a_session_streams_retries(asynchronous: bool, wrapped: bool, tmp_path: Path) -> None:
    path = tmp_path / "talk.jsonl"
    with WireServer(busy, busy, says("hi")) as wire, HttpRunner(wire.url, "m") as http:
        session = asked_session(RecordingRunner(http, path) if wrapped else http)

        async def later() -> list[Any]:
            return [event async for event in session.astream()]

        events = asyncio.run(later()) if asynchronous else list(session.stream())
        seen = [event for event in events if isinstance(event, (Retrying, TextDelta))]
        assert [type(event).__name__ for event in seen] == ["Retrying", "Retrying", "TextDelta"]
        assert [event.attempt for event in seen[:2]] == [1, 2]
        assert seen[0].reason == "slow down"
        assert seen[0].delay_s >= 0.01
    if wrapped:  # the waits are told, and are no part of the recording
        again = asked_session(ReplayRunner(path))
        assert [type(event) for event in again.stream() if isinstance(event, (Retrying, TextDelta))] == [
            TextDelta
        ]


@pytest.mark.parametrize("wrapped", [False, True], ids=["bare", "recorded"])
def test_retries_are_told_only_to_who_asks(tmp_path: Path, wrapped: bool) -> None:
    with WireServer(busy, says("hi")) as wire, HttpRunner(wire.url, "m") as http:
        runner: Any = RecordingRunner(http, tmp_path / "talk.jsonl") if wrapped else http
        assert all(isinstance(chunk, StreamChunk) for chunk in runner.chat_stream(ASK))
        assert [e.text for e in asked_session(runner).stream() if isinstance(e, TextDelta)] == ["hi"]


@pytest.mark.parametrize("how", ["turn", "stream", "aturn"])
def test_retries_are_in_the_file(tmp_path: Path, how: str) -> None:
    """With the reply they led to, in whatever way the turn ran; those of a turn that failed with the next reply."""
    path = tmp_path / "s.db"
    server = WireServer(busy, busy, hangs_up, busy, says("hi"), says("once more"))
    with (
        server as wire,
        SQLiteStore(path) as store,
        HttpRunner(wire.url, "m", retry_5xx_attempts=1) as runner,
    ):
        session = Session("s", store, runner)
        session.inject(Entry(kind=EntryKind.user, content="hello"))
        with pytest.raises(StreamInterrupted):
            session.turn()
        for _ in range(2):
            if how == "turn":
                session.turn()
            elif how == "stream":
                list(session.stream())
            else:
                asyncio.run(session.aturn())
    with SQLiteStore(path) as store:
        first, second = (entry for entry in store.history("s") if entry.kind == EntryKind.assistant)
    assert first.usage is not None
    assert [(retry.reason, retry.attempt) for retry in first.usage.retries] == [
        ("slow down", 1),
        ("slow down", 2),
        ("slow down", 1),
    ]
    assert all(retry.delay_s >= 0.01 for retry in first.usage.retries)
    assert second.usage is None or not second.usage.retries


def test_a_long_hostile_reason_is_cut_and_repaired() -> None:
    class Waits:
        tells_retries = True

        def chat_stream(self, messages: Any, tools: Any = (), options: Any = None, **more: Any) -> Any:
            for attempt in range(200):
                yield Retrying(reason="\udcff" + "<" * 10_000, attempt=attempt, delay_s=0.5)
            yield StreamChunk(content="hi")
            yield StreamChunk(done=True, finish_reason="stop")

    session = asked_session(Waits())
    session.turn()
    (usage,) = (entry.usage for entry in session.store.history("s") if entry.kind == EntryKind.assistant)
    assert [retry.attempt for retry in usage.retries] == list(range(150, 200))
    assert usage.retries[0].reason == "\ufffd" + "<" * 499
    assert (usage.cached, usage.processed, usage.generated) == (0, 0, 0)


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@pytest.mark.parametrize("tools", [True, False], ids=["tools", "no-tools"])
def test_without_native_tools_calls_come_as_text(tools: bool) -> None:
    called = "@@call add\n{ a: 2, b: 3 }\n@@end\n"
    runner = ScriptedRunner(
        [called, "5"] if tools else ["5"], profile=RunnerProfile(native_tools=False, grammar=True)
    )
    given: dict[str, Any] = {"tools": ToolSet([add])} if tools else {}
    assert asked_session(runner, **given).turn().reply == "5"
    assert [request.tools for request in runner.requests] == [()] * len(runner.requests)
    system = [message.content for message in runner.requests[0].messages if message.role == "system"]
    assert any("@@call" in text for text in system) is tools
    options = runner.requests[0].options
    assert options is not None
    assert bool(options.grammar) is tools


def test_a_records_line_is_json(tmp_path: Path) -> None:
    path = tmp_path / "talk.jsonl"
    list(RecordingRunner(ScriptedRunner(["a", "b"]), path).chat_stream(ASK))
    assert [msgspec.json.decode(line)["request"]["tools"] for line in path.read_bytes().splitlines()] == [
        []
    ]
