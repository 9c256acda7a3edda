"""JSON results in fewer tokens, and back again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from agentkit_fast.text import decode_tight, encode_tight

GOLDEN = Path(__file__).parent / "data" / "golden" / "encode_tight.jsonl"


def pairs(text: str) -> Any:
    """JSON with key order, duplicate keys and the text of numbers kept."""
    return json.loads(
        text, object_pairs_hook=lambda items: ("object", items), parse_int=str, parse_float=str
    )


def round_trip(text: str) -> str:
    tight = encode_tight(text)
    if tight is text:
        return tight
    assert len(tight.encode()) < len(text.encode())
    back = decode_tight(tight)
    assert pairs(back) == pairs(text)
    assert encode_tight(back) == tight
    return tight


def test_goldens() -> None:
    rows = [msgspec.json.decode(line) for line in GOLDEN.read_bytes().splitlines()]
    for row in rows:
        tight = round_trip(row["in"])
        assert len(tight.encode()) <= row["out"]["seed_bytes"], row["in"]
        assert (tight != row["in"]) == row["out"]["changed"], row["in"]
    assert len(rows) == 104


@pytest.mark.parametrize(
    ("text", "want"),
    [
        pytest.param('[{"id":1,"name":"Ann"},{"id":2,"name":"Bo"}]', "[2]id,name\n1,Ann\n2,Bo", id="table"),
        pytest.param('{"ok":true,"n":12,"s":"a, b"}', "ok=true\nn=12\ns=a, b", id="object"),
        pytest.param(
            '{"total":2,"rows":[{"a":1},{"a":"x,y"}],"next":null}',
            'total=2\nrows=[2]a\n1\n"x,y"\nnext=null',
            id="table as a value",
        ),
        pytest.param('[{"a":1},{"b":2}]', "[{a:1},{b:2}]", id="irregular"),
        pytest.param('[{"a":1},{"a":1,"b":2}]', "[{a:1},{a:1,b:2}]", id="longer row"),
        pytest.param('[{"a":1,"b":2},{"a":1}]', "[{a:1,b:2},{a:1}]", id="shorter row"),
        pytest.param('[{"a":1},{}]', "[{a:1},{}]", id="empty row"),
        pytest.param('[{"a":1},2]', "[{a:1},2]", id="mixed"),
        pytest.param('[{"a":{"b":[1,"x"]}}]', "[1]a\n{b:[1,x]}", id="nested cell"),
        pytest.param('{"a":{"b":"c:d","e":"f}"}}', 'a={b:c:d,e:"f}"}', id="nested object"),
        pytest.param(
            '["a","b c","d,e","","1","null"]', '[a,b c,"d,e","","1","null"]', id="strings in a list"
        ),
        pytest.param("[3]", "[3]", id="a list that begins like a table"),
        pytest.param('{"a":[3],"b":1}', "a=[3]\nb=1", id="the same as a value"),
        pytest.param(
            '{"":1," x":2,"a=b":3,"c:d":4}', '""=1\n" x"=2\n"a=b"=3\n"c:d"=4', id="keys that keep quotes"
        ),
        pytest.param('[{"":1}]', '[1]""\n1', id="an empty column"),
        pytest.param(
            '{"t":"2024-01-01T00:00:00Z","u":"http://x/?a=1"}',
            "t=2024-01-01T00:00:00Z\nu=http://x/?a=1",
            id="values",
        ),
        pytest.param('{"a":1,"a":2}', "a=1\na=2", id="duplicate keys"),
        pytest.param(" [ 1 , 2.50 , 1E+2 , -0 ] ", "[1,2.50,1E+2,-0]", id="number text"),
        pytest.param('"a=b c"', '"a=b c"', id="a string that keeps its quotes"),
        pytest.param('"x\\ty"', '"x\\ty"', id="an escape"),
        pytest.param('{"a":"x\\ty"}', 'a="x\\ty"', id="an escape in a value"),
        pytest.param('{"a":"\\ud800"}', 'a="\\ud800"', id="a lone surrogate stays an escape"),
    ],
)
def test_form(text: str, want: str) -> None:
    assert round_trip(text) == want


@pytest.mark.parametrize(
    "text",
    ["", " ", "not json", "{", '{"a":}', '{"a":1,}', "[1,]", "[1 2]", "01", "1.", ".5", "+1", "NaN", "Infinity", "tru",
     '"\n"', '"\\q"', '"\\u12"', '{"a":1} x', "{a:1}", "'a'", '{"a" 1}', "[" * 200 + "]" * 200, "nul", "--1", '"'],
)  # fmt: skip
def test_what_is_no_json_is_the_same_object(text: str) -> None:
    text += " " if text == " " else ""
    assert encode_tight(text) is text


@pytest.mark.parametrize(
    "text",
    ["", "hello world", "a,b c", '{"a":1}', "[1, 2]", "[2]a,b\n1,2", "[1]a\n1,2", "a= 1", "a=1\n", "k=v\nno pair",
     "[x", "{a:1", '[1]a\n"x"', 'a="b"', "[2]\n1\n2", "a=[2]x\n1", "=1", "x\n\ny ", "a\\b", '"a"b', "[0]a\n",
     "[01]a\n1", "[1]a,\n1", "日 本", "a=1\na"],
)  # fmt: skip
def test_text_that_is_not_its_own_is_the_same_object(text: str) -> None:
    text = "".join(text)
    assert decode_tight(text) is text


words = st.sampled_from(
    ["", "a", "b c", "x,y", "k=v", "a:b", "{", "}", "[1]", "1", "-0", "1e5", "true", "null", "\n", '"', "\\",
     " x", "x ","日本", "\t", "[2]a", "{a:1}", "/", "\x7f"]
) | st.text(max_size=6)  # fmt: skip
scalars = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | words
)
rows = st.lists(words, min_size=1, max_size=3, unique=True).flatmap(
    lambda keys: st.lists(st.fixed_dictionaries(dict.fromkeys(keys, scalars)), max_size=4)
)
values = st.recursive(
    scalars | rows,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(words, inner, max_size=4)
        | st.lists(inner | rows, max_size=3)
    ),
    max_leaves=12,
)


@given(values, st.sampled_from([None, 1]), st.booleans())
@example({"a": [{"b": [1]}, {"b": [2]}]}, None, True)
def test_round_trip(value: Any, indent: int | None, ascii_only: bool) -> None:
    round_trip(json.dumps(value, indent=indent, ensure_ascii=ascii_only))
    round_trip(json.dumps(value, separators=(",", ":"), ensure_ascii=ascii_only))


@given(st.lists(st.sampled_from([*'[]{}",:=\n 01a-.e\\', "true", "[1]", "[2]a"]), max_size=14).map("".join))
def test_any_text_decodes_to_itself_or_to_what_encodes_to_it(text: str) -> None:
    back = decode_tight(text)
    if back is not text:
        assert encode_tight(back) == text
        json.loads(back)
    tight = encode_tight(text)
    if tight is not text:
        assert pairs(decode_tight(tight)) == pairs(text)


@pytest.mark.parametrize(
    "unit", ["[", "{", '{"a":', "[{", '"', "a=", "[1]a\n", ",", "\n", '[{"a":1},', "\\"]
)
def test_megabytes_of_hostile_text(unit: str) -> None:
    text = unit * (1_000_000 // len(unit))
    assert encode_tight(text) is text
    back = decode_tight(text)
    assert back is text or encode_tight(back) == text


def test_lone_surrogates_are_repaired() -> None:
    assert encode_tight('{"a":"\ud800"}') == "a=\ufffd"
