"""Argument validators and the dispatcher that asks them first."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from agentkit_fast import (
    Entry,
    JsonSchemaValidator,
    MemoryStore,
    SchemaValidator,
    ScriptedRunner,
    Session,
    StreamChunk,
    ToolCall,
    ToolDef,
    ToolLoopError,
    ToolSet,
    tool,
    validating,
)

DATA = Path(__file__).parent / "data"
WRITE = ToolDef(
    name="write",
    parameters={
        "type": "object",
        "required": ["path", "n"],
        "properties": {
            "path": {"type": "string"},
            "n": {"type": "integer"},
            "ok": {"type": "boolean"},
            "many": {"type": ["array", "null"]},
            "open": {},
            "odd": {"type": "tuple"},
        },
    },
)


def rows(name: str) -> list[dict[str, Any]]:
    path = DATA / name
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize("row", rows("golden/validate_args.jsonl"), ids=lambda row: row["in"])
def test_golden(row: dict[str, Any]) -> None:
    assert (SchemaValidator([WRITE]).validate("write", row["in"]) == "") is row["out"]


SHALLOW = [
    ("good", '{"path":"a","n":1}', ""),
    ("missing", '{"path":"a"}', "n: required, but missing"),
    ("null", '{"path":"a","n":null}', "n: required, but null"),
    ("both", "{}", "path: required, but missing"),
    ("kind", '{"path":1,"n":1}', "path: must be a string, not a number"),
    ("bool-is-no-number", '{"path":"a","n":true}', "n: must be a number, not a boolean"),
    ("one-of-kinds", '{"path":"a","n":1,"many":{}}', "many: must be an array, not an object"),
    ("null-of-kinds", '{"path":"a","n":1,"many":null}', ""),
    ("untyped", '{"path":"a","n":1,"open":[1]}', ""),
    ("unknown-type", '{"path":"a","n":1,"odd":[1]}', ""),
    ("unknown-key", '{"path":"a","n":1,"zzz":[1]}', ""),
    ("cut", '{"path":"a', "not well-formed JSON"),
    ("list", "[]", "must be one JSON object, not an array"),
    ("blank", "", "path: required, but missing"),
    ("deep", '{"path":' + "[" * 100_000, "arguments"),
    ("surrogate", '{"path":"\ud83d","n":1}', ""),
]


@pytest.mark.parametrize(("text", "words"), [row[1:] for row in SHALLOW], ids=[row[0] for row in SHALLOW])
def test_shallow_rules(text: str, words: str) -> None:
    answer = SchemaValidator([WRITE]).validate("write", text)
    assert (words in answer) if words else (answer == "")


def test_unknown_tools_pass_and_odd_schemas_constrain_nothing() -> None:
    assert SchemaValidator([WRITE]).validate("other", "[]") == ""
    for parameters in ({}, {"required": "path"}, {"properties": []}, {"properties": {"a": True}}):
        validator = SchemaValidator(
            [{"type": "function", "function": {"name": "t", "parameters": parameters}}]
        )
        assert validator.validate("t", '{"a": 1}') == ""


def test_many_faults_are_counted_not_all_listed() -> None:
    wide = ToolDef(name="w", parameters={"required": [f"k{n}" for n in range(500)]})
    answer = SchemaValidator([wide]).validate("w", "{}")
    assert "and 490 more" in answer
    assert len(answer) < 1000


def case(case_id: str) -> dict[str, Any]:
    found = [row for row in rows("cases/peer_cases.jsonl") if row["id"] == case_id]
    return found[0]["input"]


def test_the_whole_schema_is_checked_by_path() -> None:
    given = case("args-04")
    validator = JsonSchemaValidator([ToolDef(name="t", parameters=given["schema"])])
    ran = []
    dispatch = validating(lambda call: ran.append(call) or "ran", validator)
    for text, path in given["args"]:
        answer = dispatch(ToolCall(id="c", name="t", arguments=text))
        if path is None:
            assert answer == "ran"
        else:
            assert path in answer
    assert len(ran) == 1


def test_bad_json_and_unknown_tools() -> None:
    validator = JsonSchemaValidator(
        [WRITE.__class__(name="write", parameters={"type": "object", "required": ["a"]})]
    )
    assert "not well-formed" in validator.validate("write", "{")
    assert "one JSON object" in validator.validate("write", "3")
    assert validator.validate("other", "{") == ""
    assert '"a" is a required property' in validator.validate("write", "")


def test_references_inside_work_and_outside_are_never_fetched() -> None:
    inside = {"properties": {"t": {"$ref": "#/$defs/T"}}, "$defs": {"T": {"type": "integer"}}}
    validator = JsonSchemaValidator([ToolDef(name="t", parameters=inside)])
    assert "t:" in validator.validate("t", '{"t":"x"}')
    with pytest.raises(ValueError, match="none is fetched"):
        JsonSchemaValidator([ToolDef(name="t", parameters={"$ref": "http://127.0.0.1:9/x.json"})])
    with pytest.raises(ValueError, match="'t'"):
        JsonSchemaValidator([ToolDef(name="t", parameters={"type": "strin"})])


def test_a_huge_value_does_not_flood_the_answer() -> None:
    validator = JsonSchemaValidator([ToolDef(name="t", parameters={"properties": {"a": {"maxLength": 3}}})])
    assert len(validator.validate("t", json.dumps({"a": "x" * 100_000}))) < 1000


@tool
def double(n: int) -> int:
    return 2 * n


@tool
async def triple(n: int) -> int:
    return 3 * n


def call(name: str, arguments: str) -> ToolCall:
    return ToolCall(id="c", name=name, arguments=arguments)


def test_around_a_tool_set() -> None:
    tools = ToolSet([double, triple])
    guarded = validating(tools, SchemaValidator(tools))
    assert guarded(call("double", '{"n":2}')) == "4"
    assert guarded.dispatch(call("triple", '{"n":2}')) == "6"
    assert guarded.is_async("triple")
    assert "n: required" in guarded(call("double", "{}"))
    assert "n: required" in guarded(call("triple", "{}"))

    async def main() -> list[str]:
        return [await guarded.adispatch(call("triple", arguments)) for arguments in ('{"n":2}', "{}")]

    good, bad = asyncio.run(main())
    assert good == "6"
    assert "n: required" in bad


def test_around_an_async_function() -> None:
    async def dispatch(found: ToolCall) -> str:
        return found.name

    guarded = validating(dispatch, SchemaValidator([double]))

    async def main() -> list[str]:
        return [await guarded(call("double", arguments)) for arguments in ('{"n":2}', "{}")]

    good, bad = asyncio.run(main())
    assert good == "double"
    assert "n: required" in bad


def test_without_a_validator_it_is_the_dispatcher_itself() -> None:
    tools = ToolSet([double])
    assert validating(tools, None) is tools


def test_the_fix_loop_ends_the_turn_with_all_stored() -> None:
    def bad(number: int) -> list[StreamChunk]:
        wrong = ToolCall(id=f"c{number}", name="double", arguments=f'{{"m": {number}}}')
        return [StreamChunk(tool_call=wrong), StreamChunk(done=True, finish_reason="tool_calls")]

    store = MemoryStore()
    tools = ToolSet([double])
    dispatch = validating(tools, SchemaValidator(tools), max_failures=3)
    runner = ScriptedRunner([bad(number) for number in range(9)])
    session = Session("s", store, runner, tools=tools, dispatch=dispatch)
    session.inject(Entry(kind="user", content="go"))
    with pytest.raises(ToolLoopError, match="3 times in a row") as raised:
        session.turn()
    assert raised.value.result is not None
    assert store.open_calls("s") == []
    results = [entry.content for entry in store.context("s") if entry.kind == "tool_result"]
    assert len(results) == 3
    assert "n: required" in results[0]


def test_the_fix_loop_ends() -> None:
    guarded = validating(ToolSet([double]), SchemaValidator([double]), max_failures=3)
    for _ in range(2):
        assert "n: required" in guarded(call("double", "{}"))
    assert guarded(call("double", '{"n":1}')) == "2"
    for _ in range(2):
        guarded(call("double", "{}"))
    with pytest.raises(ToolLoopError, match="3 times in a row"):
        guarded(call("double", "{}"))
    endless = validating(ToolSet([double]), SchemaValidator([double]), max_failures=0)
    assert all("n: required" in endless(call("double", "{}")) for _ in range(30))


SCHEMAS = [
    ("required-null", {"type": "object", "required": None, "properties": None}),
    ("required-text", {"required": "path"}),
    ("required-odd", {"required": [1, None, {}, []]}),
    ("properties-list", {"properties": [1]}),
    ("property-true", {"properties": {"a": True}}),
    ("type-number", {"properties": {"a": {"type": 5}}}),
]


@pytest.mark.parametrize("schema", [row[1] for row in SCHEMAS], ids=[row[0] for row in SCHEMAS])
def test_odd_schemas_are_not_held_against_the_model(schema: dict[str, Any]) -> None:
    assert SchemaValidator([ToolDef(name="t", parameters=schema)]).validate("t", '{"a": 1}') == ""
