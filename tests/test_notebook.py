"""What a notebook shows of a window and of a turn's result: small, and never markup of its texts."""

from __future__ import annotations

from html.parser import HTMLParser

import pytest

from agentkit_fast import Entry, MemoryStore, ScriptedRunner, Session, ShapePolicy, Shaper, TurnResult

HOSTILE = [
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "</td></table><h1>",
    "\" onload='x'",
    "&lt;b&gt;",
    "\ud800 alone",
    "\x00\x1b[31m",
    "x" * 100_000,
]


class Reader(HTMLParser):
    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.names: set[str] = set()
        self.texts: list[str] = []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.names.update(name for name, _ in attrs)

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def read(html: str) -> Reader:
    html.encode("utf-8")  # as a notebook's file does
    reader = Reader(html)
    assert reader.tags == {"div", "p", "table", "tr", "th", "td"}
    assert reader.names == {"style"}
    return reader


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_texts_are_escaped_and_cut(text: str) -> None:
    store = MemoryStore()
    store.append("s", Entry(kind="user", content=text))
    store.append("s", Entry(kind="tool_call", content=text, tool_call_id="c", tool_name="look"))
    store.append("s", Entry(kind="tool_result", content=text, tool_call_id="c", tool_name="look"))
    window = Shaper(store, ScriptedRunner([]), ShapePolicy()).build("s", text)
    html = window._repr_html_()
    assert len(html) < 12_000
    shown = "".join(read(html).texts)
    assert f"{window.tokens:,} tokens" in shown
    result = TurnResult(reply=text, stop_reason=text)._repr_html_()
    assert len(result) < 6000
    read(result)


def test_a_turn_says_what_it_cost() -> None:
    store = MemoryStore()
    session = Session("s", store, ScriptedRunner(["All well."]), system="Be brief.")
    session.inject(Entry(kind="user", content="How is it?"))
    result = session.turn()
    shown = " ".join(read(result._repr_html_()).texts)
    assert "All well." in shown
    assert f"window {result.usage.active:,} tokens" in shown


def test_a_long_window_shows_its_ends() -> None:
    store = MemoryStore()
    for n in range(2000):
        store.append("s", Entry(kind="user" if n % 2 == 0 else "assistant", content=f"line {n} <i>"))
    html = Shaper(store, ScriptedRunner([]), ShapePolicy()).build("s", "sys")._repr_html_()
    shown = "".join(read(html).texts)
    assert "line 1999 <i>" in shown
    assert "line 1000" not in shown
    assert "messages between" in shown
    assert len(html) < 10_000
