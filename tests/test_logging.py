"""Logging as libraries do it: named loggers below `agentkit_fast`, no handlers, no levels, no text of users."""

from __future__ import annotations

import ast
import logging
import subprocess
import sys
from pathlib import Path

import pytest

import agentkit_fast
from agentkit_fast import Entry, MemoryStore, ScriptedRunner, Session

PACKAGE = Path(agentkit_fast.__file__).parent


def test_every_logger_is_below_the_package() -> None:
    found = 0
    for path in PACKAGE.rglob("*.py"):
        if "cli" in path.parts:
            continue  # an application may set up logging
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call):
                continue
            called = ast.unparse(node.func)
            assert called not in ("logging.basicConfig", "logging.StreamHandler"), path
            assert called not in {f"logging.{level}" for level in ("debug", "info", "warning", "error")}, (
                path
            )
            if called == "logging.getLogger":
                found += 1
                name = ast.unparse(node.args[0]) if node.args else ""
                assert name == "__name__" or name.startswith("'agentkit_fast"), (path, name)
    assert found > 5


def test_importing_everything_sets_up_nothing() -> None:
    script = (
        "import logging, agentkit_fast as a\n"
        "for n in a.__all__: getattr(a, n)\n"
        "assert not logging.getLogger().handlers\n"
        "names = [n for n in logging.root.manager.loggerDict if n.startswith('agentkit_fast')]\n"
        "assert names\n"
        "for n in names:\n"
        "    log = logging.getLogger(n)\n"
        "    assert not log.handlers and log.level == logging.NOTSET and log.propagate, n\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


def test_records_hold_no_text_of_the_conversation(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, logger="agentkit_fast")
    store = MemoryStore()
    session = Session("s", store, ScriptedRunner(["The secret reply."]), system="The secret prompt.")
    session.inject(Entry(kind="user", content="The secret question."))
    session.turn()
    assert "window" in caplog.text
    assert "secret" not in caplog.text
