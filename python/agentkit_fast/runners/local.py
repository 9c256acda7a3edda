"""`LocalRunner`: llama.cpp in this process, no network."""

from __future__ import annotations

import asyncio
import atexit
import logging
import os
import threading
import warnings
import weakref
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import msgspec

from agentkit_fast.errors import InputTooLarge, RunnerError
from agentkit_fast.messages import ChatOptions, Message, StreamChunk, ToolDef
from agentkit_fast.protocols import RunnerProfile

if TYPE_CHECKING:
    from agentkit_fast.runners._local.embedding import Embedder
    from agentkit_fast.runners._local.request import Request
    from agentkit_fast.runners._local.stream import ChatStream

__all__ = ["LocalRunner", "RunnerStats"]

log = logging.getLogger("agentkit_fast.local")

Messages = Sequence[Message] | Sequence[dict[str, Any]] | Any

# What an idle machine can spare: beyond one conversation's full window, live sequences share at most
# this much cache; what does not fit waits in host memory, milliseconds away.
_POOL_BYTES = 256 << 20
_CONSTRAINTS = ("auto", "llguidance", "gbnf", "none")


class RunnerStats(msgspec.Struct, kw_only=True, frozen=True):
    """What a runner did so far. `turns` are the last replies' records, newest last; `totals` sums all."""

    turns: list[Any]
    totals: Any
    snapshot_bytes: int = 0
    context_tokens: int = 0
    cache_tokens: int = 0
    n_threads: int = 0


class LocalRunner:
    """Runs a GGUF model in this process through llama-cpp-python.

    - `n_ctx`: each conversation's window in tokens; 0 is the model's training length, or less where
      memory would not hold it (then said in the log).
    - `n_gpu_layers`: layers to offload, -1 for all (needs a build of llama-cpp-python with a GPU backend).
    - `n_threads`: `None` measures which number is fastest now, in under a second.
    - `constraint`: the engine for grammars: `"llguidance"` (needs that package), `"gbnf"` (llama.cpp's
      own), `"none"` (grammars are checked but not applied), `"auto"` the first there is.
    - `n_sessions`: conversations kept live side by side; more are put aside in host memory.
    - `state_cache`: a folder where conversations are kept for the next process, complete at `close()` or
      normal exit, at most `state_cache_bytes`. Damaged files are ignored.
    - `snapshot_bytes`: host memory for conversations put aside; by default an eighth of what is free, at most 2 GiB.
    - `chat_template`: Jinja source to use instead of the file's own.
    - `repetition`: a `RepetitionGuard`'s keyword arguments, or `False` for no guard.
    - `lora_path`, `lora_scale`: a LoRA adapter in GGUF.
    - `on_progress(what, fraction)`: called for long work, `what` being `"load"`, `"prefill"` or `"restore"` (a
      conversation from the state cache), from the thread that does it. 1.0 comes last, also where the work is
      given up. What it raises ends the load, or the reply it was called for.
    - further keyword arguments are llama.cpp's: `n_batch`, `n_ubatch`, `n_threads_batch`, `flash_attn`,
      `type_k`, `type_v`, `swa_full`, `rope_*`, `yarn_*`, `use_mmap`, `use_mlock`, `split_mode`,
      `main_gpu`, `tensor_split`, `offload_kqv`, `op_offload`, `use_extra_bufts`.

    `ModelLoadError` says what is wrong with a file that cannot be used. Safe to use from many threads;
    one thread inside owns the model. Also a context manager.
    """

    def __init__(
        self,
        model_path: str | os.PathLike[str],
        *,
        n_ctx: int = 0,
        n_gpu_layers: int = 0,
        n_threads: int | None = None,
        constraint: str = "auto",
        n_sessions: int = 4,
        state_cache: str | os.PathLike[str] | None = None,
        seed: int | None = None,
        chat_template: str | None = None,
        repetition: Mapping[str, Any] | bool | None = None,
        snapshot_bytes: int | None = None,
        state_cache_bytes: int = 4 << 30,
        on_progress: Callable[[str, float], Any] | None = None,
        **llama_kwargs: Any,
    ) -> None:
        if constraint not in _CONSTRAINTS:
            raise ValueError(f"constraint is one of {', '.join(_CONSTRAINTS)}, not {constraint!r}.")
        if n_ctx < 0 or n_sessions < 1 or n_sessions > 200:
            raise ValueError(
                f"n_ctx {n_ctx} must be at least 0 and n_sessions {n_sessions} within 1 to 200."
            )
        from agentkit_fast.prompt import PromptEncoder
        from agentkit_fast.runners._local import llama
        from agentkit_fast.runners._local.channels import MARKS, has_channels
        from agentkit_fast.runners._local.constraint import Constraints
        from agentkit_fast.runners._local.engine import Engine
        from agentkit_fast.runners._local.fallback import fallback_template
        from agentkit_fast.runners._local.memory import available_memory, plan_cells
        from agentkit_fast.runners._local.replies import Replies
        from agentkit_fast.runners._local.roles import probe_template
        from agentkit_fast.runners._local.snapshots import Snapshots
        from agentkit_fast.runners._local.state_cache import StateCache, model_key
        from agentkit_fast.runners._local.threads import choose_threads, cores
        from agentkit_fast.text import RepetitionGuard

        self._seed = seed
        self._on_progress = on_progress
        self._making = threading.RLock()
        self._repetition = dict(repetition) if isinstance(repetition, Mapping) else {}
        self._watches = repetition is not False
        self._replies = Replies()
        self._embedder: Embedder | None = None
        if self._watches:
            RepetitionGuard(**self._repetition)  # a wrong option is an error now, not at the first reply
        refused = sorted({"clip_model_path", "mmproj", "chat_handler", "draft_model"} & llama_kwargs.keys())
        if refused:
            raise ValueError(
                f"LocalRunner takes no {refused[0]}: it reads text only and drafts nothing. "
                "For images run llama-server with the model's --mmproj file and use HttpRunner."
            )
        lora = (llama_kwargs.pop("lora_path", None), float(llama_kwargs.pop("lora_scale", 1.0)))
        llama_kwargs.pop("verbose", None)
        model_options: dict[str, Any] = {
            name: llama_kwargs.pop(name)
            for name in ("split_mode", "main_gpu", "tensor_split", "check_tensors", "use_extra_bufts")
            if name in llama_kwargs
        }
        self._model = llama.Model(
            model_path,
            n_gpu_layers=n_gpu_layers,
            use_mmap=llama_kwargs.pop("use_mmap", True),
            use_mlock=llama_kwargs.pop("use_mlock", False),
            progress=None if on_progress is None else lambda fraction: on_progress("load", fraction),
            options=model_options,
        )
        try:
            model = self._model
            self.tokenizer: Any = _tokenizer(model)
            source = chat_template or model.chat_template
            if not source:
                name, source = fallback_template(self.tokenizer.special_tokens)
                if not model.embeds_only:
                    warnings.warn(
                        f"{model.path.name} has no chat template; the {name} one is used, by its control "
                        "tokens. Pass chat_template= if the model was trained with another.",
                        stacklevel=2,
                    )
            self._constraints = Constraints(model.vocab, constraint)
            self._encoder = PromptEncoder(self.tokenizer, source)
            self._rules = probe_template(self._encoder)
            tokens = self.tokenizer.special_tokens
            self._channels = [tokens[mark] for mark in MARKS if mark in tokens]
            if not has_channels(source, tokens):
                self._channels = []
            memory = available_memory()
            n_sequences = n_sessions + 2  # two beside the conversations, for one-off questions on forks
            if model.longest and n_ctx > model.longest:
                raise ValueError(
                    f"{model.path.name} cannot read beyond {model.longest} tokens; n_ctx {n_ctx} is too much."
                )
            self._window, n_cells = plan_cells(
                n_ctx=n_ctx,
                trained=model.n_ctx_train,
                n_sessions=n_sessions,
                token_bytes=model.kv_bytes_per_token(),
                memory=memory,
                pool_bytes=_POOL_BYTES,
            )
            if not n_ctx and self._window < model.n_ctx_train:
                log.warning(
                    "%s was trained on windows of %d tokens; memory allows %d here. n_ctx= sets it.",
                    model.path.name,
                    model.n_ctx_train,
                    self._window,
                )
            threads = n_threads or 1
            # On a CPU flash attention costs a quarter more per token (25 against 20 ms of processor time for
            # SmolLM2-135M); a quantized value cache needs it.
            plain = n_gpu_layers == 0 and "type_v" not in llama_kwargs
            flash_attn = llama_kwargs.pop("flash_attn", False if plain else None)
            # A CPU sees an abort between two operations of the graph, and one over 512 tokens takes up to 0.13 s;
            # over 128 the prompt takes no longer in all.
            at_once = 128 if n_gpu_layers == 0 else 512
            self._context = llama.Context(
                model,
                n_cells=n_cells,
                n_sequences=n_sequences,
                n_batch=min(int(llama_kwargs.pop("n_batch", 512)), n_cells),
                n_ubatch=int(llama_kwargs.pop("n_ubatch", at_once)),
                n_threads=threads,
                n_threads_batch=int(llama_kwargs.pop("n_threads_batch", None) or threads),
                flash_attn=flash_attn,
                options=llama_kwargs,
            )
        except BaseException:
            self._model.close()
            raise
        if n_threads is None and cores() > 1 and not self._model.embeds_only:
            threads, measured = choose_threads(self._context, 0)
            self._context.set_threads(threads, threads)
            log.info("%d threads chosen; seconds per token: %s", threads, measured)
        if lora[0] is not None:
            try:
                self._context.apply_lora(lora[0], lora[1])
            except BaseException:
                self._context.close()
                self._model.close()
                raise
        self._context.reset_evaluated()
        self._n_threads = threads
        disk = None
        if state_cache is not None:
            # What a state depends on beside the weights: how it was computed and how it is laid out.
            settings = {
                "lora": lora,
                "options": llama_kwargs,
                "flash_attn": flash_attn,
                "version": llama.version(),
            }
            key = model_key(model, state_cache, settings)
            disk = StateCache(state_cache, key, state_cache_bytes)
        limit = snapshot_bytes if snapshot_bytes is not None else min(2 << 30, memory // 8)
        self._engine = Engine(
            model,
            self._context,
            window=self._window,
            n_sequences=n_sequences,
            encode_text=self._encoder.encode_text,
            snapshots=Snapshots(limit, disk, rewinds=self._context.rewinds),
            release=self._release,
        )
        _close_at_exit(self)
        self.profile = RunnerProfile(
            native_tools=True,
            grammar=True,
            json_schema=True,
            system_role=self._rules.system_role,
            alternate=self._rules.alternate,
            safe_prompts=True,
            context_tokens=self._window,
            counter=self.tokenizer,
        )

    # --- chat

    def chat_stream(
        self,
        messages: Messages,
        tools: Sequence[ToolDef] = (),
        options: ChatOptions | None = None,
    ) -> ChatStream:
        """Chunks of the reply as they are made; `close()` on the iterator stops it, from any thread.

        `ValueError` for a grammar or option that cannot be used, `InputTooLarge` for a prompt beyond the
        window, `RunnerError` with the template's words where the chat template refuses the messages.
        """
        from agentkit_fast.runners._local.stream import Channel, ChatStream

        channel = Channel()
        request = self._request(messages, tools, options, channel.deliver)
        self._engine.submit(request)
        return ChatStream(channel, lambda: self._engine.cancel(request))

    async def achat_stream(
        self,
        messages: Messages,
        tools: Sequence[ToolDef] = (),
        options: ChatOptions | None = None,
    ) -> AsyncIterator[StreamChunk]:
        """As `chat_stream`. Cancelling the task, or `aclose()`, stops the generation."""
        from agentkit_fast.runners._local.request import END

        loop = asyncio.get_running_loop()
        items: asyncio.Queue[Any] = asyncio.Queue()

        def deliver(item: Any) -> None:
            try:
                loop.call_soon_threadsafe(items.put_nowait, item)
            except RuntimeError:  # the loop is gone: nobody waits for this reply any more
                request.cancelled = True

        request = await asyncio.to_thread(self._request, messages, tools, options, deliver)
        try:
            self._engine.submit(request)
            while True:
                item = await items.get()
                if item is END:
                    return
                if isinstance(item, BaseException):
                    raise item
                yield item
        finally:
            if not request.ended:
                self._engine.cancel(request)

    def _request(
        self,
        messages: Messages,
        tools: Sequence[ToolDef],
        options: ChatOptions | None,
        deliver: Callable[[Any], None],
    ) -> Request:
        with self._making:
            self._engine.check_open()
            return self._made_ready(messages, tools, options, deliver)

    def _made_ready(
        self,
        messages: Messages,
        tools: Sequence[ToolDef],
        options: ChatOptions | None,
        deliver: Callable[[Any], None],
    ) -> Request:
        import numpy as np

        from agentkit_fast.runners._local.channels import FINAL
        from agentkit_fast.runners._local.request import Request, TurnRecord
        from agentkit_fast.runners._local.roles import conform
        from agentkit_fast.runners._local.sampling import Sampling
        from agentkit_fast.runners._local.tools import offer, response_grammar, with_instruction
        from agentkit_fast.text import RepetitionGuard

        options = options or ChatOptions()
        if self._model.embeds_only:
            raise RunnerError(
                f"{self._model.path.name} is an embedding model ({self._model.architecture}): it writes no replies. "
                "Use embed(), and another model to chat."
            )
        if isinstance(messages, (str, bytes)):
            raise ValueError(
                "messages is a list of messages, not one text: [Message(role='user', content=...)]."
            )
        sampling = Sampling.from_options(options, self._seed)
        vocab = self._model.vocab
        beyond = [token for token in sampling.logit_bias if token >= vocab.size]
        if beyond:
            raise ValueError(f"logit_bias names token {beyond[0]}; the vocabulary has {vocab.size}.")
        shaped = conform(list(getattr(messages, "messages", messages)), self._rules)
        for message in shaped:
            if message.get("role") == "assistant" and isinstance(message["content"], str):
                message["content"] = self._replies.as_written(message["content"])
        gbnf, calls = options.grammar, None
        offered = offer(tools, options, self._rules)
        if offered.instruction:
            shaped = with_instruction(shaped, offered.instruction, self._rules)
        if offered.parser is not None:
            calls = offered.parser()
            gbnf = gbnf or offered.grammar
        if not gbnf and options.response_format is not None:
            gbnf = response_grammar(options.response_format)
        plan = self._constraints.plan(gbnf)
        prompt = self._encoder.encode(
            shaped,
            tools=offered.rendered,
            enable_thinking=options.enable_thinking,
            **options.extra.get("chat_template_kwargs", {}),
        )
        ids = prompt.ids
        if vocab.add_bos and vocab.bos >= 0 and (not len(ids) or ids[0] != vocab.bos):
            ids = np.concatenate([np.array([vocab.bos], dtype=np.int32), ids])
        if self._channels and plan is not None and not plan.prose:
            opened = self.tokenizer.encode(FINAL, parse_special=True)
            ids = np.concatenate([ids, np.asarray(opened, dtype=np.int32)])
        if not len(ids):
            raise ValueError("There is nothing to answer: the messages render to an empty prompt.")
        if len(ids) >= self._window:
            raise InputTooLarge(
                f"The prompt has {len(ids)} tokens; the window is {self._window}, and the reply needs room in it "
                "too. Send less history, or load the model with a larger n_ctx.",
                prompt_tokens=len(ids),
                context_tokens=self._window,
            )
        room = self._window - len(ids)
        return Request(
            ids=ids,
            deliver=deliver,
            sampling=sampling,
            plan=plan,
            stops=_stops(options.stop),
            max_tokens=max(0, options.max_tokens),
            reserved=len(ids) + (min(room, options.max_tokens) if options.max_tokens > 0 else room),
            session=options.session_id,
            thinking=prompt.ends_with("<think>"),
            channels=self._channels,
            calls=calls,
            guard=RepetitionGuard(**self._repetition) if self._watches else None,
            rewinds=self._context.rewinds_replies,
            on_finish=self._replies.note,
            on_progress=self._on_progress,
            record=TurnRecord(session_id=options.session_id),
        )

    # --- beside chat

    def count_tokens(self, text: str) -> int:
        """Tokens in `text`, control-token spellings counted as the text they are."""
        return int(self.tokenizer.count(text))

    def embed(self, texts: str | Sequence[str]) -> list[list[float]]:
        """One vector of length 1 per text, by the model's own pooling (the mean where it has none).

        Meant for embedding models; a chat model gives vectors too, of little use. `InputTooLarge` for a text
        longer than the window.
        """
        given = [texts] if isinstance(texts, str) else list(texts)
        if not all(isinstance(text, str) for text in given):
            raise TypeError("embed takes a text or a list of texts.")

        def work() -> list[list[float]]:
            from agentkit_fast.runners._local.embedding import Embedder

            if self._embedder is None:
                self._embedder = Embedder(self._model, n_ctx=self._window, n_threads=self._n_threads)
            embedder = self._embedder
            return [embedder.embed(text).tolist() for text in given]

        return self._engine.call(work).result()

    def stats(self) -> RunnerStats:
        """Exact accounts: per reply, and summed."""
        engine = self._engine
        return RunnerStats(
            turns=list(engine.records),
            totals=msgspec.structs.replace(engine.totals, turns=engine.totals.turns - 1),
            snapshot_bytes=engine.snapshots.size,
            context_tokens=self._window,
            cache_tokens=self._context.n_cells,
            n_threads=self._n_threads,
        )

    def close(self) -> None:
        """Stop everything and free the model. Running replies end with an error."""
        self._engine.close()

    def _release(self) -> None:
        """The owner thread's last act. A request that is being made ready elsewhere still reads the vocabulary."""
        with self._making:
            if self._embedder is not None:
                self._embedder.close()
            self._context.close()
            self._model.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"LocalRunner({str(self._model.path)!r}, n_ctx={self._window})"


_open: weakref.WeakSet[LocalRunner] = weakref.WeakSet()


def _close_at_exit(runner: LocalRunner) -> None:
    """A state cache is complete at normal exit; and the owner thread must be gone before the interpreter."""
    if not _open:
        atexit.unregister(_close_all)
        atexit.register(_close_all)
    _open.add(runner)


def _close_all() -> None:
    for runner in list(_open):
        runner.close()


def _tokenizer(model: Any) -> Any:
    """The exact tokenizer in Rust, or llama.cpp's own for vocabularies that one refuses."""
    from agentkit_fast.errors import AgentkitError
    from agentkit_fast.runners._local.llama import LlamaTokenizer
    from agentkit_fast.tokens import GgufTokenizer

    try:
        return GgufTokenizer(model.path)
    except (AgentkitError, ValueError, OSError) as error:
        log.info("llama.cpp's own tokenizer is used: %s", error)
        return LlamaTokenizer(model.vocab)


def _stops(stop: Any) -> tuple[str, ...]:
    stops = (stop,) if isinstance(stop, str) else tuple(stop or ())
    if not all(isinstance(text, str) for text in stops):
        raise ValueError(f"stop is a text or several, not {stop!r:.60}.")
    return stops
