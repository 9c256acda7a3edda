"""probe_tool_surface: on a server that is exact, one that is lossy, and the real one."""

from __future__ import annotations

import asyncio
import json

import pytest

from agentkit_fast.probe import ROUNDS, SAMPLES, aprobe_tool_surface, probe_tool_surface
from agentkit_fast.runners.http import HttpRunner
from servers import Wire, WireServer, stream

WANTED = dict(SAMPLES)


def calls(text: object, *, raw: str | None = None) -> bytes:
    arguments = json.dumps({"text": text}) if raw is None else raw
    return stream(
        {"tool_calls": [{"index": 0, "id": "k", "function": {"name": "echo", "arguments": arguments}}]},
        finish="tool_calls",
    )


def server(*, lossy: bool) -> object:
    """Echoes; a lossy one behaves like servers that were seen, and refuses a grammar beside tools."""

    def reply(wire: Wire) -> None:
        body = wire.request.json
        asked = body["messages"][0]["content"]
        name = next((name for name, text in SAMPLES if asked.endswith(text)), "")
        if "grammar" in body:
            if lossy and "tools" in body:
                wire.whole(
                    {
                        "error": {
                            "code": 400,
                            "message": "Cannot use custom grammar constraints with tools.",
                        }
                    },
                    400,
                )
            else:
                wire.sse(stream({"content": "yes"}))
        elif not lossy:
            wire.sse(calls(WANTED[name]))
        elif name == "closing tags":
            wire.sse(calls("a "))
        elif name == "json":
            wire.sse(calls(None, raw='{"text": {"a": [1]'))
        elif name == "lines":
            wire.sse(calls({"not": "text"}))
        elif name == "markup":
            wire.sse(stream({"content": "I cannot."}))
        elif name == "control tokens":
            wire.whole({"error": {"message": "Failed to parse input at pos 2: <|im_end|>"}}, 500)
        else:
            wire.sse(calls(WANTED[name]))

    return reply


def test_an_exact_server() -> None:
    with WireServer(server(lossy=False)) as wire, HttpRunner(wire.url, "m") as runner:
        report = probe_tool_surface(runner)
    assert report.model == "m"
    assert [echo.name for echo in report.echo] == [name for name, _ in SAMPLES]
    assert all(echo.exact and echo.got == echo.want == WANTED[echo.name] for echo in report.echo)
    assert report.grammar_accepted
    assert report.grammar_with_tools_accepted
    assert report.grammar_error == ""


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_lossy_server(mode: str) -> None:
    asked: list[int] = []

    async def run(runner: HttpRunner) -> object:
        report = await aprobe_tool_surface(runner, on_progress=asked.append)
        await runner.aclose()
        return report

    with WireServer(server(lossy=True)) as wire, HttpRunner(wire.url, "m") as runner:
        report = (
            probe_tool_surface(runner, on_progress=asked.append)
            if mode == "sync"
            else asyncio.run(run(runner))
        )
    assert asked == list(range(ROUNDS))
    by_name = {echo.name: echo for echo in report.echo}
    assert by_name["plain"].exact
    assert by_name["closing tags"].lossy
    assert by_name["closing tags"].got == "a "
    assert by_name["json"].bad_json
    assert by_name["lines"].bad_json
    assert by_name["markup"].no_call
    assert "Failed to parse" in by_name["control tokens"].error
    assert report.grammar_accepted
    assert not report.grammar_with_tools_accepted
    assert "with tools" in report.grammar_error


def test_a_grammar_taken_but_not_kept() -> None:
    with (
        WireServer(lambda wire: wire.sse(stream({"content": "Well, yes."}))) as wire,
        HttpRunner(wire.url, "m") as runner,
    ):
        report = probe_tool_surface(runner)
    assert not report.grammar_accepted
    assert "not kept" in report.grammar_error
    assert all(echo.no_call for echo in report.echo)


@pytest.mark.model
def test_the_real_server(llama_url: str) -> None:
    with HttpRunner(llama_url, "smollm2", provider="llama.cpp") as runner:
        report = probe_tool_surface(runner, max_tokens=12)
    assert report.grammar_accepted
    # llama.cpp refuses a grammar beside tools, and this model's template shows it no tools.
    assert not report.grammar_with_tools_accepted
    assert "grammar" in report.grammar_error
    assert all(echo.no_call for echo in report.echo)
