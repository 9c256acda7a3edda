"""The rules of a request and of a streamed reply, as generators of effects. No I/O.

A rule yields what it wants done (`Send`, `Read`, `Close`, `Wait`) and is sent the outcome; a list it yields
is chunks for the caller. `drivers.py` performs the effects, once for threads and once for event loops, so
that there is one copy of every rule.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator
from typing import Any

import msgspec

from agentkit_fast.errors import (
    ContextTruncated,
    InputTooLarge,
    RetryBudgetExhausted,
    RunnerError,
    StreamInterrupted,
)
from agentkit_fast.events import Retrying
from agentkit_fast.messages import Usage
from agentkit_fast.runners._http.errors import classify, loads, read_refusal, retry_after_of
from agentkit_fast.runners._http.reply import ErrorInStream, GuardFactory, ReplyReader, reply_of_body
from agentkit_fast.runners._http.retry import Kind, RetryEvent, RetryPolicy, asked_delay

__all__ = [
    "Answer",
    "Close",
    "Context",
    "Endpoint",
    "Failed",
    "Read",
    "Send",
    "Wait",
    "ask",
    "stream_reply",
]

_log = logging.getLogger("agentkit_fast.http")

# More than any error message; what is longer is cut, so that a hostile body cannot fill the memory.
MAX_ERROR_BODY = 1 << 20
MAX_BODY = 256 << 20


class Send(msgspec.Struct, frozen=True):
    """Make a request; the outcome is an `Answer` with its body still unread, or `Failed`."""

    method: str
    url: str
    headers: dict[str, str]
    content: bytes | None = None
    timeout_s: float | None = None


class Read(msgspec.Struct, frozen=True):
    """The next bytes of the body: `bytes` (empty: the end) or `Failed`, at the latest after `within_s`."""

    within_s: float | None = None


class Close(msgspec.Struct, frozen=True):
    """Give the response up; closes the connection unless the body was read to its end."""


class Wait(msgspec.Struct, frozen=True):
    """Sleep."""

    seconds: float


class Answer(msgspec.Struct, frozen=True):
    """A response: its status and headers (names in lower case)."""

    status: int
    headers: dict[str, str]


class Failed(msgspec.Struct, frozen=True):
    """No response, or a body that broke off. `timeout`: no byte came in the time allowed."""

    reason: str
    timeout: bool = False
    cause: BaseException | None = None


Effect = Send | Read | Close | Wait | list[Any]
Rule = Generator[Effect, Any, Any]


class Endpoint(msgspec.Struct, frozen=True):
    """Where to ask: `root` is the server, `api` its `/v1`."""

    root: str
    api: str
    model: str
    headers: dict[str, str]


class Context(msgspec.Struct):
    """What every rule needs: the endpoint's name, the policy, a clock, randomness."""

    where: str
    policy: RetryPolicy
    on_retry: Callable[[RetryEvent], Any] | None
    now: Callable[[], float]
    wall: Callable[[], float]
    random: Callable[[], float]
    timeout_s: float
    deadline: float | None = None
    tell_retries: bool = False
    """Say in the stream itself, before each wait, that there is one."""

    def remaining(self) -> float:
        """Seconds left until the caller's deadline."""
        return float("inf") if self.deadline is None else self.deadline - self.now()


class _Retries:
    """Counts what went wrong in one call and asks the policy."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._since: float | None = None
        self._limited = 0
        self._broken = 0

    def wait_or_raise(
        self, kind: Kind, status: int, asked: float | None, reason: str, error: RunnerError
    ) -> Rule:
        """Wait before the next request. Raises `error`'s kin when there is to be none."""
        context = self._context
        now = context.now()
        if self._since is None:
            self._since = now
        if kind == "rate_limit":
            self._limited += 1
        else:
            self._broken += 1
        event = context.policy.decide(
            kind=kind,
            attempt=self._limited if kind == "rate_limit" else self._broken,
            streak=self._limited + self._broken,
            status=status,
            asked_s=asked,
            elapsed_s=now - self._since,
            remaining_s=context.remaining(),
            jitter=context.random(),
            reason=reason,
        )
        if event is None:
            raise self._given_up(kind, asked, now - self._since, error) from error
        _log.info(
            "asking again in %.1f s, request %d failed with status %d: %s",
            event.delay_s,
            event.attempt,
            event.status,
            event.reason,
        )
        if context.on_retry is not None:
            context.on_retry(event)
        if context.tell_retries:
            yield [Retrying(reason=event.reason, attempt=event.attempt, delay_s=event.delay_s)]
        yield Wait(event.delay_s)

    def _given_up(self, kind: Kind, asked: float | None, elapsed: float, error: RunnerError) -> RunnerError:
        if kind == "connection":
            return error
        context = self._context
        tries = self._limited + self._broken
        asks = "" if asked is None else f", the last time to wait {asked:g} s"
        bounds = (
            f"{context.policy.attempts} requests allowed"
            if kind != "rate_limit" and self._broken >= context.policy.attempts
            else "the deadline is too near"
            if context.remaining() < (asked or 1.0)
            else f"retry budget {context.policy.budget_s:g} s"
        )
        return RetryBudgetExhausted(
            f"{context.where} refused {tries} requests in {elapsed:.1f} s{asks}; given up ({bounds}). "
            f"Ask again later or raise retry_budget_s. Last answer: {error}",
            status=error.status,
            body=error.body,
        )


def _with_timeout(context: Context, send: Send) -> Send:
    left = context.remaining()
    limit = context.timeout_s if send.timeout_s is None else send.timeout_s
    return msgspec.structs.replace(send, timeout_s=max(0.001, min(limit, left)))


def _no_answer(context: Context, failed: Failed) -> StreamInterrupted:
    if failed.timeout:
        return StreamInterrupted(
            f"{context.where} sent nothing for {context.timeout_s:g} s; the connection was closed. Raise "
            "timeout= where prompts take longer to read."
        )
    return StreamInterrupted(f"No answer from {context.where}: {failed.reason}. Is the server running?")


def _read_all(context: Context, limit: int, *, lenient: bool = False) -> Rule:
    """The rest of the body; `Failed` when it broke off (with `lenient`: what came before)."""
    pieces: list[bytes] = []
    size = 0
    while True:
        data = yield Read() if context.deadline is None else Read(max(0.001, context.remaining()))
        if isinstance(data, Failed):
            if lenient:
                return b"".join(pieces)
            return data
        if not data:
            return b"".join(pieces)
        pieces.append(data)
        size += len(data)
        if size > limit:
            yield Close()
            if lenient:
                return b"".join(pieces)[:limit]
            raise RunnerError(f"{context.where} sent a body of more than {limit:,} bytes.")


def _asked(context: Context, answer: Answer, in_body: float | None) -> float | None:
    headers = answer.headers
    return asked_delay(
        headers.get("retry-after", ""),
        headers.get("retry-after-ms", ""),
        headers.get("date", ""),
        in_body,
        context.wall(),
    )


def _answered(context: Context, send: Send, retries: _Retries, adapt: Any = None) -> Rule:
    """Send until there is a 2xx answer, whose body is unread. Waits and gives up as the policy says."""
    while True:
        outcome = yield _with_timeout(context, send)
        if isinstance(outcome, Failed):
            error = _no_answer(context, outcome)
            error.__cause__ = outcome.cause
            if outcome.timeout:
                raise error
            yield from retries.wait_or_raise("connection", 0, None, outcome.reason, error)
            continue
        status = outcome.status
        if 200 <= status < 300:
            return outcome
        body = yield from _read_all(context, MAX_ERROR_BODY, lenient=True)
        yield Close()
        refused = classify(status, body, context.where)
        if type(refused) is not RunnerError:
            raise refused
        value = loads(body)
        refusal = read_refusal(value)
        if status == 429 or status >= 500:
            asked = _asked(context, outcome, retry_after_of(value))
            kind: Kind = "rate_limit" if status == 429 else "server_error"
            reason = refusal.message if refusal else f"HTTP {status}"
            yield from retries.wait_or_raise(kind, status, asked, reason, refused)
            continue
        changed = adapt(status, refused.body) if adapt is not None else None
        if changed is None:
            raise refused
        send = msgspec.structs.replace(send, content=changed)


def ask(context: Context, send: Send, adapt: Any = None) -> Rule:
    """A request whose answer is read whole: `(Answer, body)`."""
    retries = _Retries(context)
    while True:
        answer = yield from _answered(context, send, retries, adapt)
        body = yield from _read_all(context, MAX_BODY)
        if not isinstance(body, Failed):
            return answer, body
        error = _no_answer(context, body)
        if body.timeout:
            raise error
        yield from retries.wait_or_raise("connection", answer.status, None, body.reason, error)


def ask_once(context: Context, send: Send) -> Rule:
    """A request that is not repeated: `(status, headers, body)`, status 0 where there was no answer."""
    outcome = yield _with_timeout(context, send)
    if isinstance(outcome, Failed):
        return 0, {}, b""
    body = yield from _read_all(context, MAX_BODY, lenient=True)
    yield Close()
    return outcome.status, outcome.headers, body


class Sizes(msgspec.Struct, frozen=True):
    """What is known of a prompt's size, to notice a server that cut it without a word.

    `tokens` was counted exactly or is 0; `floor` gives a number no tokenizer goes below, `estimate` a likely one
    (both are asked only when something looks wrong); `window` is the model's (0: unknown).
    """

    tokens: int = 0
    floor: Callable[[], int] = int
    estimate: Callable[[], int] = int
    window: int = 0


# A server that drops the front of a prompt keeps about half a window (ollama/ollama#17427); chat templates
# and other counters differ from ours by a few per cent, never by a third.
TRUNCATED_BELOW = 0.7
# A short prompt is never cut, and some servers report only what was not in their cache.
TRUNCATED_ABOVE = 256
# How long to wait for usage after the finish reason, and for the end of the body after `[DONE]`.
USAGE_WITHIN_S = 5.0
END_WITHIN_S = 0.2


def check_truncation(where: str, usage: Usage, sizes: Sizes) -> None:
    """Raise `ContextTruncated` when a server answered to far fewer prompt tokens than were sent."""
    # Some servers leave out of the prompt what came from their cache.
    reported = usage.prompt_tokens + (0 if sizes.tokens else usage.cached_tokens)
    if reported < TRUNCATED_ABOVE:
        return
    ours = sizes.tokens
    if (reported >= ours * TRUNCATED_BELOW) if ours else (reported >= (ours := sizes.floor())):
        return
    floor = "" if sizes.tokens else "at least "
    raise ContextTruncated(
        f"{where} answered to {reported:,} prompt tokens where {floor}{ours:,} were sent: it cut the "
        "prompt without saying so, usually the system prompt first. Give the server a larger context, or "
        "set a token budget below its window.",
        status=200,
        prompt_tokens=ours,
        context_tokens=sizes.window,
    )


def stream_reply(
    context: Context,
    send: Send,
    *,
    max_tokens: int = 0,
    guard: GuardFactory | None = None,
    sizes: Sizes | None = None,
    adapt: Any = None,
    whole: Callable[[], Send] | None = None,
    on_usage: Callable[[Usage], None] | None = None,
) -> Rule:
    """A streamed chat round: yields lists of chunks, the last of which has `done=True`.

    `whole` gives the same request not streamed: it is made once where the stream came to nothing.
    """
    retries = _Retries(context)
    sizes = sizes or Sizes()
    started = context.now()
    while True:
        answer = yield from _answered(context, send, retries, adapt)
        reader = ReplyReader(context.where, max_tokens=max_tokens, guard=guard)
        kind = answer.headers.get("content-type", "")
        if "json" in kind and "ndjson" not in kind and "event-stream" not in kind:
            reader.expect_json()
        try:
            ended = yield from _read_reply(context, reader)
        except ErrorInStream as found:
            yield Close()
            yield from _after_error(retries, reader, found)
            continue
        if isinstance(ended, Failed) and ended.timeout and not reader.finished:
            because = (
                ended.reason
                if ended.cause is None or context.remaining() <= 0
                else (f"nothing came for {context.timeout_s:g} s")
            )
            raise reader.interrupted(because) from ended.cause
        if isinstance(ended, Failed) and reader.bytes == 0 and not reader.finished:
            error = _no_answer(context, ended)
            error.__cause__ = ended.cause
            yield from retries.wait_or_raise("connection", answer.status, None, ended.reason, error)
            continue
        latency = round((context.now() - started) * 1000)
        usage = reader.usage(latency)
        if usage is not None:
            check_truncation(context.where, usage, sizes)
            if on_usage is not None:
                on_usage(usage)
        if reader.empty and 0 < sizes.window < (prompt := sizes.tokens or sizes.estimate()):
            raise InputTooLarge(
                f"{context.where} answered 200 with an empty reply to a prompt of about {prompt:,} tokens; its "
                f"window is {sizes.window:,}. Shorten the history.",
                status=200,
                prompt_tokens=prompt,
                context_tokens=sizes.window,
            )
        if whole is not None and _came_to_nothing(reader, usage):
            _, body = yield from ask(context, whole(), adapt)
            latency = round((context.now() - started) * 1000)
            try:
                chunks = reply_of_body(body, context.where, latency, max_tokens)
            except ErrorInStream as found:
                raise found.error from None
            yield chunks
            return
        because = ended.reason if isinstance(ended, Failed) else "the server closed the connection"
        yield reader.close(latency, because=because)
        return


def _came_to_nothing(reader: ReplyReader, usage: Any) -> bool:
    """The stream held nothing of a reply that the server did make, or an error it had no words for.

    llama-cpp-python answers 200 and closes at once where a prompt is too large; some versions of Ollama leave
    streamed tool calls out (ollama/ollama#9632, #12557). Not streamed, both say what they have to say.
    """
    if not reader.empty or reader.repetition is not None:
        return False
    return reader.bytes == 0 or (reader.finished and usage is not None and usage.completion_tokens > 1)


def _read_reply(context: Context, reader: ReplyReader) -> Rule:
    """Read until the reply is done, was cut, or broke off; the outcome of the last read."""
    plain = Read()
    while True:
        read = plain
        if reader.finish_reason:
            read = Read(USAGE_WITHIN_S)
        elif context.deadline is not None:
            read = Read(max(0.001, context.remaining()))
        data = yield read
        if isinstance(data, Failed):
            yield Close()
            if data.timeout and context.remaining() <= 0:
                return Failed("the caller's deadline passed", timeout=True, cause=data.cause)
            return data
        if not data:
            chunks = reader.end()
            if chunks:
                yield chunks
            yield Close()
            return data
        chunks = reader.feed(data)
        if chunks:
            yield chunks
        if reader.repetition is not None:
            # Closing is what stops the server: it would go on to its token limit otherwise.
            yield Close()
            return data
        if reader.done:
            # Read to its end, the connection can be used again.
            yield Read(END_WITHIN_S)
            yield Close()
            return data


def _after_error(retries: _Retries, reader: ReplyReader, found: ErrorInStream) -> Rule:
    """An error inside a 200: retried like the status it names, but only if nothing was shown yet."""
    retryable = found.status == 429 or found.status >= 500
    if type(found.error) is not RunnerError or not retryable or not reader.empty:
        raise found.error
    kind: Kind = "rate_limit" if found.status == 429 else "server_error"
    yield from retries.wait_or_raise(kind, found.status, found.retry_after, str(found.error), found.error)
