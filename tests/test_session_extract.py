"""A typed value out of a conversation."""

from __future__ import annotations

import asyncio
import datetime as dt
import enum
import json
import random
from dataclasses import dataclass
from typing import Any, Literal, TypedDict

import msgspec
import pytest

from agentkit_fast import ExtractionError, RunnerError, RunnerProfile, ScriptedRunner, StreamInterrupted
from agentkit_fast.json_grammar import schema_grammar
from session_kit import broken, call, kinds, last_options, reply, session


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Shelf(msgspec.Struct):
    letter: str
    since: dt.datetime
    labels: list[str] = []


class Circle(msgspec.Struct, tag=True):
    radius: int


class Square(msgspec.Struct, tag=True):
    side: float


class Book(msgspec.Struct):
    title: str
    color: Color
    shelf: Shelf
    shape: Circle | Square
    pages: int | None = None
    kind: Literal["novel", "atlas"] = "novel"


@dataclass
class Point:
    x: int
    y: int = 0


class Named(TypedDict):
    name: str


BOOK = {
    "title": "Tides",
    "color": "red",
    "shelf": {"letter": "B", "since": "2020-02-03T04:05:06Z", "labels": ["a"]},
    "shape": {"type": "Circle", "radius": 3},
    "pages": None,
}


def get_sync(made: Any, kind: Any, **more: Any) -> Any:
    return made.extract(kind, **more)


def get_async(made: Any, kind: Any, **more: Any) -> Any:
    return asyncio.run(made.aextract(kind, **more))


both = pytest.mark.parametrize("get", [get_sync, get_async], ids=["sync", "async"])


@both
@pytest.mark.parametrize(
    ("kind", "text", "want"),
    [
        (Book, json.dumps(BOOK), msgspec.convert(BOOK, Book)),
        (Point, '{"x": 1}', Point(1)),
        (Point, '{"x": "1"}', Point(1)),
        (Point, '```json\n{"x": 1}\n```', Point(1)),
        (Point, "{'x': 1,}", Point(1)),
        (Point, 'Here it is: {"x": 1}. Good?', Point(1)),
        (Named, '{"name": "Ada"}', {"name": "Ada"}),
        (list[int], "[1, 2]", [1, 2]),
        (int, "42", 42),
        (str, '"text"', "text"),
        (Color, '"blue"', Color.BLUE),
        (Circle | Square, '{"type": "Square", "side": 2}', Square(2.0)),
        (int | None, "null", None),
        (dict[str, int], '{"a": 1}', {"a": 1}),
        (dt.date, '"2020-02-03"', dt.date(2020, 2, 3)),
    ],
)
def test_types_and_spellings(get: Any, kind: Any, text: str, want: Any) -> None:
    made = session([text])
    assert get(made, kind) == want
    assert kinds(made) == ["user", "notification", "assistant"]


@both
@pytest.mark.parametrize(
    ("kind", "arguments", "want"),
    [
        (Point, '{"x": 1}', Point(1)),
        (int, '{"value": 42}', 42),
        (list[Point], '{"value": [{"x": 1}]}', [Point(1)]),
    ],
)
def test_by_a_forced_tool(get: Any, kind: Any, arguments: str, want: Any) -> None:
    made = session([reply(call(arguments, name="answer"))])
    assert get(made, kind) == want
    assert last_options(made).tool_choice == "answer"
    (tool,) = made.runner.requests[0].tools
    assert tool.parameters["type"] == "object"
    assert broken(made.store.context("s")) == []
    made.runner._replies.append("And on.")
    assert made.turn().reply == "And on."


@both
def test_by_response_format(get: Any) -> None:
    runner = ScriptedRunner(['{"x": 1}'], profile=RunnerProfile(json_schema=True))
    made = session([], runner=runner)
    assert get(made, Point) == Point(1)
    wanted = last_options(made).response_format
    assert wanted is not None
    assert wanted["json_schema"]["schema"]["properties"]["x"] == {"type": "integer"}
    assert made.runner.requests[0].tools == ()


@both
def test_by_grammar(get: Any) -> None:
    runner = ScriptedRunner(['{"x": 1}'], profile=RunnerProfile(grammar=True, json_schema=True))
    made = session([], runner=runner)
    assert get(made, Point) == Point(1)
    assert last_options(made).grammar.startswith("root ::=")
    assert last_options(made).response_format is None


@both
@pytest.mark.parametrize(
    ("bad", "told"),
    [
        ('{"x": "one"}', "$.x"),
        ('{"y": 1}', "`x`"),
        ('{"x": 1', "cut off"),
        ("I do not know.", "no JSON"),
        ("", "empty"),
        ("[1]", "object"),
        (reply('{"x": 1}', finish="length"), "cut off"),
        (reply(call('{"x": "one"}', name="answer")), "$.x"),
        (reply(call('{"x": ', name="answer")), "smaller"),
        (reply(call('{"x": 1}', name="answer"), finish="length"), "smaller"),
    ],
)
def test_a_wrong_answer_is_told_by_path_and_corrected(get: Any, bad: Any, told: str) -> None:
    made = session([bad, '{"x": 7}'])
    assert get(made, Point) == Point(7)
    asked = made.runner.requests[1].messages
    assert told in " ".join(message.content for message in asked[-2:])
    assert broken(made.store.context("s")) == []


@both
def test_no_answer_that_fits(get: Any) -> None:
    made = session(['{"x": "one"}'] * 9)
    with pytest.raises(ExtractionError, match=r"Point.*3 answers.*\$\.x") as caught:
        get(made, Point)
    assert caught.value.result.rounds == 3
    with pytest.raises(ExtractionError, match="1 answers"):
        get(made, Point, retries=0)


@both
@pytest.mark.parametrize("error", [RunnerError("gone"), StreamInterrupted("cut")])
def test_errors_pass(get: Any, error: Exception) -> None:
    made = session([error, '{"x": 1}'])
    with pytest.raises(type(error)) as caught:
        get(made, Point)
    assert caught.value.result.stop_reason == "error"  # type: ignore[attr-defined]
    assert get(made, Point) == Point(1)


@both
def test_stopping_an_extraction(get: Any) -> None:
    made = session(['{"x": "one"}'] * 3, on_token=lambda text: made.cancel())
    with pytest.raises(ExtractionError, match="stopped") as caught:
        get(made, Point)
    assert caught.value.result.cancelled


def test_what_msgspec_cannot_describe() -> None:
    with pytest.raises(TypeError):
        session([]).extract(object)


def sample(grammar: str, rng: random.Random) -> str:
    """A random text of a grammar, by the plain reading of GBNF that its writer keeps to."""
    rules = dict(line.split(" ::= ", 1) for line in grammar.splitlines())

    def expand(name: str, depth: int) -> str:
        return parse(rules[name].strip(), depth)

    def parse(text: str, depth: int) -> str:
        options = split(text, "|")
        # Deep down the shortest way out is taken, or a type that holds itself never ends.
        option = min(options, key=len) if depth > 12 else rng.choice(options)
        return "".join(item(part, depth) for part in split(option, " "))

    def split(text: str, at: str) -> list[str]:
        parts, level, quote, bracket, current = [], 0, False, False, ""
        position = 0
        while position < len(text):
            char = text[position]
            if char == "\\":
                current += text[position : position + 2]
                position += 2
                continue
            if not bracket and char == '"':
                quote = not quote
            elif not quote and char == "[":
                bracket = True
            elif not quote and char == "]":
                bracket = False
            elif not quote and not bracket and char in "()":
                level += 1 if char == "(" else -1
            if char == at and not level and not quote and not bracket:
                parts.append(current)
                current = ""
            else:
                current += char
            position += 1
        return [part.strip() for part in [*parts, current] if part.strip()]

    def item(part: str, depth: int) -> str:
        times = 1
        if part[-1] in "*+?" and len(part) > 1:
            low = 1 if part[-1] == "+" else 0
            times = low if depth > 8 else rng.choice([low, 1] if part[-1] == "?" else [low, 1, 2])
            part = part[:-1]
        return "".join(one(part, depth) for _ in range(times))

    def one(part: str, depth: int) -> str:
        if part.startswith("("):
            return parse(part[1:-1], depth + 1)
        if part.startswith('"'):
            return part[1:-1].replace('\\"', '"').replace("\\\\", "\\")
        if part.startswith("["):
            return rng.choice(
                {"[0-9]": "0123456789", "[1-9]": "123", "[eE]": "eE", "[-+]": "-+"}.get(part, "a")
            )
        return expand(part, depth + 1)

    fixed = {"ws": '" "', "char": '"q"', "hex": '"a"'}
    rules.update({name: text for name, text in fixed.items() if name in rules})
    return expand("root", 0)


class Tree(msgspec.Struct):
    name: str
    left: Tree | None = None
    many: list[Tree] = []


@pytest.mark.parametrize(
    "kind", [Book, Point, Named, list[int], Color, Circle | Square, dict[str, Point], Tree]
)
def test_what_the_grammar_allows_fits_the_type(kind: Any) -> None:
    grammar = schema_grammar(msgspec.json.schema(kind))
    rng = random.Random(5)
    texts = set()
    for _ in range(150):
        text = sample(grammar, rng)
        value = json.loads(text)
        texts.add(text)
        if kind is Book:
            value["shelf"]["since"] = "2020-02-03T04:05:06Z"
        msgspec.convert(value, kind, strict=False)
    assert len(texts) > 1
