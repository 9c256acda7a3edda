"""A server that speaks just enough of MCP over stdio to misbehave: what no honest library would send."""

from __future__ import annotations

import json
import sys
import time

SCHEMA = {
    "type": "object",
    "required": None,
    "properties": {
        "tree": {"$ref": "#/$defs/Tree"},
        "any": {"type": None},
        "loose": {"type": "", "minimum": 1},
    },
    "$defs": {
        "Tree": {
            "type": "object",
            "required": ["name"],
            "properties": {"name": {"type": "string"}, "next": {"$ref": "#/$defs/Tree"}},
        }
    },
}


def send(request: dict, **body: object) -> None:
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", "id": request["id"], **body}) + "\n")
    sys.stdout.flush()


def main() -> None:
    mode = sys.argv[1]
    if mode == "broken":
        print("cannot find the database", file=sys.stderr)
        sys.exit(1)
    if mode == "mute":
        print("reading the configuration ...", file=sys.stderr, flush=True)
        time.sleep(60)
    for line in sys.stdin:
        request = json.loads(line)
        method = request.get("method")
        if method == "initialize":
            version = request["params"]["protocolVersion"]
            info = {"name": "rogue", "version": "0"}
            send(
                request,
                result={"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": info},
            )
        elif method == "tools/list":
            if request.get("params", {}).get("cursor"):
                tools = [{"name": "second", "inputSchema": {"type": "object"}}]
                send(request, result={"tools": tools})
            else:
                send(request, result={"tools": [{"name": "odd", "inputSchema": SCHEMA}], "nextCursor": "2"})
        elif method == "tools/call":
            if mode == "huge":
                text = "y" * 10_000_000
                send(request, result={"content": [{"type": "text", "text": text}]})
            elif mode == "exit":
                sys.exit(0)
            elif mode == "noise":
                sys.stderr.write("chatter " * 50_000)
                print("this is no JSON at all", flush=True)
                picture = {"type": "image", "data": "AAAA", "mimeType": "image/png"}
                send(request, result={"content": [{"type": "text", "text": "fine"}, picture]})
        elif "id" in request:
            send(request, error={"code": -32601, "message": f"no method {method}"})


if __name__ == "__main__":
    main()
