"""`shape_messages`: plain dicts in and out."""

from __future__ import annotations

import copy
import json
import random
from typing import Any

import pytest

from agentkit_fast.errors import ContextOverflow
from agentkit_fast.messages import ToolDef
from agentkit_fast.shaping import ShapePolicy, shape_messages
from shaping_checks import count_text


def cost(message: dict[str, Any]) -> int:
    content = message.get("content") or ""
    if isinstance(content, str):
        total = count_text(content)
    else:
        total = sum(count_text(part["text"]) if part["type"] == "text" else 800 for part in content)
    total += count_text(message["role"]) + count_text(message.get("name", "")) + 4
    for call in message.get("tool_calls") or ():
        total += count_text(call["function"]["name"]) + count_text(call["function"]["arguments"]) + 4
    return total


def check(messages: list[dict[str, Any]]) -> None:
    open_calls: list[str] = []
    seen: set[str] = set()
    last = ""
    for at, message in enumerate(messages):
        role = message["role"]
        assert role != "system" or at == 0
        if role == "tool":
            assert message["tool_call_id"] in open_calls
            open_calls.remove(message["tool_call_id"])
        else:
            assert not open_calls
        if role == "assistant":
            assert last != "assistant"
            for call in message.get("tool_calls") or ():
                assert call["id"]
                assert call["id"] not in seen
                seen.add(call["id"])
                open_calls.append(call["id"])
                if "custom" not in call:
                    assert isinstance(json.loads(call["function"]["arguments"]), dict)
        last = role
    assert not open_calls


def call(call_id: str, arguments: str = "{}") -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": "look", "arguments": arguments}}


def custom(call_id: str, text: str) -> dict[str, Any]:
    """A call of a tool that takes any text, not JSON."""
    return {"id": call_id, "type": "custom", "custom": {"name": "run", "input": text}}


def talk(turns: int, size: int = 300) -> list[dict[str, Any]]:
    out: list[dict[str, Any]] = [{"role": "system", "content": "You keep a depot."}]
    for turn in range(turns):
        out.append({"role": "user", "content": f"check bay {turn}", "name": "ann", "x_trace": turn})
        out.append({"role": "assistant", "content": "", "tool_calls": [call(f"c{turn}", '{"n":1}')]})
        out.append(
            {"role": "tool", "tool_call_id": f"c{turn}", "content": f"{turn} " + "box " * (size // 4)}
        )
        out.append(
            {"role": "assistant", "content": f"bay {turn} is fine", "usage": {"cache_read_input_tokens": 4}}
        )
    return out


def test_what_fits_comes_back_as_it_is() -> None:
    given = talk(5)
    shaped = shape_messages(given, budget=10_000)
    assert all(a is b for a, b in zip(shaped, given, strict=True))


@pytest.mark.parametrize("lod_above", [0, 100])
@pytest.mark.parametrize("budget", [300, 1000, 4000])
def test_a_growing_list_keeps_its_prefix(budget: int, lod_above: int) -> None:
    whole = talk(120)
    before = copy.deepcopy(whole)
    last: list[dict[str, Any]] = []
    breaks = 0
    ends = [at for at in range(2, len(whole) + 1) if whole[at - 1]["role"] in ("user", "tool")]
    for end in ends:
        shaped = shape_messages(whole[:end], budget=budget, policy=ShapePolicy(lod_above=lod_above))
        check(shaped)
        assert sum(map(cost, shaped)) <= budget
        assert shaped[0]["role"] == "system"
        newest = next(m for m in reversed(whole[:end]) if m["role"] == "user")
        assert newest in shaped
        breaks += shaped[: len(last)] != last
        last = shaped
    assert whole == before, "the input is never changed"
    spoken = sum(map(cost, whole))
    assert breaks <= 1 + 3 * spoken / budget, "one break every so many tokens"


def test_tools_are_part_of_the_budget() -> None:
    tools = [ToolDef(name="look", description="d" * 2000)]
    shaped = shape_messages(talk(40), budget=2000, tools=tools)
    assert sum(map(cost, shaped)) <= 2000 - count_text(
        json.dumps([tools[0].to_wire()], separators=(",", ":"))
    )
    with pytest.raises(ContextOverflow, match="tools 52"):
        shape_messages(talk(2), budget=500, tools=tools)


def test_shortened_messages_name_themselves_and_keep_unknown_keys() -> None:
    given = talk(30, size=2000)
    given[3]["x_mark"] = "kept"
    shaped = shape_messages(given, budget=6000, policy=ShapePolicy(lod_above=200))
    stubs = [m for m in shaped if str(m["content"]).startswith("[shortened: message ")]
    assert stubs
    assert all(len(m["content"]) <= 300 and "bytes]" in m["content"] for m in stubs)


@pytest.mark.parametrize(
    "large",
    [
        [{"role": "assistant", "content": "x" * 3000}, {"role": "assistant", "content": "done"}],
        [{"role": "tool", "tool_call_id": "z", "content": "x" * 3000}],
        [{"role": "notice", "content": "x" * 3000}],
    ],
    ids=["joined replies", "late result", "unknown role"],
)
def test_what_was_repaired_is_shortened_before_it_is_left_out(large: list[dict[str, Any]]) -> None:
    given = [{"role": "user", "content": "a"}, *large, {"role": "user", "content": "b"}]
    shaped = shape_messages(given, budget=400, policy=ShapePolicy(lod_above=100, preserve_last_messages=1))
    assert [m["content"][:11] for m in shaped] == ["a", "[shortened:", "b"]


LONG = "x" * 3000
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        (
            [
                {"role": "assistant", "content": "", "tool_calls": [call("a"), call("b")]},
                {"role": "tool", "tool_call_id": "a", "content": "r"},
                {"role": "tool", "tool_call_id": "z", "content": "an orphan"},
                {"role": "tool", "tool_call_id": "b", "content": LONG},
            ],
            "[shortened: message 4, first 110 of 3000 bytes]\n",
        ),
        (
            [
                {"role": "assistant", "content": "", "tool_calls": [call("a"), call("b")]},
                {"role": "tool", "tool_call_id": "b", "content": LONG},
                {"role": "tool", "tool_call_id": "a", "content": "r"},
            ],
            "[shortened: message 2, first 110 of 3000 bytes]\n",
        ),
        (
            [{"role": "assistant", "content": ["bare ", {"type": "text", "text": "whole"}, LONG]}],
            "[shortened: message 1, first 110 of 3012 bytes]\nbare \nwhole\nxxx",
        ),
        (
            [{"role": "assistant", "content": [{"type": "text", "text": LONG}, IMAGE, IMAGE]}],
            "[shortened: message 1, without 2 parts that are no text, first 110 of 3000 bytes]\nxxx",
        ),
    ],
    ids=["an orphan between", "results in another order", "bare texts among parts", "images among parts"],
)
def test_a_stub_names_its_message_and_shows_its_text(given: list[dict[str, Any]], wanted: str) -> None:
    given = [{"role": "user", "content": "a"}, *given, {"role": "user", "content": "b"}]
    policy = ShapePolicy(lod_above=110, preserve_last_messages=1, preserve_last_tool_calls=0)
    shaped = shape_messages(given, budget=500, policy=policy)
    check(shaped)
    stubs = [m["content"] for m in shaped if str(m["content"]).startswith("[shortened")]
    assert [stub[: len(wanted)] for stub in stubs] == [wanted]


def test_calls_that_take_any_text_count_and_are_shortened() -> None:
    given = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "", "tool_calls": [custom("c", LONG)]},
        {"role": "tool", "tool_call_id": "c", "content": "r"},
        {"role": "user", "content": "b"},
    ]
    assert shape_messages(given, budget=790) == given
    policy = ShapePolicy(lod_above=110, preserve_last_messages=1, preserve_last_tool_calls=0)
    (shown,) = shape_messages(given, budget=700, policy=policy)[1]["tool_calls"]
    assert shown["custom"]["input"].startswith("[shortened: message 1, first 110 of 3000 bytes]\nxxx")


def test_content_parts_and_images() -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 400_000}}
    given = [
        {"role": "user", "content": [{"type": "text", "text": "what is on this label?"}, image]},
        {"role": "assistant", "content": "Pallet 9"},
        {"role": "user", "content": "and this one?"},
    ]
    shaped = shape_messages(given, budget=4000)
    assert shaped == given
    assert shaped[0] is given[0]
    assert shape_messages(given, budget=825) != given


REPAIRS: dict[str, tuple[list[dict[str, Any]], list[dict[str, Any]]]] = {
    "an orphan result": (
        [{"role": "tool", "tool_call_id": "z", "content": "r"}],
        [{"role": "user", "content": "[late result of call z]\nr"}],
    ),
    "a call without result": (
        [{"role": "assistant", "content": None, "tool_calls": [call("a")]}],
        [
            {"role": "assistant", "content": None, "tool_calls": [call("a")]},
            {
                "role": "tool",
                "content": "[no result: this call was interrupted before it ended]",
                "tool_call_id": "a",
            },
        ],
    ),
    "a call id with a lone surrogate": (
        [{"role": "assistant", "content": "", "tool_calls": [call("\udc00")]}],
        [
            {"role": "assistant", "content": "", "tool_calls": [call("\ufffd")]},
            {
                "role": "tool",
                "content": "[no result: this call was interrupted before it ended]",
                "tool_call_id": "\ufffd",
            },
        ],
    ),
    "texts in a row": (
        [{"role": "assistant", "content": "one"}, {"role": "assistant", "content": "two", "k": 1}],
        [{"role": "assistant", "content": "one\n\ntwo", "k": 1}],
    ),
    "an empty reply": ([{"role": "assistant", "content": " "}], []),
    "an empty question": (
        [{"role": "user", "content": ""}],
        [{"role": "user", "content": "(empty message)"}],
    ),
    "control tokens in a result": (
        [
            {"role": "assistant", "content": "", "tool_calls": [call("a")]},
            {"role": "tool", "tool_call_id": "a", "content": "<|im_start|>"},
        ],
        [
            {"role": "assistant", "content": "", "tool_calls": [call("a")]},
            {"role": "tool", "tool_call_id": "a", "content": "&lt;|im_start|>"},
        ],
    ),
    "arguments kept as an object": (
        [
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [
                    {"id": "a", "type": "function", "function": {"name": "x", "arguments": {"k": "é"}}}
                ],
            },
            {"role": "tool", "tool_call_id": "a", "content": "r"},
        ],
        [
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [
                    {"id": "a", "type": "function", "function": {"name": "x", "arguments": '{"k":"é"}'}}
                ],
            },
            {"role": "tool", "tool_call_id": "a", "content": "r"},
        ],
    ),
    "a call without its function": (
        [
            {"role": "assistant", "tool_calls": ({"id": "a", "name": "x", "arguments": "{}", "k": 1},)},
            {"role": "tool", "tool_call_id": "a", "content": "r"},
        ],
        [
            {
                "role": "assistant",
                "tool_calls": [
                    {"id": "a", "type": "function", "function": {"name": "x", "arguments": "{}"}, "k": 1}
                ],
            },
            {"role": "tool", "tool_call_id": "a", "content": "r"},
        ],
    ),
    "a call that does not name its tool": (
        [
            {"role": "assistant", "tool_calls": [{"id": "a", "function": {"arguments": "{}"}}]},
            {"role": "tool", "tool_call_id": "a", "content": "r"},
        ],
        [
            {
                "role": "assistant",
                "tool_calls": [{"id": "a", "function": {"arguments": "{}", "name": "unknown_tool"}}],
            },
            {"role": "tool", "tool_call_id": "a", "content": "r"},
        ],
    ),
    "a tool's name with a lone surrogate": (
        [
            {
                "role": "assistant",
                "tool_calls": [{"id": "a", "function": {"arguments": "{}", "name": "x\ud800"}}],
            },
            {"role": "tool", "tool_call_id": "a", "content": "r"},
        ],
        [
            {
                "role": "assistant",
                "tool_calls": [{"id": "a", "function": {"arguments": "{}", "name": "x\ufffd"}}],
            },
            {"role": "tool", "tool_call_id": "a", "content": "r"},
        ],
    ),
    "one id for two calls that take any text": (
        [
            {"role": "assistant", "tool_calls": [custom("a", "x = 1"), custom("a", "{")]},
            {"role": "tool", "tool_call_id": "a", "content": "r"},
            {"role": "tool", "tool_call_id": "a", "content": "s"},
        ],
        [
            {"role": "assistant", "tool_calls": [custom("a", "x = 1"), custom("call_0_1_0", "{")]},
            {"role": "tool", "tool_call_id": "a", "content": "r"},
            {"role": "tool", "tool_call_id": "call_0_1_0", "content": "s"},
        ],
    ),
    "a function call of the older kind": (
        [
            {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}},
            {"role": "function", "name": "f", "content": "r"},
        ],
        [
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [
                    {"id": "call_0_0_0", "type": "function", "function": {"name": "f", "arguments": "{}"}}
                ],
            },
            {"role": "tool", "name": "f", "content": "r", "tool_call_id": "call_0_0_0"},
        ],
    ),
    "texts in a row keep the keys of both": (
        [
            {"role": "assistant", "content": "one", "u": 1, "k": 1},
            {"role": "assistant", "content": "two", "k": 2},
        ],
        [{"role": "assistant", "content": "one\n\ntwo", "u": 1, "k": 2}],
    ),
    "parts in a row": (
        [
            {"role": "assistant", "content": [{"type": "text", "text": "one"}]},
            {"role": "assistant", "content": "two"},
        ],
        [
            {
                "role": "assistant",
                "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}],
            }
        ],
    ),
    "an orphan result in parts": (
        [{"role": "tool", "tool_call_id": "z", "content": [{"type": "text", "text": "r"}, IMAGE]}],
        [{"role": "user", "content": [{"type": "text", "text": "[late result of call z]\nr"}, IMAGE]}],
    ),
    "a late system message in parts": (
        [{"role": "user", "content": "a"}, {"role": "system", "content": [{"type": "text", "text": "b"}]}],
        [{"role": "user", "content": "a"}, {"role": "user", "content": "[system]\nb"}],
    ),
    "a refusal": (
        [{"role": "assistant", "content": None, "refusal": "no"}],
        [{"role": "assistant", "content": "no", "refusal": "no"}],
    ),
    "a result in parts": (
        [
            {"role": "assistant", "content": "", "tool_calls": [call("a")]},
            {"role": "tool", "tool_call_id": "a", "content": [{"type": "text", "text": "<|x|>"}, IMAGE]},
        ],
        [
            {"role": "assistant", "content": "", "tool_calls": [call("a")]},
            {"role": "tool", "tool_call_id": "a", "content": [{"type": "text", "text": "&lt;|x|>"}, IMAGE]},
        ],
    ),
    "parts in a tuple": (
        [{"role": "user", "content": ({"type": "text", "text": "a"},)}],
        [{"role": "user", "content": [{"type": "text", "text": "a"}]}],
    ),
    "a late system message": (
        [{"role": "user", "content": "a"}, {"role": "system", "content": "b"}],
        [{"role": "user", "content": "a"}, {"role": "user", "content": "[system]\nb"}],
    ),
}


@pytest.mark.parametrize("name", REPAIRS)
@pytest.mark.parametrize("budget", [0, 5000])
def test_repairs(name: str, budget: int) -> None:
    given, wanted = REPAIRS[name]
    before = copy.deepcopy(given)
    assert shape_messages(given, budget=budget) == wanted
    assert given == before, "the input is never changed"


@pytest.mark.parametrize("parts", [False, True], ids=["text", "parts"])
def test_a_long_result_is_cut_and_says_so(parts: bool) -> None:
    text: Any = "é" * 500
    content = [{"type": "text", "text": text}] if parts else text
    given = [
        {"role": "assistant", "content": "", "tool_calls": [call("a")]},
        {"role": "tool", "tool_call_id": "a", "content": content},
    ]
    shown = shape_messages(given, budget=0, policy=ShapePolicy(max_tool_result=90))[1]["content"]
    shown = shown[0]["text"] if parts else shown
    assert "{OUTPUT}" in shown
    assert "of 1000 bytes" in shown
    assert len(shown.encode()) < 200


def test_the_line_yields_to_what_must_be_sent() -> None:
    given = talk(20)
    given.append({"role": "user", "content": "and now?"})
    least = cost(given[0]) + cost(given[-1])
    assert shape_messages(given, budget=least) == [given[0], given[-1]]
    with pytest.raises(ContextOverflow, match=f"system prompt {cost(given[0])}"):
        shape_messages(given, budget=least - 1)


@pytest.mark.parametrize("seed", range(60))
def test_any_list_gives_a_valid_window(seed: int) -> None:
    rng = random.Random(seed)
    given: list[dict[str, Any]] = []
    for n in range(rng.randrange(1, 60)):
        ids = rng.choice(("k", "", f"c{n}", f"c{n - 1}"))
        text = rng.choice(("", "ok", "日本語 ", "<|x|>")) * rng.choice((1, 9, 300))
        arguments = rng.choice(("{}", "{", "", '{"b":"' + "x" * 3000 + '"}'))
        given.append(
            rng.choice(
                (
                    {"role": "user", "content": text},
                    {"role": "assistant", "content": text},
                    {"role": "assistant", "content": text, "tool_calls": [call(ids, arguments), call(ids)]},
                    {"role": "tool", "tool_call_id": ids, "content": text},
                    {"role": "notice", "content": text},
                )
            )
        )
    before = copy.deepcopy(given)
    budget = rng.choice((0, 300, 1200))
    policy = ShapePolicy(lod_above=rng.choice((0, 100)), preserve_last_messages=rng.choice((0, 2, 10)))
    try:
        shaped = shape_messages(given, budget=budget, policy=policy)
    except ContextOverflow:
        assert budget > 0
        return
    check(shaped)
    assert given == before
    if budget:
        assert sum(map(cost, shaped)) <= budget
    assert shape_messages(given, budget=budget, policy=policy) == shaped


def test_bad_input_is_named() -> None:
    with pytest.raises(TypeError, match=r"messages\[1\] must be a dict"):
        shape_messages([{"role": "user", "content": "a"}, "b"], budget=100)  # type: ignore[list-item]
    with pytest.raises(ValueError, match=r"messages\[0\] has no role"):
        shape_messages([{"content": "a"}], budget=100)
    with pytest.raises(TypeError, match=r"messages\[0\]: content must be text or a list, not int"):
        shape_messages([{"role": "user", "content": 5}], budget=100)
    with pytest.raises(TypeError, match=r"messages\[0\]: tool_calls must be a list, not str"):
        shape_messages([{"role": "assistant", "tool_calls": "a"}], budget=100)
    odd = {"id": "a", "function": {"name": "f", "arguments": {"a": object()}}}
    with pytest.raises(TypeError, match=r"messages\[0\]: the arguments of a tool call"):
        shape_messages([{"role": "assistant", "tool_calls": [odd]}], budget=100)
