"""The tables of `docs/providers.md`, written from the rows that are tested and the data that is used.

python scripts/quirk_table.py            write it into the page
python scripts/quirk_table.py --check    exit 1 when the page is not current
"""

from __future__ import annotations

import sys
from itertools import groupby
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "providers.md"
BEGIN = "<!-- quirks: written by scripts/quirk_table.py from tests/http_quirks.py -->"
END = "<!-- end of quirks -->"
PROVIDERS_BEGIN = "<!-- providers: written by scripts/quirk_table.py from runners/_http/profiles.py -->"
PROVIDERS_END = "<!-- end of providers -->"
sys.path.insert(0, str(ROOT / "tests"))


def table() -> str:
    """All rows, a table for each area."""
    from http_quirks import ROWS

    parts = [f"{len(ROWS)} recordings, each over a real socket, sync and async, and cut at every byte.\n"]
    for area, rows in groupby(ROWS, key=lambda row: row.area):
        parts.append(f"### {area[0].upper()}{area[1:]}\n")
        parts.append("| seen in | what the server does | what comes of it | test |\n|---|---|---|---|")
        for row in rows:
            cells = (row.seen, row.what, row.ours, f"`{row.id}`")
            parts.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
        parts.append("")
    return "\n".join(parts)


def providers() -> str:
    """What each provider takes and calls things."""
    from agentkit_fast.runners._http.profiles import PROVIDERS

    rows = (
        ("grammar (GBNF)", lambda p: "yes" if p.grammar else "no"),
        ("JSON schema", lambda p: "yes" if p.json_schema else "no"),
        ("token limit", lambda p: p.max_tokens_key),
        ("repeat penalty", lambda p: p.repeat_penalty_key),
        ("thinking on and off", lambda p: p.thinking_key or (p.effort_off and "reasoning_effort")),
        ("reasoning budget", lambda p: p.reasoning_budget_key),
        ("budget message", lambda p: p.reasoning_message_key),
        ("reasoning sent back", lambda p: p.reasoning_field),
        ("one tool by name", lambda p: "yes" if p.named_tool_choice else "only it is offered"),
        ("tokenizer", lambda p: "yes" if p.tokenize else ""),
        ("cuts prompts silently", lambda p: "yes" if p.silent_truncation else ""),
    )
    lines = ["| | " + " | ".join(p.name for p in PROVIDERS) + " |", "|---" * (len(PROVIDERS) + 1) + "|"]
    for name, of in rows:
        cells = [of(p) or "–" for p in PROVIDERS]
        marked = [f"`{cell}`" if "_" in cell or "." in cell else cell for cell in cells]
        lines.append(f"| {name} | " + " | ".join(marked) + " |")
    return "\n".join(lines)


def replaced(text: str, begin: str, end: str, inner: str) -> str:
    """`text` with what stands between the marks replaced."""
    before, rest = text.split(begin)
    _, after = rest.split(end)
    return f"{before}{begin}\n\n{inner}\n{end}{after}"


def page(text: str) -> str:
    """The page with its tables replaced."""
    text = replaced(text, PROVIDERS_BEGIN, PROVIDERS_END, providers() + "\n")
    return replaced(text, BEGIN, END, table())


def main() -> int:
    """Write or check."""
    text = PAGE.read_text(encoding="utf-8")
    current = page(text)
    if "--check" in sys.argv[1:]:
        if text != current:
            print("docs/providers.md is not current: run python scripts/quirk_table.py")
            return 1
        return 0
    PAGE.write_text(current, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
