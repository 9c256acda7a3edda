"""`agentkit-fast bench`: the headline comparisons, on the user's own machine, each beside something familiar.

Both sides of a row run one after the other in this process. Peers that are not installed are named and left out.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import platform
import re
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table

from agentkit_fast import __version__
from agentkit_fast.cli.embedded import embedded_model
from agentkit_fast.entries import Entry
from agentkit_fast.messages import StreamChunk, ToolCall, ToolDef
from agentkit_fast.runners.scripted import ScriptedRunner
from agentkit_fast.session import Session
from agentkit_fast.shaping import ShapePolicy, Shaper, shape_messages
from agentkit_fast.stores.memory import MemoryStore
from agentkit_fast.text import capture_slots, neutralize_special_tokens
from agentkit_fast.tokens import GgufTokenizer

__all__ = ["Result", "run_bench"]

# A row is measured for so long, and at least twice a side: the whole stays well under half a minute.
_SECONDS = 0.6
_SIZE = 1 << 20
_ROUNDS = 5
_SECTION = re.compile(r"<([A-Za-z_]\w*)>(.*?)</\1>", re.DOTALL)


class Result(msgspec.Struct, kw_only=True):
    """One comparison: the best time of each side, in seconds. `ratio`: theirs by ours."""

    task: str
    seconds: float
    beside: str = ""
    beside_seconds: float = 0.0
    note: str = ""

    @property
    def ratio(self) -> float:
        return self.beside_seconds / self.seconds if self.beside_seconds and self.seconds else 0.0


def _best(work: Callable[[], object], *, for_s: float = _SECONDS) -> float:
    """The best time of one call: what the work costs when nothing else disturbs it."""
    best = float("inf")
    until = time.perf_counter() + for_s
    calls = 0
    while calls < 2 or time.perf_counter() < until:
        began = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - began)
        calls += 1
    return best


def _source() -> str:
    """A mebibyte of the standard library, without control tokens."""
    pieces: list[str] = []
    size = 0
    for path in sorted(Path(json.__file__).parent.parent.glob("*.py")):
        text = path.read_text(encoding="ascii", errors="ignore").replace("<|", "< |")
        pieces.append(text)
        size += len(text)
        if size >= _SIZE:
            break
    text = "".join(pieces) or "def nothing():\n    return None\n"
    return (text * (_SIZE // len(text) + 1))[:_SIZE]


def _neutralize(text: str) -> Iterator[Result]:
    dirty = text.replace("\n\n", "<|im_end|>\n")
    for name, given in (("without control tokens", text), ("with one every few lines", dirty)):
        yield Result(
            task=f"neutralize all families' tokens, 1 MiB {name}",
            seconds=_best(lambda given=given: neutralize_special_tokens(given)),  # type: ignore[misc]
            beside="str.replace of one token",
            beside_seconds=_best(lambda given=given: given.replace("<|", "&lt;|")),  # type: ignore[misc]
        )


def _slots(text: str) -> Iterator[Result]:
    result = "".join(f"<s{n}>\n{text[n * 100_000 : (n + 1) * 100_000]}</s{n}>\n" for n in range(8))

    def twin() -> object:
        return {match[1]: match[2] for match in _SECTION.finditer(result)}, _SECTION.sub(r"\2", result)

    yield Result(
        task="capture slots, 8 sections of 100 KB",
        seconds=_best(lambda: capture_slots(result)),
        beside="re",
        beside_seconds=_best(twin),
    )


def _talk(count: int) -> list[Entry]:
    return [
        Entry(kind="assistant" if n % 2 else "user", content=f"message {n} about shelves " * 5)
        for n in range(count)
    ]


def _next_window(count: int) -> float:
    store = MemoryStore()
    store.append_many("s", _talk(count))
    shaper = Shaper(store, None, ShapePolicy())
    shaper.build("s", "sys")

    def step() -> None:
        store.append("s", Entry(kind="user", content="one more " * 10))
        shaper.build("s", "sys")

    return _best(step)


def _shaping(_: str) -> Iterator[Result]:
    yield Result(
        task="the next window of a session of 1,000 entries",
        seconds=_next_window(1_000),
        beside="the same at 100,000 entries",
        beside_seconds=_next_window(100_000),
        note="1 × is best: the cost does not grow with the history",
    )
    messages: list[dict[str, Any]] = [{"role": "system", "content": "You keep a depot."}]
    for n in range(1000):
        call = {"id": f"c{n}", "type": "function", "function": {"name": "look", "arguments": '{"n":1}'}}
        messages += [
            {"role": "user", "content": f"check bay {n}"},
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": f"c{n}", "content": f"{n} " + "box " * 50},
            {"role": "assistant", "content": f"bay {n} is fine"},
        ]
    row = Result(
        task="4,001 messages into 4,000 tokens",
        seconds=_best(lambda: shape_messages(messages, budget=4000)),
    )
    if importlib.util.find_spec("langchain_core"):
        peer = importlib.import_module("langchain_core.messages")
        theirs = peer.convert_to_messages(messages)
        row.beside = "LangChain trim_messages"
        row.beside_seconds = _best(
            lambda: peer.trim_messages(
                theirs,
                max_tokens=4000,
                token_counter="approximate",  # noqa: S106 - a way of counting
                strategy="last",
                include_system=True,
            )
        )
        row.note = "trim_messages drops; it neither stubs nor repairs"
    else:
        row.note = "install langchain-core for a comparison"
    yield row


def _our_turn(history: int) -> Callable[[], object]:
    store = MemoryStore()
    store.append_many("s", _talk(history))
    session = Session(
        "s",
        store,
        ScriptedRunner([]),
        tools=[ToolDef(name="look", description="Look at a shelf.")],
        dispatch=lambda call: "seen",
        max_repeated_exchanges=-1,
    )
    numbers = iter(range(10**9))

    def turn() -> object:
        replies: list[Any] = [
            [
                StreamChunk(
                    tool_call=ToolCall(id=f"k{number}", name="look", arguments=f'{{"n":{number}}}')
                ),
                StreamChunk(done=True, finish_reason="tool_calls"),
            ]
            for number in (next(numbers) for _ in range(_ROUNDS))
        ]
        store.append("s", Entry(kind="user", content="Where is the red book?"))
        session.runner = ScriptedRunner([*replies, "Found."])
        return session.turn()

    return turn


def _langgraph_turn(history: int) -> Callable[[], object]:
    base: Any = importlib.import_module("langchain_core.language_models.chat_models").BaseChatModel
    kinds = importlib.import_module("langchain_core.messages")
    outputs = importlib.import_module("langchain_core.outputs")
    tool = importlib.import_module("langchain_core.tools").tool
    create_react_agent = importlib.import_module("langgraph.prebuilt").create_react_agent

    class Fake(base):  # type: ignore[misc]  # the peer is loaded by name, so its base is not known here
        asked: int = 0

        @property
        def _llm_type(self) -> str:
            return "fake"

        def bind_tools(self, tools: Any, **more: Any) -> Any:
            return self

        def _generate(self, messages: Any, stop: Any = None, run_manager: Any = None, **more: Any) -> Any:
            self.asked += 1
            if self.asked % (_ROUNDS + 1) == 0:
                message = kinds.AIMessage("Found.")
            else:
                wanted: Any = {"name": "look", "args": {"n": self.asked}, "id": f"k{self.asked}"}
                message = kinds.AIMessage("", tool_calls=[wanted])
            return outputs.ChatResult(generations=[outputs.ChatGeneration(message=message)])

    def look(n: int) -> str:
        """Look at a shelf."""
        return "seen"

    graph = create_react_agent(Fake(), [tool(look)])
    talk: list[Any] = [
        (kinds.AIMessage if n % 2 else kinds.HumanMessage)(f"message {n} about shelves " * 5)
        for n in range(history)
    ]
    return lambda: graph.invoke(
        {"messages": [*talk, kinds.HumanMessage("Where is it?")]}, {"recursion_limit": 100}
    )


def _turn(_: str) -> Iterator[Result]:
    history = 2_000
    row = Result(
        task=f"a tool round of the loop, {history:,} messages of history, no model",
        seconds=_best(_our_turn(history)) / (_ROUNDS + 1),
    )
    if importlib.util.find_spec("langgraph") and importlib.util.find_spec("langchain_core"):
        row.beside = "LangGraph create_react_agent"
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it announces that it has moved
            try:
                row.beside_seconds = _best(_langgraph_turn(history)) / (_ROUNDS + 1)
            except (ImportError, AttributeError) as error:  # its prebuilt agent is on the move
                row.beside, row.note = (
                    "",
                    f"this langgraph has no create_react_agent as we call it: {error}",
                )
    else:
        row.note = "install langgraph for a comparison"
    yield row


@contextmanager
def _llama_vocab(path: Path) -> Iterator[Callable[[str], int]]:
    import ctypes

    import llama_cpp as api

    log = api.llama_log_callback(lambda level, text, data: None)
    api.llama_log_set(log, ctypes.c_void_p(0))
    params = api.llama_model_default_params()
    params.vocab_only = True
    model = api.llama_model_load_from_file(str(path).encode(), params)
    if not model:
        raise OSError(f"llama.cpp cannot read {path}")
    vocab = api.llama_model_get_vocab(model)

    def count(text: str) -> int:
        raw = text.encode()
        buffer = (api.llama_token * (len(raw) + 16))()
        return int(api.llama_tokenize(vocab, raw, len(raw), buffer, len(raw) + 16, False, False))

    try:
        yield count
    finally:
        api.llama_model_free(model)
        api.llama_log_set(api.llama_log_callback(0), ctypes.c_void_p(0))


def _tokens(text: str, model: Path | None) -> Iterator[Result]:
    path = model or embedded_model()
    if path is None:
        yield Result(task="count the tokens of 1 MiB", seconds=0.0, note="give a GGUF file with --model")
        return
    ours = GgufTokenizer(path)
    found = ours.count(text)
    seconds = _best(lambda: ours.count(text))
    row = Result(
        task="count the tokens of 1 MiB",
        seconds=seconds,
        note=f"{found / seconds / 1e6:.1f} million tokens/s",
    )
    if importlib.util.find_spec("llama_cpp"):
        with _llama_vocab(path) as count:
            if count(text) == found:
                row.beside, row.beside_seconds = "llama.cpp", _best(lambda: count(text), for_s=0.0)
            else:
                row.note += "; llama.cpp counts otherwise"
    else:
        row.note += "; install llama-cpp-python for a comparison"
    yield row


def _time(seconds: float) -> str:
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= size:
            return f"{seconds / size:,.3g} {unit}"
    return f"{seconds * 1e9:,.0f} ns" if seconds else "–"


def _table(results: Sequence[Result]) -> Table:
    table = Table(box=None, pad_edge=False)
    for title, justify in (
        ("task", "left"),
        ("here", "right"),
        ("beside it", "left"),
        ("", "right"),
        ("ratio", "right"),
    ):
        table.add_column(title, justify=justify)  # type: ignore[arg-type]
    table.add_column("", style="dim")
    for row in results:
        ratio = f"{row.ratio:.2g} ×" if 0 < row.ratio < 10 else f"{row.ratio:,.0f} ×" if row.ratio else ""
        table.add_row(
            row.task,
            _time(row.seconds),
            row.beside,
            _time(row.beside_seconds) if row.beside else "",
            ratio,
            row.note,
        )
    return table


def run_bench(*, model: Path | None, json_output: bool) -> int:
    """Measure and print; 1 where the extension is a debug build, whose figures say nothing."""
    from agentkit_fast._core import DEBUG_BUILD

    if DEBUG_BUILD:
        print("the extension is a debug build; build it in release mode first", file=sys.stderr)
        return 1
    began = time.perf_counter()
    text = _source()
    results: list[Result] = []
    status = Console(stderr=True, highlight=False)
    for name, group in (
        ("text", _neutralize),
        ("slots", _slots),
        ("shaping", _shaping),
        ("turn", _turn),
        ("tokens", lambda text: _tokens(text, model)),
    ):
        with status.status(f"measuring: {name}"):
            results.extend(group(text))
    took = time.perf_counter() - began
    if json_output:
        rows = [{**msgspec.to_builtins(row), "ratio": round(row.ratio, 3)} for row in results]
        machine = {
            "python": platform.python_version(),
            "machine": platform.machine(),
            "system": platform.system(),
        }
        print(json.dumps({"version": __version__, **machine, "took_s": round(took, 1), "results": rows}))
        return 0
    console = Console(highlight=False)
    console.print(_table(results))
    console.print(
        f"[dim]agentkit-fast {__version__}, Python {platform.python_version()}, {platform.machine()}; best times,"
        f" both sides in one process; took {took:.0f} s[/]"
    )
    return 0
