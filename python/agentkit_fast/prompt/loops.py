"""A template's loops over the messages, prepared so that they can be taken up where they were left.

A conversation grows at its end, and a template's loop says of every earlier message what it said the
last time. So each outermost loop is changed, in the template's syntax tree, to take its items through a
filter of ours (`prompt/resume.py`), which watches what the body looks at and skips what cannot have
changed. What the body says is not touched, and a loop whose syntax leaves doubt is left as it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from jinja2 import nodes

__all__ = ["COMPARE", "ENTER", "RECORDER", "Loop", "prepare"]

# Two filters and a variable, by names that no template has for its own.
ENTER = "enter loop"
COMPARE = "compare index"
RECORDER = "recorder of loops"

_HIDDEN = "_agentkit_loop"

_UNKNOWN = (
    nodes.Block,
    nodes.Extends,
    nodes.Include,
    nodes.Import,
    nodes.FromImport,
    nodes.EvalContextModifier,
    nodes.ScopedEvalContextModifier,
)
_INDICES = ("index", "index0")
_OPERATORS = frozenset({"eq", "ne", "gt", "gteq", "lt", "lteq"})
_MIRRORED = {"gt": "lt", "gteq": "lteq", "lt": "gt", "lteq": "gteq"}


class Loop(NamedTuple):
    """An outermost loop: the outer names its body may read, those it only compares with the loop's index,
    and the macros it may call."""

    names: tuple[str, ...]
    compared: tuple[str, ...]
    macros: frozenset[str]


def prepare(tree: nodes.Template) -> list[Loop]:
    """Change the outermost loops of `tree`; what the filter `ENTER` has to know of each, by number."""
    if any(tree.find_all(_UNKNOWN)) or _cannot_be_watched(tree):
        return []
    macros: dict[str, list[nodes.Macro]] = {}
    for macro in tree.find_all(nodes.Macro):
        macros.setdefault(macro.name, []).append(macro)
    loops: list[Loop] = []
    for node in list(_outermost(tree.body)):
        _stop_when_done(node)
        loop = _changed(node, macros, len(loops))
        if loop is not None:
            loops.append(loop)
    if tree.environment is not None:
        tree.set_environment(tree.environment)
    return loops


def _cannot_be_watched(tree: nodes.Template) -> bool:
    """A filter that draws lots. (Functions that do, and the clock, are values a loop reads, and found there.)"""
    return (
        any(node.name == "random" for node in tree.find_all(nodes.Filter))
        or any(const.value == "random" for const in tree.find_all(nodes.Const))
        or any(name.name.startswith(_HIDDEN) for name in tree.find_all(nodes.Name))
    )


def _outermost(body: list[nodes.Node]) -> Iterator[nodes.For]:
    """Loops whose output goes straight to the prompt: not in a macro, a set block, another loop."""
    for node in body:
        if isinstance(node, nodes.For):
            yield node
        elif isinstance(node, nodes.If):
            yield from _outermost(node.body)
            yield from _outermost(list(node.elif_))
            yield from _outermost(node.else_)


def _names(node: nodes.Node) -> set[str]:
    read = {name.name for name in node.find_all(nodes.Name) if name.ctx == "load"}
    return read | {ref.name for ref in node.find_all(nodes.NSRef)}


def _changed(node: nodes.For, macros: dict[str, list[nodes.Macro]], number: int) -> Loop | None:
    body = nodes.Scope(node.body)
    nested = list(body.find_all(nodes.For))
    names = _names(body)
    called: set[str] = set()
    reached: set[str] = set()
    while more := [name for name in names | reached if name in macros and name not in called]:
        for name in more:
            called.add(name)
            for macro in macros[name]:
                reached |= _names(macro)
    if (
        node.recursive
        or node.test is not None
        or any(name.name == "loop" and name.ctx != "load" for name in body.find_all(nodes.Name))
        or any(loop.recursive or (loop.test is not None and "loop" in _names(loop.test)) for loop in nested)
    ):
        return None
    variable = f"{_HIDDEN}{number}"
    loads: dict[str, int] = {}
    for read in body.find_all(nodes.Name):
        if read.ctx == "load":
            loads[read.name] = loads.get(read.name, 0) + 1
    renamer = _Renamer(variable)
    renamer.walk(node)
    # Where the index's comparisons are all that is done with a name, only their outcome counts.
    compared = {name for name, times in renamer.compared.items() if times == loads[name]} - reached
    line = node.lineno
    node.target = nodes.Tuple(
        [node.target, nodes.Name(variable, "store", lineno=line)], "store", lineno=line
    )
    groups = (tuple(sorted((names | reached) - compared - {"loop"})), tuple(sorted(compared)))
    arguments: list[nodes.Expr] = [nodes.Const(number, lineno=line)]
    for group in groups:
        outer: list[nodes.Expr] = [nodes.Name(name, "load", lineno=line) for name in group]
        arguments.append(nodes.List(outer, lineno=line))
    node.iter = nodes.Filter(node.iter, ENTER, arguments, [], None, None, lineno=line)
    return Loop(*groups, frozenset(called))


class _Renamer:
    """`loop` becomes `variable`, and its index's comparisons go through the filter `COMPARE`."""

    def __init__(self, variable: str) -> None:
        self.variable = variable
        self.compared: dict[str, int] = {}

    def walk(self, node: nodes.Node) -> None:
        skipped = ("target", "iter", "else_") if isinstance(node, nodes.For) else ()
        self._fields(node, skipped)

    def _fields(self, node: nodes.Node, skipped: tuple[str, ...]) -> None:
        for field, value in node.iter_fields(exclude=skipped):
            if isinstance(value, nodes.Node):
                setattr(node, field, self._one(value))
            elif isinstance(value, list):
                value[:] = [self._one(item) if isinstance(item, nodes.Node) else item for item in value]

    def _one(self, node: nodes.Node) -> nodes.Node:
        if isinstance(node, nodes.Name):
            return self._name(node)
        if isinstance(node, nodes.Compare) and (changed := self._comparison(node)) is not None:
            return changed
        # A loop inside has a `loop` of its own.
        self._fields(node, ("body",) if isinstance(node, nodes.For) else ())
        return node

    def _name(self, node: nodes.Name) -> nodes.Name:
        return nodes.Name(self.variable, "load", lineno=node.lineno) if node.name == "loop" else node

    def _comparison(self, node: nodes.Compare) -> nodes.Node | None:
        if len(node.ops) != 1 or node.ops[0].op not in _OPERATORS:
            return None
        operator, left, right = node.ops[0].op, node.expr, node.ops[0].expr
        mirrored = _index(right)
        if mirrored:
            operator, left, right = _MIRRORED.get(operator, operator), right, left
        which = _index(left)
        if which is None:
            return None
        attribute: str | None = None
        if isinstance(right, nodes.Getattr) and isinstance(right.node, nodes.Name):
            attribute, right = right.attr, right.node
        if not isinstance(right, nodes.Name) or right.name == "loop":
            return None
        if attribute is None:
            self.compared[right.name] = self.compared.get(right.name, 0) + 1
        line = node.lineno
        pattern = nodes.Const((which, operator, right.name, attribute), lineno=line)
        loop = nodes.Name(self.variable, "load", lineno=line)
        return nodes.Filter(loop, COMPARE, [pattern, right], [], None, None, lineno=line)


def _index(node: nodes.Node) -> str | None:
    if isinstance(node, nodes.Getattr) and isinstance(node.node, nodes.Name):
        return node.attr if node.node.name == "loop" and node.attr in _INDICES else None
    return None


# --- loops that look for one message


def _stop_when_done(node: nodes.For) -> None:
    """End a search that has found what it looked for.

    Qwen's templates walk the messages from the last to the first until a namespace's flag falls; all they
    do after that is to step on. The loop may end there when its body is nothing but tests of that flag
    and assignments that nothing sees.
    """
    walked: nodes.Node | None = node.iter
    if (isinstance(walked, nodes.Filter) and walked.name == "reverse") or (
        isinstance(walked, nodes.Getitem) and isinstance(walked.arg, nodes.Slice)
    ):
        walked = walked.node
    if walked is node.iter or not isinstance(walked, nodes.Name) or not isinstance(node.target, nodes.Name):
        return  # stepping on could fail
    flag: nodes.Getattr | None = None
    holder = ""
    stored = {name.name for name in node.find_all(nodes.Name) if name.ctx == "store"}
    for part in node.body:
        if isinstance(part, nodes.If) and not part.elif_ and not part.else_:
            test = part.test
            while isinstance(test, nodes.And):
                test = test.left
            if not isinstance(test, nodes.Getattr) or not isinstance(test.node, nodes.Name):
                return
            if test.node.name in stored or test.node.name == "loop":
                return
            if flag is not None and (flag.attr, flag.node) != (test.attr, test.node):
                return
            flag, holder = test, test.node.name
        elif isinstance(part, nodes.Assign) and isinstance(part.target, nodes.Name):
            if not _is_harmless(part.node, stored):
                return
        elif not isinstance(part, nodes.Output) or part.nodes:
            return
    if flag is None or node.else_ or node.recursive or any(node.find_all((nodes.Break, nodes.Continue))):
        return
    line = node.lineno
    again = nodes.Getattr(nodes.Name(holder, "load", lineno=line), flag.attr, "load", lineno=line)
    stop = nodes.If(nodes.Not(again, lineno=line), [nodes.Break(lineno=line)], [], [], lineno=line)
    node.body.append(stop)


def _is_harmless(node: nodes.Node, stored: set[str]) -> bool:
    """Whether the value needs nothing that differs from one round to the next, but for the loop's index:
    what did not fail in the first round then never does."""
    if isinstance(node, (nodes.Add, nodes.Sub)):
        return _is_harmless(node.left, stored) and _is_harmless(node.right, stored)
    if isinstance(node, nodes.Filter):
        return (
            node.name in ("length", "count")
            and not (node.args or node.kwargs or node.dyn_args or node.dyn_kwargs)
            and isinstance(node.node, nodes.Name)
            and _is_harmless(node.node, stored)
        )
    if isinstance(node, nodes.Name):
        return node.name not in stored and node.name != "loop"
    return isinstance(node, nodes.Const) or _index(node) is not None
