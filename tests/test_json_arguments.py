"""Arguments are judged before they are repaired, and what is open at the end is never closed."""

from __future__ import annotations

import contextlib
import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentkit_fast.errors import AgentkitError, HeredocError
from agentkit_fast.text import Repair, check_arguments, loose_json, rejected_arguments, repair_json

CASES = Path(__file__).parent / "data" / "cases" / "peer_cases.jsonl"

# raw, kind of check_arguments, outcome of repair_json, value where ok
ROWS: list[tuple[str, str, str, Any]] = [
    ("", "ok", "truncated", {}),
    (" \n\t", "ok", "truncated", {}),
    ("\x1c\x1f\u2003", "ok", "failed", {}),
    ("{}", "ok", "ok", {}),
    ('{"a": 1e999}', "ok", "ok", {"a": math.inf}),
    ('{"a": ' + "9" * 4300 + "}", "ok", "ok", {"a": int("9" * 4300)}),
    ('{"a": ' + "9" * 4301 + "}", "malformed", "failed", None),
    ('{"a": -' + "9" * 5000 + ".0}", "ok", "ok", {"a": -math.inf}),
    ('{"a":1,}', "ok", "ok", {"a": 1}),
    ("{'a': 'it\\'s \"x\"'}", "ok", "ok", {"a": 'it\'s "x"'}),
    ("{a: True, b: False, c: None}", "ok", "ok", {"a": True, "b": False, "c": None}),
    ("```json\n{\"a\":1}\n```", "ok", "ok", {"a": 1}),
    ("```\n{\"a\":1}```", "ok", "ok", {"a": 1}),
    ("~~~json\n{a:1}\n~~~\n", "ok", "ok", {"a": 1}),
    ("````json {a:1} ````", "ok", "ok", {"a": 1}),
    ('{"a": "```"}', "ok", "ok", {"a": "```"}),
    ('{"a": "x\ny\t"}', "ok", "ok", {"a": "x\ny\t"}),
    ('{"a": "\\ud800"}', "ok", "ok", {"a": "�"}),
    ('{"a":1', "truncated", "truncated", None),
    ('{"a":"x', "truncated", "truncated", None),
    ("{'a':'x}", "truncated", "truncated", None),
    ("{a:'}'", "truncated", "truncated", None),
    ('{"a":"x\\', "truncated", "truncated", None),
    ('{"a":"\\u12', "truncated", "truncated", None),
    ('{"a":tru', "truncated", "truncated", None),
    ('{"a":Non', "truncated", "truncated", None),
    ('{"a":-', "truncated", "truncated", None),
    ('{"a":1.', "truncated", "truncated", None),
    ('{"a":1e', "truncated", "truncated", None),
    ('{"a":[1,', "truncated", "truncated", None),
    ('{"a":[1]', "truncated", "truncated", None),
    ("[1, 2", "truncated", "truncated", None),
    ('"abc', "truncated", "truncated", None),
    ("tru", "truncated", "truncated", None),
    ("```json\n{\"a\":1}", "truncated", "truncated", None),
    ("```json\n{\"a\":1}\n``", "truncated", "truncated", None),
    ("```json\n{\"a\":", "truncated", "truncated", None),
    ("```json", "truncated", "truncated", None),
    ("```", "truncated", "truncated", None),
    ("{ pa", "truncated", "failed", None),
    ("{ a: 1, b ", "truncated", "failed", None),
    ("{ a: `", "truncated", "failed", None),
    ("{ a: x, b: 'y", "truncated", "failed", None),
    ('{"a" 1', "truncated", "failed", None),
    ('{"a" 1}', "malformed", "failed", None),
    ('{"a":1}}', "malformed", "failed", None),
    ('{"a":1} {"b":2}', "malformed", "failed", None),
    ('{"a":1} {"b":', "malformed", "failed", None),
    ('{"path":"a.txt"} trailing words', "malformed", "failed", None),
    ('Sure: {"a":1}', "malformed", "failed", None),
    ("{a: it's}", "malformed", "failed", None),
    ("{a: 01}", "malformed", "failed", None),
    ("{a: .5}", "malformed", "failed", None),
    ("{a: NaN}", "malformed", "failed", None),
    ("{a: 1 b: 2}", "malformed", "failed", None),
    ("{a:: 1}", "malformed", "failed", None),
    ('{"a": "\\q"}', "malformed", "failed", None),
    ("{a: ~~~py\nx\n~~~py\n}", "malformed", "failed", None),
    ("```json\n{\"a\":1}\n```\nDone.", "malformed", "failed", None),
    ("nonsense", "malformed", "failed", None),
    ("}", "malformed", "failed", None),
    ("\ufeff{}", "malformed", "failed", None),
    ("[1,2]", "not_object", "failed", None),
    ("true", "not_object", "failed", None),
    ("None", "not_object", "failed", None),
    ('"just text"', "not_object", "failed", None),
    ("12", "not_object", "failed", None),
    ("```\n[1]\n```", "not_object", "failed", None),
]  # fmt: skip


@pytest.mark.parametrize(("raw", "kind", "outcome", "value"), ROWS, ids=[repr(row[0][:60]) for row in ROWS])
def test_rows(raw: str, kind: str, outcome: str, value: Any) -> None:
    arguments, repair = check_arguments(raw), repair_json(raw)
    assert (arguments.kind, repair.outcome) == (kind, outcome)
    assert (arguments.text != "") == (kind == "ok")
    assert (arguments.message == "") == (kind == "ok")
    assert ("smaller" in arguments.message) == (kind == "truncated")
    assert ("well-formed" in arguments.message) == (kind in ("malformed", "not_object"))
    if kind == "ok":
        assert json.loads(arguments.text) == value
    if outcome == "ok":
        assert json.loads(repair.text) == value
    else:
        assert repair == Repair(outcome)


def test_repairs_are_named() -> None:
    repair = repair_json('```json\n{a: \'x\', "b": True, "c": "\n\\udc00",}\n```')
    assert repair.outcome == "ok"
    assert set(repair.repairs) == {
        "markdown_fence",
        "unquoted_key",
        "single_quotes",
        "python_literal",
        "trailing_comma",
        "control_character",
        "lone_surrogate",
    }
    assert json.loads(repair.text) == {"a": "x", "b": True, "c": "\n�"}


def args_cases() -> list[Any]:
    rows = [json.loads(line) for line in CASES.read_text(encoding="utf-8").splitlines()]
    (row,) = [row for row in rows if row["id"] == "args-02"]
    return [pytest.param(*case, id=repr(case[0])) for case in row["input"]["cases"]]


@pytest.mark.parametrize(("raw", "verdict", "value"), args_cases())
def test_peer_cases(raw: str, verdict: str, value: Any) -> None:
    arguments = check_arguments(raw)
    want = {"run": "ok", "refuse-truncated": "truncated", "refuse-not-object": "not_object"}
    # Text after the object is refused; of two equal keys the last wins.
    assert arguments.kind == want.get(verdict, "malformed" if "trailing" in raw else "ok")
    if verdict == "run":
        assert json.loads(arguments.text) == value
    if arguments.kind == "ok" and value is None:
        assert json.loads(arguments.text) == {"path": "b"}


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(codec="utf-8")),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters(codec="utf-8")), inner),
    max_leaves=12,
)
objects = st.dictionaries(st.text(st.characters(codec="utf-8")), values, max_size=4)
styles = st.sampled_from([{}, {"indent": 2}, {"ensure_ascii": False}, {"separators": (",", ":")}])


@given(objects, styles)
@settings(deadline=None)
def test_strict_json_is_given_back_itself(value: dict[str, Any], style: dict[str, Any]) -> None:
    text = json.dumps(value, **style)
    assert loose_json(text) is text
    assert repair_json(text) == Repair("ok", text, ())
    assert repair_json(text).text is text
    assert check_arguments(text).text is text


def loosened(value: Any, draw: Any) -> str:
    """`value` in loose spelling, each choice by `draw`."""
    match value:
        case None | True | False:
            return str(value) if draw(st.booleans()) else json.dumps(value)
        case str():
            strict = json.dumps(value, ensure_ascii=draw(st.booleans()))
            if draw(st.booleans()):
                return strict
            return "'" + strict[1:-1].replace('\\"', '"').replace("'", "\\'") + "'"
        case list():
            comma = "," if value and draw(st.booleans()) else ""
            return "[" + ", ".join(loosened(item, draw) for item in value) + comma + "]"
        case dict():
            comma = ", " if value and draw(st.booleans()) else ""
            keys = [
                key if key.isidentifier() and key.isascii() and draw(st.booleans()) else loosened(key, draw)
                for key in value
            ]
            pairs = [
                f"{key} : {loosened(item, draw)}" for key, item in zip(keys, value.values(), strict=True)
            ]
            return "{" + ",\n".join(pairs) + comma + "}"
        case _:
            return json.dumps(value)


@given(objects, st.data())
@settings(deadline=None)
def test_loose_spellings_mean_the_same(value: dict[str, Any], data: st.DataObject) -> None:
    text = loosened(value, data.draw)
    if data.draw(st.booleans()):
        text = f"```json\n{text}\n```"
    else:
        assert json.loads(loose_json(text)) == value
    repair, arguments = repair_json(text), check_arguments(text)
    assert repair.outcome == arguments.kind == "ok"
    assert json.loads(repair.text) == json.loads(arguments.text) == value
    # Cut anywhere it is never an object, and the gate always says why.
    whole = text.rstrip()
    for cut in range(1, len(whole)):
        piece = whole[:cut]
        assert repair_json(piece).outcome in {"truncated", "failed"}
        assert check_arguments(piece).kind == "truncated", piece
    # What follows it is never let through.
    assert check_arguments(text + " x").kind == "malformed"


@given(st.text(max_size=60) | st.text("{}[]:,\"'\\`~ \n\ru0aTrue1.-e", max_size=60))
@settings(max_examples=500, deadline=None)
def test_any_text(text: str) -> None:
    arguments, repair = check_arguments(text), repair_json(text)
    if repair.outcome == "ok":
        assert type(json.loads(repair.text)) is dict
        assert arguments.kind == "ok"
    if arguments.kind == "ok":
        assert type(json.loads(arguments.text)) is dict
    try:
        strict = json.loads(text)
    except ValueError:
        pass
    else:
        if "NaN" not in text and "Infinity" not in text:
            assert arguments.kind == ("ok" if isinstance(strict, dict) else "not_object")
    try:
        json.loads(loose_json(text))
        fault = None
    except HeredocError as error:
        fault = error
    if fault is not None:
        assert fault.kind in {"truncated", "malformed"}
        assert 0 <= fault.byte_offset <= len(text.encode())
    rejected = json.loads(rejected_arguments(text, "why"))
    assert rejected["_error"] == "why"
    assert len(rejected["_tail"].encode()) <= 800


FAULTS = [
    ("", "truncated", 0),
    ("{", "truncated", 1),
    ("é", "malformed", 0),
    ('"é', "truncated", 3),
    ('{"é": x}', "malformed", 7),
    ("{a: 1} x", "malformed", 7),
    ('["\\q"]', "malformed", 2),
    ("{a: ~~~py\nx", "truncated", 11),
]


@pytest.mark.parametrize(("text", "kind", "offset"), FAULTS, ids=repr)
def test_loose_json_faults(text: str, kind: str, offset: int) -> None:
    with pytest.raises(HeredocError) as caught:
        loose_json(text)
    assert isinstance(caught.value, AgentkitError)
    assert isinstance(caught.value, ValueError)
    assert (caught.value.kind, caught.value.byte_offset) == (kind, offset)
    assert str(offset) in str(caught.value)


@pytest.mark.parametrize("text", ["True", " 'a' ", "[1, ~~~py\nx\n~~~py\n,]", "0.10"])
def test_loose_json_takes_any_value(text: str) -> None:
    json.loads(loose_json(text))


def test_surrogates_in_the_text_itself() -> None:
    assert check_arguments('{"a": "\ud83d\ude00\ud800"}').text == '{"a": "😀�"}'
    assert loose_json('{"a": "\udc00"}') == '{"a": "�"}'
    assert json.loads(rejected_arguments("\ud800", "\udc00")) == {
        "_error": "�",
        "_raw_chars": 1,
        "_tail": "�",
    }


def test_nesting() -> None:
    deep = '{"a":' + "[" * 899 + "]" * 899 + "}"
    assert check_arguments(deep).kind == "ok"
    json.loads(check_arguments(deep).text)
    for text in ['{"a":' + "[" * 900 + "]" * 900 + "}", '{"a":' * 100_000 + "1" + "}" * 100_000]:
        arguments = check_arguments(text)
        assert arguments.kind == "malformed"
        assert "900" in arguments.message
    assert check_arguments('{"a":' * 100_000).kind == "truncated"


def test_big_numbers_keep_their_text() -> None:
    text = '{"a": 12345678901234567890123456789, "b": 1.000000000000000000001, "c": 1e999, "d": -0.0}'
    assert check_arguments(text).text is text
    assert check_arguments(text[:-1] + ",}").text == text
    assert math.isinf(json.loads(text)["c"])


def test_rejected_arguments() -> None:
    raw = "é" * 1000
    rejected = json.loads(rejected_arguments(raw, 'a "message"\n'))
    assert rejected == {"_error": 'a "message"\n', "_raw_chars": 1000, "_tail": "é" * 400}
    assert json.loads(rejected_arguments("x" + raw, ""))["_tail"] == "é" * 400
    assert json.loads(rejected_arguments("a" + "日" * 400, ""))["_tail"] == "日" * 266


@pytest.mark.timeout(60)
def test_megabytes_of_one_thing() -> None:
    for unit in [
        "{",
        "[",
        '"',
        "'",
        "\\",
        "`",
        "~",
        "~~~\n",
        " ",
        "\n",
        "a",
        "1",
        "é",
        '{"a":',
        "''",
        "{}",
        ",",
        '"a":',
        "```\n",
    ]:
        for head in ["", "{ a: ", '{ a: "', "{ a: '", "```json\n", "{ x y "]:
            text = head + unit * (2_000_000 // len(unit))
            assert check_arguments(text).kind in {"truncated", "malformed", "not_object", "ok"}
            repair_json(text)
            rejected_arguments(text, "m")
            with contextlib.suppress(HeredocError):
                loose_json(text)


@pytest.mark.parametrize("blank", ["", " ", "  ", "\r\r", " \n", "\t\t", "   ", "\x1c\x1d"], ids=repr)
def test_blank_means_no_arguments(blank: str) -> None:
    judged = check_arguments(blank)
    assert (judged.kind, judged.text) == ("ok", "{}")
