"""Checking a call's arguments before it runs, so that the model can correct itself.

`SchemaValidator` looks at what goes wrong most: a missing key, a value of the wrong kind. `JsonSchemaValidator`
holds the arguments to the whole schema, by the jsonschema-rs package. `validating` puts either before a
dispatcher.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from agentkit_fast._unicode import repair_text
from agentkit_fast.errors import ToolLoopError
from agentkit_fast.messages import ToolCall, ToolDef
from agentkit_fast.protocols import Validator

__all__ = ["JsonSchemaValidator", "SchemaValidator", "validating"]

_decode = msgspec.json.decode
# How many faults one answer lists, and how long one may be: a model corrects a handful at a time.
_MAX_FAULTS = 10
_MAX_FAULT_CHARS = 400


def _schemas(tools: Iterable[ToolDef | Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Parameter schemas by tool name, from `ToolDef` values or OpenAI's dicts."""
    found: dict[str, dict[str, Any]] = {}
    for item in tools:
        if isinstance(item, Mapping):
            function = item.get("function", item)
            found[str(function.get("name", ""))] = function.get("parameters") or {}
        else:
            found[item.name] = item.parameters or {}
    return found


def _object(arguments_json: str) -> tuple[dict[str, Any], str]:
    """The arguments object, and what is wrong with it as JSON ("" when nothing is). Blank means `{}`."""
    text = repair_text(arguments_json)
    if not text.strip():
        return {}, ""
    try:
        value = _decode(text)
    except msgspec.DecodeError as error:
        words = str(error).removeprefix("JSON is malformed: ")
        return {}, f"the arguments are not well-formed JSON: {words}"
    except RecursionError:
        return {}, "the arguments are nested too deeply"
    if not isinstance(value, dict):
        return {}, f"the arguments must be one JSON object, not {_kind(value)}"
    return value, ""


def _kind(value: Any) -> str:
    if value is None:
        return "null"
    for kind, name in _KINDS:
        if isinstance(value, kind):
            return name
    return type(value).__name__


_KINDS: tuple[tuple[type | tuple[type, ...], str], ...] = (
    (bool, "a boolean"),
    ((int, float), "a number"),
    (str, "a string"),
    (list, "an array"),
    (dict, "an object"),
)
_WANTED = {
    "boolean": "a boolean",
    "integer": "a number",
    "number": "a number",
    "string": "a string",
    "array": "an array",
    "object": "an object",
}


def _instruction(name: str, faults: list[str]) -> str:
    shown = faults[:_MAX_FAULTS]
    more = len(faults) - len(shown)
    if more > 0:
        shown.append(f"and {more} more")
    lines = "\n".join(f"- {fault}" for fault in shown)
    return f"{name} was not run, its arguments do not fit:\n{lines}\nCall it again with these corrected."


class SchemaValidator:
    """Three checks that need no library: the arguments are an object, each required key is there and not
    null, and a value whose schema names a primitive type is of that kind (any number passes for an integer).

    A tool it does not know passes: a host may dispatch tools it never declared. Keys the schema does not
    mention pass, as does null where the key is not required.
    """

    def __init__(self, tools: Iterable[ToolDef | Mapping[str, Any]]) -> None:
        self._schemas = _schemas(tools)

    def validate(self, name: str, arguments_json: str) -> str:
        """Empty when the arguments pass, else what the model is to fix."""
        schema = self._schemas.get(name)
        if schema is None:
            return ""
        arguments, problem = _object(arguments_json)
        if problem:
            return _instruction(name, [problem])
        required = schema.get("required")
        faults = [
            f"{key}: required, but {'null' if key in arguments else 'missing'}"
            for key in (required if isinstance(required, list) else ())
            if isinstance(key, str) and arguments.get(key) is None
        ]
        properties = schema.get("properties")
        for key, value in arguments.items():
            declared = properties.get(key) if isinstance(properties, dict) else None
            wanted = _kinds_wanted(declared)
            if wanted and value is not None and _kind(value) not in wanted:
                faults.append(f"{key}: must be {' or '.join(wanted)}, not {_kind(value)}")
        return _instruction(name, faults) if faults else ""


def _kinds_wanted(declared: Any) -> list[str]:
    """Kinds a property's `type` allows; empty when it says nothing we check."""
    kinds = declared.get("type") if isinstance(declared, dict) else None
    if isinstance(kinds, str):
        kinds = [kinds]
    if not isinstance(kinds, list):
        return []
    wanted = [_WANTED.get(kind, "") for kind in kinds if isinstance(kind, str) and kind != "null"]
    return wanted if all(wanted) else []


class JsonSchemaValidator:
    """Holds arguments to the whole JSON Schema of their tool, formats included. Needs `jsonschema-rs`.

    A fault names its place as a path, such as `items/0/sku`. References to other documents are never
    fetched. A tool it does not know passes. Raises `ValueError` for a schema that is none.
    """

    def __init__(self, tools: Iterable[ToolDef | Mapping[str, Any]]) -> None:
        try:
            import jsonschema_rs
        except ImportError as error:
            raise ImportError(
                "JsonSchemaValidator needs the package jsonschema-rs: pip install 'agentkit-fast[schema]'"
            ) from error
        self._validators: dict[str, Any] = {}
        for name, schema in _schemas(tools).items():
            try:
                self._validators[name] = jsonschema_rs.validator_for(
                    schema, validate_formats=True, retriever=_no_retriever
                )
            except (ValueError, TypeError) as error:
                words = str(error).splitlines()[0]
                raise ValueError(
                    f"the parameters of tool {name!r} are no usable JSON Schema: {words}"
                ) from error

    def validate(self, name: str, arguments_json: str) -> str:
        """Empty when the arguments pass, else what the model is to fix."""
        validator = self._validators.get(name)
        if validator is None:
            return ""
        arguments, problem = _object(arguments_json)
        if problem:
            return _instruction(name, [problem])
        try:
            faults = [_schema_fault(error) for error in validator.iter_errors(arguments)]
        except ValueError as error:  # jsonschema-rs refuses values nested past its own limit
            faults = [str(error).splitlines()[0]]
        return _instruction(name, faults) if faults else ""


def _no_retriever(uri: str) -> Any:
    raise ValueError(f"{uri} is another document, and none is fetched")


def _schema_fault(error: Any) -> str:
    path = "/".join(str(part) for part in error.instance_path)
    words = str(error.message)
    if len(words) > _MAX_FAULT_CHARS:
        half = _MAX_FAULT_CHARS // 2
        words = f"{words[:half]} … {words[-half:]}"
    return f"{path or 'arguments'}: {words}"


class _Validating:
    """A dispatcher with a validator before it. What is asked of the inner one (`get`, …) is passed on."""

    def __init__(self, inner: Any, validator: Validator, max_failures: int) -> None:
        self._inner = inner
        self._validator = validator
        self._max_failures = max_failures
        self._lock = threading.Lock()
        self._failures = 0

    def __call__(self, call: ToolCall) -> Any:
        refusal = self._refusal(call)
        if refusal:
            return _ready(refusal) if _wants_await(self._inner) else refusal
        return self._inner(call)

    def dispatch(self, call: ToolCall) -> str:
        """As the inner dispatcher's `dispatch`."""
        refusal = self._refusal(call)
        return refusal if refusal else _text(self._inner.dispatch(call))

    async def adispatch(self, call: ToolCall) -> str:
        """As the inner dispatcher's `adispatch`."""
        refusal = self._refusal(call)
        return refusal if refusal else _text(await self._inner.adispatch(call))

    def _refusal(self, call: ToolCall) -> str:
        problem = self._validator.validate(call.name, call.arguments)
        with self._lock:
            self._failures = self._failures + 1 if problem else 0
            failures = self._failures
        if problem and 0 < self._max_failures <= failures:
            raise ToolLoopError(
                f"the model gave unusable arguments {failures} times in a row, last for {call.name}: {problem} "
                "Simplify the tool's schema, show an example in its description, or raise max_failures."
            )
        return problem

    def __getattr__(self, name: str) -> Any:
        if name in ("_inner", "dispatch", "adispatch"):
            raise AttributeError(name)
        return getattr(self._inner, name)


def _text(result: Any) -> str:
    """The result as it is; typed as text."""
    text: str = result
    return text


def _wants_await(inner: Any) -> bool:
    call = getattr(inner, "__call__", None)  # noqa: B004 - to look at it, not to test for it
    return inspect.iscoroutinefunction(inner) or inspect.iscoroutinefunction(call)


async def _ready(text: str) -> str:
    return text


def validating(
    dispatch: Callable[[ToolCall], Any], validator: Validator | None, *, max_failures: int = 10
) -> Any:
    """A dispatcher that answers a bad call with what to fix, instead of passing it to `dispatch`.

    After `max_failures` bad calls in a row it raises `ToolLoopError` (0: never). Without a validator,
    `dispatch` itself.
    """
    if validator is None:
        return dispatch
    return _Validating(dispatch, validator, max_failures)
