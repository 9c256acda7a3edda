"""Goldens of the Go package: replies, repairs and arguments with what it makes of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agentkit_fast.text import check_arguments, parse_tool_calls, repair_json

GOLDEN = Path(__file__).parent / "data" / "golden"


def rows(name: str) -> list[Any]:
    lines = (GOLDEN / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
    return [pytest.param(json.loads(line), id=str(number)) for number, line in enumerate(lines, 1)]


@pytest.mark.parametrize("row", rows("parse_tool_calls"))
def test_parse_tool_calls(row: dict[str, Any]) -> None:
    want = row["out"]
    reply = parse_tool_calls(row["in"])
    assert (reply.problem.kind if reply.problem else None) == want["problem"]
    if want["problem"]:
        # The Go package drops every call of such a reply; here complete ones are kept.
        assert row["in"].count("@@call ") > len(reply.calls)
        return
    calls = [{"name": call.name, "arguments": json.loads(call.arguments)} for call in reply.calls]
    assert calls == want["calls"]
    assert reply.prose.split() == want["prose_words"]


@pytest.mark.parametrize("row", rows("repair_json"))
def test_repair_json(row: dict[str, Any]) -> None:
    repair = repair_json(row["in"])
    assert repair.outcome == row["out"]["outcome"]
    if repair.outcome == "ok":
        assert json.loads(repair.text) == row["out"]["value"]
    else:
        assert repair.text == ""


@pytest.mark.parametrize("row", rows("check_arguments"))
def test_check_arguments(row: dict[str, Any]) -> None:
    arguments = check_arguments(row["in"])
    assert arguments.kind == row["out"]["kind"]
    if arguments.kind == "ok":
        assert json.loads(arguments.text) == row["out"]["value"]
    else:
        assert arguments.message
