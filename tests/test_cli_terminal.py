"""`agentkit-fast chat` and `run` in a real terminal (tmux): what is typed, what is shown, Ctrl-C, exit codes."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import servers
from agentkit_fast import SQLiteStore

pytest.importorskip("httpx2")
pytestmark = pytest.mark.skipif(shutil.which("tmux") is None, reason="needs tmux")


class Terminal:
    """A tmux server of its own with one window, which stays when its command has ended."""

    def __init__(self, folder: Path) -> None:
        self._socket = f"agentkit-test-{uuid.uuid4().hex[:12]}"
        self._folder = folder
        self._tmux("-f", "/dev/null", "new-session", "-d", "-x", "120", "-y", "50", "-c", str(folder), "sh")
        self._tmux("set-option", "-g", "remain-on-exit", "on")

    def _tmux(self, *arguments: str) -> str:
        done = subprocess.run(
            ["tmux", "-L", self._socket, *arguments], capture_output=True, text=True, timeout=20, check=True
        )
        return done.stdout

    def start(self, *arguments: str) -> None:
        command = shlex.join([sys.executable, "-m", "agentkit_fast.cli.main", *arguments])
        self._tmux("respawn-pane", "-k", "-c", str(self._folder), f"exec {command}")

    def type(self, text: str) -> None:
        self._tmux("send-keys", "-l", text)
        self._tmux("send-keys", "Enter")

    def key(self, name: str) -> None:
        self._tmux("send-keys", name)

    def screen(self) -> str:
        return self._tmux("capture-pane", "-p", "-J")

    def wait_for(self, found: Callable[[str], bool] | str, seconds: float = 60) -> str:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            screen = self.screen()
            if found in screen if isinstance(found, str) else found(screen):
                return screen
            time.sleep(0.05)
        raise AssertionError(f"not seen: {found!r}; the screen:\n{self.screen()}")

    def exit_code(self, seconds: float = 60) -> int:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            dead, code, killed = self._tmux(
                "list-panes", "-F", "#{pane_dead},#{pane_dead_status},#{pane_dead_signal}"
            ).split(",")
            if code:
                return int(code)
            assert not killed.strip(), f"ended by signal {killed}; the screen:\n{self.screen()}"
            if dead == "1":
                # tmux 3.3 sees the terminal close and may then sleep through the end of the process, which stays a
                # zombie without a status until another child of tmux ends.
                self._tmux("run-shell", "true")
            time.sleep(0.05)
        raise AssertionError(f"still running; the screen:\n{self.screen()}")

    def close(self) -> None:
        self._tmux("kill-server")


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    opened = Terminal(tmp_path)
    yield opened
    opened.close()


class Endless:
    """A reply that goes on until the client hangs up, and says when it did."""

    def __init__(self) -> None:
        self.hung_up = False

    def __call__(self, wire: servers.Wire) -> None:
        wire.head()
        try:
            for number in range(2000):
                wire.chunk(servers.event(servers.delta(content=f"word{number} ")))
                if wire.client_gone(0.05):
                    break
        except OSError:
            pass
        self.hung_up = True
        wire.hang_up()


def chat(terminal: Terminal, url: str, *more: str) -> None:
    terminal.start("chat", "--endpoint", url, "--format", "native", "--session", "talk.db", *more)
    terminal.wait_for("/quit or Ctrl-D leaves")


def history(folder: Path) -> list[tuple[str, str]]:
    store = SQLiteStore(folder / "talk.db")
    try:
        return [(entry.kind, entry.content) for entry in store.history("cli")]
    finally:
        store.close()


def test_ctrl_c_stops_the_model_and_the_conversation_goes_on(terminal: Terminal, tmp_path: Path) -> None:
    endless = Endless()
    with servers.WireServer(servers.says("Good morning."), endless, servers.says("Here I am.")) as wire:
        chat(terminal, wire.url)
        terminal.type("hello there")
        terminal.wait_for("Good morning.")
        terminal.type("count for ever")
        terminal.wait_for("word5")
        terminal.key("C-c")
        terminal.wait_for("stopped")
        until = time.monotonic() + 10
        while not endless.hung_up and time.monotonic() < until:
            time.sleep(0.02)
        assert endless.hung_up, "the model went on for nobody"
        terminal.type("still there?")
        screen = terminal.wait_for("Here I am.")
        assert "Traceback" not in screen
        sent = [message["content"] for message in wire.posts[-1].json["messages"]]
        assert sent[1:3] == ["hello there", "Good morning."]
        assert any("count for ever" in content for content in sent)
        assert sent[-1].endswith("still there?")
        terminal.type("/usage")
        terminal.wait_for("tokens: window")
        terminal.type("/quit")
        assert terminal.exit_code() == 0
    texts = [content for kind, content in history(tmp_path) if kind == "user"]
    assert texts == ["hello there", "count for ever", "still there?"]


def test_a_chat_is_resumed_and_end_of_input_leaves(terminal: Terminal) -> None:
    with servers.WireServer(servers.says("Noted: [bold]seven[/bold].")) as wire:
        chat(terminal, wire.url)
        terminal.type("my number is seven")
        terminal.wait_for("Noted: [bold]seven[/bold].")  # the model's text is not markup
        terminal.key("C-d")
        assert terminal.exit_code() == 0
        chat(terminal, wire.url)
        terminal.type("which was it?")
        terminal.wait_for("Noted:")
        sent = [message["content"] for message in wire.posts[-1].json["messages"]]
        assert sent[1:] == ["my number is seven", "Noted: [bold]seven[/bold].", "which was it?"]
        terminal.wait_for(lambda screen: screen.rstrip().endswith("\n>"))  # the turn is over
        terminal.key("C-c")
        terminal.wait_for("Ctrl-C again or /quit leaves")
        terminal.key("C-c")
        assert terminal.exit_code() == 0


@pytest.mark.parametrize("answer", ["y", "n"])
def test_a_tool_call_asks_first(terminal: Terminal, tmp_path: Path, answer: str) -> None:
    marker = tmp_path / "made.txt"
    with servers.WireServer(
        servers.calls("shell", {"command": f"touch {marker}"}), servers.says("All done.")
    ) as wire:
        chat(terminal, wire.url, "--tools", "shell")
        terminal.type("make the file")
        terminal.wait_for("Run it?")
        assert not marker.exists()
        terminal.type(answer)
        terminal.wait_for("All done.")
        assert marker.exists() == (answer == "y")
        terminal.type("/quit")
        assert terminal.exit_code() == 0


def stopped_by_ctrl_c(terminal: Terminal) -> str:
    """The screen after Ctrl-C ended the command, as it should."""
    terminal.key("C-c")
    assert terminal.exit_code() == 130
    screen = terminal.screen()
    assert "Traceback" not in screen
    return screen


def test_ctrl_c_ends_run_with_130(terminal: Terminal, tmp_path: Path) -> None:
    endless = Endless()
    with servers.WireServer(endless) as wire:
        terminal.start("run", "count", "--endpoint", wire.url, "--format", "native", "--session", "talk.db")
        terminal.wait_for("word5")
        screen = stopped_by_ctrl_c(terminal)
    assert "stopped; what was done so far is stored" in screen
    assert history(tmp_path)[0] == ("user", "count")


def test_an_endpoint_that_is_not_there_is_said_and_the_chat_goes_on(terminal: Terminal) -> None:
    with servers.WireServer(
        lambda wire: wire.whole({"error": {"message": "no such model"}}, 404), servers.says("Better now.")
    ) as wire:
        chat(terminal, wire.url)
        terminal.type("hello")
        terminal.wait_for("no such model")
        terminal.type("again")
        screen = terminal.wait_for("Better now.")
        assert "Traceback" not in screen
        terminal.type("/quit")
        assert terminal.exit_code() == 0


def test_ctrl_c_ends_the_demo_with_130(terminal: Terminal, smollm2_path: Path) -> None:
    pytest.importorskip("llama_cpp")
    terminal.start("demo", "--model", str(smollm2_path), "--threads", "1")
    terminal.wait_for("List the files")
    assert "stopped" in stopped_by_ctrl_c(terminal)
