"""A real MCP server for the tests: `python mcp_server.py stdio`, or `... http PORT`."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError

server = MCPServer("testing", version="1")


@server.tool()
def add(a: int, b: int = 2) -> int:
    """Add two numbers."""
    return a + b


@server.tool()
def fail(why: str) -> str:
    """Fail."""
    raise ToolError(why)


@server.tool()
async def wait(seconds: float) -> str:
    """Wait."""
    await asyncio.sleep(seconds)
    return "waited"


@server.tool()
def big(chars: int) -> str:
    """Much text."""
    return "x" * chars


@server.tool()
def die() -> str:
    """End the server in the middle of the call."""
    print("last words: out of memory at 0x7f", file=sys.stderr, flush=True)
    os._exit(3)


@server.tool()
def check_file(file: str) -> str:
    """What is wrong with a file: nothing when it is gone."""
    return "still broken" if Path(file).exists() else ""


@server.tool(structured_output=False)
def nothing() -> list[str]:
    """No content."""
    return []


if __name__ == "__main__":
    if sys.argv[1] == "http":
        server.run("streamable-http", host="127.0.0.1", port=int(sys.argv[2]))
    else:
        print("server is up", file=sys.stderr, flush=True)
        server.run()
