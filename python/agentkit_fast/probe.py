"""What survives an endpoint's own tool-call handling, and whether it takes a grammar.

A server that parses tool calls rewrites what the model wrote: quotes, line ends, control tokens and closing tags in
an argument may be lost or end the call early. Ask before trusting it with file contents; where it is lossy, or takes
a grammar only without tools, use the heredoc format.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

import msgspec

from agentkit_fast.messages import ChatOptions, Message, ToolCall, ToolDef

__all__ = ["EchoResult", "ToolSurfaceReport", "aprobe_tool_surface", "probe_tool_surface"]


class EchoResult(msgspec.Struct, kw_only=True, frozen=True):
    """One text the model was asked to hand to a tool, and what arrived.

    `lossy`: it arrived changed. `no_call`: the model answered without a call. `bad_json`: the arguments were no
    JSON object with that text. `error`: the round failed.
    """

    name: str
    want: str
    got: str = ""
    lossy: bool = False
    no_call: bool = False
    bad_json: bool = False
    error: str = ""

    @property
    def exact(self) -> bool:
        """It arrived as it was."""
        return not (self.lossy or self.no_call or self.bad_json or self.error)


class ToolSurfaceReport(msgspec.Struct, kw_only=True, frozen=True):
    """What `probe_tool_surface` found.

    `grammar_accepted`: a reply was held to a grammar; `grammar_with_tools_accepted`: also with tools in the
    request. `grammar_error`: why not, in the server's words where it has some.
    """

    model: str
    echo: list[EchoResult]
    grammar_accepted: bool
    grammar_with_tools_accepted: bool
    grammar_error: str


# What file contents are made of, a kind each. Short, since a small model copies no long text.
SAMPLES: tuple[tuple[str, str], ...] = (
    ("plain", "hello world"),
    ("quotes", "say \"hi\" and 'bye'"),
    ("backslashes", r"C:\new\table \\n"),
    ("lines", "first\n\tsecond\n\nthird"),
    ("unicode", "naïve 日本語 🦙"),
    ("json", '{"a": [1, "b"]}'),
    ("markup", "<b>bold</b> &amp; <!-- c -->"),
    ("closing tags", "a </tool_call> b </parameter> c"),
    ("control tokens", "a <|im_end|> b <end_of_turn> c"),
)
_ECHO = ToolDef(
    name="echo",
    description="Takes a text and keeps it exactly as given.",
    parameters={"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]},
)
_GRAMMAR = 'root ::= "yes" | "no"'
ROUNDS = len(SAMPLES) + 2
"""How many questions a probe asks: each sample, and a grammar without and with tools."""
_Round = tuple[list[Message], tuple[ToolDef, ...], ChatOptions]
_Answer = tuple[list[ToolCall], str]
_Rules = Generator[_Round, _Answer | Exception, ToolSurfaceReport]


def _rules(model: str, max_tokens: int) -> _Rules:
    echo = []
    for name, want in SAMPLES:
        ask = f"Call the tool echo with exactly this text, all of it and nothing else:\n\n{want}"
        options = ChatOptions(tool_choice="echo", temperature=0.0, max_tokens=max_tokens)
        answer = yield [Message(role="user", content=ask)], (_ECHO,), options
        echo.append(_judged(name, want, answer))
    accepted, why = _held((yield _grammar_round(())))
    accepted_with_tools, why_with_tools = _held((yield _grammar_round((_ECHO,))))
    return ToolSurfaceReport(
        model=model,
        echo=echo,
        grammar_accepted=accepted,
        grammar_with_tools_accepted=accepted_with_tools,
        grammar_error=why or why_with_tools,
    )


def _grammar_round(tools: tuple[ToolDef, ...]) -> _Round:
    ask = [Message(role="user", content="Is water wet? Answer with one word.")]
    return ask, tools, ChatOptions(grammar=_GRAMMAR, temperature=0.0, max_tokens=8)


def _held(answer: _Answer | Exception) -> tuple[bool, str]:
    if isinstance(answer, Exception):
        return False, _told(answer)
    _, text = answer
    if text.strip() in ("yes", "no"):
        return True, ""
    return False, f"The grammar was taken but not kept: it allows yes or no, the reply was {text[:200]!r}."


def _told(error: Exception) -> str:
    return str(error) or type(error).__name__


def _judged(name: str, want: str, answer: _Answer | Exception) -> EchoResult:
    if isinstance(answer, Exception):
        return EchoResult(name=name, want=want, error=_told(answer))
    calls, _ = answer
    if not calls:
        return EchoResult(name=name, want=want, no_call=True)
    try:
        arguments = msgspec.json.decode(calls[0].arguments)
    except (msgspec.MsgspecError, RecursionError):
        return EchoResult(name=name, want=want, got=calls[0].arguments, bad_json=True)
    got = arguments.get("text") if isinstance(arguments, dict) else None
    if not isinstance(got, str):
        return EchoResult(name=name, want=want, got=calls[0].arguments, bad_json=True)
    return EchoResult(name=name, want=want, got=got, lossy=got != want)


def probe_tool_surface(
    runner: Any, *, max_tokens: int = 400, on_progress: Callable[[int], None] | None = None
) -> ToolSurfaceReport:
    """Ask the model to hand difficult texts to a tool, and the server to hold a reply to a grammar.

    `ROUNDS` questions, each answered in up to `max_tokens` tokens: minutes on a slow machine, so `on_progress` is
    called with the number of questions answered before each. A refusal is part of the report; nothing is raised for it.
    """
    rules = _rules(str(getattr(runner, "model", "")), max_tokens)
    answer: Any = None
    asked = 0
    try:
        while True:
            messages, tools, options = rules.send(answer)
            if on_progress is not None:
                on_progress(asked)
            asked += 1
            calls: list[ToolCall] = []
            text: list[str] = []
            try:
                for chunk in runner.chat_stream(messages, tools, options):
                    _take(chunk, calls, text)
                answer = (calls, "".join(text))
            except Exception as error:  # noqa: BLE001 - whatever a host's runner raises is part of the report
                answer = error
    except StopIteration as stop:
        report: ToolSurfaceReport = stop.value
        return report


async def aprobe_tool_surface(
    runner: Any, *, max_tokens: int = 400, on_progress: Callable[[int], None] | None = None
) -> ToolSurfaceReport:
    """As `probe_tool_surface`, awaited."""
    rules = _rules(str(getattr(runner, "model", "")), max_tokens)
    answer: Any = None
    asked = 0
    try:
        while True:
            messages, tools, options = rules.send(answer)
            if on_progress is not None:
                on_progress(asked)
            asked += 1
            calls: list[ToolCall] = []
            text: list[str] = []
            try:
                async for chunk in runner.achat_stream(messages, tools, options):
                    _take(chunk, calls, text)
                answer = (calls, "".join(text))
            except Exception as error:  # noqa: BLE001 - whatever a host's runner raises is part of the report
                answer = error
    except StopIteration as stop:
        report: ToolSurfaceReport = stop.value
        return report


def _take(chunk: Any, calls: list[ToolCall], text: list[str]) -> None:
    if chunk.tool_call is not None:
        calls.append(chunk.tool_call)
    text.append(chunk.content)
