"""A real proxy for clients that block: it serves in a thread, with a memory in a file."""

import asyncio
import json
import re
import socket
import threading
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import uvicorn
import zstandard

from keepthread import Memory, Message, sync
from keepthread.apps.proxy.assembly import Memories, build
from keepthread.apps.proxy.local import CREDENTIAL, LocalApp, uvicorn_settings
from keepthread.apps.proxy.settings import ProxySettings
from keepthread.testing.server import Received, ScriptedServer

TOKEN = "a-token-of-this-test-that-nobody-can-guess"
OWNER = "me"
KNOWN = "My sister Ada lives in Delft, near the canal."
"""Said in an earlier conversation, so that a question about it gets an addition."""
QUESTION = "Where does my sister Ada live?"
_QUOTED = rb"<keepthread-memory id=[0-9a-f]+>.*?</keepthread-memory>"
_ADDED = re.compile(
    rb',\{"type":"(?:text|input_text)","text":"' + _QUOTED + rb'"\}' + rb"|\\n\\n" + _QUOTED
)


@dataclass
class ServedProxy:
    """A proxy that listens, and the file of its memory."""

    base: str
    """The base URL without the version."""
    path: Path

    def sessions(self) -> dict[str, list[Message]]:
        """Return the messages of each session of the proxy, by its name after the credential."""
        with sync.Memory.open(f"sqlite:///{self.path}") as memory:
            mine = memory.for_owner(OWNER)
            ids = [each.id for each in mine.list_sessions() if each.id.startswith("proxy/")]
            return {id.split("/", 2)[2]: list(mine.session(id).messages()) for id in ids}

    def said(self) -> dict[str, list[tuple[str, str]]]:
        """Return role and text of each message, by session."""
        found = self.sessions()
        return {id: [(m.role, m.content) for m in messages] for id, messages in found.items()}


@contextmanager
def served(upstream: ScriptedServer, folder: Path) -> Generator[ServedProxy]:
    """Serve a proxy before a provider; it has recorded all when the block ends."""
    path = folder / "memory.db"
    settings = ProxySettings(
        openai=upstream.openai, anthropic=upstream.anthropic, memory_deadline=60
    )
    listener = socket.create_server(("127.0.0.1", 0))
    started, failures = threading.Event(), list[BaseException]()
    serving: list[uvicorn.Server] = []

    async def serve() -> None:
        async with Memory.open(f"sqlite:///{path}") as memory:
            mine = memory.for_owner(OWNER)
            earlier = await mine.session("earlier")
            await earlier.append(Message(role="user", content=KNOWN, id="known"))
            proxy = build(settings)
            app = LocalApp(
                proxy, Memories(memory.store.server_tables()).of(mine, "", CREDENTIAL), TOKEN
            )
            serving.append(uvicorn.Server(uvicorn_settings(app)))
            started.set()
            await serving[0].serve([listener])
            await proxy.close()

    def run() -> None:
        try:
            asyncio.run(serve())
        except BaseException as error:
            failures.append(error)
            raise
        finally:
            started.set()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        assert started.wait(30)
        assert not failures
        port = listener.getsockname()[1]
        yield ServedProxy(f"http://127.0.0.1:{port}/k/{TOKEN}", path)
    finally:
        for server in serving:
            server.should_exit = True
        thread.join(30)
        listener.close()
    assert not failures
    assert not thread.is_alive()


def plain(raw: bytes, headers: Mapping[str, str]) -> bytes:
    """Return a body as its client wrote it, before it was compressed."""
    return zstandard.decompress(raw) if headers.get("content-encoding") == "zstd" else raw


def without_additions(asked: Received) -> bytes:
    """Return a body without the texts that the proxy added to it."""
    return _ADDED.sub(b"", plain(asked.raw, asked.headers))


def additions(asked: Received) -> list[bytes]:
    """Return the texts that the proxy added to a body."""
    return _ADDED.findall(plain(asked.raw, asked.headers))


def items_grow(requests: Sequence[Received]) -> bool:
    """Return whether each request repeats the history of the one before it, byte by byte.

    Cache marks move, so they do not count.
    """
    histories: list[list[str]] = [[_unmarked(item) for item in r.messages] for r in requests]
    return all(later[: len(earlier)] == earlier for earlier, later in pairwise(histories))


def _unmarked(item: Any) -> str:
    mark = ', "cache_control": {"type": "ephemeral"}'
    return json.dumps(item).replace(mark, "")
