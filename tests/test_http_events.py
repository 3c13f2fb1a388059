"""Server-sent events over a real connection: nothing is missed, nothing is said twice for long."""

import asyncio
import json
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx2
import pytest

from keepthread.apps.http import feeds
from keepthread.apps.http.cursors import unsign
from keepthread.apps.http.feeds import PAGE, EventBatch, Watch
from keepthread.apps.http.routes.events import encoded, stream
from keepthread.errors import Unavailable
from tests.http_world import HttpWorld, Served, http_world, listening, url_of


class Event(NamedTuple):
    """One event as a client reads it."""

    name: str
    data: Any
    last_id: str
    """The last id that the client knows."""


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with listening(url_of(tmp_path)) as server:
        yield server


def parsed(lines: Iterator[str], last_id: str = "") -> Iterator[Event]:
    """Yield events as `EventSource` does, and an event without a name for each id alone."""
    name, data, seen_id = "", "", last_id
    for line in lines:
        field, _, value = line.partition(": ")
        if field == "id":
            seen_id = value
        elif field == "event":
            name = value
        elif field == "data":
            data += value
        elif not line and (data or seen_id != last_id):
            last_id = seen_id
            yield Event(name, json.loads(data) if data else None, last_id)
            name, data = "", ""


@contextmanager
def watching(client: httpx2.Client, last_id: str = "") -> Iterator[Iterator[Event]]:
    headers = {"Last-Event-ID": last_id} if last_id else {}
    with client.stream("GET", "/events", headers=headers) as response:
        assert response.status_code == 200, response.read()
        assert response.headers["content-type"].startswith("text/event-stream")
        yield parsed(response.iter_lines(), last_id)


def until(events: Iterator[Event], session: str) -> list[Event]:
    """Return events up to the creation of a session."""
    found: list[Event] = []
    for event in events:
        found.append(event)
        if event.data and (event.name, event.data["session"]) == ("session_created", session):
            break
    return found


def sessions(events: list[Event]) -> list[str]:
    return [e.data["session"] for e in events if e.name == "session_created"]


def test_a_client_that_lost_its_connection_gets_what_it_missed(served: Served) -> None:
    with served.client("ann") as ann, served.client("bob") as bob:
        ann.put("/sessions/before")
        with watching(ann) as events:
            began = next(events)  # the id of the present, before anything happens
            assert (began.name, bool(began.last_id)) == ("", True)
            bob.put("/sessions/quetzal")
            ann.put("/sessions/one", json={"title": "private words"})
            seen = until(events, "one")
        ann.put("/sessions/two")
        ann.put("/sessions/three")
        with watching(ann, seen[-1].last_id) as events:
            missed = until(events, "three")
        with watching(ann, began.last_id) as events:
            again = until(events, "three")
    assert sessions(seen) == ["one"]
    assert sessions(missed) in (["two", "three"], ["one", "two", "three"])  # at least once
    assert sessions(again) == ["one", "two", "three"]
    said = json.dumps([*seen, *missed, *again])
    assert "private" not in said
    assert "quetzal" not in said


def test_an_id_of_another_owner_or_nobody_is_refused(served: Served) -> None:
    with served.client("ann") as ann, served.client("bob") as bob:
        with watching(ann) as events:
            id = next(events).last_id
        for client, given in ((bob, id), (ann, f"{id[:-2]}AA"), (ann, "x")):
            response = client.get("/events", headers={"Last-Event-ID": given})
            assert response.status_code == 400, response.text
            assert response.json()["type"] == "invalid_cursor"


def test_a_stream_ends_when_the_server_stops(served: Served) -> None:
    ended = threading.Event()
    ready = threading.Event()

    def watch() -> None:
        with served.client("ann") as ann, watching(ann) as events:
            next(events)
            ready.set()
            assert [*events] == []
        ended.set()

    thread = threading.Thread(target=watch)
    thread.start()
    ready.wait()
    served.stop()
    thread.join()
    assert ended.is_set()


async def test_a_stream_ends_in_time_so_that_a_key_is_checked_again(tmp_path: Path) -> None:
    async with http_world(url_of(tmp_path)) as world:
        memory = world.memory.for_owner("ann")
        await memory.session("s")
        state = world.app.state.keepthread
        await state.prepare()
        caller = world.caller("ann")
        page = await memory.changes(limit=0)
        watch = Watch(memory, state.feed_of("default"), page.next)
        events = stream(caller, EventBatch(page), watch, state.stopping, lifetime=0)
        pieces = [each async for each in events]
        assert pieces[0] == b"retry: 1000\n\n"
        assert [piece.partition(b"\n")[0] for piece in pieces[1:]] == [b": waiting"]
        # A cursor whose changes are gone ends the stream with the reason.
        page.next = "x"
        watch = Watch(memory, state.feed_of("default"), page.next)
        events = stream(caller, EventBatch(page), watch, state.stopping, heartbeat=0.01)
        pieces = [each async for each in events]
        assert pieces[-1].startswith(b'event: error\ndata: {"type": "invalid_input"')


async def test_a_stream_that_has_just_begun_ends_when_the_server_stops(tmp_path: Path) -> None:
    async with http_world(url_of(tmp_path)) as world:
        memory = world.memory.for_owner("ann")
        await memory.session("s")
        page = await memory.changes(limit=0)
        state = world.app.state.keepthread
        await state.prepare()
        watch = Watch(memory, state.feed_of("default"), page.next)
        watch.wake()  # before it waits
        async with asyncio.timeout(30):
            assert not (await watch.next(3600)).page
        watch.close()


# --- streams that share their reads ---


async def following(world: HttpWorld, owner: str) -> Watch:
    """Return a watch that has joined the feed of its tenant."""
    memory = world.memory.for_owner(owner)
    page = await memory.changes(limit=0)
    watch = Watch(memory, world.app.state.keepthread.feed_of("default"), page.next)
    assert not (await watch.next(0)).page
    return watch


async def test_one_look_serves_all_streams_and_each_gets_its_owners_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    owners = [f"owner {number}" for number in range(20)]
    async with http_world(url_of(tmp_path)) as world:
        watches = [await following(world, owner) for owner in [*owners, *owners]]
        looks: Counter[str | None] = Counter()
        read = world.memory.store.changes

        async def counted(*, owner: str | None = None, **given: Any) -> Any:
            looks[owner] += 1
            return await read(owner=owner, **given)

        # Tenants have stores of their own.
        memory = world.app.state.keepthread.memory_of("default")
        monkeypatch.setattr(memory.store, "changes", counted)
        for owner in owners:
            await world.memory.for_owner(owner).create_session(f"of {owner}")
        found = await asyncio.gather(*(watch.next(30) for watch in watches))
        assert [[(change.owner, change.session) for change in each.page] for each in found] == [
            [(owner, f"of {owner}")] for owner in [*owners, *owners]
        ]
        assert set(looks) <= {None}  # nobody read a feed of an owner
        assert found[0] is found[20]  # it is encoded once
        for watch in watches:
            watch.close()


@pytest.mark.parametrize("more", [0, 1, PAGE, PAGE + 1])
async def test_changes_that_fill_pages_while_a_stream_joins_are_all_delivered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: int
) -> None:
    """They happen between the page that is empty and the one that is read after joining."""
    async with http_world(url_of(tmp_path)) as world:
        memory = world.memory.for_owner("ann")
        start = (await memory.changes(limit=0)).next
        feed = world.app.state.keepthread.feed_of("default")
        names = [f"session {number:03}" for number in range(PAGE + more)]
        join, is_first = feed.join, True

        async def join_after_writes(owner: str) -> Any:
            nonlocal is_first
            if is_first:
                is_first = False
                for name in names:
                    await memory.create_session(name)
            return await join(owner)

        monkeypatch.setattr(feed, "join", join_after_writes)
        watch = Watch(memory, feed, start)
        seen: list[str] = []
        while len(seen) < len(names):
            page = (await watch.next(5)).page
            assert page or not seen, "nothing came for seconds"
            seen += [change.session for change in page]
        assert seen == names
        watch.close()


async def test_a_feed_that_nobody_watched_begins_with_the_present(tmp_path: Path) -> None:
    """Its old cursor may be refused by then, as after its tenant was deleted and began again."""
    async with http_world(url_of(tmp_path)) as world:
        tenant = world.memory.tenant("acme")
        feed = world.app.state.keepthread.feed_of("acme")
        ann = tenant.for_owner("ann")
        await ann.create_session("old")
        watch = Watch(ann, feed, (await ann.changes(limit=0)).next)
        assert not (await watch.next(0)).page
        watch.close()
        task = feed._task  # pyright: ignore[reportPrivateUsage]
        assert task is not None
        await asyncio.wait([task])
        await world.memory.store.drop_tenant("acme")
        await ann.create_session("new")
        watch = Watch(ann, feed, (await ann.changes(limit=0)).next)
        assert not (await watch.next(0)).page
        await ann.create_session("newer")
        assert [change.session for change in (await watch.next(30)).page] == ["newer"]
        watch.close()


async def test_a_page_that_breaks_off_after_any_event_is_read_again(tmp_path: Path) -> None:
    async with http_world(url_of(tmp_path)) as world:
        await world.app.state.keepthread.prepare()
        memory = world.memory.for_owner("ann")
        caller = world.caller("ann")
        start = (await memory.changes(limit=0)).next
        names = [f"session {number}" for number in range(5)]
        for name in names:
            await memory.create_session(name)
        page = await memory.changes(after=start)
        pieces = encoded(caller, page).split(b"\n\n")
        for cut in range(len(pieces)):
            lines = b"\n\n".join([*pieces[:cut], b""]).decode().splitlines()
            events = [*parsed(iter(lines))]
            id = events[-1].last_id if events else ""
            after = unsign(caller, "watch_events", id) if id else start
            rest = [change.session for change in await memory.changes(after=after)]
            seen = [event.data["session"] for event in events]
            assert {*seen, *rest} == {*names}
            assert len(rest) in (0, len(names))


async def test_nothing_is_lost_or_repeated_while_a_stream_joins(tmp_path: Path) -> None:
    async with http_world(url_of(tmp_path)) as world:
        memory = world.memory.for_owner("ann")
        start = (await memory.changes(limit=0)).next
        names = [f"session {number:03}" for number in range(2 * PAGE + 30)]

        async def write() -> None:
            for name in names:
                await memory.create_session(name)

        writing = asyncio.create_task(write())
        watch = Watch(memory, world.app.state.keepthread.feed_of("default"), start)
        seen: list[str] = []
        while len(seen) < len(names):
            seen += [change.session for change in (await watch.next(30)).page]
        await writing
        assert seen == names
        watch.close()


async def test_a_stream_that_is_too_slow_reads_the_rest_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feeds, "_MANY", 10)
    async with http_world(url_of(tmp_path)) as world:
        watch = await following(world, "ann")
        memory = world.memory.for_owner("ann")
        names = [f"session {number:03}" for number in range(50)]
        for name in names:
            await memory.create_session(name)
        beside = await following(world, "bob")  # after this look, the first stream is full
        seen: list[str] = []
        while len(seen) < len(names):
            seen += [change.session for change in (await watch.next(30)).page]
        assert seen == names
        watch.close()
        beside.close()


async def test_a_feed_that_fails_ends_its_streams_and_begins_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with http_world(url_of(tmp_path)) as world:
        watch = await following(world, "ann")

        async def fails(**_: Any) -> Any:
            raise Unavailable("away")

        memory = world.app.state.keepthread.memory_of("default")
        with monkeypatch.context() as patch:
            patch.setattr(memory.store, "changes", fails)
            with pytest.raises(Unavailable):
                await watch.next(30)
        watch.close()
        again = await following(world, "ann")
        await world.memory.for_owner("ann").create_session("s")
        assert [change.session for change in (await again.next(30)).page] == ["s"]
        again.close()
