"""P9: forgotten means gone, from every file, whatever was under way, and it does not come back.

Fifty markers go through everything that is kept: messages, tools, blobs, summaries, facts,
accounts, forks, sub-agents, titles and records of sessions, the outbox. They are forgotten by each
of the selectors, and then all files are searched. The same for files that chats keep aside and for
the objects of the process. Then forgetting is killed, runs against work on the same messages
(compactions, forks, updates, prunes) and against writers of blobs, and what was erased is delivered
again.
"""

import asyncio
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

from keepthread import Memory, Message, Options, Scope, Session
from keepthread.errors import SessionNotFound, Unavailable
from keepthread.interchange.export import export
from keepthread.interchange.import_ import import_lines
from keepthread.memory.forgetting.follow import all_sessions
from keepthread.memory.forgetting.receipt import Receipt
from keepthread.memory.search.vectors import view_of
from keepthread.protocols import Store
from keepthread.recall.chunks import parts_of
from keepthread.recall.positions import VIEW
from keepthread.stores.codec import dumps
from keepthread.stores.front import Front
from keepthread.stores.kinds import FORGET
from keepthread.stores.outbox.store import OutboxStore
from keepthread.stores.url import store_at
from proofs import Outcome, Progress, Proof, beside, blob_writers
from proofs.forgetter import BEGUN, DONE, MEANT
from proofs.grounds import GROUNDS, Ground
from proofs.marked import NOON, WEB, Life, Marker, new_markers, settings

ROOT: Final = Path(__file__).resolve().parent.parent
KEPT: Final = Marker("The bystander keeps its sunflower")
VECTORS: Final = view_of("proof", 64)
ENTRIES: Final = (1, 2, 1000)
"""How many entries a part of an intent has: an intent in several parts may be stored in part."""
EARLY: Final = 0.2
"""The share of kills that come before the intent is stored, or may."""


@dataclass(slots=True)
class Tally:
    """What was seen so far."""

    markers: int = 0
    forgets: int = 0
    erased: int = 0
    vectors: int = 0
    places: set[int] = field(default_factory=set)
    """Where an index may have had something of what is erased."""
    kills: int = 0
    killed_before: int = 0
    killed_inside: int = 0
    flights: int = 0
    deliveries: int = 0
    blobs: int = 0
    asides: int = 0
    process: int = 0
    files: int = 0
    broken: list[str] = field(default_factory=list)

    def expect(self, so: bool, otherwise: str) -> None:
        if not so:
            self.broken.append(otherwise)

    def gone(self, ground: Ground, markers: Sequence[Marker], when: str) -> None:
        """Hold every file to having none of the markers."""
        self.files += 1
        for marker, paths in ground.found(markers).items():
            self.broken.append(f"{when}: {marker.text!r} is still in {', '.join(paths[:3])}")


# --- every marker, by every selector ---


async def everything(ground: Ground, tally: Tally, rng: random.Random) -> None:
    markers = new_markers(rng)
    tally.markers += len(markers)
    async with ground.opened() as memory:
        life = Life(memory, markers[: -2 * len(QUEUED)], finds=ground.finds)
        await tell_all(life)
        tally.expect(life.all_said, "there are more markers than places to say them")
        queued = [await memory.session(id, owner="ana") for id in QUEUED]
        for session in queued:
            await session.append(Message(role="user", id="clash", content="plain"))
    await ground.index()
    await queue_some(ground, queued, markers[-2 * len(QUEUED) :])
    answered, token = await beside.kept_answers(ground, rng)
    markers = [*markers, *answered]
    seen = ground.found(markers)
    tally.expect(len(seen) == len(markers), f"before: {len(seen)} of {len(markers)} are in files")
    store = await OutboxStore.open(ground.outbox, partial(open_store, ground), target="proof")
    async with Memory(store, Options(**settings(finds=ground.finds, embeds=True))) as memory:
        await store.outbox.deliver()
        survey = await store.outbox.survey()
        tally.expect(len(survey.set_aside) == len(QUEUED), "too little was set aside in the outbox")
        for wish in WISHES:
            await forget_checked(memory, wish, tally)
        back = await beside.titles(memory.store, markers)
        tally.expect(not back, f"sessions still say of themselves {back}")
        survey = await store.outbox.survey()
        tally.expect(not survey.set_aside, "something is still set aside in the outbox")
        await check_bystander(memory, ground, tally)
        await check_index(memory, markers, tally)
    await beside.answer_late(ground, token, answered[0])
    tally.gone(ground, markers, "after all was forgotten")


WISHES: Final[Sequence[dict[str, Any]]] = (
    {"session": "whole", "owner": "ana"},
    {"session": "one", "owner": "ana", "message": "the-one"},
    {"author": "bob"},
    {"source": WEB, "owner": "ana"},
    {"since": NOON, "until": NOON + 60},
    {"session": "queued", "owner": "ana"},
    {"author": "sam", "owner": "ana"},
    {"since": NOON + 3600, "until": NOON + 3660},
    {"owner": "eve"},
)
QUEUED: Final[dict[str, dict[str, Any]]] = {
    "queued": {},
    "queued by an author": {"author": "sam"},
    "queued at a time": {"created_at": NOON + 3630},
}
"""Sessions with messages that an outbox sets aside, and what these messages are found by."""


async def tell_all(life: Life) -> None:
    """Say all markers, so that each selector has some of its own."""
    whole = await life.talk("whole", owner="ana")
    await life.note(whole)
    await life.say_at_length(whole)
    await life.delegate(whole)
    await life.know(whole)
    await life.branch(whole, "whole, forked")
    bystander = await life.memory.session("bystander", owner="mia", title=KEPT.text)
    await life.turn(bystander, 1, marked=False)
    await bystander.append(Message(role="user", content=KEPT.text))
    one = await life.memory.session("one", owner="ana")
    (said,) = await one.append(Message(role="user", content=life.mark(), id="the-one"))
    await one.update(title=said.content, title_from="the-one")
    await one.append(Message(role="assistant", content=f"You said {life.mark()}"))
    shared = await life.memory.session("shared", owner="ana")
    for author in ("bob", None, "bob"):
        await life.turn(shared, 2, author=author, marked=author is not None)
    (first,) = await shared.messages(limit=1)
    await shared.update(title=f"{first.content[:40]}…", title_from=first.id)
    await life.hear(shared, WEB)
    await life.hear(shared, "tool:elsewhere", NOON + 30)
    eve = await life.talk("eve's", owner="eve")
    await life.say_at_length(eve)
    await life.know(eve)
    await life.delegate(eve)
    if life.finds:
        await life.memory.for_owner("eve").facts.remember(life.mark())


async def open_store(ground: Ground) -> Front[Any]:
    return await store_at(ground.url)()


async def away() -> Front[Any]:
    raise Unavailable("the proof keeps it away")


async def queue_some(
    ground: Ground, sessions: Sequence[Session], markers: Sequence[Marker]
) -> None:
    """Leave in the outbox a message per session that will be refused, and one to be delivered."""
    store = await OutboxStore.open(ground.outbox, away, target="proof")
    texts = iter(markers)
    for session in sessions:
        for id in ("clash", "late"):
            fields = QUEUED[session.id]
            said = Message(role="user", content=next(texts).text, id=id, **fields)
            await store.append(session.key, [said])
    await store.close()


async def forget_checked(memory: Memory, wish: dict[str, Any], tally: Tally) -> None:
    """Forget, and hold the receipt to what is gone."""
    before = await living(memory.store)
    places = await where(memory.store)
    forget = memory.forget if "owner" in wish else memory.admin.forget
    planned = await forget(**wish, answers=True, dry_run=True)
    told = await forget(**wish, answers=True, rewrite=True)
    lost = len(before) - len(await living(memory.store))
    tally.places |= places - await where(memory.store)
    said = told.messages + told.copies + told.derived + len(told.answers)
    tally.forgets += 1
    tally.erased += lost
    tally.expect(lost > 0, f"{wish}: nothing was erased")
    tally.expect(said == lost, f"{wish}: {lost} messages are gone; the receipt says {said}")
    tally.vectors += told.index.get("vectors", 0)
    tally.expect(counts(planned) == counts(told), f"{wish}: planned {planned}, done {told}")
    tally.expect(not told.found, f"{wish}: the receipt finds {told.found} pieces")
    left = await memory.store.scan(Scope(), FORGET)
    tally.expect(not left, f"{wish}: the intent is still there")
    again = await forget(**wish, dry_run=True) if "message" not in wish else planned
    tally.expect("message" in wish or not again.messages, f"{wish}: asked again, more is found")


def counts(receipt: Receipt) -> tuple[Any, ...]:
    return (
        (receipt.sessions, receipt.messages, receipt.copies, receipt.delegates, receipt.derived),
        (receipt.records, receipt.index, len(receipt.answers)),
    )


async def living(store: Store, owner: str | None = None) -> list[Message]:
    """Return all messages that are not erased, of one owner or all."""
    found: list[Message] = []
    for info in (await all_sessions(store)).values():
        if owner not in (None, info.owner):
            continue
        page = await store.read(info.key, limit=1_000_000)
        found += [message for message in page if message.state == "live"]
    return found


async def where(store: Store) -> set[int]:
    """Return the places that an index may have something of."""
    found: set[int] = set()
    for key in await all_sessions(store) if await store.finder() else ():
        for message in await store.read(key, limit=1_000_000):
            found |= {part.place for part in parts_of(int(key), message)}
    return found


async def check_bystander(memory: Memory, ground: Ground, tally: Tally) -> None:
    """Hold what nobody asked to forget to being there still."""
    session = await memory.get_session("bystander", owner="mia")
    states = {message.state for message in await session.messages()}
    tally.expect(states == {"live"}, f"the bystander's messages are {states}")
    tally.expect(session.info.title == KEPT.text, "the bystander lost its title")
    if ground.finds:
        hits = await memory.search("sunflower", owner="mia")
        tally.expect(bool(hits), "the bystander is not found any more")


async def check_index(memory: Memory, markers: Sequence[Marker], tally: Tally) -> None:
    """Hold the index to having no word, no piece and no vector of what is gone."""
    finder = await memory.store.finder()
    if finder is None:
        return
    for marker in markers:
        found = await finder.places(VIEW, marker.stems)
        tally.expect(not any(found.places.values()), f"the index still has {marker.text!r}")
    for place in tally.places:
        tally.expect(not await finder.parts(VIEW, [place]), f"a piece is left at {place}")
        left = await finder.vectors(VECTORS, [place])
        tally.expect(not left, f"a vector is left at {place}")


# --- kills ---


async def small_life(ground: Ground, rng: random.Random, id: str) -> list[Marker]:
    """Say a few markers in a session, with a fork and a record beside."""
    markers = new_markers(rng, 10)
    async with ground.opened() as memory:
        life = Life(memory, markers, finds=False)
        session = await memory.session(id, owner=id, title=life.mark())
        for number in range(2):
            await life.turn(session, number)
        await life.say_at_length(session)
        await life.know(session)
        await life.branch(session, f"{id}, forked")
    await ground.index()
    return markers


class Killing:
    """Kills processes that forget, and looks at what the next one makes of it."""

    def __init__(self, ground: Ground, tally: Tally, rng: random.Random) -> None:
        self._ground = ground
        self._tally = tally
        self._rng = rng
        self._takes = 0.0

    async def one(self, number: int) -> None:
        id = f"talk {number} {self._rng.getrandbits(32):08x}"
        markers = await small_life(self._ground, self._rng, id)
        ended = await asyncio.to_thread(self._kill, id, whole=not self._takes)
        async with self._ground.opened() as memory:  # completes what was begun
            states = await self._states(memory, id)
            left = await memory.store.scan(Scope(), FORGET)
        self._tally.kills += 1
        self._tally.expect(not left, f"kill {number}: an intent is left")
        if states == {"live"} and not ended:
            self._tally.killed_before += 1
            return
        self._tally.killed_inside += not ended
        self._tally.expect(states == {"erased"}, f"kill {number}: messages are {states}")
        self._tally.gone(self._ground, markers, f"kill {number}")

    def _kill(self, id: str, *, whole: bool) -> bool:
        """Let a process forget, kill it on its way, and tell whether it had ended."""
        entries = str(self._rng.choice(ENTRIES))
        command = [sys.executable, "-m", "proofs.forgetter", self._ground.url, id, id, entries]
        with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE) as process:
            assert process.stdout
            early = not whole and self._rng.random() < EARLY
            for sign in (BEGUN,) if early else (BEGUN, MEANT):
                assert process.stdout.read(1) == sign, "the forgetter ended early"
            begun = time.monotonic()
            if whole:
                process.stdout.read()
                self._takes = time.monotonic() - begun
                return True
            time.sleep(self._rng.uniform(0, self._takes))
            process.send_signal(signal.SIGKILL)
            return DONE in process.stdout.read()

    async def _states(self, memory: Memory, id: str) -> set[str]:
        session = await memory.store.get_session(id, id)  # also if no other call finds it any more
        assert session is not None
        fork = await memory.get_session(f"{id}, forked", owner=id)
        copies = (await fork.messages())[
            : fork.info.forked_from.seq if fork.info.forked_from else 0
        ]
        return {message.state for message in [*await memory.store.read(session.key), *copies]}


# --- work in flight ---


async def in_flight(ground: Ground, tally: Tally, rng: random.Random, size: int) -> None:
    """Forget while compactions, extraction and indexing of the same messages run."""
    gone: list[Marker] = []
    async with ground.opened(rng, embeds=True) as memory:
        for number in range(size):
            gone += await _one_flight(memory, ground, tally, rng, number)
    tally.gone(ground, gone, "after work in flight")


async def _one_flight(
    memory: Memory, ground: Ground, tally: Tally, rng: random.Random, number: int
) -> list[Marker]:
    markers = new_markers(rng, 12)
    said = iter(markers)
    session = await memory.session(f"flight {number}", owner=f"pilot {number}")
    for _ in range(4):
        async with session.turn(next(said).text) as turn:
            await turn.finish(f"{next(said).text} " * 8)
    first = (await session.messages(limit=1))[0]
    work: list[Any] = [
        session.compact(),
        session.fork(id=f"flight {number}, forked"),
        session.update(title=first.content, title_from=first.id),
        memory.admin.prune(1),
    ]
    if ground.finds:
        facts = memory.for_owner(session.owner).facts
        work += [facts.extract(session.id), memory.index(owner=session.owner)]
    tasks = [asyncio.ensure_future(each) for each in work]
    await asyncio.sleep(rng.uniform(0, 0.03))
    whole = rng.random() < 0.5
    one = (await session.messages())[rng.randrange(4) * 2].id
    message = None if whole else one
    chosen = {"session": session.id, "owner": session.owner, "message": message}
    await memory.forget(**chosen, answers=True, rewrite=True)
    await asyncio.gather(*tasks, return_exceptions=True)
    with suppress(Exception):
        await session.compact()
    if ground.finds:
        with suppress(SessionNotFound):  # it was forgotten as a whole
            await memory.for_owner(session.owner).facts.extract(session.id)
        await memory.index(owner=session.owner)
    alive = {message.content for message in await living(memory.store, session.owner)}
    dead = [marker for marker in markers if not any(marker.text in text for text in alive)]
    tally.expect(bool(dead), f"flight {number}: nothing was erased")
    back = await kept(memory, session.owner, dead) + await beside.titles(memory.store, dead)
    tally.expect(not back, f"flight {number}: {back} is back")
    tally.flights += 1
    return dead


async def kept(memory: Memory, owner: str, markers: Sequence[Marker]) -> list[str]:
    """Return the markers that a record, or the index, has of an owner."""
    store = memory.store
    scopes = [Scope(), Scope(owner=owner)]
    infos = (await all_sessions(store)).values()
    scopes += [Scope(session=info.key) for info in infos if info.owner == owner]
    records = [record for scope in scopes for record in await store.scan(scope)]
    data = b"".join(dumps(record.value, "a value") for record in records)
    found = [marker.text for marker in markers if marker.text.encode() in data]
    finder = await store.finder()
    for marker in markers if finder else ():
        assert finder
        places = (await finder.places(VIEW, marker.stems, owner=owner)).places
        found += [marker.text] if any(places.values()) else []
    return found


# --- delivered again ---


async def delivered_again(ground: Ground, tally: Tally, rng: random.Random, size: int) -> None:
    """Deliver what was erased once more: by a retry, an import, an outbox."""
    gone: list[Marker] = []
    async with ground.opened() as memory:
        for number in range(size):
            way = (retry, read_in, requeue)[number % 3]
            gone += await _one_delivery(memory, ground, tally, rng, number, way)
    tally.gone(ground, gone, "after deliveries")


async def _one_delivery(
    memory: Memory, ground: Ground, tally: Tally, rng: random.Random, number: int, way: Any
) -> list[Marker]:
    markers = new_markers(rng, 4)
    owner, title = f"sender {number}", markers[1].text
    session = await memory.session(f"again {number}", owner=owner, title=title)
    said = [Message(role="user", content=m.text, id=f"m{n}") for n, m in enumerate(markers)]
    await session.append(*said)
    if ground.finds:
        facts = memory.for_owner(session.owner).facts
        await facts.remember(markers[0].text, session=session.id, messages=["m0"])
    lines: list[bytes] = []
    await export(memory.store, lines.append, owner=session.owner)
    await memory.forget(session=session.id, owner=owner, rewrite=True)
    await way(memory, ground, session, said, lines)
    states = {message.state for message in await session.messages()}
    tally.expect(states == {"erased"}, f"delivery {number}: messages are {states}")
    back = await kept(memory, session.owner, markers)
    tally.expect(not back, f"delivery {number}: {back} is back")
    tally.deliveries += 1
    return markers


async def retry(_: Memory, __: Ground, session: Session, said: list[Message], ___: Any) -> None:
    await session.append(*said)
    async with session.turn(said[0].content, id=said[0].id):
        pass


async def read_in(
    memory: Memory, _: Ground, __: Session, ___: list[Message], lines: list[bytes]
) -> None:
    await import_lines(memory.store, lines)


async def requeue(
    memory: Memory, ground: Ground, session: Session, said: list[Message], _: Any
) -> None:
    store = await OutboxStore.open(ground.outbox, away, target="proof")
    await store.append(session.key, said)
    await store.close()
    back = await OutboxStore.open(ground.outbox, partial(open_store, ground), target="proof")
    await back.outbox.deliver()
    await back.outbox.clear()
    await back.close()


# --- a reader that holds the log ---


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Have another process look at a moment of a file for as long as the block lasts."""
    code = (
        "import sqlite3, sys; db = sqlite3.connect(sys.argv[1], isolation_level=None);"
        "db.execute('BEGIN'); db.execute('SELECT count(*) FROM messages').fetchone();"
        "print('r', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", code, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as reader:
        assert reader.stdout
        assert reader.stdin
        reader.stdout.read(1)
        yield
        reader.stdin.close()
        reader.wait()


async def held_open(ground: Ground, tally: Tally, rng: random.Random) -> None:
    """Forget while another process reads an older moment of the file."""
    markers = await small_life(ground, rng, "held")
    with reading(ground.folders[0] / "chat.db"):
        async with ground.opened() as memory:
            told = await memory.forget(session="held", owner="held", answers=True)
        left = ground.found(markers)
    named = any("chat.db-wal" in residue.where for residue in told.residues)
    tally.expect(bool(left), "the reader held nothing: the test is blind")
    tally.expect(named and told.found > 0, f"the receipt does not say what is left: {told}")
    async with ground.opened():
        pass
    tally.gone(ground, markers, "after the reader was done")


# --- all of it ---


async def prove(ground: Ground, size: int, tally: Tally, seed: int, progress: Progress) -> None:
    rng = random.Random(seed)
    await everything(ground, tally, rng)
    await beside.asides(ground, tally, rng)
    await beside.process(ground, tally, rng)
    if ground.kind == "sqlite":
        await held_open(ground, tally, rng)
    killing = Killing(ground, tally, rng)
    for number in range(size):
        await killing.one(number)
        progress(number + 1, 3 * size)
    await in_flight(ground, tally, rng, size)
    progress(2 * size, 3 * size)
    await delivered_again(ground, tally, rng, size)
    for number in range(max(1, size // 3)):
        await blob_writers.beside_forgets(ground, tally, rng, number)
    progress(3 * size, 3 * size)


def run_on(kind: str, size: int, seed: int, progress: Progress) -> Outcome:
    tally = Tally()
    with GROUNDS[kind]() as ground:
        asyncio.run(prove(ground, size, tally, seed, progress))
    figures = {
        "markers": tally.markers,
        "forgets by selector": tally.forgets,
        "messages erased by them": tally.erased,
        "vectors of them": tally.vectors,
        "kills": tally.kills,
        "before the intent was stored": tally.killed_before,
        "on the way, completed by the next open": tally.killed_inside,
        "files of chats": tally.asides,
        "markers searched for in the process": tally.process,
        "forgets beside compaction, extraction, indexing, forks, updates and prunes": tally.flights,
        "deliveries of erased ids": tally.deliveries,
        "owners forgotten beside writers of blobs, one of them killed": tally.blobs,
        "searches of all files": tally.files,
    }
    return Outcome(figures=figures, broken=tuple(tally.broken))


PROOF: Final = Proof(
    name="P9",
    promise="forgotten means gone",
    unit="kills, forgets beside work, and deliveries",
    small=2,
    closing=100,
    long=1_000,
    run=partial(run_on, "sqlite"),
    on={kind: partial(run_on, kind) for kind in GROUNDS},
)
