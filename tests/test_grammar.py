"""Grammar and parser are one language: GBNF by a real llama.cpp, Lark by llguidance, both against the parser."""

from __future__ import annotations

import itertools
import json
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from agentkit_fast.heredoc import PROSE_GRAMMAR
from agentkit_fast.messages import ToolDef
from agentkit_fast.text import (
    heredoc_grammar,
    heredoc_lark,
    heredoc_prompt,
    parse_tool_calls,
    render_tool_call,
)
from gbnf import LlamaGrammar, Sampler, choose_bytes


def tool(name: str, properties: dict[str, Any] | None = None, **schema: Any) -> ToolDef:
    return ToolDef(name=name, parameters={"type": "object", "properties": properties or {}, **schema})


WRITE = tool(
    "write_file",
    {"path": {"type": "string"}, "overwrite": {"type": "boolean"}, "content": {"type": "string"}},
    required=["path", "content"],
)
GREP = tool("grep", {"pattern": {"type": "string"}})
NOW = tool("now")
KINDS = tool(
    "kinds",
    {
        "i": {"type": "integer"},
        "r": {"type": "number"},
        "b": {"type": "boolean"},
        "z": {"type": "null"},
        "a": {"type": "array"},
        "ai": {"type": "array", "items": {"type": "integer"}},
        "aas": {"type": "array", "items": {"type": "array", "items": {"type": "string"}}},
        "o": {"type": "object", "properties": {"x": {"type": "integer"}}},
        "s": {"type": "string", "pattern": "^a+$"},
        "sn": {"type": ["string", "null"]},
        "si": {"anyOf": [{"type": "string"}, {"type": "integer"}]},
        "on": {"oneOf": [{"type": "object"}, {"type": "null"}], "default": None},
        "e": {"enum": ["in", "out", 'q"\\\t', "two\nlines", "\u2028\n\x85", 3, 1.0, -0.5, True, None]},
        "ea": {"type": "array", "items": {"enum": ["x", "y z", "l\nm"]}},
        "c": {"const": "fixed"},
        "any": {},
        "yes": True,
        "ref": {"$ref": "#/$defs/Mode"},
        "tree": {"$ref": "#/$defs/Tree"},
        "lost": {"$ref": "#/$defs/Nowhere"},
        "all": {"allOf": [{"description": "x"}, {"type": "integer"}]},
        "opt": {"type": "integer", "nullable": True},
        "none": {"enum": []},
        "nothing": {"type": []},
    },
    **{
        "$defs": {
            "Mode": {"enum": ["r", "w"]},
            "Tree": {"anyOf": [{"type": "integer"}, {"type": "array", "items": {"$ref": "#/$defs/Tree"}}]},
        }
    },
)
NAMES = [
    tool("with space", {"two words": {"type": "string"}, 'q"uote': {"type": "integer"}}),
    tool('quo"te\\', {"back\\slash": {"type": "string"}, "new\nline": {"type": "boolean"}}),
    tool("new\nline", {"": {"type": "string"}, "{": {}, "~~~py": {}, "@@end": {}}),
    tool("Größe-日本", {"größe": {"type": "string"}, "日": {"type": "number"}, "a-b": {}, "1st": {}}),
    tool("nul\0", {"nul\0\x1f\x7f": {"type": "null"}, "$dollar": {}, "True": {}, "null": {}}),
    tool("a_b", {"a_b": {}}),
    tool("a_b_c", {"a": {}, "aa": {}, "aaa": {}}),
    tool("]^-[", {"]^-[": {"type": "array"}}),
    tool("line\u2028\x85", {"\u2029\x85": {"type": "string"}}),
]
SETS: dict[str, list[ToolDef]] = {
    "one": [WRITE],
    "three": [WRITE, GREP, NOW],
    "no parameters": [NOW],
    "kinds": [KINDS],
    "names": NAMES,
    "no tools": [],
}
HUGE = [
    tool(
        f"tool_{number}",
        {
            f"parameter_{number}_{index}": {"type": ["string", "integer", "boolean", "object"][index % 4]}
            for index in range(50)
        },
    )
    for number in range(200)
]
CASES = [
    pytest.param(tools, calls, prose, id=f"{name}-{calls}-{'prose' if prose else 'calls'}")
    for name, tools in SETS.items()
    for calls, prose in [(4, True), (1, True), (2, False), (0, True)]
    if prose or tools
]


@pytest.fixture(scope="module")
def llama(smollm2_path: Path) -> LlamaGrammar:
    pytest.importorskip("llama_cpp")
    return LlamaGrammar(smollm2_path)


class Lark:
    """Asks llguidance, byte by byte."""

    def __init__(self, lark: str) -> None:
        llguidance = pytest.importorskip("llguidance")
        self.matcher = llguidance.LLMatcher
        self.tokenizer = llguidance.LLTokenizer("byte")
        self.grammar = self.matcher.grammar_from_lark(lark)
        assert self.matcher.validate_grammar(self.grammar, self.tokenizer) == ""
        self.first = self.matcher(self.tokenizer, self.grammar)

    def accepts(self, text: str) -> bool:
        matcher = self.first.deep_copy()
        ids = list(text.encode())
        return bool(matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting())

    def walk(self, rng: random.Random, budget: int) -> str:
        """A text that llguidance's matcher itself wrote, byte after byte drawn from those it allows."""
        matcher = self.first.deep_copy()
        raw = b""
        for step in range(budget + 4_000):
            bias = matcher.compute_logit_bias()
            allowed = {bytes([byte]) for byte in range(256) if bias[byte]}
            chosen = choose_bytes(allowed, matcher.is_accepting(), raw, rng, step >= budget)
            if chosen is None:
                return raw.decode()
            assert matcher.consume_token(chosen[0])
            raw += chosen
        raise AssertionError(f"no end: {raw[-200:]!r}")


def mutated(text: str, rng: random.Random) -> str:
    """`text` with one small fault put in: where grammars and parsers begin to disagree."""
    at = rng.randrange(len(text) + 1)
    parts = ["~~~py", "~~~", "\n", "@@call ", "@@call", "@@end\n", " ", ",", '"', "\\", "\r", "a", "0", "}"]
    match rng.randrange(4):
        case 0:
            return text[:at] + text[at + rng.randrange(1, 4) :]
        case 1:
            return text[:at] + rng.choice(parts) + text[at:]
        case 2:
            other = rng.randrange(len(text) + 1)
            return text[:at] + text[min(at, other) : max(at, other)] + text[at:]
        case _:
            return text[:at]


@pytest.mark.parametrize(("tools", "max_calls", "prose"), CASES)
def test_what_the_grammar_writes_is_read(tools: list[ToolDef], max_calls: int, prose: bool) -> None:
    sampler = Sampler(heredoc_grammar(tools, max_calls=max_calls, allow_prose=prose))
    rng = random.Random(max_calls)
    names = {one.name: set(one.parameters["properties"]) for one in tools}
    seen = 0
    for _ in range(200):
        text = sampler.draw(rng)
        reply = parse_tool_calls(text)
        assert reply.problem is None, text
        assert len(reply.calls) == text.count("@@call ") or "~~~" in text or '"' in text or not reply.calls
        assert len(reply.calls) <= max_calls
        assert prose or (reply.calls and not reply.prose)
        for call in reply.calls:
            pairs = json.loads(call.arguments, object_pairs_hook=lambda pairs: pairs)
            assert {key for key, _ in pairs} <= names[call.name]
            assert len(pairs) <= len(names[call.name])
            seen += 1
    assert seen or not (tools and max_calls)


@pytest.mark.model
@pytest.mark.parametrize(("tools", "max_calls", "prose"), CASES)
def test_both_engines_take_it(
    llama: LlamaGrammar, tools: list[ToolDef], max_calls: int, prose: bool
) -> None:
    gbnf = heredoc_grammar(tools, max_calls=max_calls, allow_prose=prose)
    assert llama.valid(gbnf)
    lark = Lark(heredoc_lark(tools, max_calls=max_calls, allow_prose=prose))
    sampler, rng = Sampler(gbnf), random.Random(7)
    for _ in range(40):
        text = sampler.draw(rng)
        assert llama.accepts(gbnf, text), text
        assert lark.accepts(text), text


def check_written(text: str, tools: list[ToolDef], max_calls: int, prose: bool) -> int:
    """Reads a text that an engine wrote; gives how many calls it holds."""
    reply = parse_tool_calls(text)
    assert reply.problems == (), text
    assert len(reply.calls) <= max_calls
    assert prose or reply.calls
    names = {one.name: set(one.parameters["properties"]) for one in tools}
    for call in reply.calls:
        pairs = json.loads(call.arguments, object_pairs_hook=lambda pairs: pairs)
        assert {key for key, _ in pairs} <= names[call.name], text
        assert len(pairs) <= len(names[call.name])
    return len(reply.calls)


# Both engines take long to draw: llama.cpp seconds for one text from 200 tools of 50 parameters.
WALKS = [
    ("kinds", 2),
    *(pytest.param(name, 100, marks=pytest.mark.slow) for name in ("three", "kinds", "names", "huge")),
]


@pytest.mark.model
@pytest.mark.parametrize(("name", "texts"), WALKS)
def test_what_llama_cpp_writes_is_read(llama: LlamaGrammar, name: str, texts: int) -> None:
    tools = SETS.get(name, HUGE)
    calls = 0
    for seed in range(texts):
        rng = random.Random(seed)
        prose = seed % 4 == 3
        gbnf = heredoc_grammar(tools, max_calls=3, allow_prose=prose)
        text = llama.walk(gbnf, rng, rng.randrange(10, 20 * min(texts, 6)))
        calls += check_written(text, tools, 3, prose)
    assert calls >= texts // 2


@pytest.mark.parametrize(
    ("name", "texts"),
    [
        *((name, 4) for name in ("three", "kinds", "names")),
        *(pytest.param(name, 400, marks=pytest.mark.slow) for name in ("three", "kinds", "names", "huge")),
    ],
)
def test_what_llguidance_writes_is_read(name: str, texts: int) -> None:
    tools = SETS.get(name, HUGE)
    larks = {prose: Lark(heredoc_lark(tools, max_calls=3, allow_prose=prose)) for prose in (True, False)}
    calls = 0
    for seed in range(texts):
        rng = random.Random(seed)
        prose = seed % 4 == 3
        text = larks[prose].walk(rng, rng.randrange(20, 500))
        calls += check_written(text, tools, 3, prose)
    assert calls >= texts // 2


@pytest.mark.model
@pytest.mark.parametrize("name", ["three", "kinds", "names"])
def test_faults_are_judged_alike(llama: LlamaGrammar, name: str) -> None:
    gbnf = heredoc_grammar(SETS[name])
    lark = Lark(heredoc_lark(SETS[name]))
    sampler, rng = Sampler(gbnf), random.Random(11)
    verdicts = {True: 0, False: 0}
    for _ in range(300):
        text = mutated(sampler.draw(rng), rng)
        verdict = llama.accepts(gbnf, text)
        assert lark.accepts(text) is verdict, text
        if verdict:
            assert parse_tool_calls(text).problem is None, text
        verdicts[verdict] += 1
    assert min(verdicts.values()) > 20


W = "@@call write_file\n"
TAKEN = [
    W + '{ path: "a.java", overwrite: true, content: ~~~java\npublic class A {}\n~~~java\n}\n@@end',
    W + '{path:"a"}\n@@end\n',
    W + "{}\n@@end",
    W + "{ }\n@@end",
    W + '{ content: ~~~py\n~~~py\n, path: "x" }\n@@end',
    W + "{ content: ~~~py\n~~~python\n~~~ py\n ~~~py\n~~~py3\n~~~py,,\n~~~py \tx\n~~~md\n~~~py\n}\n@@end",
    W + '{ path: "\\u00e9\\n\\/" , overwrite: false }\n@@end',
    "Prose, then a call.\n" + W + "{}\n@@end",
    "Prose only",
    "mail me at a@@call.com\n@ @@ @@cal @@call\n@",
    "@@cal",
    " @@call write_file\n{",
    "@@call now\n{}\n@@end\n@@call now\n{ \n\t}\n@@end\n\n@@call now\n{}\n@@end",
]
REFUSED = [
    "",
    "@@call rm\n{}\n@@end",
    "@@call write_filex\n{}\n@@end",
    "@@call  write_file\n{}\n@@end",
    W + '{ path: "a" }',
    W + '{ path: "a" }\n@@en',
    W + '{ paths: "a" }\n@@end',
    W + "{ path: a }\n@@end",
    W + "{ path: 1 }\n@@end",
    W + '{ overwrite: "true" }\n@@end',
    W + "{ overwrite: True }\n@@end",
    W + '{ path: "a", }\n@@end',
    W + '{ path: "a" content: "b" }\n@@end',
    W + '{ path: "a\nb" }\n@@end',
    W + '{ path: "a\tb" }\n@@end',
    W + '{ path: "\\q" }\n@@end',
    W + '{ path: "\\u12" }\n@@end',
    W + "{ content: ~~~py\nx\n~~~md\n}\n@@end",
    W + "{ content: ~~~py\nx\n~~~py\nmore\n~~~py\n}\n@@end",
    W + "{ content: ~~~py\nx\n~~~py \t\nmore\n~~~py\n}\n@@end",
    W + "{ content: ~~~py\nx\n~~~py,\r\nmore\n~~~py\n}\n@@end",
    W + "{ content: ~~~ruby\nx\n~~~ruby\n}\n@@end",
    W + "{ content: ~~~\nx\n~~~\n}\n@@end",
    W + "{ content: ```\nx\n``` }\n@@end",
    W + '{ path: "a", path: "a", path: "a", path: "a" }\n@@end',
    W + "{" + " " * 30 + "}\n@@end",
    W + "{}\n@@end\nprose",
    W + "{}\n@@end\n\n\n",
    "@@call now\n{}\n@@end\n" * 5,
    "prose\n@@call nothing",
    "@@call",
    "@@callback",
    "prose @@call now\n{}\n@@end\n@@call",
]


@pytest.mark.model
@pytest.mark.parametrize(
    ("text", "want"), [(text, True) for text in TAKEN] + [(text, False) for text in REFUSED], ids=repr
)
def test_table(llama: LlamaGrammar, text: str, want: bool) -> None:
    assert llama.accepts(heredoc_grammar([WRITE, NOW]), text) is want
    assert Lark(heredoc_lark([WRITE, NOW])).accepts(text) is want
    if want:
        assert parse_tool_calls(text).problem is None


VALUES = [
    ("i", ["0", "-7", "120", "9" * 60], ["007", "1.5", '"1"', "1e3", "-", "+1", "true"]),
    ("r", ["0", "-7.25", "1e-9", "1.5E+10"], [".5", "1.", "01", "NaN", "Infinity", '"1"', "1e"]),
    ("b", ["true", "false"], ["0", '"true"', "null"]),
    ("z", ["null"], ["0", "false"]),
    ("a", ["[]", '[1, "x", {}, [null]]'], ["{}", '"[]"', "[1,]", "[,1]"]),
    ("ai", ["[]", "[1, 2 ,3]"], ['["1"]', "[1.5]", "[1 2]"]),
    ("aas", ['[["a"], []]'], ['["a"]', "[[1]]", "[[~~~py\n~~~py\n]]"]),
    ("o", ["{}", '{x: 1, "y z": [{}]}'], ["[]", "1", "{x}", "{1: 2}"]),
    ("s", ['"a"', "~~~sql\nselect 1;\n~~~sql\n"], ["1", "null", "a"]),
    ("sn", ["null", '"a"', "~~~md\n~~~md\n"], ["1", "[]"]),
    ("si", ["5", '"5"'], ["5.5", "true", "null"]),
    ("on", ["null", "{}"], ["1", '""']),
    ("e", ['"in"', "3", "1", "1.0", "-0.5", "true", "null", '"two\\nlines"'], ['"up"', "in", "2", "false"]),
    ("ea", ["[]", '["x","y z"]', '["l\\nm"]'], ['["z"]', "[~~~txt\nl\nm\n~~~txt\n]"]),
    ("c", ['"fixed"'], ['"other"', "fixed"]),
    ("any", ["1", "null", '"a"', "[1]", "{}", "~~~py\nx\n~~~py\n"], ["x", "undefined"]),
    ("ref", ['"r"', '"w"'], ['"x"']),
    ("tree", ["1", "[1, [2, [3]]]"], ['"x"', "{}"]),
    ("all", ["1"], ['"1"']),
    ("opt", ["1", "null"], ['"1"']),
    ("none", ["1"], []),
    ("nothing", ["1"], []),
]


@pytest.mark.model
@pytest.mark.parametrize(("key", "good", "bad"), VALUES, ids=[row[0] for row in VALUES])
def test_values_are_held_to_the_schema(
    llama: LlamaGrammar, key: str, good: list[str], bad: list[str]
) -> None:
    gbnf, lark = heredoc_grammar([KINDS]), Lark(heredoc_lark([KINDS]))
    for value, want in [(value, True) for value in good] + [(value, False) for value in bad]:
        text = f"@@call kinds\n{{ {key}: {value} }}\n@@end"
        assert llama.accepts(gbnf, text) is want, value
        assert lark.accepts(text) is want, value


@pytest.mark.model
def test_every_order_and_choice_of_keys(llama: LlamaGrammar) -> None:
    gbnf = heredoc_grammar([WRITE], allow_prose=False)
    values = {"path": "p", "overwrite": True, "content": "a\nb"}
    for count in range(4):
        for keys in itertools.permutations(values, count):
            assert llama.accepts(gbnf, render_tool_call("write_file", {key: values[key] for key in keys}))


def fitting(schema: dict[str, Any]) -> st.SearchStrategy[Any]:
    """Values that fit one of the plain schemas of `KINDS`."""
    scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    words = st.text(st.characters(codec="utf-8"), max_size=30) | st.lists(
        st.sampled_from(
            ["~~~py", "~~~txt", "\n", "x", "\r", '"', "\\", "@@end", "@@call f", " ", ",", "é"]
        ),
        max_size=12,
    ).map("".join)
    anything = st.recursive(
        scalars | words,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3),
        max_leaves=8,
    )
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    kinds = {
        "integer": st.integers(),
        "number": st.floats(allow_nan=False, allow_infinity=False) | st.integers(),
        "boolean": st.booleans(),
        "null": st.none(),
        "string": words,
        "object": st.dictionaries(words, anything, max_size=3),
    }
    match schema.get("type"):
        case "array":
            return st.lists(fitting(schema["items"]) if "items" in schema else anything, max_size=4)
        case str() as kind:
            return kinds[kind]
        case [*several] if several:
            return st.one_of([kinds[kind] for kind in several])
        case _:
            return anything


FITTING = {
    key: fitting(KINDS.parameters["properties"][key])
    for key in ["i", "r", "b", "z", "a", "ai", "aas", "o", "s", "sn", "e", "ea", "any"]
}


@pytest.mark.model
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=80)
@given(st.fixed_dictionaries({}, optional=FITTING))
def test_rendered_calls_are_accepted(llama: LlamaGrammar, arguments: dict[str, Any]) -> None:
    text = render_tool_call("kinds", arguments)
    assume(llama.spells(text))
    assert llama.accepts(heredoc_grammar([KINDS]), f"Prose\n{text}\n{text}")
    assert json.loads(parse_tool_calls(text).calls[0].arguments) == arguments


@pytest.mark.model
@pytest.mark.parametrize("one", NAMES, ids=lambda one: repr(one.name))
def test_names_are_rendered_as_the_grammar_writes_them(llama: LlamaGrammar, one: ToolDef) -> None:
    gbnf, lark = heredoc_grammar(NAMES), Lark(heredoc_lark(NAMES))
    fit = {"string": "x", "integer": 1, "boolean": True, "number": 0.5, "null": None, "array": [1]}
    arguments = {key: fit[value.get("type", "null")] for key, value in one.parameters["properties"].items()}
    text = render_tool_call(one.name, arguments)
    assert llama.accepts(gbnf, text)
    assert lark.accepts(text)
    (call,) = parse_tool_calls(text).calls
    assert call.name == one.name
    assert json.loads(call.arguments) == arguments


@pytest.mark.model
def test_long_keys_are_quoted_where_the_grammar_wants_it(llama: LlamaGrammar) -> None:
    for length in (64, 65, 200):
        key = "k" * length
        one = tool("f", {"o": {"type": "object"}, key: {"type": "object"}})
        text = render_tool_call("f", {"o": {key: 1}, key: {key: {key: []}}})
        assert llama.accepts(heredoc_grammar([one]), text)
        assert Lark(heredoc_lark([one])).accepts(text)
        assert parse_tool_calls(text).problem is None


@pytest.mark.model
def test_huge_tool_sets(llama: LlamaGrammar) -> None:
    gbnf, lark = heredoc_grammar(HUGE), heredoc_lark(HUGE)
    names = sum(len(key) for one in HUGE for key in one.parameters["properties"])
    assert names > 150_000
    assert len(gbnf) < 1.8 * names
    assert len(lark) < 1.8 * names
    arguments = {key: {} for key in list(HUGE[199].parameters["properties"])[3::4]}
    text = render_tool_call("tool_199", arguments)
    assert llama.accepts(gbnf, text)
    assert Lark(lark).accepts(text)


@pytest.mark.model
def test_largest_bounds(llama: LlamaGrammar) -> None:
    wide = [tool("wide", {f"p{index}": {} for index in range(1000)})]
    gbnf = heredoc_grammar(wide, max_calls=1000)
    assert llama.valid(gbnf)
    assert llama.accepts(gbnf, render_tool_call("wide", {"p999": 1, "p0": "x"}))


@pytest.mark.parametrize("build", [heredoc_grammar, heredoc_lark], ids=["gbnf", "lark"])
def test_what_cannot_be_written(build: Any) -> None:
    with pytest.raises(ValueError, match="nothing can be written"):
        build([], allow_prose=False)
    with pytest.raises(ValueError, match="nothing can be written"):
        build([NOW], max_calls=0, allow_prose=False)
    with pytest.raises(ValueError, match="1001"):
        build([NOW], max_calls=1001)
    with pytest.raises(ValueError, match="too large"):
        build([NOW], max_calls=10**30)
    with pytest.raises(ValueError, match="negative"):
        build([NOW], max_calls=-1)
    with pytest.raises(ValueError, match="1001 parameters"):
        build([tool("wide", {f"p{index}": {} for index in range(1001)})])
    with pytest.raises(ValueError, match="empty name"):
        build([tool("")])
    with pytest.raises(TypeError, match="int"):
        build([{"name": 3}])
    with pytest.raises(ValueError, match=r"[Nn]a[Nn]|compliant"):
        build([tool("f", {"a": {"const": float("nan")}})])


def test_schemas_that_grow_without_end_are_bounded() -> None:
    doubling = {f"d{level}": {"anyOf": [{"$ref": f"#/$defs/d{level + 1}"}] * 8} for level in range(40)}
    loop = {"loop": {"$ref": "#/$defs/loop"}}
    tools = [
        tool(
            "f", {"a": {"$ref": "#/$defs/d0"}, "b": {"$ref": "#/$defs/loop"}}, **{"$defs": doubling | loop}
        )
    ]
    assert len(heredoc_grammar(tools)) < 20_000


@pytest.mark.parametrize(
    "parameters",
    [None, [], "x", 3, True, {"properties": 3}, {"properties": {"a": 3}}, {"properties": {"a": {"type": 3}}},
     {"properties": {"a": {"enum": 3, "anyOf": {}}}}, {"required": "a", "properties": {"a": None}}, {"$ref": "#"}],
    ids=repr,
)  # fmt: skip
def test_schemas_that_are_none(parameters: Any) -> None:
    wire = [{"type": "function", "function": {"name": "f", "parameters": parameters}}]
    sampler = Sampler(heredoc_grammar(wire))
    assert parse_tool_calls(sampler.draw(random.Random(1))).problem is None
    assert heredoc_lark(wire)
    assert "f(" in heredoc_prompt(wire)


def test_wire_dicts_and_definitions_give_the_same() -> None:
    assert heredoc_grammar([WRITE.to_wire()]) == heredoc_grammar([WRITE])
    assert heredoc_prompt([WRITE.to_wire()]) == heredoc_prompt([WRITE])


PROSE = {
    "": False,
    "Two files are there.": True,
    "Two files:\n\n- a.txt\n- b.txt\n": True,
    "write to ann@example.com": True,
    " @ann, look": True,
    "`@@call` begins a call": True,
    "@@call read_file\n{ }\n@@end": False,
    "@@read_file\n{ }\n@@end": False,
    "Words first.\n@@list_files\n": False,
    "@call read_file": False,
    "@": False,
    "```diff\n@@ -1,2 +1,2 @@\n-a\n+b\n```\nThat is the patch.": True,
    "```py\n@cache\ndef f(): ...\n": True,
    "```\n@@call read_file\n{ }\n@@end\n```": False,
    "```\n@@cal\n```": True,
    "```\nx\n```\n@@list_files": False,
    "``\n`a` b\n": True,
}


@pytest.mark.parametrize(("text", "allowed"), PROSE.items(), ids=repr)
def test_a_reply_that_may_not_call_holds_nothing_like_a_call(
    llama: LlamaGrammar, text: str, allowed: bool
) -> None:
    assert llama.accepts(PROSE_GRAMMAR, text) == allowed
    reply = parse_tool_calls(text)
    assert not allowed or not (reply.calls or reply.problems)


def test_the_grammar_of_prose_holds_no_call_at_all() -> None:
    sampler, rng = Sampler(PROSE_GRAMMAR), random.Random(3)
    for _ in range(300):
        text = sampler.draw(rng)
        assert not parse_tool_calls(text).calls
        assert not parse_tool_calls(text).problems
