"""GBNF as a Lark grammar for llguidance.

llguidance reads text in lexemes, greedily, and parses those. So whatever of a grammar is regular becomes one
regular expression, rule by rule from the leaves, and only true recursion stays a rule. Its own converter
makes every character class a lexeme and does not know all of GBNF's escapes.

Greedy lexemes can make the language narrower, never wider, than the GBNF; where that leaves no way to go on
the caller falls back to llama.cpp's engine, which checks every token in any case.
"""

from __future__ import annotations

from agentkit_fast.runners._local.gbnf import Alt, Chars, Literal, Node, Ref, Repeat, Seq, Token, refs

__all__ = ["NotConvertible", "to_lark"]

_MAX_REGEX = 200_000


class NotConvertible(ValueError):
    """The grammar uses what llguidance's Lark cannot say."""


def to_lark(rules: dict[str, Node]) -> str:
    """The same language in llguidance's Lark; `start` stands for `root`."""
    return _Converter(rules).text()


class _Converter:
    def __init__(self, rules: dict[str, Node]) -> None:
        self._rules = {name: _flatten(node) for name, node in rules.items()}
        self._regexes = self._regular()
        self._names = {name: f"r{index}" for index, name in enumerate(rules)}

    # --- what is regular

    def _regular(self) -> dict[str, str]:
        """Regular expressions of the rules that have one: those whose rules have one, or that recur only at
        their own end (`x = a | b x` is `b* a`)."""
        found: dict[str, str] = {}
        waiting = dict(self._rules)
        progress = True
        while progress:
            progress = False
            for name, node in list(waiting.items()):
                regex = self._regex(node, found)
                if regex is None:
                    regex = self._tail_recursive(name, node, found)
                if regex is not None:
                    if len(regex) > _MAX_REGEX:
                        raise NotConvertible(f"the rule {name} is too large")
                    found[name] = regex
                    del waiting[name]
                    progress = True
        return found

    def _tail_recursive(self, name: str, node: Node, found: dict[str, str]) -> str | None:
        again: list[str] = []
        ends: list[str] = []
        for option in node.options if isinstance(node, Alt) else (node,):
            parts = option.parts if isinstance(option, Seq) else (option,)
            recurs = bool(parts) and parts[-1] == Ref(name)
            regex = self._regex(Seq(parts[:-1]) if recurs else option, found)
            if regex is None or (recurs and len(parts) == 1):
                return None
            (again if recurs else ends).append(regex)
        if not ends:
            return None
        loop = f"({'|'.join(again)})*" if again else ""
        return f"{loop}({'|'.join(ends)})"

    def _regex(self, node: Node, found: dict[str, str]) -> str | None:
        if isinstance(node, Literal):
            return "".join(map(_char, node.text))
        if isinstance(node, Chars):
            return _class(node)
        if isinstance(node, Token):
            raise NotConvertible(f"the grammar names the token {node.spelling}")
        if isinstance(node, Ref):
            regex = found.get(node.name)
            return None if regex is None else f"({regex})"
        if isinstance(node, Repeat):
            inner = self._regex(node.node, found)
            return None if inner is None else f"({inner}){_count(node)}"
        parts = node.parts if isinstance(node, Seq) else node.options
        regexes = []
        for part in parts:
            regex = self._regex(part, found)
            if regex is None:
                return None
            regexes.append(regex)
        if isinstance(node, Seq):
            return "".join(regexes)
        return f"({'|'.join(regexes)})"

    # --- the rest

    def text(self) -> str:
        lines = [f"start: {self._use(Ref('root'))}"]
        done: set[str] = set()
        todo = ["root"]
        while todo:
            name = todo.pop()
            if name in done or name in self._regexes:
                continue
            done.add(name)
            node = self._rules[name]
            lines.append(f"{self._names[name]}: {self._rule(node)}")
            todo.extend(sorted(refs(node)))
        return "\n".join(lines) + "\n"

    def _rule(self, node: Node) -> str:
        """The right side of a rule, in Lark."""
        regex = self._regex(node, self._regexes)
        if regex is not None:
            return _terminal(regex)
        if isinstance(node, Alt):
            return " | ".join(self._rule(option) for option in node.options)
        return self._use(node)

    def _use(self, node: Node) -> str:
        regex = self._regex(node, self._regexes)
        if regex is not None:
            return _terminal(regex)
        if isinstance(node, Ref):
            return self._names[node.name]
        if isinstance(node, Repeat):
            most = "" if node.most is None else str(node.most)
            inner = f"({self._use(node.node)})"
            if (node.least, node.most) == (0, 1):
                return inner + "?"
            return f"{inner}{{{node.least},{most}}}"
        if isinstance(node, Alt):
            return f"({' | '.join(self._use(option) for option in node.options)})"
        if not isinstance(node, Seq):
            raise NotConvertible(f"{node} has no place in a rule")
        # Neighbours that are regular are one lexeme: cut apart, a greedy one could take what the next needs.
        pieces: list[str] = []
        run: list[Node] = []
        for part in (*node.parts, None):
            if part is not None and self._regex(part, self._regexes) is not None:
                run.append(part)
                continue
            if run:
                pieces.append(_terminal(self._regex(Seq(tuple(run)), self._regexes) or ""))
                run = []
            if part is not None:
                pieces.append(self._use(part))
        return " ".join(pieces)


def _flatten(node: Node) -> Node:
    """Sequences without sequences inside, so that regular neighbours meet."""
    if isinstance(node, Seq):
        parts: list[Node] = []
        for part in map(_flatten, node.parts):
            parts.extend(part.parts if isinstance(part, Seq) else (part,))
        return Seq(tuple(parts)) if len(parts) != 1 else parts[0]
    if isinstance(node, Alt):
        return Alt(tuple(map(_flatten, node.options)))
    if isinstance(node, Repeat):
        return Repeat(_flatten(node.node), node.least, node.most)
    return node


def _terminal(regex: str) -> str:
    return f"/{regex}/" if regex else '""'


def _char(char: str) -> str:
    code = ord(char)
    if char.isalnum() and char.isascii():
        return char
    if code < 0x80:
        return f"\\x{code:02x}"
    return f"\\u{{{code:x}}}"


def _class(node: Chars) -> str:
    if not node.ranges:
        return "(?s:.)" if node.negated else "[^\\x00-\\u{10ffff}]"
    ranges = "".join(
        _char(chr(first)) if first == last else f"{_char(chr(first))}-{_char(chr(last))}"
        for first, last in node.ranges
    )
    return f"[{'^' if node.negated else ''}{ranges}]"


def _count(node: Repeat) -> str:
    if node.most is None:
        return {0: "*", 1: "+"}.get(node.least, f"{{{node.least},}}")
    return "?" if (node.least, node.most) == (0, 1) else f"{{{node.least},{node.most}}}"
