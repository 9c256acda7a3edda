"""Benches refuse a debug build: its figures would mislead."""

import pytest

from agentkit_fast import _core


def pytest_collection_modifyitems() -> None:
    if _core.DEBUG_BUILD:
        raise pytest.UsageError(
            "the extension is a debug build; run `maturin develop --profile release` (or `make develop`)"
        )
