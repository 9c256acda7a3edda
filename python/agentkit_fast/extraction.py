"""A typed value from a conversation: asked for, checked, corrected.

The answer is held to the type by a grammar where the runner has one, by `response_format` where the endpoint takes
it, else by a tool that must be called; in each case it is checked, and what is wrong with it is told by path.
"""

from __future__ import annotations

import json
import re
from collections.abc import Generator
from typing import Any, Generic, TypeVar

import msgspec

from agentkit_fast import model_words
from agentkit_fast.effects import Append, Build, Effect, Prepare
from agentkit_fast.entries import Entry, EntryKind, new_id
from agentkit_fast.errors import ExtractionError
from agentkit_fast.limits import TokenUsage
from agentkit_fast.messages import ChatOptions, ToolDef
from agentkit_fast.protocols import RunnerProfile
from agentkit_fast.reply import Reply
from agentkit_fast.text import repair_json
from agentkit_fast.toolcalls import GatedCall, gate
from agentkit_fast.turn import Rules, Turn, TurnPlan, notification

__all__ = ["Extraction", "Wanted"]

T = TypeVar("T")
_FENCE = re.compile(r"\A\s*```[a-zA-Z]*[ \t]*\n(.*)\n[ \t]*```\s*\Z", re.DOTALL)
_WRAPPED = "value"


class Wanted(Generic[T]):
    """A type, its schema, and how a model is held to it."""

    def __init__(self, kind: type[T], profile: RunnerProfile) -> None:
        self.kind = kind
        self.name = getattr(kind, "__name__", None) or str(kind)
        self.schema: dict[str, Any] = msgspec.json.schema(kind)
        self.by = "grammar" if profile.grammar else "response_format" if profile.json_schema else ""
        self.tool: ToolDef | None = None
        if not self.by and profile.native_tools:
            self.by = "tool"
            self.tool = ToolDef(
                name="answer", description=f"Give the answer ({self.name}).", parameters=self._parameters()
            )

    def _is_object(self) -> bool:
        return self._top().get("type") == "object"

    def _top(self) -> dict[str, Any]:
        """The schema without a reference at its top."""
        schema = self.schema
        if "$ref" not in schema:
            return schema
        top: dict[str, Any] = schema["$defs"][schema["$ref"].rpartition("/")[2]]
        return {**top, "$defs": schema["$defs"]}

    def _parameters(self) -> dict[str, Any]:
        if self._is_object():
            return self._top()
        inner = {key: item for key, item in self.schema.items() if key != "$defs"}
        wrapped: dict[str, Any] = {
            "type": "object",
            "properties": {_WRAPPED: inner},
            "required": [_WRAPPED],
        }
        if "$defs" in self.schema:
            wrapped["$defs"] = self.schema["$defs"]
        return wrapped

    def options(self, options: ChatOptions) -> ChatOptions:
        """The options that hold the answer to the type."""
        if self.by == "grammar":
            from agentkit_fast.json_grammar import schema_grammar

            return msgspec.structs.replace(options, tool_choice=None, grammar=schema_grammar(self.schema))
        if self.by == "response_format":
            name = re.sub(r"[^a-zA-Z0-9_-]", "_", self.name)[:64] or "answer"
            wanted = {"type": "json_schema", "json_schema": {"name": name, "schema": self._top()}}
            return msgspec.structs.replace(options, tool_choice=None, response_format=wanted)
        return msgspec.structs.replace(options, tool_choice=self.tool.name if self.tool else None)

    def ask(self) -> str:
        """The words that ask for it."""
        schema = json.dumps(self.schema, ensure_ascii=False, separators=(",", ":"))
        return model_words.extraction_ask(schema=schema, with_tool=self.tool.name if self.tool else "")

    def read(self, text: str, *, from_tool: bool) -> T:
        """The value. `ValueError` says what is wrong, by path."""
        value = _json(text)
        if from_tool and not self._is_object() and isinstance(value, dict) and _WRAPPED in value:
            value = value[_WRAPPED]
        try:
            return msgspec.convert(value, self.kind, strict=True)
        except msgspec.ValidationError as strict_error:
            # JSON keys are strings, and models write "3" for 3; a value that fits when read so is taken.
            try:
                return msgspec.convert(value, self.kind, strict=False)
            except msgspec.ValidationError:
                raise ValueError(str(strict_error)) from strict_error


def _json(text: str) -> Any:
    """The JSON value in an answer: the whole of it, in a fence, loosely written, or amid other words."""
    fenced = _FENCE.match(text)
    text = fenced[1] if fenced else text.strip()
    if not text:
        raise ValueError("it is empty")
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError) as error:
        repaired = repair_json(text)
        if repaired.outcome == "ok":
            return msgspec.json.decode(repaired.text)
        if repaired.outcome == "truncated":
            raise ValueError(f"it is cut off after {len(text)} characters; make it smaller") from error
        inner = _amid_words(text)
        if inner is not None:
            return inner
        raise ValueError(f"it is no JSON ({error})") from error


def _amid_words(text: str) -> Any:
    """The one JSON object or array that stands between other words."""
    for opening, closing in ("{}", "[]"):
        start, end = text.find(opening), text.rfind(closing)
        if 0 <= start < end:
            try:
                return msgspec.json.decode(text[start : end + 1])
            except (msgspec.DecodeError, RecursionError):
                continue
    return None


class Extraction(Turn):
    """Rules like a turn's, that end when an answer fits the type. `value` is it."""

    def __init__(self, plan: TurnPlan, usage: TokenUsage, wanted: Wanted[Any], *, retries: int) -> None:
        super().__init__(plan, usage)
        self.wanted = wanted
        self.retries = retries
        self.value: Any = None

    def _iterate(self) -> Rules:
        plan = self.plan
        yield from self._claim()
        yield Append((notification(model_words.TAG_EXTRACTION, self.wanted.ask()),))
        problem = ""
        for number in range(self.retries + 1):
            if number:
                if plan.limits is not None:
                    yield from self._check_limits(plan.limits)
                yield from self._claim()
            if plan.has_preparer:
                yield Prepare()
            window = plan.view((yield Build()))
            yield from self._note_window(window)
            reply = yield from self._chat(window, number)
            self.result.rounds += 1
            yield from self._note_usage(reply)
            problem = yield from self._judge(reply)
            if not problem:
                self._finish("reply")
                return
        raise ExtractionError(
            f"no {self.wanted.name} could be had in {self.retries + 1} answers; the last one did not fit: {problem}"
        )

    def _ask(self, number: int) -> tuple[ChatOptions, tuple[ToolDef, ...], bool]:
        options = self.wanted.options(self.plan.options(number))
        return options, (self.wanted.tool,) if self.wanted.tool else (), False

    def _judge(self, reply: Reply) -> Generator[Effect, Any, str]:
        """Read the answer and store it, with what is wrong about it. Empty: it fits."""
        problem = ""
        gated = [gate(call) for call in reply.calls]
        text = gated[0].call.arguments if gated else reply.content
        self.result.reply = reply.content
        if reply.repetition is not None:
            problem = "it repeated itself and was stopped"
        elif gated and gated[0].refusal:
            problem = gated[0].refusal.removeprefix("ERROR: not run. ")
        elif reply.finish_reason == "length":
            problem = f"it was cut off after {len(text)} characters; make it smaller"
        else:
            try:
                self.value = self.wanted.read(text, from_tool=bool(gated))
            except (ValueError, RecursionError) as error:
                problem = str(error)
        entries = list(self._said(reply))
        if gated:
            entries += _answered(gated, problem)
        elif problem:
            entries.append(notification(model_words.TAG_EXTRACTION, model_words.extraction_fix(problem)))
        yield Append(tuple(entries))
        return problem


def _answered(gated: list[GatedCall], problem: str) -> list[Entry]:
    """The calls of an answer with their results: only the first is looked at."""
    calls, results = [], []
    for at, item in enumerate(gated):
        if at:
            text = model_words.extraction_one_only()
        else:
            text = model_words.extraction_fix(problem) if problem else model_words.extraction_taken()
        calls.append(_entry(EntryKind.tool_call, item, item.call.arguments))
        results.append(_entry(EntryKind.tool_result, item, text))
    return calls + results


def _entry(kind: EntryKind, item: GatedCall, text: str) -> Entry:
    return Entry(
        id=new_id(),
        kind=kind.value,
        content=text,
        tool_call_id=item.call.id,
        tool_name=item.call.name,
    )
