"""Sessions on a store, across processes and restarts."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest

from agentkit_fast import (
    Entry,
    RevalidatingPreparer,
    ScriptedRunner,
    Session,
    SessionBusy,
    SQLiteStore,
    StreamChunk,
    ToolCall,
    ToolSet,
    tool,
)


def calling(name: str, arguments: str = "{}", call_id: str = "c1") -> list[StreamChunk]:
    return [
        StreamChunk(tool_call=ToolCall(id=call_id, name=name, arguments=arguments)),
        StreamChunk(done=True, finish_reason="tool_calls"),
    ]


def in_another_process(script: str, *arguments: str) -> None:
    subprocess.run([sys.executable, "-c", textwrap.dedent(script), *arguments], check=True)


PUBLISH = """
    import sys
    from agentkit_fast import Entry, SQLiteStore
    store = SQLiteStore(sys.argv[1])
    for word in sys.argv[2:]:
        store.publish("s", Entry(kind="user", content=word))
"""


class Seen:
    """A scripted reply that keeps what it was asked with."""

    def __init__(self, reply: Any) -> None:
        self.reply = reply
        self.texts: list[str] = []

    def __call__(self, messages: Any, tools: Any, options: Any) -> Any:
        self.texts = [message.content for message in messages]
        return self.reply


def test_another_processs_messages_reach_the_running_turn_in_one_window(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    store = SQLiteStore(path)

    @tool
    def work() -> str:
        in_another_process(PUBLISH, str(path), "first", "second", "third")
        return "worked"

    last = Seen("All read.")
    session = Session("s", store, ScriptedRunner([calling("work"), last]), tools=ToolSet([work]))
    session.inject(Entry(kind="user", content="go"))
    assert session.turn().reply == "All read."
    joined = "\n".join(last.texts)
    assert joined.index("worked") < joined.index("first") < joined.index("second") < joined.index("third")


def test_a_message_that_comes_with_the_last_reply_is_answered_in_the_same_turn(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    store = SQLiteStore(path)

    def first(messages: Any, tools: Any, options: Any) -> str:
        in_another_process(PUBLISH, str(path), "one more thing")
        return "Done."

    last = Seen("That too.")
    session = Session("s", store, ScriptedRunner([first, last]))
    session.inject(Entry(kind="user", content="go"))
    assert session.turn().reply == "That too."
    assert "one more thing" in last.texts


@tool
def start() -> dict[str, Any]:
    return {"pending": True, "correlation_id": "job-7", "ttl_s": 3600}


@tool
def start_short() -> dict[str, Any]:
    return {"pending": True, "correlation_id": "job-8", "ttl_s": 1}


def test_a_lifted_calls_result_arrives_after_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    with SQLiteStore(path) as store:
        session = Session(
            "s", store, ScriptedRunner([calling("start"), "Started."]), tools=ToolSet([start])
        )
        session.inject(Entry(kind="user", content="go"))
        session.turn()
        assert [call.correlation_id for call in store.parked_calls("s")] == ["job-7"]
        placeholder = [entry for entry in store.context("s") if entry.kind == "tool_result"]
        assert "job-7" in placeholder[0].content
        before = [entry.id for entry in store.context("s")]
    with SQLiteStore(path) as store:
        last = Seen("It is 42.")
        session = Session("s", store, ScriptedRunner([last]), tools=ToolSet([start]))
        session.resolve("job-7", {"answer": 42})
        with pytest.raises(KeyError):
            session.resolve("job-7", "again")
        assert session.turn().reply == "It is 42."
        assert any('{"answer":42}' in text and "c1" in text for text in last.texts)
        assert store.parked_calls("s") == []
        # New context at the end; what was there is as it was.
        assert [entry.id for entry in store.context("s")][: len(before)] == before


def test_a_deadline_passes_while_no_process_runs(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    with SQLiteStore(path) as store:
        session = Session(
            "s", store, ScriptedRunner([calling("start_short"), "Started."]), tools=ToolSet([start_short])
        )
        session.inject(Entry(kind="user", content="go"))
        session.turn()
        assert len(store.parked_calls("s")) == 1
    time.sleep(1.1)
    with SQLiteStore(path) as store:
        last = Seen("Too late then.")
        session = Session("s", store, ScriptedRunner([last]), tools=ToolSet([start_short]))
        session.inject(Entry(kind="user", content="Well?"))
        session.turn()
        assert any("job-8" in text and "start_short" in text for text in last.texts[-2:])
        assert store.parked_calls("s") == []
        with pytest.raises(KeyError):
            session.resolve("job-8", "late")


def test_a_turn_in_one_process_keeps_out_the_other(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    store = SQLiteStore(path)
    script = """
        import sys
        from agentkit_fast import ScriptedRunner, Session, SessionBusy, SQLiteStore
        store = SQLiteStore(sys.argv[1])
        try:
            Session("s", store, ScriptedRunner(["never"])).turn()
        except SessionBusy:
            sys.exit(0)
        sys.exit(1)
    """

    @tool
    def work() -> str:
        in_another_process(script, str(path))
        with pytest.raises(SessionBusy):
            Session("s", SQLiteStore(path), ScriptedRunner(["never"])).turn()
        return "alone"

    session = Session("s", store, ScriptedRunner([calling("work"), "Good."]), tools=ToolSet([work]))
    session.inject(Entry(kind="user", content="go"))
    assert session.turn().reply == "Good."
    assert [entry.content for entry in store.context("s")][-2:] == ["alone", "Good."]


def test_settled_notices_are_gone_before_the_model_reads_them(tmp_path: Path) -> None:
    store = SQLiteStore(tmp_path / "s.db")
    for key in ("a", "b"):
        store.publish_notice(
            "s", Entry(kind="notification", content=f"{key} is red"), group_by="file", key=key
        )
    last = Seen("Only b.")
    preparer = RevalidatingPreparer(store, lambda group_by, key: "" if key == "a" else "red")
    session = Session("s", store, ScriptedRunner([last]), preparer=preparer)
    session.inject(Entry(kind="user", content="What is red?"))
    session.turn()
    joined = "\n".join(last.texts)
    assert "b is red" in joined
    assert "a is red" not in joined


def test_a_tool_clears_notices(tmp_path: Path) -> None:
    store = SQLiteStore(tmp_path / "s.db")

    @tool
    def fix() -> dict[str, Any]:
        store.publish_notice("s", Entry(kind="notification", content="a is red"), group_by="file", key="a")
        return {"clear": True, "group_by": "file", "key": "a"}

    last = Seen("Fixed.")
    session = Session("s", store, ScriptedRunner([calling("fix"), last]), tools=ToolSet([fix]))
    session.inject(Entry(kind="user", content="go"))
    session.turn()
    assert "a is red" not in "\n".join(last.texts)
    assert store.pending_notices("s") == []
