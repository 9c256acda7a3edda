"""Text that UTF-8 cannot hold is repaired once, the same way in Python and in Rust."""

import pytest

from agentkit_fast import Entry, _core
from agentkit_fast._unicode import repair_text

ROWS = [
    ("clean", "plain", "plain"),
    ("clean astral", "日本 \U0001f600", "日本 \U0001f600"),
    ("pair joined", "\ud83d\ude00", "\U0001f600"),
    ("lone high", "a\ud83db", "a\ufffdb"),
    ("lone low", "a\ude00b", "a\ufffdb"),
    ("high at the end", "a\ud83d", "a\ufffd"),
    ("two highs then a low", "\ud83d\ud83d\ude00", "\ufffd\U0001f600"),
    ("low then high", "\ude00\ud83d", "\ufffd\ufffd"),
    ("os.fsdecode escape", "caf\udce9", "caf\ufffd"),
]


@pytest.mark.parametrize(("text", "want"), [row[1:] for row in ROWS], ids=[row[0] for row in ROWS])
def test_repair(text: str, want: str) -> None:
    assert repair_text(text) == want
    assert _core.repair_surrogates(text) == want
    assert Entry(kind="user", content=text).content == want


def test_clean_text_is_the_same_object() -> None:
    for text in ("ascii", "日本語" * 10, "\U0001f600"):
        assert repair_text(text) is text
        assert _core.repair_surrogates(text) is text
