"""Chat templates for models whose file has none, by the control tokens of their vocabulary."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["fallback_template"]

_CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message.role + '\n' + message.content"
    " + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
_LLAMA3 = (
    "{{ bos_token }}{% for message in messages %}"
    "{{ '<|start_header_id|>' + message.role + '<|end_header_id|>\n\n' + message.content + '<|eot_id|>' }}"
    "{% endfor %}{% if add_generation_prompt %}"
    "{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
)
_GEMMA = (
    "{{ bos_token }}{% for message in messages %}"
    "{% if (message.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('user and assistant must take turns') }}{% endif %}"
    "{{ '<start_of_turn>' + ('model' if message.role == 'assistant' else message.role) + '\n'"
    " + message.content + '<end_of_turn>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"
)
_MISTRAL = (
    "{{ bos_token }}{% for message in messages %}"
    "{% if (message.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('user and assistant must take turns') }}{% endif %}"
    "{% if message.role == 'user' %}{{ '[INST]' + message.content + '[/INST]' }}"
    "{% else %}{{ message.content + eos_token }}{% endif %}{% endfor %}"
)
# For a model that was never taught turns: readable, and told apart by lines.
_PLAIN = (
    "{{ bos_token }}{% for message in messages %}"
    "{{ message.role | capitalize + ': ' + message.content + '\n\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}"
)


def fallback_template(special_tokens: Mapping[str, int]) -> tuple[str, str]:
    """(name, template) of the dialect whose control tokens the vocabulary has, `plain` if none."""
    for name, tokens, template in (
        ("ChatML", ("<|im_start|>", "<|im_end|>"), _CHATML),
        ("Llama 3", ("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"), _LLAMA3),
        ("Gemma", ("<start_of_turn>", "<end_of_turn>"), _GEMMA),
        ("Mistral", ("[INST]", "[/INST]"), _MISTRAL),
    ):
        if all(token in special_tokens for token in tokens):
            return name, template
    return "plain", _PLAIN
