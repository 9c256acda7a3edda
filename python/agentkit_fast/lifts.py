"""Calls whose result comes later: parked now, resolved or expired as new context."""

from __future__ import annotations

import threading
import time
from typing import Any

import msgspec

from agentkit_fast import model_words
from agentkit_fast.dispatch import result_text
from agentkit_fast.entries import Entry, EntryKind
from agentkit_fast.messages import ToolCall

__all__ = ["Lifts"]


class _Lift(msgspec.Struct):
    call_id: str
    name: str
    ttl_s: float
    deadline: float


class Lifts:
    """The pending calls of one session."""

    def __init__(self, store: Any, session_id: str) -> None:
        self._store = store
        self._session_id = session_id
        self._lock = threading.Lock()
        self._open: dict[str, _Lift] = {}

    def note(self, raw: str, call: ToolCall) -> str | None:
        """Park the call when its result asks for it; the placeholder the model sees."""
        if not raw.startswith("{"):
            return None
        from agentkit_fast.lifting import parse_lift_request, pending_result

        asked = parse_lift_request(raw)
        if asked is None:
            return None
        with self._lock:
            self._open[asked.correlation_id] = _Lift(
                call_id=call.id,
                name=call.name,
                ttl_s=asked.ttl_s,
                deadline=time.monotonic() + asked.ttl_s if asked.ttl_s else 0.0,
            )
        return pending_result(asked.correlation_id, call.id, asked.ttl_s)

    def resolve(self, correlation_id: str, result: Any) -> Entry:
        """Deliver a result."""
        with self._lock:
            lift = self._open.pop(correlation_id, None)
        if lift is None:
            raise KeyError(
                f"no pending call has the correlation id {correlation_id!r}: it is unknown,"
                f" resolved or expired"
            )
        text = model_words.resolved(
            name=lift.name, call_id=lift.call_id, correlation_id=correlation_id, result=result_text(result)
        )
        return self._deliver(lift, text)

    def _deliver(self, lift: _Lift, text: str) -> Entry:
        entry = Entry(
            kind=EntryKind.notification.value,
            tag="tool_result",
            content=text,
            tool_call_id=lift.call_id,
            tool_name=lift.name,
        )
        publish = getattr(self._store, "publish", None) or self._store.append
        stored = publish(self._session_id, entry)
        return stored if isinstance(stored, Entry) else entry
