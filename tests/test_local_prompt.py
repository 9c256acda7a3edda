"""`PromptEncoder` on the two real vocabularies, held against llama.cpp's own tokenization."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("llama_cpp")

sys.path.insert(0, str(Path(__file__).parent))

from agentkit_fast.prompt import PromptEncoder
from agentkit_fast.runners._local import llama
from agentkit_fast.runners._local.roles import TemplateRules, conform, probe_template
from agentkit_fast.tokens import GgufTokenizer
from prompt_families import FAMILIES, NOW

pytestmark = pytest.mark.model

CASES = {
    case["id"]: case
    for case in map(
        json.loads,
        (Path(__file__).parent / "data/cases/local_cases.jsonl").read_text(encoding="utf-8").splitlines(),
    )
}
FAMILY = {"smollm2": "chatml", "gemma": "gemma"}


@pytest.fixture(scope="module", params=["smollm2", "gemma"])
def vocabulary(request: pytest.FixtureRequest) -> tuple[str, llama.Model]:
    path = request.getfixturevalue(f"{request.param}_path")
    return request.param, llama.Model(path, vocab_only=True)


@pytest.fixture(scope="module", params=["GgufTokenizer", "LlamaTokenizer"])
def encoder(request: pytest.FixtureRequest, vocabulary: tuple[str, llama.Model]) -> PromptEncoder:
    name, model = vocabulary
    template = FAMILIES[FAMILY[name]].template
    own = request.param == "GgufTokenizer"
    tokenizer = GgufTokenizer(model.path) if own else llama.LlamaTokenizer(model.vocab)
    return PromptEncoder(tokenizer, template, now=lambda: NOW)


def around(text: str) -> list[dict[str, str]]:
    return [
        {"role": "user", "content": text},
        {"role": "assistant", "content": text},
        {"role": "user", "content": text},
    ]


CONTENTS = {f"L09-{n}": text for n, text in enumerate(CASES["L09"]["input"]["contents"])} | {
    "newlines of every length": "".join("\n" * n + "x" for n in range(40)),
    "blanks of every length": "".join(" " * n + "x" for n in range(40)),
    "tabs and blanks": "\t\t  \t x\r\n\r\n\n \n",
    "scripts": "日本語 العربية हिन्दी ไทย 🙂👩‍👩‍👧 é e\u0301 \u200b\u00a0",
    "numbers": "1 12 123 1234 12345 3.14159 0x1F 1_000",
    "a source file": Path(json.__file__).read_text(encoding="utf-8")[:8000],
}


@pytest.mark.parametrize("text", CONTENTS.values(), ids=CONTENTS.keys())
def test_ids_equal_llama_cpp(
    vocabulary: tuple[str, llama.Model], encoder: PromptEncoder, text: str
) -> None:
    _, model = vocabulary
    prompt = encoder.encode(around(text))
    assert prompt.ids.tolist() == model.vocab.tokenize(prompt.text.encode(), parse_special=True).tolist()
    assert encoder.tokenizer.decode(prompt.ids) == prompt.text.encode()


def test_no_spelling_of_the_vocabulary_forges_a_token(
    vocabulary: tuple[str, llama.Model], encoder: PromptEncoder
) -> None:
    _, model = vocabulary
    spellings = [text for text in encoder.tokenizer.special_tokens if not text.isspace()]
    benign = int(model.vocab.control[encoder.encode(around("x")).ids].sum())
    structural = np.isin(
        np.arange(model.vocab.size), [encoder.tokenizer.special_tokens[text] for text in spellings]
    )
    for text in (" ".join(spellings), "".join(spellings), "\n".join(f"{s}{s}" for s in spellings[:300])):
        prompt = encoder.encode(around(text))
        assert encoder.tokenizer.decode(prompt.ids) == prompt.text.encode()
        assert int(structural[prompt.ids].sum()) == benign
    # What plain tokenization of the same prompt makes of it.
    forged = model.vocab.tokenize(encoder.encode(around(spellings[0])).text.encode(), parse_special=True)
    assert int(structural[forged].sum()) == benign + 3


def test_the_models_own_templates_are_understood(smollm2_path: Path) -> None:
    model = llama.Model(smollm2_path, vocab_only=True)
    encoder = PromptEncoder(llama.LlamaTokenizer(model.vocab), model.chat_template)
    assert probe_template(encoder) == TemplateRules()
    text = encoder.encode([{"role": "user", "content": "q"}]).text
    assert text.startswith("<|im_start|>system\nYou are a helpful AI assistant named SmolLM")


RULES = {
    "chatml": TemplateRules(),
    "llama3": TemplateRules(tool_calls=True),
    "gemma": TemplateRules(system_role=False, alternate=True, tool_role=False),
    "mistral": TemplateRules(),
    "phi": TemplateRules(),
    "qwen3": TemplateRules(tools=True, tool_calls=True),
    "deepseek": TemplateRules(),
    "gpt-oss": TemplateRules(tool_calls=True),
}


@pytest.mark.parametrize("name", FAMILIES)
def test_what_a_template_takes_is_found(name: str) -> None:
    family = FAMILIES[name]
    assert (
        probe_template(PromptEncoder(family.tokenizer(), family.template, now=lambda: NOW)) == RULES[name]
    )


def test_case_l19() -> None:
    case = CASES["L19"]
    given = case["input"]["template_rules"]
    rules = TemplateRules(
        system_role=given["system"], alternate=given["strict_alternation"], tool_role=False
    )
    shaped = conform(case["input"]["messages"], rules)
    expected = case["expected"]
    assert [m["role"] for m in shaped] == expected["rendered_roles"]
    assert shaped[0]["content"].startswith(expected["first_user_starts_with"])
    assert all(m["content"] is not None for m in shaped)
    assert shaped[0]["content"].index("q1") < shaped[0]["content"].index("q2")
    assert shaped[-1]["content"] == "a1\n\na2"
    assert "@@call f" in shaped[1]["content"]
    gemma = FAMILIES["gemma"]
    PromptEncoder(gemma.tokenizer(), gemma.template).encode(shaped)
    # Nothing is changed where the template takes it all.
    assert [m["role"] for m in conform(case["input"]["messages"], TemplateRules())] == [
        m["role"] for m in case["input"]["messages"]
    ]


def test_a_system_prompt_alone_and_a_beginning_assistant() -> None:
    rules = TemplateRules(system_role=False, alternate=True)
    assert conform([{"role": "system", "content": "s"}], rules) == [{"role": "user", "content": "s"}]
    shaped = conform([{"role": "assistant", "content": "a"}, {"role": "user", "content": "u"}], rules)
    assert [m["role"] for m in shaped] == ["user", "assistant", "user"]
