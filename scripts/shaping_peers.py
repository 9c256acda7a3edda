"""Prints what other packages' trimmers make of the short talk of `tests/shaping_talks.py`, beside ours.

    python scripts/shaping_peers.py

Every row plays the same 150 rounds (299 requests) into 4,000 tokens by our count. All columns but the time are the
same on every machine. A package that is not installed has no row: `pip install --group peers`.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from agentkit_fast.shaping import ShapePolicy, shape_messages
from agentkit_fast.stores.memory import MemoryStore
from shaping_checks import count_text
from shaping_talks import Cache, play_short_talk

BUDGET = 4000
Dicts = list[dict[str, Any]]


def requests(rounds: int = 150, words: int = 80) -> Iterator[Dicts]:
    """The list before each request; the dicts are the same objects from one to the next."""
    talk: Dicts = [{"role": "system", "content": "You are a depot clerk."}]
    for at in range(rounds):
        call = {
            "id": f"c{at}",
            "type": "function",
            "function": {"name": "bay", "arguments": f'{{"n":{at}}}'},
        }
        talk.append({"role": "user", "content": f"check bay {at} please"})
        yield list(talk)
        talk.append({"role": "assistant", "content": f"looking at bay {at}", "tool_calls": [call]})
        talk.append({"role": "tool", "tool_call_id": f"c{at}", "content": "box " * words + f"end {at}"})
        if at + 1 < rounds:
            yield list(talk)
        talk.append({"role": "assistant", "content": f"bay {at} is fine"})


def tokens(messages: Dicts) -> int:
    total = 0
    for message in messages:
        total += count_text(message["role"]) + count_text(message.get("content") or "") + 4
        for call in message.get("tool_calls") or ():
            total += count_text(call["function"]["name"]) + count_text(call["function"]["arguments"]) + 4
    return total


def invalid(messages: Dicts) -> bool:
    """A result without its call, a call without its result, or no user message: a server refuses it."""
    waiting: set[str] = set()
    for message in messages:
        if message["role"] == "tool":
            if message["tool_call_id"] not in waiting:
                return True
            waiting.remove(message["tool_call_id"])
        elif waiting:
            return True
        waiting.update(call["id"] for call in message.get("tool_calls") or ())
    return bool(waiting) or not any(message["role"] == "user" for message in messages)


@dataclass
class Row:
    name: str
    reused: float
    breaks: int
    largest: int
    invalid: int
    milliseconds: float


def play(name: str, trim: Callable[[Dicts], Dicts]) -> Row:
    cache = Cache()
    bad = 0
    times = []
    for given in requests():
        start = time.perf_counter()
        window = trim(given)
        times.append(time.perf_counter() - start)
        cache.send(json.dumps(window, separators=(",", ":")).encode(), tokens(window))
        bad += invalid(window)
    reused = 1 - cache.evaluated / cache.sent
    return Row(name, reused, cache.breaks, max(cache.sizes), bad, statistics.median(times) * 1000)


def ours() -> Iterator[Row]:
    start = time.perf_counter()
    cache, windows, _ = play_short_talk(MemoryStore(), BUDGET)
    spent = (time.perf_counter() - start) / cache.requests * 1000
    bad = sum(invalid(json.loads(window.to_json())) for window in windows)
    reused = 1 - cache.evaluated / cache.sent
    yield Row("`Shaper`, summaries included", reused, cache.breaks, max(cache.sizes), bad, spent)
    policy = ShapePolicy(headroom_tokens=1000)
    yield play("`shape_messages`", lambda given: shape_messages(given, budget=BUDGET, policy=policy))


def langchain() -> Iterator[Row]:
    from langchain_core.messages import convert_to_openai_messages, trim_messages

    def trimmed(**options: Any) -> Callable[[Dicts], Dicts]:
        def trim(given: Dicts) -> Dicts:
            kept = trim_messages(
                given,
                max_tokens=BUDGET,
                token_counter="approximate",
                strategy="last",
                include_system=True,
                **options,
            )
            found = convert_to_openai_messages(kept)
            return found if isinstance(found, list) else [found]

        return trim

    yield play("LangChain `trim_messages`", trimmed())
    yield play('LangChain `trim_messages(start_on="human")`', trimmed(start_on="human"))


def harness() -> Iterator[Row]:
    """It keeps what it made of the history, so that it sees its own last window and what is new."""
    from pydantic_ai import messages as pai
    from pydantic_ai.models.test import TestModel
    from pydantic_ai_harness.compaction import SlidingWindowCompaction, compact_now, estimate_token_count

    def into(message: dict[str, Any]) -> pai.ModelMessage:
        content = message["content"]
        if message["role"] == "assistant":
            calls = [
                pai.ToolCallPart(call["function"]["name"], call["function"]["arguments"], call["id"])
                for call in message.get("tool_calls") or ()
            ]
            return pai.ModelResponse(parts=[pai.TextPart(content), *calls])
        part: Any = pai.UserPromptPart(content)
        if message["role"] == "system":
            part = pai.SystemPromptPart(content)
        elif message["role"] == "tool":
            part = pai.ToolReturnPart("bay", content, message["tool_call_id"])
        return pai.ModelRequest(parts=[part])

    def back(message: pai.ModelMessage) -> Dicts:
        out: Dicts = []
        for part in message.parts:
            if isinstance(part, pai.TextPart):
                out.append({"role": "assistant", "content": part.content})
            elif isinstance(part, pai.ToolCallPart):
                function = {"name": part.tool_name, "arguments": part.args}
                call = {"id": part.tool_call_id, "type": "function", "function": function}
                out[-1].setdefault("tool_calls", []).append(call)
            elif isinstance(part, pai.ToolReturnPart):
                out.append({"role": "tool", "tool_call_id": part.tool_call_id, "content": part.content})
            elif isinstance(part, pai.SystemPromptPart | pai.UserPromptPart):
                role = "system" if isinstance(part, pai.SystemPromptPart) else "user"
                out.append({"role": role, "content": part.content})
        return out

    strategy: Any = SlidingWindowCompaction(max_tokens=BUDGET, keep_tokens=BUDGET - 1000)
    kept: list[pai.ModelMessage] = []
    taken = 0
    loop = asyncio.new_event_loop()

    def trim(given: Dicts) -> Dicts:
        nonlocal kept, taken
        kept = [*kept, *map(into, given[taken:])]
        taken = len(given)
        if estimate_token_count(kept) > BUDGET:
            kept = loop.run_until_complete(compact_now(strategy, kept, model=TestModel()))
        return [dict_ for message in kept for dict_ in back(message)]

    try:
        yield play("pydantic-ai-harness `SlidingWindowCompaction` 4,000 to 3,000", trim)
    finally:
        loop.close()


def rows() -> Iterator[Row]:
    yield from ours()
    for peer in (langchain, harness):
        try:
            yield from peer()
        except ImportError as error:
            print(f"no row for {peer.__name__}: {error}", file=sys.stderr)


def main() -> None:
    print(
        "| | prompt bytes reused | breaks in 299 requests | largest window | invalid windows | a request |"
    )
    print("|---|---|---|---|---|---|")
    for row in rows():
        print(
            f"| {row.name} | {100 * row.reused:.1f} % | {row.breaks} | {row.largest:,} | {row.invalid} "
            f"| {row.milliseconds:.2f} ms |"
        )


if __name__ == "__main__":
    main()
