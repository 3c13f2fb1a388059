"""Remove erased bytes from PostgreSQL, and recount tokens.

A changed or deleted row stays in its table's file: VACUUM only makes its space reusable. Rewriting
a table removes it everywhere except in the server's log, until that is recycled. A client cannot
read these files, so they are not searched.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

import psycopg
from psycopg import sql

from keepthread.errors import SessionGone
from keepthread.protocols import Progress, TokenCounter
from keepthread.stores.codec import Row
from keepthread.stores.postgres.engine import PgConnection, PgEngine, PgLink, Rows, translate
from keepthread.stores.postgres.log import decode, guard_of, lock
from keepthread.stores.postgres.schema import SQL
from keepthread.stores.postgres.server import PgServer
from keepthread.stores.rows import recounted_row
from keepthread.types import Cleaning, Residue

_LOCK_TIMEOUT: Final = "3s"
_TIMEOUT: Final = 5.0  # seconds to wait for transactions that began before
_PAUSE: Final = 0.02
_ELSEWHERE: Final = Residue(
    "standbys, archived WAL and backups",
    "they contain the data of that time",
    "they are re-created or deleted",
)


class Touched(NamedTuple):
    """The sessions and owners whose data was erased, as the tables have them."""

    tenant: int
    sids: Sequence[int]
    owners: Sequence[str]
    everything: bool = False
    """Whether the whole tenant was deleted, so that any table may hold something of it."""

    @property
    def values(self) -> tuple[Any, ...]:
        """Return the parameters of a statement; 0 means the records of owners and of the tenant."""
        names = [owner.encode() for owner in self.owners]
        return (self.everything, [0, *self.sids], names, self.tenant)


class _Table(NamedTuple):
    name: str
    file: int
    mine: bool


async def clean(server: PgServer, touched: Touched, *, rewrite: bool) -> Cleaning:
    """Vacuum or rewrite the tables with erased rows, as far as this role may."""
    try:
        db = await server.connect_plainly()
        try:
            return await _Cleaner(db, touched, rewrite).run()
        finally:
            await db.close()
    except psycopg.Error as error:
        raise translate(error) from error


class _Cleaner:
    def __init__(self, db: PgConnection, touched: Touched, rewrite: bool) -> None:
        self._db = db
        self._touched = touched
        self._rewrite = rewrite
        self._done: list[str] = []
        self._residues: list[Residue] = []

    async def run(self) -> Cleaning:
        # A statement that waits for a lock blocks all later ones.
        await self._db.execute(b"SELECT set_config('lock_timeout', %s, false)", (_LOCK_TIMEOUT,))
        alone = not self._rewrite or await self._outlast()
        tables = await self._tables()
        busy = [t.name for t in tables if t.mine and not await self._vacuum(t)]
        self._judge(tables, {t.name: t.file for t in await self._tables()}, busy)
        if self._rewrite:
            await self._move_log()
        self._residues.append(_ELSEWHERE)
        again = not alone or (self._rewrite and bool(busy))
        return Cleaning(self._done, (), (), self._residues, again=again)

    async def _outlast(self) -> bool:
        """Wait for transactions that may still see erased rows: a rewrite keeps the rows for them.

        Twice, because a transaction that begins beside an old one counts as just as old.
        """
        deadline = time.monotonic() + _TIMEOUT
        for _ in range(2):
            before = await self._transactions()
            while before & await self._transactions():
                if time.monotonic() > deadline:
                    why = "an older transaction is open and may still see erased rows"
                    until = "it ends and the memory is opened again"
                    self._residues.append(Residue("the rewritten tables", why, until))
                    return False
                await asyncio.sleep(_PAUSE)
        return True

    async def _transactions(self) -> set[str]:
        cursor = await self._db.execute(SQL["transactions"])
        return {transaction for (transaction,) in await cursor.fetchall()}

    async def _tables(self) -> list[_Table]:
        cursor = await self._db.execute(SQL["touched_tables"], self._touched.values)
        return [_Table._make(row) for row in await cursor.fetchall()]

    async def _vacuum(self, table: _Table) -> bool:
        """Vacuum or rewrite a table; return whether it could be locked."""
        how = sql.SQL("VACUUM (FULL) {}" if self._rewrite else "VACUUM {}")
        name = sql.Identifier(*table.name.split("."))
        try:
            await self._db.execute(how.format(name), prepare=False)
        except psycopg.errors.LockNotAvailable:
            return False
        return True

    def _judge(
        self, before: Sequence[_Table], after: Mapping[str, int], busy: Sequence[str]
    ) -> None:
        """Report which tables were rewritten, which were vacuumed, and which remain."""
        rewritten = [t.name for t in before if after.get(t.name, 0) != t.file]
        vacuumed = [t.name for t in before if t.mine and t.name not in (*rewritten, *busy)]
        foreign = [t.name for t in before if not t.mine and t.name not in rewritten]
        if rewritten:
            self._done.append(f"{len(rewritten)} tables were rewritten")
        if vacuumed:
            self._done.append(f"{len(vacuumed)} tables were vacuumed")
        used = "their space is reused"
        if not self._rewrite:
            until = f"{used}; rewrite=True rewrites the tables now"
            self._keep([*vacuumed, *busy, *foreign], "erased rows stay in the files", until)
            return
        self._keep(
            busy, "other sessions have locked them", "the locks end and the memory is opened again"
        )
        why = "this role cannot rewrite them because it does not own them"
        self._keep(foreign, why, f"{used}, or their owner runs VACUUM FULL")

    def _keep(self, names: Sequence[str], why: str, until: str) -> None:
        if names:
            self._residues.append(Residue(f"the tables {', '.join(names)}", why, until))

    async def _move_log(self) -> None:
        """Make the server start a new segment of its log, so that it can recycle older ones."""
        refused = ""
        for statement, said in (
            (b"SELECT pg_switch_wal()", "the log was switched"),
            (b"CHECKPOINT", "a checkpoint was made"),
        ):
            try:
                await self._db.execute(statement, prepare=False)
            except psycopg.errors.InsufficientPrivilege as error:
                refused = f" ({error.diag.message_primary})"
            else:
                self._done.append(said)
        why = f"the server's log contains the erased data{refused}"
        until = "the server has recycled its segments, which happens after checkpoints"
        self._residues.append(Residue("pg_wal", why, until))


_PAGE: Final = 500

Counts: TypeAlias = dict[int, tuple[bytes, int]]
"""By position: the digest of the message that was counted, and its tokens (-1: none to count)."""


class _CountedRow(NamedTuple):
    """A row without its text."""

    seq: int
    tokens: int
    counter: bytes
    turn: int
    turns: int
    total: int
    created_at: float
    digest: bytes
    guard: bytes


async def recount(
    engine: PgEngine, tenant: int, sid: int, counter: TokenCounter, progress: Progress | None
) -> int:
    """Count the messages that another counter counted, correct the totals, return the number."""
    name = counter.name.encode()
    counts: Counts = {}
    last = 0
    rows = await engine.call(SQL["session_by_sid"], (tenant, sid))
    if not rows:
        raise SessionGone("the session was deleted")
    end = rows[0][10]
    while rows := await engine.call(SQL["read"], (tenant, sid, last, end, _PAGE)):
        other = [row for row in rows if row[6] != name]
        counts |= await asyncio.to_thread(_count, sid, other, counter)
        last = rows[-1][0]
        if progress:
            await asyncio.to_thread(progress, last, end)
    return await engine.transact(lambda link: _apply(link, tenant, sid, counter, counts))


def _count(sid: int, rows: Rows, counter: TokenCounter) -> Counts:
    counts: Counts = {}
    for row in rows:
        message = decode(sid, row)
        tokens = counter.count(message) if message.state == "live" else -1
        counts[row[0]] = (row[11], tokens)
    return counts


async def _apply(link: PgLink, tenant: int, sid: int, counter: TokenCounter, counts: Counts) -> int:
    """Write counts and running totals; messages that arrived since are counted now."""
    await lock(link, tenant, sid)
    name = counter.name.encode()
    total = counted = 0
    async for page in _pages(link, tenant, sid):
        changed: list[Row] = []
        unknown = [n.seq for n in page if n.counter != name and not _is_known(n, counts)]
        if unknown:
            found = await link.run(SQL["find"], (tenant, sid, [], unknown))
            counts = counts | await asyncio.to_thread(_count, sid, found, counter)
        for old in page:
            if old.guard != guard_of(sid, *old[:-1]):
                continue  # a new checksum would hide the damage
            tokens, by = old.tokens, old.counter
            if old.counter != name and counts[old.seq][1] >= 0:
                tokens, by = counts[old.seq][1], name
                counted += 1
            elif old.counter != name:
                tokens = 0
            total += tokens
            row = Row(old.seq, "", 0, None, None, *old[1:])
            if (tokens, by, total) != (old.tokens, old.counter, old.total):
                changed.append(recounted_row(sid, row, tokens, by, total, guard_of))
        if changed:
            fields = [[r.seq, r.tokens, r.counter, r.total, r.guard] for r in changed]
            columns = map(list, zip(*fields, strict=True))
            await link.run(SQL["recount_messages"], (tenant, sid, *columns))
    return counted


def _is_known(numbers: _CountedRow, counts: Counts) -> bool:
    return counts.get(numbers.seq, (b"",))[0] == numbers.digest


async def _pages(link: PgLink, tenant: int, sid: int) -> AsyncIterator[list[_CountedRow]]:
    last = 0
    while rows := await link.run(SQL["counts"], (tenant, sid, last, _PAGE)):
        yield [_CountedRow._make(row) for row in rows]
        last = rows[-1][0]
