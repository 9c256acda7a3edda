"""Events of a turn, and its spans."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from agentkit_fast import CompactionInfo, ConsoleTracer, Entry, Message, RunnerError, StreamChunk, Usage
from agentkit_fast.events import (
    CallReady,
    CallStarted,
    Compacted,
    Event,
    Notice,
    ReasoningDelta,
    Retrying,
    TextDelta,
    ToolResult,
    TurnDone,
    UsageUpdated,
)
from kept_spans import Kept
from session_kit import BOTH, call, reply, session


def stream_sync(made: Any) -> list[Event]:
    return list(made.stream())


def stream_async(made: Any) -> list[Event]:
    async def collect() -> list[Event]:
        return [event async for event in made.astream()]

    return asyncio.run(collect())


both = pytest.mark.parametrize("events_of", [stream_sync, stream_async], ids=["sync", "async"])
both_runs = pytest.mark.parametrize("run", BOTH, ids=["sync", "async"])


@both
def test_the_order_of_events(events_of: Any) -> None:
    first = [
        StreamChunk(reasoning="Hm."),
        *reply("Let me ", "look.", call(id="k"), usage=Usage(total_tokens=3)),
    ]
    made = session([first, "It is on B."])
    events = events_of(made)
    assert [type(event) for event in events] == [
        ReasoningDelta,
        TextDelta,
        TextDelta,
        CallStarted,
        CallReady,
        UsageUpdated,
        ToolResult,
        TextDelta,
        UsageUpdated,
        TurnDone,
    ]
    assert events[3] == CallStarted(index=0, name="look")
    assert (events[6].call.id, events[6].content) == ("k", "saw {}")
    assert events[6].entry_id == made.store.context("s")[3].id
    assert events[5].usage.total == 3
    assert events[-1].result.reply == "It is on B."


@both
def test_results_come_as_they_end(events_of: Any) -> None:
    async def dispatch(asked: Any) -> str:
        await asyncio.sleep(0.05 if asked.arguments == '{"n":1}' else 0)
        return asked.arguments

    made = session([reply(call('{"n":1}'), call('{"n":2}')), "ok"], dispatch=dispatch)
    ended = [event.content for event in events_of(made) if isinstance(event, ToolResult)]
    assert ended == ['{"n":2}', '{"n":1}']


@both
def test_notices_from_the_inbox_and_from_the_guards(events_of: Any) -> None:
    made = session(["", "ok"], task="")
    made.store.publish("s", Entry(kind="user", content="Are you there?"))
    notices = [event.entry for event in events_of(made) if isinstance(event, Notice)]
    assert [(entry.kind, entry.tag) for entry in notices] == [("user", ""), ("notification", "empty_reply")]
    assert any(isinstance(event, Retrying) for event in events_of(session(["", "ok"])))


@both
def test_repetition_is_told_as_a_retry(events_of: Any) -> None:
    events = events_of(session(["and again and again and so on and on, " * 100, "ok"]))
    assert [event.reason for event in events if isinstance(event, Retrying)] == ["repetition"]


@both
def test_folds_are_told(events_of: Any) -> None:
    info = CompactionInfo(summary="s", subsumed_count=3, tokens_before=9, tokens_after=2)
    seen: list[CompactionInfo] = []

    class Folded(list):  # type: ignore[type-arg]
        tokens = 2
        compactions = (info,)

    made = session(
        ["ok"],
        build=lambda session_id, system: Folded([Message(role="user", content="x")]),
        on_compaction=seen.append,
    )
    events = events_of(made)
    assert Compacted(info=info) in events
    assert events[-1].result.compactions == [info]
    assert seen == [info]


@both
def test_an_error_comes_out_of_the_stream(events_of: Any) -> None:
    made = session([[StreamChunk(content="half"), RunnerError("gone")]])
    with pytest.raises(RunnerError) as caught:
        events_of(made)
    assert caught.value.result.reply == "half"


@both
def test_a_cancelled_stream_just_ends_with_its_result(events_of: Any) -> None:
    made = session([reply("a", "b")], on_token=lambda text: made.cancel())
    events = events_of(made)
    assert all(not isinstance(event, CallStarted) for event in events)
    assert isinstance(events[-1], TurnDone)
    assert events[-1].result.cancelled


def test_a_fast_consumer_may_read_events_from_another_thread_of_control() -> None:
    made = session([reply("a"), "b"])
    stream = made.stream()
    assert isinstance(next(stream), TextDelta)
    assert isinstance(list(stream)[-1], TurnDone)


@both_runs
def test_spans(run: Any) -> None:
    tracer = Kept()
    spent = Usage(prompt_tokens=9, completion_tokens=2, cached_tokens=4)
    made = session(
        [reply("x", call(), usage=spent), "ok"], tracer=tracer, span_prefix="shop", thread_id="t"
    )
    run(made)
    assert [span.name for span in tracer.spans] == [
        "shop.Turn",
        "shop.streamChat",
        "shop.tool",
        "shop.streamChat",
    ]
    root, chat, tool, _ = tracer.spans
    assert root.parent is None
    assert chat.parent is tool.parent is root
    assert all(span.ended == 1 and span.error is None for span in tracer.spans)
    assert (root.attributes["session_id"], root.attributes["thread_id"]) == ("s", "t")
    assert root.attributes["rounds"] == 2
    assert chat.attributes["tool_calls"] == 1
    assert chat.attributes["messages"] == 2
    assert (chat.attributes["prompt_tokens"], chat.attributes["cached_tokens"]) == (9, 4)
    assert chat.attributes["completion_tokens"] == 2


@both_runs
def test_every_span_ends_whatever_happens(run: Any) -> None:
    def broken(asked: Any) -> str:
        raise ValueError("no")

    def stop(asked: Any) -> str:
        made.cancel()
        return "x"

    for script, dispatch in (
        ([RunnerError("gone")], broken),
        ([reply(call()), RunnerError("gone")], broken),
        ([reply(call(), call('{"n":1}'))], stop),
    ):
        tracer = Kept()
        made = session(script, tracer=tracer, dispatch=dispatch, max_parallel_tools=1)
        try:
            run(made)
        except RunnerError:
            assert tracer.spans[0].error is not None
        assert all(span.ended == 1 for span in tracer.spans)


@both_runs
def test_a_tracer_that_fails_does_not_end_the_turn(run: Any) -> None:
    class Bad:
        def start(self, name: str, parent: Any = None) -> Any:
            raise RuntimeError("no collector")

    assert run(session(["ok"], tracer=Bad())).reply == "ok"


@both_runs
def test_the_console_tracer(run: Any) -> None:
    import io

    out = io.StringIO()
    run(session([reply(call()), "ok"], tracer=ConsoleTracer(out)))
    assert "agent.Turn" in out.getvalue()
    assert "agent.tool" in out.getvalue()
