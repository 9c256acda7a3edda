"""GBNF read by ourselves: checked before llama.cpp sees it, and understood for llguidance.

llama.cpp reads a grammar by recursive descent in C++ and trusts its size, so what reaches it is bounded
here first: a text that is no grammar, or one nested or repeated without measure, is a `ValueError`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

__all__ = [
    "Alt",
    "Chars",
    "Literal",
    "Node",
    "Ref",
    "Repeat",
    "Seq",
    "Token",
    "parse_gbnf",
    "token_literals",
]

# Far above what any real grammar has, far below what hurts: llama.cpp's parser takes some hundred bytes
# of stack a level, and its own limit on repetitions is 2000.
_MAX_BYTES = 4_000_000
_MAX_DEPTH = 100
_MAX_RULES = 20_000
_MAX_REPEAT = 2000
_MAX_ELEMENTS = 400_000


@dataclass(frozen=True, slots=True)
class Literal:
    text: str


@dataclass(frozen=True, slots=True)
class Chars:
    """A class: code-point ranges, both ends included."""

    ranges: tuple[tuple[int, int], ...]
    negated: bool = False


@dataclass(frozen=True, slots=True)
class Token:
    """`<[id]>` or `<text>`, or their negation."""

    spelling: str
    negated: bool = False


@dataclass(frozen=True, slots=True)
class Ref:
    name: str


@dataclass(frozen=True, slots=True)
class Repeat:
    node: Node
    least: int
    most: int | None


@dataclass(frozen=True, slots=True)
class Seq:
    parts: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Alt:
    options: tuple[Node, ...]


Node = Literal | Chars | Token | Ref | Repeat | Seq | Alt

_WORD = re.compile(r"[A-Za-z0-9-]+")
_SPACE = re.compile(r"(?:[ \t]|#[^\r\n]*)*")
_SPACE_LINES = re.compile(r"(?:[ \t\r\n]|#[^\r\n]*)*")
_ESCAPES = {"t": "\t", "r": "\r", "n": "\n", "\\": "\\", '"': '"', "[": "[", "]": "]", "-": "-"}
_HEX = {"x": 2, "u": 4, "U": 8}
_INT = re.compile(r"[0-9]+")


def parse_gbnf(text: str) -> dict[str, Node]:
    """Rules by name. `ValueError` says where and why the text is no usable grammar."""
    if len(text) > _MAX_BYTES:
        raise ValueError(f"The grammar is {len(text)} characters long; at most {_MAX_BYTES} are taken.")
    if "\0" in text:
        raise ValueError("The grammar holds a NUL character.")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"The grammar holds a lone surrogate at character {error.start}.") from None
    return _Parser(text).rules()


def refs(node: Node) -> set[str]:
    """Names of the rules a node uses directly."""
    found: set[str] = set()
    todo = [node]
    while todo:
        node = todo.pop()
        if isinstance(node, Ref):
            found.add(node.name)
        elif isinstance(node, Repeat):
            todo.append(node.node)
        elif isinstance(node, Seq):
            todo.extend(node.parts)
        elif isinstance(node, Alt):
            todo.extend(node.options)
    return found


def token_literals(rules: dict[str, Node]) -> set[str]:
    """Spellings of the tokens (`<...>`) a grammar names."""
    found: set[str] = set()
    todo = list(rules.values())
    while todo:
        node = todo.pop()
        if isinstance(node, Token):
            found.add(node.spelling)
        elif isinstance(node, Repeat):
            todo.append(node.node)
        elif isinstance(node, Seq):
            todo.extend(node.parts)
        elif isinstance(node, Alt):
            todo.extend(node.options)
    return found


@dataclass(slots=True)
class _Parser:
    text: str
    at: int = 0
    depth: int = 0
    elements: int = 0
    refs: dict[str, int] = field(default_factory=dict)

    def fail(self, why: str, at: int | None = None) -> ValueError:
        at = self.at if at is None else at
        line = self.text.count("\n", 0, at) + 1
        column = at - (self.text.rfind("\n", 0, at) + 1) + 1
        return ValueError(f"The grammar cannot be used: {why} at line {line}, column {column}.")

    def peek(self) -> str:
        return self.text[self.at : self.at + 1]

    def space(self, *, lines: bool) -> None:
        match = (_SPACE_LINES if lines else _SPACE).match(self.text, self.at)
        if match:
            self.at = match.end()

    def rules(self) -> dict[str, Node]:
        found: dict[str, Node] = {}
        self.space(lines=True)
        while self.at < len(self.text):
            name = self.name()
            self.space(lines=False)
            if not self.text.startswith("::=", self.at):
                raise self.fail(f'"::=" is missing after the rule name {name!r}')
            self.at += 3
            self.space(lines=True)
            found[name] = self.alternatives(nested=False)
            if len(found) > _MAX_RULES:
                raise self.fail(f"there are more than {_MAX_RULES} rules")
            if self.at < len(self.text) and self.peek() not in "\r\n":
                raise self.fail(f"{self.peek()!r} is not expected")
            self.space(lines=True)
        if "root" not in found:
            raise ValueError('The grammar cannot be used: it has no rule "root".')
        for name, at in self.refs.items():
            if name not in found:
                raise self.fail(f"the rule {name!r} is used but not defined", at)
        return found

    def name(self) -> str:
        match = _WORD.match(self.text, self.at)
        if not match:
            raise self.fail(f"a rule name (letters, digits, -) is expected, not {self.peek()!r}")
        self.at = match.end()
        return match.group()

    def alternatives(self, *, nested: bool) -> Node:
        options = [self.sequence(nested=nested)]
        while self.peek() == "|":
            self.at += 1
            self.space(lines=True)
            options.append(self.sequence(nested=nested))
        return options[0] if len(options) == 1 else Alt(tuple(options))

    def sequence(self, *, nested: bool) -> Node:
        parts: list[Node] = []
        while True:
            char = self.peek()
            if char == '"':
                parts.append(self.literal())
            elif char == "[":
                parts.append(self.char_class())
            elif char in ("<", "!") and char:
                parts.append(self.token())
            elif char == "(":
                parts.append(self.group())
            elif char == ".":
                self.at += 1
                parts.append(Chars((), negated=True))
            elif char and char in "*+?{":
                if not parts:
                    raise self.fail(f"there is nothing before {char!r} to repeat")
                parts[-1] = self.repeat(parts[-1])
            elif char and _WORD.match(char):
                at = self.at
                name = self.name()
                self.refs.setdefault(name, at)
                parts.append(Ref(name))
            else:
                break
            self.elements += 1
            if self.elements > _MAX_ELEMENTS:
                raise self.fail(f"there are more than {_MAX_ELEMENTS} elements")
            self.space(lines=nested)
        return parts[0] if len(parts) == 1 else Seq(tuple(parts))

    def char(self) -> str:
        char = self.peek()
        if not char:
            raise self.fail("the text ends inside a string or class")
        self.at += 1
        if char != "\\":
            return char
        kind = self.peek()
        self.at += 1
        if kind in _ESCAPES and kind:
            return _ESCAPES[kind]
        width = _HEX.get(kind)
        digits = self.text[self.at : self.at + width] if width else ""
        if not width or len(digits) != width or not re.fullmatch(r"[0-9A-Fa-f]+", digits):
            raise self.fail(f"the escape \\{kind} is unknown or incomplete", self.at - 2)
        self.at += width
        value = int(digits, 16)
        if value > 0x10FFFF or 0xD800 <= value <= 0xDFFF:
            raise self.fail(f"\\{kind}{digits} is no character", self.at - width - 2)
        return chr(value)

    def literal(self) -> Node:
        self.at += 1
        chars = []
        while self.peek() != '"':
            chars.append(self.char())
        self.at += 1
        self.elements += len(chars)
        return Literal("".join(chars))

    def char_class(self) -> Node:
        self.at += 1
        negated = self.peek() == "^"
        self.at += negated
        ranges = []
        while self.peek() != "]":
            first = last = ord(self.char())
            if self.peek() == "-" and self.text[self.at + 1 : self.at + 2] not in ("]", ""):
                self.at += 1
                last = ord(self.char())
            if last < first:
                raise self.fail(f"the range {chr(first)!r}-{chr(last)!r} runs backwards")
            ranges.append((first, last))
        self.at += 1
        if not ranges and not negated:
            raise self.fail("an empty class matches nothing")
        return Chars(tuple(ranges), negated)

    def token(self) -> Node:
        negated = self.peek() == "!"
        self.at += negated
        end = self.text.find(">", self.at)
        if self.peek() != "<" or end < 0 or "\n" in self.text[self.at : end]:
            raise self.fail("a token is written <text> or <[id]>")
        spelling = self.text[self.at : end + 1]
        self.at = end + 1
        return Token(spelling, negated)

    def group(self) -> Node:
        self.depth += 1
        if self.depth > _MAX_DEPTH:
            raise self.fail(f"groups are nested more than {_MAX_DEPTH} deep")
        self.at += 1
        self.space(lines=True)
        node = self.alternatives(nested=True)
        if self.peek() != ")":
            raise self.fail('")" is missing')
        self.at += 1
        self.depth -= 1
        return node

    def repeat(self, node: Node) -> Node:
        char = self.peek()
        self.at += 1
        if char != "{":
            return Repeat(node, int(char == "+"), 1 if char == "?" else None)
        self.space(lines=False)
        least = self.number()
        most: int | None = least
        self.space(lines=False)
        if self.peek() == ",":
            self.at += 1
            self.space(lines=False)
            most = self.number() if self.peek().isdigit() else None
            self.space(lines=False)
        if self.peek() != "}":
            raise self.fail('"}" is missing')
        self.at += 1
        # llama.cpp writes a repetition out, and quietly takes a larger upper bound for none.
        if max(least, most or 0) > _MAX_REPEAT:
            raise self.fail(f"a repetition of more than {_MAX_REPEAT} is not taken")
        if most is not None and most < least:
            raise self.fail(f"the repetition {{{least},{most}}} runs backwards")
        self.elements += max(least, most or 0) * _size(node)
        if self.elements > _MAX_ELEMENTS:
            raise self.fail(f"repetitions come to more than {_MAX_ELEMENTS} elements")
        return Repeat(node, least, most)

    def number(self) -> int:
        match = _INT.match(self.text, self.at)
        if not match or len(match.group()) > 9:
            raise self.fail("a repetition needs a number")
        self.at = match.end()
        return int(match.group())


def _size(node: Node) -> int:
    """Elements of a node, written out."""
    if isinstance(node, Literal):
        return max(1, len(node.text))
    if isinstance(node, Repeat):
        return max(1, node.least, node.most or 0) * _size(node.node)
    if isinstance(node, Seq):
        return sum(map(_size, node.parts))
    if isinstance(node, Alt):
        return sum(map(_size, node.options))
    return 1
