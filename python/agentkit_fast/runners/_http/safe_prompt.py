"""Prompts of token ids for a llama.cpp server, in which no message's text can forge a control token.

The server's own template is rendered with a placeholder for every text (`/apply-template`). The template's
literals are tokenized with control tokens, everything else without (`/tokenize`), and the ids go to
`/completion`. A stretch between two control tokens is tokenized in one piece, so that the ids are those the server
would make of the whole prompt, whenever no text holds a control sequence. Rules without I/O.
"""

from __future__ import annotations

import itertools
import re
import secrets
from typing import Any

import msgspec

from agentkit_fast._unicode import repair_text
from agentkit_fast.errors import RunnerError
from agentkit_fast.messages import ChatOptions
from agentkit_fast.runners._http.errors import loads
from agentkit_fast.runners._http.exchange import Context, Endpoint, Rule, Send, ask
from agentkit_fast.runners._http.profiles import Provider
from agentkit_fast.runners._http.request import merge_extra, sampling_options
from agentkit_fast.runners._http.tokenizing import Counts

__all__ = ["PieceCache", "completion_body", "prompt_ids"]

# A vocabulary's own word for a role or a block (`<think>`, `[INST]`): llama.cpp makes such a USER_DEFINED token of
# text even without parse_special. No ordinary token mixes brackets and a word this way, since
# pre-tokenizers part letters from punctuation.
_LITERAL = re.compile(r"</?[|｜]?[A-Za-z_][\w .:|｜▁-]*>|\[/?[A-Z][A-Z_ ]+\]|\[multimodal\]")


class PieceCache:
    """Ids of stretches tokenized before: what a growing history repeats in every round."""

    def __init__(self, size: int = 4096) -> None:
        self._ids: dict[bytes, list[int]] = {}
        self._size = size

    def get(self, kind: str, text: str) -> list[int] | None:
        return self._ids.get(self._key(kind, text))

    def put(self, kind: str, text: str, ids: list[int]) -> None:
        if len(self._ids) >= self._size:
            for key in list(self._ids)[: self._size // 4]:
                self._ids.pop(key, None)
        self._ids[self._key(kind, text)] = ids

    @staticmethod
    def _key(kind: str, text: str) -> bytes:
        return Counts.key(f"{kind}\0{text}")


def _post(endpoint: Endpoint, path: str, body: dict[str, Any]) -> Send:
    return Send("POST", f"{endpoint.root}{path}", endpoint.headers, msgspec.json.encode(body))


def _tokens(answer: bytes, where: str) -> list[Any]:
    value = loads(answer)
    tokens = value.get("tokens") if isinstance(value, dict) else None
    if not isinstance(tokens, list):
        raise RunnerError(
            f"{where} has no llama.cpp /tokenize, which safe_prompts=True needs.",
            body=answer[:2000].decode("utf-8", "replace"),
        )
    return tokens


def _with_placeholders(messages: list[dict[str, Any]], mark: str) -> tuple[list[dict[str, Any]], list[str]]:
    """The messages with a placeholder for every text, and the texts.

    A text's blanks at its ends stay outside the placeholder, so that a template that trims does so.
    """
    texts: list[str] = []

    def placeholder(text: str) -> str:
        text = repair_text(text)
        core = text.strip()
        if not core:
            return text
        at = text.index(core)
        texts.append(core)
        return f"{text[:at]}{mark}{len(texts) - 1}{mark}{text[at + len(core) :]}"

    out = []
    for message in messages:
        wire = dict(message)
        content = wire.get("content")
        if isinstance(content, list):
            if not all(isinstance(part, dict) and part.get("type") == "text" for part in content):
                raise ValueError(
                    "safe_prompts=True sends token ids, which hold no images; use a plain HttpRunner."
                )
            content = "\n".join(str(part.get("text", "")) for part in content)
        wire["content"] = placeholder(content) if isinstance(content, str) else ""
        for key in ("name", "reasoning_content"):
            if isinstance(wire.get(key), str):
                wire[key] = placeholder(wire[key])
        out.append(wire)
    return out, texts


def _stretches(prompt: str, mark: str, texts: list[str]) -> list[tuple[bool, str]]:
    """The rendered prompt as `(from the template, text)` parts."""
    parts: list[tuple[bool, str]] = []
    for number, part in enumerate(prompt.split(mark)):
        if number % 2 == 0:
            parts.append((True, part))
        elif part.isdecimal() and int(part) < len(texts):
            parts.append((False, texts[int(part)]))
        else:
            raise RunnerError(
                "The chat template changes the messages' texts, so a token-exact prompt cannot be built from it. "
                "Use safe_prompts=False, or another template."
            )
    return [part for part in parts if part[1]]


def prompt_ids(
    context: Context,
    endpoint: Endpoint,
    cache: PieceCache,
    messages: list[dict[str, Any]],
    extra: dict[str, Any],
) -> Rule:
    """The ids of the prompt for `messages`; `extra` are fields for the template (`chat_template_kwargs`)."""
    # Unguessable, and not taken apart or changed by any template: letters and digits only.
    mark = f"x{secrets.token_hex(12)}x"
    safe, texts = _with_placeholders(messages, mark)
    _, answer = yield from ask(context, _post(endpoint, "/apply-template", {**extra, "messages": safe}))
    value = loads(answer)
    prompt = value.get("prompt") if isinstance(value, dict) else None
    if not isinstance(prompt, str):
        raise RunnerError(
            f"{endpoint.root} has no llama.cpp /apply-template, which safe_prompts=True needs.",
            body=answer[:2000].decode("utf-8", "replace"),
        )
    # Each stretch of plain text between control tokens, and the ids of the control tokens themselves.
    plan: list[int | str] = []
    for from_template, text in _stretches(prompt, mark, texts):
        if not from_template:
            _append_text(plan, text)
            continue
        for piece in (yield from _literal(context, endpoint, cache, text)):
            if isinstance(piece, int):
                plan.append(piece)
            else:
                _append_text(plan, piece)
    ids: list[int] = list((yield from _bos(context, endpoint, cache)))
    for step in plan:
        if isinstance(step, str):
            ids += yield from _plain(context, endpoint, cache, step)
        elif ids != [step]:  # else the template's BOS is the one the tokenizer adds by itself
            ids.append(step)
    return ids


def _append_text(plan: list[int | str], text: str) -> None:
    last = plan[-1] if plan else None
    if isinstance(last, str):
        plan[-1] = last + text
    else:
        plan.append(text)


def _ask_pieces(
    context: Context, endpoint: Endpoint, text: str, *, parse_special: bool, add_special: bool = False
) -> Rule:
    body = {
        "content": text,
        "parse_special": parse_special,
        "add_special": add_special,
        "with_pieces": True,
    }
    _, answer = yield from ask(context, _post(endpoint, "/tokenize", body))
    return [
        (token["id"], token.get("piece"))
        for token in _tokens(answer, endpoint.root)
        if isinstance(token, dict) and isinstance(token.get("id"), int)
    ]


def _literal(context: Context, endpoint: Endpoint, cache: PieceCache, text: str) -> Rule:
    """A template literal as control-token ids and the plain text between them."""
    out: list[int | str] = []
    found = yield from _ask_pieces(context, endpoint, text, parse_special=True)
    at = 0
    for token, piece in found:
        if not isinstance(piece, str) or len(piece) < 2:
            continue
        if not (yield from _is_control(context, endpoint, cache, token, piece)):
            continue
        start = text.find(piece, at)
        if start < 0:
            continue  # a BOS the tokenizer adds by itself
        if start > at:
            _append_text(out, text[at:start])
        out.append(token)
        at = start + len(piece)
    if at < len(text):
        _append_text(out, text[at:])
    return out


def _is_control(context: Context, endpoint: Endpoint, cache: PieceCache, token: int, piece: str) -> Rule:
    """Whether a token comes of its spelling only where control tokens are parsed, or is a block's literal."""
    known = cache.get("control", piece)
    if known is None:
        plain = yield from _ask_pieces(context, endpoint, piece, parse_special=False)
        control = [one for one, _ in plain] != [token] or _LITERAL.fullmatch(piece) is not None
        known = [int(control)]
        cache.put("control", piece, known)
    return bool(known[0])


def _bos(context: Context, endpoint: Endpoint, cache: PieceCache) -> Rule:
    """What the tokenizer puts before every prompt by itself."""
    added = cache.get("bos", "")
    if added is None:
        found = yield from _ask_pieces(context, endpoint, "a", parse_special=False, add_special=True)
        bare = yield from _ask_pieces(context, endpoint, "a", parse_special=False)
        added = [one for one, _ in found][: max(0, len(found) - len(bare))]
        cache.put("bos", "", added)
    return added


def _plain(context: Context, endpoint: Endpoint, cache: PieceCache, text: str) -> Rule:
    """The ids of text in which nothing is a control token."""
    known = cache.get("plain", text)
    if known is not None:
        return known
    found = yield from _ask_pieces(context, endpoint, text, parse_special=False)
    literals = {
        piece.strip() for _, piece in found if isinstance(piece, str) and _LITERAL.fullmatch(piece.strip())
    }
    ids: list[int] = []
    if literals:
        # USER_DEFINED tokens came of literals in the text: cut inside each of them.
        pattern = re.compile("|".join(re.escape(one) for one in sorted(literals, key=len, reverse=True)))
        cuts = [0, *(hit.start() + 1 for hit in pattern.finditer(text)), len(text)]
        for start, stop in itertools.pairwise(cuts):
            part = yield from _ask_pieces(context, endpoint, text[start:stop], parse_special=False)
            ids += [token for token, _ in part]
    else:
        ids = [token for token, _ in found]
    cache.put("plain", text, ids)
    return ids


def completion_body(
    ids: list[int], options: ChatOptions, provider: Provider, *, slot: int | None
) -> dict[str, Any]:
    """The body of a `/completion` request for these ids."""
    body: dict[str, Any] = {"prompt": ids, "stream": True, "cache_prompt": True}
    if slot is not None:
        body["id_slot"] = slot
    sampling_options(body, options, provider)
    if "max_tokens" in body:
        body["n_predict"] = body.pop("max_tokens")
    form = options.response_format or {}
    schema = form.get("schema")
    if isinstance(form.get("json_schema"), dict):
        schema = form["json_schema"].get("schema")
    if form.get("type") in ("json_schema", "json_object"):
        body["json_schema"] = schema if isinstance(schema, dict) else {"type": "object"}
    body.pop("chat_template_kwargs", None)
    merge_extra(body, options.extra)
    return body
