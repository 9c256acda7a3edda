# ruff: noqa: E501 - templates have the lines they have
"""Chat templates in the styles of the model families, and vocabularies with their control tokens.

The templates are our own, small, and do what the families' real ones do: trim, split, measure, loop
backwards, refuse. The vocabulary is bytes plus special tokens, with llama.cpp's rules for them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import numpy as np
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

NOW = datetime(2026, 3, 4, 5, 6, 7)

CHATML = """\
{% for message in messages %}
{{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""

LLAMA3 = """\
{{- bos_token }}
{%- if messages[0]['role'] == 'system' %}
    {%- set system = messages[0]['content'] | trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system = '' %}
{%- endif %}
{{- '<|start_header_id|>system<|end_header_id|>\\n\\nToday: ' + strftime_now('%d %b %Y') + '\\n\\n' + system + '<|eot_id|>' }}
{%- for message in messages %}
    {%- if 'tool_calls' in message and message.tool_calls | length > 0 %}
        {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
        {%- for call in message.tool_calls %}
            {{- '{"name": "' + call.function.name + '", "parameters": ' }}
            {{- call.function.arguments | tojson }}
            {{- '}' }}
        {%- endfor %}
        {{- '<|eot_id|>' }}
    {%- elif message.role == 'tool' or message.role == 'ipython' %}
        {{- '<|start_header_id|>ipython<|end_header_id|>\\n\\n' + message.content + '<|eot_id|>' }}
    {%- else %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' + message['content'] | trim + '<|eot_id|>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}"""

GEMMA = """\
{{ bos_token }}
{%- if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}
{%- for message in messages %}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('Conversation roles must alternate user/assistant/user/assistant') }}
    {%- endif %}
    {%- if (message['role'] == 'assistant') %}{% set role = 'model' %}{% else %}{% set role = message['role'] %}{% endif %}
    {{- '<start_of_turn>' + role + '\\n' + message['content'] | trim + '<end_of_turn>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<start_of_turn>model\\n' }}{% endif %}"""

MISTRAL = """\
{%- if messages[0]['role'] == 'system' %}
    {%- set system = messages[0]['content'] %}{% set loop_messages = messages[1:] %}
{%- else %}{% set loop_messages = messages %}{% endif %}
{{- bos_token }}
{%- for message in loop_messages %}
    {%- if message['role'] == 'user' %}
        {%- if loop.last and system is defined %}
            {{- '[INST] ' + system + '\\n\\n' + message['content'] + '[/INST]' }}
        {%- else %}{{- '[INST] ' + message['content'] + '[/INST]' }}{% endif %}
    {%- elif message['role'] == 'assistant' %}
        {{- ' ' + message['content'] | trim + eos_token }}
    {%- elif message['role'] == 'tool' %}
        {{- '[TOOL_RESULTS]' + {'content': message.content} | tojson + '[/TOOL_RESULTS]' }}
    {%- else %}{{ raise_exception('Only user, assistant, system and tool roles!') }}{% endif %}
{%- endfor %}"""

PHI = """\
{% for message in messages %}{{ '<|' + message['role'] + '|>' + message['content'] + '<|end|>' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<|assistant|>' }}{% else %}{{ eos_token }}{% endif %}"""

QWEN3 = """\
{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}{{ messages[0].content + '\\n\\n' }}{% endif %}
    {{- '# Tools\\n<tools>' }}
    {%- for tool in tools %}{{ '\\n' }}{{ tool | tojson }}{% endfor %}
    {{- '\\n</tools><|im_end|>\\n' }}
{%- elif messages[0].role == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- set ns = namespace(multi_step_tool=true, last_query_index=messages | length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages | length - 1) - loop.index0 %}
    {%- if ns.multi_step_tool and message.role == 'user' and message.content is string
           and not (message.content.startswith('<tool_response>') and message.content.endswith('</tool_response>')) %}
        {%- set ns.multi_step_tool = false %}
        {%- set ns.last_query_index = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- set content = message.content if message.content is string else '' %}
    {%- if message.role == 'user' or (message.role == 'system' and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == 'assistant' %}
        {%- set reasoning = '' %}
        {%- if message.reasoning_content is string %}
            {%- set reasoning = message.reasoning_content %}
        {%- elif '</think>' in content %}
            {%- set reasoning = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {%- if loop.index0 > ns.last_query_index and reasoning %}
            {{- '<|im_start|>' + message.role + '\\n<think>\\n' + reasoning.strip('\\n') + '\\n</think>\\n\\n' + content.lstrip('\\n') }}
        {%- else %}
            {{- '<|im_start|>' + message.role + '\\n' + content }}
        {%- endif %}
        {%- if message.tool_calls %}
            {%- for call in message.tool_calls %}
                {%- if (loop.first and content) or (not loop.first) %}{{ '\\n' }}{% endif %}
                {%- set function = call.function if call.function else call %}
                {{- '<tool_call>\\n{"name": "' + function.name + '", "arguments": ' }}
                {%- if function.arguments is string %}{{ function.arguments }}{% else %}{{ function.arguments | tojson }}{% endif %}
                {{- '}\\n</tool_call>' }}
            {%- endfor %}
        {%- endif %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == 'tool' %}
        {%- if loop.first or (messages[loop.index0 - 1].role != 'tool') %}{{ '<|im_start|>user' }}{% endif %}
        {{- '\\n<tool_response>\\n' + content + '\\n</tool_response>' }}
        {%- if loop.last or (messages[loop.index0 + 1].role != 'tool') %}{{ '<|im_end|>\\n' }}{% endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}{{ '<think>\\n\\n</think>\\n\\n' }}{% endif %}
{%- endif %}"""

DEEPSEEK = """\
{{- bos_token }}
{%- set ns = namespace(system='') %}
{%- for message in messages %}
    {%- if message['role'] == 'system' %}{% set ns.system = ns.system + message['content'] %}{% endif %}
{%- endfor %}
{{- ns.system }}
{%- for message in messages %}
    {%- if message['role'] == 'user' %}{{ '<｜User｜>' + message['content'] }}{% endif %}
    {%- if message['role'] == 'assistant' %}
        {%- set content = message['content'] %}
        {%- if '</think>' in content %}{% set content = content.split('</think>')[-1] %}{% endif %}
        {{- '<｜Assistant｜>' + content + eos_token }}
    {%- endif %}
    {%- if message['role'] == 'tool' %}
        {{- '<｜tool▁outputs▁begin｜><｜tool▁output▁begin｜>' + message['content'] + '<｜tool▁output▁end｜><｜tool▁outputs▁end｜>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<｜Assistant｜><think>\\n' }}{% endif %}"""

GPT_OSS = """\
{%- macro start(role, channel='') -%}
{{ '<|start|>' ~ role ~ ('<|channel|>' ~ channel if channel else '') ~ '<|message|>' }}
{%- endmacro -%}
{{- start('system') ~ 'Current date: ' ~ strftime_now('%Y-%m-%d') ~ '<|end|>' }}
{%- for message in messages %}
    {%- if message.role in ['system', 'developer'] %}
        {{- start('developer') }}{{ '# Instructions\\n\\n' + message.content + '\\n' }}
        {%- if tools %}{{ '# Tools\\n' }}{% for tool in tools %}{{ tool.function.name }}: {{ tool.function.description }}
{% endfor %}{% endif %}{{ '<|end|>' }}
    {%- elif message.role == 'assistant' %}
        {%- if message.content | length > 100000 %}{{ raise_exception('too long') }}{% endif %}
        {%- if message.tool_calls %}
            {%- for call in message.tool_calls %}
                {{- '<|start|>assistant to=functions.' + call.function.name + '<|channel|>commentary json<|message|>' }}
                {{- call.function.arguments | tojson }}{{ '<|call|>' }}
            {%- endfor %}
        {%- else %}
            {%- generation %}{{ start('assistant', 'final') }}{{ message.content }}{{ '<|end|>' }}{% endgeneration %}
        {%- endif %}
    {%- elif message.role == 'tool' %}
        {{- '<|start|>functions.tool to=assistant<|channel|>commentary<|message|>' + message.content | tojson + '<|end|>' }}
    {%- else %}
        {%- if not message.content %}{% continue %}{% endif %}
        {{- start(message.role) }}{{ message.content }}{{ '<|end|>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|start|>assistant' }}{% endif %}"""


@dataclass(frozen=True)
class Family:
    """A template, and the spellings of its vocabulary's special tokens."""

    template: str
    control: tuple[str, ...]
    user_defined: tuple[str, ...] = ()
    bos: str = ""
    eos: str = ""
    roles: tuple[str, ...] = ("system", "user", "assistant", "tool")

    def tokenizer(self) -> ByteTokenizer:
        return ByteTokenizer(self.control, self.user_defined, self.bos, self.eos)


FAMILIES = {
    "chatml": Family(
        CHATML, ("<|im_start|>", "<|im_end|>", "<|endoftext|>"), ("  ", "\n\n"), eos="<|im_end|>"
    ),
    "llama3": Family(
        LLAMA3,
        ("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|python_tag|>"),
        bos="<|begin_of_text|>",
        eos="<|eot_id|>",
    ),
    "gemma": Family(
        GEMMA,
        ("<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>", "<unused0>"),
        ("\n\n", "\n\n\n", "  ", "<table>", "<td>", "</td>", "[multimodal]"),
        bos="<bos>",
        eos="<eos>",
        roles=("user", "assistant"),
    ),
    "mistral": Family(
        MISTRAL,
        ("<s>", "</s>", "[INST]", "[/INST]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]", "[TOOL_CALLS]"),
        bos="<s>",
        eos="</s>",
    ),
    "phi": Family(
        PHI,
        ("<|system|>", "<|user|>", "<|assistant|>", "<|end|>", "<|endoftext|>", "<|tool|>"),
        eos="<|endoftext|>",
    ),
    "qwen3": Family(
        QWEN3,
        ("<|im_start|>", "<|im_end|>", "<|endoftext|>"),
        ("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"),
        eos="<|im_end|>",
    ),
    "deepseek": Family(
        DEEPSEEK,
        (
            "<｜begin▁of▁sentence｜>",
            "<｜end▁of▁sentence｜>",
            "<｜User｜>",
            "<｜Assistant｜>",
            "<｜tool▁outputs▁begin｜>",
            "<｜tool▁outputs▁end｜>",
            "<｜tool▁output▁begin｜>",
            "<｜tool▁output▁end｜>",
        ),
        ("<think>", "</think>"),
        bos="<｜begin▁of▁sentence｜>",
        eos="<｜end▁of▁sentence｜>",
    ),
    "gpt-oss": Family(
        GPT_OSS,
        ("<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|call|>", "<|return|>", "<|endoftext|>"),
        eos="<|return|>",
    ),
}


@dataclass
class ByteTokenizer:
    """A vocabulary of 256 bytes and some special tokens."""

    control: tuple[str, ...]
    user_defined: tuple[str, ...] = ()
    bos_token: str = ""
    eos_token: str = ""
    special_tokens: dict[str, int] = field(init=False)

    def __post_init__(self) -> None:
        self.special_tokens = {text: 256 + n for n, text in enumerate((*self.control, *self.user_defined))}
        self._texts = {token: text for text, token in self.special_tokens.items()}

    def encode(self, text: str, *, parse_special: bool = False) -> Any:
        fragments: list[str | int] = [text]
        # llama.cpp's order: one token after the other, the longest spelling first.
        for special in sorted(self.special_tokens, key=lambda s: -len(s.encode())):
            if special in self.user_defined or parse_special:
                fragments = [
                    piece
                    for fragment in fragments
                    for piece in (split(fragment, special, self.special_tokens[special]))
                ]
        ids: list[int] = []
        for fragment in fragments:
            ids.extend([fragment] if isinstance(fragment, int) else fragment.encode())
        return np.array(ids, dtype=np.int32)

    def decode(self, ids: Iterable[int]) -> bytes:
        return b"".join(bytes([t]) if t < 256 else self._texts[int(t)].encode() for t in map(int, ids))


def split(fragment: str | int, special: str, token: int) -> list[str | int]:
    if isinstance(fragment, int):
        return [fragment]
    pieces: list[str | int] = []
    for number, piece in enumerate(fragment.split(special)):
        if number:
            pieces.append(token)
        if piece:
            pieces.append(piece)
    return pieces


def plain_render(family: Family, messages: list[dict[str, Any]], **variables: Any) -> str:
    """What any other client renders: jinja2 as Hugging Face and llama.cpp set it up."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols]
    )

    def refuse(message: str) -> None:
        raise ValueError(message)

    environment.globals["raise_exception"] = refuse
    environment.globals["strftime_now"] = NOW.strftime
    environment.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
    source = family.template.replace("{%- generation %}", "{%- if true %}").replace(
        "{% endgeneration %}", "{% endif %}"
    )
    variables.setdefault("add_generation_prompt", True)
    variables.setdefault("tools", None)
    return environment.from_string(source).render(
        messages=messages, bos_token=family.bos, eos_token=family.eos, **variables
    )
