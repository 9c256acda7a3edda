"""`HttpRunner`: chat rounds with any OpenAI-compatible endpoint."""

from __future__ import annotations

import base64
import logging
import math
import random
import struct
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from typing import Any, Self
from urllib.parse import quote

import msgspec

from agentkit_fast._unicode import repair_text
from agentkit_fast.endpoint_tokenizer import EndpointTokenizer, LearningCounter
from agentkit_fast.errors import RunnerError
from agentkit_fast.messages import ChatOptions, Message, StreamChunk, ToolCall, ToolDef, Usage
from agentkit_fast.protocols import RunnerProfile
from agentkit_fast.runners._http import discovery, exchange, profiles, safe_prompt, tokenizing
from agentkit_fast.runners._http import request as requests
from agentkit_fast.runners._http.connection import Clients, http_client
from agentkit_fast.runners._http.drivers import SyncReply, adrive, areply, drive
from agentkit_fast.runners._http.errors import loads
from agentkit_fast.runners._http.profiles import Provider
from agentkit_fast.runners._http.relay import relay, to_sse
from agentkit_fast.runners._http.reply import ErrorInStream, reply_of_body
from agentkit_fast.runners._http.retry import RetryEvent, RetryPolicy
from agentkit_fast.runners._http.sizes import prompt_estimate, prompt_floor, prompt_texts

__all__ = ["HttpRunner", "Provider", "RetryEvent", "relay", "to_sse"]


_log = logging.getLogger("agentkit_fast")

# A batch that every server seen takes in one request.
EMBED_AT_ONCE = 128


class HttpRunner:
    """A model behind an OpenAI-compatible HTTP endpoint: llama.cpp, vLLM, Ollama, LM Studio, a cloud.

    `base_url` may end in `/v1` or not. One runner serves any number of sessions, threads and event
    loops at once; its connections are pooled. Close it (`close`, `aclose`, or as a context manager) when
    done.

    - `retry_budget_s`: seconds to keep asking again after a 429, a 5xx or a failed connection; negative: no
      bound on 429. `retry_5xx_attempts`: requests in all for a 5xx or a failed connection.
    - `timeout`: seconds without a byte, after which a reply is given up; `None`: never. Connecting has 10 s.
    - `repetition`: keyword arguments of `RepetitionGuard`, or `False` for no guard.
    - `on_retry`: called with a `RetryEvent` before each wait.
    - `provider`: what kind of server it is, by name (`"llama.cpp"`, `"vllm"`, `"ollama"`, `"lmstudio"`,
      `"openai"`, `"anthropic"`, `"unknown"`), or a `Provider` of your own. `"auto"` finds out by asking
      when `profile` is first read; a chat alone asks nothing.
    - `profile`: a `RunnerProfile` that overrides everything found out.
    - `safe_prompts`: for llama.cpp servers: prompts are built as token ids through the server's own template
      and tokenizer, so that no text in a message can forge a control token, and every byte of it
      reaches the model as it is. Tool calls then come as text (the heredoc format). Two or more quick requests
      go before each round.
    - `pin_slots`: for llama.cpp servers with that many slots: each `options.session_id` keeps the slot that
      holds its cache (`id_slot`), the least recently used session giving way.
    - `headers`: sent with every request.
    """

    tells_retries = True
    """`chat_stream` and `achat_stream` take `tell_retries`."""

    def __init__(
        self,
        base_url: str,
        model: str,
        *,
        api_key: str = "",
        retry_budget_s: float = 300.0,
        retry_5xx_attempts: int = 5,
        repetition: Mapping[str, Any] | bool | None = None,
        on_retry: Callable[[RetryEvent], Any] | None = None,
        timeout: float | None = 600.0,
        provider: str | profiles.Provider = "auto",
        profile: RunnerProfile | None = None,
        safe_prompts: bool = False,
        pin_slots: int = 0,
        headers: Mapping[str, str] | None = None,
        transport: Any = None,
        async_transport: Any = None,
    ) -> None:
        self.model = model
        self.root, self.api = requests.endpoint_of(base_url)
        http_client().URL(self.api)  # a URL that is none is told here
        self._policy = RetryPolicy(budget_s=float(retry_budget_s), attempts=max(1, int(retry_5xx_attempts)))
        self._on_retry = on_retry
        self._timeout_s = math.inf if timeout is None else float(timeout)
        if not self._timeout_s > 0:
            raise ValueError(f"timeout is a number of seconds above 0, or None, not {timeout!r}.")
        self._guard = _guard_factory(repetition)
        if isinstance(provider, profiles.Provider):
            self._provider: profiles.Provider | None = provider
        elif provider == "auto":
            self._provider = profiles.guess_from_url(base_url)
        else:
            self._provider = profiles.by_name(provider)
        self._profile = profile
        self._headers = {
            "accept": "text/event-stream, application/json",
            "accept-encoding": "identity",
            "content-type": "application/json",
            **({"authorization": f"Bearer {api_key.strip()}"} if api_key.strip() else {}),
            **{name.lower(): value for name, value in (headers or {}).items()},
        }
        self._endpoint = exchange.Endpoint(self.root, self.api, model, self._headers)
        self._clients = Clients(self.root, transport=transport, async_transport=async_transport)
        self._adapted: set[str] = set()
        self._warned = False
        self._refused = False
        self._found: discovery.Found | None = None
        self._finding = threading.Lock()
        self._learned = LearningCounter()
        self._safe_prompts = safe_prompts
        if safe_prompts and self._provider is None:
            self._provider = profiles.by_name("llama.cpp")
        if safe_prompts and self.provider.tokenize != "llama.cpp":
            raise ValueError(f"safe_prompts=True needs a llama.cpp server, not {self.provider.name}.")
        self._pieces = safe_prompt.PieceCache()
        self._slots = _Slots(pin_slots)
        self._tokenizer = EndpointTokenizer(
            base_url,
            model,
            timeout=min(60.0, self._timeout_s),
            headers=self._headers,
            clients=self._clients,
        )

    def chat_stream(
        self,
        messages: Sequence[Message] | Sequence[dict[str, Any]] | Any,
        tools: Sequence[ToolDef] = (),
        options: ChatOptions | None = None,
        *,
        deadline_s: float | None = None,
        tell_retries: bool = False,
    ) -> Iterator[StreamChunk]:
        """One round, streamed. The last chunk has `done=True`, `finish_reason` and `usage`.

        Closing the iterator (from any thread) closes the connection, which stops the server. All is given
        up after `deadline_s` seconds, waits between attempts included. With `tell_retries` an
        `events.Retrying` comes in the stream before each wait; a `Session` asks for it.

        Raises `InputTooLarge` (or `ContextTruncated`), `TruncatedToolCall`, `RetryBudgetExhausted`,
        `StreamInterrupted`, or `RunnerError` with the server's body.
        """
        return SyncReply(self._clients.sync, self._chat(messages, tools, options, deadline_s, tell_retries))

    def achat_stream(
        self,
        messages: Sequence[Message] | Sequence[dict[str, Any]] | Any,
        tools: Sequence[ToolDef] = (),
        options: ChatOptions | None = None,
        *,
        deadline_s: float | None = None,
        tell_retries: bool = False,
    ) -> AsyncIterator[StreamChunk]:
        """As `chat_stream`, awaited. Cancelling the task closes the connection."""
        return areply(
            self._clients.for_loop, self._chat(messages, tools, options, deadline_s, tell_retries)
        )

    def chat(
        self,
        messages: Sequence[Message] | Sequence[dict[str, Any]] | Any,
        tools: Sequence[ToolDef] = (),
        options: ChatOptions | None = None,
        *,
        deadline_s: float | None = None,
    ) -> Message:
        """One round, not streamed: the assistant's message. Errors are those of `chat_stream`."""
        reply: Message = drive(self._clients.sync(), self._chat_whole(messages, tools, options, deadline_s))
        return reply

    async def achat(
        self,
        messages: Sequence[Message] | Sequence[dict[str, Any]] | Any,
        tools: Sequence[ToolDef] = (),
        options: ChatOptions | None = None,
        *,
        deadline_s: float | None = None,
    ) -> Message:
        """As `chat`, awaited."""
        rule = self._chat_whole(messages, tools, options, deadline_s)
        reply: Message = await adrive(self._clients.for_loop(), rule)
        return reply

    def count_tokens(self, text: str) -> int | None:
        """Tokens in `text` by the endpoint's own tokenizer, or `None` where it has none.

        No BOS is counted, and control-token spellings count as the text they are.
        """
        return self._tokenizer.try_count(text)

    def count_prompt(
        self, messages: Sequence[Message] | Sequence[dict[str, Any]] | Any, tools: Sequence[ToolDef] = ()
    ) -> int | None:
        """Tokens of a whole request, template and tools included, as the endpoint counts them; or `None`."""
        body = self._body(messages, tools, ChatOptions(), stream=False)
        rule = tokenizing.count_prompt(self._context(), self._endpoint, self._tokenizer.dialect, body)
        count: int | None = drive(self._clients.sync(), rule)
        return count

    def embed(self, texts: Sequence[str], model: str = "") -> list[list[float]]:
        """One vector for each text, by `model` (default: the runner's)."""
        vectors: list[list[float]] = drive(self._clients.sync(), self._embed(texts, model))
        return vectors

    async def aembed(self, texts: Sequence[str], model: str = "") -> list[list[float]]:
        """As `embed`, awaited."""
        vectors: list[list[float]] = await adrive(self._clients.for_loop(), self._embed(texts, model))
        return vectors

    @property
    def provider(self) -> Provider:
        """What kind of server this is, as far as it is known."""
        return self._provider or (self._found.provider if self._found else profiles.by_name("unknown"))

    @property
    def profile(self) -> RunnerProfile:
        """What the endpoint and its model take.

        Reading it for the first time asks the endpoint (a few quick requests, 3 s in all at most); nothing is asked
        where `profile=` was given. An event loop that must not wait for that calls `await aprofile()` before.
        """
        if self._profile is not None:
            return self._profile
        with self._finding:
            if self._found is None or not self._found.reached:
                self._found = drive(self._clients.sync(), self._discover())
        return self._profile_of(self._found)

    async def aprofile(self) -> RunnerProfile:
        """As `profile`, awaited."""
        if self._profile is not None:
            return self._profile
        if self._found is None or not self._found.reached:
            self._found = await adrive(self._clients.for_loop(), self._discover())
        return self._profile_of(self._found)

    def context_window(self) -> int:
        """The model's window in tokens as the endpoint tells it (for llama.cpp: that of one slot); 0: unknown."""
        return self.profile.context_tokens

    def discover_context(self) -> int:
        """The window by all means: told, or read from the refusal of a prompt that fits no model; 0: unknown.

        The refusal costs nothing but a 15 MB request, made at most once and only where the endpoint does not
        tell its window. What is found is remembered in `profile`.
        """
        window = self.profile.context_tokens
        if window or self._profile is not None:
            return window
        if self.provider.silent_truncation:
            return 0  # it would not refuse, but cut the prompt and answer
        if self._refused:
            return 0  # it was asked, and does not say
        rule = discovery.overflow_window(self._context(), self._endpoint, self.provider.max_tokens_key)
        found = drive(self._clients.sync(), rule)
        self._refused = found is not None
        window = int(found or 0)
        if window and self._found is not None:
            self._found = msgspec.structs.replace(self._found, context_tokens=window)
        return window

    def close(self) -> None:
        """Close the connections used by blocking calls."""
        self._clients.close()

    async def aclose(self) -> None:
        """Close the connections of the running event loop and of blocking calls."""
        await self._clients.aclose()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    # -- what the rules are given

    def _context(self, deadline_s: float | None = None) -> exchange.Context:
        return exchange.Context(
            where=self.api,
            policy=self._policy,
            on_retry=self._on_retry,
            now=time.monotonic,
            wall=time.time,
            random=random.random,
            timeout_s=self._timeout_s,
            deadline=None if deadline_s is None else time.monotonic() + deadline_s,
        )

    def _discover(self) -> exchange.Rule:
        return discovery.discover(self._context(discovery.ASK_WITHIN_S), self._endpoint, self._provider)

    def _profile_of(self, found: discovery.Found) -> RunnerProfile:
        # Where the endpoint has no tokenizer, the next best is what it reports of each prompt.
        counter = self._tokenizer if found.provider.tokenize else self._learned
        return found.profile(counter=counter, safe_prompts=self._safe_prompts)

    def _sizes(self, body: dict[str, Any]) -> exchange.Sizes:
        return exchange.Sizes(
            floor=lambda: self._floor(body),
            estimate=lambda: prompt_estimate(requests.messages_in(body)),
            window=self._known_profile().context_tokens,
        )

    def _floor(self, body: dict[str, Any]) -> int:
        chars = 8 if self.provider.silent_truncation else 12
        return prompt_floor(requests.messages_in(body), chars_per_token=chars)

    def _learn(self, body: dict[str, Any], usage: Usage) -> None:
        texts = prompt_texts(body) if usage.prompt_tokens else None
        if texts is not None:
            self._learned.observe(texts, usage.prompt_tokens)

    def _known_profile(self) -> RunnerProfile:
        """The profile as far as it is known, without asking."""
        if self._profile is not None:
            return self._profile
        return RunnerProfile() if self._found is None else self._profile_of(self._found)

    def _post(self, url: str, body: dict[str, Any], trace_id: str = "") -> exchange.Send:
        headers = {**self._headers, "x-trace-id": header_text(trace_id)} if trace_id else self._headers
        return exchange.Send("POST", url, headers, requests.encode_body(body))

    def _chat(
        self,
        messages: Any,
        tools: Sequence[Any],
        options: ChatOptions | None,
        deadline_s: float | None,
        tell_retries: bool,
    ) -> exchange.Rule:
        options = options or ChatOptions()
        context = self._context(deadline_s)
        context.tell_retries = tell_retries
        body = self._body(messages, tools, options, stream=True)
        slot = self._slots.of(options.session_id)
        if self._safe_prompts:
            return self._chat_safely(context, requests.messages_in(body), tools, options, slot)
        if slot is not None:
            body.setdefault("id_slot", slot)
        url = f"{self.api}/chat/completions"
        return exchange.stream_reply(
            context,
            self._post(url, body, options.trace_id),
            max_tokens=options.max_tokens,
            guard=self._guard,
            sizes=self._sizes(body),
            adapt=lambda status, said: self._adapt(body, status, said),
            on_usage=None if self.provider.tokenize else lambda usage: self._learn(body, usage),
            whole=lambda: self._post(url, _not_streamed(body), options.trace_id),
        )

    def _chat_safely(
        self,
        context: exchange.Context,
        wire: list[dict[str, Any]],
        tools: Sequence[Any],
        options: ChatOptions,
        slot: int | None,
    ) -> exchange.Rule:
        if tools:
            raise ValueError(
                "With safe_prompts=True the server does not parse tool calls; let them come as text "
                '(Session(tool_format="heredoc")) and give no tools to the runner.'
            )
        template: dict[str, Any] = {}
        if options.enable_thinking is not None:
            template["chat_template_kwargs"] = {"enable_thinking": options.enable_thinking}
        ids = yield from safe_prompt.prompt_ids(context, self._endpoint, self._pieces, wire, template)
        body = safe_prompt.completion_body(ids, options, self.provider, slot=slot)
        yield from exchange.stream_reply(
            context,
            self._post(f"{self.root}/completion", body, options.trace_id),
            max_tokens=options.max_tokens,
            guard=self._guard,
            sizes=exchange.Sizes(tokens=len(ids), window=self._known_profile().context_tokens),
        )

    def _body(
        self, messages: Any, tools: Sequence[Any], options: ChatOptions, *, stream: bool
    ) -> dict[str, Any]:
        profile = self._known_profile()
        if tools and not profile.native_tools and not self._warned:
            self._warned = True
            _log.warning(
                "The chat template of %s at %s has no place for tools, so the model is not told of them. "
                'Let calls come as text: Session(tool_format="heredoc").',
                self.model,
                self.api,
            )
        body = requests.chat_body(
            self.model,
            messages,
            tools,
            options,
            self.provider,
            stream=stream,
            system_role=profile.system_role,
            alternate=profile.alternate,
            native_tools=profile.native_tools,
        )
        return requests.apply_adaptations(body, self._adapted)

    def _chat_whole(
        self, messages: Any, tools: Sequence[Any], options: ChatOptions | None, deadline_s: float | None
    ) -> exchange.Rule:
        options = options or ChatOptions()
        body = self._body(messages, tools, options, stream=False)
        _, answer = yield from exchange.ask(
            self._context(deadline_s),
            self._post(f"{self.api}/chat/completions", body, options.trace_id),
            lambda status, said: self._adapt(body, status, said),
        )
        try:
            chunks = reply_of_body(answer, self.api, 0, options.max_tokens)
        except ErrorInStream as found:
            raise found.error from None
        usage = chunks[-1].usage
        if usage is not None:
            exchange.check_truncation(self.api, usage, self._sizes(body))
            if not self.provider.tokenize:
                self._learn(body, usage)
        calls: list[ToolCall] = [chunk.tool_call for chunk in chunks if chunk.tool_call is not None]
        return Message(
            role="assistant",
            content="".join(chunk.content for chunk in chunks),
            reasoning="".join(chunk.reasoning for chunk in chunks),
            tool_calls=tuple(calls),
        )

    def _embed(self, texts: Sequence[str], model: str) -> exchange.Rule:
        if isinstance(texts, str):
            raise TypeError("embed takes a list of texts, not one text.")
        texts = list(texts)
        vectors: list[list[float]] = []
        for start in range(0, len(texts), EMBED_AT_ONCE):
            some = [repair_text(text) for text in texts[start : start + EMBED_AT_ONCE]]
            send = self._post(f"{self.api}/embeddings", {"model": model or self.model, "input": some})
            _, answer = yield from exchange.ask(self._context(), send)
            vectors += _vectors(answer, len(some), self.api)
        return vectors

    def _adapt(self, body: dict[str, Any], status: int, said: str) -> bytes | None:
        changed = requests.adaptation(body, status, said)
        if changed is None:
            return None
        self._adapted.add(changed)
        fresh = requests.apply_adaptations(body, {changed})
        body.clear()
        body.update(fresh)
        return requests.encode_body(body)


def _not_streamed(body: dict[str, Any]) -> dict[str, Any]:
    return {**{key: value for key, value in body.items() if key != "stream_options"}, "stream": False}


class _Slots:
    """Which server slot each session keeps; the least recently used session loses its own."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._of: dict[str, int] = {}
        self._lock = threading.Lock()

    def of(self, session_id: str) -> int | None:
        if not self._count or not session_id:
            return None
        with self._lock:
            slot = self._of.pop(session_id, None)
            if slot is None:
                if len(self._of) < self._count:
                    slot = min(set(range(self._count)) - set(self._of.values()))
                else:
                    slot = self._of.pop(next(iter(self._of)))
            self._of[session_id] = slot
            return slot


def header_text(text: str) -> str:
    """`text` as a header may hold it: what is no printable ASCII is percent-encoded."""
    return quote(
        text, safe="".join(chr(code) for code in range(0x21, 0x7F) if chr(code) != "%"), errors="replace"
    )


def _vectors(answer: bytes, want: int, where: str) -> list[list[float]]:
    value = loads(answer)
    data = value.get("data") if isinstance(value, dict) else None
    entries = [entry for entry in data if isinstance(entry, dict)] if isinstance(data, list) else []
    if all(isinstance(entry.get("index"), int) for entry in entries):
        entries.sort(
            key=lambda entry: int(entry["index"])
        )  # some gateways give them in the order they ended
    vectors = []
    for entry in entries:
        vector = entry.get("embedding")
        if isinstance(vector, str):
            raw = base64.b64decode(vector)
            vector = list(struct.unpack(f"<{len(raw) // 4}f", raw))
        if not isinstance(vector, list) or not vector:
            break
        vectors.append([float(number) for number in vector])
    if len(vectors) != want:
        raise RunnerError(
            f"{where}/embeddings gave {len(vectors)} vectors for {want} texts.",
            status=200,
            body=answer[:2000].decode("utf-8", "replace"),
        )
    return vectors


def _guard_factory(repetition: Mapping[str, Any] | bool | None) -> Callable[[str], Any] | None:
    if repetition is False:
        return None
    if repetition is not None and not isinstance(repetition, (bool, Mapping)):
        raise TypeError(
            f"repetition is RepetitionGuard's keyword arguments or a bool, not {type(repetition).__name__}."
        )
    from agentkit_fast.text import RepetitionGuard

    options = dict(repetition) if isinstance(repetition, Mapping) else {}
    options.pop("where", None)
    if options:
        RepetitionGuard(**options)  # a wrong option is told here, not in the middle of a reply
    return lambda where: RepetitionGuard(where=where, **options)
