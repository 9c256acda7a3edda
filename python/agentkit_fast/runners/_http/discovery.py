"""Finding out what an endpoint is and what its model takes, by asking it. Rules without I/O."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import quote

import msgspec

from agentkit_fast.protocols import RunnerProfile
from agentkit_fast.runners._http.errors import classify, loads
from agentkit_fast.runners._http.exchange import Context, Endpoint, Rule, Send, ask_once
from agentkit_fast.runners._http.profiles import Provider, guess_from_answers

__all__ = ["Found", "discover", "overflow_window"]

# Asking must not hold anything up: a server that does not say what it is in that time is "unknown".
ASK_WITHIN_S = 3.0


class Found(msgspec.Struct, frozen=True):
    """What was found out. `reached=False`: nobody answered, so all of it is a guess."""

    provider: Provider
    reached: bool = False
    context_tokens: int = 0
    slots: int = 0
    chat_template: str = ""
    native_tools: bool = True
    system_role: bool = True
    alternate: bool = False
    reasoning: bool = False

    def profile(self, *, counter: Any, safe_prompts: bool) -> RunnerProfile:
        """As session and shaper want it."""
        return RunnerProfile(
            # Token-exact prompts go through `/completion`, whose text nobody parses but us.
            native_tools=self.native_tools and not safe_prompts,
            grammar=self.provider.grammar,
            json_schema=self.provider.json_schema,
            system_role=self.system_role,
            alternate=self.alternate,
            safe_prompts=safe_prompts,
            context_tokens=self.context_tokens,
            counter=counter,
            reasoning=self.reasoning and bool(self.provider.reasoning_field),
        )


def _get(context: Context, endpoint: Endpoint, url: str, post: Any = None) -> Rule:
    """`(status, headers, value)` of one quick question."""
    send = Send(
        "GET" if post is None else "POST",
        url,
        endpoint.headers,
        None if post is None else msgspec.json.encode(post),
        ASK_WITHIN_S,
    )
    status, headers, body = yield from ask_once(context, send)
    return status, headers, loads(body) if status == 200 else None


def discover(context: Context, endpoint: Endpoint, known: Provider | None = None) -> Rule:
    """A `Found`. `known` is the provider where the caller said it; then only the model is asked about."""
    reached = False
    status, headers, models = yield from _get(context, endpoint, f"{endpoint.api}/models")
    reached = status != 0
    server = headers.get("server", "")
    provider = known or guess_from_answers(None, models, server, headers=headers)
    props = None
    if reached and provider.name in ("llama.cpp", "unknown"):
        _, _, props = yield from _get(context, endpoint, f"{endpoint.root}/props")
    version = None
    if reached and known is None and provider.name in ("unknown", "ollama") and not isinstance(props, dict):
        _, _, version = yield from _get(context, endpoint, f"{endpoint.root}/api/version")
    if known is None:
        provider = guess_from_answers(props, models, server, version, headers)
    found = Found(
        provider=provider,
        reached=reached,
        context_tokens=_window_of_models(models, endpoint.model),
        reasoning=bool(provider.reasoning_field),
    )
    if isinstance(props, dict):
        found = _with_props(found, props)
    if reached and provider.name == "ollama":
        window = yield from _ollama_window(context, endpoint)
        found = msgspec.structs.replace(found, context_tokens=window)
    elif reached and provider.name == "lmstudio":
        url = f"{endpoint.root}/api/v0/models/{quote(endpoint.model, safe='/')}"
        _, _, entry = yield from _get(context, endpoint, url)
        if isinstance(entry, dict):
            window = _int(entry.get("loaded_context_length"))
            found = msgspec.structs.replace(found, context_tokens=window or found.context_tokens)
    return found


def _int(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0


def _window_of_models(models: Any, model: str) -> int:
    """The window `/v1/models` tells: vLLM's `max_model_len`, llama.cpp's `meta.n_ctx`, gateways' own."""
    entries = models.get("data") if isinstance(models, dict) else None
    if not isinstance(entries, list):
        return 0
    entries = [entry for entry in entries if isinstance(entry, dict)]
    entry = next((entry for entry in entries if entry.get("id") == model), entries[0] if entries else {})
    meta = entry.get("meta")
    for value in (
        meta.get("n_ctx") if isinstance(meta, dict) else None,
        entry.get("max_model_len"),
        entry.get("loaded_context_length"),
        entry.get("context_length"),
        entry.get("context_window"),
        entry.get("max_context_length"),
    ):
        if _int(value):
            return _int(value)
    return 0


def _with_props(found: Found, props: dict[str, Any]) -> Found:
    """llama.cpp's `/props`: the window is that of one slot, whatever the command line said."""
    settings = props.get("default_generation_settings")
    template = props.get("chat_template")
    template = template if isinstance(template, str) else ""
    caps = props.get("chat_template_caps")
    caps = caps if isinstance(caps, dict) else {}
    return msgspec.structs.replace(
        found,
        context_tokens=(_int(settings.get("n_ctx")) if isinstance(settings, dict) else 0)
        or found.context_tokens,
        slots=_int(props.get("total_slots")),
        chat_template=template,
        # A template that has no place for tools drops them without a word; calls must go as text then.
        native_tools=caps.get("supports_tools", True) is not False,
        system_role=caps.get("supports_system_role", True) is not False,
        alternate="raise_exception" in template and "alternate" in template,
        reasoning="reasoning_content" in template,
    )


_NUM_CTX = re.compile(r"^num_ctx\s+(\d+)", re.MULTILINE)


def _ollama_window(context: Context, endpoint: Endpoint) -> Rule:
    """The window a model is loaded with, or will be; 0 where only its training length is known."""
    _, _, loaded = yield from _get(context, endpoint, f"{endpoint.root}/api/ps")
    for entry in loaded.get("models") or () if isinstance(loaded, dict) else ():
        if isinstance(entry, dict) and endpoint.model in (entry.get("name"), entry.get("model")):
            window = _int(entry.get("context_length"))
            if window:
                return window
    _, _, shown = yield from _get(context, endpoint, f"{endpoint.root}/api/show", {"model": endpoint.model})
    parameters = shown.get("parameters") if isinstance(shown, dict) else None
    hit = _NUM_CTX.search(parameters) if isinstance(parameters, str) else None
    return int(hit.group(1)) if hit else 0


# More than any window; a word is a token or more in every vocabulary.
_TOO_MANY_WORDS = 3_000_000


def overflow_window(context: Context, endpoint: Endpoint, max_tokens_key: str) -> Rule:
    """The window by the server's own refusal of a prompt that fits no model; 0 where it does not say.

    `None` where it could not be asked: nobody answered, or it was busy.
    """
    body = {
        "model": endpoint.model,
        "messages": [{"role": "user", "content": "word " * _TOO_MANY_WORDS}],
        max_tokens_key: 1,
    }
    send = Send(
        "POST", f"{endpoint.api}/chat/completions", endpoint.headers, msgspec.json.encode(body), 60.0
    )
    status, _, answer = yield from ask_once(context, send)
    if status in (0, 429, 502, 503, 504):
        return None
    if status < 400 or status in (401, 403, 404, 413):
        return 0
    return getattr(classify(status, answer, context.where), "context_tokens", 0)
