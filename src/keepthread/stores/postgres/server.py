"""A PostgreSQL server: how to connect, its durability, and the format of its database."""

from typing import Any, Final

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.types.array import ListBinaryDumper
from psycopg.types.numeric import Int8BinaryDumper
from psycopg.types.string import StrBinaryDumper

from keepthread.errors import DurabilityTooLow, InvalidInput, NotIsolated, WrongFormat
from keepthread.stores.postgres.engine import PgConnection, hung_up_after, translate
from keepthread.stores.postgres.schema import FORMAT, READERS, SQL, schema
from keepthread.stores.records import strength
from keepthread.stores.validation import check_format
from keepthread.types import Durability

_WAITS_FOR_STANDBY: Final = frozenset(("on", "remote_apply", "remote_write"))
_LEAST_TIMEOUT: Final = 2  # seconds; libpq rounds less up to this


class PgServer:
    """A database on one server, or on several of which one is the primary."""

    def __init__(self, url: str, *, timeout: float, least: Durability | None = None) -> None:
        """Take a URL or a connection string of libpq, and the lowest acceptable durability."""
        try:
            given: dict[str, Any] = dict(conninfo_to_dict(url))
        except psycopg.ProgrammingError:  # the error text may contain a part of the password
            raise InvalidInput(
                "this is not a valid PostgreSQL URL; percent-encode the special characters in it"
            ) from None
        self.several = "," in str(given.get("host", ""))
        if self.several:
            given.setdefault("target_session_attrs", "read-write")
        given.setdefault("application_name", "keepthread")
        # One of several may never answer, and there must be time left to try the others.
        shares = 1 if not self.several else 1 + len(str(given["host"]).split(","))
        given.setdefault("connect_timeout", max(_LEAST_TIMEOUT, round(timeout / shares)))
        self._given = given
        self.seconds = timeout
        """Seconds to wait for an answer."""
        self._milliseconds = str(max(1, round(timeout * 1000)))
        self._least: Durability = least or "memory"
        self.durability: Durability = self._least
        """The durability at the last check."""

    async def begin(self, *, migrate: bool, partitions: int) -> int:
        """Create the schema if the database is empty; return the format it had, 0 if it was."""
        try:
            db = await self.connect_plainly()
            try:
                known = await self._make_ready(db, migrate=migrate, partitions=partitions)
                with hung_up_after(db, self.seconds):
                    await self._settle(db)
            finally:
                await db.close()
        except psycopg.Error as error:
            raise translate(error) from error
        return known

    async def _make_ready(self, db: PgConnection, *, migrate: bool, partitions: int) -> int:
        """Create the schema, or raise an error with what to do; return the format it had."""
        with hung_up_after(db, self.seconds):
            known = await _format(db)
        if known == 0:
            if not migrate:
                raise WrongFormat("the database has no keepthread tables: run `keepthread migrate`")
            try:
                known = await _create(db, partitions)
            except psycopg.errors.InsufficientPrivilege as error:
                raise WrongFormat(
                    "the database has no keepthread tables, and this role may not create them"
                    f" ({error.diag.message_primary}): run `keepthread migrate` as its owner"
                ) from error
        if known:
            check_format("the database", known, FORMAT, READERS)
        return known

    async def connect(self) -> PgConnection:
        """Return a connection with row-level security; after a failover, to another server."""
        db = await self.connect_plainly()
        try:
            with hung_up_after(db, self.seconds):
                await self._settle(db)
        except BaseException:
            await db.close()
            raise
        return db

    async def connect_for_tables(self) -> PgConnection:
        """Return a connection for the tables of a server, which the role of others may not use."""
        db = await self.connect_plainly()
        try:
            with hung_up_after(db, self.seconds):
                await db.execute(SQL["settle_server"], (self._milliseconds, self._milliseconds))
                await self._check_durability(db)
        except BaseException:
            await db.close()
            raise
        return db

    async def connect_plainly(self) -> PgConnection:
        """Return a connection with the rights of the user in the URL."""
        db = await psycopg.AsyncConnection.connect(
            make_conninfo(**self._given), autocommit=True, prepare_threshold=0
        )
        if self.several:
            self._prefer(db.info.host, str(db.info.port))
        # Every number is sent as a bigint: each mix of types would need its own query plan.
        db.adapters.register_dumper(int, Int8BinaryDumper)
        db.adapters.register_dumper(str, StrBinaryDumper)
        db.adapters.register_dumper(list, ListBinaryDumper)
        return db

    def _prefer(self, host: str, port: str) -> None:
        """Try the last server first: others may not answer, or wrongly claim to be the primary."""
        hosts, ports = (str(self._given.get(name, "")).split(",") for name in ("host", "port"))
        places = list(zip(hosts, ports * len(hosts), strict=False))  # one port may be for all
        places.sort(key=lambda place: place[0] != host or place[1] not in (port, ""))
        if "hostaddr" not in self._given:  # it must match the hosts, and is rarely given
            self._given["host"], self._given["port"] = map(",".join, zip(*places, strict=True))

    async def _settle(self, db: PgConnection) -> None:
        """Set the role and settings of our statements, and check the connection."""
        await db.execute(SQL["settle"], (self._milliseconds, self._milliseconds))
        await _check_isolation(db)
        await self._check_durability(db)

    async def _check_durability(self, db: PgConnection) -> None:
        cursor = await db.execute(SQL["durability"])
        settings = await cursor.fetchone()
        assert settings
        self.declare(*settings)

    def declare(self, *settings: str) -> None:
        """Store the server's current durability; raise if it is below the requested one."""
        self.durability = durability_of(*settings)
        if strength(self.durability) < strength(self._least):
            raise DurabilityTooLow(
                f"the server provides `{self.durability}` (fsync {settings[0]}, synchronous_commit"
                f" {settings[1]}, synchronous_standby_names {settings[2]!r});"
                f" `{self._least}` was requested"
            )


async def _check_isolation(db: PgConnection) -> None:
    """Raise `NotIsolated` if row-level security is off, or could be off later."""
    cursor = await db.execute(SQL["isolation"])
    row = await cursor.fetchone()
    assert row
    role_is_held, login_is_held, process = row
    if not role_is_held:
        raise NotIsolated(
            f"row-level security does not apply to the role {db.info.user!r}: create the role"
            " keepthread_app and grant it to this role, or connect as a role that is neither"
            " superuser nor BYPASSRLS"
        )
    # A pooler may give any later statement another server connection, which has the rights of the
    # login instead of the role that we took on this one.
    if not login_is_held and process != db.info.backend_pid:
        raise NotIsolated(
            "there is a connection pooler in front of the server, and"
            f" {db.info.user!r} is a superuser or has BYPASSRLS: row-level security"
            " would be lost when the pooler changes the server connection. Connect"
            " as a role that is neither, or without the pooler"
        )


def durability_of(fsync: str, synchronous_commit: str, standbys: str) -> Durability:
    """Return the durability of acknowledged writes under these settings of a server."""
    if fsync != "on" or synchronous_commit == "off":
        return "process"
    return "replicated" if standbys and synchronous_commit in _WAITS_FOR_STANDBY else "power"


async def _format(db: PgConnection) -> int:
    for name in ("has_schema", "format"):
        cursor = await db.execute(SQL[name])
        row = await cursor.fetchone()
        assert row
        if row[0] == 0:
            return 0
    return row[0]


async def _create(db: PgConnection, partitions: int) -> int:
    """Create the schema in one transaction; of several processes, one does it, the others wait.

    Returns the format it found when it was its turn.
    """
    async with db.transaction():
        await db.execute(SQL["lock_schema"])
        known = await _format(db)
        if known == 0:
            await db.execute(SQL["create_schema"])
            await db.execute(SQL["set_partitions"], (str(partitions),))
            await db.execute(schema(), prepare=False)
            await db.execute(SQL["created"], (FORMAT,))
    return known
