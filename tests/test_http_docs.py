"""The tables of `docs/providers.md` are those of the tested rows."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SCRIPT = ROOT / "scripts" / "quirk_table.py"


@pytest.mark.skipif(not SCRIPT.exists(), reason="scripts/ is not part of the source distribution")
def test_the_tables_are_current() -> None:
    run = subprocess.run(
        [sys.executable, str(SCRIPT), "--check"], capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stdout + run.stderr
