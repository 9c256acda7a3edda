"""GBNF for tests: accepted by a real llama.cpp, and sampled from by a small reader of our own."""

from __future__ import annotations

import ctypes
import random
import re
from pathlib import Path
from typing import Any

import numpy as np

import models


class LlamaGrammar:
    """Asks llama.cpp whether a grammar is valid and accepts a text. Needs a vocabulary, no weights.

    `llama_sampler_init_grammar` gives NULL for an invalid grammar; using that, or accepting a token that
    the grammar refuses, would kill the process, so every token is tried alone first.
    """

    def __init__(self, model: Path) -> None:
        import llama_cpp

        self.lib = llama_cpp
        models.quiet_llama(llama_cpp)
        parameters = llama_cpp.llama_model_default_params()
        parameters.vocab_only = True
        self.model = llama_cpp.llama_model_load_from_file(str(model).encode(), parameters)
        assert self.model
        self.vocab = llama_cpp.llama_model_get_vocab(self.model)
        self.eos = llama_cpp.llama_vocab_eos(self.vocab)
        self._pieces: list[bytes] = []

    def tokens(self, text: str) -> list[int]:
        raw = text.encode()
        room = (ctypes.c_int32 * (len(raw) + 8))()
        count = self.lib.llama_tokenize(self.vocab, raw, len(raw), room, len(room), False, False)
        assert count >= 0
        return list(room[:count])

    def spells(self, text: str) -> bool:
        """Whether the vocabulary has the bytes of `text` (SmolLM2 lacks a few)."""
        piece = ctypes.create_string_buffer(256)
        out = b""
        for token in self.tokens(text):
            count = self.lib.llama_token_to_piece(self.vocab, token, piece, len(piece), 0, True)
            out += piece.raw[: max(count, 0)]
        return out == text.encode()

    def compile(self, gbnf: str) -> Any:
        return self.lib.llama_sampler_init_grammar(self.vocab, gbnf.encode(), b"root")

    def valid(self, gbnf: str) -> bool:
        sampler = self.compile(gbnf)
        if not sampler:
            return False
        self.lib.llama_sampler_free(sampler)
        return True

    def _allowed(self, sampler: Any, token: int) -> bool:
        data = (self.lib.llama_token_data * 1)(self.lib.llama_token_data(token, 1.0, 0.0))
        array = self.lib.llama_token_data_array(data, 1, -1, False)
        self.lib.llama_sampler_apply(sampler, ctypes.byref(array))
        return data[0].logit > -1e30

    def accepts(self, gbnf: str, text: str, *, prefix: bool = False) -> bool:
        """Whether `text` is in the language (or, with `prefix`, begins a text that may be)."""
        sampler = self.compile(gbnf)
        assert sampler, "invalid grammar"
        try:
            for token in self.tokens(text):
                if not self._allowed(sampler, token):
                    return False
                self.lib.llama_sampler_accept(sampler, token)
            return prefix or self._allowed(sampler, self.eos)
        finally:
            self.lib.llama_sampler_free(sampler)

    def walk(self, gbnf: str, rng: random.Random, budget: int) -> str:
        """A text that llama.cpp's sampler itself wrote: every token drawn from those it allows, towards an end after
        `budget` tokens.
        """
        pieces = self.pieces()
        fresh = np.zeros(len(pieces), dtype=[("id", "i4"), ("logit", "f4"), ("p", "f4")])
        fresh["id"] = range(len(pieces))
        letters = np.array([len(piece) == 1 and piece < b"\x80" for piece in pieces])
        sampler = self.compile(gbnf)
        assert sampler, "invalid grammar"
        raw = b""
        try:
            for step in range(budget + 2_000):
                data = (self.lib.llama_token_data * len(pieces)).from_buffer_copy(fresh)
                array = self.lib.llama_token_data_array(data, len(pieces), -1, False)
                self.lib.llama_sampler_apply(sampler, ctypes.byref(array))
                mask = np.frombuffer(data, dtype=fresh.dtype)["logit"] > -1e30
                may_end, mask[self.eos] = bool(mask[self.eos]), False
                allowed = [int(token) for token in np.flatnonzero(mask)]
                some = rng.sample(allowed, min(len(allowed), 50))
                some += [int(token) for token in np.flatnonzero(mask & letters)]
                ids = {pieces[token]: token for token in some if pieces[token]}
                chosen = choose_bytes(set(ids), may_end, raw, rng, step >= budget)
                if chosen is None:
                    return raw.decode()
                raw += chosen
                self.lib.llama_sampler_accept(sampler, ids[chosen])
            raise AssertionError(f"no end: {raw[-200:]!r}")
        finally:
            self.lib.llama_sampler_free(sampler)

    def pieces(self) -> list[bytes]:
        """What each token of the vocabulary spells; empty for control tokens."""
        if not self._pieces:
            room = ctypes.create_string_buffer(256)
            for token in range(self.lib.llama_vocab_n_tokens(self.vocab)):
                length = self.lib.llama_token_to_piece(self.vocab, token, room, len(room), 0, False)
                self._pieces.append(room.raw[: max(length, 0)])
        return self._pieces


def choose_bytes(
    allowed: set[bytes], may_end: bool, raw: bytes, rng: random.Random, closing: bool
) -> bytes | None:
    """As `choose`, where what is written and what may follow can be parts of a character."""
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        return rng.choice(sorted(allowed))
    whole = {}
    for piece in allowed:
        try:
            whole[piece.decode()] = piece
        except UnicodeDecodeError:
            continue
    if not may_end and (not whole or (not closing and len(whole) < len(allowed) and rng.random() < 0.05)):
        return rng.choice(sorted(allowed))
    chosen = choose(set(whole), may_end, text, rng, closing)
    return None if chosen is None else whole[chosen]


def place(text: str) -> str:
    """Where a reply stands: `prose`, `code`, in a `string`, behind its `escape`, or the tag of a body."""
    if text.startswith("@@call "):
        at = 0
    elif "\n@@call " in text:
        at = text.index("\n@@call ") + 1
    else:
        return "prose"
    where = "code"
    while at < len(text):
        if where == "code":
            body = re.compile(r"~~~([a-z]*)\n").match(text, at)
            if body:
                where, at = body[1], body.end() - 1
                continue
            where = "string" if text[at] == '"' else "code"
        elif where == "string":
            where = {'"': "code", "\\": "escape"}.get(text[at], "string")
        elif where == "escape":
            where = "string"
        elif text.startswith(f"\n~~~{where}\n", at):
            at += len(where) + 4
            where = "code"
        at += 1
    return where


def choose(allowed: set[str], may_end: bool, text: str, rng: random.Random, closing: bool) -> str | None:
    """One of `allowed` at random, or (`closing`) one that leads to an end; `None` ends the text."""
    if may_end and (closing or not allowed or rng.random() < 0.05):
        return None
    if not closing:
        # Most tokens are words: what has structure is drawn as often as all of them.
        marks = sorted(piece for piece in allowed if not piece.strip().isalnum())
        return rng.choice(marks if marks and rng.random() < 0.6 else sorted(allowed))
    where = place(text)
    if where not in {"prose", "code", "string", "escape"}:
        closer = f"\n~~~{where}\n"
        done = max(n for n in range(len(closer)) if text.endswith(closer[:n]))
        wanted = [closer[done]]
    else:
        wanted = {"string": ['"'], "escape": ["n", "0"], "prose": ["x"], "code": list('}]":0\n@end')}[where]
    for letter in wanted:
        if letter in allowed:
            return letter
    # Whatever else goes on; rather nothing that opens something new.
    longer = set(', \t"~{[')
    return rng.choice(sorted({piece for piece in allowed if len(piece) == 1} - longer) or sorted(allowed))


# A grammar read into trees: ("lit", text), ("class", negated, ranges), ("ref", name), ("seq", [..]),
# ("alt", [..]), ("rep", node, low, high or None).
Node = tuple[Any, ...]
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t"}


class Sampler:
    """Draws random texts from a GBNF grammar. Reads only what `heredoc_grammar` writes."""

    def __init__(self, gbnf: str) -> None:
        self.rules: dict[str, Node] = {}
        for line in gbnf.splitlines():
            name, _, body = line.partition(" ::= ")
            assert re.fullmatch(r"[a-zA-Z0-9-]+", name), name
            assert name not in self.rules, name
            self.text, self.at = body, 0
            self.rules[name] = self._alternatives()
            assert self.at == len(body), line
        for node in list(self.rules.values()):
            self._check(node)

    def _check(self, node: Node) -> None:
        if node[0] == "ref":
            assert node[1] in self.rules, node[1]
        elif node[0] == "rep":
            self._check(node[1])
        elif node[0] in {"seq", "alt"}:
            for part in node[1]:
                self._check(part)

    def _skip(self) -> None:
        while self.at < len(self.text) and self.text[self.at] == " ":
            self.at += 1

    def _alternatives(self) -> Node:
        ways = [self._sequence()]
        while self.at < len(self.text) and self.text[self.at] == "|":
            self.at += 1
            ways.append(self._sequence())
        return ways[0] if len(ways) == 1 else ("alt", ways)

    def _sequence(self) -> Node:
        parts: list[Node] = []
        while True:
            self._skip()
            if self.at == len(self.text) or self.text[self.at] in "|)":
                return ("seq", parts)
            parts.append(self._repeated(self._item()))

    def _item(self) -> Node:
        head = self.text[self.at]
        self.at += 1
        if head == "(":
            node = self._alternatives()
            assert self.text[self.at] == ")"
            self.at += 1
            return node
        if head == '"':
            out = []
            while self.text[self.at] != '"':
                out.append(self._char())
            self.at += 1
            return ("lit", "".join(out))
        if head == "[":
            negated = self.text[self.at] == "^"
            self.at += negated
            ranges = []
            while self.text[self.at] != "]":
                low = high = self._char()
                if self.text[self.at] == "-" and self.text[self.at + 1] != "]":
                    self.at += 1
                    high = self._char()
                ranges.append((low, high))
            self.at += 1
            return ("class", negated, ranges)
        found = re.compile(r"[a-zA-Z0-9-]+").match(self.text, self.at - 1)
        assert found, self.text[self.at - 1 :]
        self.at = found.end()
        return ("ref", found.group())

    def _char(self) -> str:
        char = self.text[self.at]
        self.at += 1
        if char != "\\":
            return char
        escape = self.text[self.at]
        self.at += 1
        if escape in "xu":
            length = 2 if escape == "x" else 4
            self.at += length
            return chr(int(self.text[self.at - length : self.at], 16))
        return _ESCAPES.get(escape, escape)

    def _repeated(self, node: Node) -> Node:
        while self.at < len(self.text) and self.text[self.at] in "*+?{":
            mark = self.text[self.at]
            self.at += 1
            if mark == "{":
                low, high = self.text[self.at : self.text.index("}", self.at)].split(",")
                self.at = self.text.index("}", self.at) + 1
                assert int(high) <= 2000
                node = ("rep", node, int(low), int(high))
            else:
                node = ("rep", node, int(mark == "+"), 1 if mark == "?" else None)
        return node

    # Letters that make trouble: what bodies, strings and prose are full of.
    LETTERS = "ab1 \t~@`\"'\\{}[],:cle\r\n-néé日😀\u2028\x7f<|_$"

    def draw(self, rng: random.Random, rule: str = "root") -> str:
        self.rng, self.left = rng, 400
        return self._draw(self.rules[rule])

    def _draw(self, node: Node) -> str:
        self.left -= 1
        match node:
            case ("lit", text):
                return text
            case ("ref", name):
                return self._draw(self.rules[name])
            case ("seq", parts):
                return "".join(self._draw(part) for part in parts)
            case ("alt", ways):
                # Where the budget is spent, the alternatives that end soonest.
                if self.left < 0:
                    ways = sorted(ways, key=lambda way: str(way).count("'ref'"))[:1]
                return self._draw(self.rng.choice(ways))
            case ("rep", inner, low, high):
                most = 0 if self.left < 0 else self.rng.choice([0, 1, 1, 2, 3, 7])
                count = max(low, most if high is None else min(high, most))
                return "".join(self._draw(inner) for _ in range(count))
            case ("class", negated, ranges):
                fits = [c for c in self.LETTERS if any(low <= c <= high for low, high in ranges) != negated]
                if not fits or (not negated and self.rng.random() < 0.5):
                    low, high = self.rng.choice(ranges)
                    return chr(self.rng.randint(ord(low), ord(high)))
                return self.rng.choice(fits)
        raise AssertionError(node)
