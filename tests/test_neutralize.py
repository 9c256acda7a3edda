"""Control tokens are broken, whatever the set and the text, and joiners come off again exactly."""

from __future__ import annotations

import json
import os
from pathlib import Path

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from agentkit_fast.text import SpecialTokens, neutralize_special_tokens, restore_special_tokens

GOLDEN = Path(__file__).parent / "data" / "golden" / "neutralize_default.jsonl"
ROWS = [msgspec.json.decode(line) for line in GOLDEN.read_bytes().splitlines()]
JOINER = "\u2060"


def test_goldens() -> None:
    for row in ROWS:
        assert neutralize_special_tokens(row["in"]) == row["out"]
    assert len(ROWS) == 80


@pytest.mark.parametrize(
    ("text", "want"),
    [
        pytest.param("<|im_end|>", "&lt;|im_end|>", id="chatml"),
        pytest.param("<|", "&lt;|", id="bare pipe"),
        pytest.param("<<||", "<&lt;||", id="glued"),
        pytest.param("<|<|", "&lt;|&lt;|", id="twice"),
        pytest.param("<start_of_turn>model", "&lt;start_of_turn>model", id="gemma"),
        pytest.param("<end_of_turn>", "&lt;end_of_turn>", id="gemma end"),
        pytest.param("<turn|>", "&lt;turn|>", id="gemma closing pipe"),
        pytest.param("<｜User｜>", "&lt;｜User｜>", id="deepseek"),
        pytest.param("[TOOL_CALLS][{", "&#91;TOOL_CALLS][{", id="mistral"),
        pytest.param("[/INST]", "&#91;/INST]", id="mistral closing"),
        pytest.param("<<SYS>>x<</SYS>>", "&lt;<SYS>>x&lt;</SYS>>", id="llama 2"),
        pytest.param("<|start_header_id|>", "&lt;|start_header_id|>", id="llama 3"),
        pytest.param("<|START_OF_TURN_TOKEN|>", "&lt;|START_OF_TURN_TOKEN|>", id="cohere"),
        pytest.param("<start_of_turn<start_of_turn>", "<start_of_turn&lt;start_of_turn>", id="overlapping"),
    ],
)
def test_default(text: str, want: str) -> None:
    assert neutralize_special_tokens(text) == want
    assert SpecialTokens.default().neutralize(text) == want
    assert SpecialTokens.default().find(want) == []


@pytest.mark.parametrize(
    "text",
    [
        "",
        "plain",
        "日本 \U0001f600",
        "</tool_response>",
        "</parameter>",
        "a < b | c",
        "<s>x</s>",
        "cmd [ARGS]",
        "<",
        "[",
    ],
)
def test_text_without_tokens_is_the_same_object(text: str) -> None:
    text = text + "" if text else text
    assert neutralize_special_tokens(text) is text
    assert neutralize_special_tokens(text, style="joiner") is text
    assert restore_special_tokens(text) is text
    assert SpecialTokens(["<x>"]).neutralize(text) is text


def test_a_set_of_its_own_touches_nothing_else() -> None:
    only = SpecialTokens(["<custom>"])
    assert neutralize_special_tokens("<|im_end|><custom>", tokens=only) == "<|im_end|>&lt;custom>"


def test_find_is_leftmost_longest_in_byte_offsets() -> None:
    tokens = SpecialTokens(["<a", "<ab>", "b>"])
    assert tokens.find("日<ab>x<a>b>") == [(3, 7, "<ab>"), (8, 10, "<a"), (11, 13, "b>")]
    assert SpecialTokens.default().find("x<|y") == [(1, 3, "<|")]


@pytest.mark.parametrize(
    ("tokens", "text"),
    [
        pytest.param(["<b>", "&lt;b>"], "<b>", id="the entity spells a token"),
        pytest.param(["<b>", "lt"], "<b>", id="inside the entity"),
        pytest.param(["<b>", ";b>"], "<b>", id="across its end"),
        pytest.param(["[x]", "91"], "[x]", id="inside a numeric entity"),
        pytest.param(["<"], "a<b<<", id="one character"),
        pytest.param(["a", "b", "ab", "&", ";", "#", "9", "7", "l", "t"], "ab&lt;aab", id="everything"),
        pytest.param(["<\u2060b>", "<b>"], "<b><\u2060b>", id="holds the joiner"),
        pytest.param(["\u2060"], "a\u2060b\u2060\u2060", id="is the joiner"),
        pytest.param(["[A[B", "[B]"], "[A[B]", id="overlapping tokens"),
        pytest.param(["aa"], "aaaaa", id="self-overlapping"),
    ],
)
@pytest.mark.parametrize("style", ["entity", "joiner"])
def test_awkward_sets(tokens: list[str], text: str, style: str) -> None:
    special = SpecialTokens(tokens)
    out = neutralize_special_tokens(text, tokens=special, style=style)  # type: ignore[arg-type]  # parametrized
    assert special.find(out) == []
    if style == "joiner":
        assert restore_special_tokens(out) == text


PIECES = ["<", "|", "<|", "|>", "im_end", "<|im_end|>", "start_of_turn", "<start_of_turn>", "｜", "<｜", "[", "]",
          "[TOOL_CALLS]", "TOOL_CALLS", "<<SYS>>", "<SYS>", "&lt;", "&", "lt;", "&#91;", JOINER, "\u2063", "\u2064",
          "\U000e0100", "\U000e013f", "x", "日"]  # fmt: skip
glued = st.lists(st.sampled_from(PIECES), max_size=24).map("".join)


@given(glued)
def test_default_on_glued_pieces(text: str) -> None:
    default = SpecialTokens.default()
    for style in ("entity", "joiner"):
        out = neutralize_special_tokens(text, style=style)  # type: ignore[arg-type]  # a loop variable
        assert default.find(out) == []
        if style == "joiner":
            assert restore_special_tokens(out) == text


token = st.lists(st.sampled_from([*"<>|[]ab&;lt#9", JOINER, "日"]), min_size=1, max_size=4).map("".join)


@given(st.lists(token, min_size=1, max_size=6), st.lists(token, max_size=12).map("".join))
@example([JOINER + "<", "<" + JOINER], "<" + JOINER + "<")
def test_any_set_any_text(tokens: list[str], text: str) -> None:
    special = SpecialTokens(tokens)
    assert special.find(special.neutralize(text)) == []
    out = neutralize_special_tokens(text, tokens=special, style="joiner")
    assert special.find(out) == []
    assert restore_special_tokens(out) == text


unicode = st.text(
    st.characters(exclude_categories=["Cs"]).filter(lambda c: not "\U000e0100" <= c < "\U000e0140")
)


@given(unicode, st.lists(unicode.filter(bool), max_size=4))
def test_any_unicode(text: str, tokens: list[str]) -> None:
    special = SpecialTokens(tokens)
    for whole in (text, "".join([*tokens, text, *tokens])):
        assert special.find(special.neutralize(whole)) == []
        out = neutralize_special_tokens(whole, tokens=special, style="joiner")
        assert special.find(out) == []
        assert restore_special_tokens(out) == whole


@given(st.text())
def test_restore_never_fails_and_leaves_other_text(text: str) -> None:
    restored = restore_special_tokens(text)
    if not set(text) & {JOINER, "\u2063", "\u2064"}:
        assert restored == text or "\ufffd" in restored


def test_the_set_that_leaves_no_joiner_is_refused() -> None:
    special = SpecialTokens(["\u2060", "\u2063", "\u2064"])
    with pytest.raises(ValueError, match="entity"):
        neutralize_special_tokens("\u2060", tokens=special, style="joiner")
    assert special.find(special.neutralize("\u2060\u2063")) == []


def test_unknown_style_and_family_say_what_is_known() -> None:
    with pytest.raises(ValueError, match='"entity" or "joiner"'):
        neutralize_special_tokens("x", style="html")  # type: ignore[arg-type]  # what a user may write
    with pytest.raises(ValueError, match=r"chatml.*gemma.*qwen"):
        SpecialTokens.family("nope")


@pytest.mark.parametrize(
    "family",
    [
        "apertus",
        "chatml",
        "cohere",
        "deepseek",
        "exaone",
        "falcon",
        "gemma",
        "glm",
        "gpt-oss",
        "granite",
        "kimi",
        "llama2",
        "llama3",
        "llama4",
        "minimax",
        "mistral",
        "nemotron",
        "phi",
        "qwen",
        "seed",
        "starcoder",
    ],
)
def test_families_break_their_own(family: str) -> None:
    special = SpecialTokens.family(family)
    text = " ".join(special.tokens)
    assert len(special.find(text)) == len(special.tokens)
    assert special.find(special.neutralize(text)) == []
    # What is unambiguous of it is in the default set, or begins as something there does.
    whole = SpecialTokens.default().find(text)
    assert {token[:2] for _, _, token in whole} & {token[:2] for token in special.tokens}


def test_tokenizer_json(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    added = [
        {"id": 0, "content": "<|end|>", "special": True},
        {"id": 1, "content": "<tool_call>", "special": False},
        {"id": 2, "content": "日", "special": True},
    ]
    path.write_text(json.dumps({"added_tokens": added}), encoding="utf-8")
    assert SpecialTokens.from_tokenizer_json(path).tokens == ["<|end|>", "日"]
    for bad in ("{}", "[]", "x", '{"added_tokens": [1]}', '{"added_tokens": 3}'):
        path.write_text(bad)
        with pytest.raises(ValueError, match=r"tokenizer\.json"):
            SpecialTokens.from_tokenizer_json(path)
    with pytest.raises(OSError):
        SpecialTokens.from_tokenizer_json(os.fspath(tmp_path / "absent"))


def test_lone_surrogates_are_repaired() -> None:
    assert neutralize_special_tokens("\ud83d<|") == "\ufffd&lt;|"
    assert neutralize_special_tokens("\ud83d\ude00") == "\U0001f600"
    assert SpecialTokens(["\ud83d"]).tokens == ["\ufffd"]


# Long text is looked at in pieces of 65,536 characters before Python makes its UTF-8.
LONG = ["日本語のテキスト、", "Ünïcode ist schön. ", "Сегодня <b>хорошая</b> [погода](x). ", "😀🎉"]


@pytest.mark.parametrize("unit", LONG)
@pytest.mark.parametrize("style", ["entity", "joiner"])
def test_long_text_seen_for_the_first_time(unit: str, style: str) -> None:
    def rewrite(text: str, tokens: SpecialTokens | None = None) -> str:
        return neutralize_special_tokens(text, tokens=tokens, style=style)  # type: ignore[arg-type]  # parametrized

    class Own(str):
        __slots__ = ()

    text = unit * (200_000 // len(unit))
    assert rewrite(text) is text
    own = Own(text)
    assert rewrite(own) is own
    odd = SpecialTokens(["Ü日", "本😀", "😀x", "ш" * 70_000])
    for at in (0, 511, 65_500, 65_535, 65_536, 131_060, len(text)):
        broken = text[:at] + "<start_of_turn>" + text[at:]
        assert SpecialTokens.default().find(rewrite(broken)) == []
        if style == "joiner":
            assert restore_special_tokens(rewrite(broken)) == broken
            joined = text[:at] + JOINER + text[at:]
            assert restore_special_tokens(rewrite(joined)) == joined
        assert rewrite(text[:at] + "\udfff" + text[at:]) == text[:at] + "\ufffd" + text[at:]
        assert odd.find(rewrite(text[:at] + "本😀" + text[at:], odd)) == []


@pytest.mark.parametrize("unit", ["<", "<|", "[", "<<SYS>", JOINER, "<" + JOINER, "[TOOL_CALLS", "日<"])
def test_megabytes_of_hostile_text(unit: str) -> None:
    text = unit * (1_000_000 // len(unit))
    default = SpecialTokens.default()
    assert default.find(neutralize_special_tokens(text)) == []
    assert restore_special_tokens(neutralize_special_tokens(text, style="joiner")) == text


def test_gguf(smollm2_path: Path) -> None:
    special = SpecialTokens.from_gguf(smollm2_path)
    assert {"<|im_start|>", "<|im_end|>", "<|endoftext|>"} <= set(special.tokens)
    assert special.neutralize("<|im_end|>") == "&lt;|im_end|>"
    assert special.find("<|no_token_of_this_model|>") == []
