"""Where messages begin in a prompt, on the two real vocabularies: equal to encoding each beginning by itself."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from agentkit_fast import GgufTokenizer
from agentkit_fast.prompt import PromptEncoder
from agentkit_fast.prompt.starts import Starts
from agentkit_fast.prompt.trunk import Request
from token_texts import WRITTEN

pytestmark = pytest.mark.model

# None has a control token between messages; most let a token reach from one message into the next.
TEMPLATES = {
    "headings": "{% for m in messages %}### {{ m.role }}\n{{ m.content }}\n\n{% endfor %}",
    "one line": "{% for m in messages %}{{ m.role | upper }}: {{ m.content }} {% endfor %}",
    "nothing between": "{% for m in messages %}{{ m.content }}{% endfor %}",
    "a word cut": "{% for m in messages %}{{ m.content }}th{% endfor %}",
    "behind a control token": "{{ bos_token }}{% for m in messages %}{{ m.content }}\n{% endfor %}{{ eos_token }}",
    "a system message apart": (
        "{{ messages[0].content }}\n{% for m in messages[1:] %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    ),
}
APPEND_NOT = ("behind a control token", "a system message apart")
PARTS = [
    *(
        "hello",
        "e",
        "the the",
        " ",
        "   ",
        "\n",
        "\n\n\n",
        "\t",
        "/",
        ".",
        ".\n",
        "'",
        "'s",
        "12",
        "12345",
        "日本語",
        "é",
    ),
    *(
        "e\u0301",
        "\u3000",
        "\u2581",
        "<end_of_turn>",
        "<|im_end|>",
        "<table>",
        "[multimodal]",
        "aaaaaaaaaaaaaaaaaaaaa",
    ),
    *(text[:200] for text in WRITTEN),
]


@pytest.fixture(scope="module", params=["smollm2", "gemma"])
def tokenizer(request: pytest.FixtureRequest) -> GgufTokenizer:
    return GgufTokenizer(request.getfixturevalue(f"{request.param}_path"))


def talk(rng: random.Random, count: int) -> list[dict[str, Any]]:
    def content() -> str:
        return "".join(rng.choice(PARTS) for _ in range(rng.randrange(4)))

    return [{"role": rng.choice(["user", "assistant"]), "content": content()} for _ in range(count)]


class Plain:
    """The tokenizer without `count_beginnings`."""

    def __init__(self, tokenizer: GgufTokenizer) -> None:
        self.special_tokens = tokenizer.special_tokens
        self.bos_id, self.eos_id = tokenizer.bos_id, tokenizer.eos_id
        self.encode, self.decode = tokenizer.encode, tokenizer.decode
        self.encode_untrusted = tokenizer.encode_untrusted


class OneByOne(Starts):
    """The twin: the text before each message is tokenized by itself."""

    def counts(self, ends: list[int], mark: int) -> list[int]:
        first = self.marks.chars[mark]
        return [len(self.encoder.encode_text(self.text.cut(first, first + end))) for end in ends]


@pytest.mark.parametrize("name", TEMPLATES)
def test_starts_in_long_texts_equal_those_of_each_beginning(tokenizer: GgufTokenizer, name: str) -> None:
    rng = random.Random(name)
    template = TEMPLATES[name]
    encoder = PromptEncoder(tokenizer, template)
    for _ in range(20):
        messages = talk(rng, 25)
        prompt = encoder.encode(messages, add_generation_prompt=False)
        trunk = encoder._trunks[-1]
        request = Request(trunk.wire, [], {})
        starts = Starts(encoder, request, trunk, prompt.ids, long_gap=50).found()
        assert starts == OneByOne(encoder, request, trunk, prompt.ids).found()
        if name not in APPEND_NOT:
            alone = [
                encoder.encode(messages[:index], add_generation_prompt=False) for index in range(1, 25)
            ]
            assert starts[1:] == np.maximum.accumulate([len(prompt.ids) for prompt in alone]).tolist()
        # Without such a method in the tokenizer short texts are exact too.
        by_bytes = PromptEncoder(Plain(tokenizer), template).encode(messages, add_generation_prompt=False)
        assert by_bytes.message_starts == starts
        assert len(prompt.ids) >= starts[-1]


@pytest.mark.parametrize("name", ["smollm2", "gemma"])
def test_beginnings_counted_together(name: str, request: pytest.FixtureRequest) -> None:
    tokenizer = GgufTokenizer(request.getfixturevalue(f"{name}_path"))
    rng = random.Random(8)
    texts = [*(text[:3000] for text in WRITTEN), *("".join(rng.choices(PARTS, k=40)) for _ in range(20))]
    for text in texts:
        places = sorted(rng.choices(range(len(text) + 1), k=60))
        want = [len(tokenizer.encode_untrusted(text[:place])) for place in places]
        assert tokenizer.count_beginnings(text, places) == want
    for places in ([3, 2], [0, 9]):
        with pytest.raises(ValueError, match="place"):
            tokenizer.count_beginnings("abc", places)
