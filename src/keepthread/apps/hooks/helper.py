"""The helper: a process that holds the memory open for the hooks of one user.

A hook starts it if none runs. It answers on a socket in a private folder, and ends when it has had
nothing to do for some minutes, or when the package was replaced. It reads the settings for every
request, so a change of theirs applies at once.
"""

import asyncio
import json
import os
import sys
import time
from collections.abc import Coroutine, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from keepthread.apps.hooks.client import (
    DEADLINE,
    MAX_REQUEST,
    RECALLS,
    STORES,
    TAKEN,
    WARMS,
    ask,
    is_own,
    leave,
    socket_path,
)
from keepthread.apps.hooks.events import (
    HookMemories,
    HookRequest,
    anything_waits,
    output_of,
    store_waiting,
)
from keepthread.errors import KeepthreadError, StoreClosed, Unavailable

IDLE: Final = 600.0
"""Seconds without a request after which the helper ends."""
_TICK: Final = 30.0
"""Seconds after which it looks whether its socket still exists."""
_WARM: Final = "how warm is it?"
_ONCE: Final = "--once"
_POLL: Final = 0.05
_PASSED_ON: Final = 30.0
"""Seconds for which a request is offered to another helper; after that, it waits as a note."""


class HookHelper:
    """Answers hooks on a socket."""

    def __init__(self, path: str, *, idle: float = IDLE) -> None:
        """Take the path of the socket, and how many seconds to wait for a request."""
        self._path = path
        self._idle = idle
        self._memories = HookMemories()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._storing = asyncio.Lock()
        self._asked = asyncio.Event()

    async def serve(self, first: Mapping[str, Any] | None = None) -> None:
        """Serve until nothing was asked for a while; `first` is a request to begin with."""
        _unlink(self._path)  # of a helper that was killed
        server = await asyncio.start_unix_server(self._answer, self._path)
        try:
            if first:
                self._begin(self._store(first))
            while await self._asked_in_time() and socket_path() == self._path:
                pass
        finally:
            server.close()
            _unlink(self._path)
            if self._tasks:
                await asyncio.wait(self._tasks)
            await self._memories.close()

    async def _asked_in_time(self) -> bool:
        """Return whether a request arrived before the idle timeout or the loss of the socket."""
        self._asked.clear()
        end = time.monotonic() + self._idle
        while time.monotonic() < end and _exists(self._path):
            with suppress(TimeoutError):
                async with asyncio.timeout(min(self._idle, _TICK)):
                    return await self._asked.wait()
        return False

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        self._finish_before_the_end(asyncio.create_task(work))

    def _finish_before_the_end(self, task: asyncio.Task[Any]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        self._asked.set()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if task := asyncio.current_task():
            self._finish_before_the_end(task)
        try:
            if not is_own(writer.get_extra_info("socket")):
                return
            async with asyncio.timeout(DEADLINE):
                data = await _whole(reader)
            request: dict[str, Any] = json.loads(data)
            writer.write(TAKEN + await self._done(request, HookRequest.of(request)))
            await writer.drain()
        except (KeepthreadError, OSError, ValueError, RecursionError, asyncio.IncompleteReadError):
            pass  # the hook is silent then
        finally:
            writer.close()

    async def _done(self, request: Mapping[str, Any], hook: HookRequest) -> bytes:
        """Return the answer to a request."""
        if hook.event in STORES:
            leave(request)  # it is known before it is promised
            self._begin(self._store(request))
            return b""
        if hook.event == WARMS:
            self._begin(self._warm(hook))
            return b""
        text = await self._recalled(hook)
        if anything_waits(request):
            self._begin(self._store(request))
        return output_of(text)

    async def _recalled(self, hook: HookRequest) -> str:
        try:
            async with asyncio.timeout(DEADLINE):
                return await self._memories.recall(hook)
        except (Unavailable, StoreClosed):
            self._memories.forget_connections()
        except (KeepthreadError, OSError):  # no store exists yet, or a setting is wrong
            pass
        return ""

    async def _warm(self, hook: HookRequest) -> None:
        """Open the memory and load what a search needs, before the first prompt."""
        await self._recalled(hook._replace(event=RECALLS, prompt=_WARM))

    async def _store(self, request: Mapping[str, Any]) -> None:
        async with self._storing:
            await store_waiting(self._memories, request)


async def _whole(reader: asyncio.StreamReader) -> bytes:
    """Read a hook's whole request, up to a limit."""
    data = bytearray()
    while part := await reader.read(MAX_REQUEST):
        data += part
        if len(data) > MAX_REQUEST:
            raise ValueError("the request is too large")
    return bytes(data)


async def _store_once(request: Mapping[str, Any]) -> None:
    memories = HookMemories()
    try:
        await store_waiting(memories, request)
    finally:
        await memories.close()


def main(place: str) -> None:
    """Serve at a socket; only one helper does."""
    data = sys.stdin.buffer.read(MAX_REQUEST)
    first: Mapping[str, Any] | None = json.loads(data) if data else None
    if place == _ONCE:
        asyncio.run(_store_once(first or {}))
        return
    import fcntl  # noqa: PLC0415 - Windows has none, and no helper that stays

    os.umask(0o077)
    with Path(f"{place}.lock").open("wb") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _pass_on(place, first)
        else:
            asyncio.run(HookHelper(place).serve(first))


def _pass_on(place: str, first: Mapping[str, Any] | None) -> None:
    """Give a first request to the helper that runs already, and may have begun just now."""
    end = time.monotonic() + _PASSED_ON
    while first and time.monotonic() < end:
        try:
            ask(place, first, end)
        except (FileNotFoundError, ConnectionError):
            time.sleep(_POLL)
        else:
            return


def _exists(path: str) -> bool:
    return Path(path).exists()


def _unlink(path: str) -> None:
    Path(path).unlink(missing_ok=True)


if __name__ == "__main__":
    main(sys.argv[1])
