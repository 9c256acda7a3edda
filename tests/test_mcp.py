"""MCP servers as tools, against real servers started here."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from agentkit_fast import Entry, MemoryStore, RevalidatingPreparer, ToolCall, ToolSet

pytest.importorskip("mcp")
from agentkit_fast.mcp import McpError, McpServer, normalize_schema

HERE = Path(__file__).parent


def real(**settings: Any) -> McpServer:
    return McpServer.stdio(sys.executable, str(HERE / "mcp_server.py"), "stdio", name="testing", **settings)


def rogue(mode: str, **settings: Any) -> McpServer:
    return McpServer.stdio(sys.executable, str(HERE / "mcp_rogue.py"), mode, name="rogue", **settings)


def call(name: str, **arguments: Any) -> ToolCall:
    return ToolCall(id="c1", name=name, arguments=json.dumps(arguments))


@pytest.fixture(scope="module")
def server() -> Iterator[McpServer]:
    with real(mask={"file": "check_file"}) as made:
        yield made


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@pytest.fixture(scope="module")
def http_server() -> Iterator[McpServer]:
    port = free_port()
    process = subprocess.Popen(
        [sys.executable, str(HERE / "mcp_server.py"), "http", str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            break
        time.sleep(0.05)
    with McpServer.http(f"http://127.0.0.1:{port}/mcp", name="over http") as made:
        yield made
    process.terminate()
    process.wait(30)


@pytest.fixture(params=["stdio", "http"])
def either(request: pytest.FixtureRequest) -> McpServer:
    made: McpServer = request.getfixturevalue("server" if request.param == "stdio" else "http_server")
    return made


def test_tools_are_listed_with_their_schemas(either: McpServer) -> None:
    tools = ToolSet(either.tools)
    assert tools["add"].description == "Add two numbers."
    schema = tools["add"].parameters
    assert schema["type"] == "object"
    assert schema["properties"]["a"]["type"] == "integer"
    assert schema["required"] == ["a"]
    assert tools.is_async("add")


def test_calls_from_sync_and_async_code(either: McpServer) -> None:
    tools = ToolSet(either.tools)
    assert tools(call("add", a=1)) == "3"
    assert tools(call("add", a=1, b=5)) == "6"
    assert asyncio.run(tools.adispatch(call("add", a=2))) == "4"
    assert either.call("add", {"a": 3}) == "5"
    assert tools(call("fail", why="no such shelf")).startswith("ERROR: ")
    assert "no such shelf" in tools(call("fail", why="no such shelf"))
    assert "ERROR" in tools(call("add", a="x"))
    assert tools(call("nothing")) == ""


def test_a_large_result(either: McpServer) -> None:
    assert either.call("big", {"chars": 3_000_000}) == "x" * 3_000_000


def test_bad_arguments_never_leave(server: McpServer) -> None:
    answer = ToolSet(server.tools)(ToolCall(id="c", name="add", arguments='{"a": 1'))
    assert answer.startswith("ERROR: add was not run")


def test_siblings_run_side_by_side_and_a_stuck_one_harms_none(either: McpServer) -> None:
    async def main() -> tuple[list[str], float]:
        begun = time.monotonic()
        stuck = asyncio.create_task(either.acall("wait", {"seconds": 60}, timeout_s=0.5))
        slow = asyncio.create_task(either.acall("wait", {"seconds": 0.2}))
        results = [await either.acall("add", {"a": 1}), await slow, await stuck]
        return results, time.monotonic() - begun

    (quick, slow, stuck), seconds = asyncio.run(main())
    assert (quick, slow) == ("3", "waited")
    assert stuck.startswith("ERROR: wait gave no result within 0.5 s")
    assert seconds < 10
    assert either.call("add", {"a": 1}) == "3"


def test_cancelling_works_at_once(server: McpServer) -> None:
    async def main() -> float:
        task = asyncio.create_task(server.acall("wait", {"seconds": 60}))
        await asyncio.sleep(0.1)
        begun = time.monotonic()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return time.monotonic() - begun

    assert asyncio.run(main()) < 2
    assert server.call("add", {"a": 1}) == "3"


def test_a_server_that_dies_is_noticed_and_started_anew() -> None:
    with real(timeout_s=30) as server:
        tools = ToolSet(server.tools)
        begun = time.monotonic()
        answer = tools(call("die"))
        assert time.monotonic() - begun < 10
        assert "has ended" in answer
        assert "last words: out of memory" in answer  # its stderr
        assert "whether it had its effect is not known" in answer
        assert not server.alive
        assert tools(call("add", a=1)) == "3"
        assert server.alive


def test_a_dead_server_stays_down_where_that_is_wanted() -> None:
    with real(restart=False) as server:
        server.call("die")
        answer = server.call("add", {"a": 1})
        assert answer.startswith("ERROR: add was not run: MCP server 'testing' has ended")


ROGUES = [
    ("mute-call", "silent", "gave no result within 1 s"),
    ("exit-in-a-call", "exit", "has ended"),
]


@pytest.mark.parametrize(("mode", "words"), [row[1:] for row in ROGUES], ids=[row[0] for row in ROGUES])
def test_rogue_servers(mode: str, words: str) -> None:
    with rogue(mode, timeout_s=1) as server:
        begun = time.monotonic()
        answer = server.call("odd")
        assert words in answer
        assert time.monotonic() - begun < 6


def test_ten_megabytes_on_one_line() -> None:
    with rogue("huge", timeout_s=60) as server:
        assert server.call("odd") == "y" * 10_000_000


def test_noise_on_both_streams_and_content_that_is_no_text() -> None:
    with rogue("noise", timeout_s=30) as server:
        assert server.call("odd") == "fine\n[image image/png: 3 bytes, not shown]"


def test_schemas_reach_the_model_normalized() -> None:
    with rogue("silent") as server:
        odd, second = server.tools
        assert odd.parameters["required"] == []
        assert odd.parameters["properties"] == {
            "tree": {"$ref": "#/$defs/Tree"},
            "any": {},
            "loose": {"minimum": 1},
        }
        assert odd.parameters["$defs"]["Tree"]["properties"]["next"] == {"$ref": "#/$defs/Tree"}
        assert odd.parameters["$defs"]["Tree"]["required"] == ["name"]
        assert second.parameters == {"type": "object", "properties": {}}


NORMAL: list[tuple[str, Any, dict[str, Any]]] = [
    ("none", None, {"type": "object", "properties": {}}),
    ("empty", {}, {"type": "object", "properties": {}}),
    ("null-type", {"type": None, "properties": None}, {"type": "object", "properties": {}}),
    ("type-list", {"type": ["object", "null"]}, {"type": ["object", "null"]}),
    (
        "nested",
        {"type": "object", "properties": {"a": {"type": "array", "items": {"type": "", "required": None}}}},
        {"type": "object", "properties": {"a": {"type": "array", "items": {"required": []}}}},
    ),
    (
        "property-names-are-no-keywords",
        {"type": "object", "properties": {"required": {"type": "string"}, "type": {"type": "string"}}},
        {"type": "object", "properties": {"required": {"type": "string"}, "type": {"type": "string"}}},
    ),
    (
        "data-is-left-alone",
        {"type": "object", "properties": {"a": {"default": {"required": None}, "enum": [None, ""]}}},
        {"type": "object", "properties": {"a": {"default": {"required": None}, "enum": [None, ""]}}},
    ),
    (
        "bools",
        {"additionalProperties": False, "items": True, "x": 1},
        {"type": "object", "additionalProperties": False, "items": True, "x": 1, "properties": {}},
    ),
]


@pytest.mark.parametrize(("schema", "wanted"), [row[1:] for row in NORMAL], ids=[row[0] for row in NORMAL])
def test_normalize_schema(schema: Any, wanted: dict[str, Any]) -> None:
    before = json.dumps(schema)
    assert normalize_schema(schema) == wanted
    assert json.dumps(schema) == before


def test_a_schema_nested_without_end() -> None:
    deep: dict[str, Any] = {}
    for _ in range(5000):
        deep = {"items": deep}
    assert normalize_schema(deep)["type"] == "object"


STARTS = [
    ("no-program", lambda: McpServer.stdio("/no/such/program"), "could not be started"),
    ("ends-at-once", lambda: rogue("broken"), "cannot find the database"),
    ("never-ready", lambda: rogue("mute", start_timeout_s=1), "was not ready within 1 s"),
    (
        "nobody-there",
        lambda: McpServer.http(f"http://127.0.0.1:{free_port()}/mcp", start_timeout_s=5),
        "could not be",
    ),
    ("masks-nothing", lambda: real(mask={"g": "zzz"}), "no tool 'zzz' to mask"),
]


@pytest.mark.parametrize(("make", "words"), [row[1:] for row in STARTS], ids=[row[0] for row in STARTS])
def test_a_server_that_cannot_be_had(make: Any, words: str) -> None:
    server = make()
    begun = time.monotonic()
    with pytest.raises(McpError, match=words) as raised:
        server.connect()
    assert time.monotonic() - begun < 20
    if words.startswith("was not ready"):
        assert "reading the configuration" in str(raised.value)
    server.close()


class Stalling(BaseHTTPRequestHandler):
    """Answers the handshake; a call gets keep-alive comments for ever."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None: ...

    def do_GET(self) -> None:
        self.send_response(405)
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_DELETE = do_GET

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        method = request.get("method")
        if "id" not in request:
            self.send_response(202)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        body: dict[str, Any]
        if method == "initialize":
            version = request["params"]["protocolVersion"]
            info = {"name": "stalling", "version": "0"}
            body = {
                "result": {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": info}
            }
        elif method == "tools/list":
            body = {"result": {"tools": [{"name": "stall", "inputSchema": {"type": "object"}}]}}
        elif method == "tools/call":
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.end_headers()
            with contextlib.suppress(OSError):
                for _ in range(300):
                    self.wfile.write(b": keep-alive\n\n")
                    self.wfile.flush()
                    time.sleep(0.05)
            self.close_connection = True
            return
        else:
            body = {"error": {"code": -32601, "message": "no such method"}}
        data = json.dumps({"jsonrpc": "2.0", "id": request["id"], **body}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def test_http_that_stalls_with_keep_alive_comments() -> None:
    httpd = ThreadingHTTPServer(("127.0.0.1", 0), Stalling)
    httpd.daemon_threads = True
    threading.Thread(target=httpd.serve_forever, daemon=True).start()
    try:
        with McpServer.http(f"http://127.0.0.1:{httpd.server_address[1]}/mcp", timeout_s=1) as server:
            begun = time.monotonic()
            assert "gave no result within 1 s" in server.call("stall")
            assert time.monotonic() - begun < 5
    finally:
        httpd.shutdown()
        httpd.server_close()


def test_masked_tools_revalidate_notices(server: McpServer, tmp_path: Path) -> None:
    assert "check_file" not in ToolSet(server.tools)
    broken = tmp_path / "broken"
    broken.touch()
    store = MemoryStore()
    for key in (str(broken), str(tmp_path / "gone")):
        store.publish_notice("s", Entry(kind="notification", content=key), group_by="file", key=key)
    store.publish_notice("s", Entry(kind="notification", content="x"), group_by="unknown group", key="k")
    RevalidatingPreparer(store, server).prepare("s")
    assert [notice.key for notice in store.pending_notices("s")] == [str(broken), "k"]
    assert server.revalidate("unknown group", "k") is None


def test_several_threads_at_once(server: McpServer) -> None:
    results: list[str] = []
    threads = [
        threading.Thread(target=lambda n=n: results.append(server.call("add", {"a": n, "b": 0})))
        for n in range(12)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(map(int, results)) == list(range(12))


def test_tools_may_need_a_yes() -> None:
    with real(approve=["add"]) as server:
        assert {item.name for item in server.tools if item.approve} == {"add"}


def test_as_an_async_context_manager() -> None:
    async def main() -> str:
        async with real(prefix="t_") as server:
            return await ToolSet(server.tools).adispatch(call("t_add", a=1))

    assert asyncio.run(main()) == "3"


def test_a_closed_server_says_so() -> None:
    server = real()
    with server:
        assert server.alive
    assert "is closed" in server.call("add", {"a": 1})
    server.close()
