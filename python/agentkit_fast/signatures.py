"""From a Python function to the JSON Schema of its arguments, and from JSON arguments to its call.

msgspec knows the types; here are the function's side (defaults, partials, methods, descriptions) and the
messages a model reads when its arguments do not fit.
"""

from __future__ import annotations

import enum
import functools
import inspect
import sys
import types
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

import msgspec

from agentkit_fast._unicode import repair_text
from agentkit_fast.docstrings import parse_docstring
from agentkit_fast.messages import ToolCall

__all__ = ["ArgumentErrors", "Signature", "object_members", "read_signature", "result_text"]

# Inlining repeats a type wherever it is used; past this many bytes of schema the references stay.
_INLINE_LIMIT = 20_000
_OURS = frozenset({__name__, "agentkit_fast.tools"})


class ArgumentErrors(ValueError):
    """Arguments that do not fit, one line a fault, each with its path."""


class _Parameter:
    """One argument the model may give."""

    __slots__ = ("decode", "hint", "name", "positional", "required")

    def __init__(self, name: str, hint: Any, *, required: bool, positional: bool) -> None:
        self.name = name
        self.hint = hint
        self.required = required
        self.positional = positional
        self.decode = _decoder(hint)


class Signature:
    """What a function takes and how a model's arguments become its call.

    `schema` is the JSON Schema of the arguments object.
    """

    def __init__(
        self,
        parameters: list[_Parameter],
        schema: dict[str, Any],
        description: str,
        *,
        call_names: list[str],
        extra: Callable[[bytes], Any] | None,
    ) -> None:
        self.schema = schema
        self.description = description
        self._parameters = {parameter.name: parameter for parameter in parameters}
        self._call_names = call_names
        self._extra = extra

    def bind(self, arguments: str, call: ToolCall) -> tuple[list[Any], dict[str, Any]]:
        """Positional and keyword arguments for the function, or `ArgumentErrors`."""
        raw = object_members(arguments)
        faults: list[str] = []
        values: dict[str, Any] = {}
        for name, value in raw.items():
            parameter = self._parameters.get(name)
            decode = parameter.decode if parameter else self._extra
            if decode is None:
                known = ", ".join(self._parameters) or "none"
                faults.append(f"$.{name}: there is no such argument (there are: {known})")
                continue
            try:
                values[name] = decode(bytes(value))
            except (msgspec.DecodeError, ValueError, TypeError, RecursionError) as error:
                faults.append(_fault(f"$.{name}", error))
        faults.extend(
            f"$.{name}: required, but missing"
            for name, parameter in self._parameters.items()
            if parameter.required and name not in raw
        )
        if faults:
            raise ArgumentErrors("\n".join(faults))
        values.update((name, call) for name in self._call_names)
        positional = []
        for name, parameter in self._parameters.items():
            if parameter.positional and name in values:
                positional.append(values.pop(name))
        return positional, values


_members_of = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


def object_members(arguments: str) -> dict[str, msgspec.Raw]:
    """The members of a JSON object as they are written; blank is none. `ArgumentErrors` for anything else."""
    text = repair_text(arguments)
    if not text.strip():
        return {}
    try:
        return _members_of(text)
    except msgspec.ValidationError as error:
        raise ArgumentErrors(f"$: the arguments must be one JSON object ({_words(error)})") from None
    except msgspec.DecodeError as error:
        raise ArgumentErrors(f"$: not well-formed JSON ({_words(error)})") from None
    except RecursionError:
        raise ArgumentErrors("$: nested too deeply") from None


def _words(error: BaseException) -> str:
    text = str(error).replace("`", "")
    return text.removeprefix("JSON is malformed: ") or type(error).__name__


def _fault(path: str, error: BaseException) -> str:
    if isinstance(error, RecursionError):
        return f"{path}: nested too deeply"
    words, _, inner = _words(error).partition(" - at $")
    return f"{path}{inner}: {words}"


def _decode_hook(kind: type, value: Any) -> Any:
    # A pydantic model, known by its methods: no import of it.
    validate = getattr(kind, "model_validate", None)
    if validate is not None:
        return validate(value)
    raise NotImplementedError(f"arguments of type {kind.__name__} cannot be read")


def _schema_hook(kind: type) -> dict[str, Any]:
    describe = getattr(kind, "model_json_schema", None)
    if describe is not None:
        return dict(describe())
    raise NotImplementedError


def _decoder(hint: Any) -> Callable[[bytes], Any]:
    if hint is Any or hint is inspect.Parameter.empty:
        return msgspec.json.decode
    try:
        decoders = [msgspec.json.Decoder(hint, dec_hook=_decode_hook)]
    except TypeError:
        # msgspec takes one object type a union; the alternatives are tried one after the other.
        bare = get_args(hint)[0] if get_origin(hint) is Annotated else hint
        if get_origin(bare) not in (Union, types.UnionType):
            raise
        decoders = [msgspec.json.Decoder(choice, dec_hook=_decode_hook) for choice in get_args(bare)]

    def decode(raw: bytes) -> Any:
        faults: list[str] = []
        for body in (raw, _whole_numbers(raw)):
            for decoder in decoders:
                if body is None:
                    break
                try:
                    return decoder.decode(body)
                except msgspec.ValidationError as error:
                    if body is raw:
                        faults.append(str(error))
        if len(faults) == 1:
            raise msgspec.ValidationError(faults[0])
        raise msgspec.ValidationError("fits none of the allowed types (" + "; ".join(faults) + ")")

    return decode


def _whole_numbers(raw: bytes) -> bytes | None:
    """`raw` with numbers such as `2.0` as `2` (JSON Schema calls both integers); `None`: there are none."""
    if b"." not in raw and b"e" not in raw and b"E" not in raw:
        return None

    def whole(value: Any) -> Any:
        if isinstance(value, float) and value.is_integer():
            return int(value)
        if isinstance(value, list):
            return [whole(item) for item in value]
        if isinstance(value, dict):
            return {key: whole(item) for key, item in value.items()}
        return value

    return msgspec.json.encode(whole(msgspec.json.decode(raw)))


def read_signature(func: Callable[..., Any], *, skip_self: bool = False) -> Signature:
    """Read a function, method, partial or callable object; `skip_self` leaves out its first parameter.

    Raises `TypeError` for what no model can call: `*args`, or a type without a JSON form.
    """
    hidden, plain = _unwrapped(func)
    hints = _hints(plain)
    description, told = parse_docstring(inspect.getdoc(plain))
    parameters: list[_Parameter] = []
    properties: dict[str, Any] = {}
    schemas = _SchemaParts()
    call_names: list[str] = []
    extra: Callable[[bytes], Any] | None = None
    label = getattr(plain, "__qualname__", repr(func))
    try:
        takes = inspect.signature(func).parameters
    except ValueError:
        raise TypeError(
            f"{label}: its parameters cannot be read; wrap it in a function of your own"
        ) from None
    for position, (name, parameter) in enumerate(takes.items()):
        if name in hidden or (skip_self and position == 0):
            continue
        hint = hints.get(name, parameter.annotation)
        if parameter.kind is parameter.VAR_POSITIONAL:
            raise TypeError(f"{label}: *{name} has no name a model could use; name each parameter")
        if hint is ToolCall:
            call_names.append(name)
            continue
        default = parameter.default
        if hint is parameter.empty:
            hint = type(default) if isinstance(default, (bool, int, float, str)) else Any
        hint = _described(hint)
        if parameter.kind is parameter.VAR_KEYWORD:
            extra = _decoder(hint)
            continue
        required = default is parameter.empty
        try:
            found = _Parameter(
                name, hint, required=required, positional=parameter.kind is parameter.POSITIONAL_ONLY
            )
            schema = schemas.of(hint)
        except (TypeError, NotImplementedError) as error:
            raise TypeError(
                f"{label}: parameter {name!r} has a type that JSON arguments cannot fill ({hint!r}): "
                "use str, int, float, bool, list, dict, Literal, an Enum, a dataclass, a TypedDict or a "
                "msgspec Struct, or bind it beforehand with functools.partial"
            ) from error
        if told.get(name) and "description" not in schema:
            schema = {**schema, "description": told[name]}
        if not required and "default" not in schema:
            schema = _with_default(schema, default)
        parameters.append(found)
        properties[name] = schema
    root: dict[str, Any] = {"type": "object", "properties": properties}
    wanted = [parameter.name for parameter in parameters if parameter.required]
    if wanted:
        root["required"] = wanted
    root["additionalProperties"] = extra is not None
    return Signature(parameters, schemas.finish(root), description, call_names=call_names, extra=extra)


def _unwrapped(func: Callable[..., Any]) -> tuple[set[str], Callable[..., Any]]:
    """Names a partial has bound already, and the function that carries docstring and annotations."""
    hidden: set[str] = set()
    while isinstance(func, functools.partial):
        hidden.update(func.keywords)
        func = func.func
    if not inspect.isroutine(func) and not inspect.isclass(func):
        func = type(func).__call__
    return hidden, inspect.unwrap(func)


def _hints(func: Callable[..., Any]) -> dict[str, Any]:
    """Type hints, with the names of enclosing functions: under postponed evaluation hints are strings."""
    target = inspect.unwrap(func.__func__ if inspect.ismethod(func) else func)
    if inspect.isclass(target):
        target = target.__init__
    local: dict[str, Any] = {}
    nested = "<locals>" in getattr(target, "__qualname__", "")
    outer: types.FrameType | None = sys._getframe(1)
    while outer is not None and outer.f_globals.get("__name__") in _OURS:
        outer = outer.f_back
    module = outer.f_globals if outer is not None else {}
    while nested and outer is not None and outer.f_globals is module:
        if outer.f_locals is not outer.f_globals:
            local = {**outer.f_locals, **local}
        outer = outer.f_back
    try:
        return get_type_hints(target, localns=local, include_extras=True)
    except NameError as error:
        raise TypeError(
            f"{getattr(func, '__qualname__', func)}: the annotation {error.name!r} is not known where the "
            "tool is made; import it at run time (not under TYPE_CHECKING)"
        ) from error


def _described(hint: Any) -> Any:
    """`Annotated[T, "words"]` with the words as a description msgspec knows."""
    if get_origin(hint) is not Annotated:
        return hint
    bare, *marks = get_args(hint)
    words = [mark for mark in marks if isinstance(mark, str)]
    # pydantic's Field, known by its attribute.
    words += [
        mark.description
        for mark in marks
        if not isinstance(mark, (str, msgspec.Meta)) and isinstance(getattr(mark, "description", None), str)
    ]
    kept = [mark for mark in marks if isinstance(mark, msgspec.Meta)]
    if words:
        kept.append(msgspec.Meta(description=" ".join(words)))
    for mark in kept:
        bare = Annotated[bare, mark]
    return bare


def _with_default(schema: dict[str, Any], default: Any) -> dict[str, Any]:
    try:
        return {**schema, "default": msgspec.to_builtins(default, str_keys=True)}
    except (TypeError, ValueError):
        return schema  # a default no JSON can show; the function has it all the same


class _SchemaParts:
    """Collects the definitions several parameters share, and puts them where they are used."""

    def __init__(self) -> None:
        self._definitions: dict[str, Any] = {}

    def of(self, hint: Any) -> dict[str, Any]:
        """The schema of one type, its definitions kept aside."""
        if hint is Any:
            return {}
        bare = hint
        marks: tuple[Any, ...] = ()
        if get_origin(hint) is Annotated:
            bare, *rest = get_args(hint)
            marks = tuple(rest)
        try:
            (schema,), definitions = msgspec.json.schema_components(
                (hint,), schema_hook=_schema_hook, ref_template="#/$defs/{name}"
            )
        except TypeError:
            if get_origin(bare) not in (Union, types.UnionType):
                raise
            schema = {"anyOf": [self.of(choice) for choice in get_args(bare)]}
            words = [mark.description for mark in marks if getattr(mark, "description", None)]
            if words:
                schema["description"] = words[-1]
            return schema
        for name, definition in definitions.items():
            nested = definition.pop("$defs", {}) if isinstance(definition, dict) else {}
            self._definitions.update(nested)
            self._definitions[name] = definition
        for kind in _classes(hint):
            _describe_fields(self._definitions.get(kind.__name__), kind)
        self._definitions.update(schema.pop("$defs", {}))
        return schema

    def finish(self, root: dict[str, Any]) -> dict[str, Any]:
        """`root` with every definition in place; types that contain themselves stay under `$defs`."""
        recursive = {name for name in self._definitions if self._reaches(name, name)}
        inlined: dict[str, Any] = self._inline(root, recursive)
        if len(msgspec.json.encode(inlined)) > _INLINE_LIMIT:
            inlined, recursive = root, set(self._definitions)
            kept = {name: _typed(value) for name, value in self._definitions.items()}
        else:
            kept = {name: self._inline(self._definitions[name], recursive) for name in recursive}
        if kept:
            inlined["$defs"] = dict(sorted(kept.items()))
        return inlined

    def _reaches(self, start: str, goal: str) -> bool:
        seen: set[str] = set()
        todo = _references(self._definitions[start])
        while todo:
            name = todo.pop()
            if name == goal:
                return True
            if name not in seen and name in self._definitions:
                seen.add(name)
                todo.extend(_references(self._definitions[name]))
        return False

    def _inline(self, node: Any, keep: set[str]) -> Any:
        if isinstance(node, list):
            return [self._inline(item, keep) for item in node]
        if not isinstance(node, dict):
            return node
        name = str(node.get("$ref", "")).removeprefix("#/$defs/")
        if name in self._definitions and name not in keep:
            beside = {key: value for key, value in node.items() if key != "$ref"}
            return {**self._inline(self._definitions[name], keep), **beside}
        members = {key: self._inline(value, keep) for key, value in node.items()}
        if isinstance(members.get("discriminator"), dict) and "anyOf" in members:
            # OpenAPI's hint, of no meaning in JSON Schema, names definitions that are in place by now.
            del members["discriminator"]
        return _typed(members)


def _references(node: Any) -> list[str]:
    if isinstance(node, list):
        return [name for item in node for name in _references(item)]
    if not isinstance(node, dict):
        return []
    found = [name for item in node.values() for name in _references(item)]
    reference = node.get("$ref")
    if isinstance(reference, str):
        found.append(reference.removeprefix("#/$defs/"))
    return found


_JSON_TYPES: dict[type, str] = {str: "string", bool: "boolean", int: "integer", float: "number"}


def _typed(schema: dict[str, Any]) -> dict[str, Any]:
    """An enum of one kind of value says so: small models and grammars go by `type`."""
    choices = schema.get("enum")
    if isinstance(choices, list) and "type" not in schema:
        kinds = {_JSON_TYPES.get(type(choice)) for choice in choices}
        kind = kinds.pop() if len(kinds) == 1 else None
        if kind:
            return {"type": kind, **schema}
    return schema


def _classes(hint: Any) -> list[type]:
    """The dataclasses, TypedDicts and Structs a type is made of, each once."""
    found: dict[type, None] = {}
    todo = [hint]
    while todo:
        node = todo.pop()
        if inspect.isclass(node) and node not in found and not issubclass(node, enum.Enum):
            fields = getattr(node, "__annotations__", None)
            if isinstance(fields, Mapping) and get_origin(node) is None:
                found[node] = None
                try:
                    todo.extend(get_type_hints(node, include_extras=True).values())
                except NameError:
                    continue
        todo.extend(arg for arg in get_args(node) if not isinstance(arg, (str, int)))
    return list(found)


def _describe_fields(definition: Any, kind: type) -> None:
    """Add descriptions written as `Annotated[T, "words"]` on the fields of a nested type."""
    properties = definition.get("properties") if isinstance(definition, dict) else None
    if not isinstance(properties, dict):
        return
    try:
        hints = get_type_hints(kind, include_extras=True)
    except NameError:
        return
    for name, hint in hints.items():
        marks = get_args(hint)[1:] if get_origin(hint) is Annotated else ()
        words = [mark for mark in marks if isinstance(mark, str)]
        if words and name in properties:
            properties[name].setdefault("description", " ".join(words))


def _encode_hook(value: Any) -> Any:
    for method in ("model_dump", "tolist", "isoformat", "__fspath__"):  # pydantic, numpy, pandas, paths
        convert = getattr(value, method, None)
        if callable(convert) and not inspect.isclass(value):
            return convert(mode="json") if method == "model_dump" else convert()
    if isinstance(value, Mapping):
        return dict(value)
    if hasattr(value, "__iter__"):
        return list(value)
    raise NotImplementedError(
        f"a {type(value).__name__} has no JSON form; return text, numbers, lists, dicts or dataclasses"
    )


def result_text(value: Any) -> str:
    """What the model sees of a tool's return value: text as it is, anything else as JSON."""
    if isinstance(value, str):
        return repair_text(value)
    if isinstance(value, (bytes, bytearray)):
        return bytes(value).decode("utf-8", "replace")
    try:
        return msgspec.json.encode(value, enc_hook=_encode_hook).decode()
    except UnicodeEncodeError:
        plain = msgspec.to_builtins(value, enc_hook=_encode_hook, str_keys=True)
        return msgspec.json.encode(_repaired(plain)).decode()


def _repaired(value: Any) -> Any:
    if isinstance(value, str):
        return repair_text(value)
    if isinstance(value, dict):
        return {_repaired(key): _repaired(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_repaired(item) for item in value]
    return value
