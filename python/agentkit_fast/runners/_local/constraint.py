"""Holding a reply to a grammar: sample first, check the one token, look further only after a reject."""

from __future__ import annotations

import re
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from agentkit_fast.runners._local.gbnf import Node, parse_gbnf, token_literals
from agentkit_fast.runners._local.llama import Grammar, Vocab
from agentkit_fast.runners._local.sampling import Logits, Sampler

__all__ = ["Constraint", "GbnfConstraint", "check_gbnf"]


class Constraint(Protocol):
    """A grammar at some point of the reply."""

    def allows(self, token: int) -> bool:
        """Whether this token may come next."""

    def choose(self, sampler: Sampler, logits: Logits) -> int | None:
        """A token that may come next, after the sampler's own choice was refused; `None`: there is none."""

    def accept(self, token: int) -> None:
        """Go on by an allowed token."""

    def forced(self) -> list[int]:
        """Tokens that must come next, whatever the model thinks; often none."""
        ...

    def close(self) -> None: ...


def check_gbnf(vocab: Vocab, gbnf: str) -> dict[str, Node]:
    """The grammar's rules. `ValueError` where this model cannot be held to it."""
    rules = parse_gbnf(gbnf)
    for spelling in token_literals(rules):
        token = re.fullmatch(r"<\[([0-9]{1,9})\]>", spelling)
        if token and int(token[1]) >= vocab.size:
            raise ValueError(f"The grammar names token {token[1]}; the vocabulary has {vocab.size}.")
        if not token and len(vocab.tokenize(spelling.encode(), parse_special=True)) != 1:
            raise ValueError(f"The grammar names {spelling} as one token; in this vocabulary it is none.")
    return rules


class GbnfConstraint:
    """llama.cpp's grammar engine."""

    def __init__(self, vocab: Vocab, gbnf: str) -> None:
        check_gbnf(vocab, gbnf)
        self._grammar = Grammar(vocab, gbnf)

    def allows(self, token: int) -> bool:
        return self._grammar.allows(token)

    def choose(self, sampler: Sampler, logits: Logits) -> int | None:
        # In batches from the top: the first that holds an allowed token far enough above its own lowest
        # one decides like the whole vocabulary would, at a hundredth of its cost.
        checked = 0
        size = len(logits)
        allowed_ids: list[NDArray[np.intp]] = []
        for count in (64, 1024, 16384, size):
            count = min(count, size)  # noqa: PLW2901
            top = np.argpartition(logits, size - count)[size - count :] if count < size else np.arange(size)
            top = top[np.argsort(-logits[top], kind="stable")]
            fresh = top[checked:]
            fresh = fresh[np.isfinite(logits[fresh])]
            if len(fresh):
                allowed_ids.append(fresh[self._grammar.allowed(fresh)])
            checked = count
            ids = np.concatenate(allowed_ids) if allowed_ids else top[:0]
            if len(ids):
                values = logits[ids]
                if count == size or logits[top[-1]] <= values.max() - sampler.reach:
                    return sampler.choose(values, ids)
            if count == size:
                return None
        return None

    def accept(self, token: int) -> None:
        self._grammar.accept(token)

    def forced(self) -> list[int]:
        return []

    def close(self) -> None:
        self._grammar.close()
