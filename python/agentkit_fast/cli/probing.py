"""`agentkit-fast probe`: what a model or an endpoint makes of tool calls and grammars."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
from rich.console import Console
from rich.table import Table

from agentkit_fast.cli.connect import open_runner
from agentkit_fast.probe import ROUNDS, probe_tool_surface

__all__ = ["run_probe"]


def run_probe(
    *, model: Path | None, endpoint: str | None, endpoint_model: str, threads: int | None, json_output: bool
) -> int:
    """Probe and print; 0 when at least one way of calling tools works."""
    with open_runner(model, endpoint, endpoint_model, threads=threads, context=4096) as (runner, title):
        errors = Console(stderr=True, highlight=False)
        if not errors.is_terminal:
            errors.print(f"asking {ROUNDS} questions; this takes minutes where tokens come slowly")
        with errors.status("asking") as status:
            report = probe_tool_surface(
                runner, on_progress=lambda asked: status.update(f"question {asked + 1} of {ROUNDS}")
            )
        profile = runner.profile
    works = report.grammar_accepted or any(not echo.error and not echo.no_call for echo in report.echo)
    if json_output:
        print(json.dumps({"title": title, "ok": works, **msgspec.to_builtins(report)}))
        return int(not works)
    console = Console(highlight=False)
    console.print(title, style="bold", markup=False)
    table = Table(box=None, pad_edge=False)
    for column in ("value", "came back", "lossy", "no call", "bad JSON", "error"):
        table.add_column(column, overflow="fold")
    for echo in report.echo:
        table.add_row(
            echo.name,
            "as sent" if echo.got == echo.want else repr(echo.got)[:60],
            *("yes" if flag else "" for flag in (echo.lossy, echo.no_call, echo.bad_json)),
            echo.error[:80],
        )
    console.print(table)
    console.print(
        f"grammar accepted: {report.grammar_accepted}; together with tools: {report.grammar_with_tools_accepted}"
    )
    if report.grammar_error:
        console.print(report.grammar_error, style="dim", markup=False)
    console.print(
        f"window: {profile.context_tokens or 'unknown'} tokens; native tools: {profile.native_tools}"
    )
    return int(not works)
