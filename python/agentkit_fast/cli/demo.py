"""`agentkit-fast demo`: a real tool loop on a real model, for everyone to see."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.markup import escape

from agentkit_fast.cli.connect import open_runner, tool_format_of
from agentkit_fast.cli.file_tools import FolderTools
from agentkit_fast.entries import Entry, EntryKind
from agentkit_fast.errors import AgentkitError, RunnerError
from agentkit_fast.events import CallReady, Notice, Retrying, TextDelta, ToolResult, TurnDone
from agentkit_fast.heredoc import heredoc_grammar
from agentkit_fast.messages import ChatOptions
from agentkit_fast.session import Session
from agentkit_fast.stores.memory import MemoryStore

__all__ = ["run_demo"]

FILES = {
    "notes.txt": "The workshop is on Tuesday at nine.\nBring the blue folder.\n",
    "shopping.txt": "bread\nmilk\napples\n",
    "todo.md": "- water the plants\n- call the plumber\n",
}
SYSTEM = "Answer in one short sentence."
WRITTEN = "hello.txt"


class _Task(msgspec.Struct, frozen=True):
    """A task, the tool that does it, and the tools the model chooses from in its first round."""

    text: str
    tool: str
    offered: tuple[str, ...]
    done: Callable[[Path, str], bool]
    """Whether the folder and the tool's result show that it is done."""


def _is_written(folder: Path, result: str) -> bool:
    path = folder / WRITTEN
    return path.is_file() and bool(path.read_text(encoding="utf-8", errors="replace").strip())


# What a model of 135 million parameters can do when it is made to call: pick a tool and fill in a name. The first
# two leave out the tool that would overwrite what they are about.
TASKS = (
    _Task(
        "List the files in the folder.",
        "list_files",
        ("list_files", "read_file"),
        lambda folder, result: all(name in result for name in FILES),
    ),
    _Task(
        "Read the file notes.txt",
        "read_file",
        ("list_files", "read_file"),
        lambda folder, result: result == FILES["notes.txt"],
    ),
    _Task(
        f"Write a file {WRITTEN} with a short greeting in it.",
        "write_file",
        ("list_files", "read_file", "write_file"),
        _is_written,
    ),
)
# Examples in the history teach a small model more than instructions do. They are about another folder, so that
# nothing in them is the answer to a task. (text, tool, arguments, result, reply)
EXAMPLES = (
    (
        "List the files in the folder.",
        "list_files",
        "{}",
        "letter.txt (36 bytes)\npoem.txt (90 bytes)",
        "The folder holds letter.txt and poem.txt.",
    ),
    (
        "Read the file letter.txt",
        "read_file",
        '{"path":"letter.txt"}',
        "Dear Ann,\nthe boat leaves at noon.",
        "The letter says that the boat leaves at noon.",
    ),
    (
        "Write a file colors.txt with three colors in it.",
        "write_file",
        '{"path":"colors.txt","content":"red, green, blue"}',
        "Wrote 16 bytes to colors.txt.",
        "I wrote it to colors.txt.",
    ),
)
# Rounds in which a call is asked for: the first leaves the choice, the others name the tool.
_TRIES = 3


class _TaskReport(msgspec.Struct, kw_only=True):
    task: str
    tool: str
    calls: list[dict[str, Any]]
    reply: str
    ok: bool
    seconds: float
    prompt_tokens: int
    cached_tokens: int
    generated_tokens: int
    error: str = ""


def run_demo(
    *,
    model: Path | None = None,
    endpoint: str | None = None,
    endpoint_model: str = "default",
    threads: int | None = None,
    json_output: bool = False,
) -> int:
    """Run the demo; the exit code (see `agentkit-fast demo --help`)."""
    console = Console(quiet=json_output, highlight=False)
    errors = Console(stderr=True, highlight=False)
    started = time.monotonic()
    reports: list[_TaskReport] = []
    try:
        with tempfile.TemporaryDirectory(prefix="agentkit-demo-") as folder:
            for name, text in FILES.items():
                (Path(folder) / name).write_text(text, encoding="utf-8")
            with open_runner(model, endpoint, endpoint_model, threads=threads, context=4096, seed=7) as (
                runner,
                title,
            ):
                loaded = time.monotonic() - started
                console.print(
                    f"[bold]{escape(title)}[/], ready after {loaded:.1f} s; scratch folder {folder}"
                )
                if model is None and endpoint is None:
                    console.print(
                        "[dim]A model this small would rather chat, and what it says is often silly. So each task "
                        "comes after three examples, and a call is required first. The call is parsed, run and "
                        "stored like any other, and a task counts when its tool has really done it.[/]"
                    )
                reports.extend(
                    _run_task(task, runner, Path(folder), console, local=endpoint is None) for task in TASKS
                )
    except AgentkitError as error:
        errors.print(f"[red]{type(error).__name__}[/]: {escape(str(error))}")
        return 2
    except ImportError as error:
        errors.print(f"[red]A part is missing[/]: {escape(str(error))}")
        return 2
    except KeyboardInterrupt:
        errors.print("stopped")
        return 130
    good = sum(report.ok for report in reports)
    total = {
        "prompt": sum(report.prompt_tokens for report in reports),
        "cached": sum(report.cached_tokens for report in reports),
        "generated": sum(report.generated_tokens for report in reports),
    }
    console.print(
        f"\n[bold]{good} of {len(TASKS)} tasks[/] were done by their tools in "
        f"{time.monotonic() - started:.1f} s; tokens: prompt {total['prompt']} (of these cached {total['cached']}), "
        f"generated {total['generated']}"
    )
    if json_output:
        print(
            json.dumps({"tasks": msgspec.to_builtins(reports), "ok": good == len(TASKS), "tokens": total})
        )
    return 0 if good == len(TASKS) else 1


def _examples() -> list[Entry]:
    entries: list[Entry] = []
    for number, (text, tool, arguments, result, reply) in enumerate(EXAMPLES):
        call: dict[str, Any] = {"tool_call_id": f"example-{number}", "tool_name": tool}
        entries += [
            Entry(kind=EntryKind.user, content=text),
            Entry(kind=EntryKind.tool_call, content=arguments, **call),
            Entry(kind=EntryKind.tool_result, content=result, **call),
            Entry(kind=EntryKind.assistant, content=reply),
        ]
    return entries


def _run_task(task: _Task, runner: Any, folder: Path, console: Console, *, local: bool) -> _TaskReport:
    store = MemoryStore()
    store.append_many("demo", _examples())
    tools = FolderTools(folder).tools()
    tool_format = tool_format_of(runner, "auto")
    done = False

    def options(number: int) -> ChatOptions:
        """A call until the task is done, then words: left free, so small a model calls for ever."""
        # A hosted model may think before it calls or answers; that takes room.
        plain = (
            ChatOptions(temperature=0.0, max_tokens=96, enable_thinking=False) if local else ChatOptions()
        )
        if done or number >= _TRIES:
            return msgspec.structs.replace(plain, tool_choice="none")
        offered = (task.tool,) if number else task.offered
        if number:
            console.print(f"[dim]not done yet; now only {task.tool} may be called[/]")
            # The same question at temperature 0 has the same answer.
            plain = msgspec.structs.replace(plain, temperature=0.5 if local else None)
        grammar = ""
        if tool_format == "heredoc":
            grammar = heredoc_grammar(
                [tool for tool in tools if tool.name in offered], max_calls=1, allow_prose=False
            )
        choice = task.tool if number else "required"
        return msgspec.structs.replace(plain, tool_choice=choice, grammar=grammar)

    session = Session(
        "demo",
        store,
        runner,
        system=SYSTEM,
        tools=tools,
        tool_format=tool_format,
        options=options,
        max_turns=_TRIES + 2,
        omit_slot_note=True,
    )
    session.inject(Entry(kind=EntryKind.user, content=task.text))
    console.print(f"\n[bold cyan]user[/]  {escape(task.text)}")
    calls: list[dict[str, Any]] = []
    reply, usage, error = "", None, ""
    begun = time.monotonic()
    in_text = False
    try:
        for event in session.stream():
            if in_text and not isinstance(event, TextDelta):
                console.print()
                in_text = False
            if isinstance(event, TextDelta):
                if not in_text:
                    console.print("[bold green]model[/] ", end="")
                    in_text = True
                console.print(event.text, end="", markup=False)
            elif isinstance(event, CallReady):
                console.print(
                    f"[bold yellow]call[/]  {escape(event.call.name)} {escape(event.call.arguments)}",
                    soft_wrap=True,
                )
            elif isinstance(event, ToolResult):
                calls.append(
                    {"name": event.call.name, "arguments": event.call.arguments, "result": event.content}
                )
                console.print(f"[bold yellow]result[/] {escape(event.content.strip())}", soft_wrap=True)
                done = done or (event.call.name == task.tool and task.done(folder, event.content))
            elif isinstance(event, Notice):
                console.print(f"[dim]notice {escape(event.entry.content)}[/]")
            elif isinstance(event, Retrying):
                console.print(f"[dim]again: {escape(event.reason)}[/]")
            elif isinstance(event, TurnDone):
                reply, usage = event.result.reply, event.result.usage
    except AgentkitError as failure:
        error = f"{type(failure).__name__}: {failure}"
        if failure.result is not None:
            usage = failure.result.usage
        if isinstance(failure, RunnerError) and (usage is None or not usage.turns):
            raise  # not one answer: this model or endpoint cannot be used
        console.print(f"[red]{escape(error)}[/]")
    seconds = time.monotonic() - begun
    return _TaskReport(
        task=task.text,
        tool=task.tool,
        calls=calls,
        reply=reply,
        ok=done and not error and _history_is_valid(store.context("demo")),
        seconds=round(seconds, 3),
        prompt_tokens=(usage.cached + usage.processed) if usage else 0,
        cached_tokens=usage.cached if usage else 0,
        generated_tokens=usage.generated if usage else 0,
        error=error,
    )


def _history_is_valid(entries: list[Entry]) -> bool:
    """Every stored call has exactly one result."""
    calls = sorted(entry.tool_call_id for entry in entries if entry.kind == EntryKind.tool_call)
    results = sorted(entry.tool_call_id for entry in entries if entry.kind == EntryKind.tool_result)
    return bool(calls) and calls == results and len(set(calls)) == len(calls)
