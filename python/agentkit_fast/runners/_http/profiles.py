"""What providers take and call things: differences as data, and the rules that read them. No I/O."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

import msgspec

__all__ = ["PROVIDERS", "Provider", "by_name", "guess_from_answers", "guess_from_url"]


class Provider(msgspec.Struct, kw_only=True, frozen=True):
    """One kind of server.

    The `*_key` fields name the request field an option goes out as, dotted for a nested one; an empty name
    means the server has no such thing, and the option is left out. `effort_off` and `effort_on` are the
    `reasoning_effort` that switches thinking off and on where there is no toggle.
    """

    name: str
    grammar: bool = False
    grammar_key: str = "grammar"
    json_schema: bool = True
    max_tokens_key: str = "max_tokens"
    repeat_penalty_key: str = "repeat_penalty"
    thinking_key: str = ""
    effort_off: str = ""
    effort_on: str = ""
    reasoning_budget_key: str = ""
    reasoning_message_key: str = ""
    reasoning_field: str = ""
    """The message field in which earlier reasoning is sent back; empty: it is not."""
    named_tool_choice: bool = True
    """A tool's name can be demanded; otherwise `"required"` is sent."""
    stream_options: bool = True
    cache_prompt: bool = False
    tokenize: str = ""
    """Dialect of the tokenizer endpoint: `"llama.cpp"`, `"vllm"` or none."""
    silent_truncation: bool = False
    """Known to drop the front of a prompt that is too long and answer 200."""

    @property
    def takes_reasoning_content(self) -> bool:
        """Earlier reasoning goes out under its usual name, or not at all."""
        return self.reasoning_field in ("", "reasoning_content")


PROVIDERS: tuple[Provider, ...] = (
    Provider(
        name="llama.cpp",
        grammar=True,
        thinking_key="chat_template_kwargs.enable_thinking",
        reasoning_budget_key="thinking_budget_tokens",
        reasoning_message_key="reasoning_budget_message",
        reasoning_field="reasoning_content",
        named_tool_choice=False,
        cache_prompt=True,
        tokenize="llama.cpp",
    ),
    Provider(
        name="vllm",
        grammar_key="structured_outputs.grammar",
        repeat_penalty_key="repetition_penalty",
        thinking_key="chat_template_kwargs.enable_thinking",
        reasoning_budget_key="thinking_token_budget",
        reasoning_field="reasoning_content",
        tokenize="vllm",
    ),
    Provider(
        name="ollama",
        repeat_penalty_key="",
        effort_off="none",
        effort_on="medium",
        silent_truncation=True,
    ),
    Provider(name="lmstudio", effort_off="none", effort_on="medium", named_tool_choice=False),
    Provider(
        name="openai",
        max_tokens_key="max_completion_tokens",
        repeat_penalty_key="",
        effort_off="none",
        effort_on="medium",
    ),
    Provider(
        name="anthropic",
        json_schema=False,
        repeat_penalty_key="",
        reasoning_budget_key="thinking.budget_tokens",
    ),
    Provider(
        name="unknown",
        json_schema=False,
        thinking_key="chat_template_kwargs.enable_thinking",
        reasoning_budget_key="thinking_budget_tokens",
        reasoning_message_key="reasoning_budget_message",
    ),
)


def by_name(name: str) -> Provider:
    """The provider of that name. Raises `ValueError` naming the known ones."""
    for provider in PROVIDERS:
        if provider.name == name:
            return provider
    known = ", ".join(provider.name for provider in PROVIDERS)
    raise ValueError(f"No provider is called {name!r}. Known: {known}; or give a Provider of your own.")


def guess_from_url(url: str) -> Provider | None:
    """The provider a base URL names by itself, without asking it."""
    host = (urlsplit(url).hostname or "").lower()
    if host == "api.openai.com" or host.endswith(".openai.azure.com"):
        return by_name("openai")
    if host == "api.anthropic.com":
        return by_name("anthropic")
    return None


def guess_from_answers(
    props: Any, models: Any, server: str = "", version: Any = None, headers: dict[str, str] | None = None
) -> Provider:
    """The provider by how it answers.

    `props` and `models` are the decoded answers of `/props` and `/v1/models`, `version` of Ollama's
    `/api/version` (`None` where there was none), `server` the `Server` header.
    """
    if isinstance(props, dict) and ("default_generation_settings" in props or "build_info" in props):
        return by_name("llama.cpp")
    if "llama.cpp" in server.lower():
        return by_name("llama.cpp")
    entries = models.get("data") if isinstance(models, dict) else None
    first = entries[0] if isinstance(entries, list) and entries and isinstance(entries[0], dict) else {}
    owner = str(first.get("owned_by") or "").lower()
    meta = first.get("meta")
    if owner == "llamacpp" or (isinstance(meta, dict) and "n_ctx_train" in meta):
        return by_name("llama.cpp")
    if owner == "vllm" or "max_model_len" in first:
        return by_name("vllm")
    if isinstance(version, dict) and isinstance(version.get("version"), str):
        return by_name("ollama")
    if owner == "library":
        return by_name("ollama")
    if owner == "organization_owner":
        return by_name("lmstudio")
    if headers and any(name.startswith("anthropic-") for name in headers):
        return by_name("anthropic")
    if owner in ("openai", "system", "openai-internal"):
        return by_name("openai")
    return by_name("unknown")
