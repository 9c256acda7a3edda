"""From a JSON Schema to a GBNF grammar of the JSON texts that fit it.

Covers what msgspec's schemas are made of: objects (keys in schema order, optional ones may be left out), arrays,
tuples, maps, enums, constants, unions, `$ref` (recursion included), strings with a date or time format, numbers and
booleans. Bounds, patterns and lengths are not expressed: whoever reads the value checks them.
"""

from __future__ import annotations

import json
import re
from typing import Any

__all__ = ["schema_grammar"]

# Rules of JSON itself.
_BASE = {
    "ws": r"[ \t\n]*",
    "boolean": '"true" | "false"',
    "null": '"null"',
    "integer": '"-"? ("0" | [1-9] [0-9]*)',
    "number": '"-"? ("0" | [1-9] [0-9]*) ("." [0-9]+)? ([eE] [-+]? [0-9]+)?',
    "char": r'[^"\\\x00-\x1f\x7f] | "\\" (["\\/bfnrt] | "u" hex hex hex hex)',
    "hex": "[0-9a-fA-F]",
    "string": r'"\"" char* "\""',
    "value": "object | array | string | number | boolean | null",
    "object": '"{" ws (pair (ws "," ws pair)*)? ws "}"',
    "pair": 'string ws ":" ws value',
    "array": '"[" ws (value (ws "," ws value)*)? ws "]"',
    "digits2": "[0-9] [0-9]",
    "date": 'digits2 digits2 "-" digits2 "-" digits2',
    "time": 'digits2 ":" digits2 ":" digits2 ("." [0-9]+)? ("Z" | [-+] digits2 ":" digits2)?',
    "datestring": r'"\"" date "\""',
    "timestring": r'"\"" time "\""',
    "datetimestring": r'"\"" date [T ] time "\""',
}
_NEEDS = {
    "object": ("ws", "pair"),
    "pair": ("string", "ws", "value"),
    "array": ("ws", "value"),
    "value": ("object", "array", "string", "number", "boolean", "null"),
    "string": ("char",),
    "char": ("hex",),
    "date": ("digits2",),
    "time": ("digits2",),
    "datestring": ("date",),
    "timestring": ("time",),
    "datetimestring": ("date", "time"),
}
_FORMATS = {"date": "datestring", "time": "timestring", "date-time": "datetimestring"}


def schema_grammar(schema: dict[str, Any]) -> str:
    """GBNF for the JSON values of `schema`; its start rule is `root`.

    A keyword it does not know widens the grammar, never narrows it. `$ref` must point into `$defs`.
    """
    return _Writer(schema).write()


class _Writer:
    def __init__(self, schema: dict[str, Any]) -> None:
        self._schema = schema
        self._defs: dict[str, Any] = schema.get("$defs", {})
        self._rules: dict[str, str] = {}
        self._named: dict[str, str] = {}

    def write(self) -> str:
        body = self._of(self._schema)
        lines = [f"root ::= {self._use('ws')} {body} {self._use('ws')}"]
        lines += [f"{name} ::= {text}" for name, text in self._rules.items()]
        return "\n".join(lines) + "\n"

    def _use(self, name: str) -> str:
        """A rule of the base, with what it needs."""
        if name not in self._rules:
            self._rules[name] = _BASE[name]
            for needed in _NEEDS.get(name, ()):
                self._use(needed)
        return name

    def _new(self, text: str) -> str:
        name = f"r{len(self._rules)}"
        self._rules[name] = text
        return name

    def _of(self, schema: Any) -> str:
        """An expression for a schema: always one that can stand in a sequence."""
        if not isinstance(schema, dict):
            return self._use("value")
        if "$ref" in schema:
            return self._ref(str(schema["$ref"]))
        if "const" in schema:
            return _literal(schema["const"])
        if "enum" in schema:
            return f"({' | '.join(_literal(item) for item in schema['enum'])})"
        for key in ("anyOf", "oneOf"):
            if schema.get(key):
                return f"({' | '.join(self._of(item) for item in schema[key])})"
        if len(schema.get("allOf", ())) == 1:
            return self._of(schema["allOf"][0])
        kind = schema.get("type")
        if isinstance(kind, list):
            return f"({' | '.join(self._of({**schema, 'type': item}) for item in kind)})"
        if kind == "object" or "properties" in schema:
            return self._object(schema)
        if kind == "array":
            return self._array(schema)
        if kind == "string":
            return self._use(_FORMATS.get(schema.get("format", ""), "string"))
        if kind in ("integer", "number", "boolean", "null"):
            return self._use(str(kind))
        return self._use("value")

    def _ref(self, ref: str) -> str:
        key = ref.rpartition("/")[2]
        if key not in self._defs:
            return self._use("value")
        if key not in self._named:
            # Named before it is written, so that a type may hold itself.
            name = f"d{len(self._named)}-{re.sub('[^a-zA-Z0-9]+', '-', key).strip('-') or 'type'}"
            self._named[key] = name
            self._rules[name] = ""
            self._rules[name] = self._of(self._defs[key])
        return self._named[key]

    def _object(self, schema: dict[str, Any]) -> str:
        properties: dict[str, Any] = schema.get("properties") or {}
        ws = self._use("ws")
        if not properties:
            return self._map(schema)
        required = set(schema.get("required", ()))
        pairs = [
            (f'{_literal(name)} {ws} ":" {ws} {self._of(inner)}', name in required)
            for name, inner in properties.items()
        ]
        # `first` is what may come when no pair has been written, `rest` when one has; built from the end, so
        # that the size is linear in the number of optional keys.
        rest = first = '""'
        for text, needed in reversed(pairs):
            pair = self._new(text)
            later = f'{ws} "," {ws} {pair} {rest}'
            here = f"{pair} {rest}"
            first = self._new(here if needed else f"{here} | {first}")
            rest = self._new(later if needed else f"{later} | {rest}")
        return self._new(f'"{{" {ws} {first} {ws} "}}"')

    def _map(self, schema: dict[str, Any]) -> str:
        inner = schema.get("additionalProperties", True)
        ws = self._use("ws")
        if inner is False:
            return self._new(f'"{{" {ws} "}}"')
        pair = self._new(f'{self._use("string")} {ws} ":" {ws} {self._of(inner)}')
        return self._new(f'"{{" {ws} ({pair} ({ws} "," {ws} {pair})*)? {ws} "}}"')

    def _array(self, schema: dict[str, Any]) -> str:
        ws = self._use("ws")
        fixed = [self._of(item) for item in schema.get("prefixItems", ())]
        if fixed:
            body = f' {ws} "," {ws} '.join(fixed)
            return self._new(f'"[" {ws} {body} {ws} "]"')
        item = self._of(schema.get("items", True))
        if schema.get("minItems", 0) > 0:
            return self._new(f'"[" {ws} {item} ({ws} "," {ws} {item})* {ws} "]"')
        return self._new(f'"[" {ws} ({item} ({ws} "," {ws} {item})*)? {ws} "]"')


def _literal(value: Any) -> str:
    """The JSON text of a value as a GBNF string."""
    text = json.dumps(value, ensure_ascii=False)
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'
