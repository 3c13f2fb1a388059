"""Remove erased bytes from Redis: make the server rewrite its log and snapshot, and wait for that.

A client cannot read the server's files, so they are not searched.
"""

import asyncio
import os
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

from keepthread.errors import KeepthreadError
from keepthread.protocols import Progress, TokenCounter
from keepthread.stores.codec import Row, decode
from keepthread.stores.redis.engine import LUA, RedisLink
from keepthread.stores.redis.keys import Place
from keepthread.stores.redis.rows import guard_of, pack_row, unpack_row
from keepthread.stores.redis.server import is_forbidden, nodes
from keepthread.stores.redis.sessions import alive, read_state, sound_head
from keepthread.stores.rows import check_total, recounted_row
from keepthread.stores.validation import MAX_COUNT
from keepthread.types import Cleaning, Residue

_FIRST_PAUSE: Final = 0.05
_LONGEST_PAUSE: Final = 1.0
_TIMEOUT: Final = 300.0
"""Seconds that a server may take to rewrite everything."""
_BACKUPS: Final = Residue(
    "backups of the server",
    "they contain the data of that time",
    "they are deleted",
)
_REFUSED: Final = "the server does not allow this client to rewrite it"
_UNDER_WAY: Final = ("already in progress", "child process is active")
_UNTIL: Final = "its administrator runs {}"


async def clean(link: RedisLink) -> Cleaning:
    """Make every primary rewrite its log and its snapshot."""
    done: list[str] = []
    residues: list[Residue] = []
    for node in await nodes(link):
        await _Server(link, node, done, residues).clean()
    return Cleaning(list(dict.fromkeys(done)), (), (), [*dict.fromkeys(residues), _BACKUPS])


class _Server:
    """One primary."""

    def __init__(
        self, link: RedisLink, node: Mapping[str, Any], done: list[str], residues: list[Residue]
    ) -> None:
        self._link = link
        self._send = partial(link.client.execute_command, **node)
        self._done = done
        self._residues = residues

    async def clean(self) -> None:
        info = await self._info("persistence")
        if info is None or info.get("aof_enabled") == "1":
            await self._rewrite("BGREWRITEAOF", "log", "aof_rewrite")
        await self._rewrite("BGSAVE", "snapshot", "rdb_bgsave")
        replication = await self._info("replication")
        if replication is None or replication.get("connected_slaves", "0") != "0":
            why = "each writes its own log and snapshot"
            until = "they are rewritten: BGREWRITEAOF and BGSAVE on each"
            self._residues.append(Residue("replicas", why, until))

    async def _rewrite(self, command: str, what: str, field: str) -> None:
        """Make the server rewrite a file from its current data, and wait for it."""
        try:
            await self._rest(field)  # a rewrite under way may have begun before the erasure
            await self._begin(command)
            await self._rest(field)
        except KeepthreadError as error:
            if not is_forbidden(error.__cause__):
                raise
            self._residues.append(Residue(f"the server's {what}", _REFUSED, _UNTIL.format(command)))
            return
        status = "aof_last_bgrewrite_status" if what == "log" else "rdb_last_bgsave_status"
        info = await self._info("persistence") or {}
        if info.get(status, "ok") == "ok":
            self._done.append(f"the server's {what} was rewritten")
        else:
            why = "the server failed to rewrite it"
            self._residues.append(Residue(f"the server's {what}", why, _UNTIL.format(command)))

    async def _begin(self, command: str) -> None:
        """Begin a rewrite, after those of other clients: a server has only one under way."""
        clock = asyncio.get_running_loop().time
        deadline = clock() + _TIMEOUT
        while True:
            try:
                await self._ask(command)
            except KeepthreadError as error:
                busy = any(text in str(error.__cause__) for text in _UNDER_WAY)
                if not busy or clock() > deadline:
                    raise
            else:
                return
            await asyncio.sleep(_FIRST_PAUSE)

    async def _rest(self, field: str) -> None:
        """Wait until the server has no such rewrite under way."""
        deadline = asyncio.get_running_loop().time() + _TIMEOUT
        pause = _FIRST_PAUSE
        while asyncio.get_running_loop().time() < deadline:
            info = await self._info("persistence")
            states = (f"{field}_in_progress", f"{field}_scheduled")
            if info is None or all(info.get(state, "0") == "0" for state in states):
                return
            await asyncio.sleep(pause)
            pause = min(pause * 1.5, _LONGEST_PAUSE)  # large data takes long: poll less often

    async def _info(self, section: str) -> dict[str, str] | None:
        """Return a section of the server's INFO, None if that is forbidden."""
        try:
            info: dict[Any, Any] = await self._ask("INFO", section)
        except KeepthreadError as error:
            if is_forbidden(error.__cause__):
                return None
            raise
        return {str(name): str(value) for name, value in info.items()}

    async def _ask(self, *command: str) -> Any:
        return await self._link.insist(partial(self._send, *command))


_PAGE: Final = 200


async def recount(
    link: RedisLink, place: Place, counter: TokenCounter, progress: Progress | None
) -> int:
    """Count the messages that another counter counted; return their number."""
    who = (place.life, place.mark)
    while True:
        beside = (*place.keys, f"{place.messages}:{os.urandom(8).hex()}")
        state = await read_state(link, place)
        done = await _count_apart(link, place, beside, counter, progress)
        moved = (done.total - done.before).to_bytes(8, "little", signed=True)
        revisions = (state.revision, state.next_revision)
        args = (*who, *revisions, done.rows, done.last, moved)
        reply = await link.run(LUA["recount"], beside, (*args, 0), again=(*args, 1))
        if alive(reply) < 0:  # messages that arrived in the meantime are counted as well
            check_total(MAX_COUNT + 1)
        if reply:
            return done.counted


async def _count_apart(
    link: RedisLink,
    place: Place,
    beside: Sequence[str],
    counter: TokenCounter,
    progress: Progress | None,
) -> "_Count":
    """Count page by page and stage the new rows beside the old ones."""
    count = _Count(place, counter)
    while True:
        args = (place.life, place.mark, count.last + 1, count.last + _PAGE)
        data, rows = alive(await link.run(LUA["read"], place.keys, args))
        head = await sound_head(link, place, data)
        if head is None:
            continue
        if not rows:
            return count
        new = await asyncio.to_thread(count.page, rows)
        if progress:
            await asyncio.to_thread(progress, count.last, head[0].seq)
        parts = (part for row in new for part in row)
        alive(await link.run(LUA["stage"], beside, (place.life, place.mark, *parts)))


class _Count:
    """The state of a recount."""

    def __init__(self, place: Place, counter: TokenCounter) -> None:
        self.place = place
        self.counter = counter
        self.name = counter.name.encode()
        self.last = 0
        self.rows = 0
        self.counted = 0
        self.before = 0
        self.total = 0

    def page(self, rows: Sequence[bytes]) -> list[tuple[int, bytes]]:
        """Return positions and new rows of the next page of the log."""
        new: list[tuple[int, bytes]] = []
        for data in rows:
            self.last += 1
            if data:  # a missing row stays missing
                new.append((self.last, self._row(unpack_row(self.last, data), data)))
        self.rows += len(new)
        return new

    def _row(self, row: Row, data: bytes) -> bytes:
        if not _is_guarded(self.place, row):
            return data  # a new checksum would hide the damage
        message = decode(self.place.number, row, guard_of)
        tokens, counter = row.tokens, row.counter
        if message.state == "live" and counter != self.name:
            tokens, counter = self.counter.count(message), self.name
            self.counted += 1
        self.before = row.total
        self.total += 0 if message.state == "damaged" else tokens
        number = self.place.number
        return pack_row(recounted_row(number, row, tokens, counter, self.total, guard_of))


def _is_guarded(place: Place, row: Row) -> bool:
    numbers = (row.turn, row.turns, row.total, row.created_at, row.digest)
    return row.guard == guard_of(place.number, row.seq, row.tokens, row.counter, *numbers)
