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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn, Self, SupportsIndex

from jinja2 import TemplateError, nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.ext import Extension, loopcontrols
from jinja2.filters import FILTERS
from jinja2.nodes import EvalContext
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import pass_eval_context

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

    def __mod__(self, values: Any, /) -> str:
        parts = str.split(self, "%s")
        given = values if isinstance(values, tuple) else (values,)
        if len(parts) != len(given) + 1 or any("%" in part for part in parts):
            return str.__mod__(self, values)
        pieces: list[str] = []
        at = 0
        for index, part in enumerate(parts):
            pieces.append(self[at : at + len(part)])
            at += len(part) + 2
            if index < len(given):
                pieces.append(str(given[index]))
        return concat(pieces)

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


class _OwningGenerator(CodeGenerator):
    """Writes string literals as `Owned` values; all else as Jinja does."""

    def _output_const_repr(self, group: Iterable[Any]) -> str:
        return f"environment.own({''.join(group)!r})"

    def visit_Const(self, node: nodes.Const, frame: Frame) -> None:  # noqa: N802 - Jinja's name
        value = node.as_const(frame.eval_ctx)
        if isinstance(value, str):
            self.write(f"environment.own({value!r})")
        else:
            super().visit_Const(node, frame)

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

    def own(self, text: str) -> Owned:
        found = self._own.get(text)
        if found is None:
            found = self._own[text] = Owned.whole(text)
        return found


def _to_json(value: Any, indent: int | None = None, separators: Any = None, **more: Any) -> str:
    # Hugging Face's `tojson`: no HTML escapes, text as it is.
    return json.dumps(
        value,
        ensure_ascii=bool(more.get("ensure_ascii", False)),
        indent=indent,
        separators=separators,
        sort_keys=bool(more.get("sort_keys", False)),
    )


@pass_eval_context
def _join(context: EvalContext, value: Any, d: str = "", attribute: str | int | None = None) -> str:
    if attribute is not None:
        return str(FILTERS["join"](context, value, d, attribute))
    return Owned.join(d if isinstance(d, Owned) else Owned(d), (str(piece) for piece in value))


class _Refusal(TemplateError):
    """The template's own `raise_exception`."""


def _raise_exception(message: object) -> NoReturn:
    raise _Refusal(str(message))


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
        self.source = source
        clock = now or datetime.now
        self._environment = _Environment()
        self._environment.filters["tojson"] = _to_json
        self._environment.filters["join"] = _join
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
        return rendered if isinstance(rendered, Owned) else Owned(rendered)


def owned_runs(text: Owned) -> Iterator[tuple[int, str]]:
    """Each range the template owns: where it starts and its text."""
    for start, stop in text.spans:
        yield start, str.__getitem__(text, slice(start, stop))
