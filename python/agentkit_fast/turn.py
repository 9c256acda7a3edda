"""The rules of a turn: a generator of effects, without await, thread or clock of its own.

One iteration: claim the inbox → preparer → build the window → chat → `on_tool_calls` → gate the calls →
store reply and calls → run the calls, storing each result as it ends → look for circles → again, until the
model answers without a call. `docs/turn.md` has the order of events.

What makes it safe to break anywhere:

- nothing of a reply is stored before its stream has ended well;
- reply and calls go into the store together, refused calls with their answers;
- `_Ledger` knows every call whose answer is not stored yet, and `_settle` answers each of them, whatever
  broke the turn. A process that dies leaves at most calls without results, which the shaper shows as
  such.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterable, Sequence
from typing import Any

import msgspec

from agentkit_fast import model_words
from agentkit_fast._unicode import repair_text
from agentkit_fast.dispatch import Desk, result_text
from agentkit_fast.effects import (
    Append,
    Approve,
    BeginCalls,
    Build,
    Claim,
    ClearNotice,
    CloseChat,
    Effect,
    Emit,
    Hook,
    LeftOpen,
    NextResult,
    Now,
    OpenChat,
    Outcome,
    Park,
    Prepare,
    StartCall,
    StopCalls,
    Stored,
    TurnStopped,
)
from agentkit_fast.entries import Entry, EntryKind, EntryUsage, RequestRetry, new_id
from agentkit_fast.errors import (
    EmptyReply,
    LimitExceeded,
    MaxTurnsError,
    RepetitionError,
    SessionClosed,
    ToolLoopError,
)
from agentkit_fast.events import Compacted, Notice, Retrying, ToolResult, TurnDone, UsageUpdated
from agentkit_fast.lifting import ToolOutcome, parse_clear_request, parse_lift_request, pending_result
from agentkit_fast.limits import Limits, TokenUsage, TurnResult
from agentkit_fast.loopguard import LoopGuard
from agentkit_fast.messages import ChatOptions, ToolCall, ToolDef, Usage
from agentkit_fast.reply import Reply, read_reply
from agentkit_fast.slots import Slots
from agentkit_fast.toolcalls import GatedCall, distinct_ids, gate, switched_off
from agentkit_fast.tracing import close_span, open_span

__all__ = ["Rules", "Turn", "TurnPlan", "notification"]

Rules = Generator[Effect, Any, Any]

_log = logging.getLogger("agentkit_fast.turn")
_ASSISTANT = EntryKind.assistant.value
_NOTIFICATION = EntryKind.notification.value
_TOOL_CALL = EntryKind.tool_call.value
_TOOL_RESULT = EntryKind.tool_result.value


class TurnPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Everything a turn goes by: the session's settings, resolved."""

    session_id: str
    thread_id: str
    desk: Desk
    heredoc: bool
    options: Callable[[int], ChatOptions]
    grammar: Callable[[str | None], tuple[str, tuple[ToolDef, ...]]]
    """For heredoc: the grammar and native tools for a `tool_choice`."""
    view: Callable[[Any], Any]
    """Changes the model's view of a window: long results cut, control tokens broken."""
    count_window: Callable[[Any], int]
    count_text: Callable[[str], int]
    has_preparer: bool
    guard: Callable[[str], Any] | None
    """Makes a repetition guard for `"content"` or `"reasoning"`; `None`: no guard."""
    restore: Callable[[str], str] | None
    """Undoes reversible neutralization in what the model writes."""
    on_token: Callable[[str], Any] | None
    on_compaction: Callable[[Any], Any] | None
    on_usage: Callable[[TokenUsage], Any] | None
    on_tool_calls: Callable[[list[ToolCall]], Any] | None
    encode_tool_result: Callable[[str], Any] | None
    normalize_result: Callable[[str], Any] | None
    tracks_calls: bool
    """Whether the store keeps account of calls that have begun and have no result."""
    max_turns: int
    forced_terminal_tool: str
    max_repetition_retries: int
    max_repeated_exchanges: int
    max_parallel_tools: int
    limits: Limits | None
    retries: list[RequestRetry]
    """Requests that failed since the last reply was stored: the next stored reply takes them along."""
    tracer: Any
    span_prefix: str
    events: bool
    """Whether somebody listens to events."""


class _Call(msgspec.Struct):
    """A call of the running round."""

    call: ToolCall
    entry_id: str
    result_id: str
    answer: str | None = None
    """The text to be stored as its result, once it is known."""
    raw: str = ""
    stored: bool = False
    """Its result is in the store."""
    started: bool = False
    closed: bool = False
    """The tool raised `SessionClosed`."""
    stop: ToolLoopError | None = None
    """The dispatcher's word that going on is of no use."""
    span: Any = None


class _Ledger:
    """What the store may lack if the turn breaks now."""

    def __init__(self) -> None:
        self.calls: list[_Call] = []
        self.calls_stored = False
        self.running = False


class Turn:
    """One turn. `run()` is the generator; `usage` are the session's running totals, which it adds to."""

    def __init__(self, plan: TurnPlan, usage: TokenUsage) -> None:
        self.plan = plan
        self.usage = usage
        self.result = TurnResult(usage=usage)
        self.slots = Slots()
        self._ledger = _Ledger()
        self._loop_guard = LoopGuard(plan.max_repeated_exchanges)
        self._used_ids: set[str] = set()
        self._used_tokens = 0
        self._repetitions = 0
        self._nudged = False
        self._no_calls = False
        self._handing_over = False
        self._terminal_called = False
        self._begun = False
        self._started_at = 0
        self._span: Any = None

    # -- the whole ---------------------------------------------------------------------------------------

    def run(self) -> Generator[Effect, Any, TurnResult]:
        """The turn. Ends with its `TurnResult`, or with an error that carries it as `.result`."""
        self._span = self._open_span("Turn", None)
        try:
            yield from self._iterate()
        except TurnStopped as stop:
            yield from self._settle(stop)
            self.result.cancelled = True
            self._finish("cancelled")
        except BaseException as error:
            yield from self._settle(error)
            if not isinstance(error, Exception):
                self.result.cancelled = True
            limit = isinstance(error, (LimitExceeded, MaxTurnsError))
            ended = "limit" if limit else "error" if isinstance(error, Exception) else "cancelled"
            self._finish(ended, error)
            raise
        if self.plan.events:
            yield Emit(TurnDone(result=self.result))
        return self.result

    def _finish(self, reason: str, error: BaseException | None = None) -> None:
        """Complete the result, and hang it on the error that ends the turn."""
        self.result.stop_reason = self.result.stop_reason or reason
        self.result.usage = msgspec.structs.replace(self.usage)
        self.result.reply = self.slots.expand(self.result.reply)
        close_span(self._span, error, rounds=self.result.rounds, tool_calls=self.result.tool_calls)
        if error is not None:
            try:
                error.result = self.result  # type: ignore[attr-defined]  # ours declare it, others take it
            except AttributeError:
                _log.debug("%s takes no .result", type(error).__name__)

    def _iterate(self) -> Rules:
        try:
            yield from self._rounds()
        except (LimitExceeded, MaxTurnsError) as limit:
            if self.plan.limits is None or not self.plan.limits.handover:
                raise
            yield from self._hand_over(limit)

    def _rounds(self) -> Rules:
        plan = self.plan
        if plan.limits is not None and plan.limits.seconds is not None:
            self._started_at = yield Now()
        if plan.tracks_calls:
            yield from self._take_up_left()
        for number in range(plan.max_turns):
            if plan.limits is not None and number:
                yield from self._check_limits(plan.limits)
            yield from self._claim()
            if plan.has_preparer:
                yield Prepare()
            window = plan.view((yield Build()))
            yield from self._note_window(window)
            reply = yield from self._chat(window, number)
            self.result.rounds += 1
            yield from self._note_usage(reply)
            calls = reply.calls
            if self._no_calls:
                calls = [switched_off(call) for call in calls]
            if reply.repetition is not None:
                yield from self._after_repetition(reply)
                continue
            self._repetitions = 0
            if plan.on_tool_calls is not None:
                self._used_ids.difference_update(call.id for call in calls)
                calls = self._changed((yield Hook(plan.on_tool_calls, (list(calls),))))
            if not calls:
                if (yield from self._after_text(reply, last=number + 1 == plan.max_turns)):
                    return
                continue
            self._nudged = False
            if (yield from self._after_calls(reply, calls)):
                self._finish("closed")
                return
        raise MaxTurnsError(self._too_many_rounds())

    def _hand_over(self, limit: Exception) -> Rules:
        """One last round without tools, past the limit, in which the model says how far it came."""
        self._handing_over = True
        note = notification(model_words.TAG_LIMIT, model_words.hand_over(str(limit).partition(". ")[0]))
        yield Append((note,))
        if self.plan.events:
            yield Emit(Notice(entry=note))
        try:
            window = self.plan.view((yield Build()))
            yield from self._note_window(window)
            reply = yield from self._chat(window, self.result.rounds)
        except Exception as error:
            raise limit from error  # the limit is what ended the turn
        self.result.rounds += 1
        yield from self._note_usage(reply)
        calls: list[ToolCall] = [switched_off(call) for call in reply.calls]
        if calls:
            yield from self._after_calls(reply, calls)
        else:
            yield Append(self._said(reply))
        self.result.reply = reply.content
        if not reply.content.strip():
            raise limit
        self._finish("limit")

    def _changed(self, calls: Any) -> list[ToolCall]:
        """What `on_tool_calls` returned."""
        if calls is None:
            return []
        if isinstance(calls, ToolCall) or not isinstance(calls, Iterable):
            raise TypeError(f"on_tool_calls returns a list of ToolCall, not {type(calls).__name__}")
        return distinct_ids(calls, self._used_ids)

    def _too_many_rounds(self) -> str:
        plan = self.plan
        text = f"the turn had {plan.max_turns} chat rounds (max_turns) and the model did not finish"
        if plan.forced_terminal_tool and not self._terminal_called:
            return (
                f"{text}: it never called {plan.forced_terminal_tool!r}, the only tool that ends"
                f" this session."
                " Check that the endpoint honours tool_choice."
            )
        return f"{text}. All is stored: call turn() again to go on, or raise max_turns."

    # -- before the chat ---------------------------------------------------------------------------------

    def _check_limits(self, limits: Limits) -> Rules:
        elapsed = 0.0
        if limits.seconds is not None:
            elapsed = ((yield Now()) - self._started_at) / 1e9
        limits.check_time_and_calls(calls=self.result.tool_calls, elapsed_s=elapsed)

    def _claim(self) -> Generator[Effect, Any, int]:
        claimed = yield Claim()
        if isinstance(claimed, int):
            return claimed
        for entry in claimed:
            yield Emit(Notice(entry=entry))
        return len(claimed)

    def _note_window(self, window: Any) -> Rules:
        plan = self.plan
        self.usage.active = plan.count_window(window)
        for info in getattr(window, "compactions", ()):
            self.result.compactions.append(info)
            if plan.on_compaction is not None:
                yield Hook(plan.on_compaction, (info,))
            if plan.events:
                yield Emit(Compacted(info=info))
        if plan.limits is not None and not self._handing_over:
            plan.limits.check_tokens(used=self._used_tokens, window=self.usage.active)

    # -- the chat ----------------------------------------------------------------------------------------

    def _chat(self, window: Any, number: int) -> Generator[Effect, Any, Reply]:
        plan = self.plan
        options, tools, heredoc = self._ask(number)
        span = self._open_span("streamChat", self._span)
        reply = Reply()
        began = yield Now()
        self._begun = True
        try:
            yield OpenChat(window, tools, options)
            try:
                yield from read_reply(
                    reply,
                    heredoc=heredoc,
                    guard=plan.guard,
                    restore=plan.restore,
                    on_token=plan.on_token,
                    events=plan.events,
                    used_ids=self._used_ids,
                    retries=plan.retries,
                    on_retry=lambda told: self._trace_retry(
                        span, "request", attempt=told.attempt, delay_s=told.delay_s
                    ),
                )
            finally:
                yield CloseChat()
            ended = yield Now()
        except BaseException as error:
            # What was said so far is handed back with the error, but never stored as if it were final.
            self.result.reply = reply.content
            close_span(span, error)
            raise
        reply.latency_ms = max(0, (ended - began) // 1_000_000)
        close_span(
            span,
            None,
            messages=len(getattr(window, "messages", window)) if span is not None else 0,
            tool_calls=len(reply.calls),
            window_tokens=self.usage.active,
            prompt_tokens=reply.usage.prompt_tokens if reply.usage else 0,
            cached_tokens=reply.usage.cached_tokens if reply.usage else 0,
            completion_tokens=reply.usage.completion_tokens if reply.usage else 0,
            finish_reason=reply.finish_reason,
        )
        return reply

    def _ask(self, number: int) -> tuple[ChatOptions, tuple[ToolDef, ...], bool]:
        """Options and tools of a round, and whether the reply is read as heredoc."""
        plan = self.plan
        options = plan.options(number)
        tools = plan.desk.defs
        if self._handing_over and tools:
            # The tools stay in the request: the prompt's prefix stays what it was.
            options = msgspec.structs.replace(options, tool_choice="none")
        if not plan.heredoc or not tools:
            return options, tools, False
        self._no_calls = options.tool_choice == "none"
        grammar, tools = plan.grammar(options.tool_choice)
        return (
            msgspec.structs.replace(options, tool_choice=None, grammar=options.grammar or grammar),
            tools,
            True,
        )

    def _note_usage(self, reply: Reply) -> Rules:
        plan, usage, spent = self.plan, self.usage, reply.usage
        usage.turns += 1
        if spent is None:
            # Nobody told: for limits an estimate is better than nothing, the tally stays honest.
            if plan.limits is not None and plan.limits.tokens is not None:
                self._used_tokens += usage.active + plan.count_text(reply.content)
        else:
            total = spent.total_tokens or spent.prompt_tokens + spent.completion_tokens
            usage.total += total
            usage.cached += spent.cached_tokens
            usage.processed += spent.new_prompt_tokens
            usage.generated += spent.completion_tokens
            self._used_tokens += total
        _log.debug(
            "round %d answered: window %d tokens, finish reason %r",
            usage.turns,
            usage.active,
            reply.finish_reason,
        )
        if plan.on_usage is not None:
            yield Hook(plan.on_usage, (msgspec.structs.replace(usage),))
        if plan.events:
            yield Emit(UsageUpdated(usage=msgspec.structs.replace(usage)))

    # -- after the chat ----------------------------------------------------------------------------------

    def _after_repetition(self, reply: Reply) -> Rules:
        plan, found = self.plan, reply.repetition
        self._repetitions += 1
        note = notification(
            model_words.TAG_REPETITION,
            model_words.repetition_note(
                period=found.period, reps=found.reps, where=getattr(found, "where", "content")
            ),
        )
        # One copy is kept: the model sees what it said, the loop is not there to be continued.
        said = self._said(reply)
        self.result.reply = reply.content
        yield Append((*said, note))
        if 0 <= plan.max_repetition_retries < self._repetitions:
            raise RepetitionError(
                f"the model repeated itself in {self._repetitions} replies in a row (last:"
                f" {found.reps} times"
                f" {found.period} bytes); max_repetition_retries is {plan.max_repetition_retries}."
                f" The copies"
                " are removed from the history. Another temperature, a repeat penalty or a shorter context"
                " usually helps."
            )
        self._trace_retry(self._span, "repetition", attempt=self._repetitions)
        if plan.events:
            yield Emit(Notice(entry=note))
            yield Emit(Retrying(reason="repetition", attempt=self._repetitions))

    def _after_text(self, reply: Reply, *, last: bool) -> Generator[Effect, Any, bool]:
        """Store a reply without calls. True: the turn is over."""
        plan = self.plan
        self.result.reply = reply.content
        if not reply.content.strip():
            return (yield from self._after_nothing(reply))
        self._nudged = False
        yield Append(self._said(reply))
        if not last and (yield from self._claim()):
            return False
        self.result.stop_reason = "length" if reply.finish_reason == "length" else "reply"
        self._finish(self.result.stop_reason)
        if plan.forced_terminal_tool and not self._terminal_called:
            _log.debug("the turn ended without a call of %s", plan.forced_terminal_tool)
        return True

    def _after_nothing(self, reply: Reply) -> Generator[Effect, Any, bool]:
        """Neither text nor a call: ask once more, with a word about it, then give up."""
        if (yield from self._claim()):
            return False
        if self._nudged:
            raise EmptyReply(
                "the model answered with nothing, and again after it was asked once more"
                f" (finish_reason {reply.finish_reason!r}). Check max_tokens and the chat template."
            )
        self._nudged = True
        note = notification(model_words.TAG_EMPTY, model_words.empty_reply())
        yield Append((note,))
        self._trace_retry(self._span, "empty reply", attempt=1)
        if self.plan.events:
            yield Emit(Notice(entry=note))
            yield Emit(Retrying(reason="empty reply", attempt=1))
        return False

    def _after_calls(self, reply: Reply, calls: list[ToolCall]) -> Generator[Effect, Any, bool]:
        """Store the reply with its calls and run them. True: a tool closed the session."""
        plan = self.plan
        self.result.reply = reply.content
        gated = [gate(call) for call in calls]
        allowed = self._allowed(gated)
        ledger = self._ledger = _Ledger()
        ledger.calls = [_Call(call=item.call, entry_id=new_id(), result_id=new_id()) for item in gated]
        for item, open_call, may_run in zip(gated, ledger.calls, allowed, strict=True):
            if item.refusal:
                open_call.answer = item.refusal
            elif not may_run and plan.limits is not None:
                open_call.answer = model_words.call_over_limit(plan.limits.tool_calls or 0)
            elif plan.desk.dispatch is None:
                open_call.answer = model_words.no_dispatcher(item.call.name)
            open_call.raw = open_call.answer or ""
        answered = [item for item in ledger.calls if item.answer is not None]
        yield Append(
            (
                *self._said(reply),
                *(_call_entry(item) for item in ledger.calls),
                *(_result_entry(item) for item in answered),
            )
        )
        ledger.calls_stored = True
        for open_call in answered:
            open_call.stored = True
            yield from self._tell_result(open_call)
        yield from self._run([item for item in ledger.calls if item.answer is None])
        self._ledger = _Ledger()
        for open_call in ledger.calls:
            if open_call.started:
                self.slots.capture(open_call.raw)
        for open_call in ledger.calls:
            if open_call.stop is not None:
                raise open_call.stop
        if any(item.closed for item in ledger.calls):
            return True
        # The arguments as the model wrote them: two different broken texts are two different calls.
        yield from self._look_for_circles(calls, [item.raw for item in ledger.calls])
        return False

    def _allowed(self, gated: Sequence[GatedCall]) -> list[bool]:
        """Which calls the turn's limit still allows."""
        limits = self.plan.limits
        if limits is None or limits.tool_calls is None:
            return [True] * len(gated)
        left = limits.tool_calls - self.result.tool_calls
        allowed = []
        for item in gated:
            allowed.append(bool(item.refusal) or left > 0)
            left -= not item.refusal
        return allowed

    # -- what a dead process left -------------------------------------------------------------------------

    def _take_up_left(self) -> Rules:
        """Answer the calls that an earlier process stored and did not end.

        One that had begun is run again only where its tool says that this does no harm.
        """
        left = yield LeftOpen()
        if not left:
            return
        again, answered = [], []
        for one in left:
            self._used_ids.add(one.call.id)
            item = _Call(call=one.call, entry_id=one.entry_id, result_id=new_id())
            if one.begun_at and self.plan.desk.idempotent(one.call) and self.plan.desk.dispatch is not None:
                again.append(item)
                continue
            item.answer = model_words.call_interrupted() if one.begun_at else model_words.call_not_run()
            answered.append(item)
        ledger = self._ledger = _Ledger()
        ledger.calls, ledger.calls_stored = [*answered, *again], True
        if answered:
            yield Append(tuple(_result_entry(item) for item in answered))
            for item in answered:
                item.stored = True
                yield from self._tell_result(item)
        yield from self._run(again)
        self._ledger = _Ledger()

    # -- running calls -----------------------------------------------------------------------------------

    def _run(self, calls: list[_Call]) -> Rules:
        if not calls:
            return
        plan, ledger = self.plan, self._ledger
        by_index = {ledger.calls.index(item): item for item in calls}
        # Those that need a person's yes come last, and are asked for when nothing runs: while a person reads,
        # no result may wait to be stored.
        asked = [index for index, item in by_index.items() if plan.desk.needs_approval(item.call)]
        waiting = [index for index in by_index if index not in asked]
        running = 0
        ledger.running = True
        yield from self._begin(waiting, by_index)
        while waiting or asked or running:
            while waiting and running < plan.max_parallel_tools:
                yield from self._start(waiting.pop(0), by_index, alone=len(calls) == 1)
                running += 1
            if running:
                outcome: Outcome = yield NextResult()
                running -= 1
                item = by_index[outcome.index]
                yield from self._take_outcome(item, outcome)
                yield from self._store_result(item)
                continue
            while asked:
                index = asked.pop(0)
                if (yield from self._approved(by_index[index])):
                    waiting.append(index)
                if not asked:
                    yield from self._begin(waiting, by_index)
        ledger.running = False

    def _begin(self, indexes: list[int], by_index: dict[int, _Call]) -> Rules:
        """Write down which calls run now, so that a crash does not hide what may have happened."""
        if indexes and self.plan.tracks_calls:
            yield BeginCalls(tuple(by_index[index].entry_id for index in indexes))

    def _start(self, index: int, by_index: dict[int, _Call], *, alone: bool) -> Rules:
        item = by_index[index]
        item.started = True
        item.span = self._open_span("tool", self._span)
        self.result.tool_calls += 1
        self._terminal_called |= item.call.name == self.plan.forced_terminal_tool
        yield StartCall(index=index, call=item.call, alone=alone)

    def _approved(self, item: _Call) -> Generator[Effect, Any, bool]:
        """Ask. Only `True` is a yes: no answer, another answer, an error and nobody to ask are a no."""
        said: Any = None
        if self.plan.desk.approve is not None:
            try:
                said = yield Approve(item.call)
            except Exception as error:  # noqa: BLE001 - whatever went wrong, nobody said yes
                _log.warning("approve raised %r for a call of %s: taken as a no", error, item.call.name)
        if said is True:
            return True
        item.answer = item.raw = model_words.call_not_approved(item.call.name)
        yield from self._store_result(item)
        return False

    def _take_outcome(self, item: _Call, outcome: Outcome) -> Rules:
        """Turn how a call ended into its raw text and the answer to be stored."""
        call, error = item.call, outcome.error
        if outcome.timed_out_s:
            item.answer = item.raw = model_words.call_timed_out(call.name, outcome.timed_out_s)
        elif isinstance(error, SessionClosed):
            item.closed = True
            item.raw = result_text(error.result)
        elif error is not None:
            item.stop = error if isinstance(error, ToolLoopError) else None
            item.answer = item.raw = model_words.tool_failed(type(error).__name__, repair_text(str(error)))
        else:
            item.raw = result_text(outcome.value)
        if item.span is not None:
            close_span(item.span, None if item.closed else error, tool=call.name, bytes=len(item.raw))
        if item.answer is None:
            item.answer = yield from self._shown(
                item, outcome.value
            )  # sets an answer before its first effect

    def _shown(self, item: _Call, value: Any) -> Generator[Effect, Any, str]:
        """The result as it is stored, once what it asks of the loop is done.

        A `ToolSet` marks a result that asks for something; any other dispatcher may give the JSON itself.
        """
        plan, raw = self.plan, item.raw
        marked = value.lift if isinstance(value, ToolOutcome) else None
        lift = marked or parse_lift_request(raw)
        # From here on there is an answer, whatever breaks the turn while its requests are met.
        item.answer = raw if raw.strip() else model_words.EMPTY_RESULT
        if lift is not None:
            if not marked:
                item.answer = pending_result(lift.correlation_id, item.call.id, lift.ttl_s)
            try:
                yield Park(lift, item.call)
            except Exception as error:  # noqa: BLE001 - a second failure is raised
                # An answer that promises a result nobody can deliver would be a lie.
                _log.warning("parking a call of %s failed (%r); once more", item.call.name, error)
                yield Park(lift, item.call)
            return item.answer
        clear = value.clear if isinstance(value, ToolOutcome) else parse_clear_request(raw)
        if clear is not None:
            try:
                yield ClearNotice(clear.group_by, clear.key)
            except Exception as error:  # noqa: BLE001 - logged; the notice is told once more than needed
                _log.warning("retracting a notice failed: %r", error)
        if plan.encode_tool_result is not None:
            try:
                raw = result_text((yield Hook(plan.encode_tool_result, (raw,))))
            except Exception:  # noqa: BLE001 - logged with its traceback
                # The call has run: its result is worth more than the shorter spelling of it.
                _log.exception(
                    "encode_tool_result failed for a result of %s; stored as it is", item.call.name
                )
        return raw if raw.strip() else model_words.EMPTY_RESULT

    def _store_result(self, item: _Call) -> Rules:
        entry = _result_entry(item)
        try:
            yield Append((entry,))
        except Exception as error:  # noqa: BLE001 - a second failure is raised
            # The tool has run and this is the only record of it, so a store that failed once is asked
            # again; the entry has its id already, so that it cannot be stored twice.
            _log.warning("storing a result of %s failed (%r); once more", item.call.name, error)
            if not (yield Stored((entry.id,))):
                yield Append((entry,))
        item.stored = True
        yield from self._tell_result(item)

    def _tell_result(self, item: _Call) -> Rules:
        if self.plan.events:
            yield Emit(ToolResult(call=item.call, content=item.answer or "", entry_id=item.result_id))

    # -- circles -----------------------------------------------------------------------------------------

    def _look_for_circles(self, calls: Sequence[ToolCall], raws: list[str]) -> Rules:
        plan = self.plan
        if plan.normalize_result is not None:
            for at, raw in enumerate(raws):
                raws[at] = result_text((yield Hook(plan.normalize_result, (raw,))))
        circle = self._loop_guard.push(calls, raws)
        if circle is None:
            return
        names = ", ".join(dict.fromkeys(call.name for call in calls))
        if circle.stop:
            raise ToolLoopError(
                f"the model made the same calls ({names}) {circle.times} times"
                + (f" in a cycle of {circle.cycle} rounds" if circle.cycle > 1 else "")
                + " with the same results, also after it was told; max_repeated_exchanges is"
                f" {plan.max_repeated_exchanges}. All is stored."
            )
        note = notification(
            model_words.TAG_TOOL_LOOP,
            model_words.tool_loop_note(
                names=names, times=circle.times, cycle=circle.cycle, stop_at=circle.stop_at
            ),
        )
        yield Append((note,))
        if plan.events:
            yield Emit(Notice(entry=note))

    # -- whatever happens --------------------------------------------------------------------------------

    def _settle(self, cause: BaseException) -> Rules:
        """Leave a history the next turn can use, whatever broke the turn and wherever.

        Every effect here may fail too, or be cancelled again: the others are still tried, and the cause is
        what the caller hears.
        """
        ledger = self._ledger
        if ledger.running:
            outcomes = yield from self._try(StopCalls(), ())
            for outcome in outcomes:
                item = ledger.calls[outcome.index]
                if item.answer is None:
                    yield from self._take_late(item, outcome)
        missing = [item for item in ledger.calls if not item.stored]
        if missing:
            yield from self._answer(missing, calls_stored=ledger.calls_stored)
        if self._begun and not isinstance(cause, Exception):
            note = notification(model_words.TAG_CANCELLED, model_words.cancelled_note())
            yield from self._try(Append((note,)), None)

    def _take_late(self, item: _Call, outcome: Outcome) -> Rules:
        try:
            yield from self._take_outcome(item, outcome)
        except BaseException as error:  # noqa: BLE001 - the turn ends with its first cause, not with this one
            _log.warning("while ending a turn: a result of %s: %r", item.call.name, error)

    def _answer(self, missing: list[_Call], *, calls_stored: bool) -> Rules:
        """Store a result for each call that is in the store without one."""
        ids = tuple(item.entry_id for item in missing) + tuple(item.result_id for item in missing)
        stored = set((yield from self._try(Stored(ids), ids if calls_stored else ())))
        entries = []
        for item in missing:
            if item.entry_id not in stored or item.result_id in stored:
                continue
            if item.answer is None:
                item.answer = model_words.call_interrupted() if item.started else model_words.call_not_run()
                close_span(item.span, None, tool=item.call.name, interrupted=True)
            entries.append(_result_entry(item))
        if entries:
            done = yield from self._try(Append(tuple(entries)), False)
            if done is False:
                for entry in entries:
                    yield from self._try(Append((entry,)), None)

    def _try(self, effect: Effect, default: Any) -> Generator[Effect, Any, Any]:
        try:
            return (yield effect)
        except BaseException as error:  # noqa: BLE001 - the turn ends with its first cause, not with this one
            _log.warning("while ending a turn: %s failed: %r", type(effect).__name__, error)
            return default

    # -- small things ------------------------------------------------------------------------------------

    def _said(self, reply: Reply) -> tuple[Entry, ...]:
        """The assistant entry of a reply; none where there is nothing to say."""
        retries = tuple(self.plan.retries)
        known = reply.usage is not None or retries
        if not (reply.content.strip() or reply.reasoning or (known and reply.calls)):
            return ()
        self.plan.retries.clear()
        return (
            Entry(
                id=new_id(),
                kind=_ASSISTANT,
                content=reply.content,
                reasoning=reply.reasoning,
                usage=_entry_usage(reply.usage, reply.latency_ms, retries),
            ),
        )

    def _open_span(self, name: str, parent: Any) -> Any:
        plan = self.plan
        if plan.tracer is None:
            return None
        labels = {"session_id": plan.session_id}
        if plan.thread_id:
            labels["thread_id"] = plan.thread_id
        return open_span(plan.tracer, f"{plan.span_prefix}.{name}", parent, **labels)

    def _trace_retry(self, parent: Any, reason: str, **attributes: Any) -> None:
        """A moment in the trace: something is asked again. A server's own words are not told."""
        close_span(self._open_span("retry", parent), None, reason=reason, **attributes)


def notification(tag: str, text: str) -> Entry:
    """A word to the model about what it did."""
    return Entry(id=new_id(), kind=_NOTIFICATION, tag=tag, content=text)


def _call_entry(item: _Call) -> Entry:
    return Entry(
        id=item.entry_id,
        kind=_TOOL_CALL,
        content=item.call.arguments,
        tool_call_id=item.call.id,
        tool_name=item.call.name,
    )


def _result_entry(item: _Call) -> Entry:
    return Entry(
        id=item.result_id,
        kind=_TOOL_RESULT,
        content=item.answer or "",
        tool_call_id=item.call.id,
        tool_name=item.call.name,
    )


def _entry_usage(
    usage: Usage | None, latency_ms: int, retries: tuple[RequestRetry, ...]
) -> EntryUsage | None:
    if usage is None:
        return EntryUsage(latency_ms=latency_ms, retries=retries) if retries else None
    return EntryUsage(
        latency_ms=usage.latency_ms or latency_ms,
        cached=usage.cached_tokens,
        processed=usage.new_prompt_tokens,
        generated=usage.completion_tokens,
        retries=retries,
    )
