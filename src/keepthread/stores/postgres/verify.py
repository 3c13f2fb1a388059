"""Check all data of a tenant in PostgreSQL: each row, each position, at one moment."""

import asyncio
from typing import Final

from keepthread.protocols import Progress
from keepthread.stores.postgres.engine import PgLink
from keepthread.stores.postgres.log import decode
from keepthread.stores.postgres.schema import SQL
from keepthread.types import Damage, Verification

_PAGE: Final = 1000
_MAX_MISSING: Final = 1000
_NOT_WRITTEN: Final = "the row is corrupted"


class PostgresInspection:
    """One check of a tenant's rows, page by page, because there may be many."""

    def __init__(self, link: PgLink, tenant: int, progress: Progress | None) -> None:
        """Start without results."""
        self.link = link
        self.tenant = tenant
        self.progress = progress
        self.damages: list[Damage] = []
        self.names: dict[int, str] = {}
        self.messages = 0
        self.records = 0

    async def run(self) -> Verification:
        """Check everything, and report each damaged row."""
        await self.link.run(SQL["one_moment"])
        await self.link.run(SQL["name_tenant"], (str(self.tenant),))
        await self._sessions()
        await self._messages()
        await self._records()
        return Verification(
            sessions=len(self.names),
            messages=self.messages,
            records=self.records,
            damages=tuple(self.damages),
        )

    async def _sessions(self) -> None:
        last = 0
        while rows := await self.link.run(SQL["sessions_behind"], (self.tenant, None, last, _PAGE)):
            for row in rows:
                last = row[0]
                self.names[last] = row[1].decode("utf-8", "replace")
                if not row[9]:
                    what = f"the record of session number {last} is corrupted"
                    self._found(what, last)

    async def _messages(self) -> None:
        ((count,),) = await self.link.run(SQL["count_messages"], (self.tenant,))
        sid = seq = 0
        while rows := await self.link.run(SQL["messages_behind"], (self.tenant, sid, seq, _PAGE)):
            for row in rows:
                expected = seq + 1 if row[0] == sid else 1
                sid, seq = row[:2]
                self._message(sid, expected, row[1:])
            self.messages += len(rows)
            if self.progress:
                await asyncio.to_thread(self.progress, self.messages, count)

    def _message(self, sid: int, expected: int, row: tuple[object, ...]) -> None:
        seq = row[0]
        assert isinstance(seq, int)
        for missing in range(expected, min(seq, expected + _MAX_MISSING)):
            self._found("the message is missing", sid, missing)
        if sid not in self.names:
            self._found("the message belongs to no session", sid, seq)
        elif decode(sid, row).state == "damaged":
            self._found(_NOT_WRITTEN, sid, seq)

    async def _records(self) -> None:
        place = (-1, b"", b"", b"")
        while rows := await self.link.run(SQL["records_behind"], (self.tenant, *place, _PAGE)):
            for sid, whose, kind, key, owner, intact in rows:
                place = (sid, whose, kind, key)
                self.records += 1
                if not intact:
                    name = b"/".join((kind, key)).decode("utf-8", "replace")
                    of = owner.decode("utf-8", "replace") or "the tenant"
                    self._found(f"the record {name} of {of} is corrupted", sid)

    def _found(self, what: str, sid: int, seq: int = 0) -> None:
        self.damages.append(Damage(what=what, session=self.names.get(sid, ""), seq=seq))
