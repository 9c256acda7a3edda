"""Tracers: the tree on the console, and spans in a real OpenTelemetry SDK."""

from __future__ import annotations

import io
import re

import pytest

from agentkit_fast.protocols import Tracer
from agentkit_fast.tracing import ConsoleTracer, OTelTracer


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
