"""Tools a caller hands over with its messages, and other wishes about the shape of a reply."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from agentkit_fast.messages import ChatOptions, ToolDef
from agentkit_fast.runners._local.calls import CallParser, HeredocCalls, TaggedCalls
from agentkit_fast.runners._local.roles import TemplateRules, flat_text
from agentkit_fast.text import heredoc_grammar, heredoc_prompt

__all__ = ["Offered", "offer", "response_grammar", "with_instruction"]


class Offered(NamedTuple):
    """How tools reach the model: `rendered` by its template, or by an `instruction` and a `grammar`."""

    rendered: tuple[Any, ...] = ()
    instruction: str = ""
    grammar: str = ""
    parser: Callable[[], CallParser] | None = None


def offer(
    tools: Sequence[ToolDef | Mapping[str, Any]], options: ChatOptions, rules: TemplateRules
) -> Offered:
    """A template that knows tools renders them, in the dialect its model was trained on. Otherwise, and where
    a call is required, they are taught and held to as heredoc calls, which any model can write."""
    choice = options.tool_choice
    known = [_tool(tool) for tool in tools]
    must = choice not in (None, "auto", "none")
    if must and not known and not options.grammar:
        raise ValueError(f"tool_choice {choice!r} asks for a call, but no tools were given.")
    if not known or choice == "none":
        return Offered()
    if rules.tools and not must:
        return Offered(rendered=tuple(known), parser=TaggedCalls)
    if choice not in (None, "auto", "required"):
        named = [tool for tool in known if tool.name == choice]
        if not named:
            raise ValueError(f"tool_choice names {choice!r}, which is none of the tools given.")
        return Offered((), heredoc_prompt(known), heredoc_grammar(named, allow_prose=False), HeredocCalls)
    return Offered((), heredoc_prompt(known), heredoc_grammar(known, allow_prose=not must), HeredocCalls)


def _tool(tool: ToolDef | Mapping[str, Any]) -> ToolDef:
    if isinstance(tool, ToolDef):
        return tool
    wire = tool.get("function", tool) if isinstance(tool, Mapping) else None
    if isinstance(wire, Mapping):
        return ToolDef(
            name=str(wire.get("name", "")),
            description=str(wire.get("description") or ""),
            parameters=dict(wire.get("parameters") or {"type": "object", "properties": {}}),
        )
    return ToolDef(name=tool.name, description=tool.description, parameters=tool.parameters)  # type: ignore[attr-defined]


def with_instruction(
    messages: list[dict[str, Any]], text: str, rules: TemplateRules
) -> list[dict[str, Any]]:
    """The instruction at the end of the system prompt, or of the first user message where there is no such."""
    role = "system" if rules.system_role else "user"
    if messages and messages[0].get("role") == role:
        first = messages[0]
        return [{**first, "content": f"{flat_text(first['content'])}\n\n{text}"}, *messages[1:]]
    return [{"role": role, "content": text}, *messages]


_JSON = r"""root ::= o
v ::= o | a | s | n | "true" | "false" | "null"
o ::= "{" w (s w ":" w v w ("," w s w ":" w v w)*)? "}"
a ::= "[" w (v w ("," w v w)*)? "]"
s ::= "\"" ([^"\\\x00-\x1f] | "\\" (["\\/bfnrt] | "u" [0-9a-fA-F]{4}))* "\""
n ::= "-"? ("0" | [1-9] [0-9]{0,15}) ("." [0-9]{1,15})? ([eE] [-+]? [0-9]{1,3})?
w ::= [ \t\n]{0,20}
"""


def response_grammar(wanted: Mapping[str, Any]) -> str:
    """GBNF of OpenAI's `response_format`. `ValueError` for one that is not known, or a schema without grammar."""
    kind = wanted.get("type")
    if kind == "text":
        return ""
    if kind not in ("json_object", "json_schema"):
        raise ValueError(f"response_format is of type text, json_object or json_schema, not {kind!r:.40}.")
    holder = wanted.get("json_schema")
    schema = holder.get("schema") if isinstance(holder, Mapping) else wanted.get("schema")
    if schema is None:
        return _JSON
    from agentkit_fast.runners._local.llama import json_schema_to_gbnf

    try:
        return json_schema_to_gbnf(json.dumps(schema))
    except Exception as error:
        raise ValueError(f"This JSON Schema cannot be made a grammar: {error}") from error
