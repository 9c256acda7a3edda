"""Lift and clear requests, resolved truth: the reference's answers and our own rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agentkit_fast import is_resolved_truth, parse_clear_request, parse_lift_request, pending_result

GOLDEN = Path(__file__).parent / "data" / "golden"


def golden(name: str) -> list[dict[str, Any]]:
    return [
        json.loads(line) for line in (GOLDEN / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
    ]


@pytest.mark.parametrize("row", golden("parse_lift_request"), ids=lambda row: row["in"])
def test_lift_golden(row: dict[str, Any]) -> None:
    found = parse_lift_request(row["in"])
    assert (found is not None) == row["out"]["ok"]
    assert (found.correlation_id if found else "") == row["out"]["correlation_id"]
    assert (found.ttl_s if found else 0) == row["out"]["ttl_s"]


@pytest.mark.parametrize("row", golden("parse_clear_request"), ids=lambda row: row["in"])
def test_clear_golden(row: dict[str, Any]) -> None:
    found = parse_clear_request(row["in"])
    assert (found is not None) == row["out"]["ok"]
    assert (found.group_by if found else "", found.key if found else "") == ("", "")


@pytest.mark.parametrize("row", golden("is_resolved_truth"), ids=lambda row: repr(row["in"]))
def test_resolved_golden(row: dict[str, Any]) -> None:
    assert is_resolved_truth(row["in"]) is row["out"]


LIFTS = [
    ("whole", '{"pending":true,"correlation_id":"X","ttl_s":30}', ("X", 30)),
    ("no-ttl", '{"pending":true,"correlation_id":"X"}', ("X", 0)),
    ("null-ttl", '{"pending":true,"correlation_id":"X","ttl_s":null}', ("X", 0)),
    ("negative-ttl", '{"pending":true,"correlation_id":"X","ttl_s":-5}', ("X", 0)),
    ("more-keys", '{"note":{"a":[1]},"pending":true,"correlation_id":"X"}', ("X", 0)),
    ("huge-ttl", '{"pending":true,"correlation_id":"X","ttl_s":99999999999999999999}', None),
    ("long-ttl", '{"pending":true,"correlation_id":"X","ttl_s":9223372036854775807}', ("X", 3_155_760_000)),
    ("false", '{"pending":false,"correlation_id":"X"}', None),
    ("text-true", '{"pending":"true","correlation_id":"X"}', None),
    ("number-id", '{"pending":true,"correlation_id":7}', None),
    ("list", '[{"pending":true,"correlation_id":"X"}]', None),
    ("more-after", '{"pending":true,"correlation_id":"X"} x', None),
    ("prose", 'it is "pending": true', None),
    ("surrogate", '{"pending":true,"correlation_id":"X\ud83d"}', ("X\ufffd", 0)),
    ("deep", '{"pending":' + "[" * 100_000, None),
    ("empty", "", None),
]


@pytest.mark.parametrize(("text", "wanted"), [row[1:] for row in LIFTS], ids=[row[0] for row in LIFTS])
def test_lift_rows(text: str, wanted: tuple[str, int] | None) -> None:
    found = parse_lift_request(text)
    got = (found.correlation_id, found.ttl_s) if found else None
    if wanted is None and got is not None:
        assert text.count("9") > 15  # a number past 64 bits may be read, but only as the longest deadline
        assert got[1] == 3_155_760_000
    else:
        assert got == wanted


def test_every_cut_of_a_lift_is_none() -> None:
    text = '{"pending":true,"correlation_id":"X","ttl_s":30}'
    assert all(parse_lift_request(text[:end]) is None for end in range(len(text)))


CLEARS = [
    ("whole", '{"clear":true,"group_by":"file","key":"a"}', ("file", "a")),
    ("no-key", '{"clear":true,"group_by":"file","key":""}', None),
    ("false", '{"clear":false,"group_by":"file","key":"a"}', None),
    ("number-key", '{"clear":true,"group_by":"file","key":1}', None),
    ("blank-before", ' {"clear":true,"group_by":"file","key":"a"}', None),
]


@pytest.mark.parametrize(("text", "wanted"), [row[1:] for row in CLEARS], ids=[row[0] for row in CLEARS])
def test_clear_rows(text: str, wanted: tuple[str, str] | None) -> None:
    found = parse_clear_request(text)
    assert ((found.group_by, found.key) if found else None) == wanted


@pytest.mark.parametrize("text", ["  ", "\n", " null ", "{}", "[]", '""'])
def test_resolved(text: str) -> None:
    assert is_resolved_truth(text)


@pytest.mark.parametrize("text", ["[ ]", "red", "[0]", '{"a":1}', "true"])
def test_unresolved(text: str) -> None:
    assert not is_resolved_truth(text)


def test_the_placeholder_names_the_call_and_is_no_lift_itself() -> None:
    text = pending_result("X-1", "call_9", 60)
    for part in ("X-1", "call_9", "60 s"):
        assert part in text
    assert "within" not in pending_result("X-1", "call_9")
    assert parse_lift_request(text) is None
    assert parse_clear_request(text) is None
