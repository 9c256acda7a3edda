"""What every function of the text core owes to any `str`: no half characters lost, no encoding errors."""

from __future__ import annotations

import contextlib
import inspect
import json
import sys
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentkit_fast import text as core
from agentkit_fast.entries import Entry
from agentkit_fast.text import RepetitionGuard, SpecialTokens
from agentkit_fast.views import StreamRestorer, restore_arguments

LONE = [
    "\ud800",
    "a\udc00b",
    "\ud83d\ude00",
    "x\ud83d",
    "<a>\ud800</a>{a}",
    '@@call f\n{a: "\ude00"}\n\ud800',
    "\udcff<|x|>",
]


def _tools(text: str) -> list[dict[str, Any]]:
    schema = {"type": "object", "properties": {text: {"enum": [text]}}, "required": [text]}
    return [{"name": text, "description": text, "parameters": schema}]


STEP = 1  # letters of a push


def _pushed(stream: Any, text: str) -> Any:
    return [stream.push(text[at : at + STEP]) for at in range(0, len(text), STEP)]


def refusal(call: Callable[[], Any]) -> str:
    with pytest.raises(ValueError) as caught:
        call()
    assert not isinstance(caught.value, UnicodeError)
    return str(caught.value)


CALLS: dict[str, Callable[[str], Any]] = {
    "capture_slots": core.capture_slots,
    "check_arguments": core.check_arguments,
    "decode_tight": core.decode_tight,
    "encode_tight": core.encode_tight,
    "expand_entries": lambda text: core.expand_entries([Entry(kind="assistant", content=text)]),
    "expand_slots": lambda text: core.expand_slots(text + "{a}", {"a": text, text: text}),
    "heredoc_grammar": lambda text: core.heredoc_grammar(_tools(text)),
    "heredoc_lark": lambda text: core.heredoc_lark(_tools(text)),
    "heredoc_prompt": lambda text: core.heredoc_prompt(_tools(text)),
    "HeredocStream.push": lambda text: _pushed(core.HeredocStream(), text),
    "loose_json": lambda text: core.loose_json("'" + text + "'"),
    "neutralize_special_tokens": core.neutralize_special_tokens,
    "neutralize, style": lambda text: refusal(lambda: core.neutralize_special_tokens("", style=text)),
    "parse_tool_calls": core.parse_tool_calls,
    "rejected_arguments": lambda text: core.rejected_arguments(text, text),
    "render_tool_call": lambda text: core.render_tool_call(text, {text: text}),
    "render_tool_call, text": lambda text: core.render_tool_call(text, text),
    "repair_json": core.repair_json,
    "RepetitionGuard": lambda text: RepetitionGuard(where=text).where,
    "RepetitionGuard.push": lambda text: _pushed(RepetitionGuard(), text * (800 if len(text) < 100 else 1)),
    "restore_special_tokens": core.restore_special_tokens,
    "section_names": core.section_names,
    "SpecialTokens": lambda text: SpecialTokens([text]).tokens,
    "SpecialTokens.family": lambda text: refusal(lambda: SpecialTokens.family(text)),
    "SpecialTokens.find": lambda text: SpecialTokens([text[:99]]).find(text),
    "SpecialTokens.neutralize": lambda text: SpecialTokens([text[:99]]).neutralize(text),
    "truncate_middle": lambda text: core.truncate_middle(text * 30, 20, hint=text),
}


def valid(result: Any) -> None:
    """Every text inside `result` is one that UTF-8 can hold."""
    if isinstance(result, str):
        result.encode()
    elif isinstance(result, dict):
        valid([*result, *result.values()])
    elif isinstance(result, (list, tuple)):
        for one in result:
            valid(one)
    elif isinstance(result, msgspec.Struct):
        valid([getattr(result, name) for name in result.__struct_fields__])


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
@pytest.mark.parametrize("text", LONE, ids=ascii)
def test_no_surrogate_is_an_error_or_comes_back(call: Callable[[str], Any], text: str) -> None:
    valid(call(text))


UNITS = [
    "<a>",
    "<a><b>",
    "{",
    '{"a":',
    "~~~\n",
    "```\n",
    "`",
    "<",
    "<|",
    "[",
    "@@call f\n{a: ",
    "|",
    "日<",
    "0",
]


@pytest.mark.timeout(60)
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_megabytes_of_one_thing(call: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    # Quadratic work would take minutes here.
    monkeypatch.setattr(sys.modules[__name__], "STEP", 1000)
    for unit in UNITS:
        with contextlib.suppress(ValueError):
            call(unit * (200_000 // len(unit)))


@pytest.mark.parametrize(
    "text", ["ab\U0001f600cdefghijklmnopqrstuvwxyz " * 100, "\U0001f600" * 2000], ids=["long", "short"]
)
def test_the_guard_joins_pairs_cut_in_two(text: str) -> None:
    units = text.encode("utf-16-le")
    halves = [units[at : at + 2].decode("utf-16-le", "surrogatepass") for at in range(0, len(units), 2)]
    guard, whole = RepetitionGuard(), RepetitionGuard().push(text)
    found = next(found for half in halves if (found := guard.push(half)) is not None)
    assert whole is not None
    assert found.period == whole.period
    assert "\ufffd" not in found.sample
    guard.push("\ud83d")
    guard.reset()
    found = next(found for half in ["\ude00", *halves] if (found := guard.push(half)) is not None)
    assert found.period == whole.period


@pytest.mark.parametrize(
    "option", ["min_period", "max_period", "min_reps", "min_span", "check_every", "short_span"]
)
@pytest.mark.parametrize("value", [-1, 10**30])
def test_options_out_of_range_are_value_errors(option: str, value: int) -> None:
    with pytest.raises(ValueError, match=r"negative|large"):
        RepetitionGuard(**{option: value})


@pytest.mark.parametrize(
    ("function", "want"),
    [
        (core.neutralize_special_tokens, "(text, *, tokens=None, style='entity')"),
        (core.truncate_middle, "(text, limit, *, hint='')"),
        (
            RepetitionGuard,
            (
                "(*, min_period=24, max_period=1024, min_reps=3, min_span=512, check_every=256, short_span=4096,"
                " where='content')"
            ),
        ),
    ],
    ids=["neutralize_special_tokens", "truncate_middle", "RepetitionGuard"],
)
def test_signatures(function: Any, want: str) -> None:
    assert str(inspect.signature(function)) == want


pieces = st.lists(st.sampled_from(["<|", "<|im_end|>", "\u2060", "\u2063", "\u2064", "x", "日"])).map(
    "".join
)


@given(pieces, st.integers(1, 4))
def test_a_stream_is_restored_however_it_is_cut(text: str, size: int) -> None:
    shown = core.neutralize_special_tokens(text, style="joiner")
    restorer = StreamRestorer()
    out = "".join(restorer.push(shown[at : at + size]) for at in range(0, len(shown), size))
    assert out + restorer.finish() == text


@given(pieces | st.lists(st.sampled_from(["\\", "u2060", "\\u2063", "x"])).map("".join), st.booleans())
def test_arguments_are_restored_also_from_escapes(text: str, escaped: bool) -> None:
    shown = core.neutralize_special_tokens(text, style="joiner")
    arguments = json.dumps({"a": shown}, ensure_ascii=escaped)
    restored = restore_arguments(arguments, core.restore_special_tokens)
    assert json.loads(restored) == {"a": text}
