"""Run Claude Code and Codex without a person, against models of our own, each in a home folder.

`scripts/real_agent` installs them first. Nothing leaves the machine: the model's address is that of
a server here, and the key is made up.
"""

import asyncio
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

from keepthread import Memory, Message, ToolCall
from keepthread.models.tokens import Estimator
from keepthread.testing.play import Play
from keepthread.testing.script import Received, Say
from keepthread.testing.server import ScriptedServer

MODEL = "claude-sonnet-4-5"
KEEPER = "The lighthouse keeper is called Amaranta."
FOUND = "I found her: Amaranta keeps the lighthouse."
TASK = {
    "description": "Find the keeper",
    "prompt": "Who keeps the lighthouse?",
    "subagent_type": "general-purpose",
}
SECONDS = 60.0


class LenientServer(ScriptedServer):
    """A scripted server that passes over a field that newer models refuse."""

    def answer(self, path: str, headers: Mapping[str, str], body: bytes) -> tuple[Received, Say]:
        """Answer a request without its temperature: sub-agents of Claude Code send one."""
        value = json.loads(body)
        value.pop("temperature", None)
        return Play.answer(self, path, headers, json.dumps(value).encode())


class ResponsesHandler(BaseHTTPRequestHandler):
    """Answers what Codex asks of the Responses API: each time with one message, in a stream."""

    protocol_version = "HTTP/1.1"
    requests: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        """Offer no models: Codex uses the one that is named."""
        self._send("application/json", json.dumps({"data": [], "models": []}))

    def do_POST(self) -> None:
        """Answer a request."""
        self.requests.append(self.rfile.read(int(self.headers["Content-Length"])).decode())
        text = {"type": "output_text", "text": FOUND, "annotations": []}
        message = {"type": "message", "id": f"msg_{len(self.requests)}", "role": "assistant"}
        message |= {"status": "completed", "content": [text]}
        usage = {"input_tokens": 1, "output_tokens": 1, "total_tokens": 2}
        response = {"id": "resp_1", "object": "response", "status": "completed"}
        events = [
            {"type": "response.created", "response": response | {"output": []}},
            {"type": "response.output_item.done", "output_index": 0, "item": message},
            {"type": "response.completed", "response": response | {"usage": usage}},
        ]
        lines = [f"event: {each['type']}\ndata: {json.dumps(each)}\n\n" for each in events]
        self._send("text/event-stream", "".join(lines))

    def _send(self, kind: str, text: str) -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_: Any) -> None:
        """Log nothing."""


class Agent:
    """An agent in a home folder of its own."""

    def __init__(self, program: str, home: Path, address: str) -> None:
        """Prepare a project, and an environment that names the model's address."""
        self.program = program
        self.home = home
        self.project = home / "shop"
        self.project.mkdir()
        run = home / "run"
        run.mkdir(mode=0o700)
        self.environ = {
            "PATH": os.environ["PATH"],
            "HOME": str(home),
            "XDG_RUNTIME_DIR": str(run),
            "ANTHROPIC_BASE_URL": address,
            "ANTHROPIC_API_KEY": "made-up",
            "SCRIPTED_KEY": "made-up",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "CLAUDE_CODE_DISABLE_EXPERIMENTAL_BETAS": "1",
            "DISABLE_AUTOUPDATER": "1",
        }

    def ask(self, prompt: str, *options: str) -> Any:
        """Ask a question, and return what the program reports."""
        command = [self.program, "-p", prompt, "--model", MODEL, "--output-format", "json"]
        tools = ["--allowedTools", "Agent,Task,Bash(echo:*)"]
        return json.loads(self.run(*command, *options, *tools))

    def keepthread(self, *arguments: str) -> str:
        """Run our command for the same person, in the project."""
        return self.run(str(Path(sys.executable).with_name("keepthread")), *arguments)

    def run(self, *command: str) -> str:
        """Run a program, and return its output."""
        done = subprocess.run(  # noqa: S603 - programs of ours
            command,
            cwd=self.project,
            env=self.environ,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        if done.returncode:
            sys.exit(f"{command[0]} failed: {done.stdout[-2000:]} {done.stderr[-2000:]}")
        return done.stdout

    @property
    def store(self) -> Path:
        """Return the file of the memory."""
        return self.home / ".local" / "share" / "keepthread" / "memory.db"

    async def sessions(self) -> dict[str, list[Message]]:
        """Return every session of the memory, with its messages."""
        async with Memory.open(f"sqlite:///{self.store}", counter=Estimator()) as memory:
            mine = memory.for_owner("default")
            listed = await mine.list_sessions(limit=100)
            return {each.id: await (await mine.get_session(each.id)).messages() for each in listed}


def called(id: str, name: str, arguments: Mapping[str, str]) -> ToolCall:
    """Return a call of one of the program's own tools."""
    return ToolCall(id=id, name=name, arguments=json.dumps(arguments))


def check(holds: object, what: str) -> None:
    """Stop unless something holds."""
    if not holds:
        sys.exit(f"failed: {what}")
    print(f"ok: {what}")


def until(holds: Any, what: str) -> None:
    """Wait for the helper, which stores after it has answered."""
    end = time.monotonic() + SECONDS
    while not holds() and time.monotonic() < end:
        time.sleep(0.1)
    check(holds(), what)


def import_files(program: str, home: Path) -> None:
    """Import the session files that the program wrote by itself, twice."""
    script = [
        Say(tool_calls=[called("toolu_1", "Agent", TASK)]),
        FOUND,
        "It is Amaranta.",
        Say(tool_calls=[called("toolu_2", "Bash", {"command": "echo lit"})]),
        "The lamp is lit.",
    ]
    with LenientServer(script, otherwise="Yes.") as server:
        agent = Agent(program, home, server.anthropic)
        version = agent.run(program, "--version").strip()
        first = agent.ask("Who keeps the lighthouse?")
        agent.ask("Is its lamp lit?", "--resume", first["session_id"])
        check(not server.refused, f"{version} talks to the scripted model")
    report = [json.loads(agent.keepthread("import", str(home / ".claude"), "--json"))]
    before = asyncio.run(agent.sessions())
    report.append(json.loads(agent.keepthread("import", str(home / ".claude"), "--json")))
    id = f"claude-code:{first['session_id']}"
    texts = [message.content for message in before[id]]
    check(
        [texts[0], texts[3]] == ["Who keeps the lighthouse?", "It is Amaranta."]
        and texts[-1] == "The lamp is lit."
        and [message.role for message in before[id]].count("tool") == 2,
        f"its session file is imported: {len(texts)} messages",
    )
    children = [each for each in before if each.startswith(f"{id}/")]
    check(len(children) == 1, "its sub-agent is a session of its own")
    check(before[children[0]][-1].content == FOUND, "with its answer")
    check(report[0]["sessions"] == 2 and not report[0]["refused"], "nothing was refused")
    check(report[1]["known"] == report[1]["sessions"] == 2, "a second import changes nothing")
    check(asyncio.run(agent.sessions()) == before, "and every message is the same")


def use_hooks(program: str, home: Path) -> None:
    """Let our hooks store a session, and recall it in the next one."""
    script = [
        Say(tool_calls=[called("toolu_1", "Agent", TASK)]),
        FOUND,
        "I will remember Amaranta.",
    ]
    with LenientServer(script, otherwise="Yes.") as server:
        agent = Agent(program, home, server.anthropic)
        agent.keepthread("mcp", "install", "claude-code", "--hooks", "--write")
        first = agent.ask(KEEPER)
        id = f"claude-code:{first['session_id']}"

        def stored() -> dict[str, list[str]]:
            if not agent.store.exists():
                return {}
            found = asyncio.run(agent.sessions())
            return {each: [m.content for m in messages] for each, messages in found.items()}

        until(lambda: len(stored()) == 2, "the hooks stored the session and its sub-agent")
        until(lambda: "I will remember Amaranta." in stored()[id], "with the answer")
        number = len(server.requests)
        agent.ask("What is the lighthouse keeper called?")
        asked = server.requests[number].context
        check(f"> {KEEPER}" in asked, "a later session is given what the first one said")
        check("quoted, delimiter" in asked, "as a quotation")
        check(not server.refused, "the model accepts it")
        until(lambda: len(stored()) == 3, "the later session is stored as well")
    before = asyncio.run(agent.sessions())
    texts = "".join(m.content for messages in before.values() for m in messages)
    check("quoted, delimiter" not in texts, "what was recalled is not stored again")
    report = json.loads(agent.keepthread("import", str(home / ".claude"), "--json"))
    check(report["known"] == report["sessions"] == 3, "importing the files adds nothing")
    check(asyncio.run(agent.sessions()) == before, "and every message is the same")
    agent.keepthread("mcp", "install", "claude-code", "--remove")
    settings = json.loads((home / ".claude" / "settings.json").read_text())
    check(not settings["hooks"], "the hooks are removed")


CODEX = """\
model = "gpt-5"
model_provider = "scripted"

[model_providers.scripted]
name = "scripted"
base_url = "%s/v1"
env_key = "SCRIPTED_KEY"
wire_api = "responses"
"""


def use_codex(program: str, home: Path) -> None:
    """Let our hooks store a session of Codex, and recall it in the next one."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), ResponsesHandler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_address[1]}"
    agent = Agent(program, home, address)
    (home / ".codex").mkdir()
    (home / ".codex" / "config.toml").write_text(CODEX % address)
    agent.keepthread("mcp", "install", "codex", "--hooks", "--write")
    ask = [program, "exec", "--skip-git-repo-check", "--dangerously-bypass-hook-trust"]
    agent.run(*ask, KEEPER)

    def stored() -> list[list[str]]:
        found = asyncio.run(agent.sessions()) if agent.store.exists() else {}
        return [[message.content for message in each] for each in found.values()]

    version = agent.run(program, "--version").strip()
    until(lambda: stored() == [[KEEPER, FOUND]], f"the hooks stored a session of {version}")
    agent.run(*ask, "What is the lighthouse keeper called?")
    asked = ResponsesHandler.requests[-1]
    check(f"> {KEEPER}" in asked and "quoted, delimiter" in asked, "a later session is given it")
    until(lambda: len(stored()) == 2, "the later session is stored as well")
    check("quoted, delimiter" not in str(stored()), "what was recalled is not stored again")
    before = asyncio.run(agent.sessions())
    for _ in range(2):
        report = json.loads(agent.keepthread("import", str(home / ".codex/sessions"), "--json"))
        check(report["known"] == report["sessions"] == 2, "importing the files adds nothing")
    check(asyncio.run(agent.sessions()) == before, "and every message is the same")
    server.shutdown()


def main(claude: str, codex: str) -> None:
    """Do all, each in a home folder of its own."""
    for program, each in ((claude, import_files), (claude, use_hooks), (codex, use_codex)):
        print(f"# {each.__doc__}", flush=True)
        home = Path(tempfile.mkdtemp(prefix="kt-"))
        try:
            each(program, home)
        finally:
            shutil.rmtree(home, ignore_errors=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
