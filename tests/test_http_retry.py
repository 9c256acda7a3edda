"""When HttpRunner asks again, how long it waits, and when it gives up."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from email.utils import formatdate
from typing import Any

import pytest

from agentkit_fast import (
    ChatOptions,
    InputTooLarge,
    Message,
    RetryBudgetExhausted,
    RunnerError,
    StreamInterrupted,
)
from agentkit_fast.runners._http.retry import RetryEvent, RetryPolicy, asked_delay
from agentkit_fast.runners.http import HttpRunner
from servers import Wire, WireServer, delta, event, says, stream

HELLO = [Message(role="user", content="hello")]


def refuses(status: int, body: Any = None, **headers: str) -> Any:
    payload = json.dumps(body if body is not None else {"error": {"message": "slow down"}}).encode()
    return lambda wire: wire.whole(payload, status, **headers)


def hangs_up(wire: Wire) -> None:
    wire.hang_up()


def resets(wire: Wire) -> None:
    wire.hang_up(reset=True)


def text_of(chunks: Any) -> str:
    return "".join(chunk.content for chunk in chunks)


def runner_of(wire: WireServer, **options: Any) -> tuple[HttpRunner, list[RetryEvent]]:
    seen: list[RetryEvent] = []
    return HttpRunner(wire.url, "m", on_retry=seen.append, repetition=False, **options), seen


HTTP_DATE = "Tue, 01 Dec 2026 00:00:10 GMT"
T0 = 1796083200.0  # Tue, 01 Dec 2026 00:00:00 GMT


@pytest.mark.parametrize(
    ("header", "millis", "date", "body", "want"),
    [
        pytest.param("3", "", "", None, 3.0, id="number"),
        pytest.param("0.25", "", "", None, 0.25, id="fraction"),
        pytest.param(" 3 ", "", "", None, 3.0, id="blanks"),
        pytest.param("0", "", "", 9.0, 0.0, id="zero-is-an-answer"),
        pytest.param(HTTP_DATE, "", "", None, 10.0, id="date"),
        pytest.param(
            HTTP_DATE, "", "Tue, 01 Dec 2026 00:00:04 GMT", None, 6.0, id="date-by-the-servers-clock"
        ),
        pytest.param("Mon, 30 Nov 2026 23:59:00 GMT", "", "", None, 0.0, id="date-in-the-past"),
        pytest.param("Tuesday, 01-Dec-26 00:00:10 GMT", "", "", None, 10.0, id="old-date-format"),
        pytest.param("", "1500", "", None, 1.5, id="milliseconds"),
        pytest.param("", "", "", 2.5, 2.5, id="body"),
        pytest.param("4", "1500", "", 2.5, 4.0, id="header-before-body"),
        pytest.param("soon", "", "", 2.5, 2.5, id="nonsense-then-body"),
        pytest.param("-5", "", "", None, None, id="negative"),
        pytest.param("nan", "", "", None, None, id="nan"),
        pytest.param("inf", "", "", None, None, id="infinite"),
        pytest.param("1e999", "", "", None, None, id="overflowing"),
        pytest.param("", "", "", None, None, id="nothing"),
    ],
)
def test_what_the_server_asks(
    header: str, millis: str, date: str, body: float | None, want: float | None
) -> None:
    assert asked_delay(header, millis, date, body, T0) == want


def decide(policy: RetryPolicy, **facts: Any) -> RetryEvent | None:
    given: dict[str, Any] = {
        "kind": "rate_limit",
        "attempt": 1,
        "status": 429,
        "asked_s": None,
        "elapsed_s": 0.0,
        "remaining_s": float("inf"),
        "jitter": 0.0,
        "reason": "",
    }
    return policy.decide(**{**given, **facts})


@pytest.mark.parametrize(
    ("policy", "facts", "want"),
    [
        pytest.param({}, {}, 1.0, id="first"),
        pytest.param({}, {"attempt": 4}, 8.0, id="doubling"),
        pytest.param({}, {"attempt": 6}, 30.0, id="to-30"),
        pytest.param({"budget_s": -1}, {"attempt": 5000}, 30.0, id="no-overflow"),
        pytest.param({}, {"jitter": 0.999999}, 1.2, id="jitter-on-top"),
        pytest.param({}, {"asked_s": 3.0}, 3.0, id="asked"),
        pytest.param({}, {"asked_s": 3.0, "jitter": 0.5}, 3.3, id="never-earlier-than-asked"),
        pytest.param({"budget_s": -1}, {"asked_s": 9999.0}, 300.0, id="clamped-to-5-minutes"),
        pytest.param({}, {"asked_s": 9999.0}, 300.0, id="clamped-within-the-default-budget"),
        pytest.param({}, {"asked_s": 0.0}, 0.0, id="zero-once"),
        pytest.param({}, {"asked_s": 0.0, "attempt": 2}, 2.0, id="zero-for-ever-backs-off"),
        pytest.param({"budget_s": 10}, {"elapsed_s": 9.5}, None, id="budget-too-short-for-the-wait"),
        pytest.param({"budget_s": 10}, {"asked_s": 11.0}, None, id="budget-shorter-than-asked"),
        pytest.param(
            {"budget_s": 10}, {"asked_s": 10.0, "jitter": 0.9}, 10.0, id="jitter-within-the-budget"
        ),
        pytest.param({"budget_s": 0}, {}, None, id="no-budget"),
        pytest.param({"budget_s": -1}, {"elapsed_s": 1e9}, 1.0, id="no-bound"),
        pytest.param({"budget_s": -1}, {"remaining_s": 0.5}, None, id="deadline"),
        pytest.param({}, {"kind": "server_error", "attempt": 4}, 8.0, id="5xx-fourth-of-five"),
        pytest.param({}, {"kind": "server_error", "attempt": 5}, None, id="5xx-fifth-of-five"),
        pytest.param(
            {"budget_s": -1}, {"kind": "server_error", "attempt": 5}, None, id="5xx-bounded-without-budget"
        ),
        pytest.param({}, {"kind": "connection"}, 0.1, id="connection-once-at-once"),
        pytest.param({}, {"kind": "connection", "attempt": 3}, 2.0, id="connection-backs-off"),
        pytest.param({"attempts": 1}, {"kind": "connection"}, None, id="connection-counts-too"),
    ],
)
def test_the_decision(policy: dict[str, Any], facts: dict[str, Any], want: float | None) -> None:
    decision = decide(RetryPolicy(**policy), **facts)
    if want is None:
        assert decision is None
    else:
        assert decision is not None
        assert decision.delay_s == pytest.approx(want, abs=1e-5)
        assert decision.server_asked == (facts.get("asked_s") is not None)


@pytest.mark.parametrize(
    "refusal",
    [
        pytest.param(refuses(429, retry_after="0.2"), id="header"),
        pytest.param(refuses(429, {"retry_after": 0.2}), id="body"),
        pytest.param(refuses(429, {"error": {"message": "m", "retry_after": 0.2}}), id="body-under-error"),
        pytest.param(refuses(429, {"error": {"message": "m", "retry_after": "0.2"}}), id="body-text"),
        pytest.param(refuses(503, retry_after="0.2"), id="503"),
        pytest.param(
            lambda wire: wire.sse(b'data: {"error":{"code":503,"message":"busy","retry_after":0.2}}\n\n'),
            id="503-inside-a-200",
        ),
    ],
)
def test_waits_as_asked_and_asks_again(refusal: Any) -> None:
    with WireServer(refusal, says("good")) as wire:
        runner, seen = runner_of(wire)
        with runner:
            assert text_of(runner.chat_stream(HELLO)) == "good"
    first, second = wire.posts
    assert 0.2 <= second.at - first.at < 5.0
    (retry,) = seen
    assert retry.server_asked
    assert retry.attempt == 1
    assert 0.2 <= retry.delay_s <= 0.24
    assert retry.budget_s == 300
    assert retry.reason
    assert retry.kind == ("rate_limit" if retry.status == 429 else "server_error")
    assert first.body == second.body


def test_backs_off_where_nothing_is_asked() -> None:
    with WireServer(refuses(429), says("good")) as wire:
        runner, seen = runner_of(wire)
        with runner:
            assert text_of(runner.chat_stream(HELLO)) == "good"
    assert 1.0 <= seen[0].delay_s <= 1.2
    assert not seen[0].server_asked
    assert wire.posts[1].at - wire.posts[0].at >= 1.0


def test_429_goes_on_until_the_budget_ends() -> None:
    with WireServer(refuses(429, retry_after="0.05")) as wire:
        runner, seen = runner_of(wire, retry_budget_s=0.5)
        with runner, pytest.raises(RetryBudgetExhausted, match=r"retry budget 0\.5 s") as caught:
            list(runner.chat_stream(HELLO))
    assert caught.value.status == 429
    assert "slow down" in caught.value.body
    assert isinstance(caught.value, TimeoutError)
    assert 2 <= len(wire.posts) <= 11
    assert [event.attempt for event in seen] == list(range(1, len(wire.posts)))
    assert all(event.elapsed_s <= 0.5 for event in seen)


def test_a_budget_shorter_than_the_wait_asked_for_does_not_wait() -> None:
    with WireServer(refuses(429, retry_after="60")) as wire:
        runner, seen = runner_of(wire, retry_budget_s=5)
        began = time.monotonic()
        with runner, pytest.raises(RetryBudgetExhausted):
            list(runner.chat_stream(HELLO))
    assert time.monotonic() - began < 2
    assert seen == []


def test_the_callers_deadline_ends_the_waiting() -> None:
    with WireServer(refuses(429, retry_after="0.05")) as wire:
        runner, _ = runner_of(wire, retry_budget_s=-1)
        began = time.monotonic()
        with runner, pytest.raises(RetryBudgetExhausted, match="deadline"):
            list(runner.chat_stream(HELLO, deadline_s=1.5))
    assert time.monotonic() - began < 8.0
    assert len(wire.posts) > 1


def test_5xx_has_so_many_requests_in_all() -> None:
    with WireServer(refuses(500, {"error": {"message": "boom"}}, retry_after="0.01")) as wire:
        runner, seen = runner_of(wire, retry_5xx_attempts=3, retry_budget_s=-1)
        with runner, pytest.raises(RetryBudgetExhausted, match="boom") as caught:
            list(runner.chat_stream(HELLO))
    assert len(wire.posts) == 3
    assert caught.value.status == 500
    assert "boom" in caught.value.body
    assert [event.kind for event in seen] == ["server_error"] * 2


@pytest.mark.parametrize("status", [400, 401, 403, 404, 409, 422])
def test_other_refusals_are_final(status: int) -> None:
    with WireServer(refuses(status)) as wire:
        runner, seen = runner_of(wire)
        with runner, pytest.raises(RunnerError, match="slow down") as caught:
            list(runner.chat_stream(HELLO))
    assert caught.value.status == status
    assert len(wire.posts) == 1
    assert seen == []


@pytest.mark.parametrize("drop", [hangs_up, resets], ids=["closed", "reset"])
def test_a_drop_before_the_first_byte_is_asked_again(drop: Any) -> None:
    def headers_only(wire: Wire) -> None:
        wire.head()
        wire.hang_up()

    with WireServer(drop, headers_only, says("good")) as wire:
        runner, seen = runner_of(wire)
        with runner:
            assert text_of(runner.chat_stream(HELLO)) == "good"
    assert [event.kind for event in seen] == ["connection", "connection"]
    assert seen[0].status == 0


def test_a_stale_pooled_connection_costs_no_error() -> None:
    def says_then_closes(wire: Wire) -> None:
        wire.sse(stream({"content": "one"}))
        wire.hang_up()

    with WireServer(says_then_closes, says("two")) as wire:
        runner, _ = runner_of(wire)
        with runner:
            assert text_of(runner.chat_stream(HELLO)) == "one"
            time.sleep(0.05)
            assert text_of(runner.chat_stream(HELLO)) == "two"


@pytest.mark.parametrize("reset", [False, True], ids=["closed", "reset"])
def test_a_drop_after_the_first_byte_is_surfaced(reset: bool) -> None:
    def half(wire: Wire) -> None:
        wire.head()
        wire.chunk(
            event(delta(content="half a "))
            + event(
                delta(tool_calls=[{"index": 0, "id": "k", "function": {"name": "f", "arguments": '{"a'}}])
            )
        )
        time.sleep(0.05)
        wire.hang_up(reset=reset)

    with WireServer(half, says("never")) as wire:
        runner, seen = runner_of(wire)
        shown = []
        with runner, pytest.raises(StreamInterrupted) as caught:
            shown.extend(runner.chat_stream(HELLO))
    assert text_of(shown) == "half a "
    assert caught.value.text == "half a "
    assert [(call.name, call.arguments) for call in caught.value.partial_tool_calls] == [("f", '{"a')]
    assert isinstance(caught.value, ConnectionError)
    assert len(wire.posts) == 1
    assert seen == []


def test_nobody_listens() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    seen: list[RetryEvent] = []
    runner = HttpRunner(url, "m", retry_5xx_attempts=2, on_retry=seen.append)
    with runner, pytest.raises(StreamInterrupted, match="server running"):
        list(runner.chat_stream(HELLO))
    assert [event.kind for event in seen] == ["connection"]


def test_silence_for_too_long() -> None:
    def silent(wire: Wire) -> None:
        wire.client_gone(5)
        wire.hang_up()

    def silent_later(wire: Wire) -> None:
        wire.head()
        wire.chunk(event(delta(content="a")))
        wire.client_gone(5)
        wire.hang_up()

    with WireServer(silent, silent_later) as wire:
        runner, seen = runner_of(wire, timeout=0.2)
        with runner:
            with pytest.raises(StreamInterrupted, match=r"nothing for 0\.2 s"):
                list(runner.chat_stream(HELLO))
            with pytest.raises(StreamInterrupted, match=r"nothing came for 0\.2 s") as caught:
                list(runner.chat_stream(HELLO))
    assert caught.value.text == "a"
    assert seen == []


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_deadline_in_the_middle_of_a_reply(mode: str) -> None:
    def dribbles(wire: Wire) -> None:
        wire.head()
        for _ in range(100):
            wire.chunk(event(delta(content="a")))
            time.sleep(0.05)

    async def run(runner: HttpRunner) -> None:
        async for _ in runner.achat_stream(HELLO, deadline_s=0.3):
            pass

    with WireServer(dribbles) as wire:
        runner, _ = runner_of(wire)
        began = time.monotonic()

        def either() -> None:
            if mode == "sync":
                list(runner.chat_stream(HELLO, deadline_s=0.3))
            else:
                asyncio.run(run(runner))

        with runner, pytest.raises(StreamInterrupted, match="deadline") as caught:
            either()
    assert time.monotonic() - began < 4.0
    assert 1 <= len(caught.value.text) <= 7


def test_usage_is_not_waited_for_for_ever() -> None:
    def keeps_open(wire: Wire) -> None:
        wire.head()
        wire.chunk(stream({"content": "a"}))  # [DONE], and then nothing: not even the end of the body
        wire.client_gone(5)
        wire.hang_up()

    for mode in ("sync", "async"):
        with WireServer(keeps_open) as wire:
            runner, _ = runner_of(wire)
            began = time.monotonic()

            async def run(runner: HttpRunner = runner) -> list[Any]:
                return [chunk async for chunk in runner.achat_stream(HELLO)]

            with runner:
                chunks = list(runner.chat_stream(HELLO)) if mode == "sync" else asyncio.run(run())
            assert chunks[-1].done
            assert time.monotonic() - began < 4.0


def test_closing_wakes_a_wait_between_attempts() -> None:
    waiting = threading.Event()
    with (
        WireServer(refuses(429, retry_after="60")) as wire,
        HttpRunner(wire.url, "m", on_retry=lambda _: waiting.set()) as runner,
    ):
        reply = runner.chat_stream(HELLO)

        def closes() -> None:
            waiting.wait(30)
            time.sleep(0.05)
            reply.close()  # type: ignore[attr-defined]  # a SyncReply

        closer = threading.Thread(target=closes)
        closer.start()
        began = time.monotonic()
        assert list(reply) == []
        assert time.monotonic() - began < 30
        closer.join()
    assert waiting.is_set()


def test_closing_closes_the_connection() -> None:
    gone = []

    def endless(wire: Wire) -> None:
        wire.head()
        try:
            for _ in range(3):
                wire.chunk(event(delta(content="a")))
            gone.append(wire.client_gone(5))
        except OSError:  # gone while the server was still writing
            gone.append(True)
        wire.hang_up()

    with WireServer(endless) as wire:
        runner, _ = runner_of(wire)
        with runner:
            reply = runner.chat_stream(HELLO)
            assert next(reply).content == "a"
            reply.close()  # type: ignore[attr-defined]  # a SyncReply
            assert list(reply) == []

            async def run() -> None:
                stream_ = runner.achat_stream(HELLO)
                assert (await anext(stream_)).content == "a"
                await stream_.aclose()  # type: ignore[attr-defined]  # an async generator
                await runner.aclose()

            asyncio.run(run())
        until = time.monotonic() + 20
        while len(gone) < 2 and time.monotonic() < until:
            time.sleep(0.01)
    assert gone == [True, True]


def test_cancelling_a_task_closes_the_connection() -> None:
    gone = []

    def silent(wire: Wire) -> None:
        gone.append(wire.client_gone(10))
        wire.hang_up()

    async def run(wire: WireServer) -> None:
        async with HttpRunner(wire.url, "m") as runner:

            async def read() -> None:
                async for _ in runner.achat_stream(HELLO):
                    pass

            task = asyncio.create_task(read())
            while not wire.posts:
                await asyncio.sleep(0.01)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    with WireServer(silent) as wire:
        asyncio.run(run(wire))
    assert gone == [True]


def test_the_trace_id_and_the_key_go_out_as_headers() -> None:
    with WireServer(says("a")) as wire, HttpRunner(wire.url, "m", api_key="k") as runner:
        list(runner.chat_stream(HELLO, options=ChatOptions(trace_id="t-1")))
        list(runner.chat_stream(HELLO))
    first, second = wire.posts
    assert first.headers["x-trace-id"] == "t-1"
    assert first.headers["authorization"] == "Bearer k"
    assert "x-trace-id" not in second.headers
    assert first.connection == second.connection  # the pool keeps it


def test_an_overflow_is_not_asked_again() -> None:
    body = {"error": {"message": "no user query found in messages"}}
    with WireServer(refuses(500, body)) as wire:
        runner, seen = runner_of(wire)
        with runner, pytest.raises(InputTooLarge):
            list(runner.chat_stream(HELLO))
    assert len(wire.posts) == 1
    assert seen == []


def test_a_server_on_this_machine_is_not_reached_through_a_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:9")
    with WireServer(says("a")) as wire, HttpRunner(wire.url, "m") as runner:
        assert text_of(runner.chat_stream(HELLO)) == "a"


def test_the_date_form_over_the_wire() -> None:
    def later(wire: Wire) -> None:
        now = time.time()
        wire.whole(
            {"error": {"message": "m"}},
            429,
            retry_after=formatdate(now + 2, usegmt=True),
            date=formatdate(now, usegmt=True),
        )

    with WireServer(later, says("good")) as wire:
        runner, seen = runner_of(wire)
        with runner:
            assert text_of(runner.chat_stream(HELLO)) == "good"
    assert 2.0 <= seen[0].delay_s <= 2.4


def lost_calls(wire: Wire) -> None:
    """Streamed, the call is left out; not streamed, it is there."""
    usage = {"prompt_tokens": 9, "completion_tokens": 20}
    if wire.request.json["stream"]:
        wire.sse(stream(usage=usage))
        return
    call = {"id": "k", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    message = {"role": "assistant", "content": "", "tool_calls": [call]}
    wire.whole({"choices": [{"message": message, "finish_reason": "tool_calls"}], "usage": usage})


def overflows_without_a_word(wire: Wire) -> None:
    if wire.request.json["stream"]:
        wire.sse(b"")
    else:
        message = "This model's maximum context length is 1024 tokens. However, you requested 2024 tokens"
        wire.whole({"error": {"message": message, "code": "context_length_exceeded"}}, 400)


def test_a_stream_that_came_to_nothing_is_asked_for_whole() -> None:
    with WireServer(lost_calls) as wire, HttpRunner(wire.url, "m") as runner:
        chunks = list(runner.chat_stream(HELLO))
        assert [chunk.tool_call.name for chunk in chunks if chunk.tool_call is not None] == ["f"]
        assert chunks[-1].finish_reason == "tool_calls"
        assert chunks[-1].usage is not None
        assert len(wire.posts) == 2
        assert "stream_options" not in wire.posts[1].json
    with WireServer(overflows_without_a_word) as wire, HttpRunner(wire.url, "m") as runner:
        with pytest.raises(InputTooLarge) as caught:
            list(runner.chat_stream(HELLO))
        assert (caught.value.prompt_tokens, caught.value.context_tokens) == (2024, 1024)
        assert len(wire.posts) == 2


def test_an_empty_reply_is_a_reply() -> None:
    usage = {"prompt_tokens": 9, "completion_tokens": 1}
    with (
        WireServer(lambda wire: wire.sse(stream(usage=usage))) as wire,
        HttpRunner(wire.url, "m") as runner,
    ):
        chunks = list(runner.chat_stream(HELLO))
        assert [chunk.done for chunk in chunks] == [True]
        assert len(wire.posts) == 1


def test_what_no_header_can_hold() -> None:
    trace = "t 1\r\nx-evil: 1 é \ud800%"
    with WireServer(says("a")) as wire, HttpRunner(wire.url, "m", api_key=" key\n") as runner:
        list(runner.chat_stream(HELLO, options=ChatOptions(trace_id=trace)))
    headers = wire.posts[0].headers
    assert headers["x-trace-id"] == "t%201%0D%0Ax-evil:%201%20%C3%A9%20?%25"
    assert "x-evil" not in headers
    assert headers["authorization"] == "Bearer key"
    with pytest.raises(Exception, match="base_url is"):
        HttpRunner("http://host:port", "m")
    with pytest.raises(ValueError, match="base_url is"):
        HttpRunner("ftp://127.0.0.1:9", "m")
