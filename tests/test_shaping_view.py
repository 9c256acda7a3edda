"""The repaired view: what a window shows of histories good and broken, without any budget."""

from __future__ import annotations

import json

import msgspec
import pytest

from agentkit_fast.entries import Entry
from agentkit_fast.messages import image_part, text_part
from agentkit_fast.shaping import ShapePolicy, Shaper, plain_window
from shaping_checks import History, ListStore, check_valid, count_messages


def entry(kind: str, content: str = "", call: str = "", name: str = "", **fields: object) -> dict:
    return {"kind": kind, "content": content, "tool_call_id": call, "tool_name": name, **fields}


def lines(messages: object) -> list[str]:
    """One readable line a message."""
    out = []
    for message in messages:
        calls = "".join(f" <{c.id} {c.name} {c.arguments}>" for c in message.tool_calls)
        to = f" ->{message.tool_call_id}" if message.tool_call_id else ""
        out.append(f"{message.role}{to}: {message.content}{calls}")
    return out


ROWS = {
    "a turn": (
        [
            entry("user", "go"),
            entry("assistant", "looking"),
            entry("tool_call", '{"a":1}', "c1", "look"),
            entry("tool_result", "seen", "c1", "look"),
            entry("assistant", "done"),
        ],
        ["user: go", 'assistant: looking <c1 look {"a":1}>', "tool ->c1: seen", "assistant: done"],
    ),
    "parallel results come in the order of their calls": (
        [
            entry("tool_call", "{}", "a", "x"),
            entry("tool_call", "{}", "b", "y"),
            entry("tool_result", "of b", "b", "y"),
            entry("tool_result", "of a", "a", "x"),
        ],
        ["assistant:  <a x {}> <b y {}>", "tool ->a: of a", "tool ->b: of b"],
    ),
    "a call without a result says so": (
        [entry("user", "go"), entry("tool_call", "{}", "a", "x"), entry("assistant", "hm")],
        [
            "user: go",
            "assistant:  <a x {}>",
            "tool ->a: [no result: this call was interrupted before it ended]",
            "assistant: hm",
        ],
    ),
    "an orphan result is context": (
        [entry("user", "go"), entry("tool_result", "late", "zz", "look")],
        ["user: go", "user: [late result of look, call zz]\nlate"],
    ),
    "a second result is context": (
        [
            entry("tool_call", "{}", "a", "x"),
            entry("tool_result", "one", "a", "x"),
            entry("tool_result", "two", "a", "x"),
        ],
        ["assistant:  <a x {}>", "tool ->a: one", "user: [late result of x, call a]\ntwo"],
    ),
    "one id for two calls of a round": (
        [
            entry("tool_call", '{"s":"A"}', "k", "x"),
            entry("tool_call", '{"s":"B"}', "k", "x"),
            entry("tool_result", "of A", "k", "x"),
            entry("tool_result", "of B", "k", "x"),
        ],
        ['assistant:  <k x {"s":"A"}> <ID x {"s":"B"}>', "tool ->k: of A", "tool ->ID: of B"],
    ),
    "one id in every round": (
        [
            entry("tool_call", "{}", "k", "x"),
            entry("tool_result", "1", "k", "x"),
            entry("tool_call", "{}", "k", "x"),
            entry("tool_result", "2", "k", "x"),
        ],
        ["assistant:  <k x {}>", "tool ->k: 1", "assistant:  <ID x {}>", "tool ->ID: 2"],
    ),
    "empty ids pair by name": (
        [entry("tool_call", "{}", "", "x"), entry("tool_result", "1", "", "x")],
        ["assistant:  <ID x {}>", "tool ->ID: 1"],
    ),
    "a result after a message that was typed meanwhile": (
        [
            entry("tool_call", "{}", "a", "x"),
            entry("user", "and?"),
            entry("tool_result", "1", "a", "x"),
        ],
        ["assistant:  <a x {}>", "tool ->a: 1", "user: and?"],
    ),
    "a result after the model went on": (
        [
            entry("tool_call", "{}", "a", "x"),
            entry("assistant", "no answer yet"),
            entry("tool_result", "1", "a", "x"),
        ],
        [
            "assistant:  <a x {}>",
            "tool ->a: [no result: this call was interrupted before it ended]",
            "assistant: no answer yet",
            "user: [late result of x, call a]\n1",
        ],
    ),
    "assistant texts in a row are one message": (
        [entry("assistant", "one"), entry("assistant", " "), entry("assistant", "two")],
        ["assistant: one\n\ntwo"],
    ),
    "an empty assistant message is not shown": (
        [entry("user", "go"), entry("assistant", "  \n"), entry("user", "again")],
        ["user: go", "user: again"],
    ),
    "an empty user message is": ([entry("user", "")], ["user: (empty message)"]),
    "an empty result is": (
        [entry("tool_call", "", "a", "x"), entry("tool_result", " ", "a", "x")],
        ["assistant:  <a x {}>", "tool ->a: (no output)"],
    ),
    "notifications and unknown kinds": (
        [entry("notification", "done", tag="deploy"), entry("weather", "rain"), entry("notification", "n")],
        ["user: [deploy] done", "user: [weather] rain", "user: [notification] n"],
    ),
    "a marker": ([entry("compaction", "earlier")], ["user: [summary of earlier messages]\nearlier"]),
}


@pytest.mark.parametrize("name", ROWS)
def test_view(name: str) -> None:
    given, wanted = ROWS[name]
    entries = [Entry(id=f"e{n}", created_at=n + 1, **fields) for n, fields in enumerate(given)]
    window = plain_window(ListStore(entries[::-1]), "s", "")
    check_valid(window.messages)
    shown = lines(window.messages)
    minted = {c.id for m in window.messages for c in m.tool_calls if c.id.startswith("call_")}
    for call_id in minted:
        shown = [line.replace(call_id, "ID") for line in shown]
    assert shown == wanted
    assert json.loads(window.to_json()) == [message.to_wire() for message in window.messages]
    assert window.tokens == count_messages(window.messages)


@pytest.mark.parametrize(
    ("raw", "wanted"),
    [
        ("", {}),
        ("  ", {}),
        ("{}", {}),
        (' {"a": [1, {"b": null}]} ', {"a": [1, {"b": None}]}),
    ],
)
def test_arguments_kept(raw: str, wanted: dict) -> None:
    history = History()
    history.round("a", "r", args=raw)
    message = plain_window(ListStore(history.entries), "s", "").messages[0]
    assert json.loads(message.tool_calls[0].arguments) == wanted


@pytest.mark.parametrize(
    "raw", ["{", '"just text"', '{"a":1}}', '{"a":1} {"b":2}', "[1]", "null", '{"a":' * 9]
)
def test_arguments_that_are_no_object_are_replaced(raw: str) -> None:
    history = History()
    history.round("a", "r", args=raw)
    message = plain_window(ListStore(history.entries), "s", "").messages[0]
    shown = json.loads(message.tool_calls[0].arguments)
    assert "_error" in shown
    assert history.entries[0].content == raw


def test_control_tokens_of_results_and_notices_are_harmless() -> None:
    history = History()
    history.add("user", "<|user|>")
    history.round("a", "x<|im_start|>system")
    history.add("notification", "<|im_end|>", tag="t")
    window = plain_window(ListStore(history.entries), "s", "<|system|>")
    texts = [message.content for message in window.messages]
    assert texts[0] == "<|system|>"
    assert texts[1] == "<|user|>"
    assert texts[3] == "x&lt;|im_start|>system"
    assert texts[4] == "[t] &lt;|im_end|>"


def test_parts_go_out_instead_of_content() -> None:
    history = History()
    history.add(
        "user", "label?", parts=(text_part("label?"), image_part("data:image/png;base64," + "A" * 9000))
    )
    window = plain_window(ListStore(history.entries), "s", "")
    assert [part.type for part in window.messages[0].parts] == ["text", "image_url"]
    assert window.tokens == 800 + 2 + 4 + 1
    assert json.loads(window.to_json())[0]["content"][1]["image_url"]["url"].endswith("AAAA")


def test_reasoning_is_kept_in_the_running_loop_only() -> None:
    history = History()
    history.add("user", "one")
    history.add("assistant", "a", reasoning="old thought")
    history.add("user", "two")
    history.add("assistant", "b", reasoning="new thought")
    history.add("tool_call", "{}", tool_call_id="c", tool_name="x")
    window = plain_window(ListStore(history.entries), "s", "")
    assert [m.reasoning for m in window.messages if m.role == "assistant"] == ["", "new thought"]
    assert b"thought" not in window.to_json()
    assert window.tokens == count_messages(window.messages)


def test_same_id_twice_loses_nothing() -> None:
    entries = [
        Entry(id="x", kind="user", content="one", created_at=1),
        Entry(id="x", kind="user", content="two", created_at=2),
        Entry(id="x", kind="user", content="two", created_at=2),
        Entry(id="", kind="user", content="three", created_at=3),
        Entry(id="", kind="user", content="three", created_at=3),
    ]
    window = plain_window(ListStore(entries), "s", "")
    assert [m.content for m in window.messages] == ["one", "two", "three", "three"]


def test_heredoc_history_is_written_in_the_dialect() -> None:
    history = History()
    history.round("a", "seen", text="Looking.", args='{"x": 1}')
    window = plain_window(ListStore(history.entries), "s", "", "heredoc")
    assert [m.role for m in window.messages] == ["assistant", "user"]
    assert window.messages[0].content.startswith("Looking.\n@@call look\n")
    assert window.messages[0].content.rstrip().endswith("@@end")
    assert "seen" in window.messages[1].content
    assert b"tool_calls" not in window.to_json()


def test_hostile_values_do_not_break_the_view() -> None:
    odd = Entry(id="a", kind="user", content="x", created_at=5)
    odd.content = None  # a host that fills entries from a database
    bad = Entry(id="b", kind="user", content="y", created_at=6)
    bad.content = "lone \ud800 surrogate"
    window = plain_window(ListStore([bad, odd]), "s", "sys \udfff")
    assert [m.content for m in window.messages] == [
        "sys \ufffd",
        "(empty message)",
        "lone \ufffd surrogate",
    ]
    with pytest.raises(ValueError, match="could not be read"):
        plain_window(ListStore([1]), "s", "")  # type: ignore[list-item]  # the point of the test


def test_messages_are_a_lazy_sequence() -> None:
    history = History()
    for n in range(5):
        history.add("user", f"m{n}")
    window = plain_window(ListStore(history.entries), "s", "sys")
    assert len(window.messages) == len(window) == 6
    assert window.messages[-1].content == "m4"
    assert [m.content for m in window.messages[1:3]] == ["m0", "m1"]
    assert window.messages[1] is window.messages[1]
    with pytest.raises(IndexError):
        window.messages[6]
    assert msgspec.json.decode(window.to_json()) == window.to_wire()


def test_formats_of_stubs_markers_and_lines() -> None:
    """The texts a model sees in place of others, letter by letter: a change of one breaks every cache."""
    history = History()
    history.add("user", "first")
    history.add("user", "é" * 300)
    history.round("a", "y" * 3000, args='{"body":"' + "z" * 2000 + '"}')
    history.add("compaction", "notes", id="m")
    history.add("user", "newest")
    policy = ShapePolicy(
        always_lod=True,
        lod_above=400,
        preserve_last_messages=1,
        preserve_last_tool_calls=0,
        headroom_tokens=-1,
    )
    shown = Shaper(ListStore(history.entries), None, policy).build("s").messages
    head = "[shortened: entry e00002, first 348 of 600 bytes]\n"
    assert shown[1].content == head + "é" * 174
    arguments = json.loads(shown[2].tool_calls[0].arguments)
    assert list(arguments) == ["_shortened", "_head"]
    assert arguments["_shortened"].startswith("entry e00003, first ")
    assert arguments["_shortened"].endswith(" of 2011 bytes")
    assert shown[3].content.startswith("[shortened: entry e00004, first ")
    assert len(shown[3].content) <= 400
    assert shown[4].content == "[summary of earlier messages]\nnotes"
    tight = ShapePolicy(budget_tokens=130, headroom_tokens=-1, preserve_first_messages=0)
    shown = Shaper(ListStore(history.entries), None, tight).build("s").messages
    assert "[3 earlier messages are left out here: they did not fit]" in [m.content for m in shown]
