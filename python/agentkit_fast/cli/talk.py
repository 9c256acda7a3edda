"""`agentkit-fast run` and `agentkit-fast chat`: an agent in the terminal."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.markup import escape
from rich.prompt import Confirm

from agentkit_fast.cli.connect import UsageProblem, open_runner, parse_tools, tool_format_of
from agentkit_fast.entries import Entry, EntryKind
from agentkit_fast.errors import AgentkitError
from agentkit_fast.events import (
    CallReady,
    Compacted,
    Event,
    Notice,
    ReasoningDelta,
    Retrying,
    TextDelta,
    ToolResult,
    TurnDone,
)
from agentkit_fast.messages import ChatOptions, ToolCall
from agentkit_fast.session import Session
from agentkit_fast.shaping import ShapePolicy, Shaper
from agentkit_fast.stores.memory import MemoryStore
from agentkit_fast.stores.sqlite import SQLiteStore

__all__ = ["EventPrinter", "TalkOptions", "run_chat", "run_task"]

_RESULT_CHARS = 400


class TalkOptions(msgspec.Struct, kw_only=True, frozen=True):
    """What `run` and `chat` have in common."""

    model: Path | None = None
    endpoint: str | None = None
    endpoint_model: str = "default"
    tools: str = ""
    mcp: Path | None = None
    session_file: Path | None = None
    session_id: str = "cli"
    budget: int = 0
    format: str = "auto"
    system: str = "You are a helpful assistant."
    threads: int | None = None
    context: int = 0
    max_tokens: int = 1024
    yes: bool = False


class EventPrinter:
    """Shows events as they come: text at once, a call and its result one line each."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._open = ""

    def __call__(self, event: Event) -> None:
        console = self._console
        kind = (
            "text"
            if isinstance(event, TextDelta)
            else "thought"
            if isinstance(event, ReasoningDelta)
            else ""
        )
        if self._open and kind != self._open:
            console.print()
            self._open = ""
        if isinstance(event, (TextDelta, ReasoningDelta)):
            self._open = kind
            console.print(
                event.text, end="", markup=False, style="dim" if kind == "thought" else "", soft_wrap=True
            )
        elif isinstance(event, CallReady):
            console.print(
                f"[yellow]→ {escape(event.call.name)}[/] {escape(event.call.arguments)}", soft_wrap=True
            )
        elif isinstance(event, ToolResult):
            text = event.content.strip()
            if len(text) > _RESULT_CHARS:
                text = f"{text[:_RESULT_CHARS]}… ({len(event.content):,} characters)"
            console.print(f"[yellow]←[/] {escape(text)}", soft_wrap=True)
        elif isinstance(event, Compacted):
            info = event.info
            console.print(
                f"[dim]folded {info.subsumed_count} entries: {info.tokens_before:,} → {info.tokens_after:,} tokens[/]"
            )
        elif isinstance(event, Notice):
            console.print(f"[dim]notice: {escape(event.entry.content)}[/]", soft_wrap=True)
        elif isinstance(event, Retrying):
            console.print(f"[dim]again: {escape(event.reason)}[/]", soft_wrap=True)


def _ask_on(console: Console) -> Callable[[ToolCall], bool]:
    def ask(call: ToolCall) -> bool:
        console.print(
            f"[bold]The model wants to call[/] {escape(call.name)} {escape(call.arguments)}", soft_wrap=True
        )
        return Confirm.ask("Run it?", default=False, console=console)

    return ask


def _open_session(options: TalkOptions, console: Console, stack: ExitStack) -> tuple[Session, str]:
    tools = parse_tools(options.tools)
    if options.mcp is not None:
        from agentkit_fast.cli.mcp_config import connect_all

        tools = connect_all(options.mcp, tools, stack)
    runner, title = stack.enter_context(
        open_runner(
            options.model,
            options.endpoint,
            options.endpoint_model,
            threads=options.threads,
            context=options.context,
        )
    )
    store: Any
    if options.session_file is not None:
        store = SQLiteStore(options.session_file)
        stack.callback(store.close)
    else:
        store = MemoryStore()
    format_ = tool_format_of(runner, options.format)
    window = options.budget or runner.profile.context_tokens
    # A reply has to fit as well, so a budget taken from the window leaves room for it.
    budget = options.budget or (max(window - options.max_tokens, window // 2) if window else 0)
    shaper = Shaper(
        store,
        runner,
        ShapePolicy(budget_tokens=budget, lod_above=800, tool_format=format_),
        counter=runner.profile.counter,
    )
    session = Session(
        options.session_id,
        store,
        runner,
        system=options.system,
        build=shaper.build,
        tools=tools or (),
        tool_format=format_,
        options=ChatOptions(max_tokens=options.max_tokens),
        counter=runner.profile.counter,
        approve=None if options.yes else _ask_on(console),
        approve_all=bool(tools) and not options.yes,
    )
    return session, title


def _one_turn(session: Session, text: str, show: Callable[[Event], None]) -> Any:
    session.inject(Entry(kind=EntryKind.user, content=text))
    result = None
    for event in session.stream():
        show(event)
        if isinstance(event, TurnDone):
            result = event.result
    return result


def run_task(task: str, options: TalkOptions, *, json_output: bool) -> int:
    """One turn for `task` (`-`: from standard input); 0 when the model came to an end, 1 when its reply was cut."""
    console = Console(quiet=json_output, highlight=False)
    if task == "-":
        task = sys.stdin.buffer.read().decode("utf-8", "replace")
    if not task.strip():
        raise UsageProblem("the task is empty; give it as an argument, or `-` to read standard input")
    events: list[dict[str, Any]] = []
    printer = EventPrinter(console)

    def show(event: Event) -> None:
        printer(event)
        if json_output and isinstance(event, (CallReady, ToolResult)):
            events.append(msgspec.to_builtins(event))

    with ExitStack() as stack:
        session, _ = _open_session(options, Console(stderr=True, highlight=False), stack)
        try:
            result = _one_turn(session, task, show)
        except KeyboardInterrupt:
            Console(stderr=True).print("\nstopped; what was done so far is stored")
            return 130
    if json_output:
        print(
            json.dumps(
                {
                    "reply": result.reply,
                    "stop_reason": result.stop_reason,
                    "events": events,
                    "usage": msgspec.to_builtins(result.usage),
                }
            )
        )
    else:
        _end_line(console, result, options)
        _usage_line(console, result)
    return 1 if result.stop_reason in ("length", "limit") else 0


_ENDS = {
    "length": "the reply was cut at {tokens} tokens (--max-tokens, or the end of the model's window)",
    "closed": "a tool ended the session",
    "limit": "a limit of the turn was reached",
    "cancelled": "the turn was stopped",
}


def _end_line(console: Console, result: Any, options: TalkOptions) -> None:
    """Says why a turn ended, where it was not the model that had finished."""
    why = _ENDS.get(result.stop_reason, "")
    if why:
        console.print(f"[yellow]{escape(why.format(tokens=options.max_tokens))}[/]", soft_wrap=True)


def _usage_line(console: Console, result: Any) -> None:
    usage = result.usage
    console.print(
        f"[dim]tokens: window {usage.active:,}, cached {usage.cached:,}, evaluated {usage.processed:,}, "
        f"generated {usage.generated:,} in {usage.turns} round{'s' if usage.turns != 1 else ''}[/]"
    )


def run_chat(options: TalkOptions) -> int:
    """Talk until `/quit` or end of input. Ctrl-C stops the running turn, twice in a row leaves."""
    console = Console(highlight=False)
    with ExitStack() as stack:
        session, title = _open_session(options, console, stack)
        where = (
            f"; session {options.session_id!r} in {options.session_file}" if options.session_file else ""
        )
        console.print(f"[bold]{escape(title)}[/]{escape(where)}")
        console.print("[dim]/quit or Ctrl-D leaves, Ctrl-C stops the model, /usage shows the tokens[/]")
        printer = EventPrinter(console)
        last: Any = None
        interrupted = False
        while True:
            try:
                text = console.input("[bold cyan]> [/]")
            except EOFError:
                console.print()
                return 0
            except KeyboardInterrupt:
                if interrupted:
                    console.print()
                    return 0
                interrupted = True
                console.print("\n[dim]Ctrl-C again or /quit leaves[/]")
                continue
            interrupted = False
            command = text.strip()
            if command in ("/quit", "/exit"):
                return 0
            if command == "/usage":
                if last is None:
                    console.print("[dim]nothing was sent yet[/]")
                else:
                    _usage_line(console, last)
                continue
            if not command:
                continue
            try:
                last = _one_turn(session, text, printer)
                console.print()
                _end_line(console, last, options)
            except KeyboardInterrupt:
                interrupted = True
                console.print("\n[dim]stopped; the conversation goes on where it was[/]")
            except AgentkitError as error:
                console.print(f"\n[red]{type(error).__name__}[/]: {escape(str(error))}")
