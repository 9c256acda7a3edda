"""Tools: typed Python functions a model can call.

`@tool` reads a function's name, docstring and annotations into a `Tool`; a `ToolSet` of tools is both the
`tools=` a session advertises and the dispatcher that runs its calls.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from typing import Any, Self, overload

from agentkit_fast.asyncbridge import (
    Expired,
    await_within,
    in_event_loop,
    run_async,
    run_within,
    thread_coroutine,
)
from agentkit_fast.lifting import ToolOutcome, parse_clear_request, parse_lift_request, pending_result
from agentkit_fast.messages import ToolCall, ToolDef
from agentkit_fast.signatures import ArgumentErrors, Signature, read_signature, result_text

__all__ = ["Tool", "ToolSet", "tool"]


class Tool(ToolDef, kw_only=True, eq=False):
    """A `ToolDef` that can be run.

    - `is_async`: its function is a coroutine function.
    - `timeout_s`: after so many seconds the call is answered with an error (`None`: no limit); an async
      function is cancelled, a sync one is left behind in its thread.
    - `approve`: a person must say yes first.
    - `idempotent`: running it twice does no harm, so it may be run again when a crash hid the outcome.

    Calling a `Tool` calls the function itself: `add(1, 2)`. `run(arguments)` and `arun(arguments)` take
    JSON arguments and give the text a model sees.
    """

    function: Any
    signature: Any = None
    is_async: bool = False
    timeout_s: float | None = None
    approve: bool = False
    idempotent: bool = False

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)

    def __get__(self, instance: Any, owner: type | None = None) -> Tool:
        """A tool made from a method is bound to its object on access."""
        if instance is None or not _takes_self(self.function):
            return self
        bound = Tool(**{name: getattr(self, name) for name in self.__struct_fields__})
        bound.function = functools.partial(self.function, instance)
        return bound

    @property
    def definition(self) -> ToolDef:
        """Name, description and parameters alone."""
        return ToolDef(name=self.name, description=self.description, parameters=self.parameters)

    def run(self, arguments: str = "{}", *, call_id: str = "") -> ToolOutcome:
        """Run with JSON arguments. Arguments that do not fit are answered with what to fix, by path.

        What the function raises is raised.
        """
        return self._run(ToolCall(id=call_id, name=self.name, arguments=arguments))

    async def arun(self, arguments: str = "{}", *, call_id: str = "") -> ToolOutcome:
        """As `run`, awaited; a sync function runs in a thread of its own."""
        return await self._arun(ToolCall(id=call_id, name=self.name, arguments=arguments))

    def _run(self, call: ToolCall) -> ToolOutcome:
        try:
            start = self._prepare(call)
        except ArgumentErrors as error:
            return self._refusal(error)
        try:
            if self.is_async:
                value = run_async(start, self.timeout_s)
            else:
                value = run_within(start, self.timeout_s)
                if inspect.isawaitable(value):
                    awaitable = value
                    value = run_async(lambda: awaitable, self.timeout_s)
        except Expired:
            return self._expired()
        return _outcome(value, call)

    async def _arun(self, call: ToolCall) -> ToolOutcome:
        try:
            start = self._prepare(call)
        except ArgumentErrors as error:
            return self._refusal(error)
        try:
            if self.is_async:
                value = await await_within(start, self.timeout_s)
            else:
                value = await await_within(lambda: thread_coroutine(start), self.timeout_s)
                if inspect.isawaitable(value):
                    awaitable = value
                    value = await await_within(lambda: awaitable, self.timeout_s)
        except Expired:
            return self._expired()
        return _outcome(value, call)

    def _prepare(self, call: ToolCall) -> Callable[[], Any]:
        signature: Signature = self.signature
        args, kwargs = signature.bind(call.arguments, call)
        return functools.partial(self.function, *args, **kwargs)

    def _refusal(self, error: ArgumentErrors) -> ToolOutcome:
        return ToolOutcome(
            f"ERROR: {self.name} was not run, its arguments do not fit:\n{error}\n"
            "Call it again with these corrected."
        )

    def _expired(self) -> ToolOutcome:
        return ToolOutcome(
            f"ERROR: {self.name} gave no result within {self.timeout_s:g} s and was given up; "
            "what it had begun may or may not have happened. Check before you try again."
        )


def _outcome(value: Any, call: ToolCall) -> ToolOutcome:
    if isinstance(value, ToolOutcome):
        return value
    text = result_text(value)
    lift = parse_lift_request(text)
    if lift is not None:
        return ToolOutcome(pending_result(lift.correlation_id, call.id, lift.ttl_s), lift=lift)
    clear = parse_clear_request(text)
    if clear is not None:
        return ToolOutcome(f"Notices about {clear.group_by} {clear.key} are cleared.", clear=clear)
    return ToolOutcome(text)


def _takes_self(func: Any) -> bool:
    """Whether `func` is a function from a class body, still to be given its object."""
    if not inspect.isfunction(func):
        return False
    names = list(inspect.signature(func).parameters)
    outer = func.__qualname__.rpartition(".")[0]
    return bool(names) and names[0] in ("self", "cls") and bool(outer) and not outer.endswith("<locals>")


@overload
def tool(func: Callable[..., Any], /) -> Tool: ...
@overload
def tool(
    func: None = None,
    /,
    *,
    name: str = "",
    description: str = "",
    approve: bool = False,
    idempotent: bool = False,
    timeout_s: float | None = None,
) -> Callable[[Callable[..., Any]], Tool]: ...
@overload
def tool(
    func: Callable[..., Any],
    /,
    *,
    name: str = "",
    description: str = "",
    approve: bool = False,
    idempotent: bool = False,
    timeout_s: float | None = None,
) -> Tool: ...
def tool(
    func: Callable[..., Any] | None = None,
    /,
    *,
    name: str = "",
    description: str = "",
    approve: bool = False,
    idempotent: bool = False,
    timeout_s: float | None = None,
) -> Tool | Callable[[Callable[..., Any]], Tool]:
    """Turn a typed function (sync or async), a method, a partial or a callable object into a `Tool`.

    The description comes from the docstring, its parameter sections (Google, NumPy or Sphinx style) or
    `Annotated[T, "words"]` describe the parameters, and the annotations give the JSON Schema: everything
    msgspec can describe (`Literal`, enums, unions, nested Structs, dataclasses, `TypedDict`, constraints by
    `msgspec.Meta`). A parameter annotated `ToolCall` gets the call itself and is not shown to the model.

    Raises `TypeError` for `*args` and for types that JSON cannot fill, `ValueError` for a missing name.
    """
    if func is None:

        def decorate(found: Callable[..., Any]) -> Tool:
            return _make(
                found, name, description, approve=approve, idempotent=idempotent, timeout_s=timeout_s
            )

        return decorate
    return _make(func, name, description, approve=approve, idempotent=idempotent, timeout_s=timeout_s)


def _make(
    func: Callable[..., Any],
    name: str = "",
    description: str = "",
    *,
    approve: bool = False,
    idempotent: bool = False,
    timeout_s: float | None = None,
) -> Tool:
    if isinstance(func, Tool):
        func = func.function
    if isinstance(func, (staticmethod, classmethod)):
        raise TypeError(
            "put @staticmethod or @classmethod above @tool, or make the tool from the bound method"
        )
    if not callable(func):
        raise TypeError(f"a tool is made from a function, not from {type(func).__name__}")
    if timeout_s is not None and not timeout_s > 0:
        raise ValueError(f"timeout_s must be more than 0 seconds (or None for no limit), not {timeout_s!r}")
    name = name or _name(func)
    if not name or name == "<lambda>":
        raise ValueError("this function has no name a model could call: give one, tool(name=...)")
    signature = read_signature(func, skip_self=_takes_self(func))
    return Tool(
        name=name,
        description=description or signature.description,
        parameters=signature.schema,
        function=func,
        signature=signature,
        is_async=_is_async(func),
        timeout_s=timeout_s,
        approve=approve,
        idempotent=idempotent,
    )


def _name(func: Any) -> str:
    while isinstance(func, functools.partial):
        func = func.func
    return str(getattr(func, "__name__", "") or type(func).__name__)


def _is_async(func: Any) -> bool:
    while isinstance(func, functools.partial):
        func = func.func
    return inspect.iscoroutinefunction(func) or inspect.iscoroutinefunction(getattr(func, "__call__", None))  # noqa: B004


class ToolSet(Sequence[Tool]):
    """Tools by name: what a session advertises, and the dispatcher of their calls.

    Takes `Tool` values, plain functions (made into tools), and other sets. As a sequence it gives the
    tools in order. As a function of a `ToolCall` it gives the result text: at once in sync code, also for
    async tools; inside a running event loop an async tool gives an awaitable. `adispatch` is always
    awaited, `dispatch` never. A result is a `ToolOutcome`, a `str` that also says when the tool lifted the
    call or clears notices.

    Arguments that do not fit, an unknown name and a time-out are answered in words; what a tool raises is
    raised.
    """

    def __init__(self, tools: Iterable[Tool | Callable[..., Any]] = ()) -> None:
        self._tools: dict[str, Tool] = {}
        for item in tools:
            self._add(item)

    def _add(self, item: Any) -> None:
        if isinstance(item, ToolSet):
            for inner in item:
                self._add(inner)
            return
        if isinstance(item, ToolDef) and not isinstance(item, Tool):
            raise TypeError(f"{item.name!r} is a ToolDef, a description without a function: pass a Tool")
        made = item if isinstance(item, Tool) else _make(item)
        if made.name in self._tools:
            raise ValueError(f"two tools are named {made.name!r}: rename one, tool(name=...)")
        self._tools[made.name] = made

    @overload
    def __getitem__(self, key: int | str) -> Tool: ...
    @overload
    def __getitem__(self, key: slice) -> list[Tool]: ...
    def __getitem__(self, key: int | str | slice) -> Tool | list[Tool]:
        if isinstance(key, str):
            return self._tools[key]
        return list(self._tools.values())[key]

    def __len__(self) -> int:
        return len(self._tools)

    def __iter__(self) -> Iterator[Tool]:
        return iter(self._tools.values())

    def __contains__(self, item: object) -> bool:
        return item in self._tools if isinstance(item, str) else item in self._tools.values()

    def __add__(self, other: Iterable[Tool | Callable[..., Any]]) -> Self:
        return type(self)([*self, *other])

    def get(self, name: str) -> Tool | None:
        """The tool of that name, if there is one."""
        return self._tools.get(name)

    def is_async(self, name: str) -> bool:
        """Whether the tool of that name is a coroutine function."""
        found = self._tools.get(name)
        return found is not None and found.is_async

    def __call__(self, call: ToolCall) -> ToolOutcome | Awaitable[ToolOutcome]:
        found = self._tools.get(call.name)
        if found is not None and found.is_async and in_event_loop():
            return self.adispatch(call)
        return self.dispatch(call)

    def dispatch(self, call: ToolCall) -> ToolOutcome:
        """Run one call and wait for its result."""
        found = self._tools.get(call.name)
        return self._unknown(call.name) if found is None else found._run(call)

    async def adispatch(self, call: ToolCall) -> ToolOutcome:
        """Run one call, awaited; sync tools in a thread of their own."""
        found = self._tools.get(call.name)
        return self._unknown(call.name) if found is None else await found._arun(call)

    def _unknown(self, name: str) -> ToolOutcome:
        known = ", ".join(self._tools) or "none"
        return ToolOutcome(f"ERROR: there is no tool {name!r}. The tools are: {known}.")
