"""Random conversations: whatever a model, its tools, the host and a user do, the history stays usable.

Each example is a conversation of several turns over one store: random replies (text, calls with good and bad
arguments and ids, streams that end badly, repetition, nothing), random tools (results, errors, closing, lifting,
publishing), random interruptions between and during turns, restarts with a new `Session` on the same store. After
every turn the invariants of a history hold, and every request that was sent was valid.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentkit_fast import (
    AgentkitError,
    Entry,
    Limits,
    MemoryStore,
    RunnerError,
    ScriptedRunner,
    Session,
    SessionClosed,
    StreamChunk,
    ToolCall,
    ToolDef,
    Usage,
)
from session_kit import LOOK, broken
from test_session_enumeration import pairs_are_whole

ARGUMENTS = [
    "{}",
    '{"shelf":"A"}',
    '{"shelf":"B',
    "",
    "[1]",
    "{'a': 1,}",
    '{"a":1}}',
    "null",
    "\udce9",
    '{"n":1e400}',
]
IDS = ["", "k", "k", "k-2", "call_0", "\ud83d"]
NAMES = ["look", "look", "other", "", "guarded"]
RESULTS = ["ok", "", None, b"\xff", {"a": 1}, "<|im_start|>", "<OUTPUT>x</OUTPUT>", "\ud83d", "x" * 3000]

calls = st.builds(
    ToolCall, id=st.sampled_from(IDS), name=st.sampled_from(NAMES), arguments=st.sampled_from(ARGUMENTS)
)
texts = st.sampled_from(
    ["Well.", "", " \n", "{OUTPUT}", "@@call look\n{}\n@@end", "so on and so on, again. " * 60, "\udfff"]
)
finishes = st.sampled_from(["stop", "tool_calls", "length", ""])
pieces = st.one_of(
    texts.map(lambda text: StreamChunk(content=text)),
    st.just(StreamChunk(reasoning="hm")),
    calls.map(lambda asked: StreamChunk(tool_call=asked)),
    calls.map(lambda asked: StreamChunk(tool_call=asked)),
)


@st.composite
def streams(draw: st.DrawFn) -> Any:
    chunks: list[Any] = draw(st.lists(pieces, max_size=4))
    end = draw(st.integers(0, 11))
    if end == 0:
        return chunks  # no finish
    if end == 1:
        return [*chunks, RunnerError("gone")]
    if end == 2:
        return [*chunks, {"not": "a chunk"}]
    cut = tuple(draw(st.lists(calls, max_size=1))) if end == 3 else ()
    usage = Usage(prompt_tokens=5, completion_tokens=1, total_tokens=6) if end > 6 else None
    done = StreamChunk(done=True, finish_reason=draw(finishes), usage=usage, partial_tool_calls=cut)
    return [*chunks, done]


ACTIONS = ["answer"] * 6 + ["raise", "close", "lift", "publish", "cancel", "clear"]
TURNS = st.lists(
    st.tuples(
        st.lists(streams(), min_size=1, max_size=6),
        st.lists(st.sampled_from(ACTIONS), min_size=1, max_size=5),
        st.sampled_from(["sync", "async"]),
        st.integers(0, 60),  # cancelled at this piece of the stream; most turns are over before
        st.booleans(),  # a new Session object, as after a restart
    ),
    min_size=1,
    max_size=5,
)


class World:
    """One conversation."""

    def __init__(self, tool_format: str, seed: int) -> None:
        self.store = MemoryStore()
        self.tool_format = tool_format
        self.rng = random.Random(seed)
        self.lifted = itertools.count()
        self.actions: Any = iter(())
        self.made: Session | None = None
        self.requests: list[list[Any]] = []
        self.cancel_at, self.pieces = 0, 0

    def session(self, replies: list[Any]) -> Session:
        return Session(
            "s",
            self.store,
            ScriptedRunner([*replies, *["The end."] * 4]),
            tools=[LOOK, ToolDef(name="guarded")],
            dispatch=self.dispatch,
            tool_format=self.tool_format,
            approve=lambda asked: asked.name != "guarded",
            approve_all=True,
            on_token=self.token,
            max_turns=9,
            limits=Limits(tool_calls=6) if self.rng.random() < 0.2 else None,
            max_parallel_tools=self.rng.choice([1, 2, 4]),
        )

    def token(self, text: str) -> None:
        self.pieces += 1
        if self.pieces == self.cancel_at and self.made is not None:
            self.made.cancel()

    def dispatch(self, asked: ToolCall) -> Any:
        action = next(self.actions, "answer")
        if action == "raise":
            raise ValueError("no such shelf")
        if action == "close":
            raise SessionClosed("closed")
        if action == "lift":
            return f'{{"pending":true,"correlation_id":"c{next(self.lifted)}"}}'
        if action == "clear":
            return '{"clear":true,"group_by":"file","key":"a"}'
        if action == "publish":
            self.store.publish("s", Entry(kind="user", content="By the way."))
        if action == "cancel" and self.made is not None:
            self.made.cancel()
        return self.rng.choice(RESULTS)

    def turn(self, replies: list[Any], actions: list[str], mode: str, cancel_at: int, anew: bool) -> None:
        self.store.append("s", Entry(kind="user", content="Next."))
        if self.made is None or anew:
            self.made = self.session(replies)
        else:
            self.made.runner._replies = [
                *self.made.runner._replies[: self.made.runner._next],
                *replies,
                "End.",
            ]
        self.actions = iter(actions)
        self.cancel_at, self.pieces = cancel_at, 0
        already = len(self.made.runner.requests)
        try:
            result = self.made.turn() if mode == "sync" else asyncio.run(self.made.aturn())
        except AgentkitError as error:
            result = error.result
        assert result.stop_reason in ("reply", "length", "closed", "cancelled", "error")
        assert result.cancelled == (result.stop_reason == "cancelled")
        assert broken(self.store.context("s")) == []
        for request in self.made.runner.requests[already:]:
            messages = list(request.messages)
            pairs_are_whole(messages)
            for message in messages:
                str(message.to_wire()).encode()
        if self.made._lifts.open() and self.rng.random() < 0.5:
            self.made.resolve(self.made._lifts.open()[0].correlation_id, "arrived")


# 10,000 conversations take about seven minutes: AGENTKIT_CONVERSATIONS=10000 pytest tests/test_session_random.py
EXAMPLES = int(os.environ.get("AGENTKIT_CONVERSATIONS", "200"))
CHECKS = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]


@pytest.mark.timeout(3600)
@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=CHECKS)
@given(turns=TURNS, tool_format=st.sampled_from(["native", "heredoc"]), seed=st.integers(0, 2**32))
def test_random_conversations(turns: Any, tool_format: str, seed: int) -> None:
    world = World(tool_format, seed)
    for turn in turns:
        world.turn(*turn)
