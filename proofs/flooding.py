"""A tool server that floods: megabytes in a result, beside it, and on its error output.

Run as a program; it speaks just enough of the Model Context Protocol over its pipes.
"""

import json
import sys
from typing import Any

CHUNK = "x" * 65_536
NOISE_LINES = 200


def send(message: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def result_of(method: str, params: dict[str, Any]) -> dict[str, Any] | None:
    if method == "initialize":
        return {
            "protocolVersion": params["protocolVersion"],
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "flooding", "version": "1"},
        }
    if method == "tools/list":
        properties = {"mark": {"type": "string"}, "megabytes": {"type": "integer"}}
        return {
            "tools": [{"name": "look", "inputSchema": {"type": "object", "properties": properties}}]
        }
    if method == "tools/call":
        mark, megabytes = params["arguments"]["mark"], params["arguments"]["megabytes"]
        for _ in range(NOISE_LINES):
            sys.stderr.write(f"noise about {mark}\n")
        sys.stderr.write(CHUNK * megabytes)
        sys.stderr.flush()
        text = f"look found {mark} {CHUNK * 16 * megabytes}"
        return {"content": [{"type": "text", "text": text}]}
    return None


def main() -> None:
    for line in sys.stdin:
        message = json.loads(line)
        if "id" not in message:
            continue
        result = result_of(message["method"], message.get("params") or {})
        if result is None:
            send({"id": message["id"], "error": {"code": -32601, "message": "unknown method"}})
        else:
            send({"id": message["id"], "result": result})


if __name__ == "__main__":
    main()
