"""Shaping inside other frameworks, against the real packages."""

from __future__ import annotations

import asyncio
import copy
import importlib
import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

langchain = pytest.importorskip("langchain_core.messages")

from agentkit_fast.errors import ContextOverflow  # noqa: E402
from agentkit_fast.hosts.langchain import shaping_middleware, trim_messages  # noqa: E402
from agentkit_fast.shaping import ShapePolicy  # noqa: E402


def talk(rounds: int, size: int = 60) -> list[Any]:
    out: list[Any] = [
        langchain.SystemMessage("You keep a depot."),
        langchain.HumanMessage("sort out the depot"),
    ]
    for n in range(rounds):
        call = {"name": "bay", "args": {"n": n}, "id": f"c{n}", "type": "tool_call"}
        out.append(langchain.AIMessage("", tool_calls=[call]))
        out.append(langchain.ToolMessage("box " * size, tool_call_id=f"c{n}"))
        out.append(langchain.HumanMessage(f"and bay {n + 1}?"))
    return out


def recipe(heading: str, **names: Any) -> dict[str, Any]:
    """What the code below a heading of docs/hosts.md defines."""
    page = Path(__file__).resolve().parent.parent / "docs" / "hosts.md"
    if not page.exists():
        pytest.skip("not a source checkout")
    (section,) = (
        part for part in page.read_text(encoding="utf-8").split("\n## ") if part.startswith(heading)
    )
    (code,) = re.findall(r"```python no-run\n(.*?)```", section, re.DOTALL)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # LangGraph's hook has moved to langchain.agents; it is the same
        exec(compile(code, str(page), "exec", dont_inherit=True), names)
    return names


def check_pairs(messages: list[Any]) -> None:
    waiting: list[str] = []
    for message in messages:
        if isinstance(message, langchain.ToolMessage):
            assert message.tool_call_id in waiting
            waiting.remove(message.tool_call_id)
        else:
            assert not waiting
        if isinstance(message, langchain.AIMessage):
            waiting = [call["id"] for call in message.tool_calls]
    assert not waiting


@pytest.mark.parametrize("budget", range(60, 1400, 40))
def test_no_budget_leaves_an_orphan(budget: int) -> None:
    given = talk(12)
    shown = trim_messages(given, max_tokens=budget, token_counter="approximate", start_on="human")
    check_pairs(shown)
    assert shown[0] is given[0]
    assert given[-1] in shown
    changed = [message for message in shown if not any(message is other for other in given)]
    assert all(message.type in ("human", "tool") for message in changed), "the line, and results cut to fit"


@pytest.mark.parametrize("end_on", ["ai", "human", "tool", ("ai", "tool")], ids=str)
@pytest.mark.parametrize("cut", range(4))
def test_it_ends_as_langchains_does(end_on: Any, cut: int) -> None:
    """Also on a call whose result is not there yet: the host is about to run it."""
    given = talk(6)
    given = given[: len(given) - cut]
    options: dict[str, Any] = {"max_tokens": 900, "token_counter": "approximate", "end_on": end_on}
    theirs = langchain.trim_messages(given, include_system=True, **options)
    ours = trim_messages(given, **options)
    assert ours[-1] is theirs[-1]
    if ours[-1].type != "ai":
        check_pairs(ours)
    else:
        check_pairs(ours[:-1])


def test_the_task_survives_a_tool_loop() -> None:
    given = talk(0)
    for n in range(60):
        given += talk(1)[2:4]
        given[-2].tool_calls[0]["id"] = given[-1].tool_call_id = f"x{n}"
    shown = trim_messages(given, max_tokens=800)
    check_pairs(shown)
    assert any(message.content == "sort out the depot" for message in shown)


@pytest.mark.parametrize("counter", [len, "callable", "ours"], ids=str)
def test_counters(counter: Any) -> None:
    def callable_counter(messages: list[Any]) -> int:
        return sum(len(str(message.content)) // 3 + 9 for message in messages)

    class Ours:
        def count(self, text: str) -> int:
            return len(text) // 3

    given = talk(30)
    limit = 20 if counter is len else 600
    chosen = {"callable": callable_counter, "ours": Ours()}.get(counter, counter)
    shown = trim_messages(given, max_tokens=limit, token_counter=chosen)
    check_pairs(shown)
    if counter is len:
        assert len(shown) <= 20
    if counter == "callable":
        assert callable_counter(shown) <= 600


def test_a_counter_of_single_messages() -> None:
    def ten(message: langchain.BaseMessage) -> int:
        return 10

    ten.__annotations__["message"] = langchain.BaseMessage
    shown = trim_messages(talk(12), max_tokens=60, token_counter=ten)
    check_pairs(shown)
    assert 4 <= len(shown) <= 6


@pytest.mark.parametrize("budget", range(70, 700, 30))
def test_langchains_own_count_is_kept_to(budget: int) -> None:
    count = importlib.import_module("langchain_core.messages.utils").count_tokens_approximately
    for counter in ("approximate", count):
        shown = trim_messages(talk(12), max_tokens=budget, token_counter=counter)
        check_pairs(shown)
        assert count(shown) <= budget


@pytest.mark.parametrize(
    ("limit", "shows"), [(0, None), (-5, None), (1, None), (2, ["system", "human"])], ids=str
)
def test_limits_at_which_little_or_nothing_fits(limit: int, shows: list[str] | None) -> None:
    if shows is None:
        with pytest.raises(ContextOverflow):
            trim_messages(talk(5), max_tokens=limit, token_counter=len)
    else:
        shown = trim_messages(talk(5), max_tokens=limit, token_counter=len)
        assert [message.type for message in shown] == shows


def test_thoughts_and_calls_in_content_are_counted_as_text() -> None:
    blocks = [
        {"type": "thinking", "thinking": "hm", "signature": "s"},
        {"type": "text", "text": "t"},
        {"type": "tool_use", "id": "u", "name": "f", "input": {"a": 1}},
    ]
    given = [
        langchain.HumanMessage("q"),
        langchain.AIMessage(blocks, tool_calls=[{"name": "f", "args": {"a": 1}, "id": "u"}]),
        langchain.ToolMessage("r", tool_call_id="u"),
        langchain.HumanMessage("n"),
    ]
    assert all(a is b for a, b in zip(trim_messages(given, max_tokens=300), given, strict=True))


def test_what_langchain_takes_for_messages() -> None:
    prompts = importlib.import_module("langchain_core.prompt_values")
    given = talk(2)
    value = prompts.ChatPromptValue(messages=given)
    assert trim_messages(value, max_tokens=900) == given
    assert [
        m.type for m in trim_messages([("user", "a"), {"role": "assistant", "content": "b"}], max_tokens=99)
    ]
    check_pairs(trim_messages(talk(5), max_tokens=400, start_on="tool"))
    old = [
        langchain.HumanMessage("q"),
        langchain.AIMessage("", additional_kwargs={"function_call": {"name": "f", "arguments": "{}"}}),
        langchain.FunctionMessage(name="f", content="r"),
    ]
    assert "r" in trim_messages(old, max_tokens=99)[-1].content


def test_end_on_a_runnable_and_stubs() -> None:
    given = talk(10, size=400)
    shown = trim_messages(
        given, max_tokens=900, end_on=("human", "tool"), policy=ShapePolicy(lod_above=100)
    )
    check_pairs(shown)
    runnable = trim_messages(max_tokens=900)
    assert [m.type for m in runnable.invoke(given)] == [
        m.type for m in trim_messages(given, max_tokens=900)
    ]
    with pytest.raises(ValueError, match="strategy"):
        trim_messages(given, max_tokens=900, strategy="middle")
    assert trim_messages([], max_tokens=5) == []


def scripted(replies: Iterator[Any]) -> tuple[Any, list[list[Any]]]:
    """A chat model of LangChain's that gives these replies, and what it was asked."""
    from langchain_core.language_models.fake_chat_models import GenericFakeChatModel

    seen: list[list[Any]] = []

    class Scripted(GenericFakeChatModel):
        def bind_tools(self, tools: Any, **more: Any) -> Any:
            return self

        def _generate(self, messages: Any, *rest: Any, **more: Any) -> Any:
            seen.append(list(messages))
            return super()._generate(messages, *rest, **more)

    return Scripted(messages=replies), seen


@pytest.mark.parametrize(
    ("heading", "package"),
    [("LangGraph", "langgraph.prebuilt"), ("LangChain agents", "langchain.agents")],
    ids=["langgraph", "langchain"],
)
def test_langchain_recipes(heading: str, package: str) -> None:
    """The recipes of docs/hosts.md: what they run themselves, then a history that does not fit."""
    pytest.importorskip(package)
    model, seen = scripted(iter([langchain.AIMessage("fine"), langchain.AIMessage("fine, too")]))
    agent = recipe(heading, model=model, tools=[])["agent"]
    given = talk(120)
    result = agent.invoke({"messages": given})
    assert result["messages"][-1].content == "fine, too"
    assert len(result["messages"]) == len(given) + 1, "the state keeps all"
    assert [message.type for message in seen[0]][-1] == "human"
    check_pairs(seen[1])
    assert 100 < len(seen[1]) < len(given)
    assert any(message.content == "sort out the depot" for message in seen[1])


def test_langchain_import() -> None:
    assert recipe("LangChain\n")["trim_messages"] is trim_messages


@pytest.mark.parametrize("how", ["invoke", "ainvoke"])
@pytest.mark.parametrize("system", ["You keep a depot.", None], ids=["system", "no-system"])
def test_langchain_agent_middleware(how: str, system: str | None) -> None:
    """The recipe of docs/hosts.md: a loop of sixty tool rounds in `create_agent`, each request within the budget."""
    agents = pytest.importorskip("langchain.agents")
    from langchain_core.tools import tool

    count = importlib.import_module("langchain_core.messages.utils").count_tokens_approximately

    @tool
    def bay(n: int) -> str:
        """Look into a bay."""
        return f"bay {n}: " + "box " * 60

    def replies() -> Any:
        for n in range(60):
            call = {"name": "bay", "args": {"n": n}, "id": f"c{n}", "type": "tool_call"}
            yield langchain.AIMessage("", tool_calls=[call])
        yield langchain.AIMessage("all checked")

    model, seen = scripted(replies())
    agent = agents.create_agent(
        model,
        [bay],
        system_prompt=system,
        middleware=[shaping_middleware(max_tokens=900)],
    )
    given = {"messages": [("user", "Check the bays.")]}
    config = {"recursion_limit": 400}
    result = agent.invoke(given, config) if how == "invoke" else asyncio.run(agent.ainvoke(given, config))
    assert result["messages"][-1].content == "all checked"
    assert len(result["messages"]) == 122, "the state keeps all"
    assert len(seen) == 61
    for messages in seen:
        check_pairs(messages)
        assert count(messages) <= 900
        assert [m.content for m in messages if m.type == "system"] == ([system] if system else [])
        assert any(message.content == "Check the bays." for message in messages)
    assert len(seen[-1]) < 30


def test_pydantic_ai_history_processor() -> None:
    """The recipe of docs/hosts.md, in an agent."""
    pytest.importorskip("pydantic_ai")
    from pydantic_ai.messages import (
        ModelRequest,
        ModelResponse,
        TextPart,
        ToolCallPart,
        ToolReturnPart,
        UserPromptPart,
    )
    from pydantic_ai.models.function import AgentInfo, FunctionModel

    seen: list[list[Any]] = []

    def answer(history: list[Any], info: AgentInfo) -> Any:
        seen.append(list(history))
        return ModelResponse(parts=[TextPart("fine")])

    agent = recipe("pydantic-ai", model=FunctionModel(answer))["agent"]
    history: list[Any] = []
    for n in range(120):
        history.append(ModelRequest(parts=[UserPromptPart(f"check bay {n}")]))
        history.append(ModelResponse(parts=[ToolCallPart("bay", {"n": n}, f"c{n}")]))
        history.append(ModelRequest(parts=[ToolReturnPart("bay", "box " * 60, f"c{n}")]))
        history.append(ModelResponse(parts=[TextPart("fine")]))
    # Not `run_sync`: it leaves an event loop open behind it.
    result = asyncio.run(agent.run("and now?", message_history=history))
    assert result.output == "fine"
    shown = seen[0]
    assert len(result.all_messages()) < 300, "it goes on with what a processor gave it"
    assert 100 < len(shown) < 300
    # pydantic-ai joins requests in a row before it sends them.
    (first, line, *rest) = [part for message in shown for part in message.parts]
    assert first is history[0].parts[0]
    assert "earlier messages are left out here" in line.content
    given = {id(part) for message in history for part in message.parts}
    assert all(id(part) in given for part in rest[:-1])
    assert shown[-1].parts[-1].content == "and now?"


def pydantic_history(result: Any = "box " * 4000) -> list[Any]:
    from pydantic_ai import messages as m

    return [
        m.ModelRequest(parts=[m.SystemPromptPart("You keep a depot."), m.UserPromptPart("check the bays")]),
        m.ModelResponse(
            parts=[
                m.ThinkingPart("hm"),
                m.ToolCallPart("bay", {"n": 1}, "a"),
                m.ToolCallPart("bay", "{}", "b"),
            ]
        ),
        m.ModelRequest(parts=[m.ToolReturnPart("bay", result, "a"), m.UserPromptPart("hurry")]),
    ]


def test_pydantic_ai_parts_are_shortened_and_repaired_as_parts() -> None:
    """A large result comes back as a copy that fits, a call that a crash left open with an answer."""
    pytest.importorskip("pydantic_ai")
    from agentkit_fast.hosts.pydantic_ai import shape_history

    given = pydantic_history()
    before = copy.deepcopy(given)
    shown = shape_history(given, budget=600)
    assert shown[:2] == given[:2]
    assert shown[0] is given[0]
    assert shown[1] is given[1]
    parts = [part for message in shown[2:] for part in message.parts]
    assert [(part.part_kind, getattr(part, "tool_call_id", "")) for part in parts] == [
        ("tool-return", "a"),
        ("tool-return", "b"),
        ("user-prompt", ""),
    ]
    assert parts[0].content.startswith("[shortened: message 3, ")
    assert len(parts[0].content) < 1000
    assert (parts[1].tool_name, parts[1].content[:10]) == ("bay", "[no result")
    assert given == before, "the input is never changed"
    structured = pydantic_history(result={"boxes": 4})
    assert shape_history(structured, budget=600)[2].parts[0] is structured[2].parts[0]


def test_pydantic_ai_instructions_count() -> None:
    pytest.importorskip("pydantic_ai")
    from pydantic_ai import messages as m

    from agentkit_fast.hosts.pydantic_ai import shape_history

    given = [m.ModelRequest(parts=[m.UserPromptPart("go")], instructions="word " * 400)]
    assert shape_history(given, budget=520) == given
    with pytest.raises(ContextOverflow):
        shape_history(given, budget=500)


def agents_items(rounds: int, output: Any = "box " * 60) -> list[Any]:
    items: list[Any] = [{"role": "user", "content": "sort out the depot"}]
    for n in range(rounds):
        items.append({"type": "reasoning", "id": f"r{n}", "summary": []})
        items.append({"type": "function_call", "call_id": f"c{n}", "name": "bay", "arguments": "{}"})
        items.append({"type": "function_call_output", "call_id": f"c{n}", "output": output})
    return items


def check_items(items: list[Any]) -> None:
    calls = [item["call_id"] for item in items if item.get("type") == "function_call"]
    outputs = [item["call_id"] for item in items if item.get("type") == "function_call_output"]
    assert calls == outputs
    for at, item in enumerate(items):
        if item.get("type") == "reasoning":
            assert items[at + 1]["type"] == "function_call"


def test_openai_agents_input_filter() -> None:
    """The recipe of docs/hosts.md, in a run of an agent."""
    agents = pytest.importorskip("agents")
    from agents.items import ModelResponse
    from openai.types.responses import ResponseOutputMessage, ResponseOutputText

    config = recipe("OpenAI Agents")["config"]
    config.tracing_disabled = True
    seen: list[list[Any]] = []

    class Scripted(agents.Model):  # type: ignore[misc]  # known at run time only
        async def get_response(self, *rest: Any, **asked: Any) -> Any:
            seen.append(asked["input"])
            text = ResponseOutputText(type="output_text", text="fine", annotations=[])
            said = ResponseOutputMessage(
                id="m", type="message", role="assistant", status="completed", content=[text]
            )
            return ModelResponse(output=[said], usage=agents.Usage(), response_id=None)

        def stream_response(self, *rest: Any, **more: Any) -> Any:
            raise NotImplementedError

    items = agents_items(200)
    agent = agents.Agent(name="a", instructions="You keep a depot.", model=Scripted())
    result = asyncio.run(agents.Runner.run(agent, items, run_config=config))
    assert result.final_output == "fine"
    (shown,) = seen
    check_items(shown)
    assert 60 < len(shown) < 300
    assert shown[0] == items[0]
    assert [item for item in shown[2:] if item not in items] == [], "all but the line is as it was"


@pytest.mark.parametrize("kind", ["function", "custom_tool"])
def test_openai_agents_items_are_shortened_and_repaired_as_items(kind: str) -> None:
    pytest.importorskip("agents")
    from agentkit_fast.hosts.openai_agents import shape_items

    call = {"type": f"{kind}_call", "name": "bay"}
    told = {"arguments": "{}"} if kind == "function" else {"input": "look"}
    given = [
        {"role": "user", "content": "sort out the depot"},
        {"role": "assistant", "content": [{"type": "output_text", "text": "I look."}]},
        {**call, **told, "call_id": "a"},
        {**call, **told, "call_id": "b"},
        {"type": f"{kind}_call_output", "call_id": "a", "output": "box " * 4000},
    ]
    shown = shape_items(given, budget=600)
    assert all(a is b for a, b in zip(shown[:4], given, strict=False))
    assert [item["call_id"] for item in shown[4:]] == ["a", "b"]
    assert shown[4]["output"].startswith("[shortened: message 2, ")
    assert len(shown[4]["output"]) < 1000
    assert shown[5]["output"].startswith("[no result")
