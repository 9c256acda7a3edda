"""The X-ray: a session as the model saw it, turn by turn, as one self-contained HTML page.

The history is played again through the shaper, up to each reply in turn, with the summaries that are in the
store: the same entries and the same policy give the same windows. The page needs no network and works from a
file. All text goes into it as data and is shown as text; a policy in the page forbids any script but its own.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator, Sequence
from importlib import resources
from typing import Any

import msgspec

from agentkit_fast import model_words
from agentkit_fast.entries import Entry, EntryKind, EntryUsage, RequestRetry
from agentkit_fast.messages import Message, StreamChunk, ToolDef
from agentkit_fast.protocols import RunnerProfile, TokenCounter
from agentkit_fast.shaping import PlacedUnit, ShapePolicy, Shaper
from agentkit_fast.stores.memory import MemoryStore

__all__ = ["Round", "Segment", "render_page", "replay"]

_SESSION = "xray"


class Segment(msgspec.Struct, kw_only=True, frozen=True):
    """A piece of a window.

    `form`: `system`, `full`, `stub`, `bare`, `marker` or `out` (left out of the view). `shown`: the texts that
    stood for the entries where they were shortened or folded, one a message; else empty.
    """

    form: str
    kind: str
    tokens: int
    entries: tuple[str, ...] = ()
    shown: tuple[str, ...] = ()


class Round(msgspec.Struct, kw_only=True, frozen=True):
    """One request to the model, and the entry that answered it."""

    number: int
    reply_id: str
    at: int
    tokens: int
    budget: int
    segments: tuple[Segment, ...]
    break_reason: str = ""
    degraded: str = ""
    folded: int = 0
    cached: int = 0
    evaluated: int = 0
    generated: int = 0
    latency_ms: int = 0
    measured: bool = False
    """The reply carries what it cost; else `cached` and `evaluated` are taken from the windows' common prefix."""
    retries: tuple[RequestRetry, ...] = ()
    """Why this was asked again: a reply that could not be used, or requests that failed, and the waits after them."""


class _RecordedSummaries:
    """A runner that answers the summary prompts of a replay with the markers of the store, in order."""

    # A window in which every prompt fits: a summary written in pieces left one marker, which is asked for once.
    profile = RunnerProfile(context_tokens=2**40)

    def __init__(self, markers: Sequence[str]) -> None:
        self._markers = list(markers)

    def chat_stream(self, messages: Any, tools: Any = (), options: Any = None) -> Iterator[StreamChunk]:
        if not self._markers:
            raise LookupError("the store holds no further summary")
        yield StreamChunk(content=self._markers.pop(0))
        yield StreamChunk(done=True, finish_reason="stop")


def _rounds(entries: Sequence[Entry]) -> list[int]:
    """Where a round's answer begins: an assistant entry, or a call with no assistant text before it."""
    starts = []
    answering = False
    for index, entry in enumerate(entries):
        if entry.kind == EntryKind.assistant or (entry.kind == EntryKind.tool_call and not answering):
            starts.append(index)
        answering = entry.kind in (EntryKind.assistant, EntryKind.tool_call)
    return starts


def replay(
    history: Sequence[Entry],
    policy: ShapePolicy,
    *,
    counter: TokenCounter | None = None,
    system: str = "",
    tools: Sequence[ToolDef] = (),
    profile: RunnerProfile | None = None,
) -> list[Round]:
    """The windows of a history, one for each reply.

    `history` is everything, folded entries and markers included (a store's `history()`). `profile` is that of the model
    the windows were for (default: an OpenAI endpoint's).
    """
    markers = [entry.content for entry in history if entry.kind == EntryKind.compaction]
    entries = sorted(
        (entry for entry in history if entry.kind != EntryKind.compaction),
        key=lambda entry: (entry.created_at, entry.id),
    )
    store = MemoryStore()
    # Without a marker in the store nothing was summarized: what did not fit was left out.
    shaper = Shaper(
        store,
        _RecordedSummaries(markers) if markers else None,
        policy,
        counter=counter,
        profile=profile or RunnerProfile(),
    )
    rounds: list[Round] = []
    fed = 0
    for number, start in enumerate(_rounds(entries), 1):
        new = entries[fed:start]
        for entry in new:
            store.append(_SESSION, msgspec.structs.replace(entry))
        fed = start
        window = shaper.build(_SESSION, system, tools)
        answer = entries[start]
        usage = answer.usage or EntryUsage()
        counted = usage.cached + usage.processed + usage.generated > 0
        rounds.append(
            Round(
                number=number,
                reply_id=answer.id,
                at=answer.created_at,
                tokens=window.tokens,
                budget=policy.budget_tokens,
                segments=_segments(shaper.layout(_SESSION), window.tokens, entries[:start]),
                break_reason=window.break_reason,
                degraded=window.degraded,
                folded=sum(info.subsumed_count for info in window.compactions),
                cached=usage.cached if counted else window.tokens - window.new_tokens,
                evaluated=usage.processed if counted else window.new_tokens,
                generated=usage.generated,
                latency_ms=usage.latency_ms,
                measured=counted,
                retries=(*_asked_again(new), *usage.retries),
            )
        )
    return rounds


_AGAIN = {
    model_words.TAG_REPETITION: "the reply before repeated itself",
    model_words.TAG_EMPTY: "the reply before was empty",
}


def _asked_again(new: Sequence[Entry]) -> Iterator[RequestRetry]:
    """What the loop's own notices since the last reply say of it."""
    for entry in new:
        if entry.kind == EntryKind.notification and (reason := _AGAIN.get(entry.tag)):
            yield RequestRetry(reason=reason)


def _segments(units: Sequence[PlacedUnit], tokens: int, shown: Sequence[Entry]) -> tuple[Segment, ...]:
    """The window's pieces; what no unit accounts for is the system message and the tools' schemas."""
    rest = max(0, tokens - sum(unit.tokens for unit in units))
    named = {entry_id for unit in units for entry_id in unit.entry_ids}
    # A marker stands for every entry before it that has no place of its own any more; its own text is `shown`,
    # for the replay makes it anew.
    folded = tuple(entry.id for entry in shown if entry.id not in named)
    pieces = [Segment(form="system", kind="system", tokens=rest)]
    pieces.extend(
        Segment(
            form=unit.form,
            kind=unit.kind,
            tokens=unit.tokens,
            entries=folded if unit.form == "marker" else unit.entry_ids,
            shown=tuple(map(_text_of, unit.shown)),
        )
        for unit in units
    )
    return tuple(pieces)


def _text_of(message: Message) -> str:
    """A message as the panel shows it: its role, its text, its calls."""
    text = message.content or "\n".join(part.text for part in message.parts if part.text)
    calls = "".join(f"\n→ {call.name} {call.arguments}" for call in message.tool_calls)
    return f"{message.role}: {text}{calls}"


def _data(title: str, history: Sequence[Entry], rounds: Sequence[Round], notes: Sequence[str]) -> str:
    """The page's data as JSON that cannot end a script element, whatever text it holds."""
    rows = msgspec.to_builtins(rounds)
    # A stub stands in every window after it was made: its text goes into the page once.
    places: dict[str, int] = {}
    for row in rows:
        for segment in row["segments"]:
            segment["shown"] = [places.setdefault(text, len(places)) for text in segment["shown"]]
    payload = {
        "title": title,
        "notes": list(notes),
        "rounds": rows,
        "texts": list(places),
        "entries": {
            entry.id: {
                "kind": entry.kind,
                "content": entry.content,
                "reasoning": entry.reasoning,
                "tool": entry.tool_name,
                "call": entry.tool_call_id,
                "tag": entry.tag,
                "at": entry.created_at,
                "images": sum(part.type != "text" for part in entry.parts),
            }
            for entry in history
        },
    }
    text = json.dumps(payload, ensure_ascii=True, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _asset(name: str) -> str:
    return resources.files("agentkit_fast").joinpath("assets", name).read_text(encoding="utf-8")


def _sha256(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode("ascii")


def render_page(
    title: str, history: Sequence[Entry], rounds: Sequence[Round], notes: Sequence[str] = ()
) -> str:
    """One HTML document: the windows as bars, every entry's text behind a click; `notes` say what is not known."""
    script, style = _asset("xray.js"), _asset("xray.css")
    policy = (
        f"default-src 'none'; script-src 'sha256-{_sha256(script)}'; style-src 'sha256-{_sha256(style)}'"
    )
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>Session X-ray</title>\n<style>{style}</style></head>\n<body>\n"
        f'<script id="data" type="application/json">{_data(title, history, rounds, notes)}</script>\n'
        f"<script>{script}</script>\n</body></html>\n"
    )
