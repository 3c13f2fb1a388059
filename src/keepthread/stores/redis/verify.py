"""Check all data of a tenant in Redis: each session, each row, each record."""

from typing import Any, Final, NamedTuple

from keepthread.errors import Damaged, SessionGone
from keepthread.protocols import Progress
from keepthread.stores.redis.engine import LUA, RedisLink
from keepthread.stores.redis.keys import Place, index_of, records_place, session_place
from keepthread.stores.redis.records import name_by_version, unpack
from keepthread.stores.redis.rows import id_field, message_at, unpack_head, unpack_row
from keepthread.stores.redis.sessions import find_head, read_state, unpack_active, unpack_record
from keepthread.stores.redis.tenants import owners
from keepthread.types import Damage, Scope, SessionKey, Verification

_PAGE: Final = 200
_RECORDS: Final = 20  # records read at once; a part of a blob is large
_NOT_WRITTEN: Final = "the row is corrupted"


class _CheckedLog(NamedTuple):
    """One session's log, to its last position; others may append in the meantime."""

    place: Place
    id: str
    end: int
    ids: int
    """Number of ids with a position, read before the end of the log."""


class RedisInspection:
    """One check of a store, for one tenant."""

    def __init__(self, link: RedisLink, tenant: str, progress: Progress | None) -> None:
        """Start without results."""
        self.link = link
        self.tenant = tenant
        self.progress = progress
        self.damages: list[Damage] = []
        self.messages = 0
        self.records = 0

    async def run(self) -> Verification:
        """Check everything, and report each damaged row once."""
        logs = await self._sessions()
        count = sum(log.end for log in logs)
        for log in logs:
            known = len(self.damages)
            await self._log(log, count)
            await self._records(log.place, Scope(session=log.place.key), log.id)
            if len(self.damages) > known and await self._is_gone(log.place):
                del self.damages[known:]
        await self._records(records_place(self.tenant, ""), Scope(), "")
        for owner in await owners(self.link, self.tenant):
            await self._records(records_place(self.tenant, owner), Scope(owner=owner), "")
        return Verification(
            sessions=len(logs),
            messages=self.messages,
            records=self.records,
            damages=tuple(self.damages),
        )

    def _found(self, what: str, session: str = "", seq: int = 0) -> None:
        self.damages.append(Damage(what=what, session=session, seq=seq))

    # --- sessions ---

    async def _sessions(self) -> list[_CheckedLog]:
        index = index_of(self.tenant)
        all_keys: list[bytes] = await self.link.ask("ZRANGE", index.sessions, 0, -1)
        listed: list[bytes] = await self.link.ask("ZRANGE", index.active, 0, -1)
        keys = sorted({*all_keys, *listed})
        found = [await self._session(SessionKey(key.decode("utf-8", "replace"))) for key in keys]
        return [log for log in found if log]

    async def _session(self, key: SessionKey) -> _CheckedLog | None:
        try:
            place = session_place(self.tenant, key)
            ids: int = await self.link.ask("HLEN", place.ids)
            state = await read_state(self.link, place)
        except SessionGone:  # deleted, expired, or about to be made
            return None
        described = unpack_record(place, state.record)
        id = described.info.id if described else ""
        if described is None or unpack_active(place, state.active) is None:
            self._found(f"the record of session number {place.life} is corrupted", id)
        end = (await find_head(self.link, place)).seq
        head = unpack_head(place, state.head)
        if head is None:
            self._found("the end of the log is corrupted", id)
        return _CheckedLog(place, id, max(end, head[0].seq if head else 0), ids)

    async def _is_gone(self, place: Place) -> bool:
        """Return whether a session was deleted while it was checked."""
        return await self.link.ask("HGET", place.session, "life") != place.life.encode()

    # --- messages ---

    async def _log(self, log: _CheckedLog, count: int) -> None:
        in_place = 0
        for first in range(1, log.end + 1, _PAGE):
            seqs = range(first, min(log.end, first + _PAGE - 1) + 1)
            rows: list[Any] = await self.link.ask("HMGET", log.place.messages, *seqs)
            in_place += await self._page(log, seqs, [row or b"" for row in rows])
            self.messages += len(rows)
            if self.progress:
                self.progress(self.messages, max(count, self.messages))
        if log.ids > in_place:
            self._found("an id points to the position of another message", log.id)

    async def _page(self, log: _CheckedLog, seqs: range, rows: list[bytes]) -> int:
        """Check rows; return how many of them have a correct id, or need none."""
        fields = [id_field(unpack_row(seq, row).id) for seq, row in zip(seqs, rows, strict=True)]
        places: list[Any] = await self.link.ask("HMGET", log.place.ids, *fields)
        in_place = 0
        for seq, row, place in zip(seqs, rows, places, strict=True):
            damaged = message_at(log.place, seq, row).state == "damaged"
            if damaged:
                self._found(_NOT_WRITTEN if row else "the message is missing", log.id, seq)
            elif place != b"%d" % seq:
                self._found("the position of its id is corrupted", log.id, seq)
            in_place += damaged or place is not None
        return in_place

    # --- records ---

    async def _records(self, place: Place, scope: Scope, session: str) -> None:
        args = (place.life, place.mark)
        fields, names, recent = await self.link.run(LUA["records"], place.keys, args)
        present = {name for name in fields if not name.startswith(b"\0")}
        self.records += len(present)
        ordered = set(names)
        dated = set(map(name_by_version, recent)) if place.key else ordered
        every = sorted(present | ordered | dated)
        for first in range(0, len(every), _RECORDS):
            page = every[first : first + _RECORDS]
            values: list[Any] = await self.link.ask("HMGET", place.records, *page)
            for name, value in zip(page, values, strict=True):
                if value is None and await self.link.ask("ZSCORE", place.order, name) is None:
                    continue  # it was dropped in the meantime
                try:
                    unpack(place, scope, name, value or b"")
                except Damaged as error:
                    self._found(str(error), session)
                    continue
                if name not in ordered or name not in dated:
                    self._found(f"the record {name!r} is missing in the order of records", session)
