"""Loops are found, whatever their length and however the stream is cut; ordinary text is left alone."""

from __future__ import annotations

from pathlib import Path

import msgspec

from agentkit_fast.text import Repetition, RepetitionGuard

DATA = Path(__file__).parent / "data"


def feed(text: str, size: int, **options: int) -> tuple[Repetition | None, int]:
    """The finding, and how much had been pushed."""
    guard = RepetitionGuard(**options)  # type: ignore[arg-type]  # only integers are passed
    for at in range(0, len(text), size):
        if found := guard.push(text[at : at + size]):
            return found, at + size
    return None, len(text)


def test_goldens() -> None:
    rows = [
        msgspec.json.decode(line)
        for line in (DATA / "golden" / "repetition.jsonl").read_bytes().splitlines()
    ]
    for row in rows:
        guard, got = RepetitionGuard(), None
        for at, delta in enumerate(row["in"]):
            if found := guard.push(delta):
                got = {"at": at, "period": found.period, "reps": found.reps, "trailing": found.trailing}
                break
        assert got == row["out"]
    assert len(rows) == 80


def test_case_l20() -> None:
    cases = map(msgspec.json.decode, (DATA / "cases" / "local_cases.jsonl").read_bytes().splitlines())
    streams = next(case for case in cases if case["id"] == "L20")["input"]["streams"]
    for size in (1, 4, 1000, 10**6):
        exact, at = feed(streams["exact"], size)
        assert exact
        assert exact.period == 60
        assert at <= 1024 or size > 4
        counting, _ = feed(streams["counting"], size)
        assert counting
        assert counting.trailing == (counting.reps - 1) * counting.period
        assert feed(streams["table"], size)[0] is None
        assert feed(streams["blank"], size)[0] is None
