"""Running calls: what dispatchers give back, in parallel, with time-outs, slots and encodings, lifted."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from typing import Any

import pytest

from agentkit_fast import SessionClosed, ToolCall, ToolSet, tool
from session_kit import BOTH, LOOK, broken, call, kinds, last_messages, reply, session, shown

both = pytest.mark.parametrize("run", BOTH, ids=["sync", "async"])


def results(made: Any) -> list[str]:
    return [text for kind, text in shown(made) if kind == "tool_result"]


class Odd:
    def __str__(self) -> str:
        return "odd"


@both
@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("plain", "plain"),
        (None, "(the tool ended without output)"),
        ("", "(the tool ended without output)"),
        (b"caf\xc3\xa9 \xff", "café \ufffd"),
        ({"a": [1, None]}, '{"a":[1,null]}'),
        (7, "7"),
        (Odd(), "odd"),
        ("caf\udce9 au lait", "caf\ufffd au lait"),
        ("half \ud83d emoji", "half \ufffd emoji"),
        ("pair \ud83d\ude00", "pair 😀"),
        ("nul \0 byte", "nul \0 byte"),
    ],
    ids=[
        "str",
        "none",
        "empty",
        "bytes",
        "dict",
        "int",
        "object",
        "surrogate",
        "half",
        "pair",
        "nul",
    ],
)
def test_what_a_dispatcher_may_give_back(run: Any, value: Any, text: str) -> None:
    made = session([reply(call()), "ok"], dispatch=lambda asked: value)
    assert run(made).reply == "ok"
    assert results(made) == [text]
    json.dumps([message.to_wire() for message in last_messages(made)]).encode()


@both
def test_fifty_megabytes(run: Any) -> None:
    huge = "x" * 50_000_000
    made = session([reply(call()), "ok"], dispatch=lambda asked: huge)
    run(made)
    assert results(made) == [huge]


@both
@pytest.mark.parametrize(
    "error", [ValueError("no such shelf"), KeyError("x"), SystemExit(3), asyncio.CancelledError()]
)
def test_an_exception_is_a_result_and_spares_the_siblings(run: Any, error: BaseException) -> None:
    def dispatch(asked: ToolCall) -> str:
        if asked.arguments == '{"n":1}':
            raise error
        return "fine"

    made = session([reply(call('{"n":1}'), call('{"n":2}')), "ok"], dispatch=dispatch)
    assert run(made).reply == "ok"
    assert sorted(text.split(":")[0] for text in results(made)) == ["ERROR", "fine"]
    assert any(type(error).__name__ in text for text in results(made))


@both
@pytest.mark.parametrize("kind", ["sync", "async"])
def test_calls_run_side_by_side_up_to_the_bound(run: Any, kind: str) -> None:
    lock, running, most = threading.Lock(), 0, 0

    def enter() -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)

    def leave() -> str:
        nonlocal running
        with lock:
            running -= 1
        return "ok"

    def work(asked: ToolCall) -> str:
        enter()
        time.sleep(0.05)
        return leave()

    async def awork(asked: ToolCall) -> str:
        enter()
        await asyncio.sleep(0.05)
        return leave()

    made = session(
        [reply(*(call(f'{{"n":{n}}}') for n in range(7))), "ok"],
        dispatch=work if kind == "sync" else awork,
        max_parallel_tools=3,
    )
    began = time.perf_counter()
    run(made)
    assert most == 3
    assert time.perf_counter() - began < 7 * 0.05
    assert len(results(made)) == 7


@both
def test_each_result_is_stored_when_it_ends_and_shown_in_order(run: Any) -> None:
    seen: list[list[str]] = []
    gate = threading.Event()

    def dispatch(asked: ToolCall) -> str:
        if asked.arguments == '{"n":1}':
            gate.wait(5)
            seen.append(results(made))
            return "slow"
        return "quick"

    def stored(text: str) -> str:
        threading.Timer(0.05, gate.set).start()
        return text

    made = session(
        [reply(call('{"n":1}', id="a"), call('{"n":2}', id="b")), "ok"],
        dispatch=dispatch,
        encode_tool_result=stored,
    )
    run(made)
    assert seen == [["quick"]]
    assert results(made) == ["quick", "slow"]
    tools = [message for message in last_messages(made) if message.role == "tool"]
    assert [(message.tool_call_id, message.content) for message in tools] == [("a", "slow"), ("b", "quick")]


@both
def test_the_thread_of_a_single_sync_call_under_turn_is_the_callers(run: Any) -> None:
    threads: list[threading.Thread] = []
    made = session([reply(call()), "ok"], dispatch=lambda asked: threads.append(threading.current_thread()))
    run(made)
    assert (threads[0] is threading.current_thread()) is (run is BOTH[0])


@both
@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_call_that_takes_too_long_is_left(run: Any, kind: str) -> None:
    ended = threading.Event()
    cancelled = threading.Event()

    def dispatch(asked: ToolCall) -> str:
        if asked.arguments == "{}":
            ended.wait(10)
        return "ok"

    async def adispatch(asked: ToolCall) -> str:
        try:
            await asyncio.sleep(10 if asked.arguments == "{}" else 0)
        except asyncio.CancelledError:
            cancelled.set()
            raise
        return "ok"

    made = session(
        [reply(call("{}", id="a"), call('{"n":1}', id="b")), "done"],
        dispatch=dispatch if kind == "sync" else adispatch,
        tool_timeout_s=0.1,
    )
    began = time.perf_counter()
    assert run(made).reply == "done"
    assert time.perf_counter() - began < 2
    assert results(made)[0] == "ok"
    assert "within 0.1 s" in results(made)[1]
    assert broken(made.store.context("s")) == []
    ended.set()
    if kind == "async":
        assert cancelled.wait(2)


@both
@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_call_that_was_left_is_not_taken_for_a_later_one(run: Any, kind: str) -> None:
    """It ends while a call of the next round, in the same place, is running."""
    left = threading.Event()

    def dispatch(asked: ToolCall) -> str:
        if asked.arguments == '{"n":1}':
            left.wait(5)
            return "too late"
        left.set()
        time.sleep(0.1)
        return "in time"

    async def adispatch(asked: ToolCall) -> str:
        if asked.arguments == '{"n":1}':
            try:
                await asyncio.sleep(5)
            except asyncio.CancelledError:
                return "too late"
        await asyncio.sleep(0.1)
        return "in time"

    made = session(
        [reply(call('{"n":1}')), reply(call('{"n":2}')), "ok"],
        dispatch=dispatch if kind == "sync" else adispatch,
        tool_timeout_s=0.3,
    )
    assert run(made).reply == "ok"
    assert "within 0.3 s" in results(made)[0]
    assert results(made)[1] == "in time"


@both
def test_tools_as_functions_and_as_a_set(run: Any) -> None:
    def add(a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    @tool
    async def double(a: int) -> int:
        """Double a number."""
        await asyncio.sleep(0)
        return 2 * a

    for tools in ([add, double], ToolSet([add, double])):
        made = session(
            [reply(call('{"a":1,"b":2}', name="add"), call('{"a":4}', name="double")), "ok"],
            tools=tools,
            dispatch=None,
        )
        run(made)
        assert sorted(results(made)) == ["3", "8"]
        assert [definition.name for definition in made.runner.requests[0].tools] == ["add", "double"]


def test_tools_of_the_same_name_are_refused() -> None:
    with pytest.raises(ValueError, match="look"):
        session([], tools=[LOOK, LOOK])


@both
def test_closing_one_of_two_calls_lets_the_other_end(run: Any) -> None:
    def dispatch(asked: ToolCall) -> str:
        if asked.name == "finish":
            raise SessionClosed("closed")
        time.sleep(0.02)
        return "saved"

    made = session([reply("Bye.", call(name="finish"), call())], dispatch=dispatch)
    assert run(made).stop_reason == "closed"
    assert sorted(results(made)) == ["closed", "saved"]


# -- slots -----------------------------------------------------------------------------------------------


@both
def test_placeholders_are_stored_raw_and_returned_expanded(run: Any) -> None:
    made = session(
        [reply(call()), "All: {OUTPUT} Part: {title} Not: {other} {}"],
        dispatch=lambda asked: "<title>Red book</title> on B",
        encode_tool_result=lambda text: "short",
    )
    result = run(made)
    assert result.reply == "All: Red book on B Part: Red book Not: {other} {}"
    assert shown(made)[-1][1] == "All: {OUTPUT} Part: {title} Not: {other} {}"
    assert results(made) == ["short"]
    made.runner._replies.append("Now {OUTPUT}")
    assert run(made).reply == "Now {OUTPUT}"


@both
def test_output_is_the_last_call_of_a_round(run: Any) -> None:
    def dispatch(asked: ToolCall) -> str:
        time.sleep(0.05 if asked.arguments == '{"n":1}' else 0)
        return asked.arguments

    made = session([reply(call('{"n":1}'), call('{"n":2}')), "{OUTPUT}"], dispatch=dispatch)
    assert run(made).reply == '{"n":2}'


@pytest.mark.parametrize(("settings", "there"), [({}, True), ({"omit_slot_note": True}, False)])
def test_the_note_about_placeholders(settings: dict[str, Any], there: bool) -> None:
    made = session(["ok"], system="Be brief.", **settings)
    made.turn()
    system = last_messages(made)[0].content
    assert system.startswith("Be brief.")
    assert ("{OUTPUT}" in system) is there
    made = session(["ok"], tools=(), dispatch=None, system="Be brief.")
    made.turn()
    assert last_messages(made)[0].content == "Be brief."


@both
def test_an_encoder_that_fails_loses_nothing(run: Any) -> None:
    def encode(text: str) -> str:
        raise RuntimeError("bug")

    made = session([reply(call()), "ok"], encode_tool_result=encode)
    run(made)
    assert results(made) == ["saw {}"]


# -- lifting ---------------------------------------------------------------------------------------------


@both
def test_a_lifted_call_is_resolved_as_new_context(run: Any) -> None:
    made = session(
        [reply(call(id="k")), "Waiting.", "It is 42."],
        dispatch=lambda asked: '{"pending":true,"correlation_id":"c1"}',
    )
    assert run(made).reply == "Waiting."
    assert results(made)[0].startswith("PENDING")
    made.resolve("c1", {"answer": 42})
    assert run(made).reply == "It is 42."
    told = last_messages(made)[-1].content
    assert "42" in told
    assert "(id k" in told
    assert len(results(made)) == 1
    assert broken(made.store.context("s")) == []
    with pytest.raises(KeyError, match="c1"):
        made.resolve("c1", "again")


@both
def test_inject_during_a_turn_waits_for_the_boundary(run: Any) -> None:
    from agentkit_fast import Entry

    def dispatch(asked: ToolCall) -> str:
        made.inject(Entry(kind="user", content="Stop looking."))
        return "saw"

    made = session([reply(call()), "ok"], dispatch=dispatch)
    run(made)
    assert kinds(made) == ["user", "tool_call", "tool_result", "user", "assistant"]
    entry = made.inject(Entry(kind="user", content="later"))
    assert entry.id
    assert entry.created_at
    assert made.store.context("s")[-1].content == "later"
