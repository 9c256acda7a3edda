"""`@tool` and `ToolSet`: schemas, argument conversion, results, dispatch."""

from __future__ import annotations

import asyncio
import contextvars
import dataclasses
import enum
import functools
import json
import pathlib
import threading
import time
from typing import Annotated, Any, Literal, NotRequired, TypedDict

import msgspec
import pytest

from agentkit_fast import SessionClosed, Tool, ToolCall, ToolDef, ToolSet, tool
from agentkit_fast.protocols import Dispatcher


def call(name: str, arguments: Any = "{}", call_id: str = "c1") -> ToolCall:
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return ToolCall(id=call_id, name=name, arguments=text)


class Unit(enum.Enum):
    celsius = "c"
    kelvin = "k"


@dataclasses.dataclass
class Place:
    city: Annotated[str, "Its usual name."]
    country: str = "NL"


class Tree(msgspec.Struct):
    value: int
    children: list[Tree] = []


class Filter(TypedDict):
    field: str
    limit: NotRequired[int]


@dataclasses.dataclass
class Box:
    width: int


@tool
def add(a: int, b: int = 2) -> int:
    """Add two numbers.

    Args:
        a: The first.
        b: The second,
            which goes on here.

    Returns:
        The sum.
    """
    return a + b


def test_a_function_becomes_a_tool_and_stays_a_function() -> None:
    assert (add.name, add.description) == ("add", "Add two numbers.")
    assert add.parameters == {
        "type": "object",
        "properties": {
            "a": {"type": "integer", "description": "The first."},
            "b": {"type": "integer", "description": "The second, which goes on here.", "default": 2},
        },
        "required": ["a"],
        "additionalProperties": False,
    }
    assert isinstance(add, ToolDef)
    assert add.to_wire()["function"]["name"] == "add"
    assert add(1, 5) == 6
    assert add.run('{"a": 1}') == "3"


SCHEMAS: list[tuple[str, Any, Any]] = [
    ("str", str, {"type": "string"}),
    ("any", Any, {}),
    ("optional", int | None, {"anyOf": [{"type": "integer"}, {"type": "null"}]}),
    ("literal", Literal["in", "out"], {"type": "string", "enum": ["in", "out"]}),
    ("literal-mixed", Literal["in", 1], {"enum": [1, "in"]}),
    ("enum", Unit, {"title": "Unit", "type": "string", "enum": ["c", "k"]}),
    (
        "list-of-enum",
        list[Unit],
        {"type": "array", "items": {"title": "Unit", "type": "string", "enum": ["c", "k"]}},
    ),
    ("annotated", Annotated[int, "How many."], {"type": "integer", "description": "How many."}),
    ("meta", Annotated[int, msgspec.Meta(ge=1, le=9)], {"type": "integer", "minimum": 1, "maximum": 9}),
    (
        "both",
        Annotated[int, msgspec.Meta(ge=1), "How many."],
        {"type": "integer", "minimum": 1, "description": "How many."},
    ),
    ("dict", dict[str, float], {"type": "object", "additionalProperties": {"type": "number"}}),
    (
        "dataclass",
        Place,
        {
            "title": "Place",
            "type": "object",
            "properties": {
                "city": {"type": "string", "description": "Its usual name."},
                "country": {"type": "string", "default": "NL"},
            },
            "required": ["city"],
        },
    ),
    (
        "typeddict",
        Filter,
        {
            "title": "Filter",
            "type": "object",
            "properties": {"field": {"type": "string"}, "limit": {"type": "integer"}},
            "required": ["field"],
        },
    ),
]


@pytest.mark.parametrize(("hint", "schema"), [row[1:] for row in SCHEMAS], ids=[row[0] for row in SCHEMAS])
def test_schema_of_a_type(hint: Any, schema: Any) -> None:
    def probe(x) -> None: ...

    probe.__annotations__["x"] = hint
    assert tool(probe).parameters["properties"]["x"] == schema


def test_a_type_that_holds_itself_stays_a_reference() -> None:
    @tool
    def total(tree: Tree) -> int:
        return tree.value + sum(child.value for child in tree.children)

    assert total.parameters["properties"]["tree"] == {"$ref": "#/$defs/Tree"}
    assert total.parameters["$defs"]["Tree"]["properties"]["children"]["items"] == {"$ref": "#/$defs/Tree"}
    assert total.run('{"tree": {"value": 1, "children": [{"value": 2}, {"value": 3}]}}') == "6"
    bad = total.run('{"tree": {"value": 1, "children": [{"value": "x"}]}}')
    assert "$.tree.children[0].value" in bad


def test_types_of_an_enclosing_function_are_found() -> None:
    @dataclasses.dataclass
    class Local:
        n: int

    @tool
    def show(local: Local) -> int:
        return local.n

    assert show.run('{"local": {"n": 4}}') == "4"


def test_a_union_of_two_dataclasses_tries_each() -> None:
    @tool
    def which(thing: Place | Box) -> str:
        return type(thing).__name__

    assert which.run('{"thing": {"width": 3}}') == "Box"
    assert which.run('{"thing": {"city": "Delft"}}') == "Place"
    assert len(which.parameters["properties"]["thing"]["anyOf"]) == 2
    assert "$.thing: fits none of the allowed types" in which.run('{"thing": 3}')


class Cat(msgspec.Struct, tag=True):
    lives: int


class Dog(msgspec.Struct, tag=True):
    name: str


def test_tagged_unions_are_told_apart() -> None:
    @tool
    def feed(animal: Cat | Dog) -> str:
        return type(animal).__name__

    assert feed.run('{"animal": {"type": "Dog", "name": "Rex"}}') == "Dog"
    assert "$defs" not in json.dumps(feed.parameters)
    assert [part["title"] for part in feed.parameters["properties"]["animal"]["anyOf"]] == ["Cat", "Dog"]


DOCSTRINGS = {
    "google": "Do it.\n\nAt once.\n\nArgs:\n    x (int): First.\n    y: Second\n        goes on.\n\n"
    "Returns:\n    None.",
    "numpy": "Do it.\n\nAt once.\n\nParameters\n----------\nx : int\n    First.\ny : str, optional\n"
    "    Second\n    goes on.\n\nReturns\n-------\nNone",
    "sphinx": "Do it.\n\nAt once.\n\n:param int x: First.\n:param y: Second\n    goes on.\n:returns: None",
}


@pytest.mark.parametrize("style", DOCSTRINGS)
def test_docstring_styles(style: str) -> None:
    def do(x: int, y: str = "") -> None: ...

    do.__doc__ = DOCSTRINGS[style]
    made = tool(do)
    assert made.description == "Do it.\n\nAt once."
    described = {name: part["description"] for name, part in made.parameters["properties"].items()}
    assert described == {"x": "First.", "y": "Second goes on."}


def test_methods_partials_and_objects() -> None:
    class Shop:
        def __init__(self, name: str) -> None:
            self.name = name

        @tool
        def order(self, sku: str) -> str:
            """Order one."""
            return f"{self.name}:{sku}"

        def plain(self, sku: str) -> str:
            return f"{self.name}/{sku}"

        def __call__(self, n: int) -> int:
            return n + 1

    shop = Shop("a")
    assert list(Shop.order.parameters["properties"]) == ["sku"]
    assert shop.order.run('{"sku": "1"}') == "a:1"
    assert shop.order("2") == "a:2"
    assert tool(shop.plain).run('{"sku": "1"}') == "a/1"
    assert (tool(shop).name, tool(shop).run('{"n": 1}')) == ("Shop", "2")
    bound = tool(functools.partial(add.function, b=40), name="add40")
    assert list(bound.parameters["properties"]) == ["a"]
    assert bound.run('{"a": 2}') == "42"
    assert tool(functools.partial(add.function, 7), name="add7").run('{"b": 3}') == "10"


def test_positional_only_and_open_keywords() -> None:
    @tool
    def mixed(a: int, /, b: int = 1, *, c: int = 2, **rest: int) -> Any:
        return [a, b, c, rest]

    assert json.loads(mixed.run('{"a": 1, "c": 5, "z": 9}')) == [1, 1, 5, {"z": 9}]
    assert mixed.parameters["additionalProperties"] is True
    assert "$.z: Expected int, got str" in mixed.run('{"a": 1, "z": "x"}')


def test_a_parameter_may_take_the_call_itself() -> None:
    @tool
    def who(call: ToolCall, n: int) -> str:
        return f"{call.id}:{n}"

    assert list(who.parameters["properties"]) == ["n"]
    assert ToolSet([who])(call("who", {"n": 1}, "c9")) == "c9:1"


BAD_ARGUMENTS = [
    ("wrong-kind", '{"a": "x"}', ["$.a: Expected int, got str"]),
    ("missing", "{}", ["$.a: required, but missing"]),
    ("blank", "  ", ["$.a: required, but missing"]),
    ("null", '{"a": null}', ["$.a: Expected int, got null"]),
    ("unknown", '{"a": 1, "c": 2}', ["$.c: there is no such argument (there are: a, b)"]),
    ("several", '{"a": "x", "b": "y"}', ["$.a:", "$.b:"]),
    ("fraction", '{"a": 1.5}', ["$.a: Expected int, got float"]),
    ("list", "[1]", ["must be one JSON object"]),
    ("cut", '{"a": 1', ["not well-formed JSON"]),
    ("more-after", '{"a": 1}}', ["not well-formed JSON"]),
    ("deep", '{"a": ' + "[" * 100_000, ["$"]),
    ("surrogate", '{"a": "\ud83d"}', ["$.a: Expected int, got str"]),
]


@pytest.mark.parametrize(
    ("arguments", "words"), [row[1:] for row in BAD_ARGUMENTS], ids=[row[0] for row in BAD_ARGUMENTS]
)
def test_bad_arguments_are_answered_by_path_and_nothing_runs(arguments: str, words: list[str]) -> None:
    ran = []

    @tool
    def probe(a: int, b: int = 2) -> None:
        ran.append(a)

    answer = ToolSet([probe])(call("probe", arguments))
    assert answer.startswith("ERROR: probe was not run")
    for word in words:
        assert word in answer
    assert ran == []


def test_a_whole_float_is_an_integer() -> None:
    assert add.run('{"a": 2.0, "b": 1e2}') == "102"

    @tool
    def scale(by: float) -> str:
        return repr(by)

    assert scale.run('{"by": 2.5}') == "2.5"


@dataclasses.dataclass
class Point:
    x: int


RESULTS = [
    ("text", "plain", "plain"),
    ("empty", "", ""),
    ("none", None, "null"),
    ("bool", True, "true"),
    ("list", [1, "é"], '[1,"é"]'),
    ("dataclass", Point(3), '{"x":3}'),
    (
        "struct",
        ToolDef(name="n"),
        '{"name":"n","description":"","parameters":{"type":"object","properties":{}}}',
    ),
    ("enum", Unit.kelvin, '"k"'),
    ("tuple-and-set", ((1,), {2}), "[[1],[2]]"),
    ("int-keys", {1: 2}, '{"1":2}'),
    ("path", pathlib.PurePosixPath("/a/b"), '"/a/b"'),
    ("bytes", b"caf\xc3\xa9 \xff", "café \ufffd"),
    ("generator", (n for n in range(3)), "[0,1,2]"),
    ("lone-surrogate", "caf\udce9 au lait", "caf\ufffd au lait"),
    ("split-pair", "half \ud83d emoji", "half \ufffd emoji"),
    ("surrogate-inside", {"a\ud83d": ["\ud83d\ude00"]}, '{"a\ufffd":["😀"]}'),
    ("nul", "nul \u0000 byte", "nul \u0000 byte"),
]


@pytest.mark.parametrize(("value", "text"), [row[1:] for row in RESULTS], ids=[row[0] for row in RESULTS])
def test_results(value: Any, text: str) -> None:
    assert tool(lambda: value, name="give").run() == text


def test_a_result_without_json_form_is_an_error_that_says_so() -> None:
    with pytest.raises(NotImplementedError, match="object has no JSON form"):
        tool(lambda: [object()], name="give").run()


def lambda_free() -> int:
    return 1


async def fetch(n: int) -> int:
    """Fetch."""
    await asyncio.sleep(0)
    return n * 2


def test_a_set_is_the_list_and_the_dispatcher() -> None:
    tools = ToolSet([add, fetch])
    assert [item.name for item in tools] == ["add", "fetch"]
    assert (len(tools), tools["add"], tools[0], "add" in tools, "x" in tools) == (2, add, add, True, False)
    assert (tools.is_async("add"), tools.is_async("fetch"), tools.is_async("x")) == (False, True, False)
    dispatch: Dispatcher = tools
    assert dispatch(call("add", {"a": 1})) == "3"
    assert tools(call("fetch", {"n": 4})) == "8"
    assert "no tool 'sub'. The tools are: add, fetch." in tools(call("sub"))
    assert [item.name for item in tools + ToolSet([lambda_free])] == ["add", "fetch", "lambda_free"]


def test_async_callers() -> None:
    tools = ToolSet([add, fetch])

    async def main() -> list[Any]:
        waiting = tools(call("fetch", {"n": 4}))
        assert not isinstance(waiting, str)
        return [await waiting, tools(call("add", {"a": 1})), await tools.adispatch(call("add", {"a": 1}))]

    assert asyncio.run(main()) == ["8", "3", "3"]


def test_sync_and_async_tools_call_each_other_to_any_depth() -> None:
    tools = ToolSet([])

    @tool
    async def outer(n: int) -> str:
        return tools.dispatch(call("inner", {"n": n})) if n else "end"

    @tool
    def inner(n: int) -> str:
        return tools.dispatch(call("outer", {"n": n - 1}))

    tools = ToolSet([outer, inner])
    assert tools(call("outer", {"n": 3})) == "end"


def test_what_a_tool_raises_is_raised() -> None:
    @tool
    def close() -> str:
        raise SessionClosed("bye")

    @tool
    async def leave() -> str:
        raise SystemExit(3)

    tools = ToolSet([close, leave])
    with pytest.raises(SessionClosed):
        tools(call("close"))
    with pytest.raises(SystemExit):
        tools(call("leave"))
    assert ToolSet([fetch])(call("fetch", {"n": 1})) == "2"  # the shared loop lives on


def test_timeouts_win_over_tools_that_do_not_end() -> None:
    release = threading.Event()

    @tool(timeout_s=0.05)
    def stuck() -> None:
        release.wait(10)

    @tool(timeout_s=0.05)
    async def deaf() -> None:
        try:
            await asyncio.sleep(10)
        except asyncio.CancelledError:
            await asyncio.sleep(10)

    @tool(timeout_s=5)
    def own() -> None:
        raise TimeoutError("the tool's own")

    tools = ToolSet([stuck, deaf, own])
    begun = time.monotonic()
    for name in ("stuck", "deaf"):
        assert "gave no result within 0.05 s" in tools(call(name))
        assert "gave no result within 0.05 s" in asyncio.run(tools.adispatch(call(name)))
    assert time.monotonic() - begun < 5
    with pytest.raises(TimeoutError, match="own"):
        tools(call("own"))
    release.set()


def test_context_variables_reach_every_tool() -> None:
    user: contextvars.ContextVar[str] = contextvars.ContextVar("user", default="nobody")

    async def awaited() -> str:
        return user.get()

    @tool(timeout_s=5)
    def timed() -> str:
        return user.get()

    tools = ToolSet([timed, awaited])
    token = user.set("ada")
    assert [tools(call(name)) for name in ("timed", "awaited")] == ["ada", "ada"]
    assert asyncio.run(tools.adispatch(call("timed"))) == "ada"
    user.reset(token)


def test_lift_and_clear_requests_are_understood() -> None:
    tools = ToolSet(
        [
            tool(lambda: {"pending": True, "correlation_id": "job 7", "ttl_s": 60}, name="start"),
            tool(lambda: '{"clear":true,"group_by":"file","key":"a.rs"}', name="fix"),
            tool(lambda: {"pending": False, "correlation_id": "x"}, name="plain"),
        ]
    )
    started = tools(call("start", call_id="c7"))
    assert started.lift is not None
    assert (started.lift.correlation_id, started.lift.ttl_s) == ("job 7", 60)
    for word in ("c7", "job 7", "60 s"):
        assert word in started
    fixed = tools(call("fix"))
    assert fixed.clear is not None
    assert (fixed.clear.group_by, fixed.clear.key) == ("file", "a.rs")
    plain = tools(call("plain"))
    assert (plain.lift, plain.clear) == (None, None)


def test_marks() -> None:
    @tool(approve=True, idempotent=True, timeout_s=3, name="rm", description="Remove.")
    def remove(path: str) -> None: ...

    assert (remove.approve, remove.idempotent, remove.timeout_s) == (True, True, 3)
    assert (remove.name, remove.description) == ("rm", "Remove.")
    assert (add.approve, add.idempotent, add.timeout_s) == (False, False, None)
    assert remove.definition.to_wire() == remove.to_wire()


REFUSED: list[tuple[str, Any, type[Exception], str]] = [
    ("star-args", lambda: tool(lambda *a: 1, name="x"), TypeError, "name each parameter"),
    ("no-name", lambda: tool(lambda: 1), ValueError, "name=..."),
    ("not-callable", lambda: tool(3), TypeError, "from a function"),  # type: ignore[call-overload]
    ("two-of-a-name", lambda: ToolSet([add, add]), ValueError, "two tools are named 'add'"),
    ("unreadable", lambda: tool(contextvars.ContextVar("x").get), TypeError, "wrap it"),
    ("no-function", lambda: ToolSet([ToolDef(name="x")]), TypeError, "without a function"),
    ("timeout-zero", lambda: tool(name="x", timeout_s=0)(len), ValueError, "more than 0"),
]


@pytest.mark.parametrize(
    ("make", "kind", "words"), [row[1:] for row in REFUSED], ids=[row[0] for row in REFUSED]
)
def test_refused_when_made(make: Any, kind: type[Exception], words: str) -> None:
    with pytest.raises(kind, match=words.replace("(", r"\(").replace(".", r"\.")):
        make()


def test_a_type_no_json_can_fill_names_its_parameter() -> None:
    def bad(lock: threading.Event) -> None: ...

    with pytest.raises(TypeError, match="parameter 'lock' has a type that JSON arguments cannot fill"):
        tool(bad)


def test_a_pydantic_style_model_is_known_by_its_methods() -> None:
    class Model:
        def __init__(self, n: int) -> None:
            self.n = n

        @classmethod
        def model_json_schema(cls) -> dict[str, Any]:
            return {
                "type": "object",
                "properties": {"n": {"$ref": "#/$defs/N"}},
                "$defs": {"N": {"type": "integer"}},
            }

        @classmethod
        def model_validate(cls, value: Any) -> Model:
            return cls(value["n"])

        def model_dump(self, mode: str) -> dict[str, Any]:
            return {"n": self.n, "mode": mode}

    @tool
    def twice(model: Model) -> Model:
        return Model(model.n * 2)

    assert twice.parameters["properties"]["model"]["properties"]["n"] == {"type": "integer"}
    assert twice.run('{"model": {"n": 4}}') == '{"n":8,"mode":"json"}'


def test_plain_functions_are_made_into_tools() -> None:
    assert isinstance(ToolSet([fetch])[0], Tool)
