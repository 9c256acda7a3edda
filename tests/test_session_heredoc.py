"""The heredoc format through a session: text in, prose and calls apart, broken blocks answered."""

from __future__ import annotations

import json
from typing import Any

import pytest

from agentkit_fast import ChatOptions, StreamChunk, StreamInterrupted, ToolCall, ToolDef
from agentkit_fast.events import CallReady, CallStarted, TextDelta, ToolResult
from session_kit import BOTH, broken, call, kinds, last_messages, reply, session, shown

both = pytest.mark.parametrize("run", BOTH, ids=["sync", "async"])

SAVE = ToolDef(
    name="save",
    description="Save a note.",
    parameters={"type": "object", "properties": {"path": {"type": "string"}, "body": {"type": "string"}}},
)
LOOK = ToolDef(name="look", parameters={"type": "object", "properties": {"shelf": {"type": "string"}}})
BLOCK = '@@call save\n{ path: "a.txt", body: ~~~txt\nline {1}\n~~~txt\n}\n@@end\n'


def results(made: Any) -> list[str]:
    return [text for kind, text in shown(made) if kind == "tool_result"]


def heredoc(script: list[Any], **settings: Any) -> Any:
    return session(script, tools=[SAVE, LOOK], tool_format="heredoc", **settings)


@both
@pytest.mark.parametrize("cut", [1, 7, 10_000])
def test_prose_and_calls_are_stored_apart(run: Any, cut: int) -> None:
    text = f"I will save it.\n{BLOCK}"
    pieces = [text[at : at + cut] for at in range(0, len(text), cut)]
    seen: list[str] = []
    made = heredoc([reply(*pieces), "Saved."], on_token=seen.append)
    assert run(made).reply == "Saved."
    assert shown(made)[1] == ("assistant", "I will save it.")
    assert json.loads(shown(made)[2][1]) == {"path": "a.txt", "body": "line {1}"}
    assert json.loads(results(made)[0].removeprefix("saw ")) == {"path": "a.txt", "body": "line {1}"}
    assert "@@" not in "".join(seen)
    assert "".join(seen).startswith("I will save it.")
    request = made.runner.requests[0]
    assert request.tools == ()
    assert "save" in request.options.grammar
    assert request.options.tool_choice is None
    assert "@@call" in request.messages[0].content
    # History is replayed in the dialect the model writes.
    assert any("@@call save" in message.content for message in last_messages(made)[1:])


@both
def test_tool_choice_selects_the_grammar(run: Any) -> None:
    grammars = {}
    for choice in (None, "auto", "required", "look", "none"):
        made = heredoc(["Just words."], options=ChatOptions(tool_choice=choice))
        run(made)
        grammars[choice] = made.runner.requests[0].options.grammar
    assert grammars[None] == grammars["auto"] != grammars["required"]
    assert "save" not in grammars["look"]
    assert "look" in grammars["look"]
    assert "@@call" not in grammars["none"]
    with pytest.raises(ValueError, match="'nothing'"):
        run(heredoc(["x"], options=ChatOptions(tool_choice="nothing")))


@both
def test_a_truncated_block_is_answered_and_earlier_calls_run(run: Any) -> None:
    text = BLOCK + '@@call save\n{ path: "b.txt", body: ~~~txt\nhalf'
    made = heredoc([reply(text, finish="length"), "I see."])
    assert run(made).reply == "I see."
    assert len(results(made)) == 2
    assert sum("smaller" in text for text in results(made)) == 1
    assert sum(text.startswith("saw") for text in results(made)) == 1
    assert broken(made.store.context("s")) == []


@both
def test_a_malformed_block_is_answered(run: Any) -> None:
    made = heredoc([reply("@@call look\n{ shelf: .5 }\n@@end\n" + BLOCK), "I see."])
    run(made)
    assert sum("well-formed" in text for text in results(made)) == 1
    assert sum(text.startswith("saw") for text in results(made)) == 1
    assert broken(made.store.context("s")) == []


@both
@pytest.mark.parametrize(
    ("text", "runs"),
    [
        ('@@call look\n{ shelf: "A" }', False),
        ('@@call look\n{ shelf: "A" }\n@@en', False),
        ('@@call look\n{ shelf: "A" }\n@@end', True),
        ('@@call look\n{ shelf: "A" }\n@@end\nand then', True),
    ],
)
def test_the_last_call_of_a_reply_cut_by_length(run: Any, text: str, runs: bool) -> None:
    made = heredoc([reply(text, finish="length"), "I see."])
    run(made)
    assert results(made)[0].startswith("saw") is runs
    made = heredoc([reply(text), "I see."])
    run(made)
    assert results(made)[0].startswith("saw")


@pytest.mark.parametrize("cut", [1, 5, 10_000])
def test_events_never_show_a_block(cut: int) -> None:
    text = f"First.\n{BLOCK}@@call look\n{{ shelf: 'A' }}\n@@end\n"
    pieces = [text[at : at + cut] for at in range(0, len(text), cut)]
    made = heredoc([reply(*pieces), "ok"])
    events = list(made.stream())
    prose = "".join(event.text for event in events if isinstance(event, TextDelta))
    assert "@@" not in prose
    assert "shelf" not in prose
    assert prose.replace("\n", "") == "First.ok"
    started = [(event.index, event.name) for event in events if isinstance(event, CallStarted)]
    assert started == [(0, "save"), (1, "look")]
    ready = {event.call.id: event.call for event in events if isinstance(event, CallReady)}
    done = {event.call.id: event.call for event in events if isinstance(event, ToolResult)}
    assert ready == done
    assert [entry.tool_call_id for entry in made.store.context("s") if entry.kind == "tool_call"] == list(
        ready
    )


@both
def test_a_repeating_body_is_cut_and_its_call_not_run(run: Any) -> None:
    body = "the very same line comes again and again\n" * 60
    made = heredoc([[f"Saving.\n@@call save\n{{ body: ~~~txt\n{body}"], "ok"])
    assert run(made).reply == "ok"
    assert kinds(made) == ["user", "assistant", "notification", "assistant"]
    assert shown(made)[1] == ("assistant", "Saving.")


@both
def test_native_calls_are_taken_too(run: Any) -> None:
    made = heredoc([reply(call('{"shelf":"A"}')), "ok"])
    run(made)
    assert results(made) == ['saw {"shelf":"A"}']


@both
def test_an_interrupted_heredoc_stream_stores_nothing(run: Any) -> None:
    made = heredoc([[StreamChunk(content=BLOCK)], "ok"])
    with pytest.raises(StreamInterrupted):
        run(made)
    assert kinds(made) == ["user"]


@both
def test_without_tools_text_is_text(run: Any) -> None:
    made = session([BLOCK], tools=(), dispatch=None, tool_format="heredoc")
    assert run(made).reply == BLOCK
    assert made.runner.requests[0].options.grammar == ""


@both
def test_a_call_in_a_round_that_allows_none(run: Any) -> None:
    made = heredoc([reply("So:\n" + BLOCK), "In words."], options=ChatOptions(tool_choice="none"))
    assert run(made).reply == "In words."
    assert "No tool can be called" in results(made)[0]


def test_the_tools_own_answer_goes_back_in_the_dialect() -> None:
    def dispatch(asked: ToolCall) -> str:
        return "@@call look\n{}\n@@end"

    made = heredoc([reply(BLOCK), "ok"], dispatch=dispatch)
    made.turn()
    assert kinds(made) == ["user", "tool_call", "tool_result", "assistant"]
