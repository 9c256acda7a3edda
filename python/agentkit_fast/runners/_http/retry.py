"""When to ask again: facts in, decision out. No I/O, no clock, no randomness of its own."""

from __future__ import annotations

import math
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import Literal

import msgspec

__all__ = ["RetryEvent", "RetryPolicy", "asked_delay"]

MAX_ASKED_S = 300.0
FIRST_DELAY_S = 1.0
MAX_DELAY_S = 30.0
RECONNECT_S = 0.1
JITTER = 0.2

Kind = Literal["rate_limit", "server_error", "connection"]


class RetryEvent(msgspec.Struct, kw_only=True, frozen=True):
    """A request is going to be made again.

    `attempt` counts the requests made so far, `status` is the HTTP status (0: no answer), `delay_s` the wait
    that begins now, `elapsed_s` the time since the first failure, `budget_s` the retry budget
    (negative: none), `server_asked` whether the server named the wait.
    """

    kind: Kind
    attempt: int
    status: int
    delay_s: float
    elapsed_s: float
    budget_s: float
    server_asked: bool
    reason: str


class RetryPolicy(msgspec.Struct, kw_only=True, frozen=True):
    """How long and how often. A negative `budget_s` puts no bound on waiting for a rate limit."""

    budget_s: float = 300.0
    attempts: int = 5

    def decide(
        self,
        *,
        kind: Kind,
        attempt: int,
        status: int,
        asked_s: float | None,
        elapsed_s: float,
        remaining_s: float,
        jitter: float,
        reason: str,
        streak: int | None = None,
    ) -> RetryEvent | None:
        """The wait before the next request, or `None` to give up.

        `attempt` requests of this kind of failure were made, `streak` of all kinds (default: the same).
        `elapsed_s` has passed since the first failure, `remaining_s` is left until the caller's deadline
        (infinite: none), `jitter` is a random number in [0, 1).
        """
        if kind != "rate_limit" and attempt >= self.attempts:
            return None
        delay = min(MAX_DELAY_S, FIRST_DELAY_S * 2.0 ** min(attempt - 1, 30))
        if kind == "connection":
            # The first one is most often a pooled connection that the server closed in the meantime.
            delay = RECONNECT_S if attempt == 1 else delay / 2
        if asked_s is not None:
            # "At once" is honoured once: a server that always says 0 would be called in a tight loop.
            delay = min(asked_s, MAX_ASKED_S) if asked_s > 0 or attempt == 1 else delay
        left = remaining_s
        if self.budget_s >= 0:
            left = min(left, self.budget_s - elapsed_s)
        if delay > left or left <= 0:
            return None
        return RetryEvent(
            kind=kind,
            attempt=attempt if streak is None else streak,
            status=status,
            delay_s=min(delay * (1.0 + JITTER * jitter), left),
            elapsed_s=elapsed_s,
            budget_s=self.budget_s,
            server_asked=asked_s is not None,
            reason=reason,
        )


def asked_delay(
    retry_after: str, retry_after_ms: str, date: str, body_asks: float | None, now: float
) -> float | None:
    """Seconds the server asks to wait, or `None`.

    `retry_after` is a number of seconds or an HTTP date, read against the server's own `date` where
    it sent one, so that two clocks need not agree. The header goes before the body.
    """
    text = retry_after.strip()
    if text:
        seconds = _seconds(text)
        if seconds is None:
            until, since = _timestamp(text), _timestamp(date)
            if until is not None:
                seconds = max(0.0, until - (now if since is None else since))
        if seconds is not None:
            return seconds
    millis = _seconds(retry_after_ms.strip())
    return millis / 1000 if millis is not None else body_asks


def _seconds(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) and value >= 0 else None


def _timestamp(text: str) -> float | None:
    try:
        when = parsedate_to_datetime(text)
        return (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp()
    except (TypeError, ValueError, IndexError, OverflowError):
        return None
