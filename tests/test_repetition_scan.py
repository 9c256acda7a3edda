"""`scripts/repetition_scan.py`: it reads what is text, each content once, and tells what the guard finds."""

from __future__ import annotations

import gzip
import importlib.util
import random
import struct
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).resolve().parent.parent / "scripts" / "repetition_scan.py"

if not SCRIPT.exists():
    pytest.skip("scripts/ is not part of the source distribution", allow_module_level=True)

spec = importlib.util.spec_from_file_location("repetition_scan", SCRIPT)
assert spec is not None
assert spec.loader is not None
repetition_scan: Any = importlib.util.module_from_spec(spec)
sys.modules["repetition_scan"] = repetition_scan
spec.loader.exec_module(repetition_scan)

LOOP = "The parcel runs north along the fence line to the iron pin. " * 20
COUNTING = "".join(f"Step {number}: check the valve and write it down.\n" for number in range(1, 60))


def catalogue(messages: dict[str, str]) -> bytes:
    """A `.mo` file."""
    count = len(messages)
    tables, texts = [], b""
    for column in (list(messages), list(messages.values())):
        for text in column:
            tables.append((len(text.encode()), 28 + 16 * count + len(texts)))
            texts += text.encode() + b"\0"
    head = struct.pack("<7I", 0x950412DE, 0, count, 28, 28 + 8 * count, 0, 0)
    return head + b"".join(struct.pack("<2I", *entry) for entry in tables) + texts


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "loop.txt").write_text(LOOP)
    (tmp_path / "deep" / "the same again.txt").write_text(LOOP)
    (tmp_path / "counting.txt.gz").write_bytes(gzip.compress(COUNTING.encode()))
    (tmp_path / "prose.md").write_text(
        "Once upon a time there was a guard that let prose alone.\n", "utf-8"
    )
    (tmp_path / "german.mo").write_bytes(catalogue({"file": "Datei", "one\0many": "eines\0viele ü"}))
    (tmp_path / "noise.bin").write_bytes(b"\0" + random.Random(5).randbytes(20_000))
    (tmp_path / "broken.gz").write_bytes(b"\x1f\x8b nothing")
    (tmp_path / "latin.txt").write_bytes("Grüße".encode("latin-1"))
    (tmp_path / "link").symlink_to(tmp_path / "deep" / "loop.txt")
    return tmp_path


def test_each_text_once_with_what_is_found(folder: Path) -> None:
    result = repetition_scan.scan([folder, folder / "deep"])
    assert result.files == 4
    assert result.kinds[".mo"] == len(
        'msgid "file"\nmsgstr[0] "Datei"\nmsgid "one"\nmsgid "many"\nmsgstr[0] "eines"\nmsgstr[1] "viele ü"'.encode()
    )
    found = {Path(finding.path).name: finding for finding in result.findings}
    assert {name: finding.kind for name, finding in found.items()} == {
        "loop.txt": "period",
        "counting.txt.gz": "counting",
    }
    assert found["loop.txt"].found.period == 60
    assert found["loop.txt"].found.reps == 20


def test_in_pieces_and_with_dumps(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    repetition_scan.main([str(folder), "--pieces", "4", "--dumps"])
    out = capsys.readouterr().out
    # Three binary files, Latin-1 among them, each as four dumps; an unreadable archive too.
    assert "16 texts" in out
    assert "4 findings" in out
    assert f"{folder}/deep/loop.txt (in pieces): period, period 60" in out
    assert out.count("counting, period") == 2


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(SystemExit):
        repetition_scan.main([str(tmp_path / "nowhere")])
