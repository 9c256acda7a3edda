"""The language word by word, rendering, and hostile replies."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentkit_fast.messages import ToolDef
from agentkit_fast.text import (
    HeredocProblem,
    HeredocStream,
    heredoc_prompt,
    parse_tool_calls,
    render_tool_call,
)

LONG_NAME = "f" * 300
TAGS = ["go", "java", "js", "json", "md", "py", "sh", "sql", "txt", "xml", "yaml"]

# name, the arguments as written, what they mean
ARGUMENTS: list[tuple[str, str, Any]] = [
    ("strict", '{"a": [1, -2.5e3, "x", true, null, {}]}', {"a": [1, -2.5e3, "x", True, None, {}]}),
    ("empty", "{}", {}),
    ("unquoted keys", "{ a: 1, $b_2: 2, c-d: 3, é: 4 }", {"a": 1, "$b_2": 2, "c-d": 3, "é": 4}),
    ("words as keys", "{ True: 1, null: 2, None: 3 }", {"True": 1, "null": 2, "None": 3}),
    ("single quotes", r"""{ 'a': 'x"y', b: 'it\'s' }""", {"a": 'x"y', "b": "it's"}),
    ("Python literals", "{ a: True, b: False, c: None }", {"a": True, "b": False, "c": None}),
    ("trailing commas", "{ a: [1, 2, ], b: { c: 1, }, }", {"a": [1, 2], "b": {"c": 1}}),
    ("escapes", r'{ a: "\"\\\/\b\f\n\r\té\ud83d\ude00" }', {"a": '"\\/\b\f\n\r\té😀'}),
    ("lone surrogates", r'{ a: "\ud83d", b: "\ude00x", c: "\ud83dé" }', {"a": "�", "b": "�x", "c": "�é"}),
    ("raw control characters", '{ a: "x\ny\tz\r\0", b: \'\n\' }', {"a": "x\ny\tz\r\0", "b": "\n"}),
    ("body", "{ a: ~~~py\nx = '\\n'\n~~~py\n}", {"a": "x = '\\n'"}),
    ("body of no lines", "{ a: ~~~py\n~~~py\n}", {"a": ""}),
    ("body of one empty line", "{ a: ~~~py\n\n~~~py\n}", {"a": ""}),
    ("body of two empty lines", "{ a: ~~~py\n\n\n~~~py\n}", {"a": "\n"}),
    ("body without a tag", "{ a: ~~~\nx\n~~~\n}", {"a": "x"}),
    ("body and comma", "{ a: ~~~py\nx\n~~~py,\n b: 1 }", {"a": "x", "b": 1}),
    ("body, blanks and comma", "{ a: ~~~py\nx\n~~~py \t, \n b: 1 }", {"a": "x", "b": 1}),
    ("comma on the next line", "{ a: ~~~py\nx\n~~~py\n, b: 1 }", {"a": "x", "b": 1}),
    (
        "closer not alone",
        "{ a: ~~~py\nx\n~~~py y\n~~~python\n ~~~py\n~~~md\n~~~py\n}",
        {"a": "x\n~~~py y\n~~~python\n ~~~py\n~~~md"},
    ),
    ("CRLF lines", "{ a: ~~~py\r\nx\r\ny\r\n~~~py\r\n}", {"a": "x\r\ny\r"}),
    ("body with blocks", "{ a: ~~~md\n@@call g\n{ b: 1 }\n@@end\n~~~md\n}", {"a": "@@call g\n{ b: 1 }\n@@end"}),
    ("string with blocks", '{ a: "\n@@call g\n{ }\n@@end\n" }', {"a": "\n@@call g\n{ }\n@@end\n"}),
    ("backticks", "{ a: ```\nx\n``` }", {"a": "x"}),
    ("backticks and info", "{ a: ```python\nx\n```, b: 1 }", {"a": "x", "b": 1}),
    ("more backticks", "{ a: ````\n```\nx\n```\n````\n}", {"a": "```\nx\n```"}),
    ("a longer run does not close", "{ a: ```\n````\n``` }", {"a": "````"}),
    ("one backtick", "{ a: `\nx\n` }", {"a": "x"}),
    ("bodies in arrays", "{ a: [~~~py\nx\n~~~py\n, ```\ny\n``` ] }", {"a": ["x", "y"]}),
    (
        "big numbers",
        "{ a: 1.10, b: 12345678901234567890123, c: -0, d: 1E+2 }",
        {"a": 1.1, "b": 12345678901234567890123, "c": 0, "d": 100.0},
    ),
    ("the last of two keys", "{ a: 1, a: 2 }", {"a": 2}),
    ("white space", "\r\n {\r\n a\t:\n1\r\n}", {"a": 1}),
]  # fmt: skip


@pytest.mark.parametrize(
    ("written", "meant"), [row[1:] for row in ARGUMENTS], ids=[row[0] for row in ARGUMENTS]
)
@pytest.mark.parametrize(
    "after", ["\n@@end\n", "\n@@end", "", "\n", "\r\n@@end\r\n", "\n@@", " @@end"], ids=repr
)
def test_arguments(written: str, meant: Any, after: str) -> None:
    reply = parse_tool_calls(f"Prose.\n@@call f\n{written}{after}")
    assert reply.problems == ()
    assert reply.prose == "Prose."
    (call,) = reply.calls
    assert (call.name, json.loads(call.arguments)) == ("f", meant)


def test_number_text_is_kept() -> None:
    (call,) = parse_tool_calls("@@call f\n{ a: 1.10, b: 1E+2, c: -0 }").calls
    assert call.arguments == '{ "a": 1.10, "b": 1E+2, "c": -0 }'


MALFORMED = {
    "unknown escape": r'{ a: "\q" }',
    "escape of a quote it is not in": r"""{ a: "\'" }""",
    "hexadecimal escape": r'{ a: "\x41" }',
    "short escape": r'{ a: "\u12" }',
    "leading point": "{ a: .5 }",
    "leading zero": "{ a: 01 }",
    "leading plus": "{ a: +1 }",
    "trailing point": "{ a: 1. }",
    "not a number": "{ a: NaN }",
    "bare value": "{ a: word }",
    "no value": "{ a: }",
    "no colon": '{ "a" 1 }',
    "no comma": "{ a: 1 b: 2 }",
    "two commas": "{ a: 1,, b: 2 }",
    "comma first": "{ , a: 1 }",
    "key that is no name": "{ 1a: 1 }",
    "key that is a number": "{ 1: 1 }",
    "wrong bracket": "{ a: [1} ]}",
    "wrong opener": "{ a: ~~~py x\ny\n~~~py x\n}",
    "comment": "{ a: 1 // one\n}",
    "no object": "[1]",
    "junk in the header": "x\n{ a: 1 }",
    "no arguments": "",
    "a whole number Python does not read": "{ a: -" + "9" * 4301 + " }",
    "two deep": "{ a: " + "[" * 950 + "]" * 950 + " }",
}


@pytest.mark.parametrize("written", MALFORMED.values(), ids=MALFORMED)
def test_malformed_blocks_leave_the_others(written: str) -> None:
    block = f"@@call bad\n{written}\n@@end\n"
    reply = parse_tool_calls(f"é\n@@call f\n{{}}\n@@end\n{block}@@call g\n{{ b: 1 }}\n@@end\nend")
    assert [call.name for call in reply.calls] == ["f", "g"]
    assert reply.problem == HeredocProblem("malformed", "bad", len("é\n@@call f\n{}\n@@end\n".encode()))
    assert reply.problems == (reply.problem,)
    assert "well-formed" in reply.problem.message
    assert "`bad`" in reply.problem.message
    assert reply.prose.startswith("é\n")
    assert reply.prose.endswith("end")
    assert "@@call" not in reply.prose


REPLIES: list[tuple[str, str, list[str], str, list[tuple[str, str, int]]]] = [
    ("empty", "", [], "", []),
    ("prose", "  Hello\n\nworld \n", [], "Hello\n\nworld", []),
    ("a block takes its line", "a\n@@call f\n{}\n@@end\nb", ["f"], "a\nb", []),
    ("blocks in a row", "@@call f\n{}\n@@end\n@@call g\n{}\n@@end", ["f", "g"], "", []),
    ("no terminator between", "@@call f\n{}\n@@call g\n{}", ["f", "g"], "", []),
    ("blank lines before the terminator", "@@call f\n{}\n\n\n@@end\nx", ["f"], "x", []),
    ("text after the object", "@@call f\n{} and more", ["f"], "and more", []),
    ("text after the terminator", "@@call f\n{}\n@@end bye", ["f"], "bye", []),
    ("not a terminator", "@@call f\n{}\n@@ending", ["f"], "@@ending", []),
    ("not at the start of a line", "see @@call f\n{}", [], "see @@call f\n{}", []),
    ("not a mark", "@@callback f\n{}", [], "@@callback f\n{}", []),
    ("header without a name, at the end", "a\n@@call", [], "a\n@@call", []),
    ("header without a name", "@@call \n{}\n@@end\nx", [], "x", [("malformed", "", 0)]),
    ("cut after the blank", "a\n@@call ", [], "a", [("truncated", "", 2)]),
    ("cut in the name", "@@call wri", [], "", [("truncated", "wri", 0)]),
    ("cut after the name", "@@call f\n", [], "", [("truncated", "f", 0)]),
    ("cut in the object", "@@call f\n{ a: 1", [], "", [("truncated", "f", 0)]),
    ("cut in a body", "@@call f\n{ a: ~~~py\nx\n@@end\n@@call g\n{}", [], "", [("truncated", "f", 0)]),
    ("cut in a string", '@@call f\n{ a: "x }\n@@end\n@@call g\n{}', [], "", [("truncated", "f", 0)]),
    ("cut keeps what was complete", "@@call f\n{}\n@@end\n@@call g\n{", ["f"], "", [("truncated", "g", 18)]),
    ("unclosed, then the next", "@@call f\n{ a: 1\n@@call g\n{}\n@@end", ["g"], "", [("truncated", "f", 0)]),
    ("closed by its mark alone", "@@call f\n{ a: 1\n@@end\nx", [], "x", [("malformed", "f", 0)]),
    ("bad, and never closed", "@@call f\n{ a: x", [], "", [("truncated", "f", 0)]),
    (
        "bad, with a block in a body",
        "@@call f\n{ x y, a: ~~~md\n@@call g\n{}\n@@end\n~~~md\n}\n@@end\n.",
        [], ".", [("malformed", "f", 0)],
    ),
    (
        "bad, with a block in a string",
        '@@call f\n{ x y, a: "\n@@call g\n{}\n" }\n@@end\n.',
        [], ".", [("malformed", "f", 0)],
    ),
    (
        "two problems",
        "@@call f\n{ a }\n@@end\n@@call g\n{",
        [], "", [("malformed", "f", 0), ("truncated", "g", 21)],
    ),
    ("object on the header's line", "@@call f { a: 1 }\n@@end", ["f"], "", []),
    ("quoted name", '@@call "a b\\n\\u00e9" \n{}', ["a b\né"], "", []),
    ("quoted name that never ends", '@@call "a\n{}\n@@end\nx', [], "x", [("malformed", "", 0)]),
    ("a long name", f"@@call {LONG_NAME}\n{{}}", [LONG_NAME], "", []),
    ("quoted name of no letters", '@@call "" {}', [""], "", []),
    ("terminator after words", "@@call f\n{} and more\n@@end\nx", ["f"], "and more\nx", []),
    ("terminator after more lines", "@@call f\n{}\nmore\n@@end \nx", ["f"], "more\nx", []),
    ("a second terminator", "@@call f\n{}\n@@end\n@@end\nx", ["f"], "x", []),
    (
        "a bad block in a fence",
        "@@call f\n```json\n{}\n```\n@@end\nx\n@@call g\n{}",
        ["g"], "```\nx", [("malformed", "f", 0)],
    ),
    ("terminator before any block", "a\n@@end\nb\n@@call f\n{}", ["f"], "a\n@@end\nb", []),
    ("no terminator inside a line", "@@call f\n{}\n.\n@@ending\n @@end", ["f"], ".\n@@ending\n @@end", []),
    ("white space as Python knows it", "\x1f\x1c a\n@@call f\n{}\x1d\x1e", ["f"], "a", []),
    ("CRLF", "a\r\n@@call f\r\n{}\r\n@@end\r\nb", ["f"], "a\r\nb", []),
    ("the last brace decides", "@@call f\n{}}\n@@end", ["f"], "}", []),
]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "names", "prose", "problems"), [row[1:] for row in REPLIES], ids=[row[0] for row in REPLIES]
)
def test_replies(text: str, names: list[str], prose: str, problems: list[tuple[str, str, int]]) -> None:
    reply = parse_tool_calls(text)
    assert [call.name for call in reply.calls] == names
    assert reply.prose == prose
    assert [(one.kind, one.tool_name, one.byte_offset) for one in reply.problems] == problems
    assert reply.problem is (reply.problems[0] if problems else None)
    assert all(("smaller" in one.message) == (one.kind == "truncated") for one in reply.problems)


@given(st.text(st.characters(codec="utf-8")))
def test_prose_is_stripped_as_python_does(text: str) -> None:
    assert parse_tool_calls(text).prose == text.strip() or "@@" in text


@given(
    st.lists(st.sampled_from(["@@end", "\n", "\n@@end\n", "x", "@@call f\n{}", "}", " ", "\r\n"])).map(
        "".join
    )
)
def test_no_terminator_is_left_after_a_block(text: str) -> None:
    reply = parse_tool_calls(f"@@call f\n{{}}\n{text}")
    assert not any(line.startswith("@@end") and not line[5:].strip() for line in reply.prose.split("\n"))


def test_ids_are_fresh() -> None:
    ids = {call.id for _ in range(3) for call in parse_tool_calls("@@call f\n{}\n" * 3).calls}
    assert len(ids) == 9


def test_prose_without_calls_is_the_text_itself() -> None:
    text = "no call, nothing to strip " * 3 + "."
    assert parse_tool_calls(text).prose is text


words = st.text(st.characters(codec="utf-8"), max_size=20) | st.lists(
    st.sampled_from(
        ["~~~", "~~~py", "~~~txt", "```", "\n", "\r", "\r\n", "x", '"', "'", "\\", "@@end", "@@call f"]
        + [" ", ",", "é", "\0", "}"]
        + [f"\n~~~{tag}\n" for tag in TAGS]
    ),
    max_size=14,
).map("".join)  # fmt: skip
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | words,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3),
    max_leaves=10,
)
objects = st.dictionaries(words, values, max_size=4)


@given(words.filter(bool), objects)
@settings(max_examples=400, deadline=None)
def test_rendering_round_trips(name: str, arguments: dict[str, Any]) -> None:
    for given_as in (arguments, json.dumps(arguments), json.dumps(arguments, ensure_ascii=False)):
        text = render_tool_call(name, given_as)
        reply = parse_tool_calls(text)
        assert reply.problems == ()
        assert reply.prose == ""
        (call,) = reply.calls
        assert call.name == name
        back = json.loads(call.arguments)
        assert back == arguments
        assert list(back) == list(arguments)
    twice = parse_tool_calls(f"before\n{text}{text}\n{text}after")
    assert [json.loads(call.arguments) for call in twice.calls] == [arguments] * 3
    assert twice.prose.split() == ["before", "after"]


BODY = (
    "A block ends with </tool_call> or </parameter> or @@end here.\nline two: </content>\n@@end not alone\n"
    '  @@end\nlast < line & "quotes" \\ backslash\n'
)
BODIES = {
    "delimiters": BODY,
    "a complete call": "@@call write_file\n{ path: 'x', content: ~~~txt\ny\n~~~txt\n}\n@@end\n",
    "CRLF": BODY.replace("\n", "\r\n"),
    "no final newline": BODY.rstrip("\n"),
    "0 bytes": "",
    "every tag": "".join(f"~~~{tag}\n" for tag in TAGS),
    "only newlines": "\n\n\n",
}


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
def test_bodies_with_delimiters(body: str) -> None:
    text = render_tool_call("write_file", {"path": "a.md", "content": body})
    (call,) = parse_tool_calls(text).calls
    assert json.loads(call.arguments) == {"path": "a.md", "content": body}


RENDERED = [
    ({}, "{ }"),
    ({"a": 1, "b": [True, None]}, "{ a: 1, b: [true, null] }"),
    ({"path": "a.py", "content": "x\ny"}, '{ path: "a.py", content: ~~~py\nx\ny\n~~~py\n}'),
    ({"content": "x\ny", "n": 1}, "{ content: ~~~txt\nx\ny\n~~~txt\n, n: 1 }"),
    ({"path": "a.yml", "content": "~~~yaml\n"}, '{ path: "a.yml", content: ~~~txt\n~~~yaml\n\n~~~txt\n}'),
    ({"a": "x\n\0"}, '{ a: "x\\n\\u0000" }'),
    ({"two words": {"a b": 1, "c": "\n"}}, '{ "two words": {"a b": 1, c: "\\n"} }'),
]


@pytest.mark.parametrize(("arguments", "written"), RENDERED, ids=[written for _, written in RENDERED])
def test_rendered(arguments: dict[str, Any], written: str) -> None:
    assert render_tool_call("f", arguments) == f"@@call f\n{written}\n@@end\n"


def test_rendering_keeps_number_text() -> None:
    assert render_tool_call("f", '{"a": 1.10, "b": 123456789012345678901}') == (
        "@@call f\n{ a: 1.10, b: 123456789012345678901 }\n@@end\n"
    )


@pytest.mark.parametrize("raw", ["{", "[1]", '{"a": 1} x', "nonsense"])
def test_rendering_a_damaged_history(raw: str) -> None:
    (call,) = parse_tool_calls(render_tool_call("f", raw)).calls
    assert json.loads(call.arguments)["_tail"] == raw


def test_rendering_what_json_cannot_hold() -> None:
    with pytest.raises(ValueError):
        render_tool_call("f", {"a": float("nan")})
    with pytest.raises(TypeError):
        render_tool_call("f", {"a": b"x"})


def test_prompt() -> None:
    tools = [
        ToolDef(name="now", description="The  time.\nIn UTC."),
        ToolDef(
            name="write_file",
            parameters={
                "properties": {"path": {"type": "string"}, "content": {"type": "string"}, "mode": {"enum": ["w", "a"]}},
                "required": ["path", "content"],
            },
        ),
    ]  # fmt: skip
    prompt = heredoc_prompt(tools)
    assert "now(): The time. In UTC.\n" in prompt
    assert "write_file(path, content, mode?)\n" in prompt
    calls = parse_tool_calls(prompt).calls
    # The example first, then the batch of two.
    assert [call.name for call in calls] == ["write_file", "now", "write_file"]
    assert {"path", "content"} == set(json.loads(calls[0].arguments))
    assert heredoc_prompt([]) == ""


UNITS = [
    "{", "[", '"', "'", "\\", "~~~", "~~~py\n", "`", "```\n````\n", "@", "@@call ", '@@call "',
    "@@call f\n{}\n", "@@call f {}}\n", "@@call f\n{ a: ", "@@call f {a:\\\n", "\n@@end", "\n~~~py,, ",
    "\n~~~py ", " ", "\n", "\r\n", "1", "a", "é", '{"a":', "}", "''",
]  # fmt: skip
HEADS = [
    "", "@@call ", '@@call "', "@@call f\n{ a: ~~~py\n", "@@call f\n{ a: ```\n", '@@call f\n{ a: "',
    "@@call f\n{ x y: ~~~", "@@call f\n{}", "@@call f\n{}\n@@end", "@@call f\n{ \\ '",
]  # fmt: skip


@pytest.mark.parametrize("size", [20_000, pytest.param(200_000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("head", HEADS, ids=repr)
def test_much_of_one_thing(head: str, size: int) -> None:
    # Quadratic work would take minutes here: megabytes whole, and pieces of 7 letters.
    for unit in UNITS:
        text = head + unit * (1_000_000 // len(unit))
        parse_tool_calls(text)
        text = text[:size]
        stream = HeredocStream()
        for at in range(0, len(text), 7):
            stream.push(text[at : at + 7])
        reply, whole = stream.finish(), parse_tool_calls(text)
        assert (reply.prose, reply.problems) == (whole.prose, whole.problems)
        assert len(reply.calls) == len(whole.calls)
