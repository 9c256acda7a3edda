"""The owner thread of a loaded model: it alone touches the context, and takes all requests in turn.

A request is a generator that does one bounded piece of work (a batch of the prompt, or one token of the
reply) between two `yield`s; the thread goes round the requests, so that a short reply need not wait for a
long one, and looks for cancellations in between. Inside a piece of work, the context's abort flag stops
llama.cpp itself.
"""

from __future__ import annotations

import logging
import os
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Generator
from concurrent.futures import Future
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from agentkit_fast.errors import InputTooLarge, RunnerError
from agentkit_fast.runners._local.llama import ABORTED, NO_ROOM, Context, Model
from agentkit_fast.runners._local.request import Request, TurnRecord
from agentkit_fast.runners._local.sequences import Sequence, adopt, common
from agentkit_fast.runners._local.snapshots import Snapshot, Snapshots

__all__ = ["Engine"]

Ids = NDArray[np.int32]
T = TypeVar("T")

log = logging.getLogger("agentkit_fast.local")

# A beginning shorter than this is evaluated faster than it is saved or brought back.
_WORTH_KEEPING = 16


class _Cancelled(Exception):
    """A request was cancelled in the middle of a batch."""


class Engine:
    """Runs requests on one model.

    `window` is each conversation's limit in tokens. `encode_text` gives a text's ids, for what a prompt
    says beyond what the cache holds. `release` frees what the thread owns, as its last act.
    """

    def __init__(
        self,
        model: Model,
        context: Context,
        *,
        window: int,
        n_sequences: int,
        encode_text: Callable[[str], Ids],
        snapshots: Snapshots,
        release: Callable[[], None],
    ) -> None:
        self.model = model
        self.context = context
        self.window = window
        self.snapshots = snapshots
        self.records: deque[TurnRecord] = deque(maxlen=1000)
        self.totals = TurnRecord()
        self._encode_text = encode_text
        self._release = release
        self._process = os.getpid()
        self._sequences = [Sequence(number) for number in range(n_sequences)]
        self._clock = 0
        self._inbox: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._waiting: deque[Request] = deque()
        self._running: list[tuple[Request, Generator[None]]] = []
        self._current: Request | None = None
        # Held for a few instructions at a time: nothing is put into the inbox after its end, and no flag meant for
        # one request hits the next.
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="agentkit-fast-llama", daemon=True)
        self._thread.start()

    # --- from any thread

    def submit(self, request: Request) -> None:
        """Queue a request; its chunks come through `request.deliver`."""
        self._put(lambda: self._waiting.append(request))

    def check_open(self) -> None:
        """`RunnerError` where nothing can be asked for any more."""
        if os.getpid() != self._process:
            raise RunnerError(
                f"This LocalRunner was loaded by process {self._process}; its thread did not follow into the "
                f"forked process {os.getpid()}. Load one there, or start processes by spawn."
            )
        if self._closed.is_set():
            raise _closed_error()

    def _put(self, item: Callable[[], None]) -> None:
        self.check_open()
        with self._lock:
            if not self._closed.is_set():
                self._inbox.put(item)
                return
        raise _closed_error()

    def cancel(self, request: Request) -> None:
        """Stop a request, also in the middle of a batch."""
        request.cancelled = True
        # A request that is not the current one is noticed before its next piece of work.
        with self._lock:
            if self._current is request:
                self.context.flag.set()
            self._inbox.put(_wake)  # should the thread be waiting

    def call(self, work: Callable[[], T]) -> Future[T]:
        """Run something on the owner thread, between two pieces of work."""
        future: Future[T] = Future()

        def run() -> None:
            try:
                future.set_result(work())
            except BaseException as error:  # noqa: BLE001 - handed to whoever waits
                future.set_exception(error)

        if threading.current_thread() is self._thread:  # from a callback: waiting would be for ever
            run()
        else:
            self._put(run)
        return future

    def close(self) -> None:
        """Stop all requests and the thread, which frees what it owns; returns when it has, but for a call from
        that thread itself (a callback)."""
        if os.getpid() != self._process:
            return  # a forked copy: the thread is not here, and the memory is the other process's to free
        with self._lock:
            if not self._closed.is_set():
                self._closed.set()
                self.context.flag.set()
                self._inbox.put(None)
        if threading.current_thread() is not self._thread:
            self._thread.join()

    # --- the owner thread

    def _run(self) -> None:
        try:
            self._work()
        finally:
            self._release()

    def _work(self) -> None:
        while True:
            if not self._take():
                break
            self._admit()
            for entry in list(self._running):
                self._step(entry)
        while True:
            # What was asked for before the end is answered, so that nobody waits for ever.
            try:
                item = self._inbox.get_nowait()
            except queue.Empty:
                break
            if item is not None:
                item()
        for request, work in self._running:
            work.close()
            request.fail(_closed_error())
        for request in self._waiting:
            request.fail(_closed_error())
        self.context.flag.clear()
        self.snapshots.flush(
            [
                (sequence.log.ids, lambda number=sequence.number: self.context.save(number))  # type: ignore[misc]
                for sequence in self._sequences
                if len(sequence.log) >= _WORTH_KEEPING
            ]
        )

    def _take(self) -> bool:
        """Look at the inbox; wait there when nothing else is to be done. False when closing."""
        block = not self._running and not self._waiting
        while True:
            try:
                item = self._inbox.get(block=block)
            except queue.Empty:
                return True
            if item is None:
                return False
            item()
            block = False

    def _alone(self) -> bool:
        """Whether the running request may go on at once: nobody else has asked for anything, not even for its end."""
        return self._inbox.empty() and len(self._running) == 1 and not self._waiting

    def _admit(self) -> None:
        """Start waiting requests while their windows fit beside the running ones'."""
        for request in list(self._waiting):
            if request.cancelled:
                self._waiting.remove(request)
                request.end()
        while self._waiting:
            request = self._waiting[0]
            taken = sum(other.reserved for other, _ in self._running)
            free = any(not sequence.busy for sequence in self._sequences)
            if self._running and (taken + request.reserved > self.context.n_cells or not free):
                return
            self._waiting.popleft()
            self._running.append((request, self._serve(request)))

    def _step(self, entry: tuple[Request, Generator[None]]) -> None:
        request, work = entry
        with self._lock:
            if self._closed.is_set():
                return
            self._current = request
            self.context.flag.clear()
        try:
            if request.cancelled:
                work.close()
                request.end()
            else:
                next(work)
                return
        except StopIteration:
            request.end()
        except _Cancelled:
            if self._closed.is_set() and not request.cancelled:
                request.fail(_closed_error())
            else:
                request.end()
        except BaseException as error:  # noqa: BLE001 - handed to whoever reads the reply
            request.fail(error)
        finally:
            with self._lock:
                self._current = None
        self._running.remove(entry)

    def _serve(self, request: Request) -> Generator[None]:
        sequence: Sequence | None = None
        try:
            sequence, ids = self._place(request)
            yield from self._prefill(request, sequence, ids)
            yield from self._generate(request, sequence)
        finally:
            if sequence is not None:
                sequence.busy = False
            request.end_progress()
            if request.started:
                self._record(request)

    def _record(self, request: Request) -> None:
        record = request.record
        self.records.append(record)
        self.totals.add(record)
        log.debug("%s", record)

    # --- where a prompt goes

    def _place(self, request: Request) -> tuple[Sequence, Ids]:
        """A sequence that holds as much of the prompt as there is, and the prompt's ids."""
        best: Sequence | Snapshot | None = None
        ids, shared = request.ids, 0
        idle = [sequence for sequence in self._sequences if not sequence.busy]
        candidates: list[Sequence | Snapshot] = [*idle, *self.snapshots.candidates()]
        for candidate in candidates:
            known = _ids_of(candidate)
            adopted, length = adopt(
                known, request.ids, self.model.vocab.control, self.model.vocab.bytes_of, self._encode_text
            )
            # The last token is evaluated again where all are there: logits are not part of a state.
            length = min(length, len(adopted) - 1)
            if length < len(known) and not self._reaches(candidate, length):
                continue
            if length > shared or (
                length == shared
                and length
                and isinstance(candidate, Sequence)
                and isinstance(best, Sequence)
                and (candidate.session == request.session, candidate.used)
                > (best.session == request.session, best.used)
            ):
                best, ids, shared = candidate, adopted, length
        request.started = True
        record = request.record
        if best is None or (isinstance(best, Snapshot) and shared < _WORTH_KEEPING):
            sequence = self._free(keep=None)
            self._clear(sequence)
            self._explain(request, idle)
        elif isinstance(best, Snapshot):
            sequence = self._free(keep=None)

            def restoring(part: float) -> None:
                if request.cancelled or self._closed.is_set():
                    raise _Cancelled
                request.progress("restore", part)

            state = self.snapshots.load(best, restoring)
            if state is not None and self._restore(sequence, best, state):
                request.progress("restore", 1.0)
                record.source = "memory" if best.state is not None else "disk"
            else:
                self.snapshots.drop(best)
                self._clear(sequence)
        elif shared == len(best.log) and (self.context.rewinds or best.session == request.session):
            sequence = best
            record.source = "live"
        else:
            # Where nothing can be taken back, a question aside works on a copy, though it goes on from the end.
            sequence = self._fork(best, shared)
            record.source = "fork"
        kept = min(shared, len(sequence.log))
        if kept < len(sequence.log):
            kept = self._truncate(sequence, kept)
        if kept < shared and sequence.log.ids[:kept].tolist() != ids[:kept].tolist():
            kept = self._truncate(sequence, 0)
        sequence.busy = True
        sequence.session = request.session
        self._clock += 1
        sequence.used = self._clock
        record.prompt, record.cached, record.evaluated = len(ids), kept, len(ids) - kept
        return sequence, ids

    def _reaches(self, candidate: Sequence | Snapshot, length: int) -> bool:
        """Whether a beginning of what the candidate holds can be gone on from."""
        if isinstance(candidate, Sequence):
            return self.context.reaches(candidate.number, length)
        # Of a snapshot only a try can tell, where a window slides: kept for a cut of the last token.
        return self.context.rewinds or (self.model.rewinds and length == len(candidate.ids) - 1)

    def _fork(self, source: Sequence, length: int) -> Sequence:
        """A sequence that shares a beginning: the source keeps its own continuation."""
        target = self._free(keep=source)
        if target is source:
            self._save(source)
            self._truncate(source, length)
            return source
        target.log.truncate(0)
        if self.context.copy(source.number, target.number, length):
            target.log.extend(source.log.ids[:length])
        return target

    def _free(self, keep: Sequence | None) -> Sequence:
        """An idle sequence to write into: an empty one, else the least recently used, saved first."""
        idle = [sequence for sequence in self._sequences if not sequence.busy]
        for sequence in idle:
            if not len(sequence.log) and sequence is not keep:
                return sequence
        others = [sequence for sequence in idle if sequence is not keep]
        if not others:
            return idle[0]
        victim = min(others, key=lambda sequence: sequence.used)
        self._save(victim)
        self._clear(victim)
        return victim

    def _save(self, sequence: Sequence) -> None:
        """Keep an evicted sequence in host memory, unless another one holds all of it."""
        ids = sequence.log.ids
        if len(ids) < _WORTH_KEEPING:
            return
        for other in self._sequences:
            if other is not sequence and self.snapshots.serves(other.log.ids, ids):
                return
        self.snapshots.put(ids.copy(), lambda: self.context.save(sequence.number))

    def _restore(self, sequence: Sequence, snapshot: Snapshot, state: NDArray[np.uint8]) -> bool:
        while not self.context.restore(sequence.number, state):
            if not self._evict(keep=sequence):
                return False
        if self.context.length(sequence.number) != len(snapshot.ids):
            return False
        sequence.log.truncate(0)
        sequence.log.extend(snapshot.ids)
        return True

    def _evict(self, keep: Sequence) -> bool:
        """Make room in the cache: the least recently used idle sequence goes. False where there is none."""
        idle = [s for s in self._sequences if not s.busy and s is not keep and len(s.log)]
        if not idle:
            return False
        victim = min(idle, key=lambda sequence: sequence.used)
        self._save(victim)
        self._clear(victim)
        return True

    def _clear(self, sequence: Sequence) -> None:
        self._truncate(sequence, 0)

    def _truncate(self, sequence: Sequence, length: int) -> int:
        kept = self.context.truncate(sequence.number, length)
        sequence.log.truncate(kept)
        return kept

    def _explain(self, request: Request, idle: list[Sequence]) -> None:
        """At debug level: where a conversation that should have gone on stopped being the same."""
        if not log.isEnabledFor(logging.DEBUG) or not request.session:
            return
        for sequence in idle:
            if sequence.session == request.session and len(sequence.log):
                at = common(sequence.log.ids, request.ids)
                text = self.model.vocab.bytes_of(request.ids[at : at + 8])
                where = "session %s: differs from its last prompt at token %d: %r"
                log.debug(where, request.session, at, text)

    # --- evaluating

    def _decode(self, request: Request, sequence: Sequence, ids: Any) -> None:
        """Evaluate ids at the sequence's end. Raises `_Cancelled` where the request was cancelled."""
        start = len(sequence.log)
        while True:
            result = self.context.decode(ids, start, sequence.number)
            if result == 0:
                if len(ids) == 1:
                    sequence.log.append(int(ids[0]))
                else:
                    sequence.log.extend(ids)
                request.record.decoded += len(ids)
                return
            # What an aborted batch left behind goes; nothing else was changed.
            if self.context.truncate(sequence.number, start) != start:
                sequence.log.truncate(0)
                if start and not request.cancelled:
                    raise RunnerError("The cache could not be taken back after an aborted batch.")
            if result == ABORTED:
                if request.cancelled or self._closed.is_set():
                    raise _Cancelled
                self.context.flag.clear()
            elif result == NO_ROOM and not self._evict(keep=sequence):
                raise RunnerError(
                    f"The cache of {self.context.n_cells} tokens is full and nothing in it can go; "
                    "fewer requests at once or a larger n_ctx would help."
                )

    def _prefill(self, request: Request, sequence: Sequence, ids: Ids) -> Generator[None]:
        if len(ids) >= self.window:
            raise InputTooLarge(
                f"The prompt has {len(ids)} tokens; the window is {self.window}. "
                "Send less history, or load the model with a larger n_ctx.",
                prompt_tokens=len(ids),
                context_tokens=self.window,
            )
        begun = time.perf_counter()
        size = self.context.n_batch
        try:
            while len(sequence.log) < len(ids):
                at = len(sequence.log)
                self._decode(request, sequence, ids[at : at + size])
                request.progress("prefill", len(sequence.log) / len(ids))
                if len(sequence.log) < len(ids):
                    yield
        finally:
            request.record.prefill_s += time.perf_counter() - begun

    def _generate(self, request: Request, sequence: Sequence) -> Generator[None]:
        """From the prompt's last logits to the end of the reply."""
        begun = time.perf_counter()
        start = len(sequence.log)
        reply = request.reply(self.model.vocab, sequence.log.ids)
        try:
            while True:
                logits = self.context.logits()
                pending = reply.next_tokens(logits, self.window - len(sequence.log))
                if reply.finished:
                    break
                if request.cancelled or not self._alone():
                    yield
                if reply.rewind is not None:
                    # Back to before the last token that stays: evaluated again, it gives the logits anew.
                    back = start + reply.rewind - 1
                    if self._truncate(sequence, back) != back:
                        raise RunnerError("The cache could not be taken back to leave a loop.")
                # A grammar may force more than a batch holds.
                size = self.context.n_batch
                for at in range(0, len(pending), size):
                    if at:
                        yield
                    self._decode(request, sequence, pending[at : at + size])
        finally:
            reply.close()
            request.record.decode_s += time.perf_counter() - begun
        request.finish(reply)


def _wake() -> None:
    """Put into the inbox so that the thread looks around."""


def _closed_error() -> RunnerError:
    return RunnerError("This LocalRunner is closed; a reply that was not complete ends here.")


def _ids_of(candidate: Sequence | Snapshot) -> Ids:
    return candidate.log.ids if isinstance(candidate, Sequence) else candidate.ids
