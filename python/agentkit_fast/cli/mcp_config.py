"""MCP servers of a JSON file (`{"mcpServers": {name: {"command", "args", "env"} | {"url"}}}`) as tools."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from agentkit_fast.cli.connect import UsageProblem
from agentkit_fast.tools import Tool, ToolSet

__all__ = ["connect_all", "read_config"]


def read_config(file: Path) -> dict[str, dict[str, Any]]:
    """The servers of a config file, by name."""
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageProblem(f"--mcp {file}: {error.strerror or error}") from error
    except ValueError as error:
        raise UsageProblem(f"--mcp {file}: not JSON: {error}") from error
    servers = value.get("mcpServers") if isinstance(value, dict) else None
    if not isinstance(servers, dict) or not all(isinstance(server, dict) for server in servers.values()):
        raise UsageProblem(f'--mcp {file}: expected {{"mcpServers": {{"name": {{"command": "…"}}}}}}')
    return servers


def connect_all(file: Path, tools: ToolSet | None, stack: ExitStack) -> ToolSet:
    """Connect every server of the file; their tools and `tools` as one set. Two of one name are refused."""
    from agentkit_fast.mcp import McpServer

    chosen: list[Tool] = list(tools or ())
    for name, settings in read_config(file).items():
        if "url" in settings:
            server = McpServer.http(settings["url"], headers=settings.get("headers"), name=name)
        elif "command" in settings:
            server = McpServer.stdio(
                settings["command"],
                *map(str, settings.get("args", ())),
                env=settings.get("env"),
                cwd=settings.get("cwd"),
                name=name,
            )
        else:
            raise UsageProblem(f"--mcp {file}: server {name!r} has neither `command` nor `url`")
        stack.enter_context(server)
        taken = {tool.name for tool in chosen}
        for tool in server.tools:
            if tool.name in taken:
                raise UsageProblem(
                    f"--mcp {file}: the tool {tool.name!r} of server {name!r} is there already; leave one out"
                )
            chosen.append(tool)
    return ToolSet(chosen)
