"""`agentkit-fast demo`: a real tool loop on a real model, for everyone to see."""

from __future__ import annotations

import json
import tempfile
import time
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.markup import escape

from agentkit_fast.cli.connect import open_runner, tool_format_of
from agentkit_fast.cli.file_tools import FolderTools
from agentkit_fast.entries import Entry, EntryKind
from agentkit_fast.errors import AgentkitError
from agentkit_fast.events import CallReady, Notice, Retrying, TextDelta, ToolResult, TurnDone
from agentkit_fast.messages import ChatOptions
from agentkit_fast.session import Session
from agentkit_fast.stores.memory import MemoryStore

__all__ = ["run_demo"]

FILES = {
    "notes.txt": "The workshop is on Tuesday at nine.\nBring the blue folder.\n",
    "shopping.txt": "bread\nmilk\napples\n",
    "todo.md": "- water the plants\n- call the plumber\n",
}
# What a model of 135 million parameters can do when it is made to call: pick a tool and fill in a name.
TASKS = (
    "List the files in the folder.",
    "Read the file notes.txt",
    "Write a file hello.txt with a short greeting in it.",
)


class _TaskReport(msgspec.Struct, kw_only=True):
    task: str
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
                        "[dim]A model this small often says silly things, or words that only look like calls. What "
                        "counts here is the machinery: the first round of each task must be a tool call, and it is "
                        "parsed, run and stored like any other.[/]"
                    )
                reports.extend(_run_task(task, runner, folder, console) for task in TASKS)
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
        f"\n[bold]{good} of {len(TASKS)} tasks[/] went through the whole tool loop in "
        f"{time.monotonic() - started:.1f} s; tokens: prompt {total['prompt']} (of these cached {total['cached']}), "
        f"generated {total['generated']}"
    )
    if json_output:
        print(
            json.dumps({"tasks": msgspec.to_builtins(reports), "ok": good == len(TASKS), "tokens": total})
        )
    return 0 if good == len(TASKS) else 1


def _options(number: int) -> ChatOptions:
    """A call is required in the first round and words in the next: left free, so small a model calls for ever."""
    return ChatOptions(tool_choice="none" if number else "required", temperature=0.0, max_tokens=96)


def _run_task(task: str, runner: Any, folder: str, console: Console) -> _TaskReport:
    store = MemoryStore()
    session = Session(
        "demo",
        store,
        runner,
        tools=FolderTools(folder).tools(),
        tool_format=tool_format_of(runner, "auto"),
        options=_options,
        max_turns=6,
    )
    session.inject(Entry(kind=EntryKind.user, content=task))
    console.print(f"\n[bold cyan]user[/]  {escape(task)}")
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
        console.print(f"[red]{escape(error)}[/]")
    seconds = time.monotonic() - begun
    return _TaskReport(
        task=task,
        calls=calls,
        reply=reply,
        ok=not error and bool(calls) and _history_is_valid(store.context("demo")),
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
