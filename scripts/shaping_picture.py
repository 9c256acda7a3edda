"""Draws `docs/shaping.svg`: the window over 200 user turns, ours, a border that slides every turn, a sliding window.

Run from the repository's root: `python scripts/shaping_picture.py`. All three see the same conversation, the one of
`tests/shaping_talks.py`; the two others are simulated here from their rules, in tokens of four bytes.
"""

from __future__ import annotations

import math
import random
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from agentkit_fast.stores.memory import MemoryStore  # noqa: E402
from shaping_talks import play_long_talk, words  # noqa: E402

BUDGET = 16_000
WIDTH, HEIGHT, LEFT, TOP = 900, 190, 70, 40


def ours() -> tuple[list[int], int]:
    _, windows, summarizer = play_long_talk(BUDGET, store=MemoryStore())
    evaluated = sum(window.new_tokens for window in windows) + summarizer.prompt_bytes // 4
    return [window.tokens for window in windows], evaluated


def requests() -> list[list[int]]:
    """Sizes of all messages at each request, of the same conversation."""
    rng = random.Random(1)
    sizes: list[int] = []
    out = []
    for turn in range(200):
        sizes.append(math.ceil(len(f"Turn {turn}: " + words(rng, 120)) / 4) + 5)
        for step in range(3):
            out.append(list(sizes))
            text, why = words(rng, 60), words(rng, 30)
            sizes.append(math.ceil((len(text) + len(why) + 24) / 4) + 12)
            sizes.append(math.ceil(rng.randrange(800, 4000) / 4) + 6)
            del step
        out.append(list(sizes))
        sizes.append(math.ceil(len(words(rng, 200)) / 4) + 7)
    return out


def sliding_stubs() -> tuple[list[int], int]:
    """Everything older than the last 20 messages is a stub of 800 bytes; what still does not fit is summarized."""
    totals, evaluated, folded, last = [], 0, 0, []
    for sizes in requests():
        border = max(0, len(sizes) - 20)
        shown = [min(size, 220) if at < border else size for at, size in enumerate(sizes)][folded:]
        while sum(shown) > BUDGET * 3 // 4 and folded < border:
            step = max(1, (border - folded) // 2)
            evaluated += sum(shown[:step])
            folded += step
            shown = [100, *shown[step:]]
        same = next(
            (at for at, (a, b) in enumerate(zip(shown, last, strict=False)) if a != b),
            min(map(len, (shown, last))),
        )
        evaluated += sum(shown[same:])
        last = shown
        totals.append(sum(shown))
    return totals, evaluated


def sliding_window() -> tuple[list[int], int]:
    """The newest messages that fit; the oldest falls out at each request."""
    totals, evaluated, first_before = [], 0, 0
    seen = 0
    for sizes in requests():
        total, first = 0, len(sizes)
        while first > 0 and total + sizes[first - 1] <= BUDGET:
            first -= 1
            total += sizes[first]
        evaluated += total if first != first_before else sum(sizes[seen:])
        first_before, seen = first, len(sizes)
        totals.append(total)
    return totals, evaluated


def chart(title: str, totals: list[int], ratio: float, top: int, colour: str) -> str:
    points = []
    for at, total in enumerate(totals):
        x = LEFT + WIDTH * at / (len(totals) - 1)
        y = top + HEIGHT - (HEIGHT - 30) * total / BUDGET
        points.append(f"{x:.1f},{y:.1f}")
    limit = top + 30
    base = top + HEIGHT
    area = f"{LEFT},{base} " + " ".join(points) + f" {LEFT + WIDTH},{base}"
    return (
        f'<text x="{LEFT}" y="{top + 18}" class="t">{title}: {ratio:.2f} tokens evaluated per new one</text>'
        f'<polygon points="{area}" fill="{colour}" fill-opacity="0.25"/>'
        f'<polyline points="{" ".join(points)}" fill="none" stroke="{colour}" stroke-width="1.2"/>'
        f'<line x1="{LEFT}" x2="{LEFT + WIDTH}" y1="{limit}" y2="{limit}" stroke="#999" stroke-dasharray="4 4"/>'
        f'<text x="{LEFT - 8}" y="{limit + 4}" class="a">{BUDGET:,}</text>'
        f'<text x="{LEFT - 8}" y="{base}" class="a">0</text>'
        f'<line x1="{LEFT}" x2="{LEFT + WIDTH}" y1="{base}" y2="{base}" stroke="#999"/>'
    )


def main() -> None:
    new = sum(requests()[-1])
    rows = [
        ("This package", *ours(), "#0a7"),
        ("A stub border that moves every turn", *sliding_stubs(), "#c50"),
        ("A sliding window", *sliding_window(), "#57c"),
    ]
    body = "".join(
        chart(title, totals, evaluated / new, TOP + at * (HEIGHT + 40), colour)
        for at, (title, totals, evaluated, colour) in enumerate(rows)
    )
    height = TOP + len(rows) * (HEIGHT + 40) + 10
    style = (
        "text{font:13px sans-serif;fill:#444}.t{font-weight:bold}.a{text-anchor:end}.m{text-anchor:middle}"
    )
    svg = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH + LEFT + 30} {height}" role="img">'
        f"<title>Window size over 200 user turns</title><style>{style}</style>"
        f'<rect width="100%" height="100%" fill="#fff"/>'
        f'<text x="{LEFT + WIDTH / 2}" y="20" class="m">Window in tokens over 200 user turns of 3 tool rounds, budget'
        f" {BUDGET:,}</text>{body}</svg>\n"
    )
    (ROOT / "docs" / "shaping.svg").write_text(svg, encoding="utf-8")
    for title, totals, evaluated, _ in rows:
        print(f"{title}: {evaluated / new:.2f} evaluated per new token, largest window {max(totals)}")


if __name__ == "__main__":
    main()
