"""Copying between stores: nothing is lost on the way, nothing overwritten, and dying costs nothing.

The round over all backends has KEEPTHREAD_COPY messages, 600 if it is not set, and is killed once a
hop; from 10,000 messages on it is killed ten times.
"""

import asyncio
import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from keepthread import Hybrid, Memory, Message, Options, RamStore, Scope, SessionInfo, Span, View
from keepthread.errors import SessionExists
from keepthread.interchange.copy import Comparison, Copied, Copying
from keepthread.protocols import Store
from keepthread.stores.url import store_at
from keepthread.testing.contract import FULL, Letters, new_session, user
from servers.postgres import PostgresServer
from servers.redis import RedisServer
from tests import preloaded
from tests.seeds import SEED

SIZE = int(os.environ.get("KEEPTHREAD_COPY", "600"))
CODE = "import sys; from keepthread.apps.cli import main; sys.exit(main())"
WORDS = ("tea", "rain", "日本", "naïve", "harbour", "We decided on", "\ud83d", "\0", "train")


# --- a store with something of everything ---


async def furnish(store: Store, size: int) -> None:
    """Fill a store through the doors that programs use."""
    rng = random.Random(SEED)
    views = {"chat": View(600, Hybrid())}
    memory = Memory(store, Options(counter=Letters(), views=views, keep_why=3))
    number = 0
    while sum(info.messages for info in await store.scan_sessions(limit=10**6)) < size:
        await talk(memory, rng, f"session {number}", max(24, min(60, size // 40)))
        number += 1
    sessions = await store.scan_sessions(limit=2)
    spans = [Span(session=info.key, first=1, last=2) for info in sessions]
    await store.put(Scope(owner="ana"), "fact", "1", {"b": 1, "a": [0.1, 2**70]}, made_of=spans)
    await store.put(Scope(owner="ana"), "lease", "facts", {"until": 1.0})
    await store.put(Scope(), "setting", "日本", None, made_of=spans[::-1])
    await store.put(Scope(session=sessions[0].key), "lease", "compact", {"until": 1.0})
    await store.put_session(SessionInfo(id="half", ready=False, created_at=5.5, updated_at=6.5))
    await memory._runtime.background.settle()  # what is compacted later would be a difference


async def talk(memory: Memory, rng: random.Random, name: str, turns: int) -> None:
    def text() -> str:
        return " ".join(rng.choices(WORDS, k=rng.randint(1, 30)))

    details: dict[str, Any] = {"title": text(), "tags": ["a", "b"], "meta": {"z": [1, None]}}
    session = await memory.session(name, owner=rng.choice(("ana", "bea")), **details)
    for number in range(turns):
        async with session.turn(text()) as turn:
            if number % 5 == 0:
                await turn.tool("look", {"at": number}, lambda **_: text(), cache_turns=99)
            if number % 7 == 3:
                await turn.append(replace(FULL, id=""))
            if number == 3:
                async with turn.delegate("Find trains", agent="scout", snippet=text()) as child:
                    await child.finish(text())
            await turn.context()
            answer = await turn.finish(text())
        if number % 9 == 1:
            await session.pin(answer.id)
            await session.add_note("screen", text(), turns=3)
    await memory.store.erase(session.key, rng.sample(range(1, turns), 2))
    await session.compact()
    fork = await session.fork(turns)
    await fork.add_message("user", text())
    await fork.rewind(3)
    await memory._runtime.background.settle()


# --- what a store holds, by another way than the one under test ---


async def picture(store: Store) -> dict[str, Any]:
    """Return all that a copy must keep, sessions named by their ids and not by their keys."""
    infos = await store.scan_sessions(limit=10**6)
    ids = {info.key: info.id for info in infos}

    async def records(scope: Scope) -> list[Any]:
        found = [record for record in await store.scan(scope) if record.kind != "lease"]
        return [
            (r.kind, r.key, json.dumps(r.value), [(ids.get(s.session), *s[1:]) for s in r.made_of])
            for r in found
        ]

    shown: dict[str, Any] = {
        info.id: (
            {
                f.name: getattr(info, f.name)
                for f in fields(SessionInfo)
                if f.name not in ("key", "epoch")
            },
            [plain(m) for m in await store.read(info.key, limit=10**6)],
            await records(Scope(session=info.key)),
        )
        for info in infos
    }
    owners = {owner: await records(Scope(owner=owner)) for owner in await store.owners()}
    return {"sessions": shown, "owners": owners, "tenant": await records(Scope())}


def plain(message: Message) -> dict[str, Any]:
    return {f.name: getattr(message, f.name) for f in fields(Message)}


@asynccontextmanager
async def opened(url: str, **settings: Any) -> AsyncIterator[Store]:
    store = await store_at(url)(**settings)
    try:
        yield store
    finally:
        await store.close()


async def seen(url: str, tenant: str = "default") -> dict[str, Any]:
    async with opened(url, tenant=tenant) as store:
        return await picture(store)


# --- the command ---


def keepthread(*arguments: str) -> list[str]:
    return [sys.executable, "-c", CODE, *arguments]


def copied(*arguments: str, status: int = 0) -> dict[str, Any]:
    result = preloaded.command("copy", *arguments, "--json")
    assert result.returncode == status, result.stderr
    return json.loads(result.stdout or result.stderr)


async def copy(source: Store, target: Store, **settings: Any) -> Copied:
    copying = Copying(source, target, **settings)
    await copying.run()
    await Comparison(copying).run()
    return copying.done


async def kill_on_the_way(source: str, target: str, moments: list[float], size: int) -> int:
    """Kill a copy whenever so much of it is done; return how much came over before the last."""
    there = 0
    async with opened(target) as store:
        for moment in moments:
            command = keepthread("copy", source, target, "--json")
            process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.DEVNULL)
            while there < moment * size:
                assert process.returncode is None, f"it was over before {moment}, seed {SEED}"
                there = sum(info.messages for info in await store.scan_sessions(limit=10**6))
                await asyncio.sleep(0.002)
            process.send_signal(signal.SIGKILL)
            assert await process.wait() == -signal.SIGKILL, f"too late at {moment}, seed {SEED}"
    return there


@pytest.mark.timeout(1800)
def test_the_last_of_a_round_over_all_backends_equals_the_first_though_it_was_killed(
    tmp_path: Path, postgres: PostgresServer, redis_server: RedisServer
) -> None:
    redis_server.ask("FLUSHALL")
    round_trip = [
        f"sqlite:///{tmp_path}/first.db",
        postgres.empty(),
        redis_server.url,
        f"sqlite:///{tmp_path}/last.db",
    ]

    async def begin() -> None:
        async with opened(round_trip[0], durability="process") as store:
            await furnish(store, SIZE)

    asyncio.run(begin())
    first = asyncio.run(seen(round_trip[0]))
    size = sum(len(messages) for _, messages, _ in first["sessions"].values())
    rng = random.Random(SEED)
    kills = (3, 3, 4) if SIZE >= 10_000 else (1, 1, 1)
    for source, target, count in zip(round_trip[:-1], round_trip[1:], kills, strict=True):
        moments = sorted(rng.uniform(0.02, 0.95) for _ in range(count))
        there = asyncio.run(kill_on_the_way(source, target, moments, size))
        start = time.perf_counter()
        done = copied(source, target)
        print(f"{size - there} of {size} messages in {time.perf_counter() - start:.1f} s, {done}")
        assert done["same"], (done, SEED)
        assert done["messages"] == size
        assert done["moved"] <= size - there
        assert asyncio.run(seen(target)) == first, f"seed {SEED}"
    kinds = {info["kind"] for info, _, _ in first["sessions"].values()}
    states = {m["state"] for _, messages, _ in first["sessions"].values() for m in messages}
    shelves = {r[0] for _, _, records in first["sessions"].values() for r in records}
    assert kinds == {"main", "fork", "delegate"}
    assert states == {"live", "erased"}
    assert shelves >= {"compact", "pin", "tool", "note", "marks", "why", "delegated"}
    assert asyncio.run(is_sound(round_trip[-1]))


async def is_sound(url: str) -> bool:
    async with opened(url) as store:
        return (await store.verify()).sound


# --- again ---


@pytest.fixture
async def stores() -> tuple[RamStore, RamStore]:
    """Return a store with something in it and one with nothing."""
    source = RamStore()
    key = await new_session(source, "s", owner="ana", title="Trip", created_at=1.0)
    await source.append(key, [user("one", id="1"), FULL, user("three"), user("four")])
    await source.put(Scope(session=key), "pin", "1", 1, made_of=[Span(key, 1, 1)])
    await source.put(Scope(owner="ana"), "fact", "1", "likes tea", made_of=[Span(key, 1, 1)])
    await source.put(Scope(), "setting", "1", True)
    for scope in (Scope(session=key), Scope(owner="ana"), Scope()):
        await source.put(scope, "lease", "compact", {"until": 1.0})
    return source, RamStore()


async def there(store: Store, owner: str = "ana") -> SessionInfo:
    found = await store.get_session("s", owner)
    assert found is not None
    return found


async def test_a_second_copy_changes_nothing(stores: tuple[RamStore, RamStore]) -> None:
    source, target = stores
    first = await copy(source, target)
    assert (first.moved, first.messages, first.records) == (4, 4, 3)
    assert first.differences == []
    scopes = (Scope((await there(target)).key), Scope(owner="ana"), Scope())
    assert [r.kind for s in scopes for r in await target.scan(s)] == ["pin", "fact", "setting"]
    before = [await target.scan(s) for s in (Scope((await there(target)).key), Scope())]
    second = await copy(source, target)
    assert (second.moved, second.messages, second.differences) == (0, 4, [])
    assert [await target.scan(s) for s in (Scope((await there(target)).key), Scope())] == before
    assert await picture(target) == await picture(source)


async def test_what_the_source_gained_since_is_brought_over(
    stores: tuple[RamStore, RamStore],
) -> None:
    source, target = stores
    await copy(source, target)
    session = await there(source)
    scope = Scope(session=session.key)
    await source.append(session.key, [user("five")])
    await source.drop(scope, "pin", "1")
    await source.put(scope, "pin", "2", 2)
    await source.put_session(replace(session, title="Journey"))
    await new_session(source, "later")
    done = await copy(source, target)
    assert (done.moved, done.sessions, done.differences) == (1, 2, [])
    new, old = await there(target), await there(source)
    assert new.updated_at >= old.updated_at
    assert new.title == "Journey"
    shown, kept = await picture(target), await picture(source)
    for each in (shown, kept):
        each["sessions"]["s"][0].pop("updated_at")
    assert shown == kept


async def test_an_erasure_since_is_carried_over(stores: tuple[RamStore, RamStore]) -> None:
    source, target = stores
    await copy(source, target)
    await source.erase((await there(source)).key, [1])
    done = await copy(source, target)
    assert (done.erased, done.differences) == (1, [])
    key = (await there(target)).key
    assert [m.state for m in await target.read(key)] == ["erased", "live", "live", "live"]
    assert await target.scan(Scope(session=key)) == []
    assert await picture(target) == await picture(source)


@pytest.mark.parametrize(
    "taken",
    [
        SessionInfo(id="s", owner="ana", created_at=2.0),
        SessionInfo(id="s", owner="ana", created_at=1.0),
    ],
)
async def test_another_conversation_under_an_id_is_refused_and_nothing_is_changed(
    stores: tuple[RamStore, RamStore], taken: SessionInfo
) -> None:
    source, target = stores
    await new_session(source, "earlier")
    key = (await target.put_session(taken)).key
    await target.append(key, [user("another", id="1"), user("talk", id="2")])
    before = await picture(target)
    with pytest.raises(SessionExists, match="session 's' already exists at the target"):
        await copy(source, target)
    assert await picture(target) == before


async def test_another_owners_session_of_that_id_is_no_obstacle(
    stores: tuple[RamStore, RamStore],
) -> None:
    source, target = stores
    await source.append(await new_session(source, "s", owner="cem"), [user("of cem")])
    hers = await new_session(target, "s", owner="bea", created_at=1.0)
    await target.append(hers, [user("another", id="1"), user("talk", id="2")])
    for _ in range(2):
        done = await copy(source, target)
        assert (done.sessions, done.differences) == (2, [])
        assert len(await target.scan_sessions()) == 3
    for owner, count in (("ana", 4), ("bea", 2), ("cem", 1)):
        assert (await there(target, owner)).messages == count
    assert [m.content for m in await target.read(hers)] == ["another", "talk"]


async def test_a_session_that_went_on_at_the_target_is_refused(
    stores: tuple[RamStore, RamStore],
) -> None:
    source, target = stores
    await copy(source, target)
    await target.append((await there(target)).key, [user("on")])
    await source.append((await there(source)).key, [user("elsewhere")])
    with pytest.raises(SessionExists, match="'s'"):
        await copy(source, target)
    await target.append((await there(target)).key, [user("and on")])
    before = await picture(target)
    with pytest.raises(SessionExists, match="continued at the target: it has 6 messages"):
        await copy(source, target)
    assert await picture(target) == before


async def test_what_was_changed_at_the_target_stays_until_it_is_to_be_replaced(
    stores: tuple[RamStore, RamStore],
) -> None:
    source, target = stores
    await copy(source, target)
    session = await there(target)
    await target.put(Scope(session=session.key), "pin", "3", 3)
    await target.put_session(replace(session, title="Mine"))
    await target.put(Scope(owner="ana"), "fact", "1", "likes coffee")
    await target.put(Scope(owner="ana"), "fact", "2", "only here")
    done = await copy(source, target)
    assert [d.session for d in done.differences] == ["s", "s", ""]
    told = " ".join(d.what for d in done.differences)
    for word in ("title", "pin/3 (only at the target)", "fact/1 (another)"):
        assert word in told
    assert (await there(target)).title == "Mine"
    done = await copy(source, target, replace=True)
    assert done.differences == []
    assert (await there(target)).title == "Trip"
    facts = [record.value for record in await target.scan(Scope(owner="ana"))]
    assert facts == ["likes tea", "only here"]


# --- broken off anywhere ---


class Dead(Exception):
    pass


def dying(store: Any, after: int) -> Any:
    """Return a store that dies once so many things were written."""
    left = after

    class Dying:
        def __getattr__(self, name: str) -> Any:
            method = getattr(store, name)
            if name not in ("put_session", "load", "put", "drop"):
                return method

            async def write(*args: Any, **named: Any) -> Any:
                nonlocal left
                left -= 1
                if left < 0:
                    raise Dead
                return await method(*args, **named)

            return write

    return Dying()


async def test_broken_off_before_any_write_it_goes_on_and_shows_nothing_half(
    stores: tuple[RamStore, RamStore],
) -> None:
    source, _ = stores
    other = await new_session(source, "t")
    await source.append(other, [user(f"{n}") for n in range(250)])
    key = (await there(source)).key
    await source.put(Scope(session=key), "made", "of", 1, made_of=[Span(other, 1, 9)])
    whole = await picture(source)
    for after in range(40):
        target = RamStore()
        try:
            await copy(source, dying(target, after))
        except Dead:
            shown = await target.list_sessions()
            half = await picture(target)
            assert all(half["sessions"][s.id] == whole["sessions"][s.id] for s in shown)
        else:
            assert after > 10
            return
        done = await copy(source, target)
        assert done.differences == []
        assert await picture(target) == whole
    raise AssertionError("it never came to its end")


async def test_a_session_that_went_on_while_it_was_broken_off_is_not_older_than_its_source(
    stores: tuple[RamStore, RamStore],
) -> None:
    source, target = stores
    with pytest.raises(Dead):
        await copy(source, dying(target, 1))
    assert not (await there(target)).ready
    await source.append((await there(source)).key, [user("more")])
    assert (await copy(source, target)).differences == []
    assert (await there(target)).updated_at >= (await there(source)).updated_at


async def test_growth_broken_off_anywhere_is_completed(stores: tuple[RamStore, RamStore]) -> None:
    source, _ = stores

    async def grow() -> None:
        key = (await there(source)).key
        await source.append(key, [user("more")])
        await source.put(Scope(session=key), "pin", "1", {"n": (await there(source)).messages})

    target = RamStore()
    await copy(source, target)
    for after in range(6):
        await grow()
        with suppress(Dead):
            await copy(source, dying(target, after))
        assert (await copy(source, target)).differences == []
    assert (await there(target)).messages == 10


# --- while others are at it ---


def busy(store: Any, when: str, change: Callable[[], Any]) -> Any:
    """Return a store at which something happens the first time that a method was called."""
    happened = False

    class Busy:
        def __getattr__(self, name: str) -> Any:
            method = getattr(store, name)
            if name != when:
                return method

            async def then(*args: Any, **named: Any) -> Any:
                nonlocal happened
                answer = await method(*args, **named)
                if not happened:
                    happened = True
                    await change()
                return answer

            return then

    return Busy()


@pytest.mark.parametrize("when", ["scan", "read", "describe"])
async def test_nothing_that_was_erased_while_it_was_copied_comes_over(
    stores: tuple[RamStore, RamStore], when: str
) -> None:
    source, target = stores
    key = (await there(source)).key
    done = await copy(busy(source, when, lambda: source.erase(key, [1])), target)
    assert done.differences == []
    assert await picture(target) == await picture(source)
    assert "pin" not in str(await picture(target))


async def test_what_came_while_it_was_copied_is_named_and_comes_with_the_next(
    stores: tuple[RamStore, RamStore],
) -> None:
    source, target = stores
    key = (await there(source)).key

    async def more() -> None:
        await source.append(key, [user("more")])
        await new_session(source, "new")

    done = await copy(busy(source, "owners", more), target)
    assert [(d.session, d.what.partition(":")[2]) for d in done.differences] == [
        ("s", " run it again"),
        ("", " run it again"),
    ]
    assert (await copy(source, target)).differences == []


async def test_a_session_deleted_while_it_was_copied_leaves_nothing(
    stores: tuple[RamStore, RamStore],
) -> None:
    source, target = stores
    key = (await there(source)).key
    done = await copy(busy(source, "read", lambda: source.delete_session(key)), target)
    assert (done.sessions, done.differences) == (0, [])
    assert await target.scan_sessions() == []


# --- what is wrong is found ---


async def test_a_tampered_target_is_found(
    tmp_path: Path, stores: tuple[RamStore, RamStore]
) -> None:
    source, _ = stores
    url, path = f"sqlite:///{tmp_path}/b.db", tmp_path / "b.db"
    async with opened(url) as target:
        assert (await copy(source, target)).differences == []
    for statement, what in (
        ("UPDATE messages SET content = x'00' WHERE seq = 2", "1 message differs, the first at 2"),
        ("UPDATE records SET value = '2' WHERE kind = 'pin'", "are damaged at the target"),
        ("UPDATE sessions SET created_at = 2.0", "its record at the target is damaged"),
        # The session is then copied again, and the fact is still made from the old one.
        ("UPDATE sessions SET owner = 'eve'", "1 difference in records of owner 'ana'"),
    ):
        with sqlite3.connect(path) as db:
            db.execute(statement)
        db.close()
        async with opened(url) as target:
            done = await copy(source, target)
        assert any(what in d.what for d in done.differences), done.differences


async def test_damage_at_the_source_stays_damage_and_is_named(tmp_path: Path) -> None:
    async with opened(f"sqlite:///{tmp_path}/a.db") as source:
        key = await new_session(source)
        await new_session(source, "other")
        await source.append(key, [user("one", tokens=1), user("two", tokens=2), user("three")])
        await source.put(Scope(session=key), "k", "k", 1)
    with sqlite3.connect(tmp_path / "a.db") as db:
        db.execute("UPDATE messages SET content = x'ff00' WHERE seq = 2")
        db.execute("UPDATE sessions SET owner = 'mallory' WHERE id = 'other'")
        db.execute("UPDATE records SET value = '2'")
    db.close()
    target = RamStore()
    async with opened(f"sqlite:///{tmp_path}/a.db") as source:
        for _ in range(2):
            done = await copy(source, target)
            assert done.differences == []
            assert sorted(done.damaged) == [
                "message 2 of session 's'",
                "the record of session 'other': owner, title and more",
                "the records of session 's', left out",
            ]
    assert [m.state for m in await target.read((await there(target, "default")).key)] == [
        "live",
        "damaged",
        "live",
    ]


async def test_what_was_damaged_after_it_was_copied_is_whole_at_the_target(tmp_path: Path) -> None:
    url, target = f"sqlite:///{tmp_path}/a.db", RamStore()
    async with opened(url) as source:
        await source.append(await new_session(source), [user("one"), user("two")])
        await copy(source, target)
    with sqlite3.connect(tmp_path / "a.db") as db:
        db.execute("UPDATE messages SET content = x'ff00' WHERE seq = 2")
    db.close()
    async with opened(url) as source:
        done = await copy(source, target, replace=True)
    assert [(d.session, d.seq) for d in done.differences] == [("s", 2)]
    copied = await target.read((await there(target, "default")).key)
    assert [m.content for m in copied] == ["one", "two"]


# --- the words ---


def test_tenants_are_copied_alone_and_may_be_renamed(tmp_path: Path) -> None:
    source, target = (f"sqlite:///{tmp_path}/{name}.db" for name in "ab")

    async def fill() -> None:
        async with opened(source) as store:
            for tenant in ("default", "acme"):
                await new_session(store.tenant(tenant), f"of {tenant}")

    asyncio.run(fill())
    assert copied(source, target, "--tenant", "acme")["sessions"] == 1
    assert list(asyncio.run(seen(target, "acme"))["sessions"]) == ["of acme"]
    assert asyncio.run(seen(target))["sessions"] == {}
    assert copied(source, source, "--tenant", "acme", "--to-tenant", "x")["same"]
    assert list(asyncio.run(seen(source, "x"))["sessions"]) == ["of acme"]
    assert "the same" in copied(source, source, status=2)["message"]
    assert "--store" in copied(source, target, "--store", source, status=2)["message"]
    missing = f"sqlite:///{tmp_path}/none.db"
    assert "no store at" in copied(missing, f"sqlite:///{tmp_path}/c.db", status=2)["message"]
    assert sorted(path.name for path in tmp_path.glob("*.db")) == ["a.db", "b.db"]


def test_a_difference_is_told_by_the_exit_status(tmp_path: Path) -> None:
    source, target = (f"sqlite:///{tmp_path}/{name}.db" for name in "ab")

    async def fill(url: str, value: int) -> None:
        async with opened(url) as store:
            await store.put(Scope(), "k", "k", value)

    asyncio.run(fill(source, 1))
    asyncio.run(fill(target, 2))
    done = copied(source, target, status=1)
    assert (done["same"], len(done["differences"])) == (False, 1)
    command = keepthread("copy", source, target)
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 1
    assert "warning: 1 difference in records of the tenant: k/k (another)" in result.stderr
    assert "1 record: not all the same in both\n" in result.stderr
    assert "--replace overwrites the target's records" in result.stderr
    assert copied(source, target, "--replace")["same"]
