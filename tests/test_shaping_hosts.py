"""Shaping inside other frameworks, against the real packages."""

from __future__ import annotations

import asyncio
import importlib
import warnings
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


def test_langgraph_pre_model_hook() -> None:
    """The recipe of docs/hosts.md, on the message list LangGraph hands to a hook."""

    def pre_model_hook(state: dict[str, Any]) -> dict[str, Any]:
        return {"llm_input_messages": trim_messages(state["messages"], max_tokens=600)}

    shown = pre_model_hook({"messages": talk(20)})["llm_input_messages"]
    check_pairs(shown)
    prebuilt = pytest.importorskip("langgraph.prebuilt")
    from langchain_core.language_models.fake_chat_models import FakeListChatModel

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it has moved to langchain.agents; the hook is the same
        model = FakeListChatModel(responses=["fine"])
        agent = prebuilt.create_react_agent(model, [], pre_model_hook=pre_model_hook)
    result = agent.invoke({"messages": talk(20)})
    assert result["messages"][-1].content == "fine"


@pytest.mark.parametrize("how", ["invoke", "ainvoke"])
@pytest.mark.parametrize("system", ["You keep a depot.", None], ids=["system", "no-system"])
def test_langchain_agent_middleware(how: str, system: str | None) -> None:
    """The recipe of docs/hosts.md: a loop of sixty tool rounds in `create_agent`, each request within the budget."""
    agents = pytest.importorskip("langchain.agents")
    from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
    from langchain_core.tools import tool

    count = importlib.import_module("langchain_core.messages.utils").count_tokens_approximately
    seen: list[list[Any]] = []

    class Scripted(GenericFakeChatModel):
        def bind_tools(self, tools: Any, **more: Any) -> Any:
            return self

        def _generate(self, messages: Any, *rest: Any, **more: Any) -> Any:
            seen.append(list(messages))
            return super()._generate(messages, *rest, **more)

    @tool
    def bay(n: int) -> str:
        """Look into a bay."""
        return f"bay {n}: " + "box " * 60

    def replies() -> Any:
        for n in range(60):
            call = {"name": "bay", "args": {"n": n}, "id": f"c{n}", "type": "tool_call"}
            yield langchain.AIMessage("", tool_calls=[call])
        yield langchain.AIMessage("all checked")

    agent = agents.create_agent(
        Scripted(messages=replies()),
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
    pydantic_ai = pytest.importorskip("pydantic_ai")
    messages = pytest.importorskip("pydantic_ai.messages")
    from pydantic_ai.models.function import AgentInfo, FunctionModel

    from hosts_recipes import shape_history

    seen: list[int] = []

    def answer(history: list[Any], info: AgentInfo) -> Any:
        seen.append(len(history))
        return messages.ModelResponse(parts=[messages.TextPart("fine")])

    def processor(history: list[Any]) -> list[Any]:
        return shape_history(history, budget=600)

    capability = getattr(pytest.importorskip("pydantic_ai.capabilities"), "ProcessHistory", None)
    if capability is None:
        agent = pydantic_ai.Agent(FunctionModel(answer), history_processors=[processor])
    else:
        agent = pydantic_ai.Agent(FunctionModel(answer), capabilities=[capability(processor)])
    history: list[Any] = []
    for n in range(40):
        history.append(messages.ModelRequest(parts=[messages.UserPromptPart("box " * 20 + str(n))]))
        history.append(messages.ModelResponse(parts=[messages.TextPart("fine")]))
    # Not `run_sync`: it leaves an event loop open behind it.
    result = asyncio.run(agent.run("and now?", message_history=history))
    assert result.output == "fine"
    assert 1 < seen[0] < 60


def test_openai_agents_input_filter() -> None:
    agents = pytest.importorskip("agents")
    from hosts_recipes import input_filter

    items: list[Any] = [{"role": "user", "content": "sort out the depot"}]
    for n in range(40):
        items.append({"type": "function_call", "call_id": f"c{n}", "name": "bay", "arguments": "{}"})
        items.append({"type": "function_call_output", "call_id": f"c{n}", "output": "box " * 60})
    data = agents.run.CallModelData(
        model_data=agents.run.ModelInputData(input=items, instructions="You keep a depot."),
        agent=agents.Agent(name="a"),
        context=None,
    )
    shaped = input_filter(data, budget=600).input
    assert 2 < len(shaped) < len(items)
    calls = {item["call_id"] for item in shaped if item.get("type") == "function_call"}
    outputs = {item["call_id"] for item in shaped if item.get("type") == "function_call_output"}
    assert calls == outputs
    assert items[0] in shaped
