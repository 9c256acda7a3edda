"""`agentkit-fast shape`: a message list in, the shaped one out, with what was cut and why."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable
from itertools import groupby
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from agentkit_fast.cli.connect import UsageProblem, open_counter
from agentkit_fast.shaping import ShapePolicy, shape_messages
from agentkit_fast.tokens import CharsByFour

__all__ = ["Change", "message_tokens", "read_messages", "run_shape", "shape_and_tell"]

# A key the shaper does not know survives: by it a message of the result is told from the others.
_PLACE = "agentkit_fast_place"
_JOINED = "texts of the assistant in a row become one"


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


class Change(msgspec.Struct, kw_only=True):
    """What became of one message. `index` counts the input from 0; -1 for a message that is new.

    `what` is `kept`, `shortened`, `left out`, `joined`, `repaired` or `added`; tokens are those of the message.
    """

    index: int
    role: str
    what: str
    why: str = ""
    tokens_before: int = 0
    tokens_after: int = 0


def message_tokens(message: dict[str, Any], count: Callable[[str], int]) -> int:
    """Tokens of one message as budgets count them: role, name, texts and 4; each call's name, arguments and 4."""
    content = message.get("content") or ""
    texts = [part.get("text") or "" for part in content] if isinstance(content, list) else [content]
    total = 4 + sum(map(count, [message.get("role") or "", message.get("name") or "", *texts]))
    for call in message.get("tool_calls") or ():
        function = call.get("function") or {}
        arguments = function.get("arguments") or ""
        text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
        total += count(function.get("name") or "") + count(text) + 4
    return total


def shape_and_tell(
    messages: list[dict[str, Any]], *, budget: int, counter: Any, policy: ShapePolicy
) -> tuple[list[dict[str, Any]], list[Change]]:
    """The shaped list, and what became of each message, in order of the result."""
    marked = [{**message, _PLACE: place} for place, message in enumerate(messages)]
    shaped = shape_messages(marked, budget=budget, counter=counter, policy=policy)
    by_place = {message[_PLACE]: message for message in shaped if _PLACE in message}
    joined = _joined(messages, by_place)
    changes: list[Change] = []
    for place, before in enumerate(marked):
        after = by_place.get(place)
        what, why = _verdict(before, after, place in joined, policy)
        changes.append(
            Change(
                index=place,
                role=str(before.get("role") or ""),
                what=what,
                why=why,
                tokens_before=message_tokens(before, counter.count),
                tokens_after=message_tokens(after, counter.count) if after is not None else 0,
            )
        )
    for message in shaped:
        if _PLACE not in message:
            text = " ".join(str(message.get("content") or "").split())
            changes.append(
                Change(
                    index=-1,
                    role=message["role"],
                    what="added",
                    why=text[:120],
                    tokens_after=message_tokens(message, counter.count),
                )
            )
    return [{key: value for key, value in message.items() if key != _PLACE} for message in shaped], changes


def _joined(messages: list[dict[str, Any]], by_place: dict[int, dict[str, Any]]) -> set[int]:
    """Places of assistant texts that went into a neighbour's message."""
    found = set()
    for place, message in enumerate(messages):
        text = message.get("content")
        if place in by_place or message.get("role") != "assistant" or not isinstance(text, str) or not text:
            continue
        near = [by_place[at] for at in (place - 1, place + 1) if at in by_place]
        if any(each.get("role") == "assistant" and text in str(each.get("content")) for each in near):
            found.add(place)
    return found


def _verdict(
    before: dict[str, Any], after: dict[str, Any] | None, joined: bool, policy: ShapePolicy
) -> tuple[str, str]:
    if joined:
        return "joined", _JOINED
    if after is None:
        return "left out", "over the budget: the oldest exchanges go first"
    if after == before:
        return "kept", ""
    if after.get("role") != before.get("role"):
        return "repaired", f"now of role {after.get('role')}: its call is missing or answered already"
    text, whole = before.get("content"), after.get("content")
    if isinstance(text, str) and isinstance(whole, str) and text != whole and text in whole:
        return "joined", _JOINED
    old, new = (len(json.dumps(each, ensure_ascii=False)) for each in (before, after))
    if new < old:
        limit = policy.lod_above or 800
        return (
            "shortened",
            f"over {limit} bytes and no longer among the newest, or too large for the budget",
        )
    return "repaired", "an id, a call or its arguments were not valid"


def run_shape(
    file: str,
    *,
    budget: int,
    model: Path | None,
    lod_above: int,
    keep: int,
    json_lines: bool,
    json_output: bool = False,
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
    shaped, changes = shape_and_tell(messages, budget=budget, counter=counter, policy=policy)
    before = sum(change.tokens_before for change in changes)
    after = sum(message_tokens(message, counter.count) for message in shaped)
    if json_output:
        report = {
            "messages": shaped,
            "changes": msgspec.to_builtins(changes),
            "tokens_before": before,
            "tokens_after": after,
            "budget": budget,
        }
        print(json.dumps(report, ensure_ascii=False))
        return 0
    if json_lines:
        for message in shaped:
            print(json.dumps(message, ensure_ascii=False))
    else:
        print(json.dumps(shaped, ensure_ascii=False, indent=1))
    console = Console(stderr=True, highlight=False)
    table = Table(box=None, pad_edge=False)
    for title, justify in (("message", "right"), ("role", "left"), ("what", "left"), ("tokens", "right")):
        table.add_column(title, justify=justify, no_wrap=True)  # type: ignore[arg-type]
    table.add_column("why", overflow="fold")
    touched = [change for change in changes if change.what != "kept"]
    for _, group in groupby(touched, key=lambda change: (change.what, change.why)):
        rows = list(group)
        first, last = rows[0].index, rows[-1].index
        table.add_row(
            "new" if first < 0 else f"{first:,}" if first == last else f"{first:,} to {last:,}",
            escape(", ".join(dict.fromkeys(row.role for row in rows))),
            rows[0].what if len(rows) == 1 else f"{rows[0].what} ({len(rows):,})",
            f"{sum(row.tokens_before for row in rows):,} → {sum(row.tokens_after for row in rows):,}",
            escape(rows[0].why),
        )
    if touched:
        console.print(table)
    counts = Counter(change.what for change in changes)
    told = ", ".join(f"{number:,} {what}" for what, number in counts.items())
    console.print(f"{len(messages):,} messages in, {len(shaped):,} out: {told or 'nothing'}")
    console.print(
        f"{before:,} → {after:,} tokens ({'exact vocabulary' if model else 'bytes by four'}), budget {budget:,}"
    )
    return 0
