"""Tracers: see what a turn does and what it costs.

A tracer has one method, `start(name, parent=None)`, and gives a span with `set`, `end` and `end_error`
(see `agentkit_fast.protocols`). The session opens `<prefix>.Turn`, `<prefix>.streamChat`, `<prefix>.retry`,
`<prefix>.tool` and the shaper `<prefix>.Shaper.Build`, `<prefix>.Shaper.Compact`; attributes are counts, names and
tokens, never the text of a conversation.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from typing import Any, Self, TextIO

__all__ = ["ConsoleTracer", "OTelTracer", "close_span", "open_span"]

_log = logging.getLogger("agentkit_fast.tracing")


def open_span(tracer: Any, name: str, parent: Any = None, **attributes: Any) -> Any:
    """A span, or `None` without a tracer and where it fails: that is logged, and ends nothing."""
    if tracer is None:
        return None
    try:
        span = tracer.start(name, parent)
        for key, value in attributes.items():
            span.set(key, value)
    except Exception:  # noqa: BLE001 - logged; a tracer must not end what it looks at
        _log.exception("the tracer failed to start a span")
        return None
    return span


def close_span(span: Any, error: BaseException | None, **attributes: Any) -> None:
    """End what `open_span` gave, as failed where there is an error."""
    if span is None:
        return
    try:
        for key, value in attributes.items():
            span.set(key, value)
        if error is None:
            span.end()
        else:
            span.end_error(error)
    except Exception:  # noqa: BLE001 - logged; a tracer must not end what it looks at
        _log.exception("the tracer failed to end a span")


class ConsoleTracer:
    """Prints each finished trace as a tree: name, milliseconds, attributes.

    Goes to `stream` (default: standard error). Safe from several threads: a trace is printed whole, when its
    root ends.
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream
        self._lock = threading.Lock()

    def start(self, name: str, parent: Any = None) -> _ConsoleSpan:
        """Open a span; below `parent` where that is a span of this tracer."""
        above = parent if isinstance(parent, _ConsoleSpan) else None
        span = _ConsoleSpan(self, name, above)
        if above is not None:
            with self._lock:
                above.children.append(span)
        return span

    def _print(self, root: _ConsoleSpan) -> None:
        stream = self._stream if self._stream is not None else sys.stderr
        with self._lock:
            stream.write("\n".join(root.lines()) + "\n")
            stream.flush()


class _ConsoleSpan:
    def __init__(self, tracer: ConsoleTracer, name: str, parent: _ConsoleSpan | None) -> None:
        self._tracer = tracer
        self._name = name
        self._parent = parent
        self._begun = time.perf_counter_ns()
        self._ended = 0
        self._error = ""
        self._attributes: dict[str, Any] = {}
        self.children: list[_ConsoleSpan] = []

    def set(self, key: str, value: Any) -> Self:
        self._attributes[key] = value
        return self

    def end(self) -> None:
        if self._ended:
            return
        self._ended = time.perf_counter_ns()
        if self._parent is None:
            self._tracer._print(self)

    def end_error(self, error: BaseException) -> None:
        # One line an error: a body of a server in the middle of a tree would hide the tree.
        first_line = str(error).partition("\n")[0][:200]
        self._error = f"{type(error).__name__}: {first_line}" if first_line else type(error).__name__
        self.end()

    def lines(self, indent: str = "", branch: str = "") -> list[str]:
        took = f"{(self._ended - self._begun) / 1e6:.1f} ms" if self._ended else "not ended"
        facts = " ".join(f"{key}={value}" for key, value in self._attributes.items())
        line = "  ".join(part for part in (f"{branch}{self._name}", took, facts) if part)
        if self._error:
            line += f"  ! {self._error}"
        rows = [line]
        for position, child in enumerate(self.children):
            last = position == len(self.children) - 1
            rows.extend(
                child.lines(indent + ("   " if last else "│  "), indent + ("└─ " if last else "├─ "))
            )
        return rows


# What our attributes are called in OpenTelemetry's semantic conventions for generative AI.
_GEN_AI = {
    "cached_tokens": "gen_ai.usage.cache_read.input_tokens",
    "completion_tokens": "gen_ai.usage.output_tokens",
    "model": "gen_ai.request.model",
    "prompt_tokens": "gen_ai.usage.input_tokens",
    "session_id": "gen_ai.conversation.id",
    "tool_call_id": "gen_ai.tool.call.id",
    "tool_name": "gen_ai.tool.name",
}
_OPERATIONS = {"Turn": "invoke_agent", "streamChat": "chat", "tool": "execute_tool"}


class OTelTracer:
    """Spans for OpenTelemetry, with the attribute names of its conventions for generative AI.

    `tracer` is an OpenTelemetry tracer; by default one named `agentkit_fast` of the global provider. Needs
    `opentelemetry-api` (`pip install 'agentkit-fast[otel]'`).

    An error is recorded by its type alone, since a message may quote the conversation; `record_content=True`
    adds the message and the stack.
    """

    def __init__(self, tracer: Any = None, *, record_content: bool = False) -> None:
        from opentelemetry import trace

        self._record_content = record_content

        self._trace = trace
        self._tracer = tracer if tracer is not None else trace.get_tracer("agentkit_fast")

    def start(self, name: str, parent: Any = None) -> _OTelSpan:
        """Open a span; below `parent` where that is one of ours, else below the current one."""
        context = self._trace.set_span_in_context(parent.raw) if isinstance(parent, _OTelSpan) else None
        operation = _OPERATIONS.get(name.rpartition(".")[2])
        kind = self._trace.SpanKind.CLIENT if operation == "chat" else self._trace.SpanKind.INTERNAL
        span = _OTelSpan(
            self._trace,
            self._tracer.start_span(name, context=context, kind=kind),
            record_content=self._record_content,
        )
        if operation:
            span.raw.set_attribute("gen_ai.operation.name", operation)
        return span


class _OTelSpan:
    def __init__(self, trace: Any, raw: Any, *, record_content: bool) -> None:
        self._trace = trace
        self._record_content = record_content
        self.raw = raw

    def set(self, key: str, value: Any) -> Self:
        if key == "finish_reason":
            self.raw.set_attribute("gen_ai.response.finish_reasons", [str(value)])
        elif isinstance(value, (bool, int, float, str)):
            self.raw.set_attribute(_GEN_AI.get(key, f"agentkit.{key}"), value)
        else:
            self.raw.set_attribute(_GEN_AI.get(key, f"agentkit.{key}"), str(value))
        return self

    def end(self) -> None:
        self.raw.end()

    def end_error(self, error: BaseException) -> None:
        self.raw.set_attribute("error.type", type(error).__qualname__)
        description = type(error).__name__
        if self._record_content:
            self.raw.record_exception(error)
            description = f"{description}: {error}"[:200]
        self.raw.set_status(self._trace.Status(self._trace.StatusCode.ERROR, description))
        self.raw.end()
