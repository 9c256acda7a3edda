"""`Session`: one conversation with a model, a turn at a time.

A session is a store's history under an id, a runner, and rules for a turn (`turn.py`). `turn()`, `aturn()`,
`stream()` and `astream()` all run the same rules, through one of two drivers (`drivers.py`).
"""

from __future__ import annotations

import inspect
import threading
import time
import weakref
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Iterator, Sequence
from typing import Any, TypeVar, cast

import msgspec

from agentkit_fast._unicode import repair_text
from agentkit_fast.asyncbridge import in_event_loop
from agentkit_fast.dispatch import Desk, cancel_requested
from agentkit_fast.drivers import AsyncDriver, Finished, SyncDriver
from agentkit_fast.entries import Entry, new_id
from agentkit_fast.errors import ExtractionError, SessionBusy
from agentkit_fast.events import Event
from agentkit_fast.lifts import Lifts
from agentkit_fast.limits import Limits, TokenUsage, TurnResult
from agentkit_fast.loopthread import wait_on_loop
from agentkit_fast.messages import ChatOptions, Message, ToolCall, ToolDef
from agentkit_fast.ports import Ports
from agentkit_fast.protocols import profile_of
from agentkit_fast.slots import Slots
from agentkit_fast.text import restore_special_tokens
from agentkit_fast.tokens import CharsByFour
from agentkit_fast.turn import Turn, TurnPlan
from agentkit_fast.views import View

__all__ = [
    "Limits",
    "Session",
    "TokenUsage",
    "TurnResult",
    "cancel_requested",
]

T = TypeVar("T")

# Sessions with a turn under way, by store: two `Session` objects over one store are one session.
_busy: weakref.WeakKeyDictionary[Any, set[str]] = weakref.WeakKeyDictionary()
_busy_by_id: dict[int, set[str]] = {}
_busy_lock = threading.Lock()


class Session:
    """One conversation. Nothing is sent before `turn()`.

    - `session_id`: its id in the store. `thread_id`: a label for spans, sent as the trace id.
    - `store`, `runner`: see `agentkit_fast.protocols`.
    - `system`: the system prompt. With tools a note on `{OUTPUT}` is added to it (`omit_slot_note`), with
      `tool_format="heredoc"` the instructions for calls.
    - `build`: `(session_id, system) -> Window | list[Message]`, or its coroutine; a parameter named
      `tools` gets the tools. Default: the whole history, unshaped; pass `Shaper(...).build` to stay
      within a budget.
    - `tools`: a `ToolSet`, or a list of tools, typed functions or `ToolDef`; `dispatch`: `(ToolCall) ->
      str`, sync or async, where the tools do not run themselves.
    - `tool_format`: `"native"` or `"heredoc"` (calls as text, held to a grammar where the runner has one).
      Where the runner's profile says `native_tools=False`, a session with tools uses `"heredoc"` by itself:
      natively the model would not be told of them.
    - `options`: `ChatOptions` for every round, or a callable that gets the number of the round in this turn
      (0, 1, ...) and returns them. To force a call in the first round only:
      `options=lambda n: ChatOptions(tool_choice=None if n else "required")`.
    - Hooks: `on_token(text)`, `on_compaction(CompactionInfo)`, `on_usage(TokenUsage)`,
      `on_tool_calls(calls) -> calls` (may add, change and remove; called in every round). Any may be a
      coroutine function.
    - `counter`: counts the window; default: the runner's, else bytes by four.
    - `max_turns`: chat rounds a turn may have. `forced_terminal_tool`: the tool that must end the
      session, for a better message when it is never called.
    - `max_repetition_retries`, `max_repeated_exchanges`: see `docs/turn.md`; negative: no end, off.
      `normalize_result`: takes out what changes without meaning (a timestamp) before results are compared.
      `repetition`: keyword arguments of the `RepetitionGuard` that watches every stream, `False` for none.
    - `preparer`: runs before each build. `limits`: for each turn.
    - `max_tool_result`: bytes of a tool result the model sees (0: all); the store keeps the whole.
      `encode_tool_result(text) -> text`: rewrites results before they are stored.
    - `max_parallel_tools`: calls of one round that run at a time. `tool_timeout_s`: for tools without
      their own.
    - `approve(ToolCall) -> bool`: asked for calls of tools marked `approve=True`, for all with
      `approve_all`. Only `True` runs the call.
    - `neutralize_user`: user text is not the host's own and is neutralized in the view too.
      `neutralize_style="joiner"`: every text but the system prompt is neutralized reversibly, and what the
      model writes (replies, arguments, events) is restored, so that a file that mentions a control token
      survives the way through the model. Neither is done for a runner whose prompts no text can forge.
    - `now`: nanoseconds; the clock for the inbox, latencies and limits.
    - `tracer`, `span_prefix`: spans `<prefix>.Turn`, `<prefix>.streamChat`, `<prefix>.tool`.

    One turn at a time: a second one raises `SessionBusy`. `usage` are the totals of this object.
    """

    def __init__(
        self,
        session_id: str,
        store: Any,
        runner: Any,
        *,
        thread_id: str = "",
        system: str = "",
        build: Callable[..., Any] | None = None,
        tools: Any = (),
        dispatch: Callable[[ToolCall], Any] | None = None,
        tool_format: str = "native",
        options: ChatOptions | Callable[[int], ChatOptions | None] | None = None,
        on_token: Callable[[str], Any] | None = None,
        on_compaction: Callable[[Any], Any] | None = None,
        on_usage: Callable[[TokenUsage], Any] | None = None,
        on_tool_calls: Callable[[list[ToolCall]], Any] | None = None,
        counter: Any = None,
        max_turns: int = 100,
        forced_terminal_tool: str = "",
        max_repetition_retries: int = 2,
        max_repeated_exchanges: int = 5,
        preparer: Any = None,
        omit_slot_note: bool = False,
        max_tool_result: int = 0,
        encode_tool_result: Callable[[str], Any] | None = None,
        max_parallel_tools: int = 4,
        limits: Limits | None = None,
        now: Callable[[], int] | None = None,
        tracer: Any = None,
        span_prefix: str = "agent",
        approve: Callable[[ToolCall], Any] | None = None,
        approve_all: bool = False,
        neutralize_user: bool = False,
        neutralize_style: str = "entity",
        tool_timeout_s: float | None = None,
        normalize_result: Callable[[str], Any] | None = None,
        repetition: dict[str, Any] | bool = True,
    ) -> None:
        if not isinstance(session_id, str):
            raise TypeError(f"session_id is a str, not {type(session_id).__name__}")
        if not (options is None or isinstance(options, ChatOptions) or callable(options)):
            raise TypeError(f"options= is ChatOptions or a callable, not {type(options).__name__}")
        if tool_format not in ("native", "heredoc"):
            raise ValueError(f'tool_format is "native" or "heredoc", not {tool_format!r}')
        if neutralize_style not in ("entity", "joiner"):
            raise ValueError(f'neutralize_style is "entity" or "joiner", not {neutralize_style!r}')
        if max_turns < 1:
            raise ValueError(
                f"max_turns is the number of chat rounds a turn may have, at least 1, not {max_turns}"
            )
        if max_parallel_tools < 1:
            raise ValueError(f"max_parallel_tools is at least 1, not {max_parallel_tools}")
        self.session_id = repair_text(session_id)
        self.store = store
        self.runner = runner
        self.usage = TokenUsage()
        self._profile = profile_of(runner)
        self._counter = counter or self._profile.counter or CharsByFour()
        self._desk = Desk(
            tools, dispatch, approve=approve, approve_all=approve_all, timeout_s=tool_timeout_s
        )
        # A template without a place for tools would not tell the model of them; text always reaches it.
        self._heredoc = tool_format == "heredoc" or (
            bool(self._desk.defs) and not self._profile.native_tools
        )
        self._options = options
        self._thread_id = thread_id
        self._joiner = neutralize_style == "joiner" and not self._profile.safe_prompts
        self._view = View(
            max_tool_result=max_tool_result,
            user=neutralize_user and not self._profile.safe_prompts,
            joiner=self._joiner,
            count=self._counter.count,
        )
        self._system = self._full_system(system, omit_slot_note=omit_slot_note)
        self._build, self._build_blocks = self._builder(build)
        self._preparer = preparer
        self._now = now
        self._repetition = repetition
        self._grammars: dict[str | None, str] = {}
        self._lifts = Lifts(store, self.session_id, now or time.time_ns)
        self._driver: SyncDriver | AsyncDriver | None = None
        self._plan = {
            "session_id": self.session_id,
            "thread_id": thread_id,
            "desk": self._desk,
            "heredoc": self._heredoc,
            "options": self._options_of,
            "grammar": self._grammar,
            "view": self._view.apply,
            "count_window": self._count_window,
            "count_text": self._counter.count,
            "has_preparer": preparer is not None,
            "guard": self._guard if repetition is not False else None,
            "restore": restore_special_tokens if self._joiner else None,
            "on_token": on_token,
            "on_compaction": on_compaction,
            "on_usage": on_usage,
            "on_tool_calls": on_tool_calls,
            "encode_tool_result": encode_tool_result,
            "normalize_result": normalize_result,
            "tracks_calls": hasattr(store, "open_calls") and hasattr(store, "begin_calls"),
            "max_turns": max_turns,
            "forced_terminal_tool": forced_terminal_tool,
            "max_repetition_retries": max_repetition_retries,
            "max_repeated_exchanges": max_repeated_exchanges,
            "max_parallel_tools": max_parallel_tools,
            "limits": limits,
            "retries": [],
            "tracer": tracer,
            "span_prefix": span_prefix,
        }

    # -- a turn ------------------------------------------------------------------------------------------

    def turn(self) -> TurnResult:
        """Run one turn and wait for it: chat, run tools, until the model answers without a call."""
        run = self._drive(self._turn(events=False))
        while True:
            try:
                next(run)
            except StopIteration as end:
                result: TurnResult = end.value
                return result

    async def aturn(self) -> TurnResult:
        """As `turn`, awaited. Cancelling the task stops the turn and leaves a usable history."""
        result: TurnResult | None = None
        async for step in self._adrive(self._turn(events=False)):
            if isinstance(step, Finished):
                result = step.value
        assert result is not None  # noqa: S101 - the driver's last word
        return result

    def stream(self) -> Iterator[Event]:
        """Run one turn and yield its events; the last is `TurnDone`.

        Closing the iterator stops the turn.
        """
        yield from self._drive(self._turn(events=True))

    async def astream(self) -> AsyncIterator[Event]:
        """As `stream`, awaited."""
        run = self._adrive(self._turn(events=True))
        try:
            async for step in run:
                if not isinstance(step, Finished):
                    yield step
        finally:
            await run.aclose()

    def extract(self, kind: type[T], *, retries: int = 2) -> T:
        """A value of type `kind` from the conversation so far.

        `kind` is a msgspec Struct, a dataclass, a TypedDict or any type msgspec can describe. The answer is held
        to it by a grammar where the runner has one, by `response_format` where the endpoint takes it, else by
        a tool that must be called; an answer that does not fit is sent back with what is wrong, up to
        `retries` times. Question, answers and corrections become part of the history.

        Raises `ExtractionError` when no answer fits, `TypeError` for a type msgspec cannot describe.
        """
        turn = self._extraction(kind, retries)
        for _ in self._drive(turn):
            pass
        return cast("T", self._extracted(turn))

    async def aextract(self, kind: type[T], *, retries: int = 2) -> T:
        """As `extract`, awaited."""
        turn = self._extraction(kind, retries)
        async for _ in self._adrive(turn):
            pass
        return cast("T", self._extracted(turn))

    def _extraction(self, kind: type[Any], retries: int) -> Any:
        from agentkit_fast.extraction import Extraction, Wanted

        wanted = Wanted(kind, self._profile)
        return Extraction(TurnPlan(**self._plan, events=False), self.usage, wanted, retries=retries)

    def _extracted(self, turn: Any) -> Any:
        if turn.result.cancelled:
            error = ExtractionError(f"stopped before a {turn.wanted.name} could be had")
            error.result = turn.result
            raise error
        return turn.value

    def cancel(self) -> bool:
        """Stop the running turn, from any thread: it returns its result so far with `cancelled=True`.

        Generation stops within one token; running async tools are cancelled, sync ones get a moment to end.
        False where no turn is running.
        """
        driver = self._driver
        if driver is None:
            return False
        driver.cancel()
        return True

    # -- from outside ------------------------------------------------------------------------------------

    def inject(self, entry: Entry) -> Entry:
        """Add an entry to this session: the next round of a running turn sees it, or the next turn.

        Returns it with `id` and `created_at` filled in. With an async store use `ainject` where an event loop
        is running.
        """
        entry, stored = self._inject(entry)
        stored = self._here(stored, "ainject()")
        return stored if isinstance(stored, Entry) else entry

    async def ainject(self, entry: Entry) -> Entry:
        """As `inject`, awaited."""
        entry, stored = self._inject(entry)
        if inspect.isawaitable(stored):
            stored = await stored
        return stored if isinstance(stored, Entry) else entry

    def _inject(self, entry: Entry) -> tuple[Entry, Any]:
        """The entry as it was given to the store, and what the store gave back."""
        publish = getattr(self.store, "publish", None)
        entry = msgspec.structs.replace(entry, id=entry.id or new_id())
        if self._driver is not None and publish is not None:
            # In the inbox it waits for the next boundary, instead of standing between a call and its
            # result.
            return entry, publish(self.session_id, entry)
        if not entry.created_at and not hasattr(self.store, "append_many"):
            entry.created_at = self._ports(events=False).now()
        return entry, self.store.append(self.session_id, entry)

    def resolve(self, correlation_id: str, result: Any) -> Entry:
        """Deliver the real result of a call that was answered as pending, as new context.

        The placeholder stays the call's one result. Raises `KeyError` for an unknown id, and for one that
        is resolved or expired already. With an async store use `aresolve` where an event loop is running.
        """
        entry: Entry = self._here(self._lifts.resolve(correlation_id, result), "aresolve()")
        return entry

    async def aresolve(self, correlation_id: str, result: Any) -> Entry:
        """As `resolve`, awaited."""
        stored = self._lifts.resolve(correlation_id, result)
        entry: Entry = await stored if inspect.isawaitable(stored) else stored
        return entry

    @staticmethod
    def _here(value: Any, instead: str) -> Any:
        """A value of the store; that of an async store is waited for, where nothing else runs in this thread."""
        if not inspect.isawaitable(value):
            return value
        if in_event_loop():
            close = getattr(value, "close", None)
            if close is not None:
                close()
            raise TypeError(f"the store is async and an event loop is running here: use await {instead}")
        return wait_on_loop(value)

    # -- inside ------------------------------------------------------------------------------------------

    def _ports(self, *, events: bool) -> Ports:
        return Ports(
            session_id=self.session_id,
            store=self.store,
            runner=self.runner,
            desk=self._desk,
            build=self._build,
            build_blocks=self._build_blocks,
            preparer=self._preparer,
            lifts=self._lifts,
            now=self._now,
            events=events,
        )

    def _turn(self, *, events: bool) -> Turn:
        return Turn(TurnPlan(**self._plan, events=events), self.usage)

    def _drive(self, turn: Turn) -> Generator[Event, None, Any]:
        release = self._occupy()
        try:
            driver = self._driver = SyncDriver(self._ports(events=turn.plan.events))
            return (yield from driver.drive(turn.run()))
        finally:
            self._driver = None
            release()

    async def _adrive(self, turn: Turn) -> AsyncGenerator[Any, None]:
        release = self._occupy()
        try:
            driver = self._driver = AsyncDriver(self._ports(events=turn.plan.events))
            run = driver.drive(turn.run())
            try:
                async for step in run:
                    yield step
            finally:
                await run.aclose()
        finally:
            self._driver = None
            release()

    def _occupy(self) -> Callable[[], None]:
        """Take the session for one turn, or raise `SessionBusy`. Gives what frees it."""
        key = self.session_id
        with _busy_lock:
            try:
                running = _busy.setdefault(self.store, set())
            except TypeError:  # a store that cannot be hashed or referred to weakly
                running = _busy_by_id.setdefault(id(self.store), set())
            if key in running:
                raise SessionBusy(
                    f"a turn of session {key!r} is running already. Wait for it, stop it with"
                    f" cancel(), or send"
                    " the message with inject() so that the running turn sees it."
                )
            running.add(key)

        def release() -> None:
            if unlock is not None:
                unlock()
            with _busy_lock:
                running.discard(key)

        # A store may also know of turns in other processes.
        unlock = None
        lock_turn = getattr(self.store, "lock_turn", None)
        if lock_turn is not None:
            try:
                unlock = lock_turn(key)
            except BaseException:
                release()
                raise
        return release

    def _full_system(self, system: str, *, omit_slot_note: bool) -> str:
        parts = [repair_text(system)] if system else []
        if self._desk.defs and not omit_slot_note:
            parts.append(Slots.note())
        if self._desk.defs and self._heredoc:
            from agentkit_fast.text import heredoc_prompt

            parts.append(heredoc_prompt(self._desk.defs))
        return "\n\n".join(parts)

    def _options_of(self, number: int) -> ChatOptions:
        given = self._options
        options = given if isinstance(given, ChatOptions) or given is None else given(number)
        if options is not None and not isinstance(options, ChatOptions):
            raise TypeError(f"options= gives ChatOptions or None for a round, not {type(options).__name__}")
        options = options or ChatOptions()
        return msgspec.structs.replace(
            options,
            session_id=options.session_id or self.session_id,
            trace_id=options.trace_id or self._thread_id,
        )

    def _grammar(self, tool_choice: str | None) -> tuple[str, tuple[ToolDef, ...]]:
        """Heredoc: the grammar for a `tool_choice`, and no native tools."""
        if tool_choice not in self._grammars:
            from agentkit_fast.heredoc import PROSE_GRAMMAR, heredoc_grammar

            if tool_choice == "none":
                return PROSE_GRAMMAR, ()
            tools: Sequence[ToolDef] = self._desk.defs
            free = tool_choice in (None, "auto")
            if not free and tool_choice != "required":
                tools = [tool for tool in tools if tool.name == tool_choice]
                if not tools:
                    raise ValueError(
                        f"tool_choice {tool_choice!r} names no tool of this session; it is None,"
                        f" 'auto', 'none',"
                        " 'required' or a tool's name."
                    )
            self._grammars[tool_choice] = heredoc_grammar(tools, allow_prose=free)
        return self._grammars[tool_choice], ()

    def _guard(self, where: str) -> Any:
        from agentkit_fast.text import RepetitionGuard

        settings = self._repetition if isinstance(self._repetition, dict) else {}
        return RepetitionGuard(**{**settings, "where": where})

    def _builder(self, build: Callable[..., Any] | None) -> tuple[Callable[[], Any], bool]:
        """The window builder without arguments, and whether it may block."""
        native = () if self._heredoc else self._desk.defs
        if build is None:
            blocks = bool(getattr(self.store, "blocking", True)) and not inspect.iscoroutinefunction(
                getattr(self.store, "context", None)
            )
            return self._plain_builder(native), blocks
        try:
            takes_tools = "tools" in inspect.signature(build).parameters
        except (TypeError, ValueError):
            takes_tools = False
        blocks = not inspect.iscoroutinefunction(build)
        if takes_tools:
            return lambda: build(self.session_id, self._system, tools=native), blocks
        return lambda: build(self.session_id, self._system), blocks

    def _plain_builder(self, native: Sequence[ToolDef]) -> Callable[[], Any]:
        """The whole history, unshaped, at the cost of what is new."""
        from agentkit_fast.shaping import ShapePolicy, Shaper

        policy = ShapePolicy(
            tool_format="heredoc" if self._heredoc else "native",
            verbatim_tool_results=self._joiner,
            max_tool_result=self._view.leave_cutting(),
        )
        shaper = Shaper(self.store, self.runner, policy=policy, counter=self._counter)
        later = inspect.iscoroutinefunction(getattr(self.store, "context", None))
        build = shaper.abuild if later else shaper.build
        return lambda: build(self.session_id, self._system, native)

    def _count_window(self, window: Any) -> int:
        tokens = getattr(window, "tokens", None)
        if isinstance(tokens, int):
            return tokens
        return sum(self._count_message(message) for message in window)

    def _count_message(self, message: Any) -> int:
        count = self._counter.count
        if not isinstance(message, Message):
            return int(count(str(message.get("content") or ""))) + 4
        total = count(message.role) + count(message.name) + count(message.content) + 4
        total += sum(count(call.name) + count(call.arguments) + 4 for call in message.tool_calls)
        total += sum(
            count(part.text) if part.type == "text" else self._profile.image_tokens
            for part in message.parts
        )
        return int(total)
