"""Prints what other packages' trimmers make of the short talk of `tests/shaping_talks.py`, beside ours.

    python scripts/shaping_peers.py

The first table says what a round of that talk measures by the counts in use, and what `Shaper` reaches there. In
the second, every row plays the same 150 rounds (299 requests) into 4,000 tokens by our count, litellm the first 40,
for it takes seconds for a request. All columns but the time are the same on every machine. A package that is not
installed has no row: `pip install --group peers`.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

import models
from agentkit_fast.messages import Message
from agentkit_fast.shaping import ShapePolicy, shape_messages
from agentkit_fast.stores.memory import MemoryStore
from agentkit_fast.tokens import GgufTokenizer
from shaping_checks import count_text
from shaping_talks import Cache, Summarizer, play_short_talk

BUDGET = 4000
# The rounds of 150 tokens by the four counts, and the one of the second table.
LITELLM_ROUNDS = 40
WORDS = (75, 80, 94, 104, 134)
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


def tokens(messages: Dicts, count: Callable[[str], int] = count_text) -> int:
    """Our count of them, by a counter of texts."""
    total = 0
    for message in messages:
        total += count(message["role"]) + count(message.get("content") or "") + 4
        for call in message.get("tool_calls") or ():
            total += count(call["function"]["name"]) + count(call["function"]["arguments"]) + 4
    return total


def texts(messages: Dicts) -> str:
    """What the harness's estimator counts, at four characters a token: contents, names and arguments, nothing else."""
    found = [message.get("content") or "" for message in messages]
    for message in messages:
        for call in message.get("tool_calls") or ():
            found += [call["function"]["name"], call["function"]["arguments"]]
    return "".join(found)


@dataclass
class Size:
    """What a round measures, and what `Shaper` reaches with rounds of that size."""

    words: int
    ours: float
    request: float
    harness: float
    smollm2: float | None
    reused: float
    mean_share: float
    breaks: int


def sizes() -> Iterator[Size]:
    found = models.smollm2()
    exact = None if found is None else GgufTokenizer(found)
    rounds = 150
    for words in WORDS:
        *_, talk = requests(rounds, words)
        cache, _, _ = play_short_talk(MemoryStore(), BUDGET, words=words)
        yield Size(
            words,
            tokens(talk) / rounds,
            len(json.dumps(talk, separators=(",", ":")).encode()) / 4 / rounds,
            len(texts(talk)) / 4 / rounds,
            None if exact is None else tokens(talk, exact.count) / rounds,
            cache.reused,
            statistics.mean(cache.shares),
            cache.breaks,
        )


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
    summaries: int = 0
    """Bytes of the prompts that asked for a summary."""


def play(name: str, trim: Callable[[Dicts], Dicts], rounds: int = 150) -> Row:
    cache = Cache()
    bad = 0
    times = []
    for given in requests(rounds):
        start = time.perf_counter()
        window = trim(given)
        times.append(time.perf_counter() - start)
        cache.send(json.dumps(window, separators=(",", ":")).encode(), tokens(window))
        bad += invalid(window)
    return Row(name, cache.reused, cache.breaks, max(cache.sizes), bad, statistics.median(times) * 1000)


def shaper(budget: int = BUDGET) -> Row:
    start = time.perf_counter()
    cache, windows, summarizer = play_short_talk(MemoryStore(), budget, budget // 4)
    spent = (time.perf_counter() - start) / cache.requests * 1000
    bad = sum(invalid(json.loads(window.to_json())) for window in windows)
    largest, asked = max(cache.sizes), summarizer.prompt_bytes
    return Row("`Shaper`, with summaries", cache.reused, cache.breaks, largest, bad, spent, asked)


def ours() -> Iterator[Row]:
    yield shaper()
    policy = ShapePolicy(headroom_tokens=BUDGET // 4)
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
    from pydantic_ai.models.function import AgentInfo, FunctionModel
    from pydantic_ai_harness.compaction import (
        ClearToolResults,
        SlidingWindowCompaction,
        SummarizingCompaction,
        TieredCompaction,
        compact_now,
        estimate_token_count,
    )

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
            elif isinstance(part, pai.CompactionPart):
                out.append({"role": "user", "content": part.content or ""})
            elif isinstance(part, pai.SystemPromptPart | pai.UserPromptPart):
                role = "system" if isinstance(part, pai.SystemPromptPart) else "user"
                out.append({"role": role, "content": part.content})
        return out

    def played(name: str, strategy: Any, limit: int) -> Row:
        kept: list[pai.ModelMessage] = []
        taken = 0

        def trim(given: Dicts) -> Dicts:
            nonlocal kept, taken
            kept = [*kept, *map(into, given[taken:])]
            taken = len(given)
            if estimate_token_count(kept) > limit:
                kept = loop.run_until_complete(compact_now(strategy, kept, model=model))
            return [dict_ for message in kept for dict_ in back(message)]

        return play(name, trim)

    def summarize(messages: list[pai.ModelMessage], info: AgentInfo) -> pai.ModelResponse:
        """Answers as ours is answered, and counts what it was asked."""
        parts = [part for message in messages for part in message.parts]
        prompt = "".join(str(getattr(part, "content", "")) for part in parts)
        chunk = next(summarizer.chat_stream([Message(role="user", content=prompt)]))
        return pai.ModelResponse(parts=[pai.TextPart(chunk.content)])

    model = FunctionModel(summarize)
    summarizer = Summarizer()

    def sliding(limit: int) -> Row:
        strategy = SlidingWindowCompaction(max_tokens=limit, keep_tokens=limit - limit // 4)
        return played("`SlidingWindowCompaction`", strategy, limit)

    def tiered(limit: int) -> Row:
        nonlocal summarizer
        summarizer = Summarizer()
        tiers = [ClearToolResults(max_tokens=1), SummarizingCompaction(model=model, max_messages=1)]
        row = played("`TieredCompaction` (clear, summarize)", TieredCompaction(tiers, limit), limit)
        row.summaries = summarizer.prompt_bytes
        return row

    *_, talk = requests()
    assert estimate_token_count(list(map(into, talk))) == len(texts(talk)) // 4, "the first table says so"
    loop = asyncio.new_event_loop()
    try:
        for made in (sliding, tiered):
            # It counts texts alone, so its windows are larger than they say by what the messages themselves cost.
            row = made(BUDGET)
            row.name = f"pydantic-ai-harness {row.name} at {BUDGET:,} by its own estimate"
            yield row
            like = shaper(row.largest)
            like.name = f"`Shaper` at {row.largest:,}, as large"
            yield like
            limit = BUDGET
            while row.largest > BUDGET:
                limit -= 100
                row = made(limit)
            row.name = (
                f"pydantic-ai-harness {row.name} at {limit:,}, so that it keeps to {BUDGET:,} by our count"
            )
            yield row
    finally:
        loop.close()


def litellm() -> Iterator[Row]:
    # Without this it asks the network for a table of prices when it is imported.
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    from litellm.utils import trim_messages

    row = play(
        f"litellm `trim_messages` ({LITELLM_ROUNDS} rounds, {2 * LITELLM_ROUNDS - 1} requests)",
        lambda given: trim_messages(given, max_tokens=BUDGET),
        LITELLM_ROUNDS,
    )
    yield row


def rows() -> Iterator[Row]:
    yield from ours()
    for peer in (langchain, harness, litellm):
        try:
            yield from peer()
        except ImportError as error:
            print(f"no row for {peer.__name__}: {error}", file=sys.stderr)


def main() -> None:
    print(
        "| words a result | a round by our count | request bytes / 4 | texts / 4 | SmolLM2's tokens |",
        end="",
    )
    print(" prompt bytes reused | mean of the requests | the most one marker allows | breaks |")
    print("|---|---|---|---|---|---|---|---|---|")
    for size in sizes():
        exact = "" if size.smollm2 is None else f"{size.smollm2:.0f}"
        bound = 1 - size.ours / BUDGET
        print(
            f"| {size.words} | {size.ours:.0f} | {size.request:.0f} | {size.harness:.0f} | {exact} "
            f"| {100 * size.reused:.1f} % | {100 * size.mean_share:.1f} % | {100 * bound:.1f} % | {size.breaks} |"
        )
    print()
    print("| | prompt bytes reused | breaks in 299 requests | largest window | invalid windows", end="")
    print(" | summary prompts | a request |")
    print("|---|---|---|---|---|---|---|")
    for row in rows():
        breaks = f"{row.breaks} of {2 * LITELLM_ROUNDS - 1}" if "litellm" in row.name else row.breaks
        asked = f"{row.summaries / 1000:.0f} kB" if row.summaries else ""
        print(
            f"| {row.name} | {100 * row.reused:.1f} % | {breaks} | {row.largest:,} | {row.invalid} "
            f"| {asked} | {row.milliseconds:.2f} ms |"
        )


if __name__ == "__main__":
    main()
