"""`scripts/figures.py`: page and list have the same rows, its benches exist, any part of the files will do."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
SCRIPT = ROOT / "scripts" / "figures.py"

if not SCRIPT.exists():
    pytest.skip("scripts/ is not part of the source distribution", allow_module_level=True)

spec = importlib.util.spec_from_file_location("figures", SCRIPT)
assert spec is not None
assert spec.loader is not None
figures: Any = importlib.util.module_from_spec(spec)
sys.modules["figures"] = figures  # dataclasses look their module up
spec.loader.exec_module(figures)

WANTED = sorted({bench for table in figures.TABLES for row in table.rows for bench in row.benches.values()})


@pytest.mark.parametrize("table", figures.TABLES, ids=lambda table: f"{table.page}:{table.name}")
def test_the_page_has_the_rows_of_the_list(table: Any) -> None:
    page = (ROOT / table.page).read_text(encoding="utf-8")
    rows = figures.rows_of(figures.between(table, page))
    assert list(rows) == [row.task for row in table.rows]
    for row in table.rows:
        assert len(row.cells) + 1 == len(table.heads)
        assert row.task not in ("", "task")


def benches(*arguments: str) -> subprocess.CompletedProcess[str]:
    """What pytest says to them."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
    ran = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    if "debug build" in ran.stdout + ran.stderr:
        pytest.skip("the benches refuse a debug build")
    return ran


def test_each_python_bench_exists() -> None:
    files = sorted({bench.partition("::")[0] for bench in WANTED if bench.startswith("test_")})
    found = benches("--collect-only", *(f"benches/{name}" for name in files))
    there = {re.sub(r"^.*?(?=test_\w+\.py::)", "", line) for line in found.stdout.splitlines()}
    assert not [bench for bench in WANTED if bench.startswith("test_") and bench not in there]


def test_each_rust_bench_exists() -> None:
    sources = "\n".join(
        path.read_text(encoding="utf-8") for path in (ROOT / "rust/core/benches").glob("*.rs")
    )
    words = re.findall(r'"((?:[^"\\\n]|\\.)+)"', sources)
    patterns = [re.compile(re.sub(r"\\\{\w*\\\}", ".+", re.escape(word))) for word in words]
    for bench in WANTED:
        if bench.startswith("criterion::"):
            group, _, function = bench.removeprefix("criterion::").partition("/")
            assert group in words, bench
            fixed = [pattern for pattern in patterns if pattern.pattern != ".+"]
            assert any(pattern.fullmatch(function) for pattern in fixed), bench


def test_a_part_of_the_benches_is_enough(tmp_path: Path) -> None:
    """One bench is measured here; its row is new, the others stay and say that they are older."""
    (tmp_path / "docs").mkdir()
    for table in figures.TABLES:
        shutil.copy(ROOT / table.page, tmp_path / table.page)
    (tmp_path / "empty.json").touch()
    measured = tmp_path / "calls.json"
    quick = ["--benchmark-max-time=0.001", "--benchmark-min-rounds=1", "--benchmark-only"]
    ran = benches("benches/test_heredoc.py", "-k", "many_rows", f"--benchmark-json={measured}", *quick)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    page = tmp_path / "docs/performance.md"
    (table,) = (table for table in figures.TABLES if table.name == "calls")
    text = page.read_text(encoding="utf-8")
    stood = figures.between(table, text)
    task = "`repair_json`, 1,000 loose rows (80 KB)"
    written = text.replace(figures.rows_of(stood)[task], f"| {task} | 7777 s | | |")
    page.write_text(written, encoding="utf-8")
    command = [sys.executable, str(SCRIPT), "--root", str(tmp_path), "--criterion", str(tmp_path)]
    for _ in range(2):  # once more changes nothing
        done = subprocess.run(
            [*command, str(measured), str(tmp_path / "empty.json")],
            capture_output=True,
            text=True,
            check=True,
        )
        assert "empty.json: no figures" in done.stderr
        assert "`json_repair`" not in done.stdout
        assert task not in done.stderr
        assert done.stderr.count("not measured") == sum(len(table.rows) for table in figures.TABLES) - 1
        new = page.read_text(encoding="utf-8")
        inside = figures.between(table, new)
        rows = figures.rows_of(inside)
        assert re.fullmatch(rf"\| {re.escape(task)} \| [\d.,]+ (µs|ms|s) \| +\| +\|", rows[task])
        assert all(row.endswith(" † |") for name, row in rows.items() if name != task)
        assert re.search(
            r"cores, Python 3\.\d+\.\d+; wall clock, medians; \d{4}-\d\d-\d\d\. †: an older run", inside
        )
        # Nothing outside of this table has changed.
        assert new.replace(inside, "") == written.replace(figures.between(table, written), "")


def row(task: str, **benches: str) -> Any:
    return figures.Row(task, benches, ("{a}", "{b} {b#rate#x}", "{b/a}"))


@pytest.mark.parametrize(
    ("mine", "theirs", "cells"),
    [
        ((20e-9, 20e-9), (4e-6, 4e-6), "20 ns | 4.0 µs 1,000 | 200 ×"),
        ((0.0025, 0.0025), (0.027, 0.027), "2.5 ms | 27 ms 1,000 | 11 ×"),
        ((0.0074, 0.0074), (0.0019, 0.0019), "7.4 ms | 1.9 ms 1,000 | **0.26 ×**"),
        ((0.002, 0.001), (0.02, 0.02), "2.0 ms | 20 ms 1,000 | 10 × (best 20 ×)"),
        ((12, 12), (1433, 1433), "12 s | 1,433 s 1,000 | 119 ×"),
    ],
)
def test_cells(mine: Any, theirs: Any, cells: str) -> None:
    day = figures.date(2026, 12, 1)
    known = {
        "one": figures.Figure(*mine, {}, "m", day, "wall clock"),
        "two": figures.Figure(*theirs, {"rate": {"x": 1000}}, "m", day, "wall clock"),
    }
    table = figures.Table("p", "t", ("task", "here", "beside", "ratio"), (row("x", a="one", b="two"),))
    text = figures.render(table, "", known, print)
    assert f"| x | {cells} |" in text
    said: list[str] = []
    assert figures.render(table, text, {}, said.append) == text, "nothing measured: nothing changed"
    assert said == ["p: x: not measured: one, two"]
