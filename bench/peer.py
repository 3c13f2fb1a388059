"""A peer in the same table: the SQLite session of openai-agents, if it is installed."""

import asyncio
import importlib
import importlib.util
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from keepthread.types import Message

NAME = "openai-agents SQLiteSession"
INSTALLED = importlib.util.find_spec("agents") is not None
ABSENT = "openai-agents is not installed, so its rows are left out; scripts/setup --bench adds it."


class Peer:
    """One of its sessions in a file of its own, awaited on an event loop."""

    def __init__(self, path: Path, messages: Iterable[Message]) -> None:
        agents = importlib.import_module("agents")
        self._session: Any = agents.SQLiteSession("cli:0001", path)
        self._items: Iterator[dict[str, str]] = iter(
            [{"role": message.role, "content": message.content} for message in messages]
        )
        self._runner = asyncio.Runner()

    def append(self, count: int) -> None:
        """Add the next messages one after another."""
        self._runner.run(self._append(count))

    async def _append(self, count: int) -> None:
        add = self._session.add_items
        for item in islice(self._items, count):
            await add([item])

    def fill(self) -> None:
        """Add all that is left at once."""
        self._runner.run(self._session.add_items(list(self._items)))

    def read(self, count: int, *, limit: int) -> None:
        """Read the newest messages so many times."""
        self._runner.run(self._read(count, limit))

    async def _read(self, count: int, limit: int) -> None:
        for _ in range(count):
            await self._session.get_items(limit)

    def close(self) -> None:
        """Close its file and the loop."""
        self._session.close()
        self._runner.close()
