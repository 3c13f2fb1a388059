"""The tables of a server in SQLite: each job is one transaction."""

import sqlite3
from collections.abc import Collection

from keepthread.stores.backend import Claim, RequestRow
from keepthread.stores.sqlite.engine import Engine
from keepthread.stores.sqlite.schema import SQL


class SQLiteTables:
    """The tables in one file, for every tenant in it."""

    def __init__(self, engine: Engine) -> None:
        """Use an engine."""
        self._engine = engine

    # --- API keys ---

    async def insert_key(self, id: str, tenant: str, data: bytes) -> bool:
        return await self._engine.write(
            lambda db: _changes(db, SQL["insert_key"], id, tenant, data), len(data)
        )

    async def get_key(self, id: str) -> bytes | None:
        row = await self._engine.read(lambda db: db.execute(SQL["key"], (id,)).fetchone())
        return None if row is None else row[0]

    async def list_keys(
        self, tenant: str | None, after: str, limit: int
    ) -> list[tuple[str, bytes]]:
        if tenant is None:
            sql, values = SQL["keys"], (after, limit)
        else:
            sql, values = SQL["keys_of_tenant"], (tenant, after, limit)
        return await self._engine.read(lambda db: db.execute(sql, values).fetchall())

    async def replace_key(self, id: str, old: bytes, new: bytes) -> bool:
        return await self._engine.write(
            lambda db: _changes(db, SQL["replace_key"], new, id, old), len(new)
        )

    # --- secrets ---

    async def secret(self, name: str, new: bytes) -> bytes:
        found = await self._engine.read(lambda db: _secret(db, name))
        if found is not None:
            return found
        made = await self._engine.write(lambda db: _make_secret(db, name, new))
        assert made is not None
        return made

    # --- requests ---

    async def begin(self, claim: Claim) -> RequestRow | None:
        return await self._engine.write(lambda db: _begin(db, claim))

    async def end(self, claim: Claim, head: bytes, body: bytes | None) -> bool:
        # A row with a body and no head: the tenant forgot something since, and no body is kept.
        values = (head, body, claim.id, claim.token)
        size = len(head) + len(body or b"")
        return await self._engine.write(lambda db: _changes(db, SQL["end_request"], *values), size)

    async def renew(self, claim: Claim) -> bool:
        values = (claim.at, claim.id, claim.token)
        return await self._engine.write(lambda db: _changes(db, SQL["renew_request"], *values))

    async def abandon(self, claim: Claim) -> bool:
        return await self._engine.write(
            lambda db: _changes(db, SQL["abandon_request"], claim.id, claim.token)
        )

    async def purge(self, before: float) -> int:
        return await self._engine.write(
            lambda db: db.execute(SQL["purge_requests"], (before,)).rowcount
        )

    # --- the audit log ---

    async def append(self, tenant: str, data: bytes) -> int:
        number = await self._engine.write(
            lambda db: db.execute(SQL["insert_entry"], (tenant, data)).lastrowid, len(data)
        )
        assert number is not None
        return number

    async def entries(self, tenant: str | None, after: int, limit: int) -> list[tuple[int, bytes]]:
        if tenant is None:
            sql, values = SQL["entries"], (after, limit)
        else:
            sql, values = SQL["entries_of_tenant"], (tenant, after, limit)
        return await self._engine.read(lambda db: db.execute(sql, values).fetchall())

    async def prune(self, until: int, tenants: Collection[str]) -> int:  # noqa: ARG002 - one table
        return await self._engine.write(
            lambda db: db.execute(SQL["prune_entries"], (until,)).rowcount
        )


def has_answers(db: sqlite3.Connection, tenant: str) -> bool:
    """Return whether bodies of answers to a tenant's requests are stored, or may yet be."""
    return db.execute(SQL["has_answers"], (tenant,)).fetchone() is not None


def drop_answers(db: sqlite3.Connection, tenant: str) -> None:
    """Delete the bodies of answers, also of those to come, which may repeat what is forgotten."""
    db.execute(SQL["delete_answers"], (tenant,))


def drop(db: sqlite3.Connection, tenant: str) -> bool:
    """Delete the keys and requests of a tenant; return whether there were keys."""
    db.execute(SQL["delete_requests_of_tenant"], (tenant,))
    return db.execute(SQL["delete_keys_of_tenant"], (tenant,)).rowcount > 0


def _changes(db: sqlite3.Connection, sql: str, *values: str | bytes | float | None) -> bool:
    return db.execute(sql, values).rowcount > 0


def _secret(db: sqlite3.Connection, name: str) -> bytes | None:
    row = db.execute(SQL["secret"], (name,)).fetchone()
    return None if row is None else row[0]


def _make_secret(db: sqlite3.Connection, name: str, new: bytes) -> bytes | None:
    db.execute(SQL["insert_secret"], (name, new))
    return _secret(db, name)


def _begin(db: sqlite3.Connection, claim: Claim) -> RequestRow | None:
    if _changes(db, SQL["begin_request"], *claim[:5], claim.old, claim.dead):
        return None
    return RequestRow._make(db.execute(SQL["request"], (claim.id,)).fetchone())
