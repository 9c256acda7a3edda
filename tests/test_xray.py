"""The X-ray: the replayed windows are those the session had, and the page holds no foreign script."""

from __future__ import annotations

import json
import random
import re

from agentkit_fast import Entry, MemoryStore, ShapePolicy, Shaper, StreamChunk
from agentkit_fast.xray import render_page, replay


class Summaries:
    def chat_stream(self, messages, tools=(), options=None):
        yield StreamChunk(content="The bays up to here were checked and are fine.")
        yield StreamChunk(done=True, finish_reason="stop")


def play(policy: ShapePolicy, rounds: int, seed: int = 1):
    """A talk with tools; the windows it had, and its whole history."""
    store, rng, windows = MemoryStore(), random.Random(seed), []
    shaper = Shaper(store, Summaries(), policy)

    def build() -> None:
        window = shaper.build("s", "You are a depot clerk.")
        windows.append((window.tokens, window.break_reason, window.tokens - window.new_tokens))

    for n in range(rounds):
        store.append("s", Entry(kind="user", content=f"check bay {n} " + "please " * rng.randint(1, 30)))
        build()
        store.append("s", Entry(kind="assistant", content=f"looking {n}"))
        store.append("s", Entry(kind="tool_call", content="{}", tool_call_id=f"c{n}", tool_name="bay"))
        store.append(
            "s",
            Entry(
                kind="tool_result",
                content="box " * rng.randint(100, 1500),
                tool_call_id=f"c{n}",
                tool_name="bay",
            ),
        )
        build()
        store.append("s", Entry(kind="assistant", content=f"bay {n} is fine"))
    return windows, store.history("s")


def test_replay_gives_the_windows_that_were() -> None:
    policy = ShapePolicy(
        budget_tokens=8000, lod_above=200, preserve_last_messages=4, preserve_last_tool_calls=2
    )
    windows, history = play(policy, 90)
    rounds = replay(history, policy, system="You are a depot clerk.")
    assert [(row.tokens, row.break_reason, row.cached) for row in rounds] == windows
    assert any(row.folded for row in rounds)
    for row in rounds:
        assert sum(segment.tokens for segment in row.segments) == row.tokens <= row.budget
    markers = [segment for row in rounds for segment in row.segments if segment.form == "marker"]
    assert markers
    assert all(len(segment.entries) > 1 for segment in markers)
    forms = {segment.form for row in rounds for segment in row.segments}
    assert {"system", "full", "stub", "marker"} <= forms


def test_page_shows_hostile_text_as_text() -> None:
    hostile = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\u2028<!--"
    history = [
        Entry(id="u", kind="user", content=hostile, created_at=1),
        Entry(id="a", kind="assistant", content=hostile, reasoning=hostile, created_at=2),
        Entry(id='"><b>', kind="notification", tag=hostile, content="", created_at=3),
    ]
    page = render_page(hostile, history, replay(history, ShapePolicy()))
    assert len(re.findall(r"<script", page)) == 2
    assert "<img" not in page
    assert "<!--" not in page
    assert "Content-Security-Policy" in page
    data = re.search(r'<script id="data" type="application/json">(.*?)</script>', page)
    assert data
    assert json.loads(data[1])["entries"]["u"]["content"] == hostile


def test_a_session_without_summaries_is_played_without_them() -> None:
    history = [
        Entry(id=f"e{n}", kind=("user", "assistant")[n % 2], content="words " * 40, created_at=n + 1)
        for n in range(40)
    ]
    last = replay(history, ShapePolicy(budget_tokens=400, lod_above=200))[-1]
    assert "there is no runner to summarize them" in last.degraded
