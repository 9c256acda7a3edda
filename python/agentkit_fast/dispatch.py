"""From what a dispatcher gives back to the text a model sees; and who may run what, for how long."""

from __future__ import annotations

import contextvars
import inspect
import threading
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from agentkit_fast._unicode import repair_text, repair_value
from agentkit_fast.messages import ToolCall, ToolDef

__all__ = ["Desk", "cancel_requested", "result_text"]

_cancel: contextvars.ContextVar[threading.Event | None] = contextvars.ContextVar(
    "agentkit_cancel", default=None
)


def cancel_requested() -> bool:
    """For tools: whether the turn that runs this tool has been stopped.

    A thread cannot be stopped from outside; a long sync tool that asks this now and then can end early.
    """
    event = _cancel.get()
    return event is not None and event.is_set()


def result_text(value: Any) -> str:
    """A dispatcher's value as text: `None` is empty, bytes are read as UTF-8, other values become JSON."""
    if isinstance(value, str):
        # A subclass of `str` (the tools' own results are) is no plain text to a JSON encoder.
        return repair_text(value if type(value) is str else str.__str__(value))
    if value is None:
        return ""
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value).decode(errors="replace")
    try:
        return msgspec.json.encode(value).decode()
    except (TypeError, ValueError, RecursionError, UnicodeEncodeError):
        return repair_text(str(value))


class Desk:
    """The tools of a session: what is advertised, what runs a call, who must be asked, how long it may
    take."""

    def __init__(
        self,
        tools: Any,
        dispatch: Callable[[ToolCall], Any] | None,
        *,
        approve: Callable[[ToolCall], Any] | None = None,
        approve_all: bool = False,
        timeout_s: float | None = None,
    ) -> None:
        listed = [_tool(item) for item in _listed(tools)]
        if dispatch is None and listed:
            dispatch = tools if callable(tools) else _dispatcher_of(listed)
        self.dispatch = dispatch
        self.defs: tuple[ToolDef, ...] = tuple(
            _repaired(getattr(item, "definition", item)) for item in listed
        )
        self._by_name = {definition.name: item for definition, item in zip(self.defs, listed, strict=True)}
        if len(self._by_name) != len(self.defs):
            names = [definition.name for definition in self.defs]
            twice = sorted({name for name in names if names.count(name) > 1})
            raise ValueError(
                f"tool names must differ; these come twice: {', '.join(twice)}. Rename one of each."
            )
        self.approve = approve
        self._approve_all = approve_all
        self._timeout_s = timeout_s
        self._async_dispatch = dispatch is not None and _is_async(dispatch)
        self._adispatch = getattr(dispatch, "adispatch", None)
        self._names_async = getattr(dispatch, "is_async", None)

    def needs_approval(self, call: ToolCall) -> bool:
        """Whether a person must say yes to this call."""
        return self._approve_all or bool(getattr(self._by_name.get(call.name), "approve", False))

    def idempotent(self, call: ToolCall) -> bool:
        """Whether running this call twice does no harm."""
        return bool(getattr(self._by_name.get(call.name), "idempotent", False))

    def timeout_s(self, call: ToolCall) -> float | None:
        """Seconds this call may take. A tool's own `timeout_s` is kept by the tool."""
        own = getattr(self._by_name.get(call.name), "timeout_s", None)
        return None if own is not None else self._timeout_s

    def start_async(self, call: ToolCall) -> Callable[[], Any] | None:
        """What gives the call's coroutine, where the call is async; else `None`."""
        if self._async_dispatch:
            return lambda: self.dispatch(call)  # type: ignore[misc]  # an async dispatcher is there
        if self._adispatch is not None and self._names_async is not None and self._names_async(call.name):
            adispatch = self._adispatch
            return lambda: adispatch(call)
        return None


def _listed(tools: Any) -> list[Any]:
    if tools is None:
        return []
    if isinstance(tools, ToolDef) or not isinstance(tools, Sequence):
        try:
            return [tools] if isinstance(tools, ToolDef) else list(tools)
        except TypeError:
            raise TypeError(
                f"tools= takes a ToolSet or a list of tools, not {type(tools).__name__}"
            ) from None
    return list(tools)


def _tool(item: Any) -> ToolDef:
    if isinstance(item, ToolDef):
        return item
    if callable(item):
        from agentkit_fast.tools import tool

        made: ToolDef = tool(item)
        return made
    raise TypeError(f"a tool is a ToolDef, a Tool or a typed function, not {type(item).__name__}")


def _repaired(definition: ToolDef) -> ToolDef:
    """The definition as every encoder takes it."""
    try:
        msgspec.json.encode(definition)
    except UnicodeEncodeError:
        return msgspec.structs.replace(
            definition,
            name=repair_text(definition.name),
            description=repair_text(definition.description),
            parameters=repair_value(definition.parameters),
        )
    except (TypeError, ValueError, RecursionError):
        return definition  # whoever sends it says what is wrong
    return definition


def _dispatcher_of(listed: list[Any]) -> Callable[[ToolCall], Any] | None:
    """A dispatcher for tools that can run; `None` where all are descriptions only."""
    runnable = [item for item in listed if callable(item)]
    if not runnable:
        return None
    from agentkit_fast.tools import ToolSet

    return ToolSet(runnable)


def _is_async(function: Any) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(type(function), "__call__", None)  # noqa: B004
    )


def with_cancel(event: threading.Event) -> contextvars.Context:
    """A copy of this context in which `cancel_requested` looks at `event`."""
    context = contextvars.copy_context()
    context.run(_cancel.set, event)
    return context
