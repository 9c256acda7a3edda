"""Choosing the next token from logits.

On the few tokens that can be chosen at all: everything `min_p` and `top_k` would drop is dropped first, in Rust and in
one pass, so that sorting and exponentials run over tens of candidates, not over a 262k vocabulary.
"""

from __future__ import annotations

import math
import random
from collections import deque
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from agentkit_fast._core import best_logits, draw_token
from agentkit_fast.messages import ChatOptions

__all__ = ["Sampler", "Sampling", "near_best"]

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
    logit_bias: dict[int, float] = {}

    @classmethod
    def from_options(cls, options: ChatOptions, seed: int | None = None) -> Sampling:
        """From a request's options; `extra` may hold `top_k`, `min_p`, `penalty_last_n` and `logit_bias`.

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
            whole = name in ("seed", "top_k", "penalty_last_n")
            if name == "seed" and value is None:
                continue
            if not isinstance(value, int if whole else (int, float)) or not math.isfinite(value):
                raise ValueError(f"{name} must be a {'whole ' * whole}number, not {value!r:.40}.")
        made = cls(**given, logit_bias=_bias(options.extra.get("logit_bias")))
        if made.temperature < 0 or made.repeat_penalty <= 0:
            raise ValueError(
                f"temperature {made.temperature} and repeat_penalty {made.repeat_penalty} "
                "must be at least 0, and above 0."
            )
        if not (0 <= made.min_p <= 1 and 0 <= made.top_p <= 1):
            raise ValueError(f"min_p {made.min_p} and top_p {made.top_p} must be within 0 to 1.")
        return made


_NOTHING = "No token can be chosen: every logit is excluded or not a number."


def _bias(given: Any) -> dict[int, float]:
    """OpenAI's `logit_bias`: token ids, as numbers or in text, and what is added to their logits."""
    if given is None:
        return {}
    try:
        made = {int(token): float(value) for token, value in dict(given).items()}
    except (TypeError, ValueError):
        raise ValueError(
            f"logit_bias must be an object of token ids and numbers, not {given!r:.60}."
        ) from None
    if any(token < 0 or math.isnan(value) or value == math.inf for token, value in made.items()):
        raise ValueError(
            "logit_bias must be an object of token ids from 0 on and numbers, or -inf for never."
        )
    return made


def near_best(logits: Logits, reach: float, most: int = 0) -> tuple[NDArray[np.uint32], Logits]:
    """The logits at most `reach` below the best: where they lie and what they are, the best first, at most `most` (0:
    all). `ValueError` where none can be chosen."""
    ids, values = best_logits(logits, reach=reach, most=max(0, most))
    if not ids:
        raise ValueError(_NOTHING)
    return np.frombuffer(ids, dtype=np.uint32), np.frombuffer(values, dtype=np.float32)


def _reach(sampling: Sampling) -> float:
    if sampling.temperature == 0:
        return 0.0
    # Where min_p allows everything, weights below e^-20 of the best are nothing.
    widest = 20.0 * max(1.0, sampling.temperature)
    return min(widest, -math.log(sampling.min_p)) if sampling.min_p > 0 else widest


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
        self._biased = np.fromiter(sampling.logit_bias, dtype=np.int64)
        self._bias = np.fromiter(sampling.logit_bias.values(), dtype=np.float32)
        last = sampling.penalty_last_n if sampling.penalty_last_n > 0 else 64
        self.reach = _reach(sampling)
        """How far below the best logit a token may lie and still be chosen."""
        self._recent: deque[int] = deque(map(int, history[-last:]), maxlen=last)
        self.adjusts = self._penalizes or bool(len(self._biased))
        """Whether `prepare` has anything to do."""

    def accept(self, token: int) -> None:
        """Note a token that became part of the reply."""
        if self._penalizes:
            self._recent.append(token)

    def prepare(self, logits: Logits) -> None:
        """Apply the bias and the penalties, in place. Once per position."""
        if len(self._biased):
            logits[self._biased] += self._bias
        if not self._penalizes or not self._recent:
            return
        ids, counts = np.unique(np.fromiter(self._recent, dtype=np.int64), return_counts=True)
        values = logits[ids]
        if self._sampling.repeat_penalty != 1.0:
            factor = np.float32(self._sampling.repeat_penalty)
            values = np.where(values > 0, values / factor, values * factor)
        values = values - counts * np.float32(self._sampling.frequency_penalty)
        logits[ids] = values - np.float32(self._sampling.presence_penalty)

    def choose(
        self,
        logits: Logits,
        ids: NDArray[np.integer[Any]] | None = None,
        banned: NDArray[np.int64] | None = None,
    ) -> int:
        """One token. With `ids`, `logits` are those tokens' only; `banned` ones (sorted) are never chosen.

        `ValueError` where none can be chosen.
        """
        sampling = self._sampling
        # One native call: the model's pass has emptied the caches, and each numpy call would fill its part anew.
        at = draw_token(
            logits,
            banned,
            reach=self.reach,
            most=max(0, sampling.top_k),
            top_p=sampling.top_p,
            temperature=sampling.temperature,
            at=self._random.random() if sampling.temperature else 0.0,
        )
        if at is None:
            raise ValueError(_NOTHING)
        return at if ids is None else int(ids[at])
