"""List and delete the tenants of a PostgreSQL database, for its operator.

The names of tenants are read with the rights of the login in the URL, not as the role that the
other statements take: that role may read one tenant at a time, and no names. Rows are deleted as
that role, in steps, so that no transaction is long.
"""

from typing import Any, Final

import psycopg

from keepthread.errors import Unsupported
from keepthread.stores.postgres import maintenance
from keepthread.stores.postgres.engine import PgEngine, Rows, hung_up_after, translate
from keepthread.stores.postgres.schema import SQL
from keepthread.stores.postgres.server import PgServer
from keepthread.types import Cleaning

_PAGE: Final = 500
_ROWS: Final = 5000
"""Rows that one transaction deletes, more or less."""
_REFUSED: Final = (
    "this login may not read the names of tenants; connect as the owner of keepthread's tables"
)


async def names(server: PgServer, after: str, limit: int) -> list[str]:
    """Return the names of tenants after a name."""
    found: list[str] = []
    last = after.encode()
    while len(found) < limit:
        rows = await _run(server, SQL["list_tenants"], (last, min(_PAGE, limit - len(found))))
        if not rows:
            break
        found += [name.decode() for name, listed in rows if listed]
        last = rows[-1][0]
    return found


async def drop(server: PgServer, engine: PgEngine, name: str, *, rewrite: bool) -> Cleaning | None:
    """Delete everything of a tenant; return None if it does not exist."""
    ((had_keys,),) = await _run(server, SQL["drop_keys"], (name.encode(),))
    ((number,),) = await _run(server, SQL["begin_drop"], (name.encode(),))
    if not number:
        return Cleaning(("its API keys were deleted",), (), ()) if had_keys else None
    while (await engine.call(SQL["drop_some"], (number, _ROWS)))[0][0]:
        pass
    touched = maintenance.Touched(number, (), (), everything=True)
    cleaning = await maintenance.clean(server, touched, rewrite=rewrite)
    await _run(server, SQL["end_drop"], (name.encode(),))
    return cleaning


async def _run(server: PgServer, statement: bytes, values: tuple[Any, ...]) -> Rows:
    try:
        db = await server.connect_plainly()
        try:
            with hung_up_after(db, server.seconds):
                cursor = await db.execute(statement, values)
                return await cursor.fetchall()
        finally:
            await db.close()
    except psycopg.errors.InsufficientPrivilege as error:
        raise Unsupported(_REFUSED) from error
    except psycopg.Error as error:
        raise translate(error) from error
