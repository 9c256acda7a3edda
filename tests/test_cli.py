"""The command line, as a user runs it: subprocesses, exit codes, JSON for machines."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

import servers
from agentkit_fast import Entry, SQLiteStore

COMMANDS = ("bench", "chat", "demo", "doctor", "inspect", "probe", "run", "sessions", "shape", "tokens")


def needs(partner: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(find_spec(partner) is None, reason=f"needs the package {partner}")


def run(
    *args: str, cwd: Path | None = None, stdin: str = "", timeout: float = 120
) -> subprocess.CompletedProcess[str]:
    """`agentkit-fast ARGS` in a process of its own, with a wide terminal so that no line is folded."""
    return subprocess.run(
        [sys.executable, "-m", "agentkit_fast.cli.main", *args],
        cwd=cwd,
        input=stdin,
        capture_output=True,
        text=True,
        timeout=timeout,
        env={**os.environ, "COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb"},
        check=False,
    )


def test_help_lists_every_command_with_examples() -> None:
    shown = run("--help")
    assert shown.returncode == 0
    for command in COMMANDS:
        assert command in shown.stdout
    assert "agentkit-fast demo --endpoint" in run("demo", "--help").stdout


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("nonsense",), "No such command"),
        (("run", "x", "--endpoint", "http://127.0.0.1:1", "--model", "m.gguf"), "not both"),
        (("run", " "), "the task is empty"),
        (("run", "x", "--tools", "files:/no/such/folder"), "is not a folder"),
        (("run", "x", "--tools", "telepathy"), "--tools knows"),
        (("run", "x", "--mcp", "/no/such/file.json"), "--mcp"),
        (("sessions", "nothing.db"), "there is no session file"),
        (("inspect", "nothing.db"), "there is no session file"),
        (("shape", "nothing.json", "--budget", "100"), "nothing.json"),
        pytest.param(("demo", "--model", "nothing.gguf"), "nothing.gguf", marks=needs("llama_cpp")),
        (("tokens", __file__, "--model", "nothing.gguf"), "--model nothing.gguf cannot be read"),
        pytest.param(
            ("tokens", __file__, "--model", "nothing.json"),
            "--model nothing.json cannot be read",
            marks=needs("tokenizers"),
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else None,
)
def test_what_cannot_be_done_is_said_in_one_line(args: tuple[str, ...], words: str, tmp_path: Path) -> None:
    done = run(*args, cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_doctor_says_what_is_there() -> None:
    done = run("doctor", "--json")
    report = json.loads(done.stdout)
    assert done.returncode == (0 if report["ok"] else 1)
    names = {check["name"]: check for check in report["checks"]}
    assert names["agentkit-fast"]["state"] in ("ok", "bad")
    assert {"llama-cpp-python", "httpx2", "threads"} <= names.keys()
    assert all(check["todo"] for check in report["checks"] if check["state"] == "missing")


def test_tokens_are_the_models_own(tmp_path: Path, smollm2_path: Path) -> None:
    (tmp_path / "a.txt").write_text("hello world", encoding="utf-8")
    (tmp_path / "b.txt").write_bytes(b"caf\xc3\xa9 \xff")
    done = run("tokens", "a.txt", "b.txt", "--model", str(smollm2_path), "--json", cwd=tmp_path)
    report = json.loads(done.stdout)
    assert done.returncode == 0
    assert report["files"][0]["tokens"] == 2
    assert report["tokens"] == sum(row["tokens"] for row in report["files"])
    missing = run("tokens", "a.txt", "none.txt", "--model", str(smollm2_path), cwd=tmp_path)
    assert missing.returncode == 1
    assert "none.txt" in missing.stderr


def test_shape_keeps_a_list_within_its_budget(tmp_path: Path) -> None:
    messages = [{"role": "system", "content": "s"}]
    for n in range(60):
        messages += [
            {"role": "user", "content": f"question {n} " + "x" * 200},
            {"role": "assistant", "content": "y" * 200},
        ]
    (tmp_path / "talk.json").write_text(json.dumps({"messages": messages}), encoding="utf-8")
    done = run("shape", "talk.json", "--budget", "2000", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    shaped = json.loads(done.stdout)
    assert shaped[-1] == messages[-1]
    assert len(shaped) < len(messages)
    assert "121 messages in" in done.stderr
    lines = run("shape", "-", "--budget", "2000", "--jsonl", stdin="\n".join(map(json.dumps, messages)))
    assert [json.loads(line) for line in lines.stdout.splitlines()] == shaped


def test_shape_says_what_became_of_each_message(tmp_path: Path) -> None:
    messages = [
        {"role": "system", "content": "s"},
        {"role": "tool", "tool_call_id": "lost", "content": "an orphan"},
        {"role": "user", "content": "the task"},
    ]
    for n in range(20):
        call = {"id": f"c{n}", "type": "function", "function": {"name": "look", "arguments": "{}"}}
        messages += [
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": f"c{n}", "content": f"{n} " + "box " * 600},
            {"role": "assistant", "content": f"answer {n}"},
            {"role": "user", "content": f"question {n}"},
        ]
    messages += [{"role": "assistant", "content": "One."}, {"role": "assistant", "content": "Two."}]
    (tmp_path / "talk.json").write_text(json.dumps(messages), encoding="utf-8")
    command = ("shape", "talk.json", "--budget", "6000", "--keep", "4")
    report = json.loads(run(*command, "--json", cwd=tmp_path).stdout)
    plain = run(*command, cwd=tmp_path)
    assert report["messages"] == json.loads(plain.stdout)
    told = {change["index"]: change for change in report["changes"] if change["index"] >= 0}
    assert sorted(told) == list(range(len(messages)))
    left = [index for index, change in told.items() if change["what"] == "left out"]
    kept = [index for index, change in told.items() if change["what"] == "kept"]
    assert left
    assert {"shortened", "joined"} <= {change["what"] for change in told.values()}
    assert [told[len(messages) - at]["what"] for at in (1, 2)] == ["joined", "joined"]
    assert all(messages[index] in report["messages"] for index in kept)
    assert all(bool(change["why"]) == (change["what"] != "kept") for change in told.values())
    short = next(change for change in told.values() if change["what"] == "shortened")
    assert short["role"] == "tool"
    assert 0 < short["tokens_after"] < short["tokens_before"]
    added = [change for change in report["changes"] if change["index"] < 0]
    assert any("left out" in change["why"] for change in added)
    assert report["tokens_after"] <= 6000 < report["tokens_before"]
    assert f"left out ({len(left)})" in plain.stderr
    assert "shortened" in plain.stderr


@needs("httpx2")
def test_a_reply_cut_by_the_limit_is_said() -> None:
    cut = servers.says("Half of a sent", finish="length")
    with servers.WireServer(cut, cut) as wire:
        plain = run("run", "hi", "--endpoint", wire.url, "--format", "native", "--max-tokens", "4")
        machine = run("run", "hi", "--endpoint", wire.url, "--format", "native", "--json")
    assert "cut at 4 tokens" in plain.stdout
    assert json.loads(machine.stdout)["stop_reason"] == "length"
    assert (plain.returncode, machine.returncode) == (1, 1)


def test_bench_compares(tmp_path: Path) -> None:
    done = run("bench", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    rows = {row["task"]: row for row in report["results"]}
    assert len(rows) >= 7
    assert report["took_s"] > 0
    for row in rows.values():
        if row["beside_seconds"]:
            assert row["ratio"] == pytest.approx(
                row["beside_seconds"] / row["seconds"], rel=0.01, abs=0.001
            )
    assert rows["capture slots, 8 sections of 100 KB"]["beside"] == "re"


def test_verbose_shows_the_librarys_log(tmp_path: Path) -> None:
    with servers.WireServer(
        lambda wire: wire.whole({"error": {"message": "busy"}}, 503, retry_after="0"), servers.says("hello")
    ) as wire:
        plain = run("run", "hi", "--endpoint", wire.url, "--format", "native", cwd=tmp_path)
    assert plain.returncode == 0, plain.stderr
    assert "agentkit_fast" not in plain.stderr
    with servers.WireServer(
        lambda wire: wire.whole({"error": {"message": "busy"}}, 503, retry_after="0"), servers.says("hello")
    ) as wire:
        told = run("-vv", "run", "hi", "--endpoint", wire.url, "--format", "native", cwd=tmp_path)
    assert told.returncode == 0
    assert "hello" in told.stdout
    assert " agentkit_fast" in told.stderr


@pytest.fixture
def session_file(tmp_path: Path) -> Path:
    path = tmp_path / "work.db"
    store = SQLiteStore(path)
    store.append("a", Entry(kind="user", content="look at <script>alert(1)</script>"))
    store.append("a", Entry(kind="tool_call", content="{}", tool_call_id="c1", tool_name="look"))
    store.append(
        "a", Entry(kind="tool_result", content="</script><b>bold</b>", tool_call_id="c1", tool_name="look")
    )
    store.append("a", Entry(kind="assistant", content="done"))
    store.append("b", Entry(kind="user", content="other"))
    store.close()
    return path


def test_sessions_and_inspect(session_file: Path) -> None:
    folder = session_file.parent
    rows = json.loads(run("sessions", "work.db", "--json", cwd=folder).stdout)
    assert [(row["session"], row["entries"], row["calls"]) for row in rows] == [("a", 4, 1), ("b", 1, 0)]
    unsure = run("inspect", "work.db", cwd=folder)
    assert unsure.returncode == 2
    assert "holds: a, b" in unsure.stderr
    done = run("inspect", "work.db", "--session-id", "a", "--budget", "4000", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert "No budget" not in done.stdout
    page = (folder / "work.html").read_text(encoding="utf-8")
    assert "alert(1)" in page
    assert "<script>alert" not in page
    assert "<b>bold" not in page
    assert "http://" not in page
    assert "https://" not in page
    report = json.loads(run("inspect", "work.db", "--session-id", "a", "--json", cwd=folder).stdout)
    assert len(report["rounds"]) == 2
    assert not report["recorded"]
    assert "No budget is recorded" in run("inspect", "work.db", "--session-id", "a", cwd=folder).stdout


@needs("httpx2")
def test_inspect_knows_what_a_session_ran_with(tmp_path: Path) -> None:
    talk = ("--format", "native", "--session", "work.db", "--system", "You keep <a> depot.")
    with servers.WireServer(servers.says("A long answer. " + "word " * 300)) as wire:
        for _ in range(4):
            done = run("run", "go " * 400, "--endpoint", wire.url, "--budget", "1500", *talk, cwd=tmp_path)
            assert done.returncode == 0, done.stderr
        sent = [post.json["messages"] for post in wire.posts if "messages" in (post.json or {})]
    report = json.loads(run("inspect", "work.db", "--json", cwd=tmp_path).stdout)
    assert report["recorded"]
    assert report["policy"]["budget_tokens"] == 1500
    assert len(report["rounds"]) == 4
    assert any(
        segment["form"] in ("out", "stub", "marker")
        for row in report["rounds"]
        for segment in row["segments"]
    )
    assert sent[-1][0]["content"] == "You keep <a> depot."
    assert report["rounds"][0]["segments"][0]["tokens"] >= len("You keep <a> depot.") // 4
    other = json.loads(run("inspect", "work.db", "--budget", "0", "--json", cwd=tmp_path).stdout)
    assert other["policy"]["budget_tokens"] == 0
    # This server has no tokenizer, and what the session's counter had learned is gone: both, page and command, say so.
    assert report["counter"] == "LearningCounter"
    shown = run("inspect", "work.db", cwd=tmp_path).stdout
    assert "budget 1,500" in shown
    for text in (report["notes"][0], shown, (tmp_path / "work.html").read_text(encoding="utf-8")):
        assert "counted with LearningCounter, which is not at hand" in text
    both = run("inspect", "work.db", "--endpoint", wire.url, "--model", "m.gguf", cwd=tmp_path)
    assert both.returncode == 2
    rows = json.loads(run("sessions", "work.db", "--json", cwd=tmp_path).stdout)
    assert [row["budget"] for row in rows] == [1500]


def test_sessions_keeps_a_row_a_line_however_long_the_task(tmp_path: Path) -> None:
    """In the 80 columns of a pipe; the id is what is typed next, so it stays whole."""
    store = SQLiteStore(tmp_path / "work.db")
    for name in ("cli", "a-rather-long-name-24-xx"):
        store.append(name, Entry(kind="user", content="Write a long story about the sea. " * 9))
    store.close()
    lines = run("sessions", "work.db", cwd=tmp_path).stdout.splitlines()
    assert len(lines) == 3
    assert [line.split()[0] for line in lines] == ["session", "cli", "a-rather-long-name-24-xx"]
    assert all("Write" in line for line in lines[1:])


def test_a_missing_part_is_said_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "httpx2.py").write_text("raise ImportError('not here')\n", encoding="utf-8")
    done = run("run", "x", "--endpoint", "http://127.0.0.1:1", cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert "pip install 'agentkit-fast[http]'" in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.model
@pytest.mark.parametrize("fixture", ["smollm2_path", pytest.param("gemma_path", marks=pytest.mark.slow)])
def test_the_demo_does_its_tasks(fixture: str, request: pytest.FixtureRequest) -> None:
    pytest.importorskip("llama_cpp")
    model = request.getfixturevalue(fixture)
    done = run("demo", "--model", str(model), "--threads", "1", "--json", timeout=280)
    assert done.returncode == 0, done.stderr + done.stdout
    report = json.loads(done.stdout)
    assert report["ok"]
    assert [task["tool"] for task in report["tasks"]] == ["list_files", "read_file", "write_file"]
    for task in report["tasks"]:
        assert task["reply"]
        assert not any(line.startswith("@") for line in task["reply"].splitlines())
        assert [call["name"] for call in task["calls"]] == [task["tool"]]
    listed, read, written = (task["calls"][0] for task in report["tasks"])
    assert "shopping.txt" in listed["result"]
    assert "Tuesday" in read["result"]
    assert json.loads(written["arguments"])["path"] == "hello.txt"
    assert report["tokens"]["cached"] > 0


LISTED = servers.calls("list_files", {})
READ = servers.calls("read_file", {"path": "notes.txt"})
WRITTEN = servers.calls("write_file", {"path": "hello.txt", "content": "hi"})
SAID = servers.says("That is that.")


def read(path: str) -> servers.Reply:
    return servers.calls("read_file", {"path": path})


@needs("httpx2")
@pytest.mark.parametrize(
    ("replies", "code", "tasks"),
    [
        ([LISTED, SAID, READ, SAID, WRITTEN, SAID], 0, [True, True, True]),
        # Another tool, and a file that is not there, before the right call: the tool is named in the second round.
        ([LISTED, SAID, LISTED, read("x"), READ, SAID, WRITTEN, SAID], 0, [True, True, True]),
        # A tool ran, but not the one that does the task.
        ([LISTED, SAID, *[read("todo.md")] * 3, SAID, WRITTEN, SAID], 1, [True, False, True]),
        # An empty file is no greeting.
        (
            [LISTED, SAID, READ, SAID]
            + [
                servers.calls("write_file", {"path": "hello.txt", "content": text})
                for text in ("", " ", "")
            ]
            + [SAID],
            1,
            [True, True, False],
        ),
        # Words where a call was required: the endpoint does not honour tool_choice.
        ([SAID], 1, [False, False, False]),
    ],
    ids=["right", "second-try", "wrong-tool", "empty-file", "words"],
)
def test_the_demo_counts_what_the_tools_have_done(
    replies: list[servers.Reply], code: int, tasks: list[bool]
) -> None:
    with servers.WireServer(*replies) as wire:
        done = run("demo", "--endpoint", wire.url, "--json")
    assert done.returncode == code, done.stderr + done.stdout
    report = json.loads(done.stdout)
    assert [task["ok"] for task in report["tasks"]] == tasks
    assert report["ok"] == (code == 0)
    asked = [post.json["tool_choice"] for post in wire.posts if "tool_choice" in post.json]
    assert asked[0] == "required"


@needs("httpx2")
def test_the_demo_says_that_an_endpoint_cannot_be_used() -> None:
    with servers.WireServer(lambda wire: wire.whole({"error": {"message": "no such model"}}, 404)) as wire:
        done = run("demo", "--endpoint", wire.url)
    assert done.returncode == 2, done.stdout
    assert "no such model" in done.stderr
    assert "Traceback" not in done.stderr
