"""Chat templates, rendered so that every character's owner is known.

A template's output mixes its own text with the messages' text, and only its own may become a control
token. So the template's literals are strings that know they are the template's (`Owned`), through
concatenation, slicing, stripping and joining; whatever an operation does not carry over counts as the
messages'. A gap in the bookkeeping can thus cost a control token, but never forge one. The messages
themselves stay plain strings: a template that trims, splits, measures or searches them sees what it
would see anywhere else.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import count
from typing import Any, NoReturn, Self, SupportsIndex

from jinja2 import TemplateError, nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.ext import Extension, loopcontrols
from jinja2.filters import FILTERS, do_indent
from jinja2.nodes import EvalContext
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment, SandboxedFormatter
from jinja2.utils import pass_eval_context

from agentkit_fast._unicode import repair_text
from agentkit_fast.errors import RunnerError

__all__ = ["ChatTemplate", "Owned", "Spans"]

Spans = tuple[tuple[int, int], ...]
"""Ascending, disjoint, non-touching character ranges that the template owns."""


class Owned(str):
    """A string some ranges of which are the template's own. Made from a plain string it owns nothing."""

    __slots__ = ("spans",)
    spans: Spans

    def __new__(cls, text: object = "", spans: Spans = ()) -> Self:
        made = super().__new__(cls, text)
        made.spans = spans
        return made

    @classmethod
    def whole(cls, text: str) -> Owned:
        """`text`, all of it the template's."""
        return cls(text, ((0, len(text)),) if text else ())

    def __str__(self) -> str:
        return self

    def __add__(self, other: str, /) -> Owned:
        return concat((self, other)) if isinstance(other, str) else NotImplemented

    def __radd__(self, other: str, /) -> Owned:
        return concat((other, self)) if isinstance(other, str) else NotImplemented

    def __mul__(self, times: SupportsIndex, /) -> Owned:
        return concat([self] * times.__index__())

    __rmul__ = __mul__

    def __iter__(self) -> Iterator[Owned]:
        return (self[index] for index in range(len(self)))

    def __mod__(self, values: Any, /) -> str:
        specs = list(_PERCENT.finditer(self))
        given = iter(values if isinstance(values, tuple) else (values,))
        formatted = str.__mod__(self, values)
        if isinstance(values, Mapping) or any("*" in spec.group() or "(" in spec.group() for spec in specs):
            return formatted
        pieces: list[str] = []
        at = 0
        for spec in specs:
            pieces.append(self[at : spec.start()])
            at = spec.end()
            if spec.group() == "%%":
                pieces.append(self[at - 1 : at])
            elif spec.group() == "%s":
                pieces.append(str(next(given)))
            else:
                pieces.append(str.__mod__(spec.group(), (next(given),)))
        return concat([*pieces, self[at:]])

    def __getitem__(self, key: SupportsIndex | slice[Any, Any, Any], /) -> Owned:
        text = str.__getitem__(self, key)
        if isinstance(key, slice):
            start, stop, step = key.indices(len(self))
            if step != 1:
                return Owned(text)
        else:
            start = key.__index__()
            start += len(self) if start < 0 else 0
            stop = start + 1
        cut = tuple(
            (max(a, start) - start, min(b, stop) - start) for a, b in self.spans if a < stop and b > start
        )
        return Owned(text, cut)

    def strip(self, chars: str | None = None, /) -> Owned:
        return self.lstrip(chars).rstrip(chars)

    def lstrip(self, chars: str | None = None, /) -> Owned:
        return self[len(self) - len(str.lstrip(self, chars)) :]

    def rstrip(self, chars: str | None = None, /) -> Owned:
        return self[: len(str.rstrip(self, chars))]

    def _same_length(self, text: str) -> Owned:
        return Owned(text, self.spans if len(text) == len(self) else ())

    def upper(self) -> Owned:
        return self._same_length(str.upper(self))

    def lower(self) -> Owned:
        return self._same_length(str.lower(self))

    def title(self) -> Owned:
        return self._same_length(str.title(self))

    def capitalize(self) -> Owned:
        return self._same_length(str.capitalize(self))

    # What cuts a string up gives parts of it, each with its owner.

    def removeprefix(self, prefix: str, /) -> Owned:
        return self[len(prefix) :] if self.startswith(prefix) else self

    def removesuffix(self, suffix: str, /) -> Owned:
        return self[: len(self) - len(suffix)] if suffix and self.endswith(suffix) else self

    def partition(self, sep: str, /) -> tuple[Owned, Owned, Owned]:
        before, found, _ = str.partition(self, sep)
        start, stop = len(before), len(before) + len(found)
        return self[:start], self[start:stop], self[stop:]

    def rpartition(self, sep: str, /) -> tuple[Owned, Owned, Owned]:
        before, found, _ = str.rpartition(self, sep)
        start, stop = len(before), len(before) + len(found)
        return self[:start], self[start:stop], self[stop:]

    def split(self, sep: str | None = None, maxsplit: SupportsIndex = -1) -> list[str]:
        return self._pieces(str.split(self, sep, maxsplit), sep)

    def rsplit(self, sep: str | None = None, maxsplit: SupportsIndex = -1) -> list[str]:
        return self._pieces(str.rsplit(self, sep, maxsplit), sep)

    def splitlines(self, keepends: bool = False) -> list[str]:
        lines = self._pieces(str.splitlines(self, keepends=True), "")
        return lines if keepends else [line[: len(str.splitlines(line)[0])] for line in lines]

    def _pieces(self, texts: list[str], sep: str | None) -> list[str]:
        pieces: list[str] = []
        at = 0
        for text in texts:
            if sep is None:  # only blanks lie between, and a piece does not begin with one
                at = self.index(text, at)
            pieces.append(self[at : at + len(text)])
            at += len(text) + len(sep or "")
        return pieces

    def replace(self, old: str, new: str, count: SupportsIndex = -1, /) -> Owned:
        if not old:
            return Owned(str.replace(self, old, new, count))
        left = count.__index__()
        pieces: list[str] = []
        at = 0
        while left and (place := self.find(old, at)) >= 0:
            stop = place + len(old)
            # What stands in for text of the messages is theirs: they chose that it is there.
            own = any(a <= place and stop <= b for a, b in self.spans)
            pieces += (self[at:place], new if own else _plain(new))
            at = stop
            left -= 1
        return concat([*pieces, self[at:]])

    def join(self, pieces: Iterable[str], /) -> Owned:
        found: list[str] = []
        for piece in pieces:
            if found:
                found.append(self)
            found.append(piece)
        return concat(found)


def concat(pieces: Iterable[str]) -> Owned:
    """The pieces in one string, each owner kept."""
    texts: list[str] = []
    spans: list[tuple[int, int]] = []
    at = 0
    for piece in pieces:
        texts.append(piece)
        if type(piece) is Owned:
            for a, b in piece.spans:
                if spans and spans[-1][1] == at + a:
                    spans[-1] = (spans[-1][0], at + b)
                else:
                    spans.append((at + a, at + b))
        at += len(piece)
    return Owned("".join(texts), tuple(spans))


# A placeholder of `%` formatting.
_PERCENT = re.compile(r"%(?:\([^)]*\))?[-#0 +]*(?:\d+|\*)?(?:\.(?:\d+|\*))?[hlL]?(.)", re.DOTALL)


def _plain(text: str) -> str:
    """`text` without owners."""
    return str.__getitem__(text, slice(None))


def _written(value: Any) -> str:
    """Source of a constant, which Jinja may have put together from a list or dict of literals."""
    if isinstance(value, str):
        return f"environment.own({_plain(value)!r})"
    if type(value) is list:
        return f"[{', '.join(map(_written, value))}]"
    if type(value) is tuple:
        return f"({''.join(_written(item) + ', ' for item in value)})"
    if type(value) is dict:
        return f"{{{', '.join(f'{_written(key)}: {_written(item)}' for key, item in value.items())}}}"
    return repr(value)


class _OwningGenerator(CodeGenerator):
    """Writes string literals as `Owned` values; all else as Jinja does."""

    def _output_const_repr(self, group: Iterable[Any]) -> str:
        return f"environment.own({''.join(group)!r})"

    def visit_Const(self, node: nodes.Const, frame: Frame) -> None:  # noqa: N802 - Jinja's name
        self.write(_written(node.as_const(frame.eval_ctx)))

    def visit_TemplateData(self, node: nodes.TemplateData, frame: Frame) -> None:  # noqa: N802
        self.write(f"environment.own({node.data!r})")

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:  # noqa: N802
        self.write("environment.concat(map(str, (")
        for part in node.nodes:
            self.visit(part, frame)
            self.write(", ")
        self.write(")))")


class _Generation(Extension):
    """`{% generation %}…{% endgeneration %}` marks assistant text for training; here its body as it is."""

    tags = {"generation"}  # noqa: RUF012 - Jinja's own declaration

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Environment(ImmutableSandboxedEnvironment):
    code_generator_class = _OwningGenerator
    concat = staticmethod(concat)

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _Generation])
        self._own: dict[str, Owned] = {}

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        wrapped = super().wrap_str_format(value)
        pattern = getattr(value, "__self__", None)
        if wrapped is None or type(pattern) is not Owned or value.__name__ != "format":
            return wrapped
        formatter = SandboxedFormatter(self)

        def formatted(*args: Any, **kwargs: Any) -> str:
            whole = wrapped(*args, **kwargs)
            pieces: list[str] = []
            numbers = count()
            for literal, field, spec, conversion in formatter.parse(pattern):
                pieces.append(Owned.whole(literal))
                if field is None:
                    continue
                name = str(next(numbers)) + field if not field or field[0] in ".[" else field
                got, _ = formatter.get_field(name, args, kwargs)
                if isinstance(got, str) and not spec and not conversion:
                    pieces.append(got)
                else:
                    shown = f"{name}!{conversion}" if conversion else name
                    pieces.append(formatter.vformat(f"{{{shown}:{spec}}}", args, kwargs))
            made = concat(pieces)
            # A pattern that is not all the template's, or one in which fields hold fields: no owner is sure.
            return made if made == whole and pattern.spans == ((0, len(pattern)),) else Owned(whole)

        return formatted

    def own(self, text: str) -> Owned:
        found = self._own.get(text)
        if found is None:
            found = self._own[text] = Owned.whole(text)
        return found


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: Any = None,
    sort_keys: bool = False,
) -> str:
    # Hugging Face's `tojson`: no HTML escapes, text as it is.
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _indent(text: str, width: int | str = 4, first: bool = False, blank: bool = False) -> str:
    if not isinstance(text, Owned):
        return do_indent(text, width, first, blank)
    by = width if isinstance(width, str) else " " * width
    lines: list[str] = (text + "\n").splitlines()
    rest = [by + line if line or blank else line for line in lines[1:]]
    return Owned.whole("\n").join([by + lines[0] if first else lines[0], *rest])


@pass_eval_context
def _join(context: EvalContext, value: Any, d: str = "", attribute: str | int | None = None) -> str:
    if attribute is not None:
        return str(FILTERS["join"](context, value, d, attribute))
    return Owned.join(d if isinstance(d, Owned) else Owned(d), (str(piece) for piece in value))


class _Refusal(TemplateError):
    """The template's own `raise_exception`."""


def _raise_exception(message: object) -> NoReturn:
    raise _Refusal(repair_text(_plain(str(message))))


class ChatTemplate:
    """A Jinja chat template in a sandbox, with what templates in the wild call.

    `bos_token` and `eos_token` are the spellings those names stand for. `now` gives the time for
    `strftime_now`. A template that cannot be compiled raises `RunnerError`.
    """

    def __init__(
        self,
        source: str,
        *,
        bos_token: str = "",
        eos_token: str = "",
        now: Callable[[], datetime] | None = None,
    ) -> None:
        if not isinstance(source, str):
            raise TypeError(
                f"A chat template is Jinja text, not {type(source).__name__}. Where the model's file holds none, "
                "pass one with chat_template=."
            )
        self.source = source
        clock = now or datetime.now
        self._environment = _Environment()
        self._environment.filters["tojson"] = _to_json
        self._environment.filters["join"] = _join
        self._environment.filters["indent"] = _indent
        self._environment.globals["raise_exception"] = _raise_exception
        self._environment.globals["strftime_now"] = lambda pattern: clock().strftime(pattern)
        self._tokens = {"bos_token": Owned.whole(bos_token), "eos_token": Owned.whole(eos_token)}
        try:
            self._template = self._environment.from_string(source)
        except (TemplateError, RecursionError, SyntaxError, ValueError) as error:
            raise RunnerError(
                f"The chat template cannot be compiled: {error}. Pass another with chat_template=."
            ) from error

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] = (),
        variables: Mapping[str, Any] | None = None,
    ) -> Owned:
        """The prompt's text and who owns it. What the template raises comes out as `RunnerError`."""
        given = dict(self._tokens)
        given.update(variables or {})
        try:
            rendered = self._template.render(
                messages=messages,
                add_generation_prompt=add_generation_prompt,
                tools=list(tools) or None,
                **given,
            )
        except _Refusal as refusal:
            raise RunnerError(
                f"The chat template refused these messages: {refusal}", body=str(refusal)
            ) from refusal
        except Exception as error:
            raise RunnerError(
                f"The chat template failed ({type(error).__name__}): {error}", body=str(error)
            ) from error
        return _repaired(rendered if isinstance(rendered, Owned) else Owned(rendered))


_SURROGATES = re.compile("[\ud800-\udbff][\udc00-\udfff]|[\ud800-\udfff]")


def _repaired(text: Owned) -> Owned:
    """Without surrogates, which a template can write or bring out of a call's JSON arguments."""
    if repair_text(text) is text:
        return text
    pieces: list[str] = []
    at = 0
    for found in _SURROGATES.finditer(text):
        pieces += (text[at : found.start()], repair_text(found.group()))
        at = found.end()
    return concat([*pieces, text[at:]])


def owned_runs(text: Owned) -> Iterator[tuple[int, str]]:
    """Each range the template owns: where it starts and its text."""
    for start, stop in text.spans:
        yield start, str.__getitem__(text, slice(start, stop))
