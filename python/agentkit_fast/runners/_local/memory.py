"""How large windows and caches may be on this machine."""

from __future__ import annotations

import os

__all__ = ["available_memory", "plan_cells"]

_UNKNOWN = 4 << 30


def available_memory() -> int:
    """Bytes a process may still take without swapping; 4 GiB where the system does not say."""
    try:
        with open("/proc/meminfo", encoding="ascii") as file:  # noqa: PTH123 - read once, no path work
            for line in file:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return _UNKNOWN


def plan_cells(
    *, n_ctx: int, trained: int, n_sessions: int, token_bytes: int, memory: int, pool_bytes: int
) -> tuple[int, int]:
    """(window of a conversation, tokens of the cache they share).

    A window asked for is taken as it is. Otherwise it is the trained length, or what a quarter of the
    available memory holds. The cache holds at least one full window, and as many as there are sessions
    where that stays within `pool_bytes`.
    """
    fits = max(256, memory // 4 // max(1, token_bytes))
    window = n_ctx or min(trained or 4096, fits)
    cells = max(window, min(window * n_sessions, pool_bytes // max(1, token_bytes), fits))
    # llama.cpp rounds up to a multiple of 256 by itself; doing it here keeps the figures equal.
    return window, -(-cells // 256) * 256
