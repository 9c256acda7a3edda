"""The turn over a database: other processes, crashes, parked calls that outlive a restart."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from agentkit_fast import Entry, ScriptedRunner, Session, SessionBusy, SQLiteStore, ToolCall, tool
from session_kit import BOTH, broken, call, reply
from test_session_enumeration import pairs_are_whole

both = pytest.mark.parametrize("run", BOTH, ids=["sync", "async"])


def results(store: Any) -> list[str]:
    return [entry.content for entry in store.context("s") if entry.kind == "tool_result"]


CHILD = """
import sys, time
from pathlib import Path
from agentkit_fast import *
from agentkit_fast.session import Session

log = Path(sys.argv[2])

def run(name, seconds):
    with log.open("a") as file:
        file.write(name + "\\n")
    time.sleep(seconds)
    return name + " done"

@tool
def send_mail(): return run("send_mail", 0.05)
@tool
def charge(): return run("charge", 0.1)
@tool
def upload(): return run("upload", 60)
@tool(idempotent=True)
def look(): return run("look", 60)

store = SQLiteStore(sys.argv[1])
store.append("s", Entry(kind="user", content="Do it."))
calls = [StreamChunk(tool_call=ToolCall(id=name, name=name)) for name in ("send_mail", "charge", "upload", "look")]
runner = ScriptedRunner([[*calls, StreamChunk(done=True, finish_reason="tool_calls")]])
Session("s", store, runner, tools=[send_mail, charge, upload, look]).turn()
"""


def kill_in_the_middle(folder: Path) -> tuple[SQLiteStore, Path]:
    """A turn whose process is killed while two of its four calls run."""
    log = folder / "ran.txt"
    child = subprocess.Popen([sys.executable, "-c", CHILD, str(folder / "s.db"), str(log)])
    store = SQLiteStore(folder / "s.db")
    until = time.monotonic() + 30
    while len(results(store)) < 2 or len(log.read_text().split()) < 4:
        assert time.monotonic() < until
        assert child.poll() is None
        time.sleep(0.02)
    with pytest.raises(SessionBusy):
        Session("s", store, ScriptedRunner(["never"])).turn()
    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    return store, log


@pytest.mark.skipif(sys.platform == "win32", reason="SIGKILL")
@both
def test_a_killed_process_loses_nothing_and_runs_nothing_twice(run: Any, tmp_path: Path) -> None:
    store, log = kill_in_the_middle(tmp_path)
    assert sorted(results(store)) == ["charge done", "send_mail done"]
    again: list[str] = []

    def made_tool(name: str, **marks: Any) -> Any:
        return tool(lambda: again.append(name) or f"{name} again", name=name, **marks)

    tools = [
        made_tool("send_mail"),
        made_tool("charge"),
        made_tool("upload"),
        made_tool("look", idempotent=True),
    ]
    session = Session("s", store, ScriptedRunner(["Where were we."]), tools=tools)
    store.append("s", Entry(kind="user", content="Are you there?"))
    assert run(session).reply == "Where were we."
    assert again == ["look"]
    # The host had stored the new message before the answers of the dead turn; a window puts that right.
    assert broken(store.context("s")) == ["a user entry stands between a call and its result"]
    pairs_are_whole(list(session.runner.requests[0].messages))
    answers = {
        entry.tool_call_id: entry.content for entry in store.context("s") if entry.kind == "tool_result"
    }
    assert answers["look"] == "look again"
    assert "outcome is unknown" in answers["upload"]
    shown = {
        message.tool_call_id: message.content
        for message in session.runner.requests[0].messages
        if message.role == "tool"
    }
    assert set(shown) == {"send_mail", "charge", "upload", "look"}
    assert "outcome is unknown" in shown["upload"]
    assert sorted(log.read_text().split()) == ["charge", "look", "send_mail", "upload"]


@both
def test_a_parked_call_outlives_a_restart(run: Any, tmp_path: Path) -> None:
    lift = '{"pending":true,"correlation_id":"c1"}'
    store = SQLiteStore(tmp_path / "s.db")
    store.append("s", Entry(kind="user", content="Order it."))
    first = Session("s", store, ScriptedRunner([reply(call(id="k")), "Ordered."]), tools=[look_tool(lift)])
    run(first)
    store.close()
    store = SQLiteStore(tmp_path / "s.db")
    second = Session("s", store, ScriptedRunner(["It came."]), tools=[look_tool(lift)])
    second.resolve("c1", "the parcel")
    assert run(second).reply == "It came."
    assert "the parcel" in second.runner.requests[0].messages[-1].content
    with pytest.raises(KeyError):
        second.resolve("c1", "twice")


def look_tool(answer: str) -> Any:
    return tool(lambda: answer, name="look")


@both
def test_a_deadline_that_passes_is_told_once(run: Any, tmp_path: Path) -> None:
    store = SQLiteStore(tmp_path / "s.db")
    store.append("s", Entry(kind="user", content="Order it."))
    clock = [10**18]
    made = Session(
        "s",
        store,
        ScriptedRunner([reply(call(id="k")), "Ordered.", "It is late.", "Yes."]),
        tools=[look_tool('{"pending":true,"correlation_id":"c1","ttl_s":60}')],
        now=lambda: clock[0],
    )
    run(made)
    clock[0] += 61 * 10**9
    assert run(made).reply == "It is late."
    assert "before its deadline" in made.runner.requests[2].messages[-1].content
    with pytest.raises(KeyError):
        made.resolve("c1", "too late")
    store.append("s", Entry(kind="user", content="Really?"))
    run(made)
    told = [
        message for message in made.runner.requests[3].messages if "before its deadline" in message.content
    ]
    assert len(told) == 1


@both
def test_a_tool_that_clears_notices(run: Any, tmp_path: Path) -> None:
    store = SQLiteStore(tmp_path / "s.db")
    store.append("s", Entry(kind="user", content="Look."))
    store.publish_notice(
        "s", Entry(kind="notification", content="a.txt changed"), group_by="file", key="a.txt"
    )
    cleared = '{"clear":true,"group_by":"file","key":"a.txt"}'

    def dispatch(asked: ToolCall) -> str:
        store.publish_notice(
            "s", Entry(kind="notification", content="a.txt changed again"), group_by="file", key="a.txt"
        )
        return cleared

    made = Session("s", store, ScriptedRunner([reply(call()), "ok"]), tools=[], dispatch=dispatch)
    run(made)
    assert not any("again" in message.content for message in made.runner.requests[1].messages)


def test_two_objects_on_one_file_are_one_session(tmp_path: Path) -> None:
    first, second = SQLiteStore(tmp_path / "s.db"), SQLiteStore(tmp_path / "s.db")
    seen: list[type[BaseException]] = []

    def dispatch(asked: ToolCall) -> str:
        try:
            Session("s", second, ScriptedRunner(["no"])).turn()
        except SessionBusy as error:
            seen.append(type(error))
        return "ok"

    first.append("s", Entry(kind="user", content="hi"))
    Session("s", first, ScriptedRunner([reply(call()), "ok"]), dispatch=dispatch).turn()
    assert seen == [SessionBusy]
    second.append("s", Entry(kind="user", content="again"))
    assert Session("s", second, ScriptedRunner(["yes"])).turn().reply == "yes"
