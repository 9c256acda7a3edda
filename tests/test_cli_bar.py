"""The bar for long work: shown on a terminal only, after a moment, and gone when the work is."""

from __future__ import annotations

import io

import pytest

pytest.importorskip("rich")

from rich.console import Console

from agentkit_fast.cli.bar import LongWork


@pytest.mark.parametrize(
    ("terminal", "patience", "shown"), [(True, 0.0, True), (True, 60.0, False), (False, 0.0, False)]
)
def test_bar(terminal: bool, patience: float, shown: bool) -> None:
    out = io.StringIO()
    with LongWork(Console(file=out, force_terminal=terminal, width=80), patience=patience) as bar:
        for what in ("load", "restore", "prefill"):
            for part in (0.0, 0.5, 1.0):
                bar(what, part)
            assert bar._shown is None
        bar("prefill", 0.25)
        assert (bar._shown is not None) == shown
    assert bar._shown is None
    for words in ("loading the model", "taking up the session", "reading the prompt"):
        assert (words in out.getvalue()) == shown
