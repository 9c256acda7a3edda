"""Every ```python fence in the README and the docs runs, offline, in an empty folder.

A page is one program: its fences run in order in one namespace. A fence opened with ```python no-run (or in
another language) is not run.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FENCE = re.compile(r"^```python *(?P<flags>[^\n]*)\n(?P<code>.*?)^```", re.MULTILINE | re.DOTALL)
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


def fences(page: Path) -> list[tuple[int, str]]:
    text = page.read_text(encoding="utf-8")
    return [
        (text.count("\n", 0, match.start("code")), match["code"])
        for match in FENCE.finditer(text)
        if "no-run" not in match["flags"]
    ]


WITH_CODE = [page for page in PAGES if fences(page)]


@pytest.mark.parametrize("page", WITH_CODE, ids=[str(page.relative_to(ROOT)) for page in WITH_CODE])
def test_page_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    if "LocalRunner" in page.read_text(encoding="utf-8"):
        pytest.importorskip("llama_cpp")
    namespace: dict[str, object] = {"__name__": "__docs__"}
    for line, code in fences(page):
        # Line numbers in a traceback are those of the page.
        # Our own `from __future__ import annotations` is not the page's.
        exec(compile("\n" * line + code, str(page), "exec", dont_inherit=True), namespace)


def test_llms_txt_is_current() -> None:
    script = ROOT / "scripts" / "llms_txt.py"
    if not script.exists():
        pytest.skip("not a source checkout")
    done = subprocess.run(
        [sys.executable, str(script), "--check"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout
    for path in re.findall(r"\]\(([^)]+)\)", (ROOT / "llms.txt").read_text(encoding="utf-8")):
        assert (ROOT / path).exists(), path


def test_every_page_is_in_the_navigation() -> None:
    config = ROOT / "mkdocs.yml"
    if not config.exists():
        pytest.skip("not a source checkout")
    named = set(re.findall(r"([\w/.-]+\.md)$", config.read_text(encoding="utf-8"), re.MULTILINE))
    assert named == {str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").rglob("*.md")}
