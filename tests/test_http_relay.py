"""Chunks passed on as server-sent events come back as the same chunks."""

from __future__ import annotations

import json

from agentkit_fast import StreamChunk, ToolCall, Usage
from agentkit_fast.runners._http.reply import ReplyReader
from agentkit_fast.runners.http import relay, to_sse

USAGE = Usage(prompt_tokens=9, completion_tokens=3, total_tokens=12, cached_tokens=4)
CHUNKS = [
    StreamChunk(reasoning="hm"),
    StreamChunk(content='a "quoted"\nline 🦙 \x00'),
    StreamChunk(tool_call=ToolCall(id="k1", name="f", arguments='{"a": 1}')),
    StreamChunk(tool_call=ToolCall(id="k2", name="f", arguments="{}")),
    StreamChunk(done=True, finish_reason="tool_calls", usage=USAGE),
]


def test_a_round_trip() -> None:
    events = b"".join(relay(CHUNKS, model="m", reply_id="r"))
    reader = ReplyReader("here")
    got = reader.feed(events)
    assert reader.done
    got += reader.close(0)
    assert [(c.content, c.reasoning, c.tool_call, c.finish_reason, c.usage) for c in got] == [
        (c.content, c.reasoning, c.tool_call, c.finish_reason, c.usage) for c in CHUNKS
    ]
    first = json.loads(events.split(b"\n\n")[0].removeprefix(b"data: "))
    assert first["id"] == "r"
    assert first["model"] == "m"
    assert first["choices"][0]["delta"] == {"reasoning_content": "hm"}


def test_single_chunks() -> None:
    assert to_sse(StreamChunk()) == b""
    assert json.loads(to_sse(StreamChunk(error="boom"))[6:]) == {"error": {"message": "boom"}}
    cut = to_sse(StreamChunk(done=True, stop_reason="repetition"))
    assert json.loads(cut.split(b"\n\n")[0][6:])["choices"][0]["finish_reason"] == "repetition"
    assert cut.endswith(b"data: [DONE]\n\n")
