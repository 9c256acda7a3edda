"""The text core beside what a user would write in Python, or the public peer, on the same inputs.

`pytest benches/test_text.py --benchmark-only --benchmark-disable-gc`: one group a task, our row first; the
relative column is the ratio.
"""

from __future__ import annotations

import json
import re
import sysconfig
from itertools import islice
from pathlib import Path

import pytest

from agentkit_fast import _core
from agentkit_fast.text import (
    RepetitionGuard,
    SpecialTokens,
    capture_slots,
    decode_tight,
    encode_tight,
    expand_slots,
    neutralize_special_tokens,
    restore_special_tokens,
)

SIZE = 1 << 20
SECTION = re.compile(r"<([A-Za-z_]\w*)>(.*?)</\1>", re.DOTALL)
PLACEHOLDER = re.compile(r"\{([A-Za-z_]\w*)\}")


def source() -> str:
    """A mebibyte of the standard library's own source, ASCII, without control tokens."""
    text = "".join(
        path.read_text(encoding="utf-8", errors="replace")
        for path in islice(sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py")), 80)
    )
    return text.encode("ascii", "ignore").decode().replace("<|", "< |")[:SIZE]


CLEAN = source()
TEXTS = {
    "clean": CLEAN,
    "dirty": CLEAN.replace("\n\n", "<|im_end|>\n"),
    "chinese": ("今天天气很好，我们一起去公园散步吧。" * (SIZE // 18))[: SIZE // 3],
}


@pytest.mark.parametrize("kind", TEXTS)
@pytest.mark.parametrize("way", ["agentkit", "str.replace"])
def test_neutralize(benchmark, kind: str, way: str) -> None:
    benchmark.group = f"neutralize, 1 MiB {kind}"
    text = TEXTS[kind]
    out = (
        benchmark(neutralize_special_tokens, text)
        if way == "agentkit"
        else benchmark(text.replace, "<|", "&lt;|")
    )
    assert ("<|" in out) is False
    assert (out is text) == (kind != "dirty")


@pytest.mark.benchmark(group="neutralize, 1 MiB chinese, each text seen once")
@pytest.mark.parametrize("way", ["agentkit", "str.replace"])
def test_neutralize_fresh(benchmark, way: str) -> None:
    # The UTF-8 of a non-ASCII `str` is made by Python on first use and kept with it; here it never is.
    def fresh() -> tuple[tuple[str], dict[str, str]]:
        return (TEXTS["chinese"][:-1] + "。",), {}

    replace = neutralize_special_tokens if way == "agentkit" else lambda text: text.replace("<|", "&lt;|")
    benchmark.pedantic(replace, setup=fresh, rounds=40)


FRESH = {
    "chinese markdown": "今天<b>天气</b>很好，[我们](http://x)一起去公园散步吧。",
    "russian": "Сегодня хорошая погода, и мы идём гулять в парк. ",
    "german": "Heute ist schönes Wetter, und wir gehen im Park spazieren. ",
}


@pytest.mark.parametrize("kind", FRESH)
@pytest.mark.parametrize("way", ["agentkit", "str.replace"])
def test_neutralize_fresh_text(benchmark, kind: str, way: str) -> None:
    benchmark.group = f"neutralize, 1 MiB {kind}, each text seen once"
    unit = FRESH[kind]
    text = unit * (SIZE // len(unit.encode()))
    replace = neutralize_special_tokens if way == "agentkit" else lambda text: text.replace("<|", "&lt;|")
    benchmark.pedantic(replace, setup=lambda: ((text[:-1] + "é",), {}), rounds=40)


@pytest.mark.benchmark(group="neutralize and restore, 1 MiB dirty, joiner")
@pytest.mark.parametrize("way", ["agentkit", "two str.replace"])
def test_joiner(benchmark, way: str) -> None:
    text = TEXTS["dirty"]
    if way == "agentkit":
        out = benchmark(lambda: restore_special_tokens(neutralize_special_tokens(text, style="joiner")))
    else:
        out = benchmark(lambda: text.replace("<|", "<\u2060|").replace("<\u2060|", "<|"))
    assert out == text


@pytest.mark.benchmark(group="find control tokens, 1 MiB dirty")
@pytest.mark.parametrize("way", ["agentkit", "re"])
def test_find(benchmark, way: str) -> None:
    special, text = SpecialTokens.default(), TEXTS["dirty"]
    pattern = re.compile("|".join(map(re.escape, sorted(special.tokens, key=len, reverse=True))))
    if way == "agentkit":
        found = benchmark(special.find, text)
    else:
        found = benchmark.pedantic(
            lambda: [(match.start(), match.end(), match[0]) for match in pattern.finditer(text)], rounds=5
        )
    assert len(found) == text.count("<|")


# Large sections, as commands print them, and short ones, where Python's own objects weigh most.
RESULTS = {
    "8 large sections": "".join(
        f"<s{i}>\n{CLEAN[i * 100_000 : (i + 1) * 100_000]}</s{i}>\n" for i in range(8)
    ),
    "4000 short sections": "".join(f"<s{i}>line {i} {'x' * 80}\n</s{i}> between\n" for i in range(4000)),
}


@pytest.mark.parametrize("kind", RESULTS)
@pytest.mark.parametrize("way", ["agentkit", "re"])
def test_capture_slots(benchmark, kind: str, way: str) -> None:
    benchmark.group = f"capture slots, {kind}"
    result = RESULTS[kind]

    def twin() -> dict[str, str]:
        slots = {match[1]: match[2] for match in SECTION.finditer(result)}
        return {**slots, "OUTPUT": SECTION.sub(r"\2", result)}

    slots = benchmark(capture_slots, result) if way == "agentkit" else benchmark(twin)
    assert slots["OUTPUT"]


@pytest.mark.benchmark(group="expand slots, 4000 placeholders in 1 MB")
@pytest.mark.parametrize("way", ["agentkit", "re"])
def test_expand_slots(benchmark, way: str) -> None:
    slots = {"OUTPUT": "whole", "log": "line"}
    text = ("see {OUTPUT} and {nope}; " + "plain words " * 40 + "\n") * 2000
    if way == "agentkit":
        out = benchmark(expand_slots, text, slots)
    else:
        out = benchmark(lambda: PLACEHOLDER.sub(lambda match: slots.get(match[1], match[0]), text))
    assert out == text.replace("{OUTPUT}", "whole")


TOKENS = re.findall(r"\s?\w{1,6}|\s+|[^\w\s]", CLEAN)[:100_000]


@pytest.mark.benchmark(group="repetition guard, 100,000 tokens one by one")
@pytest.mark.parametrize("way", ["agentkit", "a call that does nothing", "a call that takes a str"])
def test_guard(benchmark, way: str) -> None:
    guard = RepetitionGuard()
    call = {
        "agentkit": guard.push,
        "a call that does nothing": len,
        "a call that takes a str": _core.chars_by_four,
    }[way]

    def stream() -> None:
        for token in TOKENS:
            call(token)

    benchmark(stream)
    assert guard.push("") is None


@pytest.mark.benchmark(group="repetition guard, 1 MiB in one delta")
@pytest.mark.parametrize("kind", ["source", "chinese prose of random words", "hex"])
def test_guard_large(benchmark, kind: str) -> None:
    mixed = [chr(0x4E00 + i * 7919 % 3000) for i in range(SIZE // 3)]
    text = {
        "source": CLEAN,
        "chinese prose of random words": "".join(mixed),
        "hex": "".join(f"{i * 2654435761 % 2**32:08x}" for i in range(SIZE // 8)),
    }[kind]
    benchmark(lambda: RepetitionGuard().push(text))


ROWS = [
    {"id": i, "name": f"name {i}", "note": "some text, with comma", "ok": i % 2 == 0, "value": i * 1.5}
    for i in range(8000)
]
JSON = {
    "table": json.dumps(ROWS),
    "irregular": json.dumps(
        [{"a": row, "b": [row]} if i % 2 else {"c": 1} for i, row in enumerate(ROWS[:3000])]
    ),
}


@pytest.mark.parametrize("kind", JSON)
@pytest.mark.parametrize("way", ["encode_tight", "decode_tight", "json.loads and dumps", "toons"])
def test_tight(benchmark, kind: str, way: str) -> None:
    text = JSON[kind]
    benchmark.group = f"tight, {kind}"
    tight = encode_tight(text)
    if way == "encode_tight":
        out = benchmark(encode_tight, text)
    elif way == "decode_tight":
        out = benchmark(decode_tight, tight)
    elif way == "toons":
        toons = pytest.importorskip("toons")
        out = benchmark(lambda: toons.dumps(json.loads(text)))
    else:
        out = benchmark(lambda: json.dumps(json.loads(text), separators=(",", ":")))
    benchmark.extra_info["bytes in and out"] = (len(text), len(out))
    assert len(out) <= len(text)
