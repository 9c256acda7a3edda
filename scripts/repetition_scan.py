"""Run the repetition guard over the files of this machine and print what it takes for a loop.

    python scripts/repetition_scan.py                  the default folders, each file in one delta
    python scripts/repetition_scan.py FOLDER...        these folders
    python scripts/repetition_scan.py --pieces 4       and each file in deltas of 4 characters
    python scripts/repetition_scan.py --dumps          and hex dumps and base64 of the binary files

Default: the standard library, site-packages, `/usr/share`, `/usr/include` and `/var/log`, where present. A file counts
once, however many copies of it lie about. Compressed text (`.gz`) is read as text, a catalogue of translations (`.mo`)
as its messages. Of each file the first finding is told, for a model would be stopped there.
"""

from __future__ import annotations

import argparse
import base64
import gzip
import hashlib
import json
import os
import struct
import sys
import sysconfig
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from agentkit_fast.text import Repetition, RepetitionGuard

MAX_FILE = 64 << 20
DUMPED = 1 << 20  # bytes of a binary file
SYSTEM = ("/usr/share", "/usr/include", "/var/log")


class Finding(NamedTuple):
    path: str
    kind: str
    """`period`: the copies are the same; `counting`: they differ in numbers."""
    found: Repetition

    def __str__(self) -> str:
        found = self.found
        return (
            f"{self.path}: {self.kind}, period {found.period}, reps {found.reps}, "
            f"{found.trailing + found.period} bytes: {found.sample[:160]!r}"
        )


def default_folders() -> list[Path]:
    """The standard library, every site-packages on the path, and the system's own files."""
    packages = [entry for entry in sys.path if entry.endswith(("site-packages", "dist-packages"))]
    folders = map(Path, (sysconfig.get_paths()["stdlib"], *packages, *SYSTEM))
    return [folder for folder in dict.fromkeys(folders) if folder.is_dir()]


def files(folders: Iterable[Path]) -> Iterator[tuple[Path, bytes]]:
    """Every file with its bytes, each content once. Links are not followed."""
    seen: set[bytes] = set()
    for folder in folders:
        for place, inner, names in os.walk(folder):
            inner.sort()
            for name in sorted(names):
                path = Path(place, name)
                try:
                    if path.is_symlink() or not path.is_file() or not 0 < path.stat().st_size <= MAX_FILE:
                        continue
                    raw = path.read_bytes()
                except OSError as error:
                    print(f"not read: {error}", file=sys.stderr)
                    continue
                digest = hashlib.blake2b(raw, digest_size=16).digest()
                if digest not in seen:
                    seen.add(digest)
                    yield path, raw


def text_of(path: Path, raw: bytes) -> str | None:
    """The text of a file; `None` where it holds none."""
    try:
        if path.suffix == ".mo":
            return messages(raw)
        if raw.startswith(b"\x1f\x8b"):
            raw = gzip.decompress(raw)
        return None if b"\0" in raw else raw.decode()
    except (ValueError, OSError, EOFError, zlib.error, struct.error):
        return None


def messages(catalogue: bytes) -> str:
    """A catalogue of gettext (`.mo`) as its source (`.po`) has it: each message and its translations."""
    order = "<" if catalogue.startswith(b"\xde\x12\x04\x95") else ">"
    magic, _, count, *tables = struct.unpack_from(f"{order}5I", catalogue)
    if magic != 0x950412DE:
        raise ValueError("not a catalogue of messages")

    def text(table: int, index: int) -> list[str]:
        length, at = struct.unpack_from(f"{order}2I", catalogue, table + 8 * index)
        return catalogue[at : at + length].decode().split("\0")

    lines: list[str] = []
    for index in range(count):
        message, translations = (text(table, index) for table in tables)
        lines += [f"msgid {json.dumps(form, ensure_ascii=False)}" for form in message]
        lines += [
            f"msgstr[{number}] {json.dumps(form, ensure_ascii=False)}"
            for number, form in enumerate(translations)
        ]
    return "\n".join(lines)


def dumps_of(raw: bytes) -> Iterator[tuple[str, str]]:
    """A binary file as `xxd`, `hexdump -C`, `base64` and a C array print it."""
    raw = raw[:DUMPED]
    lines = [raw[at : at + 16] for at in range(0, len(raw), 16)]
    shown = raw.translate(bytes(byte if 32 <= byte < 127 else 46 for byte in range(256))).decode()
    for name, mark, groups in (("xxd", ": ", 2), ("hexdump", "  ", 1)):
        yield (
            name,
            "".join(
                f"{at * 16:08x}{mark}{line.hex(' ', groups)}  |{shown[at * 16 : at * 16 + 16]}|\n"
                for at, line in enumerate(lines)
            ),
        )
    yield "base64", base64.encodebytes(raw).decode()
    yield "C array", "".join("".join(f"0x{byte:02x}, " for byte in line) + "\n" for line in lines)


def look(name: str, text: str, piece: int) -> Finding | None:
    """What the guard finds in `text`; `piece` characters a delta, 0: in one."""
    guard, step = RepetitionGuard(), piece or len(text) or 1
    for at in range(0, len(text), step):
        delta = text[at : at + step]
        if found := guard.push(delta):
            pushed = text[: at + len(delta)].encode()
            end = len(pushed) - found.after
            newest = pushed[end - found.period : end]
            same = newest == pushed[end - 2 * found.period : end - found.period]
            return Finding(name, "period" if same else "counting", found)
    return None


class Scan(NamedTuple):
    files: int
    bytes: int
    kinds: Counter[str]
    """Bytes by the files' suffixes."""
    findings: list[Finding]


def scan(folders: Iterable[Path], *, piece: int = 0, dumps: bool = False) -> Scan:
    kinds: Counter[str] = Counter()
    findings: list[Finding] = []
    count = 0
    for path, raw in files(folders):
        text = text_of(path, raw)
        texts: Iterable[tuple[str, str]] = [(path.suffix or "no suffix", text)] if text is not None else ()
        if text is None and dumps:
            texts = dumps_of(raw)
        for kind, content in texts:
            count += 1
            kinds[kind] += len(content.encode())
            name = str(path) if text is not None else f"{path} ({kind})"
            cut = [look(name, content, 0)] + (
                [look(f"{name} (in pieces)", content, piece)] if piece else []
            )
            findings.extend(finding for finding in cut if finding)
    return Scan(count, kinds.total(), kinds, findings)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folders", nargs="*", type=Path, metavar="FOLDER")
    parser.add_argument("--pieces", type=int, default=0, metavar="N", help="also in deltas of N characters")
    parser.add_argument("--dumps", action="store_true", help="also dumps of the binary files")
    given = parser.parse_args(arguments)
    folders = given.folders or default_folders()
    if missing := [str(folder) for folder in folders if not folder.is_dir()]:
        parser.error(f"no such folder: {', '.join(missing)}")
    result = scan(folders, piece=given.pieces, dumps=given.dumps)
    print("folders:", ", ".join(map(str, folders)))
    print(f"{result.files:,} texts, {result.bytes:,} bytes")
    print("most of it:", ", ".join(f"{kind} {size:,}" for kind, size in result.kinds.most_common(24)))
    print(f"{len(result.findings)} findings")
    for finding in result.findings:
        print(finding)


if __name__ == "__main__":
    main()
