"""What HttpRunner finds out about a server, and how it speaks to each kind."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from agentkit_fast import (
    ChatOptions,
    ContextTruncated,
    InputTooLarge,
    Message,
    RunnerProfile,
    ToolCall,
    ToolDef,
)
from agentkit_fast.runners._http.profiles import PROVIDERS, Provider, by_name
from agentkit_fast.runners._http.request import chat_body, encode_body, endpoint_of
from agentkit_fast.runners._http.roles import for_template
from agentkit_fast.runners.http import HttpRunner
from servers import Wire, WireServer, says

HELLO = [Message(role="user", content="hello")]
TOOL = ToolDef(name="f", description="d")


def gives(value: Any, status: int = 200, **headers: str) -> Any:
    return lambda wire: wire.whole(value, status, **headers)


LLAMA_PROPS = {
    "default_generation_settings": {"n_ctx": 4096},
    "total_slots": 4,
    "chat_template": "{{ raise_exception('Conversation roles must alternate') }}",
    "chat_template_caps": {"supports_tools": True, "supports_system_role": False},
}
SERVERS = [
    pytest.param(
        {
            "/v1/models": gives({"data": [{"id": "m", "owned_by": "llamacpp", "meta": {"n_ctx": 98304}}]}),
            "/props": gives(LLAMA_PROPS),
        },
        "llama.cpp",
        {
            "context_tokens": 4096,
            "grammar": True,
            "alternate": True,
            "system_role": False,
            "native_tools": True,
        },
        id="llama.cpp: the slot's window, not the advertised one",
    ),
    pytest.param(
        {
            "/v1/models": gives(
                {"data": [{"id": "other", "max_model_len": 1}, {"id": "m", "max_model_len": 32768}]}
            )
        },
        "vllm",
        {"context_tokens": 32768, "grammar": False, "json_schema": True},
        id="vllm: max_model_len of this model",
    ),
    pytest.param(
        {
            "/v1/models": gives({"data": [{"id": "m", "owned_by": "library"}]}),
            "/api/version": gives({"version": "0.9.0"}),
            "/api/ps": gives({"models": [{"name": "m", "context_length": 8192}]}),
        },
        "ollama",
        {"context_tokens": 8192, "grammar": False},
        id="ollama: the loaded model's window",
    ),
    pytest.param(
        {
            "/v1/models": gives({"data": [{"id": "m"}]}),
            "/api/version": gives({"version": "0.9.0"}),
            "/api/show": gives(
                {
                    "parameters": 'stop "x"\nnum_ctx                        16384',
                    "model_info": {"llama.context_length": 131072},
                }
            ),
        },
        "ollama",
        {"context_tokens": 16384},
        id="ollama: num_ctx, not the training length",
    ),
    pytest.param(
        {
            "/v1/models": gives({"data": [{"id": "m", "owned_by": "organization_owner"}]}),
            "/api/v0/models/m": gives({"loaded_context_length": 6144, "max_context_length": 131072}),
        },
        "lmstudio",
        {"context_tokens": 6144},
        id="lmstudio: the loaded window",
    ),
    pytest.param(
        {"/v1/models": gives({"data": [{"id": "m", "owned_by": "system"}]})},
        "openai",
        {"context_tokens": 0},
        id="openai",
    ),
    pytest.param(
        {"/v1/models": gives({"data": [{"id": "m"}]}, anthropic_version="2023-06-01")},
        "anthropic",
        {},
        id="anthropic-shaped",
    ),
    pytest.param(
        {"/v1/models": gives({"data": [{"id": "m", "context_length": 200000}]})},
        "unknown",
        {"context_tokens": 200000},
        id="a gateway that tells the window",
    ),
    pytest.param(
        {},
        "unknown",
        {"context_tokens": 0, "native_tools": True, "system_role": True},
        id="a server that tells nothing",
    ),
    pytest.param(
        {
            path: gives(b"<html>ok</html>", content_type="text/html")
            for path in ("/v1/models", "/props", "/api/version")
        },
        "unknown",
        {"context_tokens": 0},
        id="a server that answers everything with a page",
    ),
    pytest.param(
        {
            "/v1/models": gives([1, {"data": 3}]),
            "/props": gives({"default_generation_settings": [], "total_slots": "x"}),
        },
        "llama.cpp",
        {"context_tokens": 0},
        id="wrong types",
    ),
]


@pytest.mark.parametrize(("routes", "name", "want"), SERVERS)
def test_found_out_by_asking(routes: dict[str, Any], name: str, want: dict[str, Any]) -> None:
    with WireServer(says("a"), routes=routes) as wire:
        with HttpRunner(wire.url, "m") as runner:
            profile = runner.profile
            asked = len(wire.requests)
            assert runner.profile is not None
            assert runner.context_window() == profile.context_tokens
            assert len(wire.requests) == asked, "asked once"
        assert runner.provider.name == name
        for field, value in want.items():
            assert getattr(profile, field) == value, field

        async def run() -> RunnerProfile:
            async with HttpRunner(wire.url, "m") as other:
                return await other.aprofile()

        again = asyncio.run(run())
    for field, value in want.items():
        assert getattr(again, field) == value, field


def test_a_chat_alone_asks_nothing() -> None:
    with WireServer(says("a")) as wire, HttpRunner(wire.url, "m") as runner:
        list(runner.chat_stream(HELLO))
    assert [request.method for request in wire.requests] == ["POST"]


def test_nothing_is_sent_that_was_not_asked_for() -> None:
    with WireServer(says("a")) as wire, HttpRunner(wire.url, "m") as runner:
        list(runner.chat_stream(HELLO))
    assert wire.posts[0].json == {
        "model": "m",
        "messages": [{"role": "user", "content": "hello"}],
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def test_what_the_caller_says_overrides() -> None:
    with WireServer(says("a")) as wire:
        with HttpRunner(
            wire.url, "m", profile=RunnerProfile(context_tokens=5, system_role=False)
        ) as runner:
            assert runner.profile.context_tokens == runner.discover_context() == 5
            list(runner.chat_stream([Message(role="system", content="S"), *HELLO]))
        with HttpRunner(wire.url, "m", provider="ollama") as runner:
            assert runner.provider.name == "ollama"
        own = Provider(name="mine", max_tokens_key="limit")
        with HttpRunner(wire.url, "m", provider=own) as runner:
            list(runner.chat_stream(HELLO, options=ChatOptions(max_tokens=7)))
    assert [request.method for request in wire.requests] == ["POST", "POST"]
    assert wire.posts[0].json["messages"] == [{"role": "user", "content": "S\n\nhello"}]
    assert wire.posts[1].json["limit"] == 7
    with pytest.raises(ValueError, match=r"Known: llama\.cpp, vllm"):
        HttpRunner("http://x", "m", provider="lama")


def test_an_endpoint_that_is_down_is_asked_again_later() -> None:
    with HttpRunner("http://127.0.0.1:9", "m") as runner:
        assert runner.profile.context_tokens == 0
        assert runner.provider.name == "unknown"
        assert not runner._found.reached


def test_the_window_read_from_a_refusal() -> None:
    body = {
        "error": {
            "message": "This model's maximum context length is 8192 tokens. However, you requested 3000010 tokens"
        }
    }
    with WireServer(gives(body, 400)) as wire, HttpRunner(wire.url, "m") as runner:
        assert runner.context_window() == 0
        assert runner.discover_context() == 8192
        assert runner.discover_context() == 8192
        assert runner.profile.context_tokens == 8192
    assert len(wire.posts) == 1


ALL = ChatOptions(
    tool_choice="f",
    grammar="root ::= [a-z]",
    response_format={"type": "json_object"},
    temperature=0.0,
    top_p=1.0,
    seed=0,
    stop=("x",),
    max_tokens=9,
    frequency_penalty=0.0,
    presence_penalty=0.1,
    repeat_penalty=1.1,
    reasoning_budget_tokens=0,
    reasoning_budget_message="enough",
    enable_thinking=False,
    extra={"min_p": 0.05},
)
COMMON = {
    "temperature": 0.0,
    "top_p": 1.0,
    "seed": 0,
    "stop": ["x"],
    "frequency_penalty": 0.0,
    "presence_penalty": 0.1,
    "response_format": {"type": "json_object"},
    "min_p": 0.05,
}
NAMED = {"type": "function", "function": {"name": "f"}}
MAPPED: dict[str, dict[str, Any]] = {
    "llama.cpp": {
        "grammar": "root ::= [a-z]",
        "max_tokens": 9,
        "repeat_penalty": 1.1,
        "thinking_budget_tokens": 0,
        "reasoning_budget_message": "enough",
        "chat_template_kwargs": {"enable_thinking": False},
        "tool_choice": "required",
    },
    "vllm": {
        "structured_outputs": {"grammar": "root ::= [a-z]"},
        "max_tokens": 9,
        "repetition_penalty": 1.1,
        "thinking_token_budget": 0,
        "chat_template_kwargs": {"enable_thinking": False},
        "tool_choice": NAMED,
    },
    "ollama": {
        "grammar": "root ::= [a-z]",
        "max_tokens": 9,
        "reasoning_effort": "none",
        "tool_choice": NAMED,
    },
    "lmstudio": {
        "grammar": "root ::= [a-z]",
        "max_tokens": 9,
        "repeat_penalty": 1.1,
        "reasoning_effort": "none",
        "tool_choice": "required",
    },
    "openai": {
        "grammar": "root ::= [a-z]",
        "max_completion_tokens": 9,
        "reasoning_effort": "none",
        "tool_choice": NAMED,
    },
    "anthropic": {
        "grammar": "root ::= [a-z]",
        "max_tokens": 9,
        "thinking": {"budget_tokens": 0, "type": "disabled"},
        "tool_choice": NAMED,
    },
    "unknown": {
        "grammar": "root ::= [a-z]",
        "max_tokens": 9,
        "repeat_penalty": 1.1,
        "thinking_budget_tokens": 0,
        "reasoning_budget_message": "enough",
        "chat_template_kwargs": {"enable_thinking": False},
        "tool_choice": NAMED,
    },
}


@pytest.mark.parametrize("name", [provider.name for provider in PROVIDERS])
def test_every_option_as_each_provider_calls_it(name: str) -> None:
    body = chat_body("m", HELLO, [TOOL], ALL, by_name(name), stream=False)
    rest = {
        key: value for key, value in body.items() if key not in ("model", "messages", "stream", "tools")
    }
    assert rest == {**COMMON, **MAPPED[name]}
    assert body["tools"] == [TOOL.to_wire()]


def test_extra_wins_and_the_options_are_not_changed() -> None:
    extra = {"chat_template_kwargs": {"a": 1}, "temperature": 0.7}
    options = ChatOptions(enable_thinking=True, temperature=0.1, extra=extra)
    body = chat_body("m", HELLO, (), options, by_name("llama.cpp"), stream=False)
    assert body["temperature"] == 0.7
    assert body["chat_template_kwargs"] == {"a": 1, "enable_thinking": True}
    assert extra == {"chat_template_kwargs": {"a": 1}, "temperature": 0.7}


def test_reasoning_goes_out_where_it_is_taken() -> None:
    past = [
        *HELLO,
        Message(role="assistant", content="a", reasoning="hm", tool_calls=(ToolCall(id="k", name="f"),)),
    ]
    for name, there in (("llama.cpp", True), ("openai", False)):
        body = chat_body("m", past, (), ChatOptions(), by_name(name), stream=False)
        assert ("reasoning_content" in body["messages"][1]) is there


def test_what_was_refused_is_not_sent_again() -> None:
    unsupported = {
        "error": {"message": "Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens' instead."}
    }
    strict = {
        "detail": [
            {
                "type": "extra_forbidden",
                "loc": ["body", "stream_options"],
                "msg": "Extra inputs are not permitted",
            }
        ]
    }
    with (
        WireServer(gives(unsupported, 400), gives(strict, 422), says("a")) as wire,
        HttpRunner(wire.url, "m") as runner,
    ):
        for _ in range(2):
            assert list(runner.chat_stream(HELLO, options=ChatOptions(max_tokens=5)))[-1].done
    assert len(wire.posts) == 4
    for request in wire.posts[2:]:
        assert request.json["max_completion_tokens"] == 5
        assert "max_tokens" not in request.json
        assert "stream_options" not in request.json


S, U, A = ({"role": role, "content": role[0]} for role in ("system", "user", "assistant"))
CALLING = {
    "role": "assistant",
    "content": "",
    "tool_calls": [{"id": "k", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
}
RESULT = {"role": "tool", "content": "r", "tool_call_id": "k", "name": "f"}
ROLES = [
    pytest.param({}, [S, U, A], [S, U, A], id="nothing-to-do"),
    pytest.param(
        {"system_role": False}, [S, U, A], [{"role": "user", "content": "s\n\nu"}, A], id="no-system-role"
    ),
    pytest.param(
        {"system_role": False}, [S], [{"role": "user", "content": "s"}], id="only-a-system-message"
    ),
    pytest.param(
        {"system_role": False},
        [S, S, A, U],
        [A, {"role": "user", "content": "s\n\ns\n\nu"}],
        id="two-system-messages",
    ),
    pytest.param(
        {"system_role": False},
        [S, {"role": "user", "content": [{"type": "image_url", "image_url": {}}]}],
        [
            {
                "role": "user",
                "content": [{"type": "text", "text": "s"}, {"type": "image_url", "image_url": {}}],
            }
        ],
        id="before-an-image",
    ),
    pytest.param(
        {"alternate": True},
        [S, U, U, A, A],
        [S, {"role": "user", "content": "u\n\nu"}, {"role": "assistant", "content": "a\n\na"}],
        id="neighbours",
    ),
    pytest.param(
        {"alternate": True},
        [U, CALLING, RESULT, RESULT, A],
        [U, CALLING, RESULT, RESULT, A],
        id="results-stay-apart",
    ),
    pytest.param(
        {"alternate": True, "native_tools": False},
        [U, CALLING, RESULT, RESULT],
        [
            U,
            {"role": "assistant", "content": "@@call f\n{ }\n@@end"},
            {"role": "user", "content": "Result of f:\nr\n\nResult of f:\nr"},
        ],
        id="tools-as-text",
    ),
]


@pytest.mark.parametrize(("profile", "messages", "want"), ROLES)
def test_roles(
    profile: dict[str, bool], messages: list[dict[str, Any]], want: list[dict[str, Any]]
) -> None:
    settings = {"system_role": True, "alternate": False, "native_tools": True, **profile}
    before = json.dumps(messages)
    got = for_template(messages, **settings)
    assert got == want
    assert for_template(got, **settings) == want
    assert json.dumps(messages) == before


@pytest.mark.parametrize(
    ("given", "root", "api"),
    [
        ("http://h:1", "http://h:1", "http://h:1/v1"),
        ("http://h:1/", "http://h:1", "http://h:1/v1"),
        ("http://h:1/v1", "http://h:1", "http://h:1/v1"),
        ("http://h:1/v1/", "http://h:1", "http://h:1/v1"),
        ("h:1", "http://h:1", "http://h:1/v1"),
        ("https://h/api/paas/v4", "https://h/api/paas", "https://h/api/paas/v4"),
        ("https://h/openai/v1beta", "https://h/openai", "https://h/openai/v1beta"),
        ("https://h/v1/chat/completions", "https://h", "https://h/v1"),
        ("https://h/proxy", "https://h/proxy", "https://h/proxy/v1"),
        ("http://[::1]:8080/v1", "http://[::1]:8080", "http://[::1]:8080/v1"),
    ],
)
def test_the_base_url(given: str, root: str, api: str) -> None:
    assert endpoint_of(given) == (root, api)


def test_messages_of_every_kind_and_lone_surrogates() -> None:
    class Window:
        messages = (HELLO[0],)

    for messages in (HELLO, tuple(HELLO), [HELLO[0].to_wire()], Window()):
        body = chat_body("m", messages, (), ChatOptions(), by_name("unknown"), stream=False)
        assert body["messages"] == [{"role": "user", "content": "hello"}]
    broken = [{"role": "user", "content": "a\ud800b", "x\udc00": ["\ud83d\ude00"]}]
    body = chat_body("m\ud800", broken, (), ChatOptions(stop=("\ud800",)), by_name("unknown"), stream=False)
    sent = json.loads(encode_body(body))
    assert sent["messages"] == [{"role": "user", "content": "a\ufffdb", "x\ufffd": ["😀"]}]
    with pytest.raises(TypeError, match="not int"):
        chat_body("m", [1], (), ChatOptions(), by_name("unknown"), stream=False)
    with pytest.raises(TypeError, match="not int"):
        chat_body("m", HELLO, [1], ChatOptions(), by_name("unknown"), stream=False)


def test_a_windows_own_json_goes_out_as_it_is() -> None:
    from agentkit_fast import Entry, MemoryStore, plain_window

    store = MemoryStore()
    store.append("s", Entry(kind="user", content='hé "quoted"\n'))
    store.append("s", Entry(kind="assistant", content="a", reasoning="hm"))
    store.append("s", Entry(kind="user", content="b"))
    window = plain_window(store, "s", "Be brief.")
    with WireServer(says("a")) as wire:
        with HttpRunner(wire.url, "m") as runner:
            list(runner.chat_stream(window))
        with HttpRunner(wire.url, "m", profile=RunnerProfile(system_role=False)) as runner:
            list(runner.chat_stream(window))
    assert wire.posts[0].json["messages"] == json.loads(window.to_json())
    assert [m["role"] for m in wire.posts[1].json["messages"]] == ["user", "assistant", "user"]
    assert wire.posts[1].json["messages"][0]["content"].startswith("Be brief.")


def test_tools_that_no_template_shows_are_told_of_once(caplog: pytest.LogCaptureFixture) -> None:
    props = {**LLAMA_PROPS, "chat_template_caps": {"supports_tools": False}}
    with (
        WireServer(says("a"), routes={"/props": gives(props)}) as wire,
        HttpRunner(wire.url, "m") as runner,
    ):
        assert not runner.profile.native_tools
        for _ in range(2):
            list(runner.chat_stream(HELLO, [TOOL]))
    (record,) = caplog.records
    assert "heredoc" in record.getMessage()


def test_chat_notices_what_chat_stream_notices() -> None:
    long = [
        Message(role="user", content="The quick brown fox jumps over the lazy dog near the mill. " * 1000)
    ]
    usage = {"prompt_tokens": 2051, "completion_tokens": 1}
    cut = {"choices": [{"message": {"content": "a"}, "finish_reason": "stop"}], "usage": usage}
    with WireServer(gives(cut)) as wire, HttpRunner(wire.url, "m") as runner:
        with pytest.raises(ContextTruncated):
            runner.chat(long)
        assert runner.chat(HELLO).content == "a"
    lost = {"error": "no user query found in messages"}
    with WireServer(gives(lost)) as wire, HttpRunner(wire.url, "m") as runner, pytest.raises(InputTooLarge):
        runner.chat(HELLO)


def test_embeddings() -> None:
    def answers(wire: Wire) -> None:
        texts = wire.request.json["input"]
        data = [{"index": n, "embedding": [float(len(text)), 0.5]} for n, text in enumerate(texts)]
        wire.whole({"data": data[::-1]})

    texts = [f"{'x' * n}" for n in range(300)]
    with WireServer(answers) as wire, HttpRunner(wire.url, "m") as runner:
        assert runner.embed(texts, "e") == [[float(n), 0.5] for n in range(300)]
        assert runner.embed([]) == []
        assert asyncio.run(runner.aembed(["ab"])) == [[2.0, 0.5]]
        with pytest.raises(TypeError, match="a list of texts"):
            runner.embed("text")
    assert wire.posts[0].json["model"] == "e"
    short = {"data": [{"index": 0, "embedding": [1.0]}]}
    with (
        WireServer(gives(short)) as wire,
        HttpRunner(wire.url, "m") as runner,
        pytest.raises(Exception, match="1 vectors for 2 texts"),
    ):
        runner.embed(["a", "b"])
    packed = {"data": [{"index": 0, "embedding": "AACAPwAAAEA="}]}
    with WireServer(gives(packed)) as wire, HttpRunner(wire.url, "m") as runner:
        assert runner.embed(["a"]) == [[1.0, 2.0]]
