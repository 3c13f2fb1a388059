"""Letting go of erased bytes in Redis: its log and its snapshot are written anew, and waited for.

A client sees none of the server's files, so it searches none of them.
"""

import asyncio
from collections.abc import Mapping
from functools import partial
from typing import Any, Final

from keepthread.errors import KeepthreadError
from keepthread.stores.redis.durability import is_forbidden, nodes
from keepthread.stores.redis.link import Link
from keepthread.types import Cleaning, Residue

_PAUSE: Final = 0.05
_PATIENCE: Final = 300.0
"""Seconds that a server may take to write everything anew."""
_BACKUPS: Final = Residue(
    "backups of the server", "they have what the server once had", "they are deleted"
)
_REFUSED: Final = "the server does not let this client have it written anew"
_UNTIL: Final = "its administrator runs {}"


async def clean(link: Link) -> Cleaning:
    """Have every primary write its log and its snapshot anew."""
    done: list[str] = []
    residues: list[Residue] = []
    for node in await nodes(link):
        await _Server(link, node, done, residues).clean()
    return Cleaning(list(dict.fromkeys(done)), (), 0, [*dict.fromkeys(residues), _BACKUPS])


class _Server:
    """One primary."""

    def __init__(
        self, link: Link, node: Mapping[str, Any], done: list[str], residues: list[Residue]
    ) -> None:
        self._link = link
        self._send = partial(link.client.execute_command, **node)
        self._done = done
        self._residues = residues

    async def clean(self) -> None:
        told = await self._info("persistence")
        if told is None or told.get("aof_enabled") == "1":
            await self._anew("BGREWRITEAOF", "log", "aof_rewrite")
        await self._anew("BGSAVE", "snapshot", "rdb_bgsave")
        replication = await self._info("replication")
        if replication is None or replication.get("connected_slaves", "0") != "0":
            why = "their logs and snapshots are written by themselves"
            until = "they are written anew: BGREWRITEAOF and BGSAVE on each"
            self._residues.append(Residue("replicas", why, until))

    async def _anew(self, command: str, what: str, field: str) -> None:
        """Have a file written anew that holds nothing from before, and wait for it."""
        try:
            await self._rest(field)  # what is under way may have begun before the erasure
            await self._ask(command)
            await self._rest(field)
        except KeepthreadError as error:
            if not is_forbidden(error.__cause__):
                raise
            self._residues.append(Residue(f"the server's {what}", _REFUSED, _UNTIL.format(command)))
            return
        status = "aof_last_bgrewrite_status" if what == "log" else "rdb_last_bgsave_status"
        told = await self._info("persistence") or {}
        if told.get(status, "ok") == "ok":
            self._done.append(f"the server's {what} was written anew")
        else:
            why = "the server failed to write it anew"
            self._residues.append(Residue(f"the server's {what}", why, _UNTIL.format(command)))

    async def _rest(self, field: str) -> None:
        """Wait until the server is not at it."""
        deadline = asyncio.get_running_loop().time() + _PATIENCE
        while asyncio.get_running_loop().time() < deadline:
            told = await self._info("persistence")
            states = (f"{field}_in_progress", f"{field}_scheduled")
            if told is None or all(told.get(state, "0") == "0" for state in states):
                return
            await asyncio.sleep(_PAUSE)

    async def _info(self, section: str) -> dict[str, str] | None:
        """Return what a server says of itself, None if it keeps that to itself."""
        try:
            told: dict[Any, Any] = await self._ask("INFO", section)
        except KeepthreadError as error:
            if is_forbidden(error.__cause__):
                return None
            raise
        return {str(name): str(value) for name, value in told.items()}

    async def _ask(self, *command: str) -> Any:
        return await self._link.insist(partial(self._send, *command))
