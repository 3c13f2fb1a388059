"""A server whose answers are of any size: on bare lines, its id before or after the rest."""

import json
import os
import sys
from pathlib import Path
from typing import Any

SCHEMA = {"type": "object", "properties": {"size": {"type": "integer"}}}
TOOLS = [{"name": name, "inputSchema": SCHEMA} for name in ("early", "late")]


def say(*parts: str) -> None:
    for part in parts:
        sys.stdout.write(part)
    sys.stdout.write("\n")
    sys.stdout.flush()


def call(id: str, name: str, size: int) -> None:
    head, tail = '"result":{"content":[{"type":"text","text":"', '"}]}'
    text = ["x" * (1 << 16)] * (size >> 16)
    if name == "early":
        say(f'{{"jsonrpc":"2.0","id":{id},{head}', *text, tail, "}")
    else:
        say("{", head, *text, tail, f',"id":{id},"jsonrpc":"2.0"}}')


def main() -> None:
    Path(sys.argv[1]).write_text(f"started {os.getpid()}\n")
    for line in sys.stdin:
        message: dict[str, Any] = json.loads(line)
        if "id" not in message:
            continue
        id, method = json.dumps(message["id"]), message["method"]
        if method == "tools/call":
            call(id, message["params"]["name"], message["params"]["arguments"]["size"])
            continue
        version = message.get("params", {}).get("protocolVersion")
        given: dict[str, Any] = {"tools": TOOLS}
        if method == "initialize":
            about = {"name": "flooding", "version": "1"}
            given = {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": about}
        elif method != "tools/list":
            error = json.dumps({"code": -32601, "message": "unknown"})
            say(f'{{"jsonrpc":"2.0","id":{id},"error":{error}}}')
            continue
        say(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": given}))


if __name__ == "__main__":
    main()
