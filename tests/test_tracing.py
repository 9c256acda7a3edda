"""Tracers: the tree on the console, and spans in a real OpenTelemetry SDK."""

from __future__ import annotations

import io
import re

import pytest

from agentkit_fast import Entry, MemoryStore, ScriptedRunner, Session
from agentkit_fast.errors import CompactionFailed
from agentkit_fast.protocols import Tracer
from agentkit_fast.shaping import ShapePolicy, Shaper
from agentkit_fast.tracing import ConsoleTracer, OTelTracer
from kept_spans import Kept


def play(tracer: Tracer) -> None:
    """A turn with a chat that works and a tool that fails."""
    turn = tracer.start("agent.Turn").set("session_id", "s1")
    chat = tracer.start("agent.streamChat", turn)
    chat.set("prompt_tokens", 12).set("cached_tokens", 3).set("finish_reason", "stop").set(
        "messages", 2
    ).end()
    tool = tracer.start("agent.tool", turn).set("tool_name", "read")
    tool.end_error(ValueError("no such file\nwith a long body"))
    turn.end()


def test_console_prints_the_tree_once_the_root_ends() -> None:
    out = io.StringIO()
    tracer = ConsoleTracer(out)
    span = tracer.start("early")
    assert out.getvalue() == ""
    span.end()
    span.end()
    play(tracer)
    text = re.sub(r"\d+\.\d ms", "T", out.getvalue())
    assert text.splitlines() == [
        "early  T",
        "agent.Turn  T  session_id=s1",
        "├─ agent.streamChat  T  prompt_tokens=12 cached_tokens=3 finish_reason=stop messages=2",
        "└─ agent.tool  T  tool_name=read  ! ValueError: no such file",
    ]


@pytest.mark.parametrize("record_content", [False, True])
def test_otel_spans_carry_the_conventions_names(record_content: bool) -> None:
    sdk = pytest.importorskip("opentelemetry.sdk.trace")
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    exporter = InMemorySpanExporter()
    provider = sdk.TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    play(OTelTracer(provider.get_tracer("test"), record_content=record_content))
    chat, tool, turn = exporter.get_finished_spans()
    assert [span.name for span in (turn, chat, tool)] == ["agent.Turn", "agent.streamChat", "agent.tool"]
    assert chat.parent.span_id == tool.parent.span_id == turn.context.span_id
    assert dict(chat.attributes) == {
        "gen_ai.operation.name": "chat",
        "gen_ai.usage.input_tokens": 12,
        "gen_ai.usage.cache_read.input_tokens": 3,
        "gen_ai.response.finish_reasons": ("stop",),
        "agentkit.messages": 2,
    }
    assert turn.attributes["gen_ai.operation.name"] == "invoke_agent"
    assert turn.attributes["gen_ai.conversation.id"] == "s1"
    assert tool.attributes["error.type"] == "ValueError"
    assert tool.status.status_code.name == "ERROR"
    assert [event.name for event in tool.events] == (["exception"] if record_content else [])
    assert ("no such file" in tool.status.description) == record_content


def test_a_request_sent_again_is_in_the_trace_without_the_servers_words() -> None:
    pytest.importorskip("httpx2")
    from agentkit_fast.runners.http import HttpRunner
    from servers import Wire, WireServer, says

    def busy(wire: Wire) -> None:
        wire.whole({"error": {"message": "secret words"}}, 503, retry_after="0.05")

    tracer = Kept()
    with WireServer(busy, says("hi")) as wire, HttpRunner(wire.url, "m") as runner:
        session = Session("s", MemoryStore(), runner, tracer=tracer)
        session.inject(Entry(kind="user", content="hello"))
        assert session.turn().reply == "hi"
    (retry,) = tracer.named("agent.retry")
    assert retry.under == "agent.streamChat"
    assert retry.attributes["reason"] == "request"
    assert retry.attributes["attempt"] == 1
    assert "secret" not in str([span.attributes for span in tracer.spans])


def test_a_reply_of_nothing_is_in_the_trace() -> None:
    tracer = Kept()
    session = Session("s", MemoryStore(), ScriptedRunner(["", "hi"]), tracer=tracer)
    session.inject(Entry(kind="user", content="hello"))
    session.turn()
    (retry,) = tracer.named("agent.retry")
    assert (retry.under, retry.attributes["reason"]) == ("agent.Turn", "empty reply")


@pytest.mark.parametrize("reply", ["a few notes", ""])
def test_a_fold_is_in_the_trace(reply: str) -> None:
    tracer = Kept()
    store = MemoryStore()
    for n in range(60):
        store.append("s", Entry(kind=("user", "assistant")[n % 2], content=f"{n} " * 50))
    runner = ScriptedRunner([reply], repeat_last=True)
    window = Shaper(store, runner, ShapePolicy(budget_tokens=1500), tracer=tracer).build("s")
    (fold,) = tracer.named("agent.Shaper.Compact")
    assert fold.under == "agent.Shaper.Build"
    if reply:
        assert fold.attributes == {"entries": window.compactions[0].subsumed_count, "bytes": len(reply)}
    else:
        assert isinstance(fold.error, CompactionFailed)


def test_a_tracer_that_fails_fails_no_build() -> None:
    class Broken:
        def start(self, name: str, parent: object = None) -> None:
            raise OSError("the collector is gone")

    store = MemoryStore()
    store.append("s", Entry(kind="user", content="hello"))
    assert len(Shaper(store, tracer=Broken()).build("s")) == 1  # type: ignore[arg-type]
