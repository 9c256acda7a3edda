"""Choosing the next token from logits.

In numpy, on the few tokens that can be chosen at all: everything `min_p` and `top_k` would drop is dropped
first, so that sorting and exponentials run over tens of candidates, not over a 262k vocabulary.
"""

from __future__ import annotations

import math
import random
from collections import deque
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from agentkit_fast.messages import ChatOptions

__all__ = ["Sampler", "Sampling"]

Logits = NDArray[np.float32]


class Sampling(msgspec.Struct, kw_only=True, frozen=True):
    """Sampling parameters. The defaults are llama.cpp's, but cooler: agents call tools."""

    temperature: float = 0.2
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    repeat_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    penalty_last_n: int = 64
    seed: int | None = None

    @classmethod
    def from_options(cls, options: ChatOptions, seed: int | None = None) -> Sampling:
        """From a request's options; `extra` may hold `top_k`, `min_p` and `penalty_last_n`.

        `ValueError` for figures that mean nothing.
        """
        given: dict[str, Any] = {
            name: getattr(options, name)
            for name in (
                "temperature",
                "top_p",
                "repeat_penalty",
                "frequency_penalty",
                "presence_penalty",
            )
            if getattr(options, name) is not None
        }
        given["seed"] = seed if options.seed is None else options.seed
        for name in ("top_k", "min_p", "penalty_last_n"):
            if options.extra.get(name) is not None:
                given[name] = options.extra[name]
        for name, value in given.items():
            if name != "seed" and not (isinstance(value, (int, float)) and math.isfinite(value)):
                raise ValueError(f"{name} must be a number, not {value!r:.40}.")
        made = cls(**given)
        if made.temperature < 0 or not 0 <= made.min_p <= 1 or made.repeat_penalty <= 0:
            raise ValueError(
                f"temperature {made.temperature}, min_p {made.min_p} and repeat_penalty "
                f"{made.repeat_penalty} must be at least 0, within 0 to 1, and above 0."
            )
        return made


class Sampler:
    """Chooses tokens for one reply."""

    def __init__(self, sampling: Sampling, history: NDArray[np.int32]) -> None:
        self._sampling = sampling
        self._random = random.Random(sampling.seed)  # noqa: S311 - sampling, not cryptography
        self._penalizes = (
            sampling.repeat_penalty != 1.0
            or sampling.frequency_penalty != 0.0
            or sampling.presence_penalty != 0.0
        )
        last = sampling.penalty_last_n if sampling.penalty_last_n > 0 else 64
        self._recent: deque[int] = deque(map(int, history[-last:]), maxlen=last)

    def accept(self, token: int) -> None:
        """Note a token that became part of the reply."""
        if self._penalizes:
            self._recent.append(token)

    def prepare(self, logits: Logits) -> None:
        """Apply the penalties, in place. Once per position."""
        if not self._penalizes or not self._recent:
            return
        ids, counts = np.unique(np.fromiter(self._recent, dtype=np.int64), return_counts=True)
        values = logits[ids]
        if self._sampling.repeat_penalty != 1.0:
            factor = np.float32(self._sampling.repeat_penalty)
            values = np.where(values > 0, values / factor, values * factor)
        values = values - counts * np.float32(self._sampling.frequency_penalty)
        logits[ids] = values - np.float32(self._sampling.presence_penalty)

    @property
    def reach(self) -> float:
        """How far below the best logit a token may lie and still be chosen."""
        sampling = self._sampling
        if sampling.temperature == 0:
            return 0.0
        # Where min_p allows everything, weights below e^-20 of the best are nothing.
        widest = 20.0 * max(1.0, sampling.temperature)
        return min(widest, -math.log(sampling.min_p)) if sampling.min_p > 0 else widest

    def choose(self, logits: Logits, ids: NDArray[np.integer[Any]] | None = None) -> int:
        """One token. With `ids`, `logits` are those tokens' only."""
        sampling = self._sampling
        if sampling.temperature == 0:
            at = int(logits.argmax())
            return at if ids is None else int(ids[at])
        best = logits.max()
        if not np.isfinite(best):
            raise ValueError("No token can be chosen: every logit is excluded or not a number.")
        near = np.flatnonzero(logits >= best - np.float32(self.reach))
        values = logits[near]
        if 0 < sampling.top_k < len(near):
            top = np.argpartition(values, -sampling.top_k)[-sampling.top_k :]
            near, values = near[top], values[top]
        order = np.argsort(-values, kind="stable")
        near, values = near[order], values[order].astype(np.float64)
        weights = np.exp(values - values[0])
        if sampling.top_p < 1.0:
            mass = np.cumsum(weights)
            keep = int(np.searchsorted(mass, sampling.top_p * mass[-1])) + 1
            near, values = near[:keep], values[:keep]
        weights = np.exp((values - values[0]) / sampling.temperature)
        mass = np.cumsum(weights)
        at = int(np.searchsorted(mass, self._random.random() * mass[-1], side="right"))
        at = int(near[min(at, len(near) - 1)])
        return at if ids is None else int(ids[at])
