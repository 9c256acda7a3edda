"""What a prompt cache has to evaluate, in conversations played to the end. All figures are deterministic."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

from agentkit_fast.shaping import plain_window
from agentkit_fast.stores.memory import MemoryStore
from shaping_checks import ListStore
from shaping_talks import play_long_talk, play_short_talk


@pytest.mark.parametrize(("budget", "most"), [(8_000, 2.0), (16_000, 1.6), (32_000, 1.6), (128_000, 1.6)])
def test_long_talk(budget: int, most: float) -> None:
    cache, windows, _ = play_long_talk(budget, store=MemoryStore())
    assert cache.evaluated / cache.new <= most, "prompt bytes evaluated, summaries included, per new byte"
    assert max(cache.sizes) <= budget
    assert sum(cache.sizes) / len(cache.sizes) >= 0.45 * (budget - budget // 4)
    assert not any(window.degraded for window in windows)


def test_short_talk() -> None:
    cache, windows, _ = play_short_talk(MemoryStore())
    assert cache.requests == 299
    assert 1 - cache.evaluated / cache.sent >= 0.965, "share of the prompts that was reused"
    assert cache.breaks <= 22
    assert cache.breaks == sum(bool(window.break_reason) for window in windows), "every break is reported"
    assert max(cache.sizes) <= 4000


@pytest.mark.parametrize("words", range(70, 135, 10))
def test_short_talk_with_rounds_of_any_size(words: int) -> None:
    """With rounds of `n` tokens no plan that rewrites the window at a step reuses more than `1 - n / budget`.

    From a low mark `l` to the budget `t` a cycle evaluates `t` tokens and sends `(t + l) / 2 * 2 (t - l) / n`, so
    the share evaluated is `n t / (t^2 - l^2)`, least where `l` is nothing.
    """
    store = MemoryStore()
    cache, _, _ = play_short_talk(store, words=words)
    entries = [entry for entry in store.history("s") if entry.kind != "compaction"]
    a_round = plain_window(ListStore(entries), "s", "").tokens / 150
    reused = 1 - cache.evaluated / cache.sent
    assert reused >= 1 - a_round / 4000 - 0.0025, f"{a_round:.0f} tokens a round"
    assert cache.breaks <= 22
    assert max(cache.sizes) <= 4000


@pytest.mark.slow
def test_beside_other_packages() -> None:
    """The table of docs/shaping.md: within the budget none reuses more, and none breaks less often.

    With windows as large as those of peers that count less of a message, ours reuses as much, in fewer breaks.
    """
    pytest.importorskip("langchain_core")
    pytest.importorskip("pydantic_ai_harness")
    script = runpy.run_path(str(Path(__file__).resolve().parent.parent / "scripts" / "shaping_peers.py"))
    shaper, lists, *others = script["rows"]()
    assert shaper.largest <= lists.largest <= 4000
    assert shaper.invalid == lists.invalid == 0
    ours = [row for row in others if "Shaper" in row.name]
    peers = [row for row in others if row not in ours]
    assert (len(ours), len(peers)) in ((2, 6), (2, 7)), "with litellm or without"
    for row in peers:
        if row.largest <= 4000:
            assert row.reused < lists.reused < shaper.reused
            assert row.breaks > lists.breaks
    for row in ours:
        theirs = others[others.index(row) - 1]
        assert row.largest <= theirs.largest
        assert row.reused >= theirs.reused - 0.0005
        assert row.breaks <= theirs.breaks
