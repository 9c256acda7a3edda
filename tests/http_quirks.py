"""What servers really send: one row for each quirk, with where it was seen and what we make of it.

`docs/providers.md` shows these rows (`scripts/quirk_table.py`), so that table cannot drift from what is tested. The
recordings are written by hand after the reports named in `seen`; each holds just what its quirk needs.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from agentkit_fast.messages import Usage
from servers import delta, event, stream


@dataclass(frozen=True)
class Quirk:
    """One answer of a server and what must come of it."""

    id: str
    area: str
    seen: str
    """Server or public issue in which it was seen."""
    what: str
    """What the server does."""
    ours: str
    """What comes of it here."""
    body: bytes
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    content: str = ""
    reasoning: str = ""
    calls: tuple[tuple[str, Any], ...] = ()
    """`(name, arguments)`: arguments as a value, or as a `str` that is the exact text."""
    ids: tuple[str, ...] | None = None
    finish: str = "stop"
    usage: Usage | None = None
    error: str = ""
    """Name of the exception, empty for a good reply."""
    attributes: dict[str, Any] = field(default_factory=dict)
    """What the exception must carry."""
    max_tokens: int = 0
    sent: str = "hello"
    """The user's message."""


def frag(name: str | None = None, arguments: Any = None, **fields: Any) -> dict[str, Any]:
    """One tool-call fragment."""
    function = {}
    if name is not None:
        function["name"] = name
    if arguments is not None:
        function["arguments"] = arguments
    return {**fields, "function": function}


def calls(*fragments: Any, finish: str | None = "tool_calls", **fields: Any) -> bytes:
    """A stream with one delta for each fragment (or list of fragments)."""
    deltas = [{"tool_calls": part if isinstance(part, list) else [part]} for part in fragments]
    return stream(*deltas, finish=finish, **fields)


A = {"path": "a.txt"}
B = {"path": "b.txt"}
READ_A = ("read_file", A)
READ_B = ("read_file", B)
A_TEXT = '{"path":"a.txt"}'
B_TEXT = '{"path":"b.txt"}'
JSON = {"content-type": "application/json"}


def error_body(**fields: Any) -> bytes:
    return json.dumps({"error": fields}).encode()


FRAMING = (
    Quirk(
        "framing-wrong-type",
        "framing",
        "small servers",
        "a stream with content type `application/json`",
        "read as the stream it is",
        stream({"content": "a"}, {"content": "b"}),
        headers={"content-type": "application/json"},
        content="ab",
    ),
    Quirk(
        "framing-no-blank-line",
        "framing",
        "small servers",
        "no blank line between events",
        "each line is an event",
        stream({"content": "a"}, {"content": "b"}).replace(b"\n\n", b"\n"),
        content="ab",
    ),
    Quirk(
        "framing-crlf",
        "framing",
        "WHATWG; proxies on Windows",
        "lines end in CRLF",
        "read like LF",
        stream({"content": "a"}, {"content": "b"}).replace(b"\n", b"\r\n"),
        content="ab",
    ),
    Quirk(
        "framing-cr",
        "framing",
        "WHATWG",
        "lines end in a lone CR",
        "read like LF",
        stream({"content": "a"}, {"content": "b"}).replace(b"\n", b"\r"),
        content="ab",
    ),
    Quirk(
        "framing-no-space",
        "framing",
        "WHATWG; SamSaffron/term-llm#298",
        "no space after `data:`",
        "read alike",
        stream({"content": "a"}).replace(b"data: ", b"data:"),
        content="a",
    ),
    Quirk(
        "framing-comments",
        "framing",
        "llama.cpp (pings in a long prefill); OpenRouter",
        "comment lines between and inside events",
        "passed over",
        b": ping\n\n:\n"
        + event(delta(content="a"))
        + b": x\n"
        + event(delta("stop"))
        + b": y\n\ndata: [DONE]\n\n",
        content="a",
    ),
    Quirk(
        "framing-fields",
        "framing",
        "WHATWG",
        "`event`, `id` and `retry` fields, a byte order mark",
        "passed over",
        b"\xef\xbb\xbfevent: message\nid: 1\nretry: 10\n" + stream({"content": "a"}),
        content="a",
    ),
    Quirk(
        "framing-multi-line",
        "framing",
        "WHATWG",
        "one event's JSON on several `data` lines",
        "joined by LF",
        b'data: {"choices":[{"index":0,\ndata: "delta":{"content":"a"},\ndata:\ndata: "finish_reason":"stop"}]}\n\n',
        content="a",
    ),
    Quirk(
        "framing-no-blank-line",
        "framing",
        "small proxies",
        "the last event lacks its blank line",
        "read all the same",
        stream({"content": "a"})[:-2],
        content="a",
    ),
    Quirk(
        "framing-utf8",
        "framing",
        "BerriAI/litellm#18842",
        "a code point cut by a TCP segment",
        "bytes are joined before they are decoded",
        stream({"content": "héllo 🦙 語"}),
        content="héllo 🦙 語",
    ),
    Quirk(
        "framing-surrogates",
        "framing",
        "JSON escapes cut between two deltas",
        "half a surrogate pair at the end of a delta, the rest in the next",
        "joined; a lone half becomes U+FFFD",
        b'data: {"choices":[{"delta":{"content":"a\\ud83e"}}]}\n\ndata: {"choices":[{"delta":{"content":"\\udd99b"}}]}\n\n'
        b'data: {"choices":[{"delta":{"content":"\\ude00"},"finish_reason":"stop"}]}\n\n',
        content="a🦙b\ufffd",
    ),
    Quirk(
        "framing-bad-utf8",
        "framing",
        "byte-fallback tokens sent raw",
        "bytes that are no UTF-8",
        "each becomes U+FFFD",
        stream({"content": "aXb"}).replace(b"X", b"\xff"),
        content="a\ufffdb",
    ),
    Quirk(
        "framing-not-a-stream",
        "framing",
        "gateways that ignore `stream`",
        "one JSON body instead of a stream",
        "read as the reply",
        json.dumps(
            {
                "choices": [
                    {
                        "message": {"content": "a", "tool_calls": [frag("f", "{}", id="k")]},
                        "finish_reason": "tool_calls",
                    }
                ],
                "usage": {"prompt_tokens": 3, "completion_tokens": 2},
            }
        ).encode(),
        headers=JSON,
        content="a",
        calls=(("f", {}),),
        ids=("k",),
        finish="tool_calls",
        usage=Usage(prompt_tokens=3, completion_tokens=2, total_tokens=5),
    ),
)

CALLS = (
    Quirk(
        "calls-openai",
        "tool calls",
        "OpenAI",
        "index, id and name first, then arguments in pieces",
        "joined by index",
        calls(
            [frag("read_file", "", index=0, id="k1", type="function")],
            frag(None, '{"path":', index=0),
            frag(None, '"a.txt"}', index=0),
            [frag("read_file", "", index=1, id="k2")],
            frag(None, B_TEXT, index=1),
        ),
        calls=(READ_A, READ_B),
        ids=("k1", "k2"),
        finish="tool_calls",
    ),
    Quirk(
        "calls-interleaved",
        "tool calls",
        "OpenAI",
        "fragments of two calls in turn",
        "joined by index",
        calls(
            [
                frag("read_file", '{"path"', index=0, id="k1"),
                frag("read_file", '{"path"', index=1, id="k2"),
            ],
            [frag(None, ':"b.txt"}', index=1), frag(None, ':"a.txt"}', index=0)],
        ),
        calls=(READ_A, READ_B),
        ids=("k1", "k2"),
        finish="tool_calls",
    ),
    Quirk(
        "calls-same-index",
        "tool calls",
        "huggingface/smolagents#1958; apache/maka#1976; BerriAI/litellm#37792",
        "every call has index 0",
        "a new id with a name opens a new call",
        calls(frag("read_file", A_TEXT, index=0, id="k1"), frag("read_file", B_TEXT, index=0, id="k2")),
        calls=(READ_A, READ_B),
        ids=("k1", "k2"),
        finish="tool_calls",
    ),
    Quirk(
        "calls-same-index-pieces",
        "tool calls",
        "BerriAI/litellm#37792",
        "every call has index 0, arguments in pieces",
        "a new id with a name opens a new call",
        calls(
            frag("read_file", "", index=0, id="k1"),
            frag(None, '{"path":', index=0),
            frag(None, '"a.txt"}', index=0),
            frag("read_file", "", index=0, id="k2"),
            frag(None, B_TEXT, index=0),
        ),
        calls=(READ_A, READ_B),
        ids=("k1", "k2"),
        finish="tool_calls",
    ),
    Quirk(
        "calls-same-index-no-id",
        "tool calls",
        "small servers",
        "index 0 for all, no id",
        "a closed object and a name open a new call",
        calls(frag("read_file", A_TEXT, index=0), frag("read_file", B_TEXT, index=0)),
        calls=(READ_A, READ_B),
        finish="tool_calls",
    ),
    Quirk(
        "calls-no-index",
        "tool calls",
        "SamSaffron/term-llm#314; openai/openai-python#3246; ollama/ollama#7881",
        "no index at all",
        "joined by id; without one, to the last call",
        calls(
            frag("save", '{"path":"a.txt",', id="k1"),
            frag(None, '"body":"A"}'),
            frag("save", '{"path":"b.txt","body":"B"}', id="k2"),
        ),
        calls=(("save", {"path": "a.txt", "body": "A"}), ("save", {"path": "b.txt", "body": "B"})),
        ids=("k1", "k2"),
        finish="tool_calls",
    ),
    Quirk(
        "calls-no-index-no-id",
        "tool calls",
        "Ollama before 0.5",
        "neither index nor id, whole calls",
        "each name opens a call; ids are made",
        calls(frag("read_file", A_TEXT), frag("read_file", B_TEXT), frag("now", "{}")),
        calls=(READ_A, READ_B, ("now", {})),
        finish="tool_calls",
    ),
    Quirk(
        "calls-index-later",
        "tool calls",
        "ollama/ollama#7881; BerriAI/litellm#37792; lmstudio-ai/lmstudio-bug-tracker#649",
        "no index, then an index; empty id and name in between; `tool_calls: []`; `content: null`; finish `stop`",
        "calls are the signal, not the finish reason",
        stream(
            {"tool_calls": [frag("read_file", '{"path":', id="c1", type="function")]},
            {"tool_calls": [frag("", '"a.txt"}', id="")]},
            {"tool_calls": [frag("read_file", B_TEXT, index=0, id="c2")]},
            {"content": None},
            {"tool_calls": []},
        ),
        calls=(READ_A, READ_B),
        ids=("c1", "c2"),
    ),
    Quirk(
        "calls-no-id",
        "tool calls",
        "continuedev/continue#13235; lmstudio-ai/lmstudio-bug-tracker#830",
        "no id, or an empty one",
        "an id is made and used for call and result",
        calls(frag("read_file", '{"path":', index=0), frag(None, '"a.txt"}', index=0, id="")),
        calls=(READ_A,),
        finish="tool_calls",
    ),
    Quirk(
        "calls-constant-id",
        "tool calls",
        "small servers",
        "one id for all calls of a reply",
        "the index tells them apart; ids become distinct",
        calls(
            frag("read_file", A_TEXT, index=0, id="call_1"), frag("read_file", B_TEXT, index=1, id="call_1")
        ),
        calls=(READ_A, READ_B),
        finish="tool_calls",
    ),
    Quirk(
        "calls-constant-id-no-index",
        "tool calls",
        "small servers",
        "one id for all calls and no index",
        "a closed object and a name open a new call",
        calls(frag("read_file", A_TEXT, id="call_1"), frag("read_file", B_TEXT, id="call_1")),
        calls=(READ_A, READ_B),
        finish="tool_calls",
    ),
    Quirk(
        "calls-new-id-each-time",
        "tool calls",
        "gateways that number every chunk",
        "a new id with every fragment",
        "no name, no new call",
        calls(
            frag("read_file", "", index=0, id="k1"),
            frag(None, '{"path":', index=0, id="k2"),
            frag(None, '"a.txt"}', index=0, id="k3"),
        ),
        calls=(READ_A,),
        ids=("k1",),
        finish="tool_calls",
    ),
    Quirk(
        "calls-repeated-name",
        "tool calls",
        "vLLM with a named tool choice",
        "the name in every fragment",
        "taken once",
        calls(
            frag("read_file", '{"path":', index=0, id="k1"),
            frag("read_file", '"a.txt"', index=0),
            frag("read_file", "}", index=0),
            frag("read_file", "", index=0),
        ),
        calls=(READ_A,),
        ids=("k1",),
        finish="tool_calls",
    ),
    Quirk(
        "calls-repeated-name-and-id",
        "tool calls",
        "gateways",
        "id and name in every fragment, nested object at a cut",
        "still one call",
        calls(
            frag("put", '{"value":', index=0, id="k1"),
            frag("put", '{"x":1}', index=0, id="k1"),
            frag("put", "}", index=0, id="k1"),
        ),
        calls=(("put", {"value": {"x": 1}}),),
        ids=("k1",),
        finish="tool_calls",
    ),
    Quirk(
        "calls-empty-name",
        "tool calls",
        "lmstudio-ai/lmstudio-bug-tracker#649",
        '`name: ""` in every later fragment',
        "never overwrites the name",
        calls(frag("read_file", '{"path":', index=0, id="k1"), frag("", '"a.txt"}', index=0)),
        calls=(READ_A,),
        finish="tool_calls",
    ),
    Quirk(
        "calls-object-arguments",
        "tool calls",
        "ggml-org/llama.cpp#20198; vllm-project/vllm#9693",
        "arguments as an object, or null",
        "written out as JSON; null means none",
        calls(
            frag("list_dir", {"path": "/tmp", "depth": 2}, index=0, id="a"),
            {"index": 1, "id": "b", "function": {"name": "now", "arguments": None}},
        ),
        calls=(("list_dir", {"path": "/tmp", "depth": 2}), ("now", {})),
        ids=("a", "b"),
        finish="tool_calls",
    ),
    Quirk(
        "calls-absent-arguments",
        "tool calls",
        "vllm-project/vllm#28806",
        "no arguments for a tool without parameters",
        "`{}`",
        calls({"index": 0, "id": "a", "function": {"name": "now"}}),
        calls=(("now", {}),),
        finish="tool_calls",
    ),
    Quirk(
        "calls-bare",
        "tool calls",
        "small servers",
        "name and arguments beside the id, no `function`",
        "read alike",
        calls({"index": 0, "id": "a", "name": "read_file", "arguments": A_TEXT}),
        calls=(READ_A,),
        finish="tool_calls",
    ),
    Quirk(
        "calls-object-not-list",
        "tool calls",
        "small servers",
        "`tool_calls` is one object",
        "read as a list of one",
        stream({"tool_calls": frag("read_file", A_TEXT, id="a")}, finish="tool_calls"),
        calls=(READ_A,),
        finish="tool_calls",
    ),
    Quirk(
        "calls-legacy",
        "tool calls",
        "llama-cpp-python (functionary); OpenAI in 2023",
        "`function_call` instead of `tool_calls`",
        "read as one call",
        stream(
            {"function_call": {"name": "read_file", "arguments": '{"path":'}},
            {"function_call": {"name": "", "arguments": '"a.txt"}'}},
            finish="function_call",
        ),
        calls=(READ_A,),
        finish="function_call",
    ),
    Quirk(
        "calls-index-string",
        "tool calls",
        "small servers",
        "the index is a string",
        "read as a number",
        calls(frag("read_file", '{"path":', index="0", id="k1"), frag(None, '"a.txt"}', index="0")),
        calls=(READ_A,),
        finish="tool_calls",
    ),
    Quirk(
        "calls-leaked-token",
        "tool calls",
        "vllm-project/vllm#32587",
        "a channel token in the name",
        "the name ends before it",
        calls(frag("bash<|channel|>commentary", "{}", index=0, id="k1")),
        calls=(("bash", {}),),
        finish="tool_calls",
    ),
    Quirk(
        "calls-finish-stop",
        "tool calls",
        "BerriAI/litellm#35663; Ollama",
        "finish `stop` after calls",
        "the calls count",
        calls(frag("read_file", A_TEXT, index=0, id="k1"), finish="stop"),
        calls=(READ_A,),
    ),
    Quirk(
        "calls-cut-length",
        "tool calls",
        "langchain-ai/langchain#39275",
        "arguments cut by the token limit",
        "given as they are, with `length`; nothing closes them",
        calls(frag("save", '{"path":"list.txt","body":"apples, pea', index=0, id="k1"), finish="length"),
        calls=(("save", '{"path":"list.txt","body":"apples, pea'),),
        finish="length",
    ),
    Quirk(
        "calls-cut-unsaid",
        "tool calls",
        "vllm-project/vllm#58228",
        "the token limit cut the call, the finish reason says `tool_calls`",
        "`length`, by the token count",
        calls(
            frag("save", '{"body":"apples, pea', index=0, id="k1"),
            usage={"prompt_tokens": 9, "completion_tokens": 20},
        ),
        calls=(("save", '{"body":"apples, pea'),),
        finish="length",
        max_tokens=20,
        usage=Usage(prompt_tokens=9, completion_tokens=20, total_tokens=29),
    ),
    Quirk(
        "calls-done-no-finish",
        "tool calls",
        "small servers",
        "`[DONE]` without a finish reason, the call is closed",
        "finished",
        calls(frag("read_file", A_TEXT, index=0, id="k1"), finish=None),
        calls=(READ_A,),
        finish="",
    ),
    Quirk(
        "calls-done-open",
        "tool calls",
        "NousResearch/hermes-agent#7693",
        "`[DONE]` without a finish reason, the call is open",
        "interrupted; the call is for diagnosis only",
        calls(frag("save", '{"path":"li', index=0, id="k1"), finish=None),
        error="StreamInterrupted",
        attributes={"calls": [("save", '{"path":"li')]},
    ),
    *(
        Quirk(
            f"calls-done-{id_}",
            "tool calls",
            "small servers",
            f"`[DONE]` without a finish reason, the arguments are {what}",
            "interrupted: such a call does not parse",
            calls(frag("save", text, index=0, id="k1"), finish=None),
            error="StreamInterrupted",
            attributes={"calls": [("save", text)]},
        )
        for id_, what, text in (
            ("malformed", "closed but malformed", '{"path": }'),
            ("trailing", "followed by one brace more", '{"path":"a"}}'),
            ("array", "an array", '["a"]'),
        )
    ),
)

ENDS = (
    Quirk(
        "end-nothing",
        "end of stream",
        "crashed servers",
        "the stream stops: no finish reason, no `[DONE]`",
        "interrupted, with the text so far",
        stream({"content": "half a"}, finish=None, done=False),
        error="StreamInterrupted",
        attributes={"text": "half a"},
    ),
    Quirk(
        "end-cut-event",
        "end of stream",
        "crashed servers",
        "the stream stops inside an event",
        "interrupted, with the text so far",
        stream({"content": "half a"}, finish=None, done=False) + b'data: {"choices":[{"delta":{"cont',
        error="StreamInterrupted",
        attributes={"text": "half a"},
    ),
    Quirk(
        "end-open-call",
        "end of stream",
        "langchain-ai/langchainjs#11469",
        "the stream stops inside a call",
        "interrupted; never a call",
        calls(frag("save", '{"path":"list.txt","body":"apples', index=0, id="k1"), finish=None, done=False),
        error="StreamInterrupted",
        attributes={"calls": [("save", '{"path":"list.txt","body":"apples')]},
    ),
    Quirk(
        "end-no-done",
        "end of stream",
        "Azure; small servers",
        "a finish reason but no `[DONE]`",
        "finished",
        stream({"content": "a"}, done=False),
        content="a",
    ),
    Quirk(
        "end-finish-with-content",
        "end of stream",
        "Mistral",
        "the finish reason on the last content delta",
        "both are taken",
        event(delta(content="a")) + event(delta("stop", content="b")) + b"data: [DONE]\n\n",
        content="ab",
    ),
    Quirk(
        "end-after-done",
        "end of stream",
        "proxies",
        "more events after `[DONE]`",
        "not read",
        stream({"content": "a"}) + event(delta(content="b")),
        content="a",
    ),
    Quirk(
        "end-error-event",
        "end of stream",
        "llama.cpp, vLLM",
        "an error object inside a 200 stream",
        "an error that carries it",
        event(delta(content="a"))
        + b'data: {"error":{"code":500,"message":"slot was lost","type":"server_error"}}\n\n',
        error="RunnerError",
        attributes={"body": "slot was lost"},
    ),
    Quirk(
        "end-error-named",
        "end of stream",
        "Anthropic-style gateways",
        "an error event named by `event: error`",
        "an error that carries it",
        b'event: error\ndata: {"type":"error","error":{"type":"api_error","message":"overheated"}}\n\n',
        error="RunnerError",
        attributes={"body": "overheated"},
    ),
    Quirk(
        "end-error-bare-line",
        "end of stream",
        "Ollama (native)",
        "an error on a bare JSON line, no `data:`",
        "an error that carries it",
        event(delta(content="a")) + b'{"error":"an error was encountered while running the model"}\n',
        error="RunnerError",
        attributes={"body": "an error was encountered"},
    ),
    Quirk(
        "end-error-named-bare",
        "end of stream",
        "gateways",
        "`event: error` whose data holds no `error` object, then `[DONE]`",
        "an error that carries it, not an empty reply",
        event(delta(content="a")) + b'event: error\ndata: {"message":"overheated"}\n\ndata: [DONE]\n\n',
        error="RunnerError",
        attributes={"body": "overheated"},
    ),
    Quirk(
        "end-error-named-text",
        "end of stream",
        "gateways",
        "`event: error` with plain text",
        "an error that carries it",
        b"event: error\ndata: it broke\n\ndata: [DONE]\n\n",
        error="RunnerError",
        attributes={"body": "it broke"},
    ),
    Quirk(
        "end-error-reason",
        "end of stream",
        "OpenRouter",
        "`finish_reason` is `error`",
        "interrupted, with the text so far",
        stream({"content": "half a"}, finish="error"),
        error="StreamInterrupted",
        attributes={"text": "half a"},
    ),
    Quirk(
        "end-error-json",
        "end of stream",
        "lmstudio-ai/lmstudio-bug-tracker#2322",
        "200 with an error body",
        "an error that carries it",
        b'{"error":{"message":"Model unloaded."}}',
        headers=JSON,
        error="RunnerError",
        attributes={"body": "Model unloaded"},
    ),
)

FIELDS = (
    Quirk(
        "fields-reasoning-content",
        "fields",
        "llama.cpp, DeepSeek",
        "`reasoning_content`",
        "kept apart from the content",
        stream({"role": "assistant", "content": None}, {"reasoning_content": "hm"}, {"content": "a"}),
        content="a",
        reasoning="hm",
    ),
    Quirk(
        "fields-reasoning",
        "fields",
        "vllm-project/vllm#27755; OpenRouter",
        "`reasoning` instead",
        "the same",
        stream({"reasoning": "hm"}, {"content": "a"}),
        content="a",
        reasoning="hm",
    ),
    Quirk(
        "fields-reasoning-both",
        "fields",
        "gateways",
        "both names, one text",
        "taken once",
        stream({"reasoning": "hm", "reasoning_content": "hm"}, {"content": "a"}),
        content="a",
        reasoning="hm",
    ),
    Quirk(
        "fields-content-parts",
        "fields",
        "Mistral",
        "content as a list of parts, thinking among them",
        "text and reasoning",
        stream(
            {
                "content": [
                    {"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]},
                    {"type": "text", "text": "a"},
                ]
            }
        ),
        content="a",
        reasoning="hm",
    ),
    Quirk(
        "fields-nulls",
        "fields",
        "vLLM",
        "every field there, most of them null",
        "null is nothing",
        b'data: {"choices":[{"delta":{"role":null,"content":"a","reasoning_content":null,"tool_calls":null,"function_call":null},'
        b'"finish_reason":null,"logprobs":null}],"usage":null}\n\n' + stream(),
        content="a",
    ),
    Quirk(
        "fields-empty-calls",
        "fields",
        "lmstudio-ai/lmstudio-bug-tracker#1318",
        "`tool_calls: []` in every delta",
        "no call",
        stream({"content": "a", "tool_calls": []}),
        content="a",
    ),
    Quirk(
        "fields-empty-choices",
        "fields",
        "Azure (content filter first)",
        "an event with `choices: []` at the start",
        "passed over",
        event({"choices": [], "prompt_filter_results": []}) + stream({"content": "a"}),
        content="a",
    ),
    Quirk(
        "fields-not-objects",
        "fields",
        "fuzzing",
        "events, choices and deltas of the wrong type",
        "passed over",
        b'data: 1\n\ndata: []\n\ndata: {"choices":[null]}\n\ndata: {"choices":"x"}\n\ndata: {"choices":[{"delta":[]}]}\n\n'
        + stream(
            {"content": 3, "tool_calls": "x"}, {"content": "a", "tool_calls": [None, 1, {}]}, finish="stop"
        ),
        content="a",
    ),
)

USAGE = (
    Quirk(
        "usage-last",
        "usage",
        "OpenAI, llama.cpp",
        "usage in an extra event with `choices: []`",
        "read to `[DONE]`",
        stream(
            {"content": "a"},
            usage={
                "prompt_tokens": 10,
                "completion_tokens": 2,
                "total_tokens": 12,
                "prompt_tokens_details": {"cached_tokens": 4},
            },
        ),
        content="a",
        usage=Usage(prompt_tokens=10, completion_tokens=2, total_tokens=12, cached_tokens=4),
    ),
    Quirk(
        "usage-on-finish",
        "usage",
        "Mistral, Groq",
        "usage on the finish chunk",
        "read there",
        event(delta(content="a"))
        + event({**delta("stop"), "usage": {"prompt_tokens": 10, "completion_tokens": 2}})
        + b"data: [DONE]\n\n",
        content="a",
        usage=Usage(prompt_tokens=10, completion_tokens=2, total_tokens=12),
    ),
    Quirk(
        "usage-twice",
        "usage",
        "can1357/oh-my-pi#5022",
        "usage twice, the cache figure only in the second",
        "the last word that is not null wins",
        event(delta(content="a"))
        + event({**delta("stop"), "usage": {"prompt_tokens": 10, "completion_tokens": 2}})
        + event(
            {
                "choices": [],
                "usage": {
                    "prompt_tokens": 10,
                    "completion_tokens": None,
                    "prompt_tokens_details": {"cached_tokens": 8},
                },
            }
        )
        + b"data: [DONE]\n\n",
        content="a",
        usage=Usage(prompt_tokens=10, completion_tokens=2, total_tokens=12, cached_tokens=8),
    ),
    Quirk(
        "usage-in-choice",
        "usage",
        "Moonshot",
        "usage inside the choice",
        "read there",
        event(
            {
                "choices": [
                    {
                        "index": 0,
                        "delta": {"content": "a"},
                        "finish_reason": "stop",
                        "usage": {"prompt_tokens": 10, "completion_tokens": 2},
                    }
                ]
            }
        )
        + b"data: [DONE]\n\n",
        content="a",
        usage=Usage(prompt_tokens=10, completion_tokens=2, total_tokens=12),
    ),
    Quirk(
        "usage-groq",
        "usage",
        "Groq",
        "usage under `x_groq`",
        "read there",
        event(delta(content="a"))
        + event(
            {
                **delta("stop"),
                "x_groq": {"usage": {"prompt_tokens": 5, "completion_tokens": 3, "total_tokens": 8}},
            }
        )
        + b"data: [DONE]\n\n",
        content="a",
        usage=Usage(prompt_tokens=5, completion_tokens=3, total_tokens=8),
    ),
    Quirk(
        "usage-anthropic",
        "usage",
        "Anthropic-shaped gateways",
        "`input_tokens` without the cached ones",
        "prompt tokens include the cached ones",
        stream(
            {"content": "a"},
            usage={
                "input_tokens": 5,
                "cache_read_input_tokens": 100,
                "cache_creation_input_tokens": 20,
                "output_tokens": 2,
            },
        ),
        content="a",
        usage=Usage(prompt_tokens=125, completion_tokens=2, total_tokens=127, cached_tokens=100),
    ),
    Quirk(
        "usage-timings",
        "usage",
        "llama.cpp without `include_usage`",
        "only `timings`",
        "`cache_n` and `prompt_n` are the prompt",
        event(delta(content="a"))
        + event({**delta("stop"), "timings": {"cache_n": 30, "prompt_n": 7, "predicted_n": 2}})
        + b"data: [DONE]\n\n",
        content="a",
        usage=Usage(prompt_tokens=37, completion_tokens=2, total_tokens=39, cached_tokens=30),
    ),
    Quirk(
        "usage-absurd",
        "usage",
        "fuzzing",
        "negative, fractional and textual figures",
        "what is no count is 0",
        stream(
            {"content": "a"},
            usage={"prompt_tokens": -5, "completion_tokens": "many", "total_tokens": 1e400},
        ),
        content="a",
        usage=Usage(),
    ),
)


def refusal(
    id_: str, seen: str, what: str, ours: str, status: int, raw: bytes, error: str, /, **attributes: Any
) -> Quirk:
    return Quirk(
        id_,
        "refusals",
        seen,
        what,
        ours,
        raw,
        status=status,
        headers=JSON,
        error=error,
        attributes=attributes,
    )


TOO_LARGE = "`InputTooLarge`, not asked again"
REFUSALS = (
    refusal(
        "overflow-llamacpp",
        "llama.cpp",
        "400 `exceed_context_size_error`",
        TOO_LARGE,
        400,
        error_body(
            code=400,
            message="request (9001 tokens) exceeds the available context size (8192 tokens), try increasing it",
            type="exceed_context_size_error",
            n_prompt_tokens=9001,
            n_ctx=8192,
        ),
        "InputTooLarge",
        prompt_tokens=9001,
        context_tokens=8192,
    ),
    refusal(
        "overflow-vllm-flat",
        "vLLM before 0.10.1",
        "400 with a flat error object",
        TOO_LARGE,
        400,
        json.dumps(
            {
                "object": "error",
                "message": "This model's maximum context length is 8192 tokens. However, you requested 9100 tokens "
                "(8100 in the messages, 1000 in the completion). Please reduce the length of the messages or completion.",
                "type": "BadRequestError",
                "param": None,
                "code": 400,
            }
        ).encode(),
        "InputTooLarge",
        prompt_tokens=9100,
        context_tokens=8192,
    ),
    refusal(
        "overflow-vllm-nested",
        "vLLM",
        "400 with a nested error object",
        TOO_LARGE,
        400,
        error_body(
            message="This model's maximum context length is 8192 tokens. However, your request has 9100 input tokens.",
            type="BadRequestError",
            param=None,
            code=400,
        ),
        "InputTooLarge",
        context_tokens=8192,
    ),
    refusal(
        "overflow-vllm-negative",
        "vllm-project/vllm#4667",
        "400 about a negative `max_tokens`",
        TOO_LARGE,
        400,
        error_body(
            message="max_tokens must be at least 1, got -42.", type="BadRequestError", param=None, code=400
        ),
        "InputTooLarge",
    ),
    refusal(
        "overflow-openai",
        "OpenAI, llama-cpp-python",
        "400 `context_length_exceeded`",
        TOO_LARGE,
        400,
        error_body(
            message="This model's maximum context length is 2048 tokens. However, your messages resulted in 3021 tokens.",
            type="invalid_request_error",
            param="messages",
            code="context_length_exceeded",
        ),
        "InputTooLarge",
        prompt_tokens=3021,
        context_tokens=2048,
    ),
    refusal(
        "overflow-anthropic",
        "Anthropic",
        "400 `prompt is too long`",
        TOO_LARGE,
        400,
        json.dumps(
            {
                "type": "error",
                "error": {
                    "type": "invalid_request_error",
                    "message": "prompt is too long: 210000 tokens > 200000 maximum",
                },
            }
        ).encode(),
        "InputTooLarge",
    ),
    refusal(
        "overflow-lmstudio",
        "lmstudio-ai/lmstudio-bug-tracker#546, #237",
        "400 about keeping the first N tokens",
        TOO_LARGE,
        400,
        json.dumps(
            {
                "error": "Trying to keep the first 9062 tokens when context the overflows. However, the model is loaded with context length of "
                "only 4096 tokens, which is not enough."
            }
        ).encode(),
        "InputTooLarge",
        prompt_tokens=9062,
        context_tokens=4096,
    ),
    refusal(
        "overflow-ollama-user-lost",
        "ollama/ollama#18107",
        "500: truncation dropped the user's message",
        TOO_LARGE,
        500,
        error_body(message="no user query found in messages", type="api_error"),
        "InputTooLarge",
    ),
    refusal(
        "overflow-413",
        "proxies",
        "413",
        TOO_LARGE,
        413,
        b"<html>Request Entity Too Large</html>",
        "InputTooLarge",
    ),
    refusal(
        "overflow-tgi",
        "text-generation-inference",
        "422 `inputs` must have less than N tokens",
        TOO_LARGE,
        422,
        json.dumps(
            {
                "error": "Input validation error: `inputs` must have less than 4096 tokens. Given: 5000",
                "error_type": "validation",
            }
        ).encode(),
        "InputTooLarge",
    ),
    refusal(
        "tool-call-ollama",
        "ollama/ollama#12884, #17638, #12064",
        "500: the model's call did not parse",
        "`TruncatedToolCall`, not asked again",
        500,
        error_body(
            message="error parsing tool call: raw='{\"path\":', err=unexpected end of JSON input",
            type="api_error",
        ),
        "TruncatedToolCall",
        body="raw=",
    ),
    refusal(
        "tool-call-llamacpp",
        "ggml-org/llama.cpp#20761, #24644",
        "500: the model's call did not parse",
        "`TruncatedToolCall`, not asked again",
        500,
        error_body(code=500, message="Failed to parse input at pos 12: </tool_call>", type="server_error"),
        "TruncatedToolCall",
    ),
    refusal(
        "tool-call-history",
        "ggml-org/llama.cpp#20612",
        "500: arguments in the history are no JSON",
        "`TruncatedToolCall`, not asked again",
        500,
        error_body(
            code=500,
            message="Failed to parse tool call arguments as JSON: [json.exception.parse_error.101] parse error",
            type="server_error",
        ),
        "TruncatedToolCall",
    ),
    refusal(
        "refused-401",
        "all",
        "401",
        "`RunnerError` with the body, not asked again",
        401,
        error_body(code=401, message="Invalid API Key", type="authentication_error"),
        "RunnerError",
        status=401,
        body="Invalid API Key",
    ),
    refusal(
        "refused-404-model",
        "vLLM, Ollama",
        "404 for an unknown model",
        "`RunnerError` with the body, not asked again",
        404,
        error_body(message="The model `x` does not exist.", type="NotFoundError", code=404),
        "RunnerError",
        status=404,
        body="does not exist",
    ),
    refusal(
        "refused-fastapi",
        "FastAPI servers",
        "422 with `detail`",
        "`RunnerError` with the body, not asked again",
        422,
        json.dumps({"detail": [{"loc": ["body", "messages"], "msg": "field required"}]}).encode(),
        "RunnerError",
        status=422,
        body="field required",
    ),
    refusal(
        "refused-not-json",
        "proxies",
        "an HTML page",
        "`RunnerError` with the body, not asked again",
        403,
        b"<html>Forbidden</html>",
        "RunnerError",
        status=403,
        body="Forbidden",
    ),
)

LONG = "The quick brown fox jumps over the lazy dog near the old mill. " * 1000

SILENT = (
    Quirk(
        "silent-ollama",
        "silent overflow",
        "ollama/ollama#3839, #4967, #17427",
        "200, but the front of the prompt was dropped: far too few prompt tokens",
        "`ContextTruncated`",
        stream({"content": "a"}, usage={"prompt_tokens": 2051, "completion_tokens": 20}),
        error="ContextTruncated",
        sent=LONG,
    ),
    Quirk(
        "silent-error-in-200",
        "silent overflow",
        "lmstudio-ai/lmstudio-bug-tracker#2322",
        "200 with an overflow error in the stream",
        "`InputTooLarge`",
        b'event: error\ndata: {"error":{"message":"The number of tokens to keep from the initial prompt is greater than the context length."}}\n\n',
        error="InputTooLarge",
    ),
    Quirk(
        "silent-honest",
        "silent overflow",
        "all",
        "200 with a count that fits the text (here 4.6 characters a token)",
        "no false alarm",
        stream({"content": "a"}, usage={"prompt_tokens": 14000, "completion_tokens": 1}),
        content="a",
        sent=LONG,
        usage=Usage(prompt_tokens=14000, completion_tokens=1, total_tokens=14001),
    ),
    Quirk(
        "silent-runs",
        "silent overflow",
        "all",
        "a prompt of one character 100,000 times: few tokens, rightly",
        "no false alarm",
        stream({"content": "a"}, usage={"prompt_tokens": 900, "completion_tokens": 1}),
        content="a",
        sent="-" * 100_000,
        usage=Usage(prompt_tokens=900, completion_tokens=1, total_tokens=901),
    ),
)

ROWS: tuple[Quirk, ...] = FRAMING + CALLS + ENDS + FIELDS + USAGE + REFUSALS + SILENT
