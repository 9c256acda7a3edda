"""Random turns over several sessions, with cancels and evictions, on both models."""

from __future__ import annotations

import random
import time
import warnings
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("llama_cpp")

from agentkit_fast.errors import InputTooLarge
from agentkit_fast.messages import ChatOptions, Message
from agentkit_fast.runners import LocalRunner
from agentkit_fast.text import heredoc_grammar

pytestmark = pytest.mark.model

GRAMMAR = heredoc_grammar([{"name": "read", "parameters": {"properties": {"path": {"type": "string"}}}}])
# The logits of one token move by up to about one unit with how a batch is cut.
SHIFT = 1.5


def check(runner: LocalRunner) -> None:
    """The log of every sequence is what the cache holds."""

    def lengths() -> list[tuple[int, int]]:
        engine = runner._engine
        return [(engine.context.length(s.number), len(s.log)) for s in engine._sequences]

    for held, logged in runner._engine.call(lengths).result():
        assert held == logged


def check_last_reply(runner: LocalRunner) -> None:
    """Walk along the tokens of the last greedy reply: none lies far below the favourite of a fresh evaluation."""
    engine = runner._engine

    def walk() -> list[float]:
        last = max(engine._sequences, key=lambda s: s.used)
        record = engine.records[-1]
        ids = last.log.ids.copy()
        start = record.prompt
        scratch = engine._free(keep=last)
        engine.context.truncate(scratch.number, 0)
        behind = []
        for at in range(0, len(ids), 64):
            piece = ids[at : at + 64]
            while engine.context.decode(piece, at, scratch.number, every=True) != 0:
                assert engine._evict(keep=scratch)
            for offset in range(len(piece)):
                following = at + offset + 1
                if start <= following < len(ids):
                    row = engine.context.logits(offset).copy()
                    row[runner._model.vocab.banned] = -np.inf
                    behind.append(float(row.max() - row[ids[following]]))
        engine.context.truncate(scratch.number, 0)
        scratch.log.truncate(0)
        return behind

    assert all(gap < SHIFT for gap in engine.call(walk).result())


def soak(path: Path, turns: int, seconds: float, seed: int) -> Counter[str]:
    chance = random.Random(seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        runner = LocalRunner(path, n_ctx=512, n_threads=1, n_sessions=2, repetition=False)
    counts: Counter[str] = Counter()
    end = time.monotonic() + seconds
    with runner:
        histories: dict[int, list[Message]] = {}
        for turn in range(turns):
            if time.monotonic() > end:
                break
            session = chance.randrange(6)
            history = histories.setdefault(
                session, [Message(role="user", content=f"Session {session}. Hello.")]
            )
            greedy = chance.random() < 0.7
            options = ChatOptions(
                temperature=0.0 if greedy else 1.0,
                seed=turn,
                max_tokens=chance.choice([3, 8, 16]),
                session_id=str(session),
                grammar=GRAMMAR if chance.random() < 0.3 else "",
            )
            try:
                stream = runner.chat_stream(history, options=options)
            except InputTooLarge:
                histories[session] = [Message(role="user", content=f"Session {session} begins anew.")]
                counts["too large"] += 1
                continue
            kind = chance.random()
            if kind < 0.25:  # cancel: at once, in the prefill, or in the reply
                time.sleep(chance.choice([0, 0.01, 0.05]))
                for _ in range(chance.randrange(3)):
                    next(stream, None)
                stream.close()
                check(runner)
                counts["cancelled"] += 1
                continue
            text = "".join(chunk.content for chunk in stream)
            check(runner)
            if greedy and not options.grammar and chance.random() < 0.2:
                check_last_reply(runner)
                counts["walked along"] += 1
            counts[f"from {runner.stats().turns[-1].source or 'nothing'}"] += 1
            history.append(Message(role="assistant", content=text))
            history.append(Message(role="user", content=chance.choice(["Go on.", "Why?", "word " * 30])))
            counts["complete"] += 1
        totals = runner.stats().totals
        assert totals.prompt == totals.cached + totals.evaluated
    return counts


@pytest.mark.parametrize("name", ["smollm2", "gemma"])
def test_soak(request: pytest.FixtureRequest, name: str) -> None:
    assert soak(request.getfixturevalue(f"{name}_path"), turns=30, seconds=12, seed=1)["complete"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("name", ["smollm2", "gemma"])
def test_long_soak(request: pytest.FixtureRequest, name: str) -> None:
    counts = soak(request.getfixturevalue(f"{name}_path"), turns=300, seconds=1200, seed=2)
    print(name, dict(sorted(counts.items())))
    assert counts["complete"] > 100
    assert counts["from memory"] > 0
