"""Letting go of erased bytes in PostgreSQL.

A row that is changed or deleted stays in its table's file: VACUUM only lets its space be used
again. Rewriting a table leaves nothing behind but in the server's log, until that is recycled. A
client sees none of these files, so it searches none of them.
"""

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import psycopg
from psycopg import sql

from keepthread.stores.postgres.faults import translate
from keepthread.stores.postgres.link import Connection
from keepthread.stores.postgres.server import Server
from keepthread.stores.postgres.statements import SQL
from keepthread.types import Cleaning, Residue

_ELSEWHERE: Final = Residue(
    "standbys, archived WAL and backups",
    "they have what the server once had",
    "they are made anew or deleted",
)


class Touched(NamedTuple):
    """What was erased from, as the tables have it."""

    tenant: int
    sids: Sequence[int]
    owners: Sequence[str]

    @property
    def values(self) -> tuple[Any, ...]:
        """Return it as a statement takes it; 0 is the shelf of owners and of the tenant."""
        names = [owner.encode() for owner in self.owners]
        return ([0, *self.sids], names, self.tenant)


class _Table(NamedTuple):
    name: str
    file: int
    mine: bool


async def clean(server: Server, touched: Touched, *, rewrite: bool) -> Cleaning:
    """Vacuum the tables that were erased from, or rewrite them, as far as this role may."""
    try:
        db = await server.connect_plainly()
        try:
            return await _Cleaner(db, touched, rewrite).run()
        finally:
            await db.close()
    except psycopg.Error as error:
        raise translate(error) from error


class _Cleaner:
    def __init__(self, db: Connection, touched: Touched, rewrite: bool) -> None:
        self._db = db
        self._touched = touched
        self._rewrite = rewrite
        self._done: list[str] = []
        self._residues: list[Residue] = []

    async def run(self) -> Cleaning:
        tables = await self._tables()
        for table in tables:
            if table.mine:
                await self._vacuum(table)
        await self._judge(tables, {t.name: t.file for t in await self._tables()})
        if self._rewrite:
            await self._move_log()
        self._residues.append(_ELSEWHERE)
        return Cleaning(self._done, (), 0, self._residues)

    async def _tables(self) -> list[_Table]:
        cursor = await self._db.execute(SQL["touched_tables"], self._touched.values)
        return [_Table._make(row) for row in await cursor.fetchall()]

    async def _vacuum(self, table: _Table) -> None:
        how = sql.SQL("VACUUM (FULL) {}" if self._rewrite else "VACUUM {}")
        name = sql.Identifier(*table.name.split("."))
        await self._db.execute(how.format(name), prepare=False)

    async def _judge(self, before: Sequence[_Table], after: dict[str, int]) -> None:
        """Say which tables are in other files than before, and which are not."""
        anew = [t.name for t in before if after.get(t.name, 0) != t.file]
        left = [t for t in before if t.name not in anew]
        if anew:
            self._done.append(f"{len(anew)} tables were rewritten")
        if any(table.mine for table in left):
            self._done.append(f"{sum(table.mine for table in left)} tables were vacuumed")
        if not left:
            return
        names = ", ".join(table.name for table in left)
        if not self._rewrite:
            why, until = "erased rows stay in the files", "their space is used again"
            until = f"{until}; rewrite=True rewrites the tables now"
        else:
            why = "they could not be rewritten: this role does not own them"
            until = "their space is used again, or their owner runs VACUUM FULL"
        self._residues.append(Residue(f"the tables {names}", why, until))

    async def _move_log(self) -> None:
        """Have the server begin a new part of its log, and let go of those before."""
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
        why = f"the server's log has what was written{refused}"
        until = "the server has recycled its parts, which checkpoints bring about"
        self._residues.append(Residue("pg_wal", why, until))
