"""Filling a database by COPY: rows as keepthread would have written them, sessions by turns."""

import os
import struct
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import NamedTuple

import psycopg

from bench import Run
from bench.corpus import COUNTER, texts, tokens_of
from bench.rates import TASKS
from bench.tasks import EACH, Tasks
from keepthread import SessionInfo
from keepthread.stores.codec import USER, digest
from keepthread.stores.postgres import PostgresStore
from keepthread.stores.postgres.log import guard_of
from servers.postgres import PostgresServer

_SESSIONS = """
SELECT keepthread.create_session(
    s.tenant, convert_to('s' || n, 'UTF8'), s.owner, s.kind, true, s.created_at, s.created_at,
    s.details, '{}')
FROM keepthread.sessions s, generate_series(1, %s) n WHERE s.sid = %s ORDER BY n
"""
_BYTES = """
SELECT sum(pg_total_relation_size(oid))::bigint FROM pg_class
WHERE relnamespace = 'keepthread'::regnamespace AND relkind = 'r'
"""
_COPY = """
COPY keepthread.messages (
    sid, seq, tokens, turn, turns, total, created_at, tenant, role, id, counter, digest,
    guard, extra, content
) FROM STDIN (FORMAT BINARY)
"""
_BEGIN = b"PGCOPY\n\xff\r\n\0" + bytes(8)
_END = b"\xff\xff"
_COLUMNS = 15
_BLOCK = 5000  # rows that are passed on at once
_SOME_TIME = 1_800_000_000.0


class Filled(NamedTuple):
    """A database and what is in it."""

    name: str
    url: str
    store: PostgresStore
    tenant: int
    sids: list[int]
    tasks: Tasks
    bytes: int
    """What all our tables take with their indexes, without a long session."""

    @property
    def used(self) -> list[int]:
        """Return the places of the sessions in use."""
        return [int(session.key) for session in self.tasks.used]


async def fill(
    run: Run, server: PostgresServer, name: str, size: int, sessions: int, long: int = 0
) -> Filled:
    """Make a database with so many sessions of messages, and perhaps a long one beside."""
    url = server.create_database(name)
    store = await PostgresStore.open(url, connections=TASKS, durability="power")
    first = int((await store.put_session(SessionInfo(id="long"))).key)
    sids = [sid for (sid,) in server.execute(_SESSIONS, sessions, first, database=name)]
    ((tenant,),) = server.execute("SELECT tenant FROM keepthread.tenants", database=name)
    _copy(run, server, name, _rows(tenant, sids, EACH, size), EACH * sessions)
    ((taken,),) = server.execute(_BYTES, database=name)
    _copy(run, server, name, _rows(tenant, [first], long, size), long)
    tasks = Tasks(store, sessions, size, long)
    await tasks.begin(verify=run.quick)
    return Filled(name, url, store, tenant, sids, tasks, taken)


def _copy(
    run: Run, server: PostgresServer, database: str, rows: Iterator[bytes], number: int
) -> None:
    with psycopg.connect(server.url(database)) as db, db.cursor().copy(_COPY.encode()) as stream:
        stream.write(_BEGIN)
        for done in range(0, number, _BLOCK):
            run.progress(f"{done:,} of {number:,} messages copied to {database}")
            stream.write(b"".join(islice(rows, _BLOCK)))
        stream.write(_END)
    for table in ("messages", "sessions"):
        server.execute(f"VACUUM (ANALYZE) keepthread.{table}", database=database)
    server.execute("CHECKPOINT", database=database)


def _rows(tenant: int, sids: Sequence[int], number: int, size: int) -> Iterator[bytes]:
    """Yield so many rows for each session, the first of each before the second of any.

    They are in COPY's binary format: each value has its length before it.
    """
    pack = struct.Struct(f">h {'iq' * 6} id ii ih i16s i5s i32s i8s i i{size}s").pack
    contents = [text.encode() for text in texts(size)]
    counter, tokens = COUNTER.encode(), tokens_of(size)
    made = 0
    for seq in range(1, number + 1):
        role = USER + (seq - 1) % 2  # a turn is a user message and its answer
        turn = (seq + 1) // 2
        total, at, content = seq * tokens, _SOME_TIME + seq, contents[seq % len(contents)]
        for sid in sids:
            made += 1
            id = made.to_bytes(8, "big") + os.urandom(8)  # in order of time, as ours are
            sha = digest(id.hex(), role, content, None)
            guard = guard_of(sid, seq, tokens, counter, turn, turn, total, at, sha)
            # fmt: off
            yield pack(
                _COLUMNS, 8, sid, 8, seq, 8, tokens, 8, turn, 8, turn, 8, total, 8, at,
                4, tenant, 2, role, 16, id, 5, counter, 32, sha, 8, guard, 0, size, content,
            )
            # fmt: on
