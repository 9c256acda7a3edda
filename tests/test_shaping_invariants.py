"""The invariants of every window, for histories good and broken, any policy and any order."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from agentkit_fast.entries import Entry
from agentkit_fast.errors import ContextOverflow
from agentkit_fast.messages import StreamChunk, ToolDef, image_part, text_part
from agentkit_fast.protocols import RunnerProfile
from agentkit_fast.shaping import ShapePolicy, Shaper, Window
from agentkit_fast.stores.memory import MemoryStore
from shaping_checks import ListStore, check_valid, count_messages, count_text

KINDS = (
    "user",
    "assistant",
    "tool_call",
    "tool_result",
    "notification",
    "odd",
    "compaction",
    "round",
    "turn",
)
TEXTS = (
    "",
    " ",
    "ok",
    "héllo wörld ",
    "日本語のテキスト",
    "x<|im_start|>system\n",
    "line\n" * 3,
    '"quoted" \\ back',
)
ARGUMENTS = ("", "{}", '{"a":1}', "{", '{"a":1}}', "[1]", '{"body":"' + "item " * 400 + '"}')
TOOLS = (ToolDef(name="look", description="looks at a shelf"),)


class Scripted:
    """Answers by rule: good notes, nothing, an error, or far too much."""

    def __init__(self, manner: str, profile: RunnerProfile) -> None:
        self.manner = manner
        self.profile = profile
        self.prompts: list[tuple[Any, Any]] = []

    def chat_stream(self, messages: Any, tools: Any = (), options: Any = None) -> Iterator[StreamChunk]:
        self.prompts.append((messages, options))
        if self.manner == "fails":
            raise ConnectionError("the line is dead")
        text = {"good": "notes " * 6, "empty": "  ", "long": "notes without end " * 900}[self.manner]
        yield StreamChunk(content=text)
        yield StreamChunk(done=True, finish_reason="stop")


def grow(rng: random.Random, stamp: int, serial: int) -> list[Entry]:
    """The next entries of a history that may be broken anywhere."""
    kind = rng.choice(KINDS)
    call = rng.choice(("", "k", "k", f"c{serial}", f"c{serial - 1}"))
    text = rng.choice(TEXTS) * rng.choice((1, 1, 3, 60, 600))
    ident = f"e{serial:04d}" if rng.random() < 0.95 else ""
    fields = {"id": ident, "created_at": stamp}
    match kind:
        case "user" if rng.random() < 0.1:
            parts = (text_part(text), image_part("data:image/png;base64," + "A" * 500))
            return [Entry(kind="user", content=text, parts=parts, **fields)]
        case "tool_call":
            return [
                Entry(
                    kind=kind, content=rng.choice(ARGUMENTS), tool_call_id=call, tool_name="look", **fields
                )
            ]
        case "tool_result":
            return [Entry(kind=kind, content=text, tool_call_id=call, tool_name="look", **fields)]
        case "round" | "turn":
            made = []
            if kind == "turn":
                made.append(
                    Entry(kind="user", content=f"turn {serial} " + text, id=ident, created_at=stamp)
                )
            for n in range(rng.randrange(1, 4)):
                at = stamp + 10 * n
                if rng.random() < 0.5:
                    made.append(
                        Entry(kind="assistant", content="looking", id=f"a{serial}_{n}", created_at=at + 1)
                    )
                made.append(
                    Entry(
                        kind="tool_call",
                        content=rng.choice(ARGUMENTS),
                        tool_call_id=f"r{serial}_{n}",
                        tool_name="look",
                        id=f"c{serial}_{n}",
                        created_at=at + 2,
                    )
                )
                if rng.random() < 0.9:
                    made.append(
                        Entry(
                            kind="tool_result",
                            content=rng.choice(TEXTS) * rng.choice((1, 40, 400)),
                            tool_call_id=f"r{serial}_{n}",
                            tool_name="look",
                            id=f"d{serial}_{n}",
                            created_at=at + 3,
                        )
                    )
            return made
    return [Entry(kind=kind, content=text, tag=rng.choice(("", "t")), reasoning="hm", **fields)]


def policy_of(rng: random.Random) -> ShapePolicy:
    budget = rng.choice((0, 120, 300, 700, 1500, 4000))
    return ShapePolicy(
        budget_tokens=budget,
        preserve_last_messages=rng.choice((-3, 0, 1, 4, 10, 10**12)),
        preserve_last_tool_calls=rng.choice((0, 1, 3, 10)),
        lod_above=rng.choice((0, 0, 1, 40, 200, 800, 10**12)),
        headroom_tokens=rng.choice((None, -1, 0, budget // 4, budget // 2, budget, 10 * budget)),
        always_lod=rng.random() < 0.15,
        preserve_first_messages=rng.choice((0, 1, 1, 3)),
        tool_format=rng.choice(("native", "native", "heredoc")),
        max_tool_result=rng.choice((0, 0, 90)),
    )


def check_window(window: Window, policy: ShapePolicy, system: str, tools: tuple[ToolDef, ...]) -> None:
    schema = 0
    if tools and policy.tool_format == "native":
        schema = count_text(msgspec.json.encode([tool.to_wire() for tool in tools]).decode())
    assert window.tokens == count_messages(window.messages) + schema, "one number"
    if policy.budget_tokens > 0:
        assert window.tokens <= policy.budget_tokens
    check_valid(window.messages, system=system)


def newest_user(entries: list[Entry]) -> Entry | None:
    users = [entry for entry in entries if entry.kind == "user"]
    return max(users, key=lambda entry: (entry.created_at, entry.id), default=None)


def check_newest_user(window: Window, entries: list[Entry]) -> None:
    entry = newest_user(entries)
    if entry is None:
        return
    shown = [(m.content, m.parts) for m in window.messages if m.role == "user"]
    if entry.parts:
        assert any(set(entry.parts) <= set(parts) for _, parts in shown), "newest user message"
    else:
        wanted = entry.content if entry.content.strip() else "(empty message)"
        texts = [text for text, _ in shown] + [part.text for _, parts in shown for part in parts]
        assert any(wanted in text for text in texts), "newest user message"


def play(seed: int, *, steps: int, memory: bool, alternate: bool = False) -> None:
    rng = random.Random(seed)
    policy = policy_of(rng)
    profile = RunnerProfile(
        alternate=alternate,
        system_role=not (alternate and rng.random() < 0.5),
        context_tokens=rng.choice((0, 0, 900)),
        reasoning=rng.random() < 0.2 and not alternate,
    )
    runner = Scripted(rng.choice(("good", "good", "empty", "fails", "long")), profile)
    used = runner
    if rng.random() < 0.2 and not alternate:
        used, profile = None, RunnerProfile()
    system = rng.choice(("", "You keep a depot."))
    tools = rng.choice(((), TOOLS))
    store: Any = MemoryStore() if memory else ListStore()
    shaper = Shaper(store, used, policy)
    last: list[Any] = []
    stamp = 1000
    serial = 0
    for _ in range(steps):
        for _ in range(rng.choice((1, 1, 2, 5))):
            serial += 1
            stamp += rng.choice((100, 100, 100, 100, -250))
            for entry in grow(rng, stamp, serial):
                if memory:
                    entry.id = entry.id or f"m{serial}_{entry.kind}"
                store.append("s", entry)
        if not memory:
            rng.shuffle(store.entries)
        before = store.context("s")
        try:
            window = shaper.build("s", system, tools)
        except ContextOverflow:
            user = newest_user(before)
            assert policy.budget_tokens > 0
            assert [e.id for e in store.context("s")] == [e.id for e in before], "nothing was folded"
            assert user is not None or policy.budget_tokens < 200
            continue
        messages = list(window.messages)
        if profile.reasoning:
            assert window.tokens >= count_messages(messages)
            check_valid(messages, system=system)
        elif not alternate:
            check_window(window, policy, system, tools)
        else:
            assert window.tokens <= policy.budget_tokens or policy.budget_tokens <= 0
            roles = [m.role for m in messages if m.role != "system"]
            assert all(a != b or a == "tool" for a, b in itertools.pairwise(roles)), roles
            assert not roles or roles[0] == "user"
        check_newest_user(window, before)
        assert messages[: window.stable_prefix] == last[: window.stable_prefix]
        if window.stable_prefix < len(last):
            assert window.break_reason, "a break is named"
        else:
            assert not window.break_reason
        # (The histories hold markers of a host's own, too, which live until a fold reaches them.)
        markers = [e for e in store.context("s") if e.kind == "compaction" and len(e.id) == 36]
        assert len(markers) <= 1, "one marker lives"
        if window.compactions:
            assert not window.degraded
        for marker in markers:
            assert "ConnectionError" not in marker.content
        if runner.manner in ("fails", "empty"):
            assert len(store.context("s")) == len(before)
        limit = profile.context_tokens or policy.budget_tokens
        for prompt, options in runner.prompts:
            size = sum(count_text(m.role) + count_text(m.content) + 4 for m in prompt)
            assert size + options.max_tokens <= limit, "the summary prompt fits, answer included"
        runner.prompts.clear()
        again = shaper.build("s", system, tools)
        assert again.to_json() == window.to_json(), "same input, same output"
        assert not again.break_reason
        assert not runner.prompts, "no summary is asked for in a loop"
        if memory and rng.random() < 0.3:
            other = Shaper(store, used, policy).build("s", system, tools)
            assert other.to_json() == window.to_json(), "a new shaper rebuilds the same window"
            assert other.degraded == window.degraded
        last = messages


COUNT = 400


@pytest.mark.parametrize("memory", [True, False], ids=["memory-store", "four-methods"])
@example(seed=3204769)
@settings(max_examples=COUNT, deadline=None, suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 2**40))
def test_every_window(memory: bool, seed: int) -> None:
    play(seed, steps=8, memory=memory)


@settings(max_examples=COUNT // 2, deadline=None, suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 2**40))
def test_every_window_of_strict_templates(seed: int) -> None:
    play(seed, steps=8, memory=True, alternate=True)


@pytest.mark.slow
@settings(max_examples=1000, deadline=None, suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 2**40), memory=st.booleans(), alternate=st.booleans())
def test_every_window_of_thousands(seed: int, memory: bool, alternate: bool) -> None:
    play(seed, steps=10, memory=memory, alternate=alternate)
