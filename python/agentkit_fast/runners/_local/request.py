"""One request to the engine, and the reply it grows."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from agentkit_fast._core import LoopWatch
from agentkit_fast.errors import RunnerError
from agentkit_fast.messages import StreamChunk, Usage
from agentkit_fast.runners._local.calls import CallParser
from agentkit_fast.runners._local.channels import Channels
from agentkit_fast.runners._local.constraint import CallTrigger, Plan
from agentkit_fast.runners._local.llama import Vocab
from agentkit_fast.runners._local.output import StopFinder, Thinking, Utf8
from agentkit_fast.runners._local.sampling import Logits, Sampler, Sampling
from agentkit_fast.text import Repetition, RepetitionGuard

__all__ = ["END", "Reply", "Request", "TurnRecord"]

Ids = NDArray[np.int32]

log = logging.getLogger("agentkit_fast.local")

END = object()
"""Delivered after the last chunk, or alone when the request was cancelled."""


class TurnRecord(msgspec.Struct, kw_only=True):
    """What one reply cost, in tokens and seconds.

    `prompt` = `cached` + `evaluated`. `sampled` were chosen by the model, `forced` followed from the
    grammar alone, `resampled` of the sampled ones were chosen again because the grammar refused the first
    choice, and `escaped` ones were taken back to leave a loop. `decoded` is how many tokens llama.cpp
    evaluated in all, reply included. `source`: where the cached tokens came from (`live`, `fork`, `memory`,
    `disk`, or nothing).
    """

    turns: int = 1
    prompt: int = 0
    cached: int = 0
    evaluated: int = 0
    sampled: int = 0
    forced: int = 0
    resampled: int = 0
    decoded: int = 0
    prefill_s: float = 0.0
    decode_s: float = 0.0
    escaped: int = 0
    source: str = ""
    finish_reason: str = ""
    session_id: str = ""

    def add(self, other: TurnRecord) -> None:
        """Sum up, for totals."""
        for name in (
            "prompt",
            "cached",
            "evaluated",
            "sampled",
            "forced",
            "resampled",
            "escaped",
            "decoded",
            "prefill_s",
            "decode_s",
        ):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.turns += 1


@dataclass(eq=False, slots=True)
class Request:
    """A prompt and how to answer it. `deliver` gets `StreamChunk`s, then `END`, or an exception."""

    ids: Ids
    deliver: Callable[[Any], None]
    sampling: Sampling
    plan: Plan | None = None
    stops: Sequence[str] = ()
    max_tokens: int = 0
    reserved: int = 0
    session: str = ""
    thinking: bool = False
    channels: Sequence[int] = ()
    """Tokens that tell channels apart, where the model has any: it may write them, but not under a grammar."""
    calls: CallParser | None = None
    guard: RepetitionGuard | None = None
    rewinds: bool = True
    on_finish: Callable[[str], None] | None = None
    on_progress: Callable[[str, float], Any] | None = None
    cancelled: bool = False
    started: bool = False
    record: TurnRecord = field(default_factory=TurnRecord)
    begun: float = field(default_factory=time.perf_counter)
    ended: bool = False
    told: tuple[str, float] = ("", 1.0)

    def progress(self, what: str, fraction: float) -> None:
        if self.on_progress is not None:
            self.told = (what, fraction)
            self.on_progress(what, fraction)

    def end_progress(self) -> None:
        """Work that was cancelled, or failed, is over as well: whoever shows a bar takes it away."""
        what, fraction = self.told
        if self.on_progress is not None and 0 <= fraction < 1:
            self.told = ("", 1.0)
            try:
                self.on_progress(what, 1.0)
            except Exception:
                log.debug("on_progress raised while its work was given up", exc_info=True)

    def reply(self, vocab: Vocab, history: Ids) -> Reply:
        return Reply(self, vocab, history)

    def fail(self, error: BaseException) -> None:
        self._end(error)

    def end(self) -> None:
        self._end(END)

    def _end(self, item: object) -> None:
        if not self.ended:
            self.ended = True
            self.deliver(item)

    def finish(self, reply: Reply) -> None:
        """Deliver the last chunk."""
        record = self.record
        record.finish_reason = reply.finish_reason
        record.session_id = self.session
        completion = record.sampled + record.forced
        usage = Usage(
            prompt_tokens=record.prompt,
            completion_tokens=completion,
            total_tokens=record.prompt + completion,
            cached_tokens=record.cached,
            latency_ms=round((time.perf_counter() - self.begun) * 1000),
        )
        if self.on_finish is not None:
            self.on_finish(reply.content)
        self.deliver(
            StreamChunk(
                done=True,
                finish_reason=reply.finish_reason,
                usage=usage,
                stop_reason="repetition" if reply.repetition is not None else "",
                repetition=reply.repetition,
                partial_tool_calls=reply.partial,
            )
        )


class Reply:
    """A reply in the making: from logits to tokens, from tokens to streamed text."""

    def __init__(self, request: Request, vocab: Vocab, history: Ids) -> None:
        self._request = request
        self._vocab = vocab
        self._sampler = Sampler(request.sampling, history)
        plan = request.plan
        self._constraint = plan.begin() if plan is not None and not plan.prose else None
        self._trigger = CallTrigger() if plan is not None and plan.prose else None
        self._utf8 = Utf8()
        self._stop = StopFinder(request.stops)
        self._thinking: Thinking | Channels = (
            Channels(open_already=self._constraint is not None)
            if request.channels
            else Thinking(open_already=request.thinking)
        )
        self._banned = self._banned_in_calls = vocab.banned
        if request.channels:
            channels = np.array(request.channels, dtype=np.int64)
            self._banned = np.setdiff1d(vocab.banned, channels)
            self._banned_in_calls = np.setdiff1d(np.union1d(vocab.banned, channels), vocab.eog)
        self._eog = frozenset(vocab.eog)
        self._watch_loop = LoopWatch() if request.guard is not None else None
        # Text is handed on as it comes once no thought can begin, where no stop string and no call is looked for.
        self._straight = not request.stops and request.calls is None
        self._held: list[
            tuple[int, str]
        ] = []  # text not yet shown, and how many tokens there were before it
        self._shown = 0  # tokens whose text was shown
        self._avoid: int | None = None  # a token that may not come next
        self._parts: list[str] = []
        self._escaped: list[int] = []
        self.rewind: int | None = None
        """How many of the reply's tokens to keep, when `next_tokens` wants to go back; the last of them is
        then what it returns, to be evaluated again."""
        self.finish_reason = ""
        self.repetition: Repetition | None = None
        self.partial: tuple[Any, ...] = ()

    @property
    def finished(self) -> bool:
        return bool(self.finish_reason)

    @property
    def content(self) -> str:
        """The reply's content as the model wrote it, reasoning left out."""
        return "".join(self._parts)

    def next_tokens(self, logits: Logits, room: int) -> list[int]:
        """The tokens that come next, to be evaluated; sets `finish_reason` when the reply is over."""
        self.rewind = None
        record = self._request.record
        left = self._left(room)
        if left <= 0:
            self._finish("length")
            return []
        token = self._choose(logits)
        if token in self._eog:
            self._finish("stop")
            return []
        record.sampled += 1
        tokens = [token]
        self._take(token)
        if self._constraint is not None and not self.finished:
            for forced in self._constraint.forced():
                if len(tokens) >= left or self.finished or not self._constraint.allows(forced):
                    break
                tokens.append(forced)
                record.forced += 1
                self._take(forced)
        if self._goes_back():
            return self._escaped
        if not self.finished and len(tokens) >= left:
            # The last token need not be evaluated: nothing comes after it.
            self._finish("length")
        return tokens

    def _goes_back(self) -> bool:
        return self.rewind is not None

    def _left(self, room: int) -> int:
        record, limit = self._request.record, self._request.max_tokens
        return min(room, limit - record.sampled - record.forced) if limit > 0 else room

    def _choose(self, logits: Logits) -> int:
        if self._avoid is not None:
            logits[self._avoid] = -np.inf
            self._avoid = None
        if self._sampler.adjusts:
            self._sampler.prepare(logits)
        banned = self._banned if self._constraint is None else self._banned_in_calls
        token = self._sampler.choose(logits, banned=banned)
        if self._trigger is not None and token not in self._eog:
            token = self._watch(self._trigger, token, logits)
        constraint = self._constraint
        if constraint is not None and not constraint.allows(token):
            self._request.record.resampled += 1
            logits[self._banned_in_calls] = -np.inf
            chosen = constraint.choose(self._sampler, logits)
            if chosen is None:
                raise RunnerError("The grammar allows no token of this model's vocabulary here.")
            token = chosen
        return token

    def _watch(self, trigger: CallTrigger, token: int, logits: Logits) -> int:
        """In free prose: attach the constraint where a token completes `@@call ` at the start of a line.

        The constraint then judges that token too, since its end may be the first letters of a name.
        """
        while True:
            if token in self._request.channels:
                trigger.push(b"\n")  # what follows a channel's header begins a line
                return token
            piece = self._vocab.piece(token)
            if trigger.passes(piece):
                return token
            if trigger.find(piece) < 0:
                trigger.push(piece)
                return token
            before = trigger.started(piece)
            if before >= 0:
                break
            # A token that holds a line break and the whole mark: the part after it could not be judged.
            logits[token] = -np.inf
            token = self._sampler.choose(logits, banned=self._banned)
            if token in self._eog:
                return token
        self._trigger = None
        if self._request.plan is not None:
            self._constraint = constraint = self._request.plan.begin()
            for part in self._vocab.tokenize(CallTrigger.MARK[:before]):
                constraint.accept(int(part))
        return token

    def _take(self, token: int) -> None:
        if self._constraint is not None:
            self._constraint.accept(token)
        if self._sampler.adjusts:
            self._sampler.accept(token)
        text = None if self._utf8.waits else self._vocab.text(token)
        if text is None:
            text = self._utf8.push(self._vocab.piece(token))
        watch, guard = self._watch_loop, self._request.guard
        if watch is None or guard is None:
            self._emit(text)
            return
        if watch.push(token):
            self._held.append((len(watch) - 1, text))
        else:
            if self._held:
                self._show_held()
            self._emit(text)
            self._shown = len(watch)
        found = guard.push(text) if text else None
        if found is not None and not self.finished:
            self._leave_loop(watch, guard, found)

    def _leave_loop(self, watch: LoopWatch, guard: RepetitionGuard, found: Repetition) -> None:
        """Once a reply: go back to the end of a copy and go on differently. Else, and again, cut."""
        record = self._request.record
        keep = watch.boundary(self._shown) if watch.repeating else 0
        # A grammar cannot be taken back.
        able = self._constraint is None and self._request.rewinds and not record.escaped
        if not able or not 0 < keep < len(watch):
            self._show_held()
            self.repetition = found
            self._finish("stop")
            return
        record.escaped += len(watch) - keep
        for at, text in self._held:
            if at < keep:
                self._emit(text)
        self._held.clear()
        self._shown = keep
        last, self._avoid = watch.tokens[keep - 1 : keep + 1]
        self._escaped = [last]
        self.rewind = keep
        watch.rewind(keep)
        self._utf8 = Utf8()
        self._utf8.push(self._vocab.bytes_of(watch.tokens))  # a character may be cut where the copy ends
        guard.reset()
        if self._trigger is not None:
            self._trigger = CallTrigger()
            self._trigger.push(self._vocab.bytes_of(watch.tokens))

    def _show_held(self) -> None:
        held, self._held = self._held, []
        for _, text in held:
            self._emit(text)

    def close(self) -> None:
        if self._constraint is not None:
            self._constraint.close()
            self._constraint = None

    def _emit(self, text: str) -> None:
        if self._straight and self._thinking.over:
            if text:
                self._parts.append(text)
                self._request.deliver(StreamChunk(content=text))
            return
        shown = self._stop.push(text)
        if shown:
            self._deliver(*self._thinking.push(shown))
        if self._stop.found and not self.finished:
            self._finish("stop")

    def _deliver(self, reasoning: str, content: str) -> None:
        request = self._request
        if content:
            self._parts.append(content)
        if request.calls is None:
            if reasoning or content:
                request.deliver(StreamChunk(content=content, reasoning=reasoning))
            return
        if reasoning:
            request.deliver(StreamChunk(reasoning=reasoning))
        if content:
            for chunk in request.calls.push(content):
                request.deliver(chunk)

    def _finish(self, reason: str) -> None:
        self.finish_reason = reason
        if not self._stop.found:
            self._show_held()
            for text in (self._stop.push(self._utf8.finish()), self._stop.finish()):
                if text:
                    self._deliver(*self._thinking.push(text))
        self._deliver(*self._thinking.finish(cut=reason != "stop" or bool(self._stop.found)))
        calls = self._request.calls
        if calls is not None:
            for chunk in calls.finish():
                self._request.deliver(chunk)
            self.partial = calls.partial
            if calls.calls and reason == "stop":
                self.finish_reason = "tool_calls"
