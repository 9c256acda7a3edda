"""The GGUF header reader: equal to the `gguf` package's on the real models, and hard to break."""

from __future__ import annotations

import random
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from agentkit_fast import AgentkitError
from agentkit_fast._core import GgufHeader

DAMAGED = (AgentkitError, ValueError, OSError)


def text(value: str | bytes) -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(raw)) + raw


def small_header() -> bytes:
    keys = [
        text("general.architecture") + struct.pack("<I", 8) + text("llama"),
        text("llama.context_length") + struct.pack("<II", 4, 8192),
        text("t.tokens") + struct.pack("<IIQ", 9, 8, 2) + text("a") + text("日本"),
        text("t.scores") + struct.pack("<IIQff", 9, 6, 2, 0.5, -1.0),
        text("t.flag") + struct.pack("<IB", 7, 1),
    ]
    tensor = text("embed") + struct.pack("<IQQIQ", 2, 4, 2, 0, 0)
    return b"GGUF" + struct.pack("<IQQ", 3, 1, len(keys)) + b"".join(keys) + tensor


@pytest.fixture
def write(tmp_path: Path):
    def write(raw: bytes) -> Path:
        path = tmp_path / "file.gguf"
        path.write_bytes(raw)
        return path

    return write


def test_values(write) -> None:
    header = GgufHeader(write(small_header()))
    assert header.keys() == [
        "general.architecture",
        "llama.context_length",
        "t.tokens",
        "t.scores",
        "t.flag",
    ]
    assert [header.get(key) for key in header.keys()] == ["llama", 8192, ["a", "日本"], [0.5, -1.0], True]  # noqa: SIM118
    assert header.get("absent") is None
    assert header.get("absent", 7) == 7
    assert (header.version, header.big_endian, header.tensor_count) == (3, False, 1)
    assert header.byte_len == len(small_header())


@pytest.mark.parametrize("model", ["smollm2_path", pytest.param("gemma_path", marks=pytest.mark.slow)])
def test_equal_to_the_gguf_package(model: str, request: pytest.FixtureRequest) -> None:
    gguf = pytest.importorskip("gguf")
    path = request.getfixturevalue(model)
    ours, theirs = GgufHeader(path), gguf.GGUFReader(path)
    names = [name for name in theirs.fields if not name.startswith("GGUF.")]
    assert ours.keys() == names
    for name in names:
        assert ours.get(name) == theirs.fields[name].contents(), name
    assert ours.tensor_count == len(theirs.tensors)


def test_cut_at_every_offset(write) -> None:
    whole = small_header()
    for end in range(len(whole)):
        with pytest.raises(DAMAGED, match="ends after"):
            GgufHeader(write(whole[:end]))


def test_cut_real_header(smollm2_path: Path, write) -> None:
    header = GgufHeader(smollm2_path)
    with smollm2_path.open("rb") as file:
        whole = file.read(header.byte_len)
    assert GgufHeader(write(whole)).keys() == header.keys()
    draw = random.Random(4)
    for end in [len(whole) - 1, *(draw.randrange(len(whole)) for _ in range(50))]:
        with pytest.raises(DAMAGED, match="ends after"):
            GgufHeader(write(whole[:end]))


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="nowhere"):
        GgufHeader(tmp_path / "nowhere.gguf")
    with pytest.raises(OSError):
        GgufHeader(tmp_path)


def test_large_file_costs_its_header(write, tmp_path: Path) -> None:
    path = write(small_header())
    with path.open("r+b") as file:
        file.truncate(100 << 30)  # sparse: 100 GiB of nothing behind the header
    assert GgufHeader(path).byte_len == len(small_header())


KEYS = struct.pack("<IQQ", 3, 0, 1)
ABSURD = {
    "keys": struct.pack("<IQQ", 3, 0, 1 << 60),
    "tensors": struct.pack("<IQQ", 3, 1 << 60, 0),
    "the length of a name": KEYS + struct.pack("<Q", 1 << 40),
    "the length of a text": KEYS + text("k") + struct.pack("<IQ", 8, 1 << 40),
    "numbers of an array": KEYS + text("k") + struct.pack("<IIQ", 9, 10, 1 << 60),
    "texts of an array": KEYS + text("k") + struct.pack("<IIQ", 9, 8, 1 << 60),
    "flags of an array": KEYS + text("k") + struct.pack("<IIQ", 9, 7, 1 << 60),
    "dimensions": struct.pack("<IQQ", 3, 1, 0) + text("t") + struct.pack("<I", 1 << 31),
}
PEAK = """
import resource, sys
from agentkit_fast import AgentkitError
from agentkit_fast._core import GgufHeader
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    GgufHeader(sys.argv[1])
except (AgentkitError, OSError) as error:
    print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024, error)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="ru_maxrss is in kilobytes on Linux")
@pytest.mark.parametrize("behind", [0, 64 << 20], ids=["nothing behind", "64 MiB behind"])
@pytest.mark.parametrize("what", ABSURD)
def test_an_absurd_number_takes_no_memory(what: str, behind: int, write) -> None:
    path = write(b"GGUF" + ABSURD[what])
    with path.open("r+b") as file:
        file.seek(0, 2)
        file.truncate(file.tell() + behind)
    done = subprocess.run(
        [sys.executable, "-c", PEAK, str(path)], capture_output=True, text=True, timeout=60, check=True
    )
    peak, error = done.stdout.split(" ", 1)
    assert error.strip(), "an error that says what is wrong"
    assert int(peak) < 2 * behind + (8 << 20), "twice what was read"


def test_flipped_bytes_never_crash(write) -> None:
    whole = small_header()
    draw = random.Random(7)
    taken = 0
    for _ in range(2000):
        raw = bytearray(whole)
        for _ in range(draw.randrange(1, 4)):
            raw[draw.randrange(len(raw))] = draw.randrange(256)
        try:
            header = GgufHeader(write(bytes(raw)))
            taken += 1
            for key in header.keys():  # noqa: SIM118
                header.get(key)
        except DAMAGED:
            pass
    assert taken < 2000
