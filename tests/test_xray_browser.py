"""The X-ray page in a real headless Chromium: bars, clicks, what the model saw, and hostile text that stays text."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agentkit_fast import Entry, EntryUsage, RequestRetry, ShapePolicy
from agentkit_fast.xray import render_page, replay
from test_xray import play

sync_api = pytest.importorskip("playwright.sync_api")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs a Chromium on the PATH")

SYSTEM = "You are a depot clerk."
HOSTILE = (
    "</script><script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">"
    "<svg onload=document.title='owned'><a href=\"javascript:document.title='owned'\">go</a>\u2028<!--"
)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_api.sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield started
        started.close()


class Opened:
    """A page from a file, and everything the browser complained about or asked the network for."""

    def __init__(self, browser: Any, html: str, path: Path) -> None:
        path.write_text(html, encoding="utf-8")
        self.problems: list[str] = []
        self.page = browser.new_page(viewport={"width": 1200, "height": 900})
        self.page.on("console", lambda message: self.problems.append(message.text))
        self.page.on("pageerror", lambda error: self.problems.append(str(error)))
        self.page.on(
            "request", lambda request: request.url.startswith("file:") or self.problems.append(request.url)
        )
        self.page.on("dialog", lambda dialog: (self.problems.append(dialog.message), dialog.dismiss()))
        self.page.goto(path.as_uri())


@pytest.fixture(scope="module")
def talk(tmp_path_factory: pytest.TempPathFactory, browser: Any) -> Iterator[tuple[Opened, list[Any], Any]]:
    policy = ShapePolicy(
        budget_tokens=8000, lod_above=200, preserve_last_messages=4, preserve_last_tool_calls=2
    )
    _, history = play(policy, 60)
    rounds = replay(history, policy, system=SYSTEM)
    opened = Opened(browser, render_page("depot", history, rounds), tmp_path_factory.mktemp("x") / "x.html")
    yield opened, rounds, {entry.id: entry for entry in history}
    assert opened.problems == []


def test_a_bar_for_each_request_whose_pieces_have_their_share(talk: Any) -> None:
    opened, rounds, _ = talk
    bars = opened.page.locator(".bar")
    assert bars.count() == len(rounds)
    for at in (0, len(rounds) // 2, len(rounds) - 1):
        bar = bars.nth(at)
        shown = [segment for segment in rounds[at].segments if segment.tokens]
        widths = bar.locator("button").evaluate_all(
            "nodes => nodes.map(n => n.getBoundingClientRect().width)"
        )
        assert len(widths) >= len(shown)
        whole = bar.bounding_box()["width"]
        # Free room is what no piece covers; a piece is at least a pixel wide.
        used = whole * rounds[at].tokens / rounds[at].budget
        assert abs(sum(widths) - used) < len(widths) + 1
        colours = bar.locator("button").evaluate_all(
            "nodes => new Set(nodes.map(n => getComputedStyle(n).backgroundColor)).size"
        )
        assert colours == len({segment.form for segment in shown})


@pytest.mark.parametrize("form", ["stub", "marker"])
def test_click_shows_what_the_model_saw_beside_the_full_text(talk: Any, form: str) -> None:
    opened, rounds, entries = talk
    number, segment = next(
        (row.number, piece) for row in rounds for piece in row.segments if piece.form == form
    )
    bar = opened.page.locator(".bar").nth(number - 1)
    bar.locator(f"button.{form}").first.evaluate("node => node.click()")
    panel = opened.page.locator("#panel")
    assert panel.is_visible()
    seen = panel.locator("#seen pre").all_text_contents()
    assert seen == list(segment.shown)
    assert seen
    full = panel.locator("#full pre").all_text_contents()
    for entry_id in segment.entries:
        assert entries[entry_id].content in full
    if form == "stub":
        # The full result is not what the model saw, and is a good deal longer.
        assert max(map(len, full)) > 2 * max(map(len, seen))
        left, right = panel.locator("#seen").bounding_box(), panel.locator("#full").bounding_box()
        assert left["y"] == right["y"]
        assert left["x"] + left["width"] <= right["x"] + 1
    else:
        assert any("The bays up to here were checked" in text for text in seen)
        assert len(segment.entries) > 10
    opened.page.keyboard.press("Escape")
    assert not panel.is_visible()


def test_click_on_a_verbatim_piece_shows_its_text_once(talk: Any) -> None:
    opened, rounds, entries = talk
    segment = next(piece for piece in rounds[0].segments if piece.form == "full")
    opened.page.locator(".bar").first.locator("button.full").first.click()
    texts = opened.page.locator("#panel pre").all_text_contents()
    assert texts == [entries[entry_id].content for entry_id in segment.entries]
    assert opened.page.locator("#seen").count() == 0
    opened.page.locator("#close").click()
    assert not opened.page.locator("#panel").is_visible()


def test_hostile_text_runs_no_script(browser: Any, tmp_path: Path) -> None:
    history = [
        Entry(id="u", kind="user", content=HOSTILE, created_at=1),
        Entry(
            id='"><img src=x onerror=alert(1)>', kind="notification", tag=HOSTILE, content="", created_at=2
        ),
        Entry(id="c", kind="tool_call", content=HOSTILE, tool_call_id="c", tool_name=HOSTILE, created_at=3),
        Entry(id="r", kind="tool_result", content=HOSTILE * 40, tool_call_id="c", created_at=4),
        Entry(id="a", kind="assistant", content=HOSTILE, reasoning=HOSTILE, created_at=5),
        Entry(id="m", kind="user", content="more", created_at=6),
        Entry(id="b", kind="assistant", content=HOSTILE, created_at=7),
    ]
    policy = ShapePolicy(lod_above=100, preserve_last_messages=0, preserve_last_tool_calls=0)
    rounds = replay(history, policy, system=HOSTILE)
    opened = Opened(browser, render_page(HOSTILE, history, rounds), tmp_path / "hostile.html")
    page = opened.page
    assert page.locator("h1").text_content() == HOSTILE
    for button in page.locator(".bar button").all():
        button.evaluate("node => node.click()")
        assert page.locator("#panel").is_visible()
    page.wait_for_timeout(50)
    assert page.title() == "Session X-ray"
    assert page.locator("img, svg, a, iframe").count() == 0
    assert page.locator("script").count() == 2
    assert opened.problems == []


def test_retries_are_told_with_reason_and_wait(browser: Any, tmp_path: Path) -> None:
    usage = EntryUsage(
        processed=40,
        retries=(
            RequestRetry(reason=HOSTILE, attempt=1, delay_s=2.04),
            RequestRetry(reason="slow down", attempt=2, delay_s=31.0),
        ),
    )
    history = [
        Entry(id="u", kind="user", content="go on", created_at=1),
        Entry(id="a", kind="assistant", content="bay bay", created_at=2),
        Entry(id="n", kind="notification", tag="repetition", content="You repeat yourself.", created_at=3),
        Entry(id="b", kind="assistant", content="bay 4 is fine", usage=usage, created_at=4),
        Entry(id="m", kind="user", content="more", created_at=5),
        Entry(id="c", kind="assistant", content="bay 5 as well", created_at=6),
    ]
    opened = Opened(
        browser, render_page("t", history, replay(history, ShapePolicy())), tmp_path / "again.html"
    )
    said = [box.locator(".again").all_text_contents() for box in opened.page.locator(".round").all()]
    assert said == [
        [],
        [
            "Asked again: the reply before repeated itself",
            f"Asked again after 2 s (request 2): {HOSTILE}",
            "Asked again after 31 s (request 3): slow down",
        ],
        [],
    ]
    assert "asked again 3 times" in (opened.page.locator(".totals").text_content() or "")
    assert opened.page.title() == "Session X-ray"
    assert opened.page.locator("img, svg, a, iframe").count() == 0
    assert opened.problems == []


def test_the_policy_of_the_page_stops_a_foreign_script(browser: Any, tmp_path: Path) -> None:
    html = render_page("t", [], []).replace("<body>", "<body><script>document.title='owned'</script>")
    opened = Opened(browser, html, tmp_path / "foreign.html")
    assert opened.page.title() == "Session X-ray"
    assert any("Content Security Policy" in problem for problem in opened.problems)
