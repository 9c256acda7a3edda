"""What is refused, cut, told and stopped: arguments, empty replies, repetition, circles, limits, approval."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest

from agentkit_fast import (
    EmptyReply,
    LimitExceeded,
    Limits,
    RepetitionError,
    StreamChunk,
    ToolCall,
    ToolDef,
    ToolLoopError,
    Usage,
)
from session_kit import BOTH, LOOK, broken, call, kinds, last_messages, reply, session, shown

both = pytest.mark.parametrize("run", BOTH, ids=["sync", "async"])
LOOP = "I will say this again and again. " * 60


def results(made: Any) -> list[str]:
    return [text for kind, text in shown(made) if kind == "tool_result"]


# -- arguments -------------------------------------------------------------------------------------------

CUT = '{"path":"list.txt","body":"apples, pea'


@both
@pytest.mark.parametrize(
    ("arguments", "finish", "word"),
    [
        (CUT, "length", "smaller"),
        (CUT, "tool_calls", "smaller"),
        (CUT, "stop", "smaller"),
        ('{"path":"list.txt"}', "length", "smaller"),
        ('{"a":1}}', "tool_calls", "well-formed"),
        ('{"a":1} {"b":2}', "tool_calls", "well-formed"),
        ("[1,2]", "tool_calls", "well-formed"),
        ('"text"', "tool_calls", "well-formed"),
    ],
    ids=[
        "cut-length",
        "cut-tool-calls",
        "cut-stop",
        "parses-but-length",
        "brace",
        "two",
        "array",
        "string",
    ],
)
def test_unusable_arguments_are_answered_and_not_run(
    run: Any, arguments: str, finish: str, word: str
) -> None:
    ran: list[str] = []
    made = session(
        [reply(call(arguments, id="k"), finish=finish), "I see."],
        dispatch=lambda asked: ran.append(asked.arguments) or "ran",
    )
    assert run(made).reply == "I see."
    assert ran == []
    assert len(results(made)) == 1
    assert word in results(made)[0]
    stored = json.loads(next(text for kind, text in shown(made) if kind == "tool_call"))
    assert stored["_raw_chars"] == len(arguments)
    assert stored["_tail"] == arguments
    assert broken(made.store.context("s")) == []


@both
def test_only_the_last_call_of_a_cut_reply_is_refused(run: Any) -> None:
    made = session([reply(call('{"n":1}'), call('{"n":2}'), finish="length"), "ok"])
    run(made)
    assert sorted(result.startswith("ERROR") for result in results(made)) == [False, True]
    assert 'saw {"n":1}' in results(made)


@both
def test_calls_cut_by_the_runner_are_answered(run: Any) -> None:
    chunks = [
        StreamChunk(tool_call=call('{"n":1}')),
        StreamChunk(done=True, finish_reason="length", partial_tool_calls=(call('{"n":'),)),
    ]
    made = session([chunks, "ok"])
    run(made)
    assert len(results(made)) == 2
    assert sum("smaller" in result for result in results(made)) == 1


@both
def test_a_call_without_a_name_is_answered(run: Any) -> None:
    made = session([reply(call(name="")), "ok"])
    run(made)
    assert "names no tool" in results(made)[0]


@both
def test_blank_arguments_are_none(run: Any) -> None:
    made = session([reply(call("  ")), "ok"])
    run(made)
    assert results(made) == ["saw {}"]


@both
def test_a_call_without_any_dispatcher_is_answered(run: Any) -> None:
    made = session([reply(call()), "ok"], tools=[LOOK], dispatch=None)
    run(made)
    assert "none can be called" in results(made)[0]


# -- empty replies ---------------------------------------------------------------------------------------


@both
@pytest.mark.parametrize("nothing", ["", " \n"], ids=["empty", "blank"])
def test_an_empty_reply_is_not_stored_and_asked_again_once(run: Any, nothing: str) -> None:
    made = session([reply(call()), nothing, "all good"], dispatch=lambda asked: "")
    assert run(made).reply == "all good"
    assert kinds(made) == ["user", "tool_call", "tool_result", "notification", "assistant"]
    assert results(made)[0].strip()
    assert any("[empty_reply]" in message.content for message in last_messages(made))


@both
def test_a_second_empty_reply_is_an_error(run: Any) -> None:
    made = session(["", "", "never"])
    with pytest.raises(EmptyReply):
        run(made)
    assert "assistant" not in kinds(made)


# -- repetition ------------------------------------------------------------------------------------------


@both
def test_repetition_is_cut_told_and_asked_again(run: Any) -> None:
    made = session([["So: ", *[LOOP[at : at + 7] for at in range(0, len(LOOP), 7)]], "Shelf B."])
    assert run(made).reply == "Shelf B."
    assert kinds(made) == ["user", "assistant", "notification", "assistant"]
    kept = shown(made)[1][1]
    assert kept.count("I will say this again and again.") <= 2
    assert len(kept) < len(LOOP) / 2
    assert made.store.context("s")[2].tag == "repetition"
    assert made.runner.aborted == 1


@both
def test_repetition_found_by_the_runner(run: Any) -> None:
    from agentkit_fast.text import Repetition

    found = Repetition(where="content", period=3, reps=5, trailing=12, sample="ab ")
    chunks = [
        StreamChunk(content="So: " + "ab " * 5),
        StreamChunk(done=True, stop_reason="repetition", repetition=found),
    ]
    made = session([chunks, "Shelf B."])
    run(made)
    assert shown(made)[1] == ("assistant", "So: ab ")


@both
def test_repetition_in_reasoning(run: Any) -> None:
    made = session([[StreamChunk(reasoning=LOOP)], "Shelf B."])
    run(made)
    entry = made.store.context("s")[1]
    assert entry.kind == "assistant"
    assert len(entry.reasoning) < len(LOOP) / 2


@both
@pytest.mark.parametrize(("retries", "rounds"), [(0, 1), (2, 3)])
def test_repetition_ends_the_turn_after_the_retries(run: Any, retries: int, rounds: int) -> None:
    made = session([LOOP] * 9, max_repetition_retries=retries)
    with pytest.raises(RepetitionError) as caught:
        run(made)
    assert caught.value.result.rounds == rounds
    assert made.runner._next == rounds


@both
def test_repetition_without_end_when_negative(run: Any) -> None:
    made = session([*[LOOP] * 9, "Shelf B."], max_repetition_retries=-1)
    assert run(made).rounds == 10


@both
def test_a_good_round_resets_the_retries(run: Any) -> None:
    made = session([LOOP, LOOP, reply(call()), LOOP, LOOP, "ok"])
    assert run(made).reply == "ok"


@both
def test_calls_of_a_cut_reply_are_not_run(run: Any) -> None:
    made = session([[call(), LOOP], "ok"])
    run(made)
    assert "tool_call" not in kinds(made)


@both
def test_the_guard_can_be_switched_off(run: Any) -> None:
    assert run(session([LOOP], repetition=False)).reply == LOOP


# -- circles ---------------------------------------------------------------------------------------------


def notes(made: Any, tag: str) -> list[str]:
    return [entry.content for entry in made.store.context("s") if entry.tag == tag]


SAME = [reply(call('{"a":1,"b":2}'))]
ORDERS = ['{"a":1,"b":2}', '{ "b": 2, "a": 1 }', '{"b":2.0,"a":1}']


@both
@pytest.mark.parametrize(
    "rounds",
    [
        [reply(call('{"a":1,"b":2}'))],
        [reply(call(arguments)) for arguments in ORDERS],
        [reply(call('{"a":1}'), call('{"a":1}'))],
    ],
    ids=["stuck", "key-order", "batch"],
)
def test_the_same_exchange_is_told_at_five_and_stopped_at_ten(run: Any, rounds: list[Any]) -> None:
    made = session(list(itertools.islice(itertools.cycle(rounds), 40)), dispatch=lambda asked: "nothing")
    with pytest.raises(ToolLoopError) as caught:
        run(made)
    assert caught.value.result.rounds == 10
    assert len(notes(made, "tool_loop")) == 1
    assert broken(made.store.context("s")) == []
    asked = [request.messages for request in made.runner.requests]
    told = [any("[tool_loop]" in message.content for message in messages) for messages in asked]
    assert told == [False] * 5 + [True] * 5


@both
@pytest.mark.parametrize("length", [2, 3, 4])
def test_a_cycle_of_rounds_counts_whole_cycles(run: Any, length: int) -> None:
    rounds = [reply(call(f'{{"n":{n % length}}}')) for n in range(80)]
    made = session(rounds, dispatch=lambda asked: "nothing")
    with pytest.raises(ToolLoopError, match=f"cycle of {length}") as caught:
        run(made)
    assert caught.value.result.rounds == 10 * length
    assert len(notes(made, "tool_loop")) == 1


@both
def test_a_cycle_of_five_is_not_a_circle(run: Any) -> None:
    made = session(
        [*(reply(call(f'{{"n":{n % 5}}}')) for n in range(60)), "ok"], dispatch=lambda asked: "nothing"
    )
    assert run(made).reply == "ok"


@both
def test_a_poll_whose_answer_changes_is_left_alone(run: Any) -> None:
    answers = iter([*map(str, range(30)), "ready"])
    made = session([*SAME * 31, "ready!"], dispatch=lambda asked: next(answers))
    assert run(made).reply == "ready!"
    assert notes(made, "tool_loop") == []


@both
def test_a_changed_result_begins_the_count_anew(run: Any) -> None:
    answers = iter((["same"] * 4 + ["other"]) * 5)
    made = session([*SAME * 25, "done"], dispatch=lambda asked: next(answers))
    run(made)
    assert notes(made, "tool_loop") == []


@both
def test_a_normaliser_takes_out_what_means_nothing(run: Any) -> None:
    ticks = itertools.count()
    made = session(
        SAME * 40,
        dispatch=lambda asked: f"nothing at {next(ticks)}",
        normalize_result=lambda text: text.split(" at ")[0],
    )
    with pytest.raises(ToolLoopError):
        run(made)


@both
def test_circles_can_be_allowed(run: Any) -> None:
    made = session([*SAME * 40, "done"], dispatch=lambda asked: "nothing", max_repeated_exchanges=-1)
    assert run(made).rounds == 41


# -- limits ----------------------------------------------------------------------------------------------


def useful() -> list[Any]:
    spent = Usage(prompt_tokens=50, completion_tokens=10, total_tokens=60)
    return [reply(call(f'{{"n":{n}}}'), usage=spent) for n in range(50)]


@both
@pytest.mark.parametrize(
    ("limits", "rounds"),
    [(Limits(tool_calls=5), 5), (Limits(tokens=200), 3), (Limits(seconds=10), 4)],
    ids=["calls", "tokens", "seconds"],
)
def test_limits_end_a_turn_between_rounds(run: Any, limits: Limits, rounds: int) -> None:
    clock = itertools.count(1, 10**9)
    made = session(useful(), limits=limits, now=lambda: next(clock), tools=[ToolDef(name="look")])
    with pytest.raises(LimitExceeded) as caught:
        run(made)
    result = caught.value.result
    assert result.usage.total == 60 * result.rounds
    assert result.rounds <= rounds
    if limits.tool_calls:
        assert result.tool_calls == 5
    assert broken(made.store.context("s")) == []
    made.runner._replies[made.runner._next] = "Going on."
    assert run(made).reply == "Going on."


@both
def test_calls_beyond_the_limit_are_answered(run: Any) -> None:
    made = session([reply(call('{"n":1}'), call('{"n":2}'), call('{"n":3}'))], limits=Limits(tool_calls=2))
    with pytest.raises(LimitExceeded):
        run(made)
    assert sum("limit of 2 tool calls" in result for result in results(made)) == 1
    assert broken(made.store.context("s")) == []


@both
def test_a_window_that_would_pass_the_limit_is_not_sent(run: Any) -> None:
    made = session(["never"], limits=Limits(tokens=10), task="word " * 100)
    with pytest.raises(LimitExceeded, match="would pass"):
        run(made)
    assert made.runner.requests == []


# -- approval --------------------------------------------------------------------------------------------


class Marked(ToolDef, kw_only=True):
    approve: bool = True


def raising(asked: ToolCall) -> bool:
    raise RuntimeError("no terminal")


async def yes_later(asked: ToolCall) -> bool:
    return True


@both
@pytest.mark.parametrize(
    ("approve", "runs"),
    [
        (None, False),
        (lambda asked: True, True),
        (lambda asked: False, False),
        (lambda asked: None, False),
        (lambda asked: "yes", False),
        (lambda asked: 1, False),
        (raising, False),
        (yes_later, True),
    ],
    ids=["nobody", "yes", "no", "none", "text", "one", "raises", "async-yes"],
)
def test_only_true_runs_a_marked_call(run: Any, approve: Any, runs: bool) -> None:
    made = session(
        [reply(call('{"n":1}'), call('{"n":2}', name="wipe")), "ok"],
        tools=[LOOK, Marked(name="wipe")],
        approve=approve,
    )
    run(made)
    assert 'saw {"n":1}' in results(made)
    assert ('saw {"n":2}' in results(made)) is runs
    assert any("did not approve" in result for result in results(made)) is not runs
    assert broken(made.store.context("s")) == []


@both
def test_approve_all_asks_for_every_call(run: Any) -> None:
    asked_for: list[str] = []

    def approve(asked: ToolCall) -> bool:
        asked_for.append(asked.arguments)
        asked.arguments = "tampered"
        return True

    made = session([reply(call('{"n":1}')), "ok"], approve=approve, approve_all=True)
    run(made)
    assert asked_for == ['{"n":1}']
    assert results(made) == ['saw {"n":1}']
