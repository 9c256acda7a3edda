"""Preparers that keep notices true: what is settled leaves before the model reads of it."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Iterable
from typing import Any, Protocol

from agentkit_fast.asyncbridge import Expired, await_within, run_async, run_within
from agentkit_fast.entries import PendingNotice
from agentkit_fast.lifting import is_resolved_truth

__all__ = ["PreparerChain", "RevalidatingPreparer", "Revalidator"]

_log = logging.getLogger(__name__)


class Revalidator(Protocol):
    """Asks whatever a notice came from whether it still holds."""

    def revalidate(self, group_by: str, key: str) -> Any:
        """The present truth as text, blank or empty JSON when settled; `None`: no check for this group.

        May be async.
        """
        ...


class RevalidatingPreparer:
    """Asks about each pending notice once and clears those that are settled (`is_resolved_truth`).

    `revalidator` has a method `revalidate(group_by, key)`, or is such a function, sync or async. A check that
    fails, or takes longer than `timeout_s` seconds, keeps its notice: a flaky tool cannot wedge a turn. A
    failing store ends the turn. The store is one with `pending_notices` and `clear`.
    """

    def __init__(
        self,
        store: Any,
        revalidator: Revalidator | Callable[[str, str], Any],
        *,
        timeout_s: float | None = 10.0,
    ) -> None:
        for name in ("pending_notices", "clear"):
            if not callable(getattr(store, name, None)):
                raise TypeError(f"{type(store).__name__} keeps no notices: it has no method {name}()")
        self._store = store
        self._check: Callable[[str, str], Any] = getattr(revalidator, "revalidate", revalidator)  # type: ignore[arg-type]
        self._timeout_s = timeout_s
        if inspect.iscoroutinefunction(self._check):
            self.prepare = self._aprepare  # type: ignore[method-assign]  # then awaited by the caller

    def prepare(self, session_id: str) -> Any:
        """Check this session's pending notices. A coroutine function where the revalidator is one."""
        for group_by, key in self._pending(session_id):
            try:
                truth = run_within(lambda about=(group_by, key): self._check(*about), self._timeout_s)  # type: ignore[misc]
                if inspect.isawaitable(truth):
                    waiting = truth
                    truth = run_async(lambda: waiting, self._timeout_s)  # noqa: B023 - called at once
            except Exception as error:  # noqa: BLE001 - fail-open: the notice stays
                self._kept(group_by, key, error)
                continue
            if _settled(truth):
                self._store.clear(session_id, group_by, key)

    async def _aprepare(self, session_id: str) -> None:
        for group_by, key in await _maybe(self._store.pending_notices(session_id), _keys):
            try:
                truth = await await_within(
                    lambda about=(group_by, key): self._check(*about),  # type: ignore[misc]
                    self._timeout_s,
                )
            except Exception as error:  # noqa: BLE001 - fail-open: the notice stays
                self._kept(group_by, key, error)
                continue
            if _settled(truth):
                await _maybe(self._store.clear(session_id, group_by, key))

    def _pending(self, session_id: str) -> list[tuple[str, str]]:
        return _keys(self._store.pending_notices(session_id))

    def _kept(self, group_by: str, key: str, error: Exception) -> None:
        why = f"no answer within {self._timeout_s:g} s" if isinstance(error, Expired) else repr(error)
        _log.warning("the notice about %s %s could not be checked and stays: %s", group_by, key, why)


def _keys(notices: Iterable[PendingNotice]) -> list[tuple[str, str]]:
    return list(dict.fromkeys((notice.group_by, notice.key) for notice in notices))


def _settled(truth: Any) -> bool:
    return truth is not None and is_resolved_truth(str(truth))


async def _maybe(value: Any, then: Callable[[Any], Any] = lambda value: value) -> Any:
    return then(await value if inspect.isawaitable(value) else value)


class PreparerChain:
    """Several preparers as one, in order."""

    def __init__(self, *preparers: Any) -> None:
        self._steps = [getattr(preparer, "prepare", preparer) for preparer in preparers]
        if any(inspect.iscoroutinefunction(step) for step in self._steps):
            self.prepare = self._aprepare  # type: ignore[method-assign]  # then awaited by the caller

    def prepare(self, session_id: str) -> Any:
        """Run each. A coroutine function where one of them is."""
        for step in self._steps:
            step(session_id)

    async def _aprepare(self, session_id: str) -> None:
        for step in self._steps:
            await _maybe(step(session_id))
