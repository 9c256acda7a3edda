"""What a round of the loop costs by itself: the model answers at once, the tool does nothing.

Each contestant runs one user turn of `ROUNDS` tool rounds after a history of 10,000 messages, with its own
fake model. The figure is microseconds a round; models, networks and tools come on top, for everybody.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import time
import warnings
from collections.abc import Callable
from typing import Any

import pytest

from agentkit_fast import Entry, MemoryStore, ScriptedRunner, Session, StreamChunk, ToolCall, ToolDef

HISTORY = 10_000
ROUNDS = 20
TEXT = "message {} about shelves and books and where they stand"
WORDS = [
    "the",
    "red",
    "book",
    "stands",
    "on",
    "a",
    "shelf",
    "where",
    "nobody",
    "looks",
    "for",
    "it",
    "and",
    "dust",
    "has",
    "settled",
    "since",
]
_numbers = itertools.count()


def measure(benchmark: Any, turn: Callable[[], Any], rounds: int = 40) -> None:
    turn()  # the first turn reads the history; a session goes on from there
    benchmark.pedantic(turn, rounds=rounds, warmup_rounds=0)
    each = benchmark.stats.stats.min / (ROUNDS + 1)
    benchmark.extra_info["microseconds_a_round"] = round(each * 1e6, 1)
    print(f"\n{benchmark.name}: {each * 1e6:,.0f} µs a round at {HISTORY:,} messages")


def replies() -> list[Any]:
    rounds = [
        [
            StreamChunk(content="Looking."),
            StreamChunk(tool_call=ToolCall(id=f"k{number}", name="look", arguments=f'{{"n":{number}}}')),
            StreamChunk(done=True, finish_reason="tool_calls"),
        ]
        for number in itertools.islice(_numbers, ROUNDS)
    ]
    return [*rounds, "Found."]


def our_session(history: int = HISTORY, **settings: Any) -> Session:
    store = MemoryStore()
    store.append_many(
        "s",
        [
            Entry(kind="assistant" if number % 2 else "user", content=TEXT.format(number))
            for number in range(history)
        ],
    )
    return Session(
        "s",
        store,
        ScriptedRunner([]),
        tools=[ToolDef(name="look", description="Look at a shelf.")],
        dispatch=lambda call: "seen",
        max_turns=ROUNDS + 1,
        max_repeated_exchanges=-1,
        **settings,
    )


def our_turn(session: Session, run: Callable[[Session], Any]) -> Callable[[], Any]:
    def turn() -> Any:
        session.store.append("s", Entry(kind="user", content="Where is the red book?"))
        session.runner = ScriptedRunner(replies())
        result = run(session)
        assert result.reply == "Found."
        assert result.rounds == ROUNDS + 1
        return result

    return turn


@pytest.mark.benchmark(group="turn: 10,000 messages of history")
def test_session_turn(benchmark: Any) -> None:
    measure(benchmark, our_turn(our_session(), lambda session: session.turn()))


@pytest.mark.benchmark(group="turn: 10,000 messages of history")
def test_session_aturn(benchmark: Any) -> None:
    measure(benchmark, our_turn(our_session(), lambda session: asyncio.run(session.aturn())))


@pytest.mark.benchmark(group="turn: 10,000 messages of history")
def test_session_turn_with_a_budget(benchmark: Any) -> None:
    from agentkit_fast.shaping import ShapePolicy, Shaper

    session = our_session()
    shaper = Shaper(session.store, None, policy=ShapePolicy(budget_tokens=32_000))
    session._build, session._build_blocks = session._builder(shaper.build)
    measure(benchmark, our_turn(session, lambda session: session.turn()))


@pytest.mark.benchmark(group="turn: 10,000 messages of history")
def test_pydantic_ai(benchmark: Any) -> None:
    pytest.importorskip("pydantic_ai")
    from pydantic_ai import Agent
    from pydantic_ai.messages import ModelRequest, ModelResponse, TextPart, ToolCallPart, UserPromptPart
    from pydantic_ai.models.function import FunctionModel
    from pydantic_ai.usage import UsageLimits

    asked = 0

    def answer(messages: Any, info: Any) -> Any:
        nonlocal asked
        asked += 1
        if asked % (ROUNDS + 1) == 0:
            return ModelResponse(parts=[TextPart("Found.")])
        return ModelResponse(parts=[TextPart("Looking."), ToolCallPart("look", {"n": asked})])

    agent = Agent(FunctionModel(answer))

    @agent.tool_plain
    def look(n: int) -> str:
        return "seen"

    history: list[Any] = []
    for number in range(HISTORY):
        text = TEXT.format(number)
        history.append(
            ModelResponse(parts=[TextPart(text)])
            if number % 2
            else ModelRequest(parts=[UserPromptPart(text)])
        )

    def turn() -> None:
        limits = UsageLimits(request_limit=None)
        result = agent.run_sync("Where is the red book?", message_history=history, usage_limits=limits)
        assert result.output == "Found."

    measure(benchmark, turn, rounds=1)


@pytest.mark.benchmark(group="turn: 10,000 messages of history")
def test_langgraph(benchmark: Any) -> None:
    pytest.importorskip("langgraph.prebuilt")
    from langchain_core.language_models.chat_models import BaseChatModel
    from langchain_core.messages import AIMessage, HumanMessage
    from langchain_core.outputs import ChatGeneration, ChatResult
    from langchain_core.tools import tool

    class Fake(BaseChatModel):
        asked: int = 0

        @property
        def _llm_type(self) -> str:
            return "fake"

        def bind_tools(self, tools: Any, **more: Any) -> Any:
            return self

        def _generate(self, messages: Any, stop: Any = None, run_manager: Any = None, **more: Any) -> Any:
            self.asked += 1
            if self.asked % (ROUNDS + 1) == 0:
                message = AIMessage("Found.")
            else:
                wanted = {"name": "look", "args": {"n": self.asked}, "id": f"k{self.asked}"}
                message = AIMessage("Looking.", tool_calls=[wanted])
            return ChatResult(generations=[ChatGeneration(message=message)])

    @tool
    def look(n: int) -> str:
        """Look at a shelf."""
        return "seen"

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from langgraph.prebuilt import create_react_agent

        graph = create_react_agent(Fake(), [look])
    history = [
        AIMessage(TEXT.format(number)) if number % 2 else HumanMessage(TEXT.format(number))
        for number in range(HISTORY)
    ]

    def turn() -> None:
        given = {"messages": [*history, HumanMessage("Where is the red book?")]}
        result = graph.invoke(given, {"recursion_limit": 10 * ROUNDS})
        assert result["messages"][-1].content == "Found."

    measure(benchmark, turn, rounds=1)


@pytest.mark.benchmark(group="turn: 10,000 messages of history")
def test_openai_agents(benchmark: Any) -> None:
    pytest.importorskip("agents")
    from agents import Agent, Model, ModelResponse, RunConfig, Runner, function_tool
    from agents.usage import Usage
    from openai.types.responses import (
        ResponseFunctionToolCall,
        ResponseOutputMessage,
        ResponseOutputText,
    )

    class Fake(Model):
        asked = 0

        async def get_response(self, *args: Any, **more: Any) -> Any:
            self.asked += 1
            if self.asked % (ROUNDS + 1) == 0:
                text = ResponseOutputText(text="Found.", type="output_text", annotations=[])
                output: Any = ResponseOutputMessage(
                    id="m", role="assistant", status="completed", type="message", content=[text]
                )
            else:
                output = ResponseFunctionToolCall(
                    name="look", call_id=f"k{self.asked}", arguments="{}", type="function_call"
                )
            return ModelResponse(output=[output], usage=Usage(), response_id=None)

        def stream_response(self, *args: Any, **more: Any) -> Any:
            raise NotImplementedError

    @function_tool
    def look() -> str:
        """Look at a shelf."""
        return "seen"

    agent = Agent(name="a", model=Fake(), tools=[look])
    history: list[Any] = [
        {"role": "assistant" if number % 2 else "user", "content": TEXT.format(number)}
        for number in range(HISTORY)
    ]

    def turn() -> None:
        given = [*history, {"role": "user", "content": "Where is the red book?"}]
        config = RunConfig(tracing_disabled=True)
        result = Runner.run_sync(agent, given, max_turns=ROUNDS + 2, run_config=config)
        assert result.final_output == "Found."

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        measure(benchmark, turn, rounds=1)


@pytest.mark.benchmark(group="turn: what a token costs")
@pytest.mark.parametrize("how", ["turn", "aturn", "stream"])
def test_tokens_of_one_reply(benchmark: Any, how: str) -> None:
    """A reply of 5,000 tokens through the loop, beside reading the same stream bare."""
    words = random.Random(3)
    chunks = [StreamChunk(content=f"{words.choice(WORDS)} ") for _ in range(5_000)]
    chunks.append(StreamChunk(done=True, finish_reason="stop"))
    session = our_session(2)

    def bare() -> None:
        for chunk in ScriptedRunner([chunks]).chat_stream([]):
            assert chunk is not None

    def turn() -> None:
        session.store.append("s", Entry(kind="user", content="Tell me."))
        session.runner = ScriptedRunner([chunks])
        if how == "turn":
            session.turn()
        elif how == "aturn":
            asyncio.run(session.aturn())
        else:
            for _ in session.stream():
                pass

    began = time.perf_counter()
    bare()
    plain = time.perf_counter() - began
    benchmark.pedantic(turn, rounds=3, warmup_rounds=1)
    each = benchmark.stats.stats.min / 5_000
    benchmark.extra_info["microseconds_a_token"] = round(each * 1e6, 2)
    print(f"\n{how}: {each * 1e6:.2f} µs a token, the bare stream {plain / 5_000 * 1e6:.2f}")
