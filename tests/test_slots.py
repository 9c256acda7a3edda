"""Sections by name, placeholders, and the display copy of a history."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentkit_fast import Entry
from agentkit_fast.text import capture_slots, expand_entries, expand_slots, section_names

DATA = Path(__file__).parent / "data" / "golden"


def golden(name: str) -> list[dict]:  # type: ignore[type-arg]  # rows of mixed shape
    return [msgspec.json.decode(line) for line in (DATA / f"{name}.jsonl").read_bytes().splitlines()]


def test_goldens() -> None:
    for row in golden("capture_slots"):
        assert capture_slots(row["in"]) == row["out"]
    for row in golden("expand_slots"):
        text, slots = row["in"]
        assert expand_slots(text, slots) == row["out"]


@pytest.mark.parametrize(
    ("text", "want"),
    [
        pytest.param("plain", {"OUTPUT": "plain"}, id="no section"),
        pytest.param("<a>1</a>", {"a": "1", "OUTPUT": "1"}, id="one"),
        pytest.param("<a>1<b>2</b>3</a>", {"a": "1<b>2</b>3", "b": "2", "OUTPUT": "123"}, id="nested"),
        pytest.param("<a>1</a><a>2</a>", {"a": "2", "OUTPUT": "12"}, id="the last of one name"),
        pytest.param("<a>1</b>", {"OUTPUT": "<a>1</b>"}, id="mismatched"),
        pytest.param(
            "<a><b></a></b>", {"a": "<b>", "OUTPUT": "<b></b>"}, id="crossed: the outer is closed first"
        ),
        pytest.param("<a><a>1</a>", {"a": "<a>1", "OUTPUT": "<a>1"}, id="the first closer"),
        pytest.param("<a x=1>1</a>", {"OUTPUT": "<a x=1>1</a>"}, id="attributes are no section"),
        pytest.param("<1a>1</1a>", {"OUTPUT": "<1a>1</1a>"}, id="a name begins with a letter"),
        pytest.param("<_a-b>1</_a-b>", {"OUTPUT": "<_a-b>1</_a-b>"}, id="word characters only"),
        pytest.param("< a>1</ a>", {"OUTPUT": "< a>1</ a>"}, id="blanks"),
        pytest.param("<a></a>", {"a": "", "OUTPUT": ""}, id="empty"),
        pytest.param("<OUTPUT>1</OUTPUT>2", {"OUTPUT": "12"}, id="OUTPUT is always the whole"),
        pytest.param("", {"OUTPUT": ""}, id="nothing"),
    ],
)
def test_capture(text: str, want: dict[str, str]) -> None:
    slots = capture_slots(text)
    assert slots == want
    if slots["OUTPUT"] == text:
        assert slots["OUTPUT"] is text


def test_depth_is_bounded() -> None:
    names = [f"s{index}" for index in range(20)]
    text = "".join(f"<{name}>" for name in names) + "x" + "".join(f"</{name}>" for name in reversed(names))
    slots = capture_slots(text)
    assert sorted(set(slots) - {"OUTPUT"}) == sorted(names[:8])
    assert slots["OUTPUT"].startswith("<s8>")
    assert section_names(text) == sorted(names[:8])


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("{OUTPUT}", "whole"),
        ("a {x} b", "a 1 b"),
        ("{x}{x}", "11"),
        ("{{x}}", "{1}"),
        ("{ x }", "{ x }"),
        ("{nope}", "{nope}"),
        ("{", "{"),
        ("{x", "{x"),
        ("{nested}", "{x}"),
        ('{"x": 1}', '{"x": 1}'),
        ("日{x}日", "日1日"),
    ],
)
def test_expand(text: str, want: str) -> None:
    slots = {"OUTPUT": "whole", "x": "1", "nested": "{x}"}
    assert expand_slots(text, slots) == want
    if text == want:
        assert expand_slots(text, slots) is text


def test_section_names_are_bare_and_sorted() -> None:
    assert section_names("<b>1</b><a>2</a><b>3</b><c>") == ["a", "b"]
    assert section_names("") == []


def test_expand_entries() -> None:
    entries = [
        Entry(kind="assistant", content="before {OUTPUT}"),
        Entry(kind="tool_result", content="<log>one</log>"),
        Entry(kind="assistant", content="see {log}"),
        Entry(kind="tool_result", content="two"),
        Entry(kind="user", content="{OUTPUT}"),
        Entry(kind="assistant", content="nothing"),
    ]
    copy = expand_entries(entries)
    assert [entry.content for entry in copy] == [
        "before two",
        "<log>one</log>",
        "see one",
        "two",
        "{OUTPUT}",
        "nothing",
    ]
    assert entries[0].content == "before {OUTPUT}"
    assert copy[5] is entries[5]
    assert expand_entries([entries[0]]) == [entries[0]]


def twin(text: str, depth: int = 1) -> tuple[str, dict[str, str]]:
    """The obvious way: regular expressions with a back-reference, quadratic on hostile text."""
    slots: dict[str, str] = {}
    out, at = [], 0
    while match := re.compile(r"<([A-Za-z_][A-Za-z0-9_]*)>(.*?)</\1>", re.DOTALL).search(text, at):
        slots[match[1]] = match[2]
        inner, inside = twin(match[2], depth + 1) if depth < 8 else (match[2], {})
        slots.update(inside)
        out += [text[at : match.start()], inner]
        at = match.end()
    return "".join(out) + text[at:], slots


pieces = st.sampled_from(
    ["<a>", "</a>", "<b>", "</b>", "<c_1>", "</c_1>", "<", ">", "/", "x", "日", "{a}", "<a", "</a"]
)


@given(st.lists(pieces, max_size=30).map("".join))
def test_like_the_regular_expression(text: str) -> None:
    whole, slots = twin(text)
    assert capture_slots(text) == {**slots, "OUTPUT": whole}
    assert section_names(text) == sorted(slots)


@given(st.text(), st.dictionaries(st.sampled_from(["a", "OUTPUT", "_b1"]), st.text()))
def test_any_text(text: str, slots: dict[str, str]) -> None:
    expand_slots(text, slots)
    assert capture_slots(text)["OUTPUT"] is not None


@pytest.mark.parametrize("size", [1, 60, 5_000, 400_000])
@pytest.mark.parametrize("letter", ["x", "é", "日", "😀"])
def test_new_text_of_any_length(letter: str, size: int) -> None:
    text, value = "a" * size, letter * size
    expanded = expand_slots(f"{text}{{v}}{text}{{w}}", {"v": value, "w": ""})
    assert expanded == text + value + text
    assert expanded.isascii() == letter.isascii()
    assert hash(expanded) == hash(text + value + text)
    assert {expanded: 1}[text + value + text] == 1
    slots = capture_slots(f"{text}<a>{value}<b>{text}</b></a>{text}")
    assert slots == {
        "a": f"{value}<b>{text}</b>",
        "b": text,
        "OUTPUT": text + value + text + text,
    }
    assert expand_slots("{OUTPUT}", slots) == slots["OUTPUT"]


@pytest.mark.parametrize("unit", ["<a>", "</a>", "<a>x</b>", "<a><b>", "<", "{", "{a", "<a", "<a></a>"])
def test_megabytes_of_hostile_text(unit: str) -> None:
    text = unit * (1_000_000 // len(unit))
    capture_slots(text)
    section_names(text)
    expand_slots(text, {"a": "1"})
    capture_slots("".join(f"<n{index}>" for index in range(50_000)))


def test_wrong_types() -> None:
    with pytest.raises(TypeError):
        expand_slots("{a}", {"a": 1})  # type: ignore[dict-item]  # what a user may write
    with pytest.raises(TypeError):
        capture_slots(None)  # type: ignore[arg-type]  # what a user may write
