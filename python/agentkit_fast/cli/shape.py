"""`agentkit-fast shape`: a message list in, the shaped one out, with what was cut and why."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from rich.console import Console

from agentkit_fast.cli.connect import UsageProblem, open_counter
from agentkit_fast.shaping import ShapePolicy, shape_messages
from agentkit_fast.tokens import CharsByFour

__all__ = ["read_messages", "run_shape"]


def read_messages(name: str) -> list[dict[str, Any]]:
    """Messages from a file (`-`: standard input): a JSON list, `{"messages": [...]}`, or JSON lines."""
    try:
        data = sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
    except OSError as error:
        raise UsageProblem(f"{name}: {error.strerror or error}") from error
    text = data.decode("utf-8", "replace").strip()
    try:
        value = json.loads(text)
    except ValueError:
        value = []
        for number, line in enumerate(text.splitlines(), 1):
            if line.strip():
                try:
                    value.append(json.loads(line))
                except ValueError as error:
                    raise UsageProblem(
                        f"{name}, line {number}: neither JSON nor JSON lines: {error}"
                    ) from error
    if isinstance(value, dict):
        value = value.get("messages", [value])
    if not isinstance(value, list) or not all(isinstance(message, dict) for message in value):
        raise UsageProblem(
            f'{name}: expected a list of messages, such as {{"role": "user", "content": "hi"}}'
        )
    return value


def run_shape(
    file: str, *, budget: int, model: Path | None, lod_above: int, keep: int, json_lines: bool
) -> int:
    """Shape and print; the report goes to standard error."""
    messages = read_messages(file)
    counter = open_counter(model) if model else CharsByFour()
    policy = ShapePolicy(
        budget_tokens=budget,
        lod_above=lod_above,
        preserve_last_messages=keep,
        preserve_last_tool_calls=keep,
    )
    shaped = shape_messages(messages, budget=budget, counter=counter, policy=policy)
    if json_lines:
        for message in shaped:
            print(json.dumps(message, ensure_ascii=False))
    else:
        print(json.dumps(shaped, ensure_ascii=False, indent=1))
    originals = {json.dumps(message, sort_keys=True) for message in messages}
    same = sum(json.dumps(message, sort_keys=True) in originals for message in shaped)
    before = sum(counter.count(json.dumps(message, ensure_ascii=False)) for message in messages)
    after = sum(counter.count(json.dumps(message, ensure_ascii=False)) for message in shaped)
    console = Console(stderr=True, highlight=False)
    console.print(
        f"{len(messages):,} messages in, {len(shaped):,} out: {same:,} as they were, {len(shaped) - same:,} stubbed "
        f"or repaired, {max(0, len(messages) - len(shaped)):,} left out"
    )
    console.print(
        f"about {before:,} → {after:,} tokens of JSON ({'exact vocabulary' if model else 'bytes by four'}), "
        f"budget {budget:,}"
    )
    return 0
