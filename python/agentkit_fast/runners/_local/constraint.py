"""Holding a reply to a grammar: sample first, check the one token, look further only after a reject."""

from __future__ import annotations

import logging
import re
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from agentkit_fast.runners._local.gbnf import (
    Alt,
    Literal,
    Node,
    Ref,
    Repeat,
    Seq,
    parse_gbnf,
    refs,
    token_literals,
)
from agentkit_fast.runners._local.lark import NotConvertible, to_lark
from agentkit_fast.runners._local.llama import Grammar, Vocab
from agentkit_fast.runners._local.sampling import Logits, Sampler, near_best

__all__ = ["CallTrigger", "Constraint", "Constraints", "Plan"]

log = logging.getLogger("agentkit_fast.local")

_KEPT = 64
# Refused first, a reply's next token is looked for among those so little less likely, where they are few.
_NEAR, _FEW = 8.0, 256
_CALL = b"@@call "


class Constraint(Protocol):
    """A grammar at some point of the reply."""

    def allows(self, token: int) -> bool:
        """Whether this token may come next."""

    def choose(self, sampler: Sampler, logits: Logits) -> int | None:
        """A token that may come next, after the sampler's own choice was refused; `None`: there is none."""

    def accept(self, token: int) -> None:
        """Go on by an allowed token."""

    def forced(self) -> list[int]:
        """Tokens that must come next, whatever the model thinks; often none."""
        ...

    def close(self) -> None: ...


class GbnfConstraint:
    """llama.cpp's grammar engine."""

    def __init__(self, grammar: Grammar, vocab: Vocab) -> None:
        self._grammar = grammar
        self._vocab = vocab

    def allows(self, token: int) -> bool:
        return self._grammar.allows(token)

    def choose(self, sampler: Sampler, logits: Logits) -> int | None:
        # From the top: the first batch that holds an allowed token far enough above the batch's lowest one decides
        # like the whole vocabulary would, at a hundredth of its cost.
        near, _ = near_best(logits, max(sampler.reach, _NEAR), _FEW)
        allowed = near[self._grammar.allowed(near)]
        if len(allowed):
            values = logits[allowed]
            if logits[near[-1]] <= values.max() - sampler.reach or (
                len(near) < _FEW and values.max() - sampler.reach >= logits[near[0]] - _NEAR
            ):
                return sampler.choose(values, allowed)
        # The model wants something else altogether. What may come next begins with few different bytes, mostly,
        # and few tokens begin with them.
        ids = self._possible()
        ids = ids[np.isfinite(logits[ids])]
        ids = ids[np.argsort(-logits[ids], kind="stable")]
        checked: list[NDArray[np.intp]] = []
        start = 0
        for end in (64, 1024, 16384, len(ids)):
            fresh = ids[start:end]
            start = max(start, min(end, len(ids)))
            checked.append(fresh[self._grammar.allowed(fresh)])
            found = np.concatenate(checked)
            if len(found):
                values = logits[found]
                if start == len(ids) or logits[ids[start - 1]] <= values.max() - sampler.reach:
                    return sampler.choose(values, found)
        return None

    def _possible(self) -> NDArray[np.intp]:
        """Tokens that begin with a byte that may come next, and those that say nothing about it."""
        singles, firsts = self._vocab.first_bytes()
        may = np.ones(257, dtype=np.bool_)
        known = np.flatnonzero(singles >= 0)
        may[known] = self._grammar.allowed(singles[known])
        return np.flatnonzero(may[firsts])

    def accept(self, token: int) -> None:
        self._grammar.accept(token)

    def forced(self) -> list[int]:
        return []

    def close(self) -> None:
        self._grammar.close()


class LlgConstraint:
    """llguidance for masks and forced tokens; llama.cpp's engine has the last word on every token.

    So what comes out is in the GBNF's language whatever the conversion made of it, and where llguidance
    knows no way to go on the GBNF decides alone.
    """

    def __init__(self, matcher: Any, gbnf: GbnfConstraint, vocab: Vocab) -> None:
        self._matcher = matcher
        self._gbnf = gbnf
        self._vocab = vocab
        self._eog = frozenset(vocab.eog)

    def allows(self, token: int) -> bool:
        if not self._gbnf.allows(token):
            return False
        if self._matcher is None or token in self._eog:
            return True
        return int(self._matcher.validate_tokens([token])) == 1

    def choose(self, sampler: Sampler, logits: Logits) -> int | None:
        if self._matcher is not None:
            bits = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8)
            allowed = np.unpackbits(bits, bitorder="little", count=len(logits)).view(np.bool_)
            ids = np.flatnonzero(allowed)
            ids = ids[np.isfinite(logits[ids])]
            while len(ids):
                token = sampler.choose(logits[ids], ids)
                if self._gbnf.allows(token):
                    return token
                ids = ids[ids != token]
            self._give_up("it allows no token here")
        return self._gbnf.choose(sampler, logits)

    def accept(self, token: int) -> None:
        self._gbnf.accept(token)
        if self._matcher is not None and token not in self._eog and not self._matcher.consume_token(token):
            self._give_up(str(self._matcher.get_error()))

    def forced(self) -> list[int]:
        if self._matcher is None:
            return []
        return [token for token in self._matcher.compute_ff_tokens() if not self._vocab.control[token]]

    def _give_up(self, why: str) -> None:
        log.debug("llguidance stepped aside for the rest of this reply: %s", why)
        self._matcher = None

    def close(self) -> None:
        self._matcher = None
        self._gbnf.close()


class CallTrigger:
    """Finds `@@call ` at the start of a line, in bytes as they come."""

    MARK = _CALL

    def __init__(self) -> None:
        self._line: bytes | None = b""  # the line so far, while it can still begin a call

    def passes(self, piece: bytes) -> bool:
        """Whether `piece` neither ends a mark nor lets one begin."""
        return self._line is None and b"\n" not in piece

    def find(self, piece: bytes) -> int:
        """Where in `piece` the mark ends, or -1. Changes nothing."""
        return self._scan(piece)[0]

    def started(self, piece: bytes) -> int:
        """How many bytes of the mark were there before `piece`, which completes it; -1 where it began in it."""
        line = self._line
        return len(line) if line is not None and (line + piece).startswith(_CALL) else -1

    def push(self, piece: bytes) -> None:
        self._line = self._scan(piece)[1]

    def _scan(self, piece: bytes) -> tuple[int, bytes | None]:
        line = self._line
        start = 0
        while True:
            end = piece.find(b"\n", start)
            if line is not None:
                whole = line + (piece[start:] if end < 0 else piece[start:end])
                if whole.startswith(_CALL):
                    return start + len(_CALL) - len(line), None
                line = whole if _CALL.startswith(whole) else None
            if end < 0:
                return -1, line
            start, line = end + 1, b""


class Plan:
    """What a grammar asks for: a constraint from the first token on, or free prose until a call begins."""

    def __init__(self, begin: Callable[[], Constraint], *, prose: bool) -> None:
        self.begin = begin
        self.prose = prose


class Constraints:
    """Grammars made ready for one model. Compiled ones are kept: a session sends the same one each turn."""

    def __init__(self, vocab: Vocab, engine: str) -> None:
        self._vocab = vocab
        self._lock = threading.Lock()
        self._plans: OrderedDict[str, Plan] = OrderedDict()
        self._tokenizer: Any = None
        self._llguidance: Any = None
        if engine in ("auto", "llguidance"):
            try:
                import llguidance
            except ImportError:
                if engine == "llguidance":
                    raise ImportError(
                        "constraint='llguidance' needs that package: pip install 'agentkit-fast[llguidance]'."
                    ) from None
            else:
                self._llguidance = llguidance
        self.engine = "none" if engine == "none" else "llguidance" if self._llguidance else "gbnf"

    def plan(self, gbnf: str) -> Plan | None:
        """How to hold a reply to this grammar, `None` for not at all. `ValueError` where it is no grammar."""
        if not gbnf.strip():
            return None
        with self._lock:
            plan = self._plans.get(gbnf)
            if plan is None:
                plan = self._plans[gbnf] = self._make(gbnf)
                while len(self._plans) > _KEPT:
                    self._plans.popitem(last=False)
            else:
                self._plans.move_to_end(gbnf)
        return None if self.engine == "none" else plan

    def _make(self, gbnf: str) -> Plan:
        rules = self._check(gbnf)
        prose = _free_prose(rules)
        if prose is not None:
            # The calls alone, under the same names: what the grammar says of the prose, any text is.
            gbnf = re.sub(r"\Aroot ::= [^\n]*\n", f"root ::= {prose}\n", gbnf, count=1)
            rules = self._check(gbnf)
        base = Grammar(self._vocab, gbnf)
        matcher = self._matcher(rules)
        if matcher is None:
            self._vocab.first_bytes()  # 0.1 s for 49k tokens, 0.7 s for 262k: once a model, not in mid-reply

        def begin() -> Constraint:
            plain = GbnfConstraint(base.clone(), self._vocab)
            return plain if matcher is None else LlgConstraint(matcher.deep_copy(), plain, self._vocab)

        return Plan(begin, prose=prose is not None)

    def _check(self, gbnf: str) -> dict[str, Node]:
        rules = parse_gbnf(gbnf)
        for spelling in token_literals(rules):
            token = re.fullmatch(r"<\[([0-9]{1,9})\]>", spelling)
            if token and int(token[1]) >= self._vocab.size:
                raise ValueError(
                    f"The grammar names token {token[1]}; the vocabulary has {self._vocab.size}."
                )
            if not token and len(self._vocab.tokenize(spelling.encode(), parse_special=True)) != 1:
                raise ValueError(f"The grammar names {spelling} as one token; this vocabulary has no such.")
        return rules

    def _matcher(self, rules: dict[str, Node]) -> Any:
        llguidance = self._llguidance
        if llguidance is None:
            return None
        try:
            lark = to_lark(rules)
        except NotConvertible as error:
            log.debug("the grammar stays with llama.cpp's engine: %s", error)
            return None
        if self._tokenizer is None:
            # 0.2 s for 49k tokens, 1.6 s for 262k: once a model, at the first grammar.
            self._tokenizer = self._vocab.llguidance_tokenizer()
        matcher = llguidance.LLMatcher(
            self._tokenizer, llguidance.LLMatcher.grammar_from_lark(lark), log_level=0
        )
        if matcher.is_error():
            log.debug("llguidance refuses the grammar: %s", matcher.get_error())
            return None
        return matcher


def _free_prose(rules: dict[str, Node]) -> str | None:
    """The rule of the calls, where the grammar is "prose, then perhaps calls" as `heredoc_grammar` writes it.

    Prose there is any text up to a line that begins with `@@call `, so nothing needs to hold the model to it.
    Recognized by its meaning: with the calls left out, it is the grammar for no tools.
    """
    prose = _prose_rules()
    if any(rules.get(name) != node for name, node in prose.items() if name != "root"):
        return None
    others = refs(rules["root"]) - prose.keys()
    if len(others) != 1:
        return None
    calls = others.pop()
    begin: Node | None = Ref(calls)
    while isinstance(begin, (Ref, Seq)):
        begin = rules.get(begin.name) if isinstance(begin, Ref) else begin.parts[0] if begin.parts else None
    if begin != Literal(_CALL.decode()):
        return None
    return calls if _without(rules["root"], calls) == prose["root"] else None


def _without(node: Node, name: str) -> Node:
    """The node with a rule's alternatives left out."""
    if isinstance(node, Alt):
        options = [_without(option, name) for option in node.options if option != Ref(name)]
        return options[0] if len(options) == 1 else Alt(tuple(options))
    if isinstance(node, Seq):
        return Seq(tuple(_without(part, name) for part in node.parts))
    if isinstance(node, Repeat):
        return Repeat(_without(node.node, name), node.least, node.most)
    return node


def _prose_rules() -> dict[str, Node]:
    from agentkit_fast.text import heredoc_grammar

    return parse_gbnf(heredoc_grammar([], allow_prose=True))
