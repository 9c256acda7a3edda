"""Writes rust/core/src/tokens/unicode_table.rs: the Unicode classes that pre-tokenizers ask about.

    python3.13 scripts/gen_unicode_classes.py

Needs a Python whose `unicodedata` is version 15.1 (CPython 3.13): the version llama.cpp's own table was
made from. Another version classifies a few hundred newer characters otherwise, and then token counts of
texts that hold them differ from llama.cpp's.
"""

from __future__ import annotations

import sys
import unicodedata
from pathlib import Path

WANTED = "15.1.0"
OUT = Path(__file__).parents[1] / "rust/core/src/tokens/unicode_table.rs"
BITS = {"L": 1, "N": 2, "M": 4, "P": 16, "S": 32}
SPACE = 8
# White_Space of Unicode: what `\s` matches.
SPACES = {
    *range(9, 14),
    0x20,
    0x85,
    0xA0,
    0x1680,
    *range(0x2000, 0x200B),
    0x2028,
    0x2029,
    0x202F,
    0x205F,
    0x3000,
}


def class_of(code: int) -> int:
    if code in SPACES:
        return SPACE
    return BITS.get(unicodedata.category(chr(code))[0], 0)


def main() -> None:
    if unicodedata.unidata_version != WANTED:
        sys.exit(f"this Python has Unicode {unicodedata.unidata_version}; {WANTED} is needed")
    ranges: list[tuple[int, int]] = []
    for code in range(0x110000):
        kind = class_of(code)
        if not ranges or ranges[-1][1] != kind:
            ranges.append((code, kind))
    lines = [
        "//! Written by scripts/gen_unicode_classes.py; do not edit.",
        "",
        f"/// Unicode {WANTED}: where each run of one class begins, and that class.",
        "#[rustfmt::skip]",
        "pub(super) const RANGES: &[(u32, u8)] = &[",
    ]
    lines.extend(
        "    " + " ".join(f"({code:#x}, {kind})," for code, kind in ranges[start : start + 8])
        for start in range(0, len(ranges), 8)
    )
    lines.append("];")
    OUT.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
