"""Writes the tables of figures into the pages, from what the benches measured.

    make bench                               measures; one JSON file a module in .benchmarks/; BENCHES="text http": two
    cargo bench -p agentkit-core             the Rust core by itself (target/criterion)
    python scripts/figures.py                writes each row whose benches have run (`make figures`)
    python scripts/figures.py FILE.json …    from these files, and criterion's

A row that no file holds, or of which only one side was measured, stays as the page has it, marked † where other rows of
its table are newer; stderr says so. Ratios come from the unrounded medians.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
OLD = " †"
CLOCKS = {"process_time": "processor time", "perf_counter": "wall clock"}


class Figure(NamedTuple):
    """One bench: seconds, what else it reported, and where it ran."""

    median: float
    best: float
    extra: dict[str, Any]
    machine: str
    day: date
    clock: str


@dataclass(frozen=True)
class Row:
    """A line of a table. `cells` name benches by their short names in `benches`:

    `{a}` is the time of `a`, `{a/b}` how often `b` fits into it, `{a#key}` what it reported under that key, `{a@f}`
    what the table's function `f` makes of it.
    """

    task: str
    benches: dict[str, str]
    cells: tuple[str, ...]


@dataclass(frozen=True)
class Table:
    """`name` is what its marks in `page` are called."""

    page: str
    name: str
    heads: tuple[str, ...]
    rows: tuple[Row, ...]
    functions: dict[str, Callable[[Figure], str]] = field(default_factory=dict)

    @property
    def begin(self) -> str:
        return f"<!-- {self.name}: written by scripts/figures.py -->"

    @property
    def end(self) -> str:
        return f"<!-- end of {self.name} -->"


def beside(task: str, ours: str, peers: dict[str, str], here: str = "{ours}") -> Row:
    """The usual row: our time, each peer's, and how often ours fits into theirs. `peers`: words with `{}` → bench."""
    names = [f"peer{at}" for at in range(len(peers))]
    words = [text.replace("{}", f"{{{name}}}") for name, text in zip(names, peers, strict=True)]
    ratios = " and ".join(f"{{{name}/ours}}" for name in names)
    benches = {"ours": ours, **dict(zip(names, peers.values(), strict=True))}
    return Row(task, benches, (here, "; ".join(words), ratios))


def in_rust(task: str, ours: str, peers: dict[str, str]) -> Row:
    return beside(task, ours, peers, "{ours} ({ours#MB/s} MB/s)")


USUAL = ("task", "here", "beside it", "ratio")
TEXT, CALLS, SHAPING = "test_text.py::", "test_heredoc.py::", "test_shaping.py::"


def mebibyte(figure: Figure) -> str:
    return f"{(1 << 20) / 1e6 / figure.median:,.0f} MB/s"


def of_a_token(figure: Figure) -> str:
    return time(figure.median / 100_000)


def of_a_push(figure: Figure) -> str:
    return time(figure.median / (115_000 / 4))


TABLES = (
    Table(
        "docs/performance.md",
        "text",
        USUAL,
        (
            beside(
                "`neutralize_special_tokens`, 1 MiB of source without tokens (the same `str` comes back)",
                TEXT + "test_neutralize[agentkit-clean]",
                {"`str.replace` of one token {}": TEXT + "test_neutralize[str.replace-clean]"},
            ),
            beside(
                "the same, a token every 250 bytes",
                TEXT + "test_neutralize[agentkit-dirty]",
                {"`str.replace` {}": TEXT + "test_neutralize[str.replace-dirty]"},
            ),
            beside(
                "the same, 1 MiB of Chinese without tokens",
                TEXT + "test_neutralize[agentkit-chinese]",
                {"`str.replace` {}": TEXT + "test_neutralize[str.replace-chinese]"},
            ),
            beside(
                "the same, each Chinese text seen for the first time",
                TEXT + "test_neutralize_fresh[agentkit]",
                {"`str.replace` {}": TEXT + "test_neutralize_fresh[str.replace]"},
            ),
            beside(
                "neutralize and restore with joiners, a token every 250 bytes",
                TEXT + "test_joiner[agentkit]",
                {"two `str.replace`, one token, not exact, {}": TEXT + "test_joiner[two str.replace]"},
            ),
            beside(
                "`SpecialTokens.find`, 4,200 tokens in 1 MiB",
                TEXT + "test_find[agentkit]",
                {"one compiled `re` of the same set {}": TEXT + "test_find[re]"},
            ),
            beside(
                "`capture_slots`, 8 sections of 100 KB",
                TEXT + "test_capture_slots[agentkit-8 large sections]",
                {"`re` with a back-reference {}": TEXT + "test_capture_slots[re-8 large sections]"},
            ),
            beside(
                "`capture_slots`, 4,000 short sections",
                TEXT + "test_capture_slots[agentkit-4000 short sections]",
                {"`re` {}": TEXT + "test_capture_slots[re-4000 short sections]"},
            ),
            beside(
                "`expand_slots`, 4,000 placeholders in 1 MB",
                TEXT + "test_expand_slots[agentkit]",
                {"`re.sub` {}": TEXT + "test_expand_slots[re]"},
            ),
            Row(
                "`RepetitionGuard.push`, one token a call",
                {
                    "ours": TEXT + "test_guard[agentkit]",
                    "empty": TEXT + "test_guard[a call that does nothing]",
                    "text": TEXT + "test_guard[a call that takes a str]",
                },
                (
                    "{ours@token}",
                    "an empty C call (`len`) {empty@token}; one that takes a `str` into Rust {text@token}",
                    "{ours/empty} and {ours/text} its time",
                ),
            ),
            Row(
                "`RepetitionGuard.push`, 1 MiB of source in one delta",
                {"ours": TEXT + "test_guard_large[source]"},
                ("{ours} ({ours@rate})", "", ""),
            ),
            beside(
                "`encode_tight`, 870 KB of rows",
                TEXT + "test_tight[encode_tight-table]",
                {
                    "`json.loads` and `json.dumps` {}": TEXT + "test_tight[json.loads and dumps-table]",
                    "`toons` (TOON, in Rust) {}": TEXT + "test_tight[toons-table]",
                },
            ),
            Row(
                "`decode_tight` of it",
                {"ours": TEXT + "test_tight[decode_tight-table]"},
                ("{ours}", "", ""),
            ),
        ),
        {"token": of_a_token, "rate": mebibyte},
    ),
    Table(
        "docs/performance.md",
        "calls",
        USUAL,
        (
            beside(
                "`parse_tool_calls`, one body of 115 KB",
                CALLS + "test_parse_tool_calls",
                {
                    "`json.loads` of the same strict JSON {}": CALLS
                    + "test_json_loads_of_the_same_strict_json"
                },
            ),
            beside(
                "`check_arguments` of that strict JSON (the same `str` comes back)",
                CALLS + "test_check_arguments_of_the_same_strict_json",
                {"`json.loads` {}": CALLS + "test_json_loads_of_the_same_strict_json"},
            ),
            beside(
                "`check_arguments`, the same JSON cut at half",
                CALLS + "test_check_arguments_of_a_cut_call",
                {
                    "LangChain's `parse_partial_json` {} (it closes what is open; this only refuses)": CALLS
                    + "test_langchain_partial_json_of_a_cut_call"
                },
            ),
            beside(
                "`repair_json`, 40 loose rows (3 KB)",
                CALLS + "test_repair_json",
                {"`json_repair` {}": CALLS + "test_json_repair"},
            ),
            Row(
                "`repair_json`, 1,000 loose rows (80 KB)",
                {"ours": CALLS + "test_repair_json_of_many_rows"},
                ("{ours}", "", ""),
            ),
            beside(
                "`render_tool_call` of the 115 KB body",
                CALLS + "test_render_tool_call_of_the_same_strict_json",
                {"`json.loads` {}": CALLS + "test_json_loads_of_the_same_strict_json"},
            ),
            Row(
                "`HeredocStream`, the 115 KB body, four letters a push",
                {"ours": CALLS + "test_stream_of_4_letters_a_push"},
                ("{ours}, {ours@push} a push", "", ""),
            ),
        ),
        {"push": of_a_push},
    ),
    Table(
        "docs/performance.md",
        "shaping",
        USUAL,
        (
            beside(
                "first window of 10,000 entries, store to request bytes",
                SHAPING + "TestFirstBuild::test_from_memory_store",
                {
                    "msgspec encoding the same dicts {}": SHAPING
                    + "TestFirstBuild::test_msgspec_encodes_the_same_dicts"
                },
            ),
            beside(
                "10,000 messages into 4,000 tokens (`shape_messages`)",
                SHAPING + "TestList::test_shape_messages",
                {
                    "LangChain's `trim_messages`, given its objects {}": SHAPING
                    + "TestList::test_langchain_trim_messages[objects]",
                    "given the same dicts {}": SHAPING + "TestList::test_langchain_trim_messages[dicts]",
                },
            ),
            Row(
                "one more entry, history of 1,000 / 100,000",
                {
                    "short": SHAPING + "test_next_build[plain-1000]",
                    "long": SHAPING + "test_next_build[plain-100000]",
                },
                ("{short} / {long}", "", "{long/short} its time"),
            ),
        ),
    ),
    Table(
        "docs/performance.md",
        "core",
        ("the Rust core by itself", "here", "beside it, in Rust", "ratio"),
        (
            in_rust(
                "neutralize, 1 MiB without tokens",
                "criterion::neutralize/clean",
                {
                    "`str::replace` of one token {}": "criterion::neutralize/clean, twin: str::replace of one token"
                },
            ),
            in_rust(
                "neutralize, 1 MiB full of tokens",
                "criterion::neutralize/dirty",
                {
                    "`str::replace` of one token {}": "criterion::neutralize/dirty, twin: str::replace of one token"
                },
            ),
            in_rust(
                "repetition guard, 1 MiB of source",
                "criterion::repetition/source, one delta",
                {"every period tried {}": "criterion::repetition/source, twin: every period tried"},
            ),
            in_rust(
                "capture 2,000 sections",
                "criterion::slots/capture",
                {"a search for each tag {}": "criterion::slots/capture, twin: a search for each tag"},
            ),
            in_rust(
                "expand 2,000 placeholders",
                "criterion::slots/expand",
                {
                    "`str::replace` of one name {}": "criterion::slots/expand, twin: str::replace of one name"
                },
            ),
            in_rust(
                "tight text of 8,000 rows",
                "criterion::tight/encode",
                {"`serde_json` reads and writes {}": "criterion::tight/twin: serde_json reads and writes"},
            ),
            in_rust(
                "parse a call with a body of 115 KB",
                "criterion::heredoc/parse_tool_calls, 115 kB body",
                {
                    "`serde_json` reads the same as strict JSON {}": (
                        "criterion::heredoc/twin: serde_json reads the strict 115 kB"
                    )
                },
            ),
            in_rust(
                "check strict arguments of 115 KB",
                "criterion::heredoc/check_arguments, strict 115 kB",
                {
                    "`serde_json` reads them {}": "criterion::heredoc/twin: serde_json reads the strict 115 kB"
                },
            ),
            in_rust(
                "repair 1,000 loose rows",
                "criterion::heredoc/repair_json, loose rows",
                {
                    "`serde_json` reads and writes strict ones {}": (
                        "criterion::heredoc/twin: serde_json reads and writes the strict rows"
                    )
                },
            ),
        ),
    ),
)


def digits(value: float) -> str:
    """Two figures that count: 0.14, 2.5, 27, 1,433."""
    if value >= 10:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 0.995 else f"{value:.2f}"


def time(seconds: float) -> str:
    for unit, size, below in (("ns", 1e-9, 1e-6), ("µs", 1e-6, 1e-4), ("ms", 1e-3, 10)):
        if seconds < below:
            return f"{digits(seconds / size)} {unit}"
    return f"{digits(seconds)} s"


def ratio(over: Figure, under: Figure) -> str:
    """How often `under` fits into `over`; the best runs' ratio too, where the two differ by a fifth."""
    value, best = over.median / under.median, over.best / under.best
    text = f"{digits(value)} ×"
    if not 0.8 < best / value < 1.25:
        text += f" (best {digits(best)} ×)"
    return f"**{text}**" if value < 0.95 else text


CELL = re.compile(r"\{(?P<name>\w+)(?:(?P<how>[/#@])(?P<what>[^}]+))?\}")


def fill(cell: str, figures: dict[str, Figure], functions: dict[str, Callable[[Figure], str]]) -> str:
    def one(match: re.Match[str]) -> str:
        figure = figures[match["name"]]
        match match["how"]:
            case "/":
                return ratio(figure, figures[match["what"]])
            case "#":
                value = figure.extra
                for key in match["what"].split("#"):
                    value = value[key]
                return f"{value:,}" if isinstance(value, int) else str(value)
            case "@":
                return functions[match["what"]](figure)
        return time(figure.median)

    return CELL.sub(one, cell)


def processor() -> str:
    """The model, where the system tells it (Linux)."""
    info = Path("/proc/cpuinfo")
    found = re.search(r"^model name\s*: (.+)$", info.read_text(), re.MULTILINE) if info.exists() else None
    return found[1] if found else platform.processor() or platform.machine()


def from_pytest(path: Path) -> Iterator[tuple[str, Figure]]:
    """Each bench by `file.py::Class::test[parameters]`."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError:  # the plugin opens its file before it measures
        print(f"{path}: no figures in it; the run was stopped, or all was skipped", file=sys.stderr)
        return
    about = data["machine_info"]
    model = about["cpu"].get("brand_raw") or about["machine"]
    machine = f"{model}, {about['cpu']['count']} cores, Python {about['python_version']}"
    day = datetime.fromisoformat(data["datetime"]).date()
    for bench in data["benchmarks"]:
        stats, clock = bench["stats"], bench["options"]["timer"]
        # A parameter may hold a slash.
        place, bracket, parameters = bench["fullname"].partition("[")
        yield (
            place.rpartition("/")[2] + bracket + parameters,
            Figure(
                stats["median"], stats["min"], bench["extra_info"], machine, day, CLOCKS.get(clock, clock)
            ),
        )


def from_criterion(folder: Path) -> Iterator[tuple[str, Figure]]:
    machine = f"{processor()}, {os.cpu_count()} cores, Rust"
    for path in folder.rglob("new/estimates.json"):
        about = json.loads((path.parent / "benchmark.json").read_text(encoding="utf-8"))
        estimates = json.loads(path.read_text(encoding="utf-8"))
        median = estimates["median"]["point_estimate"] / 1e9
        day = datetime.fromtimestamp(path.stat().st_mtime, UTC).date()
        name = f"criterion::{about['group_id']}/{about['function_id']}"
        size = (about["throughput"] or {}).get("Bytes")
        extra = {} if size is None else {"MB/s": round(size / 1e6 / median)}
        # Criterion writes no shortest time.
        yield name, Figure(median, median, extra, machine, day, "wall clock")


def rows_of(text: str) -> dict[str, str]:
    """The rows that stand in a table now, by their first cell."""
    lines = [line for line in text.splitlines() if line.startswith("|")][2:]
    return {re.split(r"(?<!\\)\|", line)[1].strip(): line for line in lines}


def render(table: Table, stands: str, figures: dict[str, Figure], tell: Callable[[str], object]) -> str:
    """The text between the marks. `stands` is what is there now."""
    old, measured = rows_of(stands), [row for row in table.rows if not missing(row, figures)]
    lines = ["| " + " | ".join(table.heads) + " |", "|---" * len(table.heads) + "|"]
    kept = 0
    for row in table.rows:
        if row in measured:
            mine = {name: figures[bench] for name, bench in row.benches.items()}
            cells = [fill(cell, mine, table.functions) for cell in row.cells]
            lines.append("| " + " | ".join([row.task, *cells]).rstrip() + " |")
            continue
        tell(f"{table.page}: {row.task}: not measured: {', '.join(missing(row, figures))}")
        if (line := old.get(row.task)) is None:
            lines.append(f"| {row.task} |" + " not measured yet |" + " |" * (len(table.heads) - 2))
        elif measured and OLD not in line:
            kept += 1
            lines.append(re.sub(r" *\|$", f"{OLD} |", line))
        else:
            kept += OLD in line
            lines.append(line)
    used = [figures[bench] for row in measured for bench in row.benches.values()]
    note = "\n".join(line for line in stands.splitlines() if not line.startswith("|")).strip()
    if used:
        where = " and ".join(sorted({figure.machine for figure in used}))
        clock = " and ".join(sorted({figure.clock for figure in used}))
        note = f"{where}; {clock}, medians; {max(figure.day for figure in used)}."
        note += f"{OLD}: an older run." if kept else ""
    return "\n".join([*lines, "", note] if note else lines)


def missing(row: Row, figures: dict[str, Figure]) -> list[str]:
    return sorted({bench for bench in row.benches.values() if bench not in figures})


def between(table: Table, page: str) -> str:
    """What stands between a table's marks."""
    _, begin, rest = page.partition(table.begin)
    inside, end, _ = rest.partition(table.end)
    if not begin or not end:
        raise SystemExit(
            f"{table.page} has no marks {table.begin} … {table.end}: put them where the table belongs"
        )
    return inside.strip("\n")


def write(
    figures: dict[str, Figure],
    root: Path = ROOT,
    tables: Iterable[Table] = TABLES,
    tell: Callable[[str], object] = lambda line: print(line, file=sys.stderr),
) -> None:
    for table in tables:
        path = root / table.page
        page = path.read_text(encoding="utf-8")
        stands = between(table, page)
        new = render(table, stands, figures, tell)
        whole = page.replace(
            f"{table.begin}{page.partition(table.begin)[2].partition(table.end)[0]}{table.end}",
            f"{table.begin}\n\n{new}\n\n{table.end}",
        )
        path.write_text(whole, encoding="utf-8")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "files", nargs="*", type=Path, help="JSON of pytest-benchmark; default .benchmarks/*.json"
    )
    parser.add_argument("--criterion", type=Path, default=ROOT / "target" / "criterion", metavar="FOLDER")
    parser.add_argument("--root", type=Path, default=ROOT, help="where the pages are")
    given = parser.parse_args(arguments)
    figures = dict(from_criterion(given.criterion))
    # The newest word on a bench counts.
    for path in sorted(
        given.files or (ROOT / ".benchmarks").glob("*.json"), key=lambda path: path.stat().st_mtime
    ):
        figures.update(from_pytest(path))
    write(figures, given.root)


if __name__ == "__main__":
    main()
