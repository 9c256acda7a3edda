"""The shared cases on streams and overflow (`tests/data/cases`), through HttpRunner over a socket."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agentkit_fast import (
    ContextTruncated,
    InputTooLarge,
    Message,
    RunnerProfile,
    StreamInterrupted,
    ToolCall,
)
from agentkit_fast.runners.http import HttpRunner
from servers import Wire, WireServer, delta, event, stream

CASES: dict[str, dict[str, Any]] = {}
for name in ("local_cases.jsonl", "peer_cases.jsonl"):
    for line in (Path(__file__).parent / "data" / "cases" / name).read_text(encoding="utf-8").splitlines():
        case = json.loads(line)
        CASES[case["id"]] = case
HELLO = [Message(role="user", content="hello")]


def expanded(value: Any) -> Any:
    """The cases' own shorthand for long texts: `{"$cat": [...]}` and `{"$rep": [text, times]}`."""
    if isinstance(value, dict):
        if "$cat" in value:
            return "".join(expanded(part) for part in value["$cat"])
        if "$rep" in value:
            text, times = value["$rep"]
            return text * times
        return {key: expanded(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [expanded(inner) for inner in value]
    return value


def fragments(part: list[dict[str, Any]]) -> dict[str, Any]:
    """A delta of the peer cases, in OpenAI's shape."""
    calls = []
    for bare in part:
        function = {key: bare[key] for key in ("name", "arguments") if key in bare}
        rest = {key: bare[key] for key in ("index", "id") if key in bare}
        calls.append({**rest, "function": function})
    return {"tool_calls": calls}


def body_of(case: dict[str, Any], finish: str | None, *, done: bool = True) -> bytes:
    parts = expanded(case["input"]["deltas"])
    deltas = [fragments(part) if isinstance(part, list) else part for part in parts]
    return stream(*deltas, finish=finish, done=done)


def calls_of(body: bytes, *, cuts: tuple[int, ...] = ()) -> tuple[list[ToolCall], str]:
    with WireServer(lambda wire: wire.sse(body, cuts=cuts)) as wire, HttpRunner(wire.url, "m") as runner:
        chunks = list(runner.chat_stream(HELLO))
    return [chunk.tool_call for chunk in chunks if chunk.tool_call is not None], chunks[-1].finish_reason


@pytest.mark.parametrize("name", ["L12", "L13"])
def test_local_deltas(name: str) -> None:
    case = CASES[name]
    calls, _ = calls_of(body_of(case, case["input"]["finish_reason"]))
    for call, want in zip(calls, case["expected"]["calls"], strict=True):
        assert call.name == want["name"]
        assert json.loads(call.arguments) == want["arguments"]
        assert call.id == want.get("id", call.id) != ""


@pytest.mark.parametrize("name", ["stream-01", "stream-02", "stream-04"])
def test_peer_deltas(name: str) -> None:
    case = CASES[name]
    calls, _ = calls_of(body_of(case, case["input"]["finish"]))
    assert [list(json.loads(call.arguments).values()) for call in calls] == case["expected"]["tool_runs"]
    assert all(call.id for call in calls)
    assert len({call.id for call in calls}) == len(calls)


def test_truncated_arguments_stay_as_they_are() -> None:
    """stream-05: what the session refuses must reach it unclosed, with the limit named, or not at all."""
    case = CASES["stream-05"]
    arguments = case["input"]["deltas"][0][0]["arguments"]
    for finish in ("length", "tool_calls"):
        (call,), reason = calls_of(body_of(case, finish))
        assert call.arguments == arguments
        assert reason == finish
    with pytest.raises(StreamInterrupted) as caught:
        calls_of(body_of(case, None, done=False))
    assert [call.arguments for call in caught.value.partial_tool_calls] == [arguments]


def test_a_huge_line_in_every_framing() -> None:
    case = CASES["stream-07"]
    body = body_of(case, "tool_calls")
    snowman = event(delta(content="☃")) + body
    variants = {
        "plain": body,
        "crlf": body.replace(b"data: ", b"data:").replace(b"\n", b"\r\n"),
        "comments": body.replace(b"\n\n", b"\n\n: keep-alive\n\n"),
        "cut": snowman,
    }
    for name, data in variants.items():
        cuts = (snowman.index("☃".encode()) + 1, 2000, 70_000) if name == "cut" else ()
        (call,), _ = calls_of(data, cuts=tuple(sorted(cuts)))
        assert len(json.loads(call.arguments)["body"]) == 300_000, name


def test_overflow_in_every_servers_words() -> None:
    case = CASES["L16"]
    wanted = [InputTooLarge, InputTooLarge, InputTooLarge, ContextTruncated, InputTooLarge]
    for response, want in zip(case["input"]["responses"], wanted, strict=True):
        text = "word " * response.get("sent_tokens", 10)

        def reply(wire: Wire, response: dict[str, Any] = response) -> None:
            if response["status"] != 200:
                wire.whole(response["body"], response["status"])
            elif response.get("stream_deltas") == 0:
                wire.sse(b"data: [DONE]\n\n")
            else:
                wire.sse(stream({"content": "a"}, usage=response["usage"]))

        profile = RunnerProfile(context_tokens=response.get("known_window", 0))
        with WireServer(reply) as wire, HttpRunner(wire.url, "m", profile=profile) as runner:
            with pytest.raises(InputTooLarge) as caught:
                list(runner.chat_stream([Message(role="user", content=text)]))
            assert len(wire.posts) == 1, "the same request is not made again"
        assert type(caught.value) is want
        sizes = response.get("body", {}).get("error", {})
        if isinstance(sizes, dict) and "n_ctx" in sizes:
            assert (caught.value.prompt_tokens, caught.value.context_tokens) == (9001, 8192)
