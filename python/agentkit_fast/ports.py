"""A session's partners, as the drivers use them: store, runner, builder, preparer, tools, clock."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable
from typing import Any

import msgspec

from agentkit_fast.dispatch import Desk
from agentkit_fast.effects import OpenChat
from agentkit_fast.entries import Entry
from agentkit_fast.errors import RunnerError
from agentkit_fast.lifts import Lifts
from agentkit_fast.messages import ToolCall

__all__ = ["Ports"]

# Beyond every revision: asks a store for nothing but its present revision.
_FAR = 2**62


class Ports:
    """What the drivers call. Each method may give an awaitable where the partner is async."""

    def __init__(
        self,
        *,
        session_id: str,
        store: Any,
        runner: Any,
        desk: Desk,
        build: Callable[[], Any],
        build_blocks: bool,
        preparer: Any,
        lifts: Lifts,
        now: Callable[[], int] | None,
        events: bool,
    ) -> None:
        self.session_id = session_id
        self.store = store
        self.desk = desk
        self.build = build
        self.build_blocks = build_blocks
        self.now = now or time.time_ns
        self.park = lifts.park
        self._lifts = lifts
        self._runner = runner
        # Asked of the class: a wrapper that passes attributes on need not pass arguments on.
        self._telling = {"tell_retries": True} if getattr(type(runner), "tells_retries", False) else {}
        self._preparer = preparer
        self._events = events
        self._append_many = getattr(store, "append_many", None)
        self._last_stamp = 0
        # A store may say that it never waits (`blocking = False`): then an event loop calls it directly.
        self.store_blocks = bool(getattr(store, "blocking", True)) and not _is_async(
            getattr(store, "append", None)
        )
        self.prepare_blocks = not _is_async(getattr(preparer, "prepare", None))
        self.approve_blocks = not _is_async(desk.approve)
        self._chat = getattr(runner, "chat_stream", None)
        self._achat = getattr(runner, "achat_stream", None)
        if self._achat is None and (inspect.isasyncgenfunction(self._chat) or _is_async(self._chat)):
            self._achat = self._chat
        self.achat_stream = self._achat_stream if self._achat is not None else None

    # -- store --

    def claim(self) -> Any:
        """Claim the inbox: how many arrived, or (where events are wanted and the store can) which."""
        told = self._lifts.expire()
        if told or _is_async(self.store.claim_pending):
            return self._claim_later(told)
        since = getattr(self.store, "context_since", None) if self._events else None
        if since is None or _is_async(since):
            return self.store.claim_pending(self.session_id, self.now())
        revision = since(self.session_id, _FAR)[1]
        claimed = self.store.claim_pending(self.session_id, self.now())
        if not claimed:
            return 0
        # Another process may have appended in between, so only as many as were claimed, the newest.
        return since(self.session_id, revision)[0][-claimed:] or claimed

    async def _claim_later(self, told: list[Any]) -> Any:
        for one in told:
            await one
        claimed = self.store.claim_pending(self.session_id, self.now())
        return await claimed if inspect.isawaitable(claimed) else claimed

    def append(self, entries: tuple[Entry, ...]) -> Any:
        """Store entries; in one transaction where the store can."""
        if not entries:
            return None
        if self._append_many is not None:
            return self._append_many(self.session_id, entries)
        # A plain host store may keep entries as they come, so they are stamped here.
        for entry in entries:
            if not entry.created_at:
                self._last_stamp = max(self.now(), self._last_stamp + 1)
                entry.created_at = self._last_stamp
        if _is_async(self.store.append):
            return self._append_each(entries)
        for entry in entries:
            self.store.append(self.session_id, entry)
        return None

    async def _append_each(self, entries: tuple[Entry, ...]) -> None:
        for entry in entries:
            await self.store.append(self.session_id, entry)

    def stored(self, ids: tuple[str, ...]) -> Any:
        """Which of the ids are in the context."""
        found = self.store.context(self.session_id)
        if inspect.isawaitable(found):
            return self._stored_later(found, ids)
        return _among(found, ids)

    async def _stored_later(self, found: Any, ids: tuple[str, ...]) -> list[str]:
        return _among(await found, ids)

    def left_open(self) -> Any:
        """Stored calls without a result, where the store keeps account of them."""
        open_calls = getattr(self.store, "open_calls", None)
        return open_calls(self.session_id) if open_calls is not None else ()

    def begin_calls(self, entry_ids: tuple[str, ...]) -> Any:
        """Write down that these calls are about to run."""
        return self.store.begin_calls(self.session_id, entry_ids)

    def clear(self, group_by: str, key: str) -> Any:
        """Retract notices, where the store keeps any."""
        clear = getattr(self.store, "clear", None)
        return clear(self.session_id, group_by, key) if clear is not None else None

    # -- the others --

    def prepare(self) -> Any:
        prepare = getattr(self._preparer, "prepare", self._preparer)
        return prepare(self.session_id)

    def approve(self, call: ToolCall) -> Any:
        ask = self.desk.approve
        return ask(msgspec.structs.replace(call)) if ask is not None else False

    def dispatch(self, call: ToolCall) -> Any:
        dispatch = self.desk.dispatch
        if dispatch is None:
            raise LookupError(f"there is no dispatcher for {call.name!r}")
        return dispatch(msgspec.structs.replace(call))

    def chat_stream(self, ask: OpenChat) -> Any:
        """The open stream; an async one where the runner has no other."""
        chat = self._chat or self._achat
        if chat is None:
            raise RunnerError(f"{type(self._runner).__name__} has neither chat_stream nor achat_stream")
        return chat(ask.messages, ask.tools, ask.options, **self._telling)

    def _achat_stream(self, ask: OpenChat) -> Any:
        return self._achat(ask.messages, ask.tools, ask.options, **self._telling)  # type: ignore[misc]  # it is there


def _among(found: list[Entry], ids: tuple[str, ...]) -> list[str]:
    wanted = set(ids)
    return [entry.id for entry in found if entry.id in wanted]


def _is_async(function: Any) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(type(function), "__call__", None)  # noqa: B004
    )
