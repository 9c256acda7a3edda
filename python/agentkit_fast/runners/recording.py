"""Record what a runner answers once, replay it offline."""

from __future__ import annotations

import asyncio
import builtins
import re
import threading
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from agentkit_fast import errors
from agentkit_fast._unicode import repair_text, repair_value
from agentkit_fast.errors import RunnerError, StreamInterrupted
from agentkit_fast.events import Retrying
from agentkit_fast.messages import ChatOptions, Message, StreamChunk, ToolCall, ToolDef
from agentkit_fast.protocols import RunnerProfile, profile_of

__all__ = ["RecordingRunner", "ReplayRunner"]

_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
# A hint for cache affinity and a trace label: they differ from run to run and change no answer.
_NOT_COMPARED = ("session_id", "trace_id")


class _Raised(msgspec.Struct, omit_defaults=True):
    type: str
    message: str
    status: int = 0
    body: str = ""
    text: str = ""
    args: list[Any] | None = None
    partial_tool_calls: tuple[ToolCall, ...] = ()
    numbers: dict[str, int] = {}


class _Record(msgspec.Struct, omit_defaults=True):
    """One line of the file: a request, and the reply as it came."""

    request: dict[str, Any]
    chunks: list[StreamChunk] = []
    raised: _Raised | None = None
    repetition: dict[str, Any] | None = None
    aborted: bool = False
    profile: dict[str, Any] | None = None


class RecordingRunner:
    """Passes every request on to `runner` and appends it with its reply to the JSON-lines file `path`.

    The folder of `path` is made where it is missing.

    A line is written when its stream ends, fails or is closed. The file is appended to: remove it to
    record anew. What goes to the model is written in full, so treat the file as you treat the conversation.
    """

    tells_retries = True
    """What the runner tells of its waits (`events.Retrying`) is passed on; it is no part of the recording."""

    def __init__(self, runner: Any, path: str | Path) -> None:
        self._runner = runner
        self._tells = bool(getattr(type(runner), "tells_retries", False))
        self._path = Path(path)
        # Said before a reply is paid for, not after it.
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._path.open("ab").close()
        self._lock = threading.Lock()
        self.profile = profile_of(runner)

    def chat_stream(
        self,
        messages: Any,
        tools: Sequence[ToolDef] = (),
        options: ChatOptions | None = None,
        *,
        tell_retries: bool = False,
    ) -> Iterator[StreamChunk]:
        """The runner's own stream, recorded."""
        record = self._begin(messages, tools, options)
        telling = {"tell_retries": True} if tell_retries and self._tells else {}
        stream = None
        try:
            stream = self._runner.chat_stream(messages, tools, options, **telling)
            for chunk in stream:
                if not isinstance(chunk, Retrying):
                    record.chunks.append(chunk)
                yield chunk
        except Exception as error:
            record.raised = _raised(error)
            raise
        except BaseException:
            record.aborted = True  # closed, cancelled or interrupted: no answer of the runner's
            raise
        finally:
            close = getattr(stream, "close", None)
            if close is not None:
                close()
            self._write(record)

    async def achat_stream(
        self,
        messages: Any,
        tools: Sequence[ToolDef] = (),
        options: ChatOptions | None = None,
        *,
        tell_retries: bool = False,
    ) -> AsyncIterator[StreamChunk]:
        """As `chat_stream`, awaited. A runner without `achat_stream` is read in a thread."""
        record = self._begin(messages, tools, options)
        telling = {"tell_retries": True} if tell_retries and self._tells else {}
        stream: Any = None
        try:
            if hasattr(self._runner, "achat_stream"):
                stream = self._runner.achat_stream(messages, tools, options, **telling)
            else:
                stream = _in_thread(self._runner.chat_stream(messages, tools, options, **telling))
            async for chunk in stream:
                if not isinstance(chunk, Retrying):
                    record.chunks.append(chunk)
                yield chunk
        except Exception as error:
            record.raised = _raised(error)
            raise
        except BaseException:
            record.aborted = True  # closed, cancelled or interrupted: no answer of the runner's
            raise
        finally:
            close = getattr(stream, "aclose", None)
            if close is not None:
                await close()
            self._write(record)

    def __getattr__(self, name: str) -> Any:
        # Everything else a runner may offer (`count_tokens`, `context_window` ...) is the runner's own.
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._runner, name)

    def _begin(self, messages: Any, tools: Sequence[ToolDef], options: ChatOptions | None) -> _Record:
        profile = msgspec.structs.asdict(self.profile)
        profile["counter"] = None
        return _Record(request=_request(messages, tools, options), profile=profile)

    def _write(self, record: _Record) -> None:
        found = next((chunk.repetition for chunk in record.chunks if chunk.repetition is not None), None)
        if found is not None:
            plain = msgspec.to_builtins(found) if isinstance(found, msgspec.Struct) else None
            chunks = [msgspec.structs.replace(chunk, repetition=None) for chunk in record.chunks]
            record = msgspec.structs.replace(record, chunks=chunks, repetition=plain)
        line = _encoded(record) + b"\n"
        with self._lock, self._path.open("ab") as file:
            file.write(line)


async def _in_thread(stream: Iterator[StreamChunk]) -> AsyncIterator[StreamChunk]:
    try:
        while (chunk := await asyncio.to_thread(next, stream, None)) is not None:
            yield chunk
    finally:
        close = getattr(stream, "close", None)
        if close is not None:
            close()


def _encoded(value: Any) -> bytes:
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:
        return msgspec.json.encode(repair_value(msgspec.to_builtins(value)))


class ReplayRunner:
    """Answers from a file that `RecordingRunner` wrote. No model, no network.

    Each request takes the first unused record that asked the same: messages, tools and options, random
    ids aside. When there is none, `RunnerError` names the first difference to the next unused record, so
    a prompt that changed by mistake is seen at once. `delay_s` waits before each chunk, for demonstrations.
    """

    def __init__(self, path: str | Path, *, delay_s: float = 0.0) -> None:
        self._path = Path(path)
        self._delay_s = delay_s
        self._lock = threading.Lock()
        self._records: list[_Record] = []
        try:
            lines = self._path.read_bytes().splitlines()
        except OSError as error:
            raise RunnerError(
                f"ReplayRunner: {self._path} cannot be read ({error}). Record it with RecordingRunner."
            ) from error
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                self._records.append(msgspec.json.decode(line, type=_Record))
            except msgspec.DecodeError as error:
                raise RunnerError(
                    f"ReplayRunner: line {number} of {self._path} is not a record ({error})."
                    " Record the conversation again."
                ) from error
        self._keys = [_key(record.request) for record in self._records]
        self._used = [False] * len(self._records)
        profile = next((record.profile for record in self._records if record.profile), None)
        self.profile = msgspec.convert(profile, RunnerProfile) if profile else RunnerProfile()

    @property
    def unused(self) -> int:
        """How many records nobody has asked for yet."""
        return self._used.count(False)

    def _take(self, messages: Any, tools: Sequence[ToolDef], options: ChatOptions | None) -> _Record:
        request = _request(messages, tools, options)
        key = _key(request)
        with self._lock:
            for at, known in enumerate(self._keys):
                if not self._used[at] and known == key:
                    self._used[at] = True
                    return self._records[at]
            for at, known in enumerate(self._keys):
                if not self._used[at]:
                    raise RunnerError(
                        f"ReplayRunner: no unused record of {self._path} asked this. The next one (line"
                        f" {at + 1}) differs: {_difference(known, key)}. If the change is wanted, record"
                        " the conversation again."
                    )
        raise RunnerError(
            f"ReplayRunner: all {len(self._records)} records of {self._path} are used, but one more request"
            " came. Record the longer conversation."
        )

    def chat_stream(
        self, messages: Any, tools: Sequence[ToolDef] = (), options: ChatOptions | None = None
    ) -> Iterator[StreamChunk]:
        """The recorded stream."""
        record = self._take(messages, tools, options)
        for chunk in _chunks(record):
            if self._delay_s:
                time.sleep(self._delay_s)
            yield chunk
        _end(record)

    async def achat_stream(
        self, messages: Any, tools: Sequence[ToolDef] = (), options: ChatOptions | None = None
    ) -> AsyncIterator[StreamChunk]:
        """As `chat_stream`, awaited."""
        record = self._take(messages, tools, options)
        for chunk in _chunks(record):
            if self._delay_s:
                await asyncio.sleep(self._delay_s)
            yield chunk
        _end(record)


def _chunks(record: _Record) -> list[StreamChunk]:
    if record.repetition is None:
        return record.chunks
    from agentkit_fast.text import Repetition

    found = msgspec.convert(record.repetition, Repetition)
    return [
        msgspec.structs.replace(chunk, repetition=found) if chunk.stop_reason == "repetition" else chunk
        for chunk in record.chunks
    ]


def _end(record: _Record) -> None:
    if record.raised is not None:
        raise _raise_again(record.raised)
    if record.aborted and not any(chunk.done for chunk in record.chunks):
        raise StreamInterrupted(
            "ReplayRunner: the recording ends here, since its reader closed the stream. Record the"
            " conversation again.",
            text="".join(chunk.content for chunk in record.chunks),
        )


def _request(messages: Any, tools: Sequence[ToolDef], options: ChatOptions | None) -> dict[str, Any]:
    inner = getattr(messages, "messages", messages)
    wire = [
        message.to_wire(reasoning=True) if isinstance(message, Message) else message for message in inner
    ]
    given = [tool if isinstance(tool, dict) else tool.to_wire() for tool in tools]
    asked = {} if options is None else msgspec.to_builtins(options)
    defaults = msgspec.to_builtins(ChatOptions())
    return {
        "messages": wire,
        "tools": given,
        "options": {name: value for name, value in asked.items() if value != defaults[name]},
    }


def _key(request: dict[str, Any]) -> Any:
    """The request with random ids numbered in order of appearance, and without what changes no answer."""
    names: dict[str, str] = {}

    def number(match: re.Match[str]) -> str:
        return names.setdefault(match[0], f"id-{len(names) + 1}")

    options = {name: value for name, value in request["options"].items() if name not in _NOT_COMPARED}
    text = _encoded({**request, "options": options}).decode()
    return msgspec.json.decode(_UUID.sub(number, text))


def _difference(known: Any, key: Any, path: str = "") -> str:
    """Where two requests first differ, in words."""
    if isinstance(known, dict) and isinstance(key, dict):
        for name in [*known, *(name for name in key if name not in known)]:
            if name not in key or name not in known:
                side = "only in the record" if name in known else "only in the request"
                return f"{path}.{name} is {side}".lstrip(".")
            if known[name] != key[name]:
                return _difference(known[name], key[name], f"{path}.{name}")
    if isinstance(known, list) and isinstance(key, list):
        for at, (left, right) in enumerate(zip(known, key, strict=False)):
            if left != right:
                return _difference(left, right, f"{path}[{at}]")
        return f"{path.lstrip('.')} has {len(known)} items in the record, {len(key)} in the request"
    return f"{path.lstrip('.')} is {_short(known)} in the record, {_short(key)} in the request"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 120 else f"{text[:117]}..."


_NUMBERS = ("prompt_tokens", "context_tokens", "byte_offset")


def _raised(error: BaseException) -> _Raised:
    numbers = {name: getattr(error, name, None) for name in _NUMBERS}
    try:
        # What JSON gives back as it was can be handed to the exception's class again.
        args = error.args if msgspec.json.decode(_encoded(error.args)) == list(error.args) else None
    except (TypeError, ValueError, OverflowError, RecursionError):
        args = None
    return _Raised(
        type=type(error).__name__,
        message=repair_text(str(error)),
        status=getattr(error, "status", 0),
        body=repair_text(getattr(error, "body", "")),
        text=repair_text(getattr(error, "text", "")),
        args=None if args is None else list(args),
        partial_tool_calls=tuple(getattr(error, "partial_tool_calls", ())),
        numbers={name: number for name, number in numbers.items() if isinstance(number, int)},
    )


def _raise_again(raised: _Raised) -> BaseException:
    """The recorded exception: one of ours, a builtin, or else a `RunnerError` naming its type."""
    kind: Any = getattr(errors, raised.type, None)
    if isinstance(kind, type) and issubclass(kind, RunnerError):
        error = kind(raised.message, status=raised.status, body=raised.body)
        had: dict[str, Any] = {
            "text": raised.text,
            "partial_tool_calls": raised.partial_tool_calls,
            **raised.numbers,
        }
        for name, value in had.items():
            if hasattr(error, name):
                setattr(error, name, value)
        return error
    other: Any = kind or getattr(builtins, raised.type, None)
    if isinstance(other, type) and issubclass(other, Exception):
        try:
            return other(*([raised.message] if raised.args is None else raised.args))
        except TypeError:
            pass
    return RunnerError(f"{raised.type}: {raised.message}")
