"""`HttpRunner`: chat rounds with any OpenAI-compatible endpoint."""

from __future__ import annotations

import random
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from typing import Any, Self

from agentkit_fast.messages import ChatOptions, Message, StreamChunk, ToolDef
from agentkit_fast.protocols import RunnerProfile
from agentkit_fast.runners._http import exchange, profiles
from agentkit_fast.runners._http import request as requests
from agentkit_fast.runners._http.connection import Clients
from agentkit_fast.runners._http.drivers import SyncReply, areply
from agentkit_fast.runners._http.retry import RetryEvent, RetryPolicy
from agentkit_fast.runners._http.sizes import prompt_floor

__all__ = ["HttpRunner", "RetryEvent"]


class HttpRunner:
    """A model behind an OpenAI-compatible HTTP endpoint: llama.cpp, vLLM, Ollama, LM Studio, a cloud.

    `base_url` may end in `/v1` or not. One runner serves any number of sessions, threads and event
    loops at once; its connections are pooled. Close it (`close`, `aclose`, or as a context manager) when
    done.

    - `retry_budget_s`: seconds to keep asking again after a 429, a 5xx or a failed connection; negative: no
      bound on 429. `retry_5xx_attempts`: requests in all for a 5xx or a failed connection.
    - `timeout`: seconds without a byte, after which a reply is given up. Connecting has 10 s.
    - `repetition`: keyword arguments of `RepetitionGuard`, or `False` for no guard.
    - `on_retry`: called with a `RetryEvent` before each wait.
    - `provider`: what kind of server it is, by name (`"llama.cpp"`, `"vllm"`, `"ollama"`, `"lmstudio"`,
      `"openai"`, `"anthropic"`, `"unknown"`), or a `Provider` of your own. `"auto"` finds out by asking
      when `profile` is first read; a chat alone asks nothing.
    - `profile`: a `RunnerProfile` that overrides everything found out.
    - `headers`: sent with every request.
    """

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
        timeout: float = 600.0,
        provider: str | profiles.Provider = "auto",
        profile: RunnerProfile | None = None,
        headers: Mapping[str, str] | None = None,
        transport: Any = None,
        async_transport: Any = None,
    ) -> None:
        self.model = model
        self.root, self.api = requests.endpoint_of(base_url)
        self._policy = RetryPolicy(budget_s=float(retry_budget_s), attempts=max(1, int(retry_5xx_attempts)))
        self._on_retry = on_retry
        self._timeout_s = float(timeout)
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
            **({"authorization": f"Bearer {api_key}"} if api_key else {}),
            **{name.lower(): value for name, value in (headers or {}).items()},
        }
        self._clients = Clients(self.root, transport=transport, async_transport=async_transport)
        self._adapted: set[str] = set()

    def chat_stream(
        self,
        messages: Sequence[Message] | Sequence[dict[str, Any]] | Any,
        tools: Sequence[ToolDef] = (),
        options: ChatOptions | None = None,
        *,
        deadline_s: float | None = None,
    ) -> Iterator[StreamChunk]:
        """One round, streamed. The last chunk has `done=True`, `finish_reason` and `usage`.

        Closing the iterator (from any thread) closes the connection, which stops the server. All is given
        up after `deadline_s` seconds, waits between attempts included.

        Raises `InputTooLarge` (or `ContextTruncated`), `TruncatedToolCall`, `RetryBudgetExhausted`,
        `StreamInterrupted`, or `RunnerError` with the server's body.
        """
        return SyncReply(self._clients.sync, self._chat(messages, tools, options, deadline_s))

    def achat_stream(
        self,
        messages: Sequence[Message] | Sequence[dict[str, Any]] | Any,
        tools: Sequence[ToolDef] = (),
        options: ChatOptions | None = None,
        *,
        deadline_s: float | None = None,
    ) -> AsyncIterator[StreamChunk]:
        """As `chat_stream`, awaited. Cancelling the task closes the connection."""
        return areply(self._clients.for_loop, self._chat(messages, tools, options, deadline_s))

    @property
    def provider(self) -> profiles.Provider:
        """What kind of server this is, as far as it is known."""
        return self._provider or profiles.by_name("unknown")

    @property
    def profile(self) -> RunnerProfile:
        """What the endpoint and its model take."""
        if self._profile is None:
            provider = self.provider
            return RunnerProfile(
                grammar=provider.grammar,
                json_schema=provider.json_schema,
                reasoning=bool(provider.reasoning_field),
            )
        return self._profile

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

    def _post(self, url: str, body: dict[str, Any], trace_id: str = "") -> exchange.Send:
        headers = {**self._headers, "x-trace-id": trace_id} if trace_id else self._headers
        return exchange.Send("POST", url, headers, requests.encode_body(body))

    def _chat(
        self, messages: Any, tools: Sequence[Any], options: ChatOptions | None, deadline_s: float | None
    ) -> exchange.Rule:
        options = options or ChatOptions()
        body = self._body(messages, tools, options, stream=True)
        profile = self._profile
        wire = body["messages"]
        sizes = exchange.Sizes(
            floor=lambda: prompt_floor(wire, chars_per_token=8 if self.provider.silent_truncation else 12),
            window=profile.context_tokens if profile is not None else 0,
        )
        return exchange.stream_reply(
            self._context(deadline_s),
            self._post(f"{self.api}/chat/completions", body, options.trace_id),
            max_tokens=options.max_tokens,
            guard=self._guard,
            sizes=sizes,
            adapt=lambda status, said: self._adapt(body, status, said),
        )

    def _body(
        self, messages: Any, tools: Sequence[Any], options: ChatOptions, *, stream: bool
    ) -> dict[str, Any]:
        profile = self._profile or RunnerProfile()
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

    def _adapt(self, body: dict[str, Any], status: int, said: str) -> bytes | None:
        changed = requests.adaptation(body, status, said)
        if changed is None:
            return None
        self._adapted.add(changed)
        fresh = requests.apply_adaptations(body, {changed})
        body.clear()
        body.update(fresh)
        return requests.encode_body(body)


def _guard_factory(repetition: Mapping[str, Any] | bool | None) -> Callable[[str], Any] | None:
    if repetition is False:
        return None
    from agentkit_fast.text import RepetitionGuard

    options = dict(repetition) if isinstance(repetition, Mapping) else {}
    options.pop("where", None)
    if options:
        RepetitionGuard(**options)  # a wrong option is told here, not in the middle of a reply
    return lambda where: RepetitionGuard(where=where, **options)
