"""Erasure over HTTP: nothing that a server keeps outlives it, and it may take its time."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from keepthread import Memory, OwnerMemory
from keepthread.apps.http import state as worker_state
from keepthread.apps.http.app import create_app
from keepthread.apps.http.routes import forgetting
from keepthread.apps.http.worker import purge
from keepthread.memory.remote.connection import ServerConnection
from keepthread.memory.remote.memory import RemoteMemory
from keepthread.models.tokens import Estimator
from keepthread.protocols.server import LEASE
from tests.http_app import Gate
from tests.http_world import SETTINGS, HttpWorld, http_world, url_of
from tests.seeds import SEED

SECRET = "a quetzal in the attic"


def held_text(folder: Path) -> list[str]:
    """Return the files of a store that have the secret."""
    return [each.name for each in folder.iterdir() if SECRET.encode() in each.read_bytes()]


# --- answers that are kept ---


async def test_an_answer_noted_after_a_forget_does_not_hold_what_was_erased(
    tmp_path: Path,
) -> None:
    """Requests and a forget are interleaved by chance; each answer is noted after a pause."""
    rng = random.Random(SEED)
    async with http_world(url_of(tmp_path)) as world:
        client = await world.of("ann")
        tables, end_request = world.tables, world.tables.end_request
        gates = [asyncio.Event() for _ in range(12)]
        waiting = iter(gates)

        arrived = asyncio.Semaphore(0)

        async def late(*given: Any) -> bool:
            arrived.release()
            await next(waiting).wait()
            return await end_request(*given)

        setattr(tables, "end_request", late)  # noqa: B010 - a protocol's method
        requests: list[asyncio.Task[httpx2.Response]] = []
        for number in range(len(gates) - 1):
            body = {"messages": [{"role": "user", "content": f"{number}: {SECRET}"}]}
            path, headers = "/sessions/s/messages", {"Idempotency-Key": f"k{number}"}
            await client.put("/sessions/s")
            requests.append(asyncio.create_task(client.post(path, json=body, headers=headers)))
            if rng.random() < 0.3:
                gates[number].set()
        owned = world.memory.for_owner("ann")
        for _ in requests:
            await arrived.acquire()
        receipt = await owned.forget(session="s")
        assert receipt.messages == len(requests)
        for gate in gates:
            gate.set()
        answers = await asyncio.gather(*requests)
        assert {each.status_code for each in answers} == {201}
        setattr(tables, "end_request", end_request)  # noqa: B010
        again = await client.post(
            "/sessions/s/messages",
            json={"messages": [{"role": "user", "content": f"0: {SECRET}"}]},
            headers={"Idempotency-Key": "k0"},
        )
        assert (again.status_code, again.json()["type"]) == (410, "response_not_kept")
    assert held_text(tmp_path) == []


async def test_what_tells_requests_apart_says_nothing_of_their_text(tmp_path: Path) -> None:
    """The digest of a request is of no use to somebody who guesses the text and has the file."""
    digests: list[bytes] = []
    async with http_world(url_of(tmp_path)) as world:
        client = await world.of("ann")
        begin_request = world.tables.begin_request

        async def noting(request: Any, digest: bytes, at: float) -> Any:
            digests.append(digest)
            return await begin_request(request, digest, at)

        setattr(world.tables, "begin_request", noting)  # noqa: B010 - a protocol's method
        for key in ("one", "two"):
            body = {"title": SECRET}
            await client.post("/sessions", json=body, headers={"Idempotency-Key": key})
    assert len({*digests}) == 2


# --- erasures that take long ---


@asynccontextmanager
async def slow_world() -> AsyncIterator[tuple[HttpWorld, Gate]]:
    """Give a server whose forget waits at a gate, and which waits for it for a moment only."""
    gate, forget = Gate(), OwnerMemory.forget

    async def slow(self: OwnerMemory, **given: Any) -> Any:
        if not given["dry_run"]:
            gate.entered.set()
            await gate.open.wait()
        return await forget(self, **given)

    async with Memory.open("ram://", counter=Estimator()) as memory:
        tables = memory.store.server_tables()
        world = HttpWorld(memory, tables, create_app(memory, tables, SETTINGS))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(OwnerMemory, "forget", slow)
            patch.setattr(forgetting, "PATIENCE", 0.001)
            try:
                yield world, gate
            finally:
                gate.open.set()
                await world.app.state.keepthread.finish()
                for client in world.clients:
                    await client.aclose()


async def told_something(world: HttpWorld) -> None:
    session = await world.memory.for_owner("ann").session("s")
    await session.add_message("user", SECRET)


@pytest.mark.parametrize("way", ["an id", "an Idempotency-Key", "neither"])
async def test_a_forget_that_takes_long_goes_on_and_has_its_receipt_later(way: str) -> None:
    async with slow_world() as (world, gate):
        await told_something(world)
        client = await world.of("ann")
        body: dict[str, Any] = {"session": "s", "dry_run": False}
        body |= {"id": "erase-1"} if way == "an id" else {}
        headers = {"Idempotency-Key": "k"} if way == "an Idempotency-Key" else {}
        first = await client.post("/forget", json=body, headers=headers)
        assert (first.status_code, first.headers["Retry-After"]) == (202, "1")
        if way == "neither":
            body["id"] = first.json()["id"]
        second = await client.post("/forget", json=body, headers=headers)
        assert (second.status_code, second.json()) == (202, first.json())
        gate.open.set()
        await world.app.state.keepthread.finish()
        third = await client.post("/forget", json=body, headers=headers)
        assert (third.status_code, third.json()["messages"]) == (200, 1)
        assert (await client.post("/forget", json=body, headers=headers)).json() == third.json()
        body["answers"] = True
        other = await client.post("/forget", json=body, headers=headers)
        assert (other.status_code, other.json()["type"]) == (422, "idempotency_mismatch")
        receipts = (await client.get("/receipts")).json()["items"]
        assert [each["receipt"]["messages"] for each in receipts] == [1]
        audit = await world.tables.list_audit()
        assert [entry.action for entry in audit].count("forget") == 1


async def test_a_forget_is_not_ended_by_its_client() -> None:
    async with slow_world() as (world, gate):
        await told_something(world)
        client = await world.of("ann")
        body = {"session": "s", "dry_run": False, "id": "x"}
        leaving = asyncio.create_task(client.post("/forget", json=body))
        await gate.entered.wait()
        leaving.cancel()
        gate.open.set()
        await world.app.state.keepthread.finish()
        assert (await client.post("/forget", json=body)).json()["messages"] == 1


async def test_a_forget_whose_worker_died_is_done_by_the_next() -> None:
    async with slow_world() as (world, gate):
        await told_something(world)
        client = await world.of("ann")
        body = {"session": "s", "dry_run": False, "id": "x"}
        assert (await client.post("/forget", json=body)).status_code == 202
        state = world.app.state.keepthread
        for task in [each for each in asyncio.all_tasks() if "_run" in repr(each.get_coro())]:
            task.cancel()  # with its worker
        gate.open.set()
        state.clock = lambda clock=state.clock: clock() + LEASE + 1
        assert (await client.post("/forget", json=body)).json()["messages"] == 1


async def test_a_worker_keeps_an_erasure_for_as_long_as_it_takes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(worker_state, "RENEWAL", 0.01)
    async with slow_world() as (world, gate):
        await told_something(world)
        client = await world.of("ann")
        body = {"session": "s", "dry_run": False, "id": "x"}
        assert (await client.post("/forget", json=body)).status_code == 202
        state, renewed = world.app.state.keepthread, asyncio.Event()
        state.clock = lambda clock=state.clock: clock() + LEASE - 5
        renew = world.tables.renew_request

        async def noting(*given: Any) -> bool:
            done = await renew(*given)
            renewed.set()
            return done

        setattr(world.tables, "renew_request", noting)  # noqa: B010 - a protocol's method
        await renewed.wait()
        state.clock = lambda clock=state.clock: clock() + 10
        assert (await client.post("/forget", json=body)).status_code == 202
        gate.open.set()


async def test_the_remote_client_waits_for_the_receipt() -> None:
    async with slow_world() as (world, gate):
        await told_something(world)
        key = await world.key("ann")
        transport = httpx2.ASGITransport(world.app)
        connection = ServerConnection("http://localhost", key, timeout=0.5, transport=transport)
        memory = RemoteMemory(connection, "ann")
        erasing = asyncio.create_task(memory.for_owner("ann").forget(author="ann"))
        await gate.entered.wait()
        await asyncio.wait({erasing}, timeout=1.0)  # longer than its timeout for one request
        assert not erasing.done()
        gate.open.set()
        receipt = await erasing
        assert (receipt.messages, receipt.asked["author"]) == (1, "ann")
        await memory.close()


# --- the audit log ---


async def test_erasures_exports_and_deletions_are_audited_without_text() -> None:
    async with http_world("ram://") as world:
        await told_something(world)
        client = await world.of("ann")
        await client.get("/export")
        await client.post("/forget", json={"session": "s"})
        await client.post("/forget", json={"author": SECRET, "dry_run": False, "id": "e1"})
        await client.delete("/sessions/s")
        entries = [e for e in await world.tables.list_audit() if not e.action.startswith("keys")]
        assert [(e.action, e.owner, e.targets) for e in entries] == [
            ("export", "ann", ()),
            ("forget", "ann", ("e1",)),
            ("sessions.delete", "ann", ("s",)),
        ]
        assert SECRET not in repr(entries)


async def test_old_entries_of_the_audit_log_are_purged() -> None:
    async with http_world("ram://") as world:
        for _ in range(3):
            await world.key("ann")  # in 1970
        state = world.app.state.keepthread
        await told_something(world)
        await (await world.of("ann", at=state.clock())).get("/export")
        await purge(state)
        assert [e.action for e in await world.tables.list_audit()] == ["keys.create", "export"]
        assert SETTINGS.audit_days == 365
