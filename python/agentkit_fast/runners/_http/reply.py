"""A streamed reply: bytes in, `StreamChunk`s out. No I/O.

`ReplyReader` joins the SSE decoder, the tool-call assembler and the repetition guards, and decides what the end
of a stream means.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import msgspec

from agentkit_fast._unicode import repair_text
from agentkit_fast.errors import RunnerError, StreamInterrupted
from agentkit_fast.messages import StreamChunk, ToolCall, Usage
from agentkit_fast.runners._http.assembly import CallAssembler
from agentkit_fast.runners._http.errors import classify, dumps, loads, read_refusal, retry_after_of
from agentkit_fast.runners._http.sse import MAX_EVENT_BYTES, ErrorData, SseDecoder

__all__ = ["ErrorInStream", "ReplyReader", "read_usage", "reply_of_body"]

GuardFactory = Callable[[str], Any]
_decode = msgspec.json.Decoder().decode
# Servers that always say `application/json`, or always stream, whatever was asked for.
_SSE_START = re.compile(rb"[\s\xef\xbb\xbf]*(?::|data:|event:|id:|retry:)")
_HEAD_BYTES = 2000


class ErrorInStream(Exception):
    """The server put an error into a 200 reply. `status` is the status its body names (0: none)."""

    def __init__(self, error: RunnerError, status: int, retry_after: float | None) -> None:
        super().__init__(str(error))
        self.error = error
        self.status = status
        self.retry_after = retry_after


class ReplyReader:
    """Reads one reply.

    `feed` gives the chunks to show. When `done` turns true nothing more needs to be read; `close` gives the
    chunks that end the reply, or raises. `repetition` is set when a guard tripped: stop reading then.
    """

    def __init__(self, where: str, *, max_tokens: int = 0, guard: GuardFactory | None = None) -> None:
        self._where = where
        self._max_tokens = max_tokens
        self._guard = guard
        self._sse = SseDecoder()
        self._json_body: list[bytes] | None = None
        self._head = b""  # what came before anything was understood
        self._understood = False
        self._calls = CallAssembler()
        self._guards: dict[Any, Any] = {}
        self._usage: dict[str, Any] = {}
        self._timings: dict[str, Any] = {}
        self._held = {"content": "", "reasoning": ""}
        self._text: list[str] = []
        self.finish_reason = ""
        self.repetition: Any = None
        self.done = False
        self.saw_text = False
        self.bytes = 0

    def expect_json(self) -> None:
        """The body is one JSON value, not a stream (its content type says so; its first bytes may differ)."""
        self._json_body = []

    @property
    def finished(self) -> bool:
        """The reply has come whole: there was a finish reason, or a `[DONE]` and no call left open."""
        return bool(self.finish_reason) or (self.done and self._calls.closed())

    @property
    def text(self) -> str:
        """The content so far."""
        return "".join(self._text)

    @property
    def empty(self) -> bool:
        """Neither text nor a call has come."""
        return not self.saw_text and not self._calls

    def feed(self, data: bytes) -> list[StreamChunk]:
        """The chunks that `data` completes."""
        first = self.bytes < 8
        self.bytes += len(data)
        if not self._understood and len(self._head) < _HEAD_BYTES:
            self._head += data[:_HEAD_BYTES]
        if self._json_body is not None:
            self._json_body.append(data)
            if first and _SSE_START.match(self._head):
                data, self._json_body = b"".join(self._json_body), None
                return self._read(self._sse.feed(data), last=False)
            if self.bytes > MAX_EVENT_BYTES:
                raise RunnerError(f"{self._where} sent a body of more than {MAX_EVENT_BYTES:,} bytes.")
            return []
        return self._read(self._sse.feed(data), last=False)

    def end(self) -> list[StreamChunk]:
        """The chunks still to come when the bytes have ended."""
        if self._json_body is None:
            return self._read(self._sse.finish(), last=True)
        body = b"".join(self._json_body)
        self._json_body = []
        value = loads(body)
        self._raise_error(value, body)
        if not isinstance(value, dict):
            return []
        self.done = bool(value.get("choices"))
        return self._take(value)

    def _read(self, events: list[bytes], *, last: bool) -> list[StreamChunk]:
        chunks: list[StreamChunk] = []
        for data in events:
            if self.done or self.repetition is not None:
                break
            if data == b"[DONE]" or data.strip() == b"[DONE]":
                self.done = True
                break
            if type(data) is ErrorData:
                self._raise_named_error(data)
            try:
                value = _decode(data)
            except (msgspec.MsgspecError, RecursionError):
                value = loads(data)
                if value is None and b"\n" in data:
                    # No blank line between two events: each line is one.
                    chunks += self._read(data.split(b"\n"), last=last)
                    continue
                if value is None:
                    if last or not data.strip():
                        continue  # cut in the middle of an event: the end of the stream says what it means
                    raise self.interrupted(f"an event that is not JSON: {data[:200]!r}") from None
            if not isinstance(value, dict):
                continue
            if "error" in value or "choices" not in value:
                self._raise_error(value, data)
            chunks += self._take(value)
        return chunks

    def _raise_error(self, value: Any, data: bytes) -> None:
        refusal = read_refusal(value)
        if refusal is not None:
            error = classify(200, data, self._where)
            raise ErrorInStream(error, refusal.code, retry_after_of(value))

    def _raise_named_error(self, data: bytes) -> None:
        """An event named `error` is one, whatever is in it."""
        value = loads(data)
        self._raise_error(value, data)
        said = value if isinstance(value, dict) and value else data.decode("utf-8", "replace")
        value = {"error": said or "the server gave no reason"}
        self._raise_error(value, dumps(value).encode())

    def _take(self, value: dict[str, Any]) -> list[StreamChunk]:
        self._understood = self._understood or "choices" in value or "content" in value
        usage = value.get("usage")
        if not usage and isinstance(value.get("x_groq"), dict):
            usage = value["x_groq"].get("usage")
        if usage and isinstance(usage, dict):
            self._merge_usage(usage)
        timings = value.get("timings")
        if timings and isinstance(timings, dict):
            self._timings = timings
        choices = value.get("choices")
        if not isinstance(choices, list) or not choices:
            return self._take_completion(value) if "stop" in value and "content" in value else []
        choice = choices[0]
        if not isinstance(choice, dict):
            return []
        usage = choice.get("usage")
        if usage and isinstance(usage, dict):
            self._merge_usage(usage)  # Moonshot puts it inside the choice
        delta = choice.get("delta")
        if not isinstance(delta, dict):
            delta = choice.get("message")
        chunks: list[StreamChunk] = []
        if isinstance(delta, dict):
            chunks = self._take_delta(delta)
        elif isinstance(choice.get("text"), str):
            chunks = self._take_delta({"content": choice["text"]})
        reason = choice.get("finish_reason")
        if reason and isinstance(reason, str):
            self.finish_reason = repair_text(reason)
        return chunks

    def _take_delta(self, delta: dict[str, Any]) -> list[StreamChunk]:
        content = delta.get("content")
        reasoning = delta.get("reasoning_content") or delta.get("reasoning")
        calls = delta.get("tool_calls")
        if not calls and isinstance(delta.get("function_call"), dict):
            calls = [
                {"index": 0, "function": delta["function_call"]}
            ]  # OpenAI's first form, one call a reply
        if content is not None and not isinstance(content, str):
            content, thought = _split_parts(content)
            reasoning = reasoning or thought
        if not isinstance(reasoning, str):
            reasoning = ""
        content = self._whole("content", content or "")
        reasoning = self._whole("reasoning", reasoning)
        if calls:
            for number, text in self._calls.push(calls):
                self._watch(number, "arguments", text)
                if self.repetition is not None and self._calls.is_closed(number):
                    # The model has ended it by itself: a large value, and no loop that could be cut.
                    self.repetition = None
        if not content and not reasoning:
            return []
        self.saw_text = True
        if content:
            self._text.append(content)
            self._watch("content", "content", content)
        if reasoning:
            self._watch("reasoning", "reasoning", reasoning)
        return [StreamChunk(content=content, reasoning=reasoning)]

    def _take_completion(self, value: dict[str, Any]) -> list[StreamChunk]:
        """An event of llama.cpp's `/completion`."""
        if value.get("stop"):
            self.finish_reason = "length" if value.get("stop_type") == "limit" else "stop"
            evaluated, predicted = value.get("tokens_evaluated"), value.get("tokens_predicted")
            self._merge_usage({"prompt_tokens": evaluated, "completion_tokens": predicted})
            self.done = True
        return self._take_delta({"content": value["content"]})

    def _whole(self, channel: str, text: str) -> str:
        """`text` without a surrogate pair that is cut at its end; its first half waits for the next delta."""
        held = self._held[channel]
        if not text or (text.isascii() and not held):
            return text
        text = held + text
        cut = "\ud800" <= text[-1] <= "\udbff"
        self._held[channel] = text[-1] if cut else ""
        return repair_text(text[:-1] if cut else text)

    def _watch(self, key: Any, where: str, text: str) -> None:
        if self._guard is None or self.repetition is not None:
            return
        guard = self._guards.get(key)
        if guard is None:
            guard = self._guards[key] = self._guard(where)
        self.repetition = guard.push(text)

    def _merge_usage(self, usage: dict[str, Any]) -> None:
        # Some servers send usage twice, the second time with more in it, or with nulls: the last word that
        # is not null wins.
        for key, new in usage.items():
            old = self._usage.get(key)
            if isinstance(new, dict) and isinstance(old, dict):
                self._usage[key] = {**old, **{k: v for k, v in new.items() if v is not None}}
            elif new is not None:
                self._usage[key] = new

    def usage(self, latency_ms: int) -> Usage | None:
        """What was reported, or `None`."""
        return read_usage(self._usage, self._timings, latency_ms)

    def close(self, latency_ms: int, *, because: str = "the connection was closed") -> list[StreamChunk]:
        """The chunks that end the reply. Raises `StreamInterrupted` when it is not whole."""
        usage = self.usage(latency_ms)
        if self.repetition is not None:
            return [
                StreamChunk(
                    done=True,
                    stop_reason="repetition",
                    repetition=self.repetition,
                    usage=usage,
                    finish_reason=self.finish_reason,
                    partial_tool_calls=self._calls.finish(),
                )
            ]
        if not self.finished:
            raise self.interrupted(because, ended=True)
        if self.finish_reason == "error":
            raise self.interrupted("the server ended it with finish_reason 'error'")
        chunks = []
        if any(self._held.values()):
            lost = {channel: "\ufffd" if half else "" for channel, half in self._held.items()}
            chunks.append(StreamChunk(content=lost["content"], reasoning=lost["reasoning"]))
        calls = self._calls.finish()
        reason = self.finish_reason
        if calls and usage is not None and 0 < self._max_tokens <= usage.completion_tokens:
            # vLLM says `tool_calls` also when the token limit cut the call (vllm-project/vllm#58228).
            reason = "length"
        chunks += [StreamChunk(tool_call=call) for call in calls if call.name]
        nameless = tuple(call for call in calls if not call.name)
        chunks.append(
            StreamChunk(done=True, finish_reason=reason, usage=usage, partial_tool_calls=nameless)
        )
        return chunks

    def interrupted(self, because: str, *, ended: bool = False) -> StreamInterrupted:
        """The error for a reply that stops before its end."""
        calls: tuple[ToolCall, ...] = self._calls.finish()
        got = f"{len(self.text):,} characters and {len(calls)} unfinished tool calls had come"
        body = "" if self._understood or not ended else self._head[:_HEAD_BYTES].decode("utf-8", "replace")
        if body.strip():
            got = f"what came is no chat reply: {body[:200]!r}"
        return StreamInterrupted(
            f"The reply from {self._where} stopped before its end: {because}; {got}. Ask again; nothing of it "
            "was run.",
            body=body,
            text=self.text,
            partial_tool_calls=calls,
        )


def _split_parts(parts: Any) -> tuple[str, str]:
    """Text and reasoning of content given as a list of parts (Mistral's reasoning models)."""
    text, thought = [], []
    for part in parts if isinstance(parts, list) else [parts]:
        if isinstance(part, str):
            text.append(part)
        elif isinstance(part, dict):
            if part.get("type") in ("thinking", "reasoning"):
                inner = part.get("thinking") or part.get("reasoning") or part.get("text")
                thought.append(inner if isinstance(inner, str) else _split_parts(inner)[0])
            elif isinstance(part.get("text"), str):
                text.append(part["text"])
    return "".join(text), "".join(thought)


def _whole_number(value: Any) -> int:
    return int(value) if isinstance(value, (int, float)) and 0 < value < 1e15 else 0


def read_usage(usage: dict[str, Any], timings: dict[str, Any], latency_ms: int) -> Usage | None:
    """`Usage` from what a server reported: an OpenAI or Anthropic `usage`, llama.cpp's `timings`, or both."""
    if not usage and not timings:
        return None
    wire = dict(usage)
    if "prompt_tokens" not in wire and (
        "cache_read_input_tokens" in wire or "cache_creation_input_tokens" in wire
    ):
        # Anthropic's `input_tokens` leaves out what was read from or written to the cache; ours includes it.
        wire["prompt_tokens"] = sum(
            _whole_number(wire.get(key))
            for key in ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
        )
    if timings:
        cached = _whole_number(timings.get("cache_n"))
        if not wire.get("prompt_tokens"):
            wire["prompt_tokens"] = cached + _whole_number(timings.get("prompt_n"))
        if not wire.get("completion_tokens"):
            wire["completion_tokens"] = timings.get("predicted_n")
        if cached and not isinstance(wire.get("prompt_tokens_details"), dict):
            wire["prompt_tokens_details"] = {"cached_tokens": cached}
    return Usage.from_wire(wire, latency_ms=latency_ms)


def reply_of_body(body: bytes, where: str, latency_ms: int, max_tokens: int = 0) -> list[StreamChunk]:
    """The chunks of a reply that came whole, not streamed."""
    reader = ReplyReader(where, max_tokens=max_tokens)
    reader.expect_json()
    reader.feed(body)
    chunks = reader.end()
    return chunks + reader.close(latency_ms)
