"""Recurrent, hybrid and sliding-window memories: what is cached must not change what is said.

The models are tiny and random (`tiny_gguf.py`); the oracle is a context of its own that evaluates the same tokens
in one piece.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tiny_gguf

pytest.importorskip("llama_cpp")

from agentkit_fast.messages import ChatOptions, Message
from agentkit_fast.runners import LocalRunner
from agentkit_fast.runners._local import llama

MODELS: dict[str, tuple[Any, dict[str, Any]]] = {
    "recurrent": (tiny_gguf.mamba, {}),
    "hybrid": (tiny_gguf.lfm2, {}),
    "sliding": (tiny_gguf.gemma3, {"swa_full": False}),
    "sliding, kept whole": (tiny_gguf.gemma3, {}),
    "plain": (tiny_gguf.llama, {}),
}
# Weights are exact and noise is wide, so that two ways to the same logits differ by next to nothing.
TIE = 0.05


class Twin:
    """Plain llama.cpp on the same file: one sequence, nothing kept."""

    def __init__(self, path: Path) -> None:
        self.model = llama.Model(path)
        self._context = llama.Context(self.model, n_cells=1024, n_sequences=1, n_batch=1024)

    def behind(self, ids: np.ndarray, start: int) -> list[float]:
        """How far each token from `start` on lies below the favourite."""
        self._context.truncate(0, 0)
        assert self._context.decode(ids, 0, 0, every=True) == 0
        found = []
        for at in range(start, len(ids)):
            row = self._context.logits(at - 1).copy()
            row[self.model.vocab.banned] = -np.inf
            found.append(float(row.max() - row[ids[at]]))
        return found


class Talks:
    """Conversations with one runner; every greedy reply is held against the twin."""

    def __init__(self, path: Path, **options: Any) -> None:
        self.twin = Twin(path)
        self.runner = LocalRunner(
            path,
            n_threads=1,
            **{"n_ctx": 512, "n_batch": 16, "n_sessions": 1, "repetition": False, **options},
        )

    def ask(self, history: list[Message], session: str = "", **options: Any) -> str:
        options = {"temperature": 0.0, "max_tokens": 8, "session_id": session, **options}
        chunks = list(self.runner.chat_stream(history, options=ChatOptions(**options)))
        self.check()
        return "".join(chunk.content for chunk in chunks)

    @property
    def record(self) -> Any:
        return self.runner.stats().turns[-1]

    def check(self) -> None:
        engine = self.runner._engine

        def look() -> tuple[np.ndarray, list[tuple[int, int]]]:
            last = max(engine._sequences, key=lambda s: s.used)
            lengths = [(engine.context.length(s.number), len(s.log)) for s in engine._sequences]
            return last.log.ids.copy(), lengths

        ids, lengths = engine.call(look).result()
        assert all(held == logged for held, logged in lengths)
        gaps = self.twin.behind(ids, self.record.prompt)
        assert all(gap < TIE for gap in gaps), (gaps, self.record)


@pytest.fixture(params=MODELS.values(), ids=MODELS.keys())
def talks(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Talks]:
    make, options = request.param
    made = Talks(make(tmp_path / "model.gguf"), **options)
    with made.runner:
        yield made


def user(text: str) -> Message:
    return Message(role="user", content=text)


def grown(history: list[Message], reply: str, text: str) -> list[Message]:
    return [*history, Message(role="assistant", content=reply), user(text)]


def test_a_conversation_goes_on_and_a_question_aside_leaves_it(talks: Talks) -> None:
    history = [user("A story about a bear that lives in the woods and counts its honey pots.")]
    reply = talks.ask(history, "a")
    for turn in range(3):
        history = grown(history, reply, f"Go on {turn}.")
        reply = talks.ask(history, "a")
        assert talks.record.source in ("live", "fork")
        assert talks.record.evaluated <= 60
        # The question goes on from the conversation's end, and the conversation goes on after it.
        talks.ask(grown(history, reply, "In one line?"), max_tokens=4)
        assert talks.record.source in ("live", "fork")
        assert talks.record.evaluated <= 60


def test_every_way_to_go_back(talks: Talks) -> None:
    history = [user("one two three four five six seven eight nine ten eleven twelve")]
    reply = talks.ask(history, "a", max_tokens=12)
    assert (
        talks.ask(history, "a", max_tokens=12) == reply
    )  # the same again: the last token is evaluated anew
    longer = grown(history, reply, "and so on, and so forth, and what not, to the very end of it all")
    first = talks.ask(longer, "a", max_tokens=24)
    assert talks.ask(history, "a", max_tokens=12) == reply
    assert talks.ask(grown(history, reply[:3], "cut"), "a")
    assert talks.ask(longer, "a", max_tokens=24) == first
    assert talks.ask([user("another text")], "b")
    assert talks.ask([user("a third text")], "c")
    assert talks.ask(longer, "a", max_tokens=24) == first


def test_cancelled_anywhere(talks: Talks) -> None:
    history = [user("a long text, word after word, " * 8)]
    reply = talks.ask(history)
    for count in range(6):
        stream = talks.runner.chat_stream(
            grown(history, reply, "more of it, " * 6), options=ChatOptions(temperature=0, max_tokens=30)
        )
        for _ in range(count - 1):
            next(stream, None)
        stream.close()
        assert talks.ask(history) == reply
        talks.ask(grown(history, reply, "more of it, " * 6))


def test_put_aside_and_brought_back(talks: Talks) -> None:
    history = [user("a text that is longer than the window of any model here, word after word")]
    reply = talks.ask(history, "a")
    for name in ("b", "c", "d"):
        talks.ask([user(f"the talk of {name} about something else altogether")], name)
    talks.ask(grown(history, reply, "go on"), "a")
    assert (talks.record.source, talks.record.evaluated <= 60) == ("memory", True)
    for name in ("b", "c", "d"):
        talks.ask([user(f"more of {name} about something else altogether")], name)
    # The first prompt once more: a state that cannot be taken back does not serve for it.
    assert talks.ask(history, "a") == reply
    if not talks.runner._context.rewinds:
        assert talks.record.source != "memory"


def test_states_on_disk(tmp_path: Path, talks: Talks) -> None:
    path = Path(talks.runner._model.path)
    options = {} if talks.runner._context.swa_full else {"swa_full": False}

    def process(history: list[Message]) -> tuple[str, Any]:
        made = Talks(path, state_cache=tmp_path / "states", **options)
        with made.runner:
            return made.ask(history), made.record

    history = [user("what is kept on a disk is there for the next process, as it was left")]
    reply, record = process(history)
    assert record.source == ""
    history = grown(history, reply, "and then?")
    reply, record = process(history)
    assert (record.source, record.evaluated <= 60) == ("disk", True)
    again, record = process(history)
    assert again == reply
    # Where nothing can be taken back, not even the last token, the state before this one serves.
    assert (record.source, record.evaluated <= 60) == ("disk", True)


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_random_turns(talks: Talks, seed: int) -> None:
    chance = random.Random(seed)
    histories: dict[int, list[list[Message]]] = {}
    for turn in range(40):
        session = chance.randrange(4)
        known = histories.setdefault(session, [[user(f"{session} begins here")]])
        history = known[-1] if chance.random() < 0.7 else chance.choice(known)
        if len(history) > 9:
            history = history[:1]
        if chance.random() < 0.2:
            stream = talks.runner.chat_stream(history, options=ChatOptions(temperature=0, max_tokens=9))
            for _ in range(chance.randrange(4)):
                next(stream, None)
            stream.close()
        reply = talks.ask(history, str(session), max_tokens=chance.choice([1, 4, 12]))
        known.append(grown(history, reply, chance.choice(["go on", "why?", f"word {turn} " * 4])))


@pytest.mark.parametrize("name", [*MODELS, "smollm2_path", "gemma_path"])
def test_bytes_a_token_takes(name: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """The formula against llama.cpp's own state: what 10 more tokens add to it."""
    path = MODELS[name][0](tmp_path / "model.gguf") if name in MODELS else request.getfixturevalue(name)
    model = llama.Model(path)
    context = llama.Context(model, n_cells=512, n_sequences=1, n_batch=256)
    ids = np.full(20, 100, dtype=np.int32)
    sizes = []
    for start in (0, 10):
        context.decode(ids[start : start + 10], start, 0)
        sizes.append(len(context.save(0)))
    # Beside keys and values a state names each token's position and sequence: some 12 bytes, once a cache.
    assert (sizes[1] - sizes[0]) / 10 == pytest.approx(model.kv_bytes_per_token(), abs=32)
    context.close()
    model.close()


def test_a_file_without_a_template_says_which_is_used(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="ChatML"):
        runner = LocalRunner(tiny_gguf.llama(tmp_path / "m.gguf", template=""), n_ctx=256, n_threads=1)
    with runner, warnings.catch_warnings():
        assert runner._encoder.encode([{"role": "user", "content": "q"}]).text.startswith(
            "<|im_start|>user"
        )
