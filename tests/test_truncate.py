"""The middle goes, the figures stay, no character is split."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentkit_fast.text import truncate_middle


@given(st.text(max_size=300), st.integers(-5, 400), st.sampled_from(["", "Ask for {OUTPUT}."]))
def test_shape(text: str, limit: int, hint: str) -> None:
    text = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    size = len(text.encode())
    out = truncate_middle(text, limit, hint=hint)
    if limit <= 0 or size <= limit:
        assert out is text
        return
    marker = re.search(rf"\n\[… (\d+) of {size} bytes [^\]]*\]\n", out)
    assert marker
    head, tail = out[: marker.start()].encode(), out[marker.end() :].encode()
    if marker.start() != out.find("\n[… "):
        return  # the text itself looks like a marker
    assert hint in marker[0]
    assert text.encode().startswith(head)
    assert text.encode().endswith(tail)
    assert int(marker[1]) == size - len(head) - len(tail)
    assert limit - 6 <= len(head) + len(tail) <= limit
    assert abs(len(head) - 2 * limit / 3) < 4
    assert abs(len(tail) - limit / 3) < 4


@pytest.mark.parametrize("limit", [0, -1, 100, 10**9])
def test_short_text_is_the_same_object(limit: int) -> None:
    text = "a" * 100
    assert truncate_middle(text, limit) is text


def test_the_marker_says_what_to_do() -> None:
    out = truncate_middle("x" * 1000, 100, hint="Sections: a, b.")
    assert "900 of 1000 bytes" in out
    assert "Sections: a, b." in out
    assert " x\n" in truncate_middle("x" * 1000, 100, hint=" x\n")


@pytest.mark.parametrize(("limit", "cuts"), [(10**30, False), (-(10**30), False), (True, True)])
def test_limits_of_any_size(limit: int, cuts: bool) -> None:
    assert (truncate_middle(text := "x" * 10, limit) is not text) is cuts
