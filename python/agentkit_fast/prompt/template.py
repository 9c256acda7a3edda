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
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from itertools import count
from typing import Any, NoReturn

from jinja2 import Template, TemplateError, nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.ext import Extension, loopcontrols
from jinja2.filters import FILTERS, do_indent
from jinja2.nodes import EvalContext
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment, SandboxedFormatter
from jinja2.utils import pass_eval_context

from agentkit_fast._unicode import repair_text
from agentkit_fast.errors import RunnerError
from agentkit_fast.prompt.loops import COMPARE, ENTER, RECORDER, prepare
from agentkit_fast.prompt.owned import Owned, concat, plain
from agentkit_fast.prompt.resume import Recorder, Rendering, compare_index, enter_loop
from agentkit_fast.prompt.watched import Messages, Space

__all__ = ["ChatTemplate"]


def _written(value: Any) -> str:
    """Source of a constant, which Jinja may have put together from a list or dict of literals."""
    if isinstance(value, str):
        return f"environment.own({plain(value)!r})"
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
    raise _Refusal(repair_text(plain(str(message))))


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
        environment = self._environment = _Environment()
        environment.filters.update(tojson=_to_json, join=_join, indent=_indent)
        environment.filters[ENTER] = enter_loop
        environment.filters[COMPARE] = compare_index
        environment.globals["namespace"] = Space
        environment.globals["raise_exception"] = _raise_exception
        self._pure = frozenset(id(environment.globals[name]) for name in _PURE)
        environment.globals["strftime_now"] = lambda pattern: clock().strftime(pattern)
        self._tokens = {"bos_token": Owned.whole(bos_token), "eos_token": Owned.whole(eos_token)}
        try:
            tree = environment.parse(source)
            self._loops = prepare(tree)
            code = environment.compile(tree)
        except (TemplateError, RecursionError, SyntaxError, ValueError) as error:
            raise RunnerError(
                f"The chat template cannot be compiled: {error}. Pass another with chat_template=."
            ) from error
        self._template = Template.from_code(environment, code, environment.make_globals(None), None)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] = (),
        variables: Mapping[str, Any] | None = None,
        kept: Rendering | None = None,
        common: int = 0,
        count: int | None = None,
    ) -> Rendering:
        """The prompt's text and who owns it. What the template raises comes out as `RunnerError`.

        `count`: how many of `messages` are meant. With `kept`, an earlier rendering by this template whose
        first `common` messages are the same objects, what cannot have changed is taken from it; the outcome
        is the same.
        """
        count = len(messages) if count is None else count
        recorder = Recorder(self._loops, self._pure, kept, common, count)
        given: dict[str, Any] = dict(self._tokens)
        given.update(variables or {})
        given[RECORDER] = recorder
        try:
            context = self._template.new_context(
                dict(
                    messages=Messages(messages, 0, recorder, count),
                    add_generation_prompt=add_generation_prompt,
                    tools=tools or None,
                    **given,
                )
            )
            for piece in self._template.root_render_func(context):
                recorder.add(piece)
        except _Refusal as refusal:
            raise RunnerError(
                f"The chat template refused these messages: {refusal}", body=str(refusal)
            ) from refusal
        except Exception as error:
            raise RunnerError(
                f"The chat template failed ({type(error).__name__}): {error}", body=str(error)
            ) from error
        return recorder.finish()


# Functions that say the same whenever they are called.
_PURE = ("dict", "namespace", "raise_exception", "range")
