"""Many turns over a bad network, and many streams at once. Loopback only."""

from __future__ import annotations

import asyncio
import json
import random
import sys
import threading
import time
from collections import Counter
from typing import Any

import pytest

from agentkit_fast import (
    Entry,
    InputTooLarge,
    MemoryStore,
    Message,
    RetryBudgetExhausted,
    RunnerError,
    Session,
    StreamInterrupted,
    ToolSet,
    TruncatedToolCall,
    tool,
)
from agentkit_fast.runners.http import HttpRunner
from servers import Wire, WireServer, delta, event, stream


class BadNetwork:
    """A server behind a bad network: it answers rightly, but a share of the answers is spoiled on the way.

    Each session's user asks for the sum of two numbers; the model calls `add`, then says the result.
    """

    FAULTS = (
        "429",
        "429 body",
        "503",
        "500",
        "close",
        "reset",
        "headers",
        "delay",
        "half",
        "half call",
        "overflow",
        "bad call",
        "error in 200",
    )

    def __init__(self, seed: int, share: float) -> None:
        self._random = random.Random(seed)
        self._share = share
        self._lock = threading.Lock()
        self.faults: Counter[str] = Counter()

    def __call__(self, wire: Wire) -> None:
        with self._lock:
            fault = self._random.choice(self.FAULTS) if self._random.random() < self._share else ""
            cuts = [self._random.random() for _ in range(3)]
            self.faults[fault or "none"] += 1
        body = self.right_answer(wire.request.json)
        if fault == "429":
            wire.whole({"error": {"message": "slow down"}}, 429, retry_after="0.01")
        elif fault == "429 body":
            wire.whole({"error": {"message": "slow down", "retry_after": 0.01}}, 429)
        elif fault in ("500", "503"):
            wire.whole({"error": {"message": "upset"}}, int(fault), retry_after="0.01")
        elif fault == "close":
            wire.hang_up()
        elif fault == "reset":
            wire.hang_up(reset=True)
        elif fault == "headers":
            wire.head()
            wire.hang_up()
        elif fault in ("half", "half call"):
            wire.head()
            wire.chunk(
                body[: int(len(body) * (0.2 + 0.5 * cuts[0]))].rpartition(b"data: [DONE]")[0] or body[:60]
            )
            wire.hang_up(reset=fault == "half call")
        elif fault == "overflow":
            wire.whole({"error": {"type": "exceed_context_size_error", "message": "too big"}}, 400)
        elif fault == "bad call":
            wire.whole({"error": {"message": "Failed to parse input at pos 3"}}, 500)
        elif fault == "error in 200":
            wire.sse(b'data: {"error":{"code":503,"message":"upset","retry_after":0.01}}\n\n')
        else:
            if fault == "delay":
                time.sleep(0.02)
            wire.sse(body, cuts=[int(len(body) * cut) for cut in cuts])

    @staticmethod
    def right_answer(request: dict[str, Any]) -> bytes:
        last = request["messages"][-1]
        usage = {"prompt_tokens": 50, "completion_tokens": 9}
        if last["role"] == "tool":
            return stream({"content": "The sum "}, {"content": f"is {last['content']}."}, usage=usage)
        a, b = last["content"].removeprefix("Add ").split(" and ")
        arguments = json.dumps({"a": int(a), "b": int(b)})
        at = len(arguments) // 2
        fragments = [
            {"index": 0, "id": f"call_{a}_{b}", "function": {"name": "add", "arguments": arguments[:at]}},
            {"index": 0, "function": {"arguments": arguments[at:]}},
        ]
        return stream(*({"tool_calls": [f]} for f in fragments), finish="tool_calls", usage=usage)


EXPECTED = (StreamInterrupted, RetryBudgetExhausted, InputTooLarge, TruncatedToolCall)


def whole(entries: list[Entry]) -> None:
    """Nothing half is stored: calls are JSON objects, each has its one result, replies are whole sentences."""
    calls = [entry for entry in entries if entry.kind == "tool_call"]
    results = Counter(entry.tool_call_id for entry in entries if entry.kind == "tool_result")
    for call in calls:
        assert isinstance(json.loads(call.content), dict)
        assert results[call.tool_call_id] == 1
    assert sum(results.values()) == len(calls)
    for entry in entries:
        if entry.kind == "assistant" and entry.content:
            assert entry.content.startswith("The sum is ")
            assert entry.content.endswith(".")


def soak(turns: int, *, mode: str, seed: int) -> tuple[Counter[str], Counter[str], float]:
    """So many turns in 20 sessions at once; what came of them, and the faults."""
    network = BadNetwork(seed, 0.35)
    outcome: Counter[str] = Counter()

    @tool
    def add(a: int, b: int) -> str:
        """Add two numbers."""
        return str(a + b)

    with (
        WireServer(network, routes={}) as wire,
        HttpRunner(wire.url, "m", provider="openai", timeout=20) as runner,
    ):
        store = MemoryStore()
        sessions = [Session(f"s{n}", store, runner, tools=ToolSet([add]), max_turns=6) for n in range(20)]
        began = time.monotonic()

        def ask(session: Session, turn: int) -> str:
            store.append(session.session_id, Entry(kind="user", content=f"Add {turn} and {turn + 1}"))
            return f"The sum is {2 * turn + 1}."

        def note(session: Session, want: str, reply: str | None, error: BaseException | None) -> None:
            if error is None:
                assert reply == want
                outcome["right"] += 1
            else:
                assert isinstance(error, EXPECTED), error
                outcome[type(error).__name__] += 1
            whole(store.context(session.session_id))

        def run_sync(session: Session, numbers: range) -> None:
            for number in numbers:
                want = ask(session, number)
                try:
                    note(session, want, session.turn().reply, None)
                except RunnerError as error:
                    note(session, want, None, error)

        async def run_async(session: Session, numbers: range) -> None:
            for number in numbers:
                want = ask(session, number)
                try:
                    note(session, want, (await session.aturn()).reply, None)
                except RunnerError as error:
                    note(session, want, None, error)

        shares = [range(at, turns, len(sessions)) for at in range(len(sessions))]
        if mode == "sync":
            failures: list[BaseException] = []

            def guarded(session: Session, numbers: range) -> None:
                try:
                    run_sync(session, numbers)
                except BaseException as error:  # noqa: BLE001 -- shown below
                    failures.append(error)

            threads = [
                threading.Thread(target=guarded, args=pair) for pair in zip(sessions, shares, strict=True)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            if failures:
                raise failures[0]
        else:

            async def all_of_them() -> None:
                async with asyncio.TaskGroup() as group:
                    for pair in zip(sessions, shares, strict=True):
                        group.create_task(run_async(*pair))
                await runner.aclose()

            asyncio.run(all_of_them())
        seconds = time.monotonic() - began
        assert wire.errors == []
    return outcome, network.faults, seconds


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_short_soak(mode: str) -> None:
    outcome, faults, _ = soak(120, mode=mode, seed=7)
    assert sum(outcome.values()) == 120
    assert outcome["right"] > 40
    assert faults["none"] > 100
    assert len(faults) > 10


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_thousand_turns(mode: str, capsys: pytest.CaptureFixture[str]) -> None:
    outcome, faults, seconds = soak(1000, mode=mode, seed=11)
    with capsys.disabled():
        spoiled = sum(faults.values()) - faults["none"]
        print(
            f"\nsoak, {mode}: 1,000 turns, {sum(faults.values())} requests of which {spoiled} spoiled, "
            f"{seconds:.0f} s: {dict(outcome)}"
        )
    assert sum(outcome.values()) == 1000
    assert outcome["right"] > 400


STREAMS = 500


async def crowd_server(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """100 events to each client, with a pause now and then, so that all streams are under way at once."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(
            next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length")).split(
                b":"
            )[1]
        )
        name = json.loads(await reader.readexactly(length))["messages"][0]["content"]
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n")
        for at in range(10):
            writer.write(b"".join(event(delta(content=f"{name}.{at * 10 + n} ")) for n in range(10)))
            await writer.drain()
            await asyncio.sleep(0.05)
        writer.write(stream())
        await writer.drain()
    finally:
        writer.close()


def test_five_hundred_streams_at_once() -> None:
    resource = pytest.importorskip("resource")  # not on Windows
    peak = 0
    open_now = 0

    async def one(runner: HttpRunner, number: int) -> None:
        nonlocal peak, open_now
        text = []
        async for chunk in runner.achat_stream([Message(role="user", content=f"c{number}")]):
            if not text:
                open_now += 1
                peak = max(peak, open_now)
            text.append(chunk.content)
        open_now -= 1
        assert "".join(text) == "".join(f"c{number}.{n} " for n in range(100))

    async def run() -> int:
        server = await asyncio.start_server(crowd_server, "127.0.0.1", 0, backlog=1024)
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with HttpRunner(url, "m", timeout=60) as runner:
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            async with asyncio.TaskGroup() as group:
                for number in range(STREAMS):
                    group.create_task(one(runner, number))
            grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        server.close()
        await server.wait_closed()
        return grown

    grown = asyncio.run(run())
    assert peak > 0.8 * STREAMS, "they really ran side by side"
    # Kilobytes of the process, the server's half included (Linux; other systems count bytes or nothing).
    assert sys.platform != "linux" or grown / STREAMS < 200


def test_a_slow_consumer_stalls_only_itself() -> None:
    """One reads nothing for a while; the others are done long before, and what was sent waits in the sockets."""
    piece = event(delta(content="x" * 1000 + " {} "))
    sent: list[int] = []

    def fast(wire: Wire) -> None:
        numbered = b"".join(event(delta(content=f"word {n} ")) for n in range(200))
        wire.sse(numbered + stream())

    def heavy(wire: Wire) -> None:
        wire.head()
        for number in range(20_000):  # 20 MB, far more than sockets hold
            wire.chunk(piece.replace(b"{}", str(number).encode()))
            sent.append(number)
        wire.chunk(stream())
        wire.end()

    def route(wire: Wire) -> None:
        (heavy if wire.request.json["messages"][0]["content"] == "slow" else fast)(wire)

    async def run(url: str) -> None:
        async with HttpRunner(url, "m", repetition=False) as runner:
            slow = runner.achat_stream([Message(role="user", content="slow")])
            assert (await anext(slow)).content
            began = time.monotonic()

            async def quick() -> int:
                return len([c async for c in runner.achat_stream([Message(role="user", content="quick")])])

            assert await asyncio.gather(*(quick() for _ in range(20))) == [201] * 20
            assert time.monotonic() - began < 10
            before = len(sent)
            await asyncio.sleep(0.2)
            assert len(sent) < 20_000, "it is not read ahead without bound"
            assert len(sent) - before < 2_000
            rest = 1
            async for chunk in slow:
                rest += bool(chunk.content)
            assert rest == 20_000

    with WireServer(route) as wire:
        asyncio.run(run(wire.url))


def test_one_runner_in_many_threads_and_loops() -> None:
    def echoes(wire: Wire) -> None:
        wire.sse(stream({"content": wire.request.json["messages"][0]["content"]}))

    with WireServer(echoes) as wire, HttpRunner(wire.url, "m") as runner:
        wrong: list[str] = []

        def in_thread(name: str) -> None:
            for number in range(10):
                text = f"{name}-{number}"
                got = "".join(c.content for c in runner.chat_stream([Message(role="user", content=text)]))
                if got != text:
                    wrong.append(got)

        async def in_loop(name: str) -> None:
            for number in range(10):
                text = f"{name}-{number}"
                got = "".join(
                    [c.content async for c in runner.achat_stream([Message(role="user", content=text)])]
                )
                if got != text:
                    wrong.append(got)

        threads = [threading.Thread(target=in_thread, args=(f"t{n}",)) for n in range(8)]
        threads += [threading.Thread(target=lambda n=n: asyncio.run(in_loop(f"l{n}"))) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert wrong == []
        assert len(wire.posts) == 120
        assert wire.connections <= 30, "connections are used again"
