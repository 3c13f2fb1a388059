"""P24: over HTTP, too, nothing acknowledged is lost or stored twice, whatever dies in between.

Clients take turns through `keepthread serve`: with the remote client, and with requests of their
own that carry an `Idempotency-Key`. Between them and the server a relay cuts connections in the
middle of requests and responses. Workers are killed and told to stop, one or all of them; so is the
process that watches over them, and the database. Clients send again what was not acknowledged. In
the end the store is read without the server: every acknowledged message is there once, in order,
and belongs to whom it should. Every response was one that the OpenAPI document declares.
"""

import asyncio
import json
import os
import random
import signal
import sqlite3
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, TypeAlias

import httpx2

from keepthread import Memory
from keepthread.apps.http.keys import KeyRights, create_key
from proofs import Outcome, Progress, Proof
from proofs.http_clients import (
    SESSIONS,
    Client,
    Documented,
    Plan,
    RawClient,
    RemoteClient,
    open_memory,
)
from proofs.http_faults import WORKERS, Held, Relay, Serving
from proofs.http_journal import Found, Journal, Person, compare, read_store
from proofs.places import Place, prove_in_a_file, prove_on_a_server
from servers import free_port

TENANTS: Final = ("acme", "zeta")
OWNERS: Final = ("ann", "bob", "cy")
"""Of each tenant."""
TURNS_PER_KILL: Final = 2000 / 30
KILLS_PER_OUTAGE: Final = 5
FEWEST_KILLS: Final = 1
SMALL: Final = 200
"""Fewer turns than this do not wait until the claim of a dead worker ends."""
LONGEST: Final = 3000
"""Bytes in one direction after which a connection is cut at the latest: some requests."""
HELD: Final = 6
"""Requests that are under way when a worker is told to stop."""
STALLED: Final = 600.0


@dataclass(slots=True)
class Scene:
    """The server, the bad network before it, the clients, and what is done to the server."""

    serving: Serving
    relay: Relay
    place: Place | None
    plan: Plan
    keys: dict[str, str]
    """A key of each tenant that serves all its owners."""
    rng: random.Random
    kills: Counter[str]
    outages: int = 0
    held: int = 0

    def alive(self) -> list[int]:
        """Return the workers that serve now."""
        return sorted(self.serving.workers - self.serving.stopping)

    async def worker(self) -> int:
        """Return a worker; wait for one if there is none."""
        await self.serving.until("a worker", lambda: bool(self.alive()))
        return self.rng.choice(self.alive())


Fault: TypeAlias = Callable[[Scene], Awaitable[None]]


async def kill_one(scene: Scene) -> None:
    """Kill a worker in the middle of its requests."""
    os.kill(pid := await scene.worker(), signal.SIGKILL)
    scene.serving.workers.discard(pid)


async def kill_all(scene: Scene) -> None:
    """Kill every worker at once."""
    await scene.worker()
    for pid in scene.alive():
        os.kill(pid, signal.SIGKILL)
        scene.serving.workers.discard(pid)


async def stop_one(scene: Scene) -> None:
    """Tell a worker to stop; whatever it has begun, it finishes."""
    pid = await scene.worker()
    async with under_way(scene, [pid]):
        os.kill(pid, signal.SIGTERM)
    await scene.serving.until("the end of a worker", lambda: pid in scene.serving.finished)


async def stop_all(scene: Scene) -> None:
    """Stop the server, and start it again."""
    await stop_server(scene)
    await scene.serving.start()


async def stop_server(scene: Scene) -> None:
    """Stop the server; whatever its workers have begun, they finish."""
    await scene.worker()
    async with under_way(scene, scene.alive()):
        scene.serving.tell_to_stop()
    await scene.serving.ended()


async def lose_all(scene: Scene) -> None:
    """Kill the process that watches over the workers, and start the server again."""
    await scene.worker()
    await scene.serving.lose()
    await scene.serving.start()


KILLS: Final[Sequence[Fault]] = (
    *(kill_one, stop_one, kill_one, stop_one, kill_all, stop_one, kill_one, kill_one),
    *(stop_all, lose_all),
)


@asynccontextmanager
async def under_way(scene: Scene, workers: Sequence[int]) -> AsyncIterator[None]:
    """Hold requests open while workers are told to stop: each must get its response."""
    held: list[tuple[Person, str, Held]] = []
    for number in range(HELD):
        person = Person(scene.rng.choice(TENANTS), scene.rng.choice(OWNERS))
        text = f"{person.tenant}.{person.owner} held {scene.held}.{number}"
        with suppress(OSError, TimeoutError):  # its worker was killed before
            held.append((person, text, await hold(scene, person, text)))
    scene.held += 1
    yield
    stopped = set(workers)
    await scene.serving.until("a worker that stops", lambda: stopped <= scene.serving.stopping)
    journal = scene.plan.journal
    for person, text, request in held:
        noted = journal.begin(person, SESSIONS[0], "", text)
        try:
            status, answer = await request.end()
        except (OSError, IndexError, ValueError, TimeoutError) as error:
            journal.fault(f"a request under way got no response: {error!r}")
            continue
        if status == 201:
            journal.acknowledge(noted, answer["items"][0])
        elif not answer.get("retryable"):
            journal.fault(f"a request under way was answered with {status} {answer}")


async def hold(scene: Scene, person: Person, text: str) -> Held:
    """Begin to append a message; its body is not sent yet."""
    headers = {
        "Authorization": f"Bearer {scene.keys[person.tenant]}",
        "Keepthread-Owner": person.owner,
    }
    body = {"messages": [{"role": "user", "content": text, "id": text}]}
    path = f"/v1/sessions/{SESSIONS[0]}/messages"
    return await Held.begin(scene.serving.port, path, headers, json.dumps(body).encode())


# --- the database ---


async def go_away(scene: Scene, *, kill: bool) -> None:
    """Take the database away, sometimes for so long that clients are told."""
    assert scene.place
    refused = scene.plan.failures()
    how = scene.rng.choice((signal.SIGINT, signal.SIGKILL))
    await asyncio.to_thread(scene.place.go_down, how)
    if kill:
        await kill_one(scene)
    await asyncio.sleep(scene.rng.uniform(0, 2))
    if scene.outages == 1 and not scene.plan.may_give_up:
        await scene.serving.until("a client that is told", lambda: scene.plan.failures() > refused)
    await asyncio.to_thread(scene.place.come_back)


async def be_held(scene: Scene, *, kill: bool) -> None:
    """Let another program hold the file for a while, with a worker killed in the middle of it."""
    path = scene.serving.store.removeprefix("sqlite:///")
    db = sqlite3.connect(path, timeout=30, isolation_level=None, check_same_thread=False)
    await asyncio.to_thread(db.execute, "BEGIN IMMEDIATE")
    await asyncio.sleep(scene.rng.uniform(0, 1))
    if kill:
        await kill_one(scene)
    await asyncio.sleep(scene.rng.uniform(0, 1))
    db.execute("ROLLBACK")
    db.close()


async def suffer(scene: Scene, kills: int, progress: Progress) -> None:
    """Do everything to the server that is due, spread over the turns."""
    plan = scene.plan
    due: list[Fault] = []
    for number in range(kills):
        if number % len(KILLS) == 0:
            due = [*KILLS] if kills < len(KILLS) else scene.rng.sample(KILLS, len(KILLS))
        await reach(scene, (number + 1) * plan.size // (kills + 1), progress)
        await asyncio.sleep(scene.rng.uniform(0, 0.05))
        fault = due[number % len(KILLS)]
        if number % KILLS_PER_OUTAGE == 0:
            # While the database is away none can start, and clients are told by those that run.
            await scene.serving.until("all workers", lambda: len(scene.alive()) >= WORKERS)
            scene.outages += 1
            is_kill = fault is kill_one
            await (go_away if scene.place else be_held)(scene, kill=is_kill)
            if is_kill:
                scene.kills[fault.__name__] += 1
                continue
        await fault(scene)
        scene.kills[fault.__name__] += 1
    await reach(scene, plan.size, progress)


async def reach(scene: Scene, turns: int, progress: Progress) -> None:
    """Wait until as many turns are taken."""
    plan, last, since = scene.plan, -1, time.monotonic()
    while plan.done < turns:
        if plan.done != last:
            last, since = plan.done, time.monotonic()
            progress(plan.done, plan.size)
        if time.monotonic() - since > STALLED:
            raise RuntimeError(f"no turn was finished for {STALLED:g} seconds")
        await asyncio.sleep(0.02)
    progress(plan.done, plan.size)


# --- clients ---


async def make_keys(url: str) -> dict[str | Person, str]:
    """Return a key of each tenant that serves all its owners, and one of each owner."""
    made: dict[str | Person, str] = {}
    scopes = frozenset({"read", "write"})
    async with Memory.open(url) as memory:
        tables = memory.store.server_tables()
        for tenant in TENANTS:
            for owner in (None, *OWNERS):
                rights = KeyRights(tenant, scopes, f"{tenant} {owner}", owner)
                key = await create_key(tables, rights, by="proof", at=time.time())
                made[tenant if owner is None else Person(tenant, owner)] = key.text
            for owner in OWNERS:
                for id in SESSIONS:
                    await memory.tenant(tenant).for_owner(owner).session(id, title=id)
    return made


async def make_clients(
    stack: AsyncExitStack, plan: Plan, url: str, keys: dict[str | Person, str], rng: random.Random
) -> list[Client]:
    """Return clients of all kinds; those of one key share its connections."""
    clients: list[Client] = []
    seeds = (random.Random(rng.getrandbits(32)) for _ in iter(int, 1))

    def raw(key: str) -> httpx2.AsyncClient:
        headers = {"Authorization": f"Bearer {key}"}
        return httpx2.AsyncClient(base_url=f"{url}/v1", headers=headers, timeout=plan.patience)

    for tenant in TENANTS:
        memory = await open_memory(plan, url, keys[tenant])
        stack.push_async_callback(memory.close)
        clients += [
            RemoteClient(plan, f"remote-{n}", tenant, OWNERS, next(seeds), memory=memory)
            for n in range(3)
        ]
        numbers: Counter[Person] = Counter()
        http = await stack.enter_async_context(raw(keys[tenant]))
        clients += [
            RawClient(plan, f"raw-{n}", tenant, OWNERS, next(seeds), http=http, numbers=numbers)
            for n in range(2)
        ]
        owner = rng.choice(OWNERS)
        http = await stack.enter_async_context(raw(keys[Person(tenant, owner)]))
        clients.append(
            RawClient(plan, "bound", tenant, [owner], next(seeds), http=http, bound=True)
        )
    return clients


# --- the proof ---


async def prove(
    url: str, place: Place | None, size: int, rng: random.Random, progress: Progress
) -> Outcome:
    keys = await make_keys(url)
    journal = Journal()
    everybody = [Person(tenant, owner) for tenant in TENANTS for owner in OWNERS]
    journal.sessions = {(person, id): id for person in everybody for id in SESSIONS}
    with tempfile.TemporaryDirectory() as folder:
        serving = Serving(Path(folder), url, free_port(), secrets=[*keys.values()])
        relay = Relay(serving.port, random.Random(rng.getrandbits(32)), LONGEST)
        async with AsyncExitStack() as stack:
            stack.push_async_callback(serving.close)
            await serving.start()
            plan = await make_plan(serving, size, journal)
            await stack.enter_async_context(relay.listening())
            address = f"http://127.0.0.1:{relay.port}"
            clients = await make_clients(stack, plan, address, keys, rng)
            programs = {tenant: keys[tenant] for tenant in TENANTS}
            scene = Scene(serving, relay, place, plan, programs, rng, Counter())
            kills = max(FEWEST_KILLS, round(size / TURNS_PER_KILL))
            async with asyncio.TaskGroup() as group:
                for client in clients:
                    group.create_task(client.run())
                group.create_task(suffer(scene, kills, progress))
            await stop_server(scene)
        found = await read_store(url, TENANTS)
    return outcome(scene, found)


async def make_plan(serving: Serving, size: int, journal: Journal) -> Plan:
    """Read the server's document, and plan as many turns."""
    async with httpx2.AsyncClient(timeout=STALLED) as http:
        document = (await http.get(f"http://127.0.0.1:{serving.port}/openapi.json")).json()
    small = size < SMALL
    return Plan(size, journal, Documented(document), 10.0 if small else 240.0, may_give_up=small)


def outcome(scene: Scene, found: Sequence[Found]) -> Outcome:
    plan, journal = scene.plan, scene.plan.journal
    verdict = compare(journal, found)
    figures = {
        "turns": plan.done,
        "kills": scene.kills.total(),
        "of each kind": ", ".join(f"{name} {n}" for name, n in sorted(scene.kills.items())),
        "outages of the database": scene.outages,
        "connections cut in requests": scene.relay.cuts["requests"],
        "connections cut in responses": scene.relay.cuts["responses"],
        "responses": plan.statuses.total(),
        "of each status": ", ".join(f"{n} × {s}" for s, n in sorted(plan.statuses.items())),
        "answered from an earlier attempt": plan.seen["replayed"],
        "turns given up": plan.seen["given up"],
        "acknowledged messages": journal.acknowledged,
        "stored messages": sum(len(each.log) for each in found),
        "lost": verdict.lost,
        "stored twice": verdict.doubled,
        "out of order": verdict.moved,
        "with a wrong owner or session": verdict.misplaced,
    }
    broken = [*verdict.broken, *journal.broken, *scene.serving.broken]
    return Outcome(figures=figures, broken=tuple(broken))


PROOF: Final = Proof(
    name="P24",
    promise="over HTTP nothing acknowledged is lost, stored twice or given to another owner",
    unit="turns",
    small=16,
    closing=2000,
    long=20_000,
    run=partial(prove_in_a_file, prove),
    on={
        "postgres": partial(prove_on_a_server, prove, "postgres"),
        "redis": partial(prove_on_a_server, prove, "redis"),
    },
)
