"""Conversations played against a shaper, with what a prompt cache would have to evaluate."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

from agentkit_fast.entries import Entry
from agentkit_fast.messages import StreamChunk
from agentkit_fast.shaping import ShapePolicy, Shaper, Window, plain_window
from shaping_checks import ListStore


class Summarizer:
    """A runner that answers every prompt with about `size` bytes and counts what it was asked."""

    def __init__(self, size: int = 300) -> None:
        self.size = size
        self.prompt_bytes = 0
        self.prompts: list[Any] = []

    def chat_stream(self, messages: Any, tools: Any = (), options: Any = None) -> Any:
        self.prompts.append((messages, options))
        self.prompt_bytes += sum(len(message.content.encode()) for message in messages)
        text = f"Notes {len(self.prompts)}: " + "the bays were checked and are fine. " * (self.size // 36)
        yield StreamChunk(content=text)
        yield StreamChunk(done=True, finish_reason="stop")


def common_prefix(one: bytes, other: bytes) -> int:
    """How many bytes at the start are the same, by halving."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


@dataclass
class Cache:
    """What a server that keeps the last prompt has to evaluate."""

    last: bytes = b""
    evaluated: int = 0
    new: int = 0
    requests: int = 0
    breaks: int = 0
    sent: int = 0
    sizes: list[int] = field(default_factory=list)
    shares: list[float] = field(default_factory=list)
    """How much of each prompt was there already."""

    @property
    def reused(self) -> float:
        return 1 - self.evaluated / self.sent

    def send(self, prompt: bytes, tokens: int) -> None:
        prompt = prompt[:-1]  # a longer array goes on where this one would close
        common = common_prefix(self.last, prompt)
        self.evaluated += len(prompt) - common
        self.shares.append(common / len(prompt))
        self.sizes.append(tokens)
        if self.requests:
            self.breaks += common < len(self.last)
        self.requests += 1
        self.sent += len(prompt)
        self.last = prompt


def words(rng: random.Random, size: int) -> str:
    out = []
    while size > 0:
        word = rng.choice(("bay", "crate", "pallet", "label", "weight", "north", "gate", "shift", "load"))
        out.append(f"{word}-{rng.randrange(1000)}")
        size -= len(out[-1]) + 1
    return " ".join(out)


def written(store: Any) -> int:
    """Bytes of all that was ever said, as they go over the wire once."""
    entries = [entry for entry in store.history("s") if entry.kind != "compaction"]
    return len(plain_window(ListStore(entries), "s", "").to_json())


def play_long_talk(
    budget: int, *, turns: int = 200, seed: int = 1, store: Any, lod_above: int = 800
) -> Any:
    """200 user turns of 3 tool rounds each, results of 0.8 to 4 KB; a request before every model reply."""
    rng = random.Random(seed)
    summarizer = Summarizer()
    policy = ShapePolicy(budget_tokens=budget, headroom_tokens=budget // 4, lod_above=lod_above)
    shaper = Shaper(store, summarizer, policy)
    cache = Cache()
    windows: list[Window] = []

    def add(kind: str, content: str, **fields: str) -> None:
        store.append("s", Entry(kind=kind, content=content, **fields))

    def request() -> None:
        window = shaper.build("s", "You keep a depot's books.")
        cache.send(window.to_json(), window.tokens)
        windows.append(window)

    for turn in range(turns):
        add("user", f"Turn {turn}: " + words(rng, 120))
        for step in range(3):
            request()
            call = f"c{turn}_{step}"
            add("assistant", words(rng, 60))
            add(
                "tool_call",
                f'{{"bay":{step},"why":"{words(rng, 30)}"}}',
                tool_call_id=call,
                tool_name="look",
            )
            add("tool_result", words(rng, rng.randrange(800, 4000)), tool_call_id=call, tool_name="look")
        request()
        add("assistant", words(rng, 200))
    cache.evaluated += summarizer.prompt_bytes
    cache.new = written(store)
    return cache, windows, summarizer


def play_short_talk(
    store: Any, budget: int = 4000, headroom: int = 1000, rounds: int = 150, *, words: int = 80
) -> Any:
    """150 rounds, two requests a round but for the last; with 80 words a result, a round is about 130 tokens."""
    summarizer = Summarizer()
    shaper = Shaper(store, summarizer, ShapePolicy(budget_tokens=budget, headroom_tokens=headroom))
    cache = Cache()
    windows: list[Window] = []

    def request() -> None:
        window = shaper.build("s", "You are a depot clerk.")
        cache.send(window.to_json(), window.tokens)
        windows.append(window)

    for at in range(rounds):
        call = f"c{at}"
        store.append("s", Entry(kind="user", content=f"check bay {at} please"))
        request()
        store.append("s", Entry(kind="assistant", content=f"looking at bay {at}"))
        store.append(
            "s", Entry(kind="tool_call", content=f'{{"n":{at}}}', tool_call_id=call, tool_name="bay")
        )
        store.append(
            "s",
            Entry(
                kind="tool_result", content="box " * words + f"end {at}", tool_call_id=call, tool_name="bay"
            ),
        )
        if at + 1 < rounds:
            request()
        store.append("s", Entry(kind="assistant", content=f"bay {at} is fine"))
    return cache, windows, summarizer
