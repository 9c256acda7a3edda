"""Writes the page that the README shows: a scripted talk of 24 user turns with tools, shaped to 16,000 tokens.

    python scripts/xray_example.py OUT.html [--from REQUEST]

A picture of it (with --from 61):

    chromium --headless --hide-scrollbars --window-size=1100,900 --screenshot=docs/xray.png OUT.html
"""

from __future__ import annotations

import argparse
import random
from pathlib import Path

from agentkit_fast import Entry, EntryUsage, MemoryStore, ScriptedRunner, ShapePolicy, Shaper
from agentkit_fast.xray import render_page, replay

SYSTEM = "You are a depot clerk."


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument(
        "--from", dest="first", type=int, default=1, help="leave out the requests before this one"
    )
    arguments = parser.parse_args()
    store, rng = MemoryStore(), random.Random(4)
    policy = ShapePolicy(
        budget_tokens=16000, lod_above=200, preserve_last_messages=6, preserve_last_tool_calls=3
    )
    summary = (
        "Bays checked so far were in order; the gate code is 7714; crates over 20 kg go to bay 9. " * 3
    )
    shaper = Shaper(store, ScriptedRunner([summary] * 20), policy)

    def ask(content: str, generated: int) -> Entry:
        window = shaper.build("depot", SYSTEM)
        usage = EntryUsage(
            latency_ms=rng.randint(200, 1800),
            cached=window.tokens - window.new_tokens,
            processed=window.new_tokens,
            generated=generated,
        )
        return Entry(kind="assistant", content=content, usage=usage)

    for n in range(24):
        store.append(
            "depot", Entry(kind="user", content=f"Check bay {n}, and tell me what is heavier than 20 kg.")
        )
        for k in range(2):
            call = f"c{n}-{k}"
            store.append("depot", ask(f"Looking at bay {n}, shelf {k}.", 24))
            store.append(
                "depot",
                Entry(
                    kind="tool_call",
                    content=f'{{"bay":{n},"shelf":{k}}}',
                    tool_call_id=call,
                    tool_name="bay",
                ),
            )
            rows = "\n".join(
                f"crate {rng.randint(100, 999)}: {rng.randint(2, 40)} kg"
                for _ in range(rng.randint(60, 320))
            )
            store.append(
                "depot", Entry(kind="tool_result", content=rows, tool_call_id=call, tool_name="bay")
            )
        store.append("depot", ask(f"Bay {n}: two crates are heavier than 20 kg.", 40))
    history = store.history("depot")
    rounds = replay(history, policy, system=SYSTEM)[arguments.first - 1 :]
    arguments.out.write_text(render_page("depot", history, rounds), encoding="utf-8")


if __name__ == "__main__":
    main()
