"""`agentkit-fast tokens`: exact counts of files by a model's own vocabulary."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import track
from rich.table import Table

from agentkit_fast.cli.connect import UsageProblem, open_counter
from agentkit_fast.cli.embedded import embedded_model
from agentkit_fast.tokens import CharsByFour

__all__ = ["run_count"]


def run_count(files: Sequence[str], *, model: Path | None, json_output: bool) -> int:
    """Count each file (`-` is standard input); 1 where one could not be read."""
    path = model or embedded_model()
    if path is None:
        raise UsageProblem("give a GGUF file or a tokenizer.json with --model")
    counter = open_counter(path)
    estimate = CharsByFour()
    rows: list[tuple[str, int, int, int]] = []
    failures: list[str] = []
    console = Console(stderr=True, highlight=False)
    for name in track(
        files, description="counting", console=console, transient=True, disable=len(files) < 20
    ):
        try:
            data = sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
        except OSError as error:
            failures.append(f"{name}: {error.strerror or error}")
            continue
        text = data.decode("utf-8", "replace")
        rows.append((name, len(data), counter.count(text), estimate.count(text)))
    if json_output:
        print(
            json.dumps(
                {
                    "model": str(path),
                    "files": [
                        {"file": name, "bytes": size, "tokens": tokens, "bytes_by_four": rough}
                        for name, size, tokens, rough in rows
                    ],
                    "tokens": sum(row[2] for row in rows),
                    "errors": failures,
                }
            )
        )
    else:
        table = Table(box=None, pad_edge=False)
        for column in ("tokens", "bytes", "bytes/4 says"):
            table.add_column(column, justify="right")
        table.add_column("file", overflow="fold")
        for name, size, tokens, rough in rows:
            table.add_row(f"{tokens:,}", f"{size:,}", f"{rough:,}", name)
        if len(rows) > 1:
            sizes = sum(row[1] for row in rows)
            counts = sum(row[2] for row in rows)
            guesses = sum(row[3] for row in rows)
            table.add_row(f"{counts:,}", f"{sizes:,}", f"{guesses:,}", "total", style="bold")
        Console(highlight=False).print(table)
    for failure in failures:
        console.print(failure, style="red", markup=False)
    return int(bool(failures))
