"""Writes llms.txt: what the package is, and each page of the documentation with how it begins.

    python scripts/llms_txt.py [--check]

The pages and their order are those of mkdocs.yml; `--check` only says whether the file is current.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = re.compile(r"^ +- (?P<title>[^:\n]+): (?P<path>[\w/.-]+\.md)$", re.MULTILINE)
# Prose begins with none of these: heading, quote, table, picture, HTML, list, code.
PLAIN = re.compile(r"(?![#>|!<~]|[-*] |\d+\. | {4}|\t|:::)")


def opening(page: str, sentences: int = 2) -> str:
    """The first sentences of prose: no heading, list, table, fence or picture."""
    text = re.sub(r"^```.*?^```", "", page, flags=re.MULTILINE | re.DOTALL)
    for block in (piece.strip("\n") for piece in re.split(r"\n\s*\n", text)):
        if block.strip() and PLAIN.match(block):
            line = re.sub(r"\[([^\]]+)\]\([^)]+\)", r"\1", " ".join(block.split()))
            # A full stop ends a sentence where a capital or nothing follows.
            return " ".join(re.split(r"(?<=[.!?])\s+(?=[A-Z`])", line)[:sentences]).rstrip(":")
    return ""


def render() -> str:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    nav = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").split("\nnav:\n", 1)[1]
    lines = ["# agentkit-fast", "", f"> {opening(readme, 9)}", ""]
    sections: dict[str, list[str]] = {"Documentation": [], "API": []}
    for match in PAGE.finditer(nav):
        page = (ROOT / "docs" / match["path"]).read_text(encoding="utf-8")
        modules = re.findall(r"^::: ([\w.]+)", page, flags=re.MULTILINE)
        what = ", ".join(f"`{name}`" for name in modules) or opening(page)
        where = "API" if match["path"].startswith("api/") else "Documentation"
        sections[where].append(
            f"- [{match['title']}](docs/{match['path']})" + (f": {what}" if what else "")
        )
    for title, rows in sections.items():
        lines += [f"## {title}", "", *rows, ""]
    lines += [
        "## Optional",
        "",
        "- [Type stub of the Rust core](python/agentkit_fast/_core.pyi)",
        "- [Changes](CHANGELOG.md)",
        "",
    ]
    return "\n".join(lines)


def main() -> int:
    target, text = ROOT / "llms.txt", render()
    if "--check" in sys.argv[1:]:
        current = target.exists() and target.read_text(encoding="utf-8") == text
        print("llms.txt is current" if current else "llms.txt is stale: run python scripts/llms_txt.py")
        return int(not current)
    target.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
