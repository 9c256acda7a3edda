"""How many threads to compute with."""

from __future__ import annotations

import os
import time

import numpy as np

from agentkit_fast.runners._local.llama import Context

__all__ = ["choose_threads", "cores"]

# Measured for at most this long, all candidates together.
_SECONDS = 0.8


def cores() -> int:
    """Processors this process may use."""
    try:
        return max(1, len(os.sched_getaffinity(0)))
    except AttributeError:  # not on this platform
        return max(1, os.cpu_count() or 1)


def choose_threads(context: Context, sequence: int) -> tuple[int, dict[int, float]]:
    """The number of threads that decodes fastest now, and seconds per token of each that was tried.

    More is not better: on a busy two-core machine one thread gave 89 tokens/s where two gave 4 to 30,
    because every step waits for the slowest thread. So candidates are tried, in turns, and the median
    counts. `sequence` must be empty, and is left so.
    """
    most = cores()
    candidates = sorted({1, *(most // n for n in (1, 2, 4) if most // n)})
    if len(candidates) == 1:
        return 1, {}
    token = np.array([max(0, context.model.vocab.bos)], dtype=np.int32)
    times: dict[int, list[float]] = {count: [] for count in candidates}
    end = time.perf_counter() + _SECONDS
    position = 0
    while position < 8 * len(candidates) and time.perf_counter() < end:
        for count in candidates:
            context.set_threads(count, count)
            begun = time.perf_counter()
            if context.decode(token, position, sequence) != 0:
                break
            times[count].append(time.perf_counter() - begun)
            position += 1
    context.truncate(sequence, 0)
    medians = {count: float(np.median(taken)) for count, taken in times.items() if taken}
    if not medians:
        return 1, {}
    # A tie goes to fewer threads: they leave room for the tools.
    best = min(medians.values())
    return min(count for count, median in medians.items() if median <= best * 1.1), medians
