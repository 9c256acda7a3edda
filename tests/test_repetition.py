"""Loops are found, whatever their length and however the stream is cut; ordinary text is left alone."""

from __future__ import annotations

import base64
import random
import string
import sys
import sysconfig
import threading
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentkit_fast.text import Repetition, RepetitionGuard

DATA = Path(__file__).parent / "data"
STDLIB = Path(sysconfig.get_paths()["stdlib"])
PROSE = (
    "Amber keys open the western gate. Nobody has walked there since the mill closed, but the path is dry and "
    "the lamps still burn at dusk. Bring bread, a rope and the small blue book; leave the rest behind. "
)


def feed(text: str, size: int = 4, **options: int) -> tuple[Repetition | None, int]:
    """The finding, and how many characters had been pushed."""
    guard = RepetitionGuard(**options)  # type: ignore[arg-type]  # only integers are passed
    for at in range(0, len(text), size):
        if found := guard.push(text[at : at + size]):
            return found, min(at + size, len(text))
    return None, len(text)


def cycle_of(period: int, seed: int = 0) -> str:
    """Random letters: no shorter period."""
    source = random.Random(period * 1000 + seed)
    return "".join(source.choices(string.ascii_letters, k=period))


def check(found: Repetition | None, period: int) -> Repetition:
    assert found is not None
    assert found.period == period
    assert found.reps >= 2
    assert found.trailing == (found.reps - 1) * period
    return found


def test_goldens() -> None:
    rows = [
        msgspec.json.decode(line)
        for line in (DATA / "golden" / "repetition.jsonl").read_bytes().splitlines()
    ]
    for row in rows:
        guard, got = RepetitionGuard(), None
        for at, delta in enumerate(row["in"]):
            if found := guard.push(delta):
                got = {
                    "at": at,
                    "period": found.period,
                    "reps": found.reps,
                    "trailing": found.trailing,
                }
                break
        assert got == row["out"]
    assert len(rows) == 80


@pytest.mark.parametrize("size", [1, 4, 1000, 10**6])
def test_case_l20(size: int) -> None:
    cases = map(msgspec.json.decode, (DATA / "cases" / "local_cases.jsonl").read_bytes().splitlines())
    streams = next(case for case in cases if case["id"] == "L20")["input"]["streams"]
    exact, at = feed(streams["exact"], size)
    check(exact, 60)
    assert at <= 1024 or size >= 1000
    counting, _ = feed(streams["counting"], size)
    assert counting
    assert counting.trailing == (counting.reps - 1) * counting.period
    assert feed(streams["table"], size)[0] is None
    assert feed(streams["blank"], size)[0] is None


@pytest.mark.parametrize("size", [5, 10**6])
def test_every_period_from_24_to_1024(size: int) -> None:
    for period in range(24, 1025):
        cycle = cycle_of(period)
        copies = max(3, -(-512 // period)) + -(-512 // period)
        found, _ = feed(PROSE + cycle * (copies + 1), size)
        check(found, period)
    assert feed(cycle_of(1025) * 8, size)[0] is None


@pytest.mark.parametrize("period", range(1, 24))
def test_every_shorter_period_past_short_span(period: int) -> None:
    cycle = cycle_of(period)
    text = PROSE + cycle * (5000 // period)
    found, at = feed(text, 3)
    check(found, period)
    assert 4096 < at - len(PROSE) <= 4096 + 256 + period + 3
    assert feed(PROSE + cycle * (4096 // period), 3)[0] is None


def test_short_cycles_in_lines_are_found_past_short_span() -> None:
    row = "  0.6,   0.6,   0.6,   0.6,   0.6,\n"
    check(feed(PROSE + row * 130)[0], len(row))
    # Words that make a long cycle are none, however they are wrapped.
    check(feed(PROSE + ("go on and take the\n  next step, please,\n" * 16))[0], 40)


def test_thresholds() -> None:
    cycle = cycle_of(200)
    assert feed(PROSE + cycle * 2)[0] is None
    assert feed(cycle_of(30) * 17, check_every=1)[0] is None  # 510 bytes
    assert feed(cycle_of(30) * 18, check_every=1)[0]  # 540 bytes
    assert feed(cycle_of(10) * 100, min_period=5)[0]
    assert feed(cycle * 9, min_reps=10)[0] is None
    assert feed(cycle_of(1500) * 4, max_period=2000)[0]


def test_smallest_true_period_is_reported() -> None:
    almost = cycle_of(30) + cycle_of(30)[:-1] + "!"  # the halves differ in one byte only
    check(feed(almost * 30)[0], 60)
    check(feed(cycle_of(25) * 60)[0], 25)
    assert feed((cycle_of(8)) * 200)[0] is None  # 24 is a multiple of 8, which is ordinary still


@given(st.integers(24, 400), st.integers(1, 700), st.integers(0, 600), st.randoms(use_true_random=False))
def test_the_cutting_into_deltas_does_not_matter(
    period: int, size: int, lead: int, source: random.Random
) -> None:
    cycle = cycle_of(period, lead)
    text = "".join(source.choices(string.ascii_letters + " \n", k=lead)) + cycle * (3000 // period)
    reference, at = feed(text, 1)
    check(reference, period)
    found, there = feed(text, size)
    check(found, period)
    assert abs(there - at) <= 256 + size
    cuts = sorted(source.choices(range(len(text)), k=12))
    guard, results = RepetitionGuard(), []
    for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True):
        results.append(guard.push(text[start:end]))
    (found,) = [result for result in results if result]
    check(found, period)


@given(st.integers(24, 300), st.integers(3, 40), st.integers(0, 300))
def test_what_is_cut_leaves_one_copy(period: int, copies: int, more: int) -> None:
    cycle = cycle_of(period)
    whole = PROSE + cycle * (copies + 512 // period + 512 // period) + cycle[: more % period]
    found = check(RepetitionGuard().push(whole), period)
    left = whole[: -found.trailing]
    assert left.startswith(PROSE + cycle)
    assert len(left) < len(PROSE) + 2 * period
    assert found.after == 0
    assert len(found.sample) == period
    assert found.sample in cycle * 2


def test_a_loop_inside_one_large_delta() -> None:
    cycle = cycle_of(90)
    loop = cycle * 50
    for tail in ("", PROSE, PROSE * 100):
        found = check(RepetitionGuard().push(PROSE + loop + tail), 90)
        assert found.reps == 50
        assert found.after == len(tail)


@pytest.mark.parametrize(
    "cycle",
    ["同じ話をもう一度だけ聞かせてください。", "😀🎉 çok güzel bir gün, değil mi? ", "é" * 13 + "è"],
)
def test_cuts_fall_between_characters(cycle: str) -> None:
    text = "序文。" + cycle * 60
    for size in (1, 7, 64, 300, 10**6):
        guard, pushed = RepetitionGuard(), ""
        for at in range(0, len(text), size):
            pushed += text[at : at + size]
            if found := guard.push(text[at : at + size]):
                break
        assert found
        assert found.period == len(cycle.encode())
        raw = pushed.encode()
        assert raw[: len(raw) - found.trailing].decode().startswith("序文。" + cycle)
        assert "\ufffd" not in found.sample
    # The next text begins with the same bytes as the cycle and differs inside a character.
    found = RepetitionGuard().push("いろはにほへとちりぬる" * 30 + "ぬ")
    assert found
    assert found.after in {0, 3}


@pytest.mark.parametrize(
    "line",
    [
        "Item {i}\n",
        "Step {i}: check the valve and write it down.\n",
        "第{i}步：检查阀门并记录下来。\n",
        "{i}. see file module_{i}.py for details\n",
        "On day {i} we walked {k} miles and slept.\n",
        "def test_case_{i}(self):\n    assert f({i}) == {i}\n\n",
    ],
)
@pytest.mark.parametrize("size", [3, 700, 10**6])
def test_counting_loops(line: str, size: int) -> None:
    text = PROSE + "".join(line.format(i=i, k=3 * i) for i in range(1, 300))
    guard, pushed = RepetitionGuard(), ""
    for at in range(0, len(text), size):
        pushed += text[at : at + size]
        if found := guard.push(text[at : at + size]):
            break
    assert found
    assert found.trailing == (found.reps - 1) * found.period
    raw = pushed.encode()
    left = raw[: len(raw) - found.trailing].decode()
    assert left.startswith(PROSE + line.format(i=1, k=3)[:-1])
    assert len(left) < len(pushed)


ORDINARY = {
    "a short list": "".join(
        f"{i}. Check the {name}.\n" for i, name in enumerate(["oil", "brakes", "lights"] * 4)
    ),
    "blank lines": "\n" * 4000,
    "a table rule": "| --- | --- |\n" * 250,
    "a wide table rule": ("|" + "-" * 30) * 100 + "\n",
    "empty rows": ("|" + " " * 20) * 4 + "|\n" + ((("|" + " " * 20) * 4 + "|\n") * 30),
    "indentation": (" " * 60 + "\n") * 40,
    "a ruler": "=" * 4000,
    "box art": ("+" + ("-" * 12 + "+") * 8 + "\n|" + (" " * 12 + "|") * 8 + "\n") * 14,
    "box drawing": ("┌" + "─" * 30 + "┐\n" + ("│" + " " * 30 + "│\n") * 6 + "└" + "─" * 30 + "┘\n") * 3,
    "csv": "id,name,score\n" + "".join(f"{i},name{i},{i * 2}\n" for i in range(3000)),
    "csv with words": "".join(f"{i},the quick brown fox number {i},{i * 2}\n" for i in range(3000)),
    "tsv": "".join(f"{i}\tname{i}\t{i * 2}\n" for i in range(3000)),
    "markdown table": "".join(f"| {i} | name {i} | {i * 2} |\n" for i in range(3000)),
    "log": "".join(
        f"2026-01-01 12:{i // 60:02d}:{i % 60:02d} INFO worker {i} started the job\n" for i in range(2000)
    ),
    "log without a date": "".join(
        f"[INFO] request {i} handled in {i * 7919 % 97} ms\n" for i in range(3000)
    ),
    "ping": "".join(
        f"64 bytes from 8.8.8.8: icmp_seq={i} ttl=117 time={i * 7919 % 97} ms\n" for i in range(300)
    ),
    "xxd of zeros": "".join(f"{i * 16:08x}: {'0000 ' * 8} ................\n" for i in range(3000)),
    "hexdump": "".join(f"{i * 16:08x}  {'00 ' * 8} {'00 ' * 8} |................|\n" for i in range(300)),
    "sql rows": "".join(f"INSERT INTO t VALUES ({i}, 'name{i}');\n" for i in range(60)),
    "numbers": " ".join(map(str, range(5000))),
    "lines of numbers": "\n".join(map(str, range(5000))),
    "base64 of zeros": base64.encodebytes(bytes(2900)).decode(),
    "base64": base64.encodebytes(random.Random(1).randbytes(200_000)).decode(),
    "hex": random.Random(2).randbytes(200_000).hex(),
    "json": str([{"id": i, "name": f"n{i}", "ok": True} for i in range(2000)]),
    "metrics": ("  0.6,   0.6,   0.6,   0.6,   0.6,   0.6,   0.6,   0.6,\n") * 40,
    "bytes": ("    " + "0x00, " * 16 + "\n") * 40,
    "two numbers in turn": ("\t" + "1, 0, " * 12 + "\n") * 40,
    "initializers": ("    MUTEX_INITIALIZER, MUTEX_INITIALIZER,\n" * 20),
    "a word in rows": ("\n  " + "/.notdef" * 8) * 30,
    "a long word in rows": ("    " + "_LIBCPP_MUTEX_INITIALIZER, " * 4 + "\n") * 30,
    "a number a line": "        109,\n        1,\n" * 60,
    "reserved slots": "".join(f"/* Slot {i} is reserved */\n" for i in range(60)),
    "defines": "".join(f"#define __REG_IntR{i} {1024 + i}\n" for i in range(96)),
    "macros": "".join(f"    _Long_DIGIT({i}), \\\n" for i in range(257)),
    "undefinitions": "".join(f"#undef Reserved_{i}\n" for i in range(250)),
    "calls": "".join(f"DECLARE_CSR(counter{i}, CSR_COUNTER{i})\n" for i in range(32)),
    "comments": "".join(f"READ(reg{i}) // Debug Control Register {i}\n" for i in range(40)),
    "a test's report": "".join(f"PASS: long.exp: register {i} has the expected value\n" for i in range(64)),
    "rows of a catalogue": "".join(f"insert ( {2000 + i} 1255 0 'I/O' )\n" for i in range(110)),
    "a name a line": "".join(f"{0x18A00 + i:X}\nTANGUT COMPONENT-{i}\n\n" for i in range(1, 400)),
    "greek": "Η γρήγορη αλεπού πηδά πάνω από τον τεμπέλη σκύλο. Κάθε μέρα έχει το δικό της φως και τη δική της σκιά.",
    "hindi": "हर सुबह नदी के किनारे बच्चे खेलते हैं। शाम को सब घर लौट आते हैं और दादी कहानी सुनाती हैं।",
    "arabic": "في الصباح يذهب الأطفال إلى المدرسة. في المساء يعودون إلى البيت ويقرؤون كتابا جديدا.",
    "thai": "ตอนเช้าเด็ก ๆ ไปโรงเรียน ตอนเย็นกลับบ้านแล้วอ่านหนังสือเล่มใหม่กับคุณยาย",
}


@pytest.mark.parametrize("name", ORDINARY)
@pytest.mark.parametrize("size", [5, 10**7])
def test_ordinary_text(name: str, size: int) -> None:
    assert feed(PROSE + ORDINARY[name] + PROSE, size) == (None, len(PROSE + ORDINARY[name] + PROSE))


def test_the_standard_library_never_trips_it() -> None:
    read = 0
    for path in [*sorted(STDLIB.glob("*.py")), *sorted(STDLIB.glob("[a-s]*/*.py"))]:
        if {"site-packages", "test", "tests", "idlelib"} & set(path.parts):
            continue
        text = path.read_text(encoding="utf-8", errors="replace")
        assert feed(text, 10**7)[0] is None, path
        assert feed(text, 97)[0] is None, path
        read += len(text)
    assert read > 5_000_000


def test_its_own_interpreter_as_a_dump() -> None:
    raw = Path(sys.executable).resolve().read_bytes()[:300_000]
    lines = [raw[at : at + 16] for at in range(0, len(raw), 16)]
    dump = "".join(
        f"{at * 16:08x}: {line.hex(' ', 2)}  {''.join(chr(c) if 32 <= c < 127 else '.' for c in line)}\n"
        for at, line in enumerate(lines)
    )
    assert feed(dump, 64)[0] is None


def test_after_a_finding_only_reset_helps() -> None:
    guard = RepetitionGuard(where="reasoning")
    loop = cycle_of(50) * 30
    assert guard.push(loop).where == "reasoning"  # type: ignore[union-attr]  # it is found
    assert guard.push(loop) is None
    guard.reset()
    assert guard.push(PROSE) is None
    assert guard.push(loop) is not None


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"min_period": 0}, "min_period"),
        ({"max_period": 3}, "max_period"),
        ({"min_reps": 1}, "min_reps"),
        ({"check_every": 0}, "check_every"),
        ({"max_period": 10**12}, "smaller"),
    ],
)
def test_options_that_make_no_sense(options: dict[str, int], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        RepetitionGuard(**options)  # type: ignore[arg-type]  # integers only


@given(st.lists(st.sampled_from(["a", "b", "ab", "aab", "0", "10", "\n", " ", "日", "|--|"]), max_size=400))
def test_text_of_few_letters(pieces: list[str]) -> None:
    text = "".join(pieces) * 20
    options = {"min_period": 2, "min_span": 16, "check_every": 16, "short_span": 64, "max_period": 64}
    found, _ = feed(text, 3, **options)
    whole, _ = feed(text, 10**6, **options)
    assert (found is None) == (whole is None)
    for result in (found, whole):
        assert result is None or result.trailing == (result.reps - 1) * result.period


def fibonacci(size: int) -> str:
    """The word whose repeats are as many as can be: hard on every search for periods."""
    a, b = "a", "ab"
    while len(b) < size:
        a, b = b, b + a
    return b[:size]


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(fibonacci(400_000), id="fibonacci"),
        pytest.param("".join(random.Random(3).choices("ab", k=400_000)), id="two letters"),
        pytest.param(("a" * 500 + "b") * 800, id="long runs"),
        pytest.param("".join("a" * (i % 700) + "b" for i in range(1200)), id="growing runs"),
        pytest.param("1" * 100_000, id="one endless number"),
    ],
)
def test_hostile_text_is_linear(text: str) -> None:
    for size in (50, 10**7):
        guard = RepetitionGuard(short_span=2**20)
        for at in range(0, len(text), size):
            guard.push(text[at : at + size])


def test_many_threads() -> None:
    guard = RepetitionGuard()
    results: list[Repetition | None] = []
    loop = cycle_of(40)

    def work() -> None:
        results.extend(guard.push(loop) for _ in range(200))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(result is not None for result in results) == 1
