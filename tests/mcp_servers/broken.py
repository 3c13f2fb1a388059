"""A server that breaks the protocol in ways that no SDK would: written on bare lines."""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

OBJECT = {"type": "object"}
TOOLS: list[Any] = [
    {"name": "fine", "inputSchema": OBJECT},
    {"name": "untyped", "inputSchema": {"properties": {"city": {"type": "string"}}}},
    {"name": "texts", "inputSchema": {"type": "string"}},
    {"name": "none"},
    {"name": "listed", "inputSchema": ["object"]},
    {"name": "properties", "inputSchema": {"type": "object", "properties": ["city"]}},
    {"name": "required", "inputSchema": {"type": "object", "required": "city"}},
    {"name": 7, "inputSchema": OBJECT},
    "no tool at all",
    {"name": "decorated", "inputSchema": OBJECT, "description": 9, "icons": 3, "annotations": []},
    {"name": "noisy", "inputSchema": OBJECT},
    {"name": "half", "inputSchema": OBJECT},
    {"name": "shapeless", "inputSchema": OBJECT},
    {"name": "refused", "inputSchema": OBJECT},
]


def say(line: bytes) -> None:
    sys.stdout.buffer.write(line + b"\n")
    sys.stdout.buffer.flush()


def answer(id: Any, **what: Any) -> None:
    say(json.dumps({"jsonrpc": "2.0", "id": id, **what}).encode())


def call(id: Any, name: str) -> None:
    text = f"{name} says hello"
    if name == "noisy":
        say(b"Server listening ...")
        say(b"\xff\xfe\x00")
        say(b"[" * 100_000)
    if name == "half":
        text = "\ud800"
    if name == "shapeless":
        return answer(id, result={"content": "hello"})
    if name == "refused":
        return answer(id, error={"code": -32000, "message": "not today " * 1000})
    return answer(id, result={"content": [{"type": "text", "text": text}]})


def main() -> None:
    Path(sys.argv[1]).write_text(f"started {os.getpid()}\n")
    if os.environ.get("MODE") == "silent":
        while True:  # not even the end of what it is told ends it
            time.sleep(60)
    for line in sys.stdin:
        message = json.loads(line)
        id, method = message.get("id"), message["method"]
        if method == "initialize":
            info = {"name": "broken", "version": "0"}
            version = message["params"]["protocolVersion"]
            answer(id, result={"protocolVersion": version, "capabilities": {}, "serverInfo": info})
        elif method == "tools/list":
            answer(id, result={"tools": TOOLS})
        elif method == "tools/call":
            call(id, message["params"]["name"])
        elif id is not None:
            answer(id, error={"code": -32601, "message": "no such method"})


if __name__ == "__main__":
    main()
