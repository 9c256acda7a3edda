"""Everything this package raises on purpose.

    AgentkitError
    ├── StoreError                 a store could not do what was asked; names the file
    ├── HeredocError               (ValueError) a tool-call text that is truncated or malformed
    ├── UnsupportedTokenizer       (ValueError) a vocabulary kind we refuse rather than count wrongly
    ├── ContextOverflow            the fixed part of a window is larger than the budget
    ├── CompactionFailed           a summary failed, was empty or no smaller; nothing was changed
    ├── SessionClosed              raised by a tool to end the turn after its result is stored
    ├── SessionBusy                a turn of this session is already running
    ├── MaxTurnsError              the loop reached `max_turns`
    ├── RepetitionError            the model kept repeating itself
    ├── ToolLoopError              the same calls kept giving the same results
    ├── LimitExceeded              one of `Limits` is used up
    ├── EmptyReply                 the model answered with nothing, also when asked again
    ├── ExtractionError            (ValueError) no value of the wanted type could be had
    └── RunnerError                a model or endpoint failed; carries the server's body
        ├── InputTooLarge          the prompt does not fit the model's window
        │   └── ContextTruncated   the server cut the prompt without saying so
        ├── TruncatedToolCall      the server could not parse the tool call its model wrote
        ├── RetryBudgetExhausted   (TimeoutError) waited as long as allowed
        ├── StreamInterrupted      (ConnectionError) a stream ended without a finish
        └── ModelLoadError         (OSError) a model file cannot be used

Every error that ends a turn carries `.result`, the `TurnResult` so far.
"""

from __future__ import annotations

from typing import Any

__all__ = [
    "AgentkitError",
    "CompactionFailed",
    "ContextOverflow",
    "ContextTruncated",
    "EmptyReply",
    "ExtractionError",
    "HeredocError",
    "InputTooLarge",
    "LimitExceeded",
    "MaxTurnsError",
    "ModelLoadError",
    "RepetitionError",
    "RetryBudgetExhausted",
    "RunnerError",
    "SessionBusy",
    "SessionClosed",
    "StoreError",
    "StreamInterrupted",
    "ToolLoopError",
    "TruncatedToolCall",
    "UnsupportedTokenizer",
]


class AgentkitError(Exception):
    """Base of every error of this package."""

    result: Any = None
    """The `TurnResult` so far, where the error ended a turn."""


class StoreError(AgentkitError):
    """A store could not read or write; the message names the file and what to do."""


class HeredocError(AgentkitError, ValueError):
    """A tool-call text that cannot be read.

    `kind` is `"truncated"` (it stops too early) or `"malformed"`; `byte_offset` is where, in UTF-8
    bytes of the text that was given.
    """

    def __init__(self, message: str, kind: str = "malformed", byte_offset: int = 0) -> None:
        super().__init__(message, kind, byte_offset)
        self.kind = kind
        self.byte_offset = byte_offset

    def __str__(self) -> str:
        return str(self.args[0])


class UnsupportedTokenizer(AgentkitError, ValueError):
    """A tokenizer or pre-tokenizer kind we do not know: refused, never counted wrongly."""


class ContextOverflow(AgentkitError):
    """System prompt, tool schemas and newest user message alone exceed the budget."""


class CompactionFailed(AgentkitError):
    """A summary failed, was empty, or was no smaller than what it would replace."""


class SessionClosed(AgentkitError):
    """Raised by a tool: store `result` as its result and end the turn."""

    def __init__(self, result: str = "") -> None:
        super().__init__(result)
        self.result: str = result


class SessionBusy(AgentkitError):
    """A turn of this session is already running."""


class MaxTurnsError(AgentkitError):
    """The loop reached `max_turns` rounds without a final reply."""


class RepetitionError(AgentkitError):
    """The model kept repeating itself after `max_repetition_retries` re-asks."""


class ToolLoopError(AgentkitError):
    """The same calls kept giving the same results."""


class LimitExceeded(AgentkitError):
    """One of the turn's `Limits` is used up; what was done so far is stored."""


class EmptyReply(AgentkitError):
    """The model answered with nothing, and again when asked once more."""


class ExtractionError(AgentkitError, ValueError):
    """No value of the wanted type could be had; the message says what was wrong, by path."""


class RunnerError(AgentkitError):
    """A model or endpoint failed. `status` is the HTTP status (0: none), `body` the server's words."""

    def __init__(self, message: str, *, status: int = 0, body: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.body = body


class InputTooLarge(RunnerError):
    """The prompt does not fit the window. `prompt_tokens` and `context_tokens` are 0 where unknown."""

    def __init__(
        self,
        message: str,
        *,
        status: int = 0,
        body: str = "",
        prompt_tokens: int = 0,
        context_tokens: int = 0,
    ) -> None:
        super().__init__(message, status=status, body=body)
        self.prompt_tokens = prompt_tokens
        self.context_tokens = context_tokens


class ContextTruncated(InputTooLarge):
    """The server answered, but to far fewer prompt tokens than were sent."""


class TruncatedToolCall(RunnerError):
    """The server could not parse the tool call its own model wrote."""


class RetryBudgetExhausted(RunnerError, TimeoutError):
    """The endpoint kept asking to wait until the retry budget or the attempts were used up."""


class StreamInterrupted(RunnerError, ConnectionError):
    """A stream ended without a finish.

    `text` is the content received so far; `partial_tool_calls` what had arrived of tool calls. They
    are for diagnosis: none of them is a tool call to run.
    """

    def __init__(
        self,
        message: str,
        *,
        status: int = 0,
        body: str = "",
        text: str = "",
        partial_tool_calls: tuple[Any, ...] = (),
    ) -> None:
        super().__init__(message, status=status, body=body)
        self.text = text
        self.partial_tool_calls = partial_tool_calls


class ModelLoadError(RunnerError, OSError):
    """A model file is missing, damaged or of a kind llama.cpp cannot run."""
