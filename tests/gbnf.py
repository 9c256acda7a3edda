"""GBNF for tests: accepted by a real llama.cpp, and sampled from by a small reader of our own."""

from __future__ import annotations

import ctypes
import random
import re
from pathlib import Path
from typing import Any

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
