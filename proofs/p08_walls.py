"""P8: tenants and owners are walls: nobody reads or changes what another has.

Some tenants look, others only have: sessions, messages, shelves, some under the same names. Whoever
looks knows every key, id and position of the others, and calls each method of the store with them:
the answer must be the one for a session that was never there. On PostgreSQL every statement also
runs without its conditions, with another tenant's number, or with both, as do the functions behind
it and the views for people; then row-level security alone holds. `owner_walls` does the same for
the owners of one tenant, with all that a program can call.
"""

import asyncio
import random
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, NamedTuple, TypeAlias

import psycopg
from psycopg.types.array import ListBinaryDumper
from psycopg.types.numeric import Int8BinaryDumper
from psycopg.types.string import StrBinaryDumper

from keepthread.errors import KeepthreadError, SessionGone
from keepthread.protocols import Searchable, Store
from keepthread.recall.positions import VIEW, session_of
from keepthread.stores.postgres import PostgresStore
from keepthread.stores.postgres.schema import SQL
from keepthread.stores.postgres.words import letters_of
from keepthread.stores.ram import RamStore
from keepthread.stores.redis import RedisStore
from keepthread.stores.sqlite import SQLiteStore
from keepthread.testing.finding import VECTORS, embed, first_place, read_on, vector
from keepthread.types import Message, Scope, SessionInfo, SessionKey, Span, Unread
from proofs import Outcome, Progress, Proof
from proofs.owner_walls import WallTally, prove_owners
from servers import postgres as postgres_servers
from servers import redis as redis_servers

LOOKING: Final = 2
HAVING: Final = 4
SESSIONS: Final = 3
MESSAGES: Final = 5
LOOK_EVERY: Final = 100
WORD: Final = "said"
"""A word that everybody says."""
TABLES: Final = (
    *("sessions", "messages", "records", "record_changes", "changes", "trimmed"),
    *("sources", "naming"),
    *("readings", "segments", "words", "vectors"),
)


class Tenant(NamedTuple):
    """One tenant and all that is known of it."""

    mark: str
    """In every text that is its own alone."""
    store: Store
    keys: Sequence[SessionKey]
    messages: Sequence[Message]
    dead: SessionKey
    """The key of a session that is deleted."""

    @property
    def owner(self) -> str:
        return f"ana {self.mark}"

    @property
    def places(self) -> list[int]:
        """Where its messages stand; each session has as many."""
        return [first_place(key, seq) for key in self.keys for seq in range(1, MESSAGES + 1)]


def mark_of(number: int) -> str:
    return f"of-tenant-{number}."


async def settle(store: Store, number: int) -> Tenant:
    """Give a tenant sessions, messages and records; half of the names are everybody's."""
    mark = mark_of(number)
    keys: list[SessionKey] = []
    messages: list[Message] = []
    for session in range(SESSIONS):
        name = f"session {session}" if session % 2 else f"session {session} {mark}"
        owner = "ana" if session % 2 else f"ana {mark}"
        info = SessionInfo(id=name, owner=owner, system_prompt=f"prompt {mark}", title=mark)
        key = (await store.put_session(info)).key
        batch = [
            Message(role="user", id=f"m{n}" if n % 2 else f"m{n} {mark}", content=f"said {mark}{n}")
            for n in range(MESSAGES)
        ]
        messages += await store.append(key, batch)
        made_of = [Span(session=key, first=1, last=2)]
        await store.put(Scope(session=key), "pin", "1", f"record {mark}", made_of=made_of)
        keys.append(key)
    made_of = [Span(session=key, first=1, last=2) for key in keys]
    for scope in (Scope(), Scope(owner="ana"), Scope(owner=f"ana {mark}")):
        await store.put(scope, "fact", "1", f"record {mark}", made_of=made_of)
    dead = (await store.put_session(SessionInfo(id="dead"))).key
    await store.delete_session(dead)
    if await store.finder():
        await read_on(store)
        await embed(store)
    return Tenant(mark, store, keys, messages, dead)


async def picture(tenant: Tenant) -> str:
    """Return all that a tenant has, as it sees it."""
    store = tenant.store
    parts: list[Any] = [await store.owners(), await store.verify()]
    for info in await store.scan_sessions(limit=1000):
        parts += [info, await store.read(info.key, limit=1000)]
        parts += await store.scan(Scope(session=info.key))
    for owner in ("", *await store.owners()):
        parts += await store.scan(Scope(owner=owner))
    if finder := await store.finder():
        parts += [await finder.unread(VIEW), await finder.unread(VECTORS)]
        found = await finder.places(VIEW, [WORD])
        parts += [found._replace(segments=list(found.segments))]
        parts += [await finder.parts(VIEW, tenant.places)]
        parts += [await finder.vectors(VECTORS, tenant.places)]
    return "\n".join(map(repr, parts))


# --- probing the methods ---

Probe: TypeAlias = Callable[[Store, SessionKey, Tenant], Awaitable[Any]]
Look: TypeAlias = Callable[[Searchable, SessionKey, Tenant], Awaitable[Any]]


class Words:
    """Counts words."""

    name = "words"

    def count(self, message: Message) -> int:
        return len(message.content.split())


def say(text: str, id: str = "") -> list[Message]:
    return [Message(role="user", id=id, content=text)]


NAMING: Final = [
    Message(role="assistant", content="intrusion", meta={"recalled_from": {"session 1": [[1, 1]]}})
]
"""An answer that says it was written from another session."""


BY_KEY: Final[Mapping[str, Probe]] = {
    "describe": lambda s, k, b: s.describe(k),
    "update": lambda s, k, b: s.put_session(SessionInfo(id="session 1", key=k, title="taken")),
    "delete_session": lambda s, k, b: s.delete_session(k),
    "append": lambda s, k, b: s.append(k, say("intrusion")),
    "append a known id": lambda s, k, b: s.append(k, say("intrusion", b.messages[0].id)),
    "append several": lambda s, k, b: s.append(k, say("intrusion") * 2, expect=MESSAGES),
    "append nothing": lambda s, k, b: s.append(k, []),
    "load": lambda s, k, b: s.load(k, b.messages[:2]),
    "tail": lambda s, k, b: s.tail(k),
    "tail by tokens": lambda s, k, b: s.tail(k, tokens=100, min_messages=2),
    "gather": lambda s, k, b: s.gather(k, tokens=100, kinds=["pin"], follow=["pin"]),
    "read": lambda s, k, b: s.read(k),
    "find ids": lambda s, k, b: s.find(k, ids=[m.id for m in b.messages]),
    "find positions": lambda s, k, b: s.find(k, seqs=[1, 2, 3]),
    "erase": lambda s, k, b: s.erase(k, [1]),
    "recount": lambda s, k, b: s.recount(k, Words()),
    "put": lambda s, k, b: s.put(Scope(session=k), "pin", "1", "taken"),
    "put made of": lambda s, k, b: s.put(Scope(), "pin", "1", "taken", epochs={k: 0}),
    "get": lambda s, k, b: s.get(Scope(session=k), "pin", "1"),
    "scan": lambda s, k, b: s.scan(Scope(session=k)),
    "scan keys": lambda s, k, b: s.scan(Scope(session=k), "pin", after="0", limit=9),
    "drop": lambda s, k, b: s.drop(Scope(session=k), "pin", "1"),
    "append of an answer that names a session": lambda s, k, b: s.append(k, NAMING),
}
"""What needs a session: `k` is another's key, and `b` the other."""

FIND_BY_KEY: Final[Mapping[str, Look]] = {
    "unread": lambda f, k, b: f.unread(VIEW, session=k),
    "index": lambda f, k, b: f.index(VIEW, Unread(k, 0, MESSAGES, 0), 1, [], []),
    "places": lambda f, k, b: f.places(VIEW, [WORD], session=k),
    "put_vectors": lambda f, k, b: f.put_vectors(VECTORS, Unread(k, 0, MESSAGES, 0), 1, {}),
    "nearest": lambda f, k, b: f.nearest(VECTORS, vector(1), session=k),
}
FIND: Final[Mapping[str, Look]] = {
    "unread of an owner": lambda f, k, b: f.unread("words:other", owner=b.owner),
    "unread of all": lambda f, k, b: f.unread("words:other"),
    "places of an owner": lambda f, k, b: f.places(VIEW, [WORD], owner=b.owner),
    "places, an owner that both have": lambda f, k, b: f.places(VIEW, [WORD], owner="ana"),
    "places of all": lambda f, k, b: f.places(VIEW, [WORD]),
    "parts": lambda f, k, b: f.parts(VIEW, b.places),
    "fetch": lambda f, k, b: f.fetch(b.places, kinds=["pin"]),
    "fetch, copies in another's session": lambda f, k, b: f.fetch(b.places, copies_in=k),
    "vectors": lambda f, k, b: f.vectors(VECTORS, b.places),
    "nearest of an owner": lambda f, k, b: f.nearest(VECTORS, vector(1), owner=b.owner),
    "nearest of all": lambda f, k, b: f.nearest(VECTORS, vector(1), limit=1000),
    "drop_view": lambda f, k, b: f.drop_view("words:other"),
}
"""What finders do, with a session and without one."""

BY_NAME: Final[Mapping[str, Probe]] = {
    "get_session": lambda s, k, b: s.get_session(f"session 0 {b.mark}", b.owner),
    "get_session, a name that both have": lambda s, k, b: s.get_session("session 1", "ana"),
    "list_sessions": lambda s, k, b: s.list_sessions(owner=b.owner, limit=100),
    "list_sessions, an owner that both have": lambda s, k, b: s.list_sessions(owner="ana"),
    "list_sessions of all": lambda s, k, b: s.list_sessions(limit=1000),
    "scan_sessions behind a key": lambda s, k, b: s.scan_sessions(after=k, limit=1000),
    "scan_sessions": lambda s, k, b: s.scan_sessions(limit=1000),
    "scan_sessions of an owner": lambda s, k, b: s.scan_sessions(owner=b.owner, limit=1000),
    "idle_sessions": lambda s, k, b: s.idle_sessions(1e12, limit=1000),
    "relatives": lambda s, k, b: s.relatives(k),
    "made_of": lambda s, k, b: s.made_of(k, [1, 2, 3]),
    "made_of all": lambda s, k, b: s.made_of(k, range(1, 3000)),
    "owners": lambda s, k, b: s.owners(),
    "updates": lambda s, k, b: s.updates(Scope(owner=b.owner), "fact"),
    "updates, an owner that both have": lambda s, k, b: s.updates(Scope(owner="ana"), "fact"),
    "blob_owners": lambda s, k, b: s.blob_owners(),
    "changes": lambda s, k, b: s.changes(limit=1000),
    "changes of an owner": lambda s, k, b: s.changes(owner=b.owner, limit=1000),
    "changes, an owner that both have": lambda s, k, b: s.changes(owner="ana", limit=1000),
    "verify": lambda s, k, b: s.verify(),
    "get of an owner": lambda s, k, b: s.get(Scope(owner=b.owner), "fact", "1"),
    "get of an owner that both have": lambda s, k, b: s.get(Scope(owner="ana"), "fact", "1"),
    "get of the tenant": lambda s, k, b: s.get(Scope(), "fact", "1"),
    "scan of an owner": lambda s, k, b: s.scan(Scope(owner=b.owner)),
    "scan of the tenant": lambda s, k, b: s.scan(Scope()),
    "drop of an owner": lambda s, k, b: s.drop(Scope(owner=b.owner), "fact", "1"),
}
"""What needs none; answers may be of one's own."""


@dataclass(slots=True)
class Tally:
    """What was seen so far."""

    probes: Counter[str] = field(default_factory=Counter)
    statements: Counter[str] = field(default_factory=Counter)
    rows: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    own: int = 0
    foreign: int = 0
    changed: int = 0
    broken: list[str] = field(default_factory=list)
    owners: WallTally = field(default_factory=WallTally)

    def look(self, answer: str, own: str, name: str) -> None:
        """Count whose texts are in an answer."""
        found = set(re.findall(r"of-tenant-\d+\.", answer))
        self.own += own in found
        if found - {own}:
            self.foreign += 1
            self.broken.append(f"{name}: an answer to {own} holds texts {found - {own}}")

    def look_for_sessions(self, answer: str, other: Tenant, name: str) -> None:
        """Count answers that name a session of another's; finders answer in numbers."""
        if foreign := sessions_in(answer) & {int(key) for key in other.keys}:
            self.foreign += 1
            self.broken.append(f"{name}: an answer names sessions of another's: {foreign}")


def sessions_in(answer: str) -> set[int]:
    """Return the numbers in an answer that may be a session's, or a place's in one."""
    numbers = {int(digits) for digits in re.findall(r"\d{7,}", answer)}
    return numbers | {session_of(number) for number in numbers}


async def probe(one: Tenant, other: Tenant, rng: random.Random, tally: Tally) -> None:
    """Call one method with what is another's."""
    key = rng.choice(other.keys)
    finder = await one.store.finder()
    name = rng.choice(
        [*BY_KEY, *BY_NAME, *(FIND_BY_KEY if finder else ()), *(FIND if finder else ())]
    )
    tally.probes[name] += 1
    if name in BY_KEY or name in FIND_BY_KEY:
        by_key: Any = BY_KEY.get(name) or FIND_BY_KEY[name]
        asked = one.store if name in BY_KEY else finder
        found = await outcome_of(by_key(asked, key, other))
        nothing = await outcome_of(by_key(asked, one.dead, other))
        if found != nothing or not found.startswith(SessionGone.__name__):
            tally.foreign += 1
            tally.broken.append(f"{name}: {found}; of a session that never was: {nothing}")
    elif name in BY_NAME:
        tally.look(repr(await BY_NAME[name](one.store, key, other)), one.mark, name)
    elif finder:
        answer = repr(await FIND[name](finder, key, other))
        tally.look(answer, one.mark, name)
        tally.look_for_sessions(answer, other, name)


async def outcome_of(call: Awaitable[Any]) -> str:
    try:
        return repr(await call)
    except KeepthreadError as error:
        return f"{type(error).__name__}: {error}"


async def prove_methods(store: Store, size: int, seed: int, progress: Progress, to: Tally) -> None:
    rng = random.Random(seed)
    tenants = [await settle(store.tenant(f"t{n}"), n) for n in range(LOOKING + HAVING)]
    having = tenants[LOOKING:]
    before = [await picture(tenant) for tenant in having]
    for number in range(1, size + 1):
        await probe(rng.choice(tenants[:LOOKING]), rng.choice(having), rng, to)
        if number % LOOK_EVERY and number < size:
            continue
        progress(number, size)
        now = [await picture(tenant) for tenant in having]
        if now != before:
            to.changed += sum(a != b for a, b in zip(before, now, strict=True))
            to.broken.append(f"within {LOOK_EVERY} probes up to the {number}th something changed")
            before = now


# --- PostgreSQL: statements without their conditions ---

AROUND: Final = {
    *("tenant_number", "name_tenant", "one_moment", "settle", "durability"),
    *("has_schema", "format", "lock_schema", "create_schema", "set_partitions"),
    *("created", "touched_tables", "list_tenants", "begin_drop", "end_drop"),
    *("settle_server", "insert_key", "key", "keys"),
    *("keys_of_tenant", "replace_key", "drop_keys", "secret", "insert_secret"),
    *("begin_request", "end_request", "abandon_request", "purge_requests", "drop_answers"),
    *("renew_request", "append_entry", "entries", "entries_of_tenant", "prune_entries"),
}
"""Statements that touch no tenant's row: of a connection, of a transaction, of the format, and
those of the operator and of a server, which the role of all others may not run."""
OF_SERVER: Final = ("api_keys", "secrets", "requests", "audit")
"""The tables of a server: no policy holds for them, but the role of all others has no rights."""
SEEING: Final = (
    *("session_by_id", "session_by_sid", "list_sessions", "sessions_behind", "lock_session"),
    *("tail", "gather", "read", "find", "newest", "counts", "count_messages", "messages_behind"),
    *("get", "scan", "updates", "owners", "records_behind", "append", "append_all", "next_epoch"),
    *("append_with_care", "unread", "places", "parts", "fetch", "vectors_at", "nearest"),
    *("points_behind", "places_within", "points_within", "changes", "append_naming"),
    *("unlisted_sessions", "relatives", "made_of", "blob_owners"),
    *("v_sessions", "v_messages"),
)
"""Statements that answer with rows; without conditions, with rows of one's own."""
WHERE: Final = re.compile(r"\bWHERE\b")
EMPTY_FILTER: Final = re.compile(r"\bFILTER \(\s*\)")
END_OF_WHERE: Final = re.compile(
    r"\b(GROUP BY|ORDER BY|LIMIT|OFFSET|RETURNING|FOR (NO KEY )?UPDATE|LOOP)\b|;|\$function\$"
)
NAMES_TENANT: Final = re.compile(
    r"PERFORM set_config\('keepthread\.tenant', _tenant::text, true\);"
)


def without_where(sql: str) -> str:
    """Return statements without any of their WHERE clauses; those that name an index stay."""
    start = 0
    while found := WHERE.search(sql, start):
        start = found.end()
        if not re.search(r"ON CONFLICT \([^)]*\)\s*$", sql[: found.start()]):
            sql = sql[: found.start()] + sql[end_of_clause(sql, start) :]
            start = found.start()
    return EMPTY_FILTER.sub("", sql)


def end_of_clause(sql: str, at: int) -> int:
    depth = 0
    while at < len(sql):
        if depth == 0 and END_OF_WHERE.match(sql, at):
            return at
        depth += {"(": 1, ")": -1}.get(sql[at], 0)
        if depth < 0:
            return at
        at += 1
    return at


class Way(NamedTuple):
    """How a statement is bent before it runs."""

    name: str
    conditions: bool
    """Whether it has its conditions."""
    number: bool
    """Whether it is given one's own number."""
    named: bool
    """Whether its transaction has named a tenant: one's own."""


REFUSALS: Final = {
    "42501": "a row of another's cannot be written",
    "KT001": "the session is gone",
    "KT003": "another body under a known id",
    "21000": "several rows where one was to be",
    "23505": "it is there already",
    "22004": "something is missing",
}
"""Why a bent statement may fail, by PostgreSQL's code."""

WAYS: Final = (
    Way("as it is, with another's keys", conditions=True, number=True, named=True),
    Way("without conditions", conditions=False, number=True, named=True),
    Way("with another's number", conditions=True, number=False, named=True),
    Way("with another's number, without conditions", conditions=False, number=False, named=True),
    Way("for nobody, without conditions", conditions=False, number=False, named=False),
)


class Looker:
    """Runs bent statements as the role keepthread works as, and takes everything back."""

    def __init__(self, db: Any, tally: Tally) -> None:
        self.db = db
        self.tally = tally
        self.bent = 0
        names = "SELECT convert_from(name, 'UTF8'), tenant FROM keepthread.tenants"
        self.numbers: dict[str, int] = dict(self._ask(names))
        functions = self._ask(
            "SELECT pg_get_functiondef(oid) FROM pg_proc"
            " WHERE pronamespace = 'keepthread'::regnamespace AND NOT prosecdef"
        )
        self.functions: list[str] = [text for (text,) in functions]
        self.views: list[tuple[str, str]] = self._ask(
            "SELECT relname, 'CREATE OR REPLACE VIEW keepthread.' || relname || ' WITH ('"
            " || array_to_string(reloptions, ', ') || ') AS ' || pg_get_viewdef(oid) FROM pg_class"
            " WHERE relnamespace = 'keepthread'::regnamespace AND relkind = 'v'"
        )

    def look(self, way: Way, one: int, other: int) -> None:
        """Run every statement one way, for one tenant with what is another's."""
        own, foreign = self.numbers[f"t{one}"], self.numbers[f"t{other}"]
        with self.db.transaction(force_rollback=True):
            self.bend_functions(way)
            find = "SELECT sid FROM keepthread.sessions WHERE tenant = %s ORDER BY sid LIMIT 2"
            sids = [sid for (sid,) in self._ask(find, foreign)]
            for name in sorted(SQL.keys() - AROUND):
                text = SQL[name].decode()
                for number in range(text.count("%s")):
                    text = text.replace("%s", f"%({number})s", 1)
                bent = text if way.conditions else without_where(text)
                self.bent += bent != text
                for sid in sids:
                    number = own if way.number else foreign
                    given = values_of(name, number, sid, f"session 0 {mark_of(other)}")
                    values = {str(place): value for place, value in enumerate(given)}
                    self._run(f"{name}, {way.name}", way, bent, values, own, mark_of(one))
                self.tally.statements[way.name] += 1
            for name, _ in self.views:
                read = f"SELECT convert_to(v::text, 'UTF8') FROM keepthread.{name} v"
                self._run(f"{name}, {way.name}", way, read, {}, own, mark_of(one))
                self.tally.statements[way.name] += 1

    def _ask(self, statement: str, *values: Any) -> list[Any]:
        """Return what a superuser sees."""
        return self.db.execute(statement.encode(), values).fetchall()

    def bend_functions(self, way: Way) -> None:
        """Create every function and view again, bent."""
        for text in (*self.functions, *(view for _, view in self.views)):
            bent = text if way.conditions else without_where(text)
            # Who names another tenant is that tenant: what names it is taken out.
            bent = bent if way.number else NAMES_TENANT.sub("", bent)
            self.bent += bent != text
            self.db.execute(bent.encode())

    def _run(
        self, what: str, way: Way, text: str, values: Mapping[str, Any], own: int, mark: str
    ) -> None:
        before = self._of_others(own)
        now, rows = before, list[Any]()
        try:
            with self.db.transaction(force_rollback=True):
                self.db.execute("SET LOCAL ROLE keepthread_app")
                setting = str(own) if way.named else ""
                self.db.execute("SELECT set_config('keepthread.tenant', %s, true)", [setting])
                cursor = self.db.execute(text.encode(), values, binary=True)
                rows = cursor.fetchall() if cursor.description else []
                self.db.execute("RESET ROLE")
                now = self._of_others(own)
        except psycopg.Error as error:
            self.tally.refused[str(error.sqlstate)] += 1
            if error.sqlstate not in REFUSALS:
                self.tally.broken.append(f"{what}: {error}")
        if now != before:
            self.tally.changed += 1
            self.tally.broken.append(f"{what}: rows of others changed")
        found = set(bytes_in(rows))
        self.tally.look(b" ".join(found).decode("utf-8", "replace"), mark, what)
        if foreign := found & self._guards_of_others(own):
            self.tally.foreign += len(foreign)
            self.tally.broken.append(f"{what}: {len(foreign)} rows of others were returned")
        if strangers := set(numbers_in(rows)) & self._sids_of_others(own):
            self.tally.foreign += len(strangers)
            self.tally.broken.append(f"{what}: {len(strangers)} sessions of others were named")
        if what.startswith("count_messages"):
            self._check_count(what, way, rows[0][0], own)
        if not way.named and found:
            self.tally.broken.append(f"{what}: nobody saw something")
        self.tally.rows[what] += len(rows)

    def _check_count(self, what: str, way: Way, counted: int, own: int) -> None:
        """See that a count, which tells not whose rows it counted, is of one's own."""
        count = "SELECT count(*) FROM keepthread.messages WHERE tenant = %s"
        ((mine,),) = self._ask(count, own)
        wanted = mine if way.named and (way.number or not way.conditions) else 0
        if counted != wanted:
            self.tally.foreign += 1
            self.tally.broken.append(f"{what}: counted {counted}, not {wanted}")

    def _guards_of_others(self, own: int) -> set[bytes]:
        """Return what every row of others holds, and no other row."""
        found = self._ask("SELECT guard FROM keepthread.messages WHERE tenant <> %s", own)
        return {guard for (guard,) in found}

    def _sids_of_others(self, own: int) -> set[int]:
        found = self._ask("SELECT sid FROM keepthread.sessions WHERE tenant <> %s", own)
        return {sid for (sid,) in found}

    def _of_others(self, own: int) -> list[Any]:
        """Return a picture of every row that is not one's own."""
        whole = "SELECT md5(string_agg(t::text, '|' ORDER BY t::text)) FROM keepthread.{} t"
        return [self._ask(f"{whole.format(table)} WHERE tenant <> %s", own) for table in TABLES]


def numbers_in(value: Any) -> Iterator[int]:
    if isinstance(value, int):
        yield value
    elif isinstance(value, list | tuple):
        for part in value:
            yield from numbers_in(part)


def bytes_in(value: Any) -> Iterator[bytes]:
    if isinstance(value, bytes) and value:
        yield value
    elif isinstance(value, list | tuple):
        for part in value:
            yield from bytes_in(part)


def values_of(name: str, tenant: int, sid: int, session: str) -> tuple[Any, ...]:
    """Return what a statement is given, in its order: a number, a session, and all else."""
    at = (tenant, sid)
    one = (b"new", 1, b"intrusion", b"", 1, b"", 1.0, bytes(32))
    row = (1, *one[:6], 1, 1, 1, 1.0, bytes(32), bytes(8))
    record = (b"pin", b"1")
    return {
        "create_session": (tenant, session.encode(), b"ana", 0, True, 1.0, 1.0, b"{}", [b"s"]),
        # Nothing is said of what was seen, so nothing but the wall keeps them from a row.
        "update_session": (*at, True, b"{}", 2e9, None, None, None),
        "delete_session": (*at, False, None),
        "session_by_id": (tenant, session.replace("session 0", "ana").encode(), session.encode()),
        "list_sessions": (tenant, None, 1e11, 0, False, 100),
        "unlisted_sessions": (tenant, 0.0, 0, 100),
        "relatives": at,
        "name_sessions": (*at, [b"session 1"]),
        "sessions_behind": (tenant, None, 0, 100),
        "append": (*at, *one, None, None, 2e9),
        "append_with_care": (*at, *one, None, None, 2e9),
        "append_all": (*at, [b"new", b"newer"], *([part] * 2 for part in one[1:]), None, None, 2e9),
        "append_naming": (
            *(*at, [b"session 1"], *at, [b"new", b"newer"]),
            *(*([part] * 2 for part in one[1:]), None, None, 2e9),
        ),
        "tail": (*at, 100, None, 1 << 53, 0, 2),
        "gather": (*at, 100, 2, [b"pin"], [b"pin"], 100),
        "read": (*at, 0, 1 << 53, 100),
        "find": (*at, [b"m1"], [1, 2]),
        "put": (
            *(*at, b"", b"", *record, b"1", None, None, None, None),
            *(b"place", [sid], [64], None, [sid], [0], 1),
        ),
        "get": (*at, b"", *record),
        "scan": (*at, b"", None, None, None, None),
        "drop": (*at, b"", *record, b"place", None, 1),
        "made_of": (*at, None),
        "owners": (tenant,),
        "updates": (tenant, b"ana", b"fact", 0),
        "blob_owners": (tenant,),
        "changes": (tenant, None, None, 0, 100),
        "note_change": (tenant, 1, sid, []),
        "newest": (*at, 1 << 53, 0, 100),
        "insert_messages": (*at, *([part] for part in (99, b"new", *row[2:]))),
        "replace_messages": (*at, *([part] for part in row)),
        "counts": (*at, 0, 100),
        "recount_messages": (*at, [1], [7], [b""], [7], [bytes(8)]),
        "drop_made_of": (*at, [1, 2], None),
        "count_messages": (tenant,),
        "messages_behind": (tenant, 0, 0, 100),
        "records_behind": (tenant, -1, b"", b"", b"", 100),
        "unread": (tenant, b"words:other", None, None, 1 << 22),
        "index_words": (
            *(tenant, VIEW.encode(), sid, 0, MESSAGES, MESSAGES),
            *([99 << 19], [1], [1], [b""], ["word "], [1], [1.0], [1.0], [1], [1], [1]),
        ),
        "places": (
            *(tenant, VIEW.encode(), [letters_of((tenant, VIEW), WORD)], [0], None, None, 99),
            *(-1, 1 << 22),
        ),
        "parts": (tenant, VIEW.encode(), [sid], [1 << 19]),
        "fetch": (tenant, [sid], [1], [b"pin"], sid),
        "put_vectors": (
            *(tenant, VECTORS.encode(), sid, 0, MESSAGES, MESSAGES),
            *([99 << 19], [3], [b""], [b"123"]),
        ),
        "vectors_at": (tenant, VECTORS.encode(), [sid], [1 << 19]),
        "nearest": (tenant, VECTORS.encode(), None, None, 3, b"\x7f\0\0", 99),
        "points_behind": (tenant, VECTORS.encode(), None, None, 3, -1 << 63, 0, 0, 99),
        "places_within": (
            *(tenant, VIEW.encode(), [letters_of((tenant, VIEW), WORD)], [0], None, None, 99),
            *(-1, 1 << 22, 0.0, 1e11, 15),
        ),
        "points_within": (
            *(tenant, VECTORS.encode(), None, None, 3, -1 << 63, 0, 0, 99),
            *(0.0, 1e11, 15),
        ),
        "index_nearest": (tenant, VECTORS.encode(), 3),
        "drop_view": (tenant, VIEW.encode(), 0, 99),
        "drop_some": (tenant, 99),
        "unindex": (*at, [1, 2]),
    }.get(name, at)


def prove_statements(server: postgres_servers.PostgresServer, seed: int, tally: Tally) -> int:
    """Bend every statement in every way; return how many texts were bent."""
    rng = random.Random(seed)
    with psycopg.connect(server.url(), autocommit=True) as db:
        db.adapters.register_dumper(int, Int8BinaryDumper)
        db.adapters.register_dumper(str, StrBinaryDumper)
        db.adapters.register_dumper(list, ListBinaryDumper)
        looker = Looker(db, tally)
        for way in WAYS:
            one = rng.randrange(LOOKING)
            looker.look(way, one, rng.randrange(LOOKING, LOOKING + HAVING))
        for name in SEEING:
            if not tally.rows[f"{name}, {WAYS[1].name}"]:
                tally.broken.append(f"{name} without conditions found nothing: it proves nothing")
        tally.broken += weak_walls(db)
    return looker.bent


def weak_walls(db: Any) -> list[str]:
    """Return tables whose walls are not forced, and what the role may do beyond its duty."""
    weak = db.execute(
        "SELECT relname || ': no forced wall' FROM pg_class"
        " WHERE relnamespace = 'keepthread'::regnamespace AND relkind IN ('r', 'p')"
        " AND relname <> ALL (ARRAY['tenants', 'migrations'] || %(server)s::text[])"
        " AND NOT (relrowsecurity AND relforcerowsecurity)"
        " UNION ALL SELECT name || ': of a server, and can be used' FROM unnest(%(server)s) name"
        " WHERE has_any_column_privilege("
        "'keepthread_app', 'keepthread.' || name, 'SELECT, INSERT, UPDATE')"
        " OR has_table_privilege('keepthread_app', 'keepthread.' || name, 'DELETE, TRUNCATE')"
        " UNION ALL SELECT relname || ': owned by the role' FROM pg_class"
        " WHERE relowner = 'keepthread_app'::regrole"
        " UNION ALL SELECT relname || ': runs with the rights of its owner' FROM pg_class"
        " WHERE relnamespace = 'keepthread'::regnamespace AND relkind = 'v'"
        " AND NOT coalesce(reloptions, '{}') @> '{security_barrier=true,security_invoker=true}'"
        " UNION ALL SELECT rolname || ': is above the walls' FROM pg_roles"
        " WHERE rolname = 'keepthread_app' AND (rolsuper OR rolbypassrls)"
        " UNION ALL SELECT 'the names of tenants can be read'"
        " WHERE has_table_privilege('keepthread_app', 'keepthread.tenants', 'SELECT')",
        {"server": list(OF_SERVER)},
    ).fetchall()
    return [line for (line,) in weak]


async def prove_store(store: Store, size: int, seed: int, progress: Progress, to: Tally) -> None:
    """Probe tenants by the methods of the store, and owners by all that a program can call."""
    await prove_methods(store, size, seed, progress, to)
    walls = await prove_owners(store.tenant("owners"), size, seed, progress)
    to.owners = walls
    to.broken += walls.broken


async def prove_on_postgres(size: int, seed: int, progress: Progress, tally: Tally) -> int:
    with closing(postgres_servers.new_server()) as server:
        async with await PostgresStore.open(server.url()) as store:
            await prove_store(store, size, seed, progress, tally)
        return prove_statements(server, seed, tally)


async def prove_on_redis(size: int, seed: int, progress: Progress, tally: Tally) -> int:
    with closing(redis_servers.new_server()) as server:
        async with await RedisStore.open(server.url) as store:
            await prove_store(store, size, seed, progress, tally)
    return 0


async def prove_on_sqlite(size: int, seed: int, progress: Progress, tally: Tally) -> int:
    with TemporaryDirectory() as folder:
        async with await SQLiteStore.open(Path(folder) / "walls.db") as store:
            await prove_store(store, size, seed, progress, tally)
    return 0


async def prove_on_ram(size: int, seed: int, progress: Progress, tally: Tally) -> int:
    async with RamStore() as store:
        await prove_store(store, size, seed, progress, tally)
    return 0


BACKENDS: Final = {
    "postgres": prove_on_postgres,
    "redis": prove_on_redis,
    "sqlite": prove_on_sqlite,
    "ram": prove_on_ram,
}


def run(size: int, seed: int, progress: Progress, *, backend: str = "postgres") -> Outcome:
    tally = Tally()
    bent = asyncio.run(BACKENDS[backend](size, seed, progress, tally))
    if not tally.own:
        tally.broken.append("nobody saw even what is their own: the test is blind")
    figures: dict[str, int | float | str] = {
        "probes": tally.probes.total(),
        "methods and ways to call them": len(tally.probes),
        **{f"statements run {way}": count for way, count in tally.statements.items()},
        "texts of statements and functions bent": bent,
        "statements refused": ", ".join(f"{n} × {code}" for code, n in tally.refused.items()),
        "answers with something of one's own": tally.own,
        "foreign rows read": tally.foreign,
        "foreign rows changed": tally.changed,
        "probes of owners": tally.owners.probes.total(),
        "operations of owners": len(tally.owners.probes),
        "operations of owners that answered": sum(map(bool, tally.owners.succeeded.values())),
        "things of other owners changed": tally.owners.changed,
    }
    if backend != "postgres":
        figures = {name: value for name, value in figures.items() if "statements" not in name}
    return Outcome(figures=figures, broken=tuple(tally.broken))


PROOF: Final = Proof(
    name="P8",
    promise="tenants and owners are walls",
    unit="probes",
    small=30,
    closing=1_000,
    long=20_000,
    run=run,
    on={backend: partial(run, backend=backend) for backend in BACKENDS},
)
