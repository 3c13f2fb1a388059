"""Coding agents and their hooks for tests: a home folder, session files, payloads and a helper."""

import asyncio
import json
import os
import shutil
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from keepthread import Memory
from keepthread.apps.hooks import client
from keepthread.apps.hooks.helper import HookHelper
from keepthread.memory.owner import OwnerMemory

KEEPERS = "The lighthouse keeper is called Amaranta."
GENEROUS = 60.0
"""Seconds for a process on a machine that does other work as well."""
OWN = ("CLAUDE_CONFIG_DIR", "CODEX_HOME", "CLAUDE_PROJECT_DIR", "TMPDIR")


class HookWorld:
    """A home folder with a project, and the session files of two agents."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.project = home / "shop"
        self.store = home / "memory.db"
        self.project.mkdir()

    def environ(self) -> dict[str, str]:
        """Return the environment of a hook of this person."""
        given = {
            "HOME": str(self.home),
            "XDG_CONFIG_HOME": str(self.home / "config"),
            "XDG_DATA_HOME": str(self.home / "data"),
            "XDG_STATE_HOME": str(self.home / "state"),
            "XDG_RUNTIME_DIR": str(self.home / "run"),
            "KEEPTHREAD_STORE": f"sqlite:///{self.store}",
        }
        (self.home / "run").mkdir(mode=0o700, exist_ok=True)
        return given

    def transcript(self, id: str, *texts: str, cwd: Path | None = None, agent: str = "") -> Path:
        """Write a session file of Claude Code: the texts of a person and of the model in turn."""
        name = f"{id}/subagents/agent-{agent}" if agent else id
        path = self.home / ".claude" / "projects" / "shop" / f"{name}.jsonl"
        about = {"sessionId": id, "cwd": str(cwd or self.project), "isSidechain": bool(agent)}
        about |= {"timestamp": "2026-11-01T10:00:00Z"} | ({"agentId": agent} if agent else {})
        lines = [
            {"type": kind, "uuid": f"{name} {n}", "message": {"content": text}, **about}
            for n, text in enumerate(texts)
            for kind in [("user", "assistant")[n % 2]]
        ]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        return path

    def payload(self, event: str, id: str = "s1", **more: Any) -> dict[str, Any]:
        """Return what Claude Code sends."""
        path = self.home / ".claude" / "projects" / "shop" / f"{id}.jsonl"
        about = {"session_id": id, "transcript_path": str(path), "cwd": str(self.project)}
        return {"hook_event_name": event, "permission_mode": "default", **about, **more}

    def request(self, event: str, id: str = "s1", **more: Any) -> dict[str, Any]:
        """Return a request as the hook's process makes it of a payload."""
        payload = self.payload(event, id, **more)
        return {"agent": "claude-code", "event": event, "folder": str(self.project), **payload}

    def waiting(self, options: Mapping[str, Any] | None = None) -> list[Path]:
        """Return the notes of session files that wait to be stored."""
        folder = Path(client.waiting_folder(options or {}))
        return sorted(folder.iterdir()) if folder.is_dir() else []

    @asynccontextmanager
    async def memory(self, url: str = "") -> AsyncIterator[OwnerMemory]:
        """Open the memory of this person."""
        async with Memory.open(url or f"sqlite:///{self.store}") as memory:
            yield memory.for_owner("default")

    async def texts(self, id: str) -> list[str]:
        """Return the texts of a session in the memory."""
        async with self.memory() as memory:
            session = await memory.get_session(f"claude-code:{id}")
            return [message.content for message in await session.messages()]


@contextmanager
def hook_world(monkeypatch: pytest.MonkeyPatch) -> Iterator[HookWorld]:
    """Make a world in a folder with a short name: the path of a socket has a limit."""
    home = Path(tempfile.mkdtemp(prefix="kt-"))
    world = HookWorld(home)
    for name in OWN:
        monkeypatch.delenv(name, raising=False)
    for name, value in world.environ().items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(world.project)
    try:
        yield world
    finally:
        shutil.rmtree(home)


@asynccontextmanager
async def helper(idle: float = 60.0) -> AsyncIterator[str]:
    """Serve hooks in this process, and return the path of the socket."""
    path = client.socket_path()
    assert path
    serving = asyncio.create_task(HookHelper(path, idle=idle).serve())
    await until(Path(path).exists)
    try:
        yield path
    finally:
        serving.cancel()
        await asyncio.wait([serving])


async def asked(path: str, request: Mapping[str, Any], seconds: float = 60.0) -> str:
    """Return what a helper answers: the context that it adds."""
    end = time.monotonic() + seconds
    answer = await asyncio.to_thread(client.ask, path, request, end)
    assert answer is not None
    if not answer:
        return ""
    output = json.loads(answer)["hookSpecificOutput"]
    assert output.pop("hookEventName") == "UserPromptSubmit"
    assert [*output] == ["additionalContext"]
    return output["additionalContext"]


async def until_stored(world: HookWorld, options: Mapping[str, Any] | None = None) -> None:
    """Wait until no session file waits."""
    await until(lambda: not world.waiting(options))


async def until(condition: Callable[[], object]) -> None:
    """Wait for something that another process does."""
    end = time.monotonic() + GENEROUS
    while not condition():
        assert time.monotonic() < end
        await asyncio.sleep(0.01)


def helpers(world: HookWorld) -> list[int]:
    """Return the processes that are helpers of a world."""
    found: list[int] = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and int(folder.name) != os.getpid():
            try:
                line = (folder / "cmdline").read_bytes()
            except OSError:
                continue
            if b"hooks.helper" in line and os.fsencode(world.home) in line:
                found.append(int(folder.name))
    return found
