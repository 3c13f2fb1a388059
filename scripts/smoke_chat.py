"""Let a real model use tools in `keepthread chat`, and check what went over the wire.

The model is too small to choose a tool, and its chat template knows none. So each request passes a
relay on loopback that records it and, where a call is wanted, asks the server for the arguments by
a grammar and returns them as a call. Nothing here depends on the words that the model chooses.
"""

import json
import os
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

from smoke_server import NAME

ROOT = Path(__file__).parents[1]
CITIES = ("Lima", "Oslo")
DIET = "I'm vegetarian."


class Forced(NamedTuple):
    """A tool that the model must call, and the values that it may choose for its argument."""

    tool: str
    argument: str
    values: tuple[str, ...]

    @property
    def schema(self) -> dict[str, Any]:
        """Return the schema that the server makes a grammar of."""
        given = {self.argument: {"enum": list(self.values)}}
        return {"type": "object", "properties": given, "required": [self.argument]}


class Relay:
    """Passes requests on, and records them as they were sent by the chat."""

    def __init__(self, url: str) -> None:
        """Take the address of the model's server."""
        self.url = url
        self.forced: Forced | None = None
        self.requests: list[dict[str, Any]] = []

    def answer(self, path: str, data: bytes) -> bytes:
        """Record a request, and return the model's answer as the events of a stream."""
        request = json.loads(data)
        self.requests.append(request)
        answered = request["messages"][-1]["role"] == "tool"
        asked = {**request, "stream": False, "max_tokens": 60}
        for name in ("tools", "stream_options"):
            asked.pop(name, None)
        if self.forced is None or answered:
            message = {"role": "assistant", "content": self._completed(path, asked)}
            return _events(message, "stop")
        schema = {"name": "call", "schema": self.forced.schema}
        asked |= {"response_format": {"type": "json_schema", "json_schema": schema}}
        given = {"name": self.forced.tool, "arguments": self._completed(path, asked)}
        call = {"index": 0, "id": "call_1", "type": "function", "function": given}
        return _events({"role": "assistant", "tool_calls": [call]}, "tool_calls")

    def _completed(self, path: str, request: dict[str, Any]) -> str:
        kind = {"Content-Type": "application/json"}
        data = json.dumps(request).encode()
        sent = urllib.request.Request(f"{self.url}{path}", data, kind)  # noqa: S310
        with urllib.request.urlopen(sent, timeout=300) as answer:  # noqa: S310
            return json.load(answer)["choices"][0]["message"]["content"]


def _events(delta: dict[str, Any], reason: str) -> bytes:
    head = {"id": "1", "object": "chat.completion.chunk", "created": 0, "model": NAME}
    parts = [(delta, None), ({}, reason)]
    chunks = [
        {**head, "choices": [{"index": 0, "delta": part, "finish_reason": end}]}
        for part, end in parts
    ]
    lines = [*map(json.dumps, chunks), "[DONE]"]
    return "".join(f"data: {line}\n\n" for line in lines).encode()


@contextmanager
def relayed(url: str) -> Iterator[tuple[Relay, str]]:
    """Give a relay to a server, and its own address."""
    relay = Relay(url)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            data = self.rfile.read(int(self.headers["Content-Length"]))
            answer = relay.answer(self.path, data)
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield relay, f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def home(folder: Path, url: str) -> tuple[dict[str, str], Path]:
    """Make a home with settings and a tool's server; return its environment and the journal."""
    journal = folder / "journal"
    settings = folder / "config" / "keepthread"
    settings.mkdir(parents=True)
    sky = {
        "command": sys.executable,
        "args": ["-m", "tests.mcp_servers.weather", str(journal)],
        "env": {"PYTHONPATH": str(ROOT)},
        "allow": ["weather"],
    }
    (settings / "mcp.json").write_text(json.dumps({"mcpServers": {"sky": sky}}))
    (settings / "config.yaml").write_text('chat:\n  allowed_tools: "sky/weather"\n')
    places = {"XDG_CONFIG_HOME": "config", "XDG_DATA_HOME": "data", "XDG_STATE_HOME": "state"}
    return {
        **os.environ,
        **{name: str(folder / place) for name, place in places.items()},
        "KEEPTHREAD_MODEL_NAME": NAME,
        "KEEPTHREAD_MODEL_BASE_URL": f"{url}/v1",
        "KEEPTHREAD_MODEL_TIMEOUT": "300",
    }, journal


def chat_with_tools(url: str, folder: Path, check: Callable[[str, object], None]) -> None:
    """Ask in two sessions: one calls a tool and notes a fact, the next one knows the fact."""
    print("\n== keepthread chat, with tools")
    with relayed(url) as (relay, address):
        env, journal = home(folder, address)

        def ask(session: str, question: str, forced: Forced | None = None) -> list[dict[str, Any]]:
            relay.forced, known = forced, len(relay.requests)
            command = [Path(sys.executable).with_name("keepthread"), "chat", "--session", session]
            done = subprocess.run(  # noqa: S603
                [*command, "-p", question],
                check=False,
                env=env,
                cwd=folder,
                capture_output=True,
                text=True,
            )
            print(f"\n> {question}")
            for line in (*done.stderr.splitlines(), *done.stdout.splitlines()):
                print(f"  | {line}")
            check(f"the chat ended well, with {done.returncode}", done.returncode in (0, 1))
            return relay.requests[known:]

        wanted = Forced("weather", "city", CITIES)
        first, *rest = ask("one", f"How warm is it in {CITIES[0]}?", wanted)
        names = [tool["function"]["name"] for tool in first["tools"]]
        check(f"it offers {names}", names == ["weather", "remember", "search_memory"])
        called, result = rest[-1]["messages"][-2:] if rest else ({}, {})
        city = json.loads(called["tool_calls"][0]["function"]["arguments"])["city"] if rest else ""
        ran = [line for line in journal.read_text().splitlines() if line.startswith("weather ")]
        check(f"the tool ran once, as the model called it: {ran}", ran == [f"weather {city}"])
        check("its result was sent back", f"°C in {city}" in result.get("content", ""))
        noted = ask("one", f"Remember that {DIET}", Forced("remember", "text", (DIET,)))
        check("the fact was noted", noted[-1]["messages"][-1]["content"] == "Noted.")
        (known,) = ask("two", "What shall I cook?")
        told = json.dumps(known["messages"], ensure_ascii=False)
        check("the request of a new session has the fact", DIET in told)
        check("and nothing else of the first session", city not in told)
