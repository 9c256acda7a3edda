"""`Shaper`: windows within a budget, session by session."""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Generator, Sequence
from typing import Any

import msgspec

from agentkit_fast._core import Transcript
from agentkit_fast._unicode import repair_text
from agentkit_fast.compaction import MARKER_HEAD, Chat, Material, Reply, cut_to, summarize
from agentkit_fast.entries import Compaction, CompactionInfo, Entry, EntryKind, new_id
from agentkit_fast.errors import CompactionFailed, ContextOverflow, StoreError
from agentkit_fast.messages import ToolDef
from agentkit_fast.packing import pack_entries
from agentkit_fast.protocols import Runner, RunnerProfile, Store, TokenCounter, Tracer, profile_of
from agentkit_fast.shaping.history import count_of, packs, read_packed, schema_json, take_in
from agentkit_fast.shaping.plan import PLAN_VERSION, Plan, Setup, setup_of
from agentkit_fast.shaping.policy import ShapePolicy, core_options
from agentkit_fast.shaping.window import PlacedUnit, Window, messages_of
from agentkit_fast.tokens import CharsByFour
from agentkit_fast.tracing import close_span, open_span

__all__ = ["Shaper"]

_log = logging.getLogger("agentkit_fast.shaping")

# So many times a failed summary is tried with the next new entry.
_SOON = 4
_CHANGED = "the history changed while it was summarized; nothing was changed"
# Where neither a runner nor a budget says how much fits into one summary prompt.
_UNKNOWN_WINDOW = 16_384


class _Call(msgspec.Struct, frozen=True):
    """An effect: call a method of the store."""

    method: str
    args: tuple[Any, ...]


_Steps = Generator[Any, Any, Any]


class _State:
    """What is remembered of one session between builds."""

    def __init__(self, transcript: Transcript) -> None:
        self.transcript = transcript
        self.revision = 0
        self.loaded = False
        self.degraded = ""
        self.unsaved = False
        """The plan differs from what the store keeps."""
        self.fixed: tuple[str, str] | None = None
        """System prompt and tool schemas of the last build in this process."""
        self.told: Setup | None = None
        """What the store keeps of that; `None` where it keeps the plan of another policy, which stays."""
        self.failed_at = -1
        """How many entries there were when a summary failed; -1: none is due."""
        self.failures = 0
        """How often in a row it did, or could not even be tried."""

    def failed(self) -> None:
        """A summary that is due was not written."""
        self.failed_at = self.transcript.taken()
        self.failures += 1

    def succeeded(self) -> None:
        """No summary is due any more."""
        self.degraded, self.failed_at, self.failures = "", -1, 0

    def due(self) -> bool:
        """Whether a summary that failed is to be tried again, though the window fits.

        With the next new entry at first. A summary looks at everything before the tail, so where it goes on failing
        it is tried at twice the distance each time: that keeps the cost of a build to what is new.
        """
        if self.failed_at < 0:
            return False
        wait = 1 << max(0, self.failures - _SOON)
        fresh = self.transcript.taken() - self.failed_at
        return fresh < 0 or fresh >= wait


class Shaper:
    """Builds the windows of a store's sessions, within the policy's budget.

    `runner` writes the summaries; without one the oldest exchanges are left out where shortening is not enough.
    `profile` says what the windows are for: the runner's own, unless another model than it reads them. `counter`
    counts tokens (the profile's, else four bytes a token).

    `build` and `abuild` raise `ContextOverflow` when system prompt, tools and newest user message alone are
    larger than the budget, and whatever the store or the counter raises; a failed summary raises nothing, the
    window says so in `degraded`. One `Shaper` serves any number of sessions and threads; it remembers the
    `max_sessions` used last, others are read anew from the store.
    """

    def __init__(
        self,
        store: Store,
        runner: Runner | None = None,
        policy: ShapePolicy | None = None,
        counter: TokenCounter | None = None,
        tracer: Tracer | None = None,
        *,
        span_prefix: str = "agent",
        max_sessions: int = 256,
        profile: RunnerProfile | None = None,
    ) -> None:
        self._store = store
        self._runner = runner
        self._policy = policy or ShapePolicy()
        self._summarizer = profile_of(runner)
        self._profile = profile or self._summarizer
        self._counter = counter or self._profile.counter or CharsByFour()
        self._tracer = tracer
        self._span_name = f"{span_prefix}.Shaper"
        self._max_sessions = max(1, max_sessions)
        self._states: OrderedDict[str, _State] = OrderedDict()
        self._lock = threading.Lock()

    @property
    def policy(self) -> ShapePolicy:
        """The policy given."""
        return self._policy

    # -- the public steps -------------------------------------------------------------------------------

    def build(self, session_id: str, system: str = "", tools: Sequence[ToolDef] = ()) -> Window:
        """The session's window now."""
        span = open_span(self._tracer, f"{self._span_name}.Build")
        try:
            window: Window = self._drive(self._with_state(session_id, self._build, system, tools, span))
        except BaseException as error:
            close_span(span, error)
            raise
        return _seen(span, window)

    async def abuild(self, session_id: str, system: str = "", tools: Sequence[ToolDef] = ()) -> Window:
        """As `build`, awaited; a blocking store is called in a thread."""
        span = open_span(self._tracer, f"{self._span_name}.Build")
        try:
            window: Window = await self._adrive(
                self._with_state(session_id, self._build, system, tools, span)
            )
        except BaseException as error:
            close_span(span, error)
            raise
        return _seen(span, window)

    def compact(self, session_id: str) -> CompactionInfo | None:
        """Fold everything before the tail into one summary now, whatever the budget.

        `None` when there is nothing to fold. Raises `CompactionFailed`, with nothing changed, when the
        summary fails, is empty or is no smaller than what it would replace, or there is no runner.
        """
        info: CompactionInfo | None = self._drive(self._with_state(session_id, self._compact))
        return info

    async def acompact(self, session_id: str) -> CompactionInfo | None:
        """As `compact`, awaited."""
        info: CompactionInfo | None = await self._adrive(self._with_state(session_id, self._compact))
        return info

    def layout(self, session_id: str) -> tuple[PlacedUnit, ...]:
        """What the session's last window is made of, for those who look rather than send.

        Empty for a session of which no window was built.
        """
        state = self._states.get(session_id)
        if state is None:
            return ()
        return tuple(
            PlacedUnit(kind=kind, form=form, tokens=tokens, entry_ids=tuple(ids), shown=messages_of(shown))
            for kind, form, tokens, ids, shown in state.transcript.layout()
        )

    def forget(self, session_id: str) -> None:
        """Drop what is remembered of a session in this process; the next build reads its history anew."""
        with self._lock:
            self._states.pop(session_id, None)

    # -- the rules, as generators of effects ------------------------------------------------------------

    def _with_state(self, session_id: str, steps: Callable[..., _Steps], *args: Any) -> _Steps:
        """Runs `steps` with the session's state, which nobody else has meanwhile.

        A second build of the session at the same time works with a state of its own, read from the store.
        It stays when the store or the runner fails, for then nothing has changed; after any other error in the
        middle it is dropped, for it may have taken in half of something.
        """
        with self._lock:
            state = self._states.pop(session_id, None)
        if state is None:
            options = core_options(self._policy, self._profile, carry_reasoning=False)
            state = _State(Transcript(options, count_of(self._counter)))
        keep = False
        try:
            result = yield from steps(state, session_id, *args)
            keep = True
        except (ContextOverflow, CompactionFailed, _Stopped) as error:
            keep = True
            if isinstance(error, _Stopped) and error.__cause__ is not None:
                raise error.__cause__ from None
            raise
        finally:
            if keep:
                with self._lock:
                    self._states[session_id] = state
                    self._states.move_to_end(session_id)
                    while len(self._states) > self._max_sessions:
                        self._states.popitem(last=False)
        return result

    def _read(self, state: _State, session_id: str) -> _Steps:
        """Brings the transcript up to the store's state."""
        transcript = state.transcript
        if packs(self._store):
            pieces, revision, gone = yield from _asking("packed_since", session_id, state.revision)
            late = gone and transcript.knows_any(list(gone))
            if late or not read_packed(transcript, pieces):
                yield from self._reread(state, session_id, "gone" if late else "late")
            else:
                state.revision = revision
        elif hasattr(self._store, "context_since"):
            fresh, revision, gone = yield from _asking("context_since", session_id, state.revision)
            late = gone and transcript.knows_any(list(gone))
            if late or not take_in(transcript, list(fresh)):
                yield from self._reread(state, session_id, "gone" if late else "late")
            else:
                state.revision = revision
        else:
            entries = list((yield from _asking("context", session_id)))
            fresh, complete = transcript.unknown(entries)
            if not complete or not take_in(transcript, fresh):
                reason = "late" if complete else "gone"
                self._anew(state, entries, reason)
        if not state.loaded:
            if hasattr(self._store, "load_plan"):
                raw = yield from _asking("load_plan", session_id)
                state.told = Setup()
                if raw:
                    self._recall(state, raw)
            state.loaded = True

    def _reread(self, state: _State, session_id: str, reason: str) -> _Steps:
        if hasattr(self._store, "context_since"):
            entries, state.revision, _ = yield _Call("context_since", (session_id, 0))
        else:
            entries = yield _Call("context", (session_id,))
        self._anew(state, list(entries), reason)

    @staticmethod
    def _anew(state: _State, entries: list[Entry], reason: str) -> None:
        runs = state.transcript.levels()
        state.transcript.reset(reason)
        take_in(state.transcript, entries)
        state.transcript.set_levels(*runs)
        state.unsaved = True

    def _policy_key(self) -> str:
        return msgspec.json.encode(self._policy).decode()

    def _recall(self, state: _State, raw: bytes) -> None:
        try:
            plan = msgspec.json.decode(raw, type=Plan)
        except msgspec.DecodeError:
            return  # somebody else's bytes, or a damaged row: as if there were no plan
        if plan.version != PLAN_VERSION or plan.policy != self._policy_key():
            state.told = None
            return
        state.told = plan.setup
        state.transcript.set_levels(plan.runs, plan.silent, plan.hidden)
        state.degraded = plan.degraded
        if plan.degraded:
            state.failed()

    def _remember(self, state: _State, session_id: str) -> _Steps:
        if hasattr(self._store, "save_plan"):
            runs, silent, hidden = state.transcript.levels()
            plan = Plan(
                version=PLAN_VERSION,
                policy=self._policy_key(),
                runs=runs,
                silent=silent,
                hidden=hidden,
                degraded=state.degraded,
                setup=self._setup(state),
            )
            state.unsaved = True
            yield from _asking("save_plan", session_id, msgspec.json.encode(plan))
        state.unsaved = False

    def _setup(self, state: _State) -> Setup:
        """What the session's windows are built with; as the store has it where none was built here yet."""
        if state.fixed is None:
            return state.told or Setup()
        return setup_of(*state.fixed, self._counter, self._profile)

    def _build(
        self, state: _State, session_id: str, system: str, tools: Sequence[ToolDef], span: Any
    ) -> _Steps:
        yield from self._read(state, session_id)
        transcript = state.transcript
        # In the heredoc format the tools are told in the system prompt, not beside it.
        schemas = "" if self._policy.tool_format == "heredoc" else schema_json(tools)
        transcript.set_fixed(system, schemas)
        state.fixed = system, schemas
        if state.told is not None:
            # Once in a process, so that whoever looks into the file later knows what the session ran with. A host
            # whose system prompt tells the time does not write it in every turn.
            state.unsaved |= self._policy.budget_tokens > 0 and state.told != self._setup(state)
            state.told = None
        due = state.due()
        step = transcript.check("fold" if self._runner is not None else "leave_out", due)
        compactions: tuple[CompactionInfo, ...] = ()
        if step == "fold":
            before = transcript.total()
            try:
                marker = yield from self._fold(state, session_id, span)
            except CompactionFailed as error:
                state.degraded = str(error)
                state.failed()
                _log.warning("session %s: %s", session_id, error)
                transcript.check("minimal", False)
            else:
                state.succeeded()
                transcript.check("minimal", False)
                compactions = (_info(marker, before, transcript.total()),)
            state.unsaved = True
        elif step != "fits" or due:
            hidden = transcript.left_out()
            if not hidden:
                state.succeeded()
            elif due:
                state.failed()
            elif state.failed_at < 0:
                why = "there is no runner to" if self._runner is None else "they are too few to"
                state.degraded = f"{hidden} older parts are left out: {why} summarize them"
            state.unsaved = True
        if state.unsaved:
            yield from self._remember(state, session_id)
        return Window(transcript.window(), degraded=state.degraded, compactions=compactions)

    def _compact(self, state: _State, session_id: str) -> _Steps:
        yield from self._read(state, session_id)
        transcript = state.transcript
        if not transcript.plan_compaction():
            return None
        if self._runner is None:
            transcript.drop_plan()
            raise CompactionFailed("this Shaper has no runner to write a summary; give it one")
        before = transcript.total()
        try:
            marker = yield from self._fold(state, session_id)
        finally:
            transcript.drop_plan()
        state.succeeded()
        yield from self._remember(state, session_id)
        return _info(marker, before, transcript.total())

    def _fold(self, state: _State, session_id: str, parent: Any = None) -> _Steps:
        """Summarizes what is planned to be folded and stores the marker; `(compaction)`."""
        span = open_span(self._tracer, f"{self._span_name}.Compact", parent)
        try:
            compaction: Compaction = yield from self._fold_planned(state, session_id)
        except BaseException as error:
            close_span(span, error)
            raise
        close_span(
            span, None, entries=len(compaction.subsumes), bytes=len(compaction.marker.content.encode())
        )
        return compaction

    def _fold_planned(self, state: _State, session_id: str) -> _Steps:
        transcript = state.transcript
        replaced, beside = transcript.fold_sizes()
        count = self._counter.count
        budget = self._policy.budget_tokens
        summary: str = yield from _chatting(
            summarize(
                Material(
                    units=transcript.fold_messages(),
                    task=transcript.task_messages(),
                    context_tokens=self._summarizer.context_tokens
                    or (budget if budget > 0 else _UNKNOWN_WINDOW),
                    answer_tokens=transcript.summary_limit(),
                    count=count,
                    profile=self._summarizer,
                )
            )
        )
        frame = count(MARKER_HEAD) + count("user") + 4
        limit = transcript.marker_limit() - frame
        if budget > 0:
            # A longer answer is welcome where there is room; a marker takes at most a fifth.
            limit = max(limit, min(self._policy.target - beside - frame, self._policy.target // 5))
            summary = cut_to(summary, limit, count)
        size = count(MARKER_HEAD + summary) + count("user") + 4
        if not summary or size >= replaced:
            raise CompactionFailed(
                f"the summary takes {size} tokens and would replace {replaced}: refused, nothing was changed"
            )
        ids, at = transcript.fold_entries()
        wanted = set(ids)
        entries = yield from _asking("context", session_id)
        subsumes = [entry for entry in entries if entry.id in wanted]
        if len(subsumes) < len(wanted):
            raise CompactionFailed(_CHANGED)
        shared = _shared_id(subsumes, ids) if len(subsumes) > len(wanted) else None
        if shared is not None:
            raise CompactionFailed(
                f"the store holds different entries under the id {shared!r}, and a fold of one would take the others "
                "with it: refused, nothing was changed; give each entry an id of its own"
            )
        marker = Entry(id=new_id(), kind=EntryKind.compaction.value, content=summary, created_at=at)
        compaction = Compaction(marker=marker, subsumes=subsumes)
        try:
            yield from _asking("compact", session_id, compaction)
        except _Stopped as stopped:
            if not isinstance(stopped.__cause__, StoreError):
                raise
            # Another process may have folded these entries since they were looked at.
            entries = yield from _asking("context", session_id)
            if wanted <= {entry.id for entry in entries}:
                raise
            raise CompactionFailed(_CHANGED) from stopped.__cause__
        if not transcript.fold(pack_entries([marker])):
            yield from self._reread(state, session_id, "anew")
        return compaction

    # -- the two drivers --------------------------------------------------------------------------------

    def _drive(self, steps: _Steps) -> Any:
        """Performs the effects here and now."""
        try:
            effect = next(steps)
            while True:
                try:
                    value = self._chat(effect) if isinstance(effect, Chat) else self._call(effect)
                except BaseException as error:  # noqa: BLE001 the rules decide what an error means
                    effect = steps.throw(error)
                else:
                    effect = steps.send(value)
        except StopIteration as done:
            return done.value

    def _call(self, effect: _Call) -> Any:
        value = getattr(self._store, effect.method)(*effect.args)
        if inspect.isawaitable(value):
            if inspect.iscoroutine(value):
                value.close()
            raise TypeError(f"the store's {effect.method}() is async: use abuild() and acompact()")
        return value

    def _chat(self, effect: Chat) -> Reply:
        if self._runner is None:
            return Reply(problem="there is no runner")
        try:
            return _reply(list(self._runner.chat_stream(effect.messages, (), effect.options)))
        except Exception as error:  # noqa: BLE001 any failure of the runner is a failed summary
            return Reply(problem=_describe(error))

    async def _adrive(self, steps: _Steps) -> Any:
        """Performs the effects, awaiting them."""
        try:
            effect = next(steps)
            while True:
                try:
                    value = await (self._achat(effect) if isinstance(effect, Chat) else self._acall(effect))
                except BaseException as error:  # noqa: BLE001 the rules decide what an error means
                    effect = steps.throw(error)
                else:
                    effect = steps.send(value)
        except StopIteration as done:
            return done.value

    async def _acall(self, effect: _Call) -> Any:
        method = getattr(self._store, effect.method)
        if inspect.iscoroutinefunction(method) or not getattr(self._store, "blocking", True):
            value = method(*effect.args)
        else:
            value = await asyncio.to_thread(method, *effect.args)
        return await value if inspect.isawaitable(value) else value

    async def _achat(self, effect: Chat) -> Reply:
        stream = getattr(self._runner, "achat_stream", None)
        if stream is None:
            return await asyncio.to_thread(self._chat, effect)
        try:
            return _reply([chunk async for chunk in stream(effect.messages, (), effect.options)])
        except Exception as error:  # noqa: BLE001 any failure of the runner is a failed summary
            return Reply(problem=_describe(error))


class _Stopped(BaseException):
    """The build was stopped from outside, with nothing changed here; its cause is what was raised."""


def _asking(method: str, *args: Any) -> _Steps:
    """What the store answers. Where it fails, the session's state is as it was."""
    try:
        return (yield _Call(method, args))
    except BaseException as error:
        raise _Stopped from error


def _chatting(steps: Generator[Chat, Reply, str]) -> Generator[Chat, Reply, str]:
    """Passes the chats of `steps` on; an interruption of one leaves the session's state as it was."""
    try:
        effect = next(steps)
        while True:
            try:
                reply = yield effect
            except BaseException as error:
                raise _Stopped from error
            effect = steps.send(reply)
    except StopIteration as done:
        text: str = done.value
        return text


def _reply(chunks: list[Any]) -> Reply:
    for chunk in chunks:
        if chunk.error:
            return Reply(problem=repair_text(chunk.error))
        if chunk.stop_reason == "repetition":
            return Reply(problem="the model kept repeating itself")
    return Reply(text=repair_text("".join(chunk.content for chunk in chunks)))


def _describe(error: BaseException) -> str:
    return repair_text(f"{type(error).__name__}: {error}")


def _shared_id(subsumes: list[Entry], ids: list[str]) -> str | None:
    """An id under which there are more different entries than are folded."""
    folded = Counter(ids)
    held: dict[str, set[tuple[Any, ...]]] = {}
    for entry in subsumes:
        held.setdefault(entry.id, set()).add((entry.kind, entry.content, entry.created_at))
    return next((id_ for id_, different in held.items() if len(different) > folded[id_]), None)


def _info(compaction: Compaction, before: int, after: int) -> CompactionInfo:
    return CompactionInfo(
        summary=compaction.marker.content,
        subsumed_count=len(compaction.subsumes),
        tokens_before=before,
        tokens_after=after,
    )


def _seen(span: Any, window: Window) -> Window:
    """Ends a build's span with what came of it."""
    if span is not None:
        told = {
            "messages": len(window),
            "tokens": window.tokens,
            "compactions": len(window.compactions),
            "break_reason": window.break_reason,
            "degraded": window.degraded,
        }
        close_span(span, None, **{name: value for name, value in told.items() if value != ""})
    return window
