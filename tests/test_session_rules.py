"""The rules of a turn, one test a rule, through both drivers."""

from __future__ import annotations

from typing import Any

import pytest

from agentkit_fast import (
    ChatOptions,
    Entry,
    EntryUsage,
    MaxTurnsError,
    RunnerError,
    SessionClosed,
    StreamChunk,
    StreamInterrupted,
    TokenUsage,
    ToolCall,
    Usage,
)
from session_kit import BOTH, LOOK, broken, call, kinds, last_messages, last_options, reply, session, shown

both = pytest.mark.parametrize("run", BOTH, ids=["sync", "async"])


@both
def test_a_plain_reply(run: Any) -> None:
    made = session(["It is on shelf B."])
    result = run(made)
    assert result.reply == "It is on shelf B."
    assert (result.stop_reason, result.cancelled, result.rounds) == ("reply", False, 1)
    assert shown(made) == [("user", "Where is the red book?"), ("assistant", "It is on shelf B.")]


@both
def test_calls_are_run_and_fed_back(run: Any) -> None:
    made = session([reply("Let me look.", call('{"shelf":"A"}', id="k")), "Found it."])
    result = run(made)
    assert result.reply == "Found it."
    assert shown(made)[1:] == [
        ("assistant", "Let me look."),
        ("tool_call", '{"shelf":"A"}'),
        ("tool_result", 'saw {"shelf":"A"}'),
        ("assistant", "Found it."),
    ]
    messages = last_messages(made)
    assert [message.role for message in messages] == ["system", "user", "assistant", "tool"]
    assert messages[2].tool_calls[0].id == messages[3].tool_call_id == "k"
    assert (result.rounds, result.tool_calls) == (2, 1)


@both
def test_one_constant_id_for_two_calls(run: Any) -> None:
    made = session([reply(call('{"shelf":"A"}', id="k"), call('{"shelf":"B"}', id="k")), "done"])
    run(made)
    entries = made.store.context("s")
    assert broken(entries) == []
    results = {entry.tool_call_id: entry.content for entry in entries if entry.kind == "tool_result"}
    assert results == {"k": 'saw {"shelf":"A"}', "k-2": 'saw {"shelf":"B"}'}


@both
def test_empty_ids_and_ids_of_an_earlier_round_are_made_distinct(run: Any) -> None:
    made = session([reply(call(), call()), reply(call(id="k")), reply(call(id="k")), "done"])
    run(made)
    assert broken(made.store.context("s")) == []


@both
def test_what_arrives_while_the_model_answers_is_answered_too(run: Any) -> None:
    def answer(messages: Any, tools: Any, options: Any) -> str:
        made.store.publish("s", Entry(kind="user", content="And the blue one?"))
        return "Shelf B."

    made = session([answer, "Shelf C."])
    result = run(made)
    assert result.reply == "Shelf C."
    assert kinds(made) == ["user", "assistant", "user", "assistant"]


@both
def test_all_queued_messages_are_in_one_window(run: Any) -> None:
    made = session(["ok"], task="")
    for text in ("one", "two", "three"):
        made.store.publish("s", Entry(kind="user", content=text))
    run(made)
    assert len(made.runner.requests) == 1
    asked = " ".join(message.content for message in last_messages(made))
    assert "one" in asked
    assert "three" in asked


@both
def test_max_turns(run: Any) -> None:
    made = session([reply(call(f'{{"shelf":{n}}}')) for n in range(9)], max_turns=3)
    with pytest.raises(MaxTurnsError, match="3 chat rounds") as caught:
        run(made)
    assert caught.value.result.rounds == 3
    assert broken(made.store.context("s")) == []


@both
def test_max_turns_names_the_forced_tool(run: Any) -> None:
    script = [reply(call(f'{{"shelf":{n}}}')) for n in range(9)]
    with pytest.raises(MaxTurnsError, match="'finish'"):
        run(session(script, max_turns=2, forced_terminal_tool="finish"))
    with pytest.raises(MaxTurnsError) as caught:
        run(session(script, max_turns=2, forced_terminal_tool="look"))
    assert "'look'" not in str(caught.value)


@both
def test_a_tool_that_closes_the_session(run: Any) -> None:
    def dispatch(call: ToolCall) -> str:
        raise SessionClosed("all written down")

    made = session([reply("Bye.", call(id="k")), "never asked"], dispatch=dispatch)
    result = run(made)
    assert (result.reply, result.stop_reason) == ("Bye.", "closed")
    assert shown(made)[-1] == ("tool_result", "all written down")
    assert len(made.runner.requests) == 1


@both
def test_usage_is_kept_and_added_up(run: Any) -> None:
    spent = Usage(prompt_tokens=100, completion_tokens=7, total_tokens=107, cached_tokens=80, latency_ms=12)
    seen: list[TokenUsage] = []
    made = session([reply("a", call(), usage=spent), reply("b", usage=spent)], on_usage=seen.append)
    result = run(made)
    assert result.usage.total == 214
    assert (result.usage.cached, result.usage.processed, result.usage.generated) == (160, 40, 14)
    assert result.usage.turns == 2
    assert result.usage.active > 0
    assert [usage.total for usage in seen] == [107, 214]
    entry = made.store.context("s")[1]
    assert entry.usage == EntryUsage(latency_ms=12, cached=80, processed=20, generated=7)
    made.runner._replies.append(reply("c", usage=spent))
    assert run(made).usage.total == 321


@both
def test_reasoning_is_kept(run: Any) -> None:
    chunks = [StreamChunk(reasoning="Hm, "), StreamChunk(reasoning="B."), *reply("Shelf B.")]
    made = session([chunks])
    run(made)
    assert made.store.context("s")[-1].reasoning == "Hm, B."


@both
def test_on_tool_calls_may_add_change_and_remove(run: Any) -> None:
    def edit(calls: list[ToolCall]) -> list[ToolCall]:
        if not calls:
            return calls
        return [*calls[1:], call('{"shelf":"Z"}'), call('{"shelf":"Y"}', id=calls[1].id)]

    made = session([reply(call(id="a"), call(id="b")), "done"], on_tool_calls=edit)
    run(made)
    entries = made.store.context("s")
    assert broken(entries) == []
    assert [entry.content for entry in entries if entry.kind == "tool_call"] == [
        "{}",
        '{"shelf":"Z"}',
        '{"shelf":"Y"}',
    ]
    assert next(entry for entry in entries if entry.kind == "tool_call").tool_call_id == "b"


@both
def test_on_tool_calls_may_end_the_turn(run: Any) -> None:
    made = session([reply("No need.", call())], on_tool_calls=lambda calls: None)
    assert run(made).reply == "No need."
    assert kinds(made) == ["user", "assistant"]


@both
def test_async_hooks_are_awaited(run: Any) -> None:
    seen: list[str] = []

    async def on_token(text: str) -> None:
        seen.append(text)

    run(session([reply("a", "b")], on_token=on_token))
    assert seen == ["a", "b"]


@both
def test_options_are_sent_in_every_round(run: Any) -> None:
    made = session([reply(call()), "done"], options=ChatOptions(temperature=0.0), thread_id="t")
    run(made)
    for request in made.runner.requests:
        assert (request.options.temperature, request.options.session_id) == (0.0, "s")
        assert request.options.trace_id == "t"
        assert request.tools == (LOOK,)


@both
def test_options_by_round(run: Any) -> None:
    made = session(
        [reply(call()), "done"], options=lambda n: ChatOptions(tool_choice=None if n else "required")
    )
    run(made)
    assert [request.options.tool_choice for request in made.runner.requests] == ["required", None]
    assert last_options(made).session_id == "s"


@both
def test_a_builder_of_the_host(run: Any) -> None:
    from agentkit_fast import Message

    asked: list[tuple[str, str]] = []

    def build(session_id: str, system: str) -> list[Message]:
        asked.append((session_id, system))
        return [Message(role="user", content="built")]

    async def abuild(session_id: str, system: str) -> list[Message]:
        return build(session_id, system)

    for builder in (build, abuild):
        made = session(["ok"], build=builder, system="Be brief.", omit_slot_note=True)
        assert run(made).usage.active > 0
        assert last_messages(made)[0].content == "built"
    assert asked == [("s", "Be brief.")] * 2


@both
def test_the_preparer_runs_before_each_build(run: Any) -> None:
    class Prepare:
        def __init__(self) -> None:
            self.times = 0

        def prepare(self, session_id: str) -> None:
            self.times += 1
            made.store.append(session_id, Entry(kind="notification", tag="rag", content="see shelf B"))

    preparer = Prepare()
    made = session([reply(call()), "done"], preparer=preparer)
    run(made)
    assert preparer.times == 2
    assert any("see shelf B" in message.content for message in last_messages(made))


@both
@pytest.mark.parametrize(
    ("script", "error"),
    [
        ([RunnerError("no model")], RunnerError),
        ([[StreamChunk(content="half"), RunnerError("gone")]], RunnerError),
        ([[StreamChunk(content="half")]], StreamInterrupted),
        ([[StreamChunk(content="half"), StreamChunk(tool_call=call())]], StreamInterrupted),
        ([[]], StreamInterrupted),
        ([[StreamChunk(error="overloaded")]], RunnerError),
        ([[{"content": "a dict"}]], RunnerError),
        ([[None, "x"]], StreamInterrupted),
        ([[StreamChunk(tool_call="look")]], RunnerError),  # type: ignore[arg-type]
    ],
    ids=[
        "at-once",
        "middle",
        "no-finish",
        "no-finish-call",
        "nothing",
        "error",
        "dict",
        "none",
        "bad-call",
    ],
)
def test_a_failed_stream_stores_nothing(run: Any, script: list[Any], error: type[Exception]) -> None:
    made = session([*script, "Shelf B."])
    with pytest.raises(error) as caught:
        run(made)
    assert caught.value.result.stop_reason == "error"
    assert kinds(made) == ["user"]
    assert run(made).reply == "Shelf B."
