"""Server-sent events over a real connection: nothing is missed, nothing is said twice for long."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx2
import pytest

from keepthread.apps.http.routes.events import stream
from tests.http_world import Served, http_world, listening, url_of


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
        pieces = [each async for each in stream(caller, page, state.stopping, lifetime=0)]
        assert pieces[0] == b"retry: 1000\n\n"
        assert [piece.partition(b"\n")[0] for piece in pieces[1:]] == [b": waiting"]
        # A cursor whose changes are gone ends the stream with the reason.
        page.next = "x"
        pieces = [each async for each in stream(caller, page, state.stopping, heartbeat=0.01)]
        assert pieces[-1].startswith(b'event: error\ndata: {"type": "invalid_input"')
