"""Calls whose result comes later: parked now, resolved or expired as new context.

A store that keeps parked calls (`park_call`, `parked_calls`, `settle_call`) keeps them over a restart; with any
other store they live as long as the session object.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Awaitable, Callable
from typing import Any

from agentkit_fast import model_words
from agentkit_fast._unicode import repair_text
from agentkit_fast.dispatch import result_text
from agentkit_fast.entries import Entry, EntryKind, ParkedCall, new_id
from agentkit_fast.lifting import LiftRequest
from agentkit_fast.messages import ToolCall

__all__ = ["Lifts"]

TAG = "tool_result"


class Lifts:
    """The parked calls of one session."""

    def __init__(self, store: Any, session_id: str, now: Callable[[], int]) -> None:
        self._store = store
        self._session_id = session_id
        self._now = now
        self._lock = threading.Lock()
        park = getattr(store, "park_call", None)
        self._durable = hasattr(store, "settle_call") and not (
            park is None or inspect.iscoroutinefunction(park)
        )
        self._open: dict[str, ParkedCall] = {}

    def park(self, asked: LiftRequest, call: ToolCall) -> None:
        """Keep a call until its result arrives or its time is over."""
        parked = ParkedCall(
            correlation_id=repair_text(asked.correlation_id),
            tool_call_id=call.id,
            tool_name=call.name,
            deadline=self._now() + int(asked.ttl_s * 1e9) if asked.ttl_s else 0,
        )
        if self._durable:
            self._store.park_call(self._session_id, parked)
            return
        with self._lock:
            self._open[parked.correlation_id] = parked

    def resolve(self, correlation_id: str, result: Any) -> Any:
        """Deliver a result: its entry, or with an async store what gives it.

        `KeyError` where no such call is parked (any more).
        """
        correlation_id = repair_text(correlation_id)
        parked = next((one for one in self.open() if one.correlation_id == correlation_id), None)
        stored: Any = None
        if parked is not None:
            text = model_words.resolved(
                name=parked.tool_name,
                call_id=parked.tool_call_id,
                correlation_id=correlation_id,
                result=result_text(result),
            )
            stored = self._settle(parked, text)
        if stored is None:
            raise KeyError(
                f"no call is parked under the correlation id {correlation_id!r}: it is unknown, resolved or"
                " expired"
            )
        return stored

    def open(self) -> list[ParkedCall]:
        """The calls that wait for their results."""
        if self._durable:
            found: list[ParkedCall] = self._store.parked_calls(self._session_id)
            return found
        with self._lock:
            return list(self._open.values())

    def expire(self) -> list[Any]:
        """Tell the model of each call whose deadline has passed; gives what an async store wants awaited."""
        if not self._durable and not self._open:
            return []
        now = self._now()
        late = [parked for parked in self.open() if parked.deadline and parked.deadline <= now]
        told = [
            self._settle(
                parked,
                model_words.resolved_expired(
                    name=parked.tool_name,
                    call_id=parked.tool_call_id,
                    correlation_id=parked.correlation_id,
                ),
            )
            for parked in late
        ]
        return [one for one in told if inspect.isawaitable(one)]

    def _settle(self, parked: ParkedCall, text: str) -> Any:
        """Into the inbox with it, once; `None` where somebody else was first."""
        entry = Entry(
            id=new_id(),
            kind=EntryKind.notification.value,
            tag=TAG,
            content=text,
            tool_call_id=parked.tool_call_id,
            tool_name=parked.tool_name,
        )
        stored: Entry | None
        if self._durable:
            stored = self._store.settle_call(self._session_id, parked.correlation_id, entry)
            return stored
        with self._lock:
            if self._open.pop(parked.correlation_id, None) is None:
                return None
        publish = getattr(self._store, "publish", None)
        if publish is None:
            entry.created_at = self._now()
            publish = self._store.append
        stored = publish(self._session_id, entry)
        if inspect.isawaitable(stored):
            return _entry_of(stored, entry)
        return stored if isinstance(stored, Entry) else entry


async def _entry_of(storing: Awaitable[Any], entry: Entry) -> Entry:
    stored = await storing
    return stored if isinstance(stored, Entry) else entry
