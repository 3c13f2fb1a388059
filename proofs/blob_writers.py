"""P9 beside blobs: they are put, attached and deleted while their owner is forgotten.

`python -m proofs.blob_writers URL OWNER SEED` is a process that stores blobs until it is killed. It
reports when it has stored the first.
"""

import asyncio
import os
import random
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Sequence, Set
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from keepthread import Attachment, Memory, Message, Options, OwnerMemory
from keepthread.context.full_text import blobs_of
from keepthread.errors import Busy, KeepthreadError, NotFound, SessionGone, SessionNotFound
from keepthread.models.tokens import Estimator
from keepthread.protocols import Store
from keepthread.stores.kinds import BLOB, BLOB_CHUNK
from keepthread.stores.url import store_at
from keepthread.types import Scope
from proofs.grounds import Ground
from proofs.interposed import Interposed
from proofs.marked import SIZES

if TYPE_CHECKING:
    from proofs.p09_forget import Tally

ROOT: Final = Path(__file__).resolve().parent.parent
DATA: Final[Sequence[bytes]] = [bytes([n]) * 2500 for n in range(3)]
"""Few blobs, so that the same is put, attached and deleted at the same time."""
WRITERS: Final = 3
FORGETS: Final = 4
SWEPT: Final = 0.3
"""How often an upload is swept just before its blob is described."""
DAY: Final = 86_400.0
RACES: Final = (Busy, NotFound, SessionGone)
"""Errors that a writer may meet because its owner is forgotten; what it stored is not promised."""


async def pieces(data: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(data), 700):
        yield data[start : start + 700]
        await asyncio.sleep(0)


async def write(owner: OwnerMemory, rng: random.Random) -> list[Message]:
    """Store, attach or delete one blob, and read it: it may be gone, but never be damaged.

    Return the messages that were acknowledged.
    """
    stored: list[Message] = []
    data, choice = rng.choice(DATA), rng.randrange(10)
    digest = sha256(data).hexdigest()
    with suppress(*RACES):
        if choice == 0:
            await owner.blobs.put(pieces(data))
        elif choice == 1:
            await owner.blobs.delete(digest)
        elif choice == 2:
            session = await owner.session("blobs")
            attached = Attachment(media_type="text/plain", uri=f"blob:{digest}")
            stored = await session.append(Message(role="user", attachments=[attached]))
        elif choice == 3:
            session = await owner.session("texts")
            text = f"{rng.randrange(3)} " * 2000
            stored = await session.append(Message(role="user", content=text))
        else:
            await owner.blobs.put(data)
        await owner.blobs.read(digest)
    return stored


async def beside_forgets(ground: Ground, tally: "Tally", rng: random.Random, number: int) -> None:
    """Forget an owner, and sweep, while this process and another, which is killed, store blobs."""
    id = f"blobs {number}"
    command = [sys.executable, "-m", "proofs.blob_writers", ground.url, id, f"{rng.random()}"]
    process = await asyncio.create_subprocess_exec(
        *command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        assert process.stdout
        ready = await process.stdout.read(1)
        assert ready, "the writer ended early"
        async with ground.opened() as memory:
            store = memory.store

            async def before(method: str, args: tuple[Any, ...]) -> None:
                if method == "put" and args[1] == BLOB and rng.random() < SWEPT:
                    await sweep(store, id, 1.1)  # to this clock, uploads that last are abandoned

            options = Options(counter=Estimator(), blob_sizes=SIZES)
            owner = Memory(cast(Store, Interposed(store, before)), options).for_owner(id)
            ended, acknowledged = asyncio.Event(), set[str]()
            writers = [
                asyncio.create_task(_write_on(owner, rng, ended, acknowledged))
                for _ in range(WRITERS)
            ]
            for _ in range(FORGETS):
                await memory.for_owner(id).forget(everything=True)
                await asyncio.sleep(rng.uniform(0, 0.02))
            ended.set()  # as well as canceled: a client of a server may lose a cancellation
            for writer in writers:
                writer.cancel()
            ends = await asyncio.gather(*writers, return_exceptions=True)
    finally:
        if process.returncode is None:
            process.kill()
        _, errors = await process.communicate()
    broken = [end for end in ends if isinstance(end, Exception)]
    tally.expect(not broken, f"{id}: a writer failed: {broken}")
    tally.expect(not errors, f"{id}: a writer failed: {errors.decode()[-500:]}")
    async with ground.opened() as memory:
        await check(memory, id, acknowledged, tally)
    tally.blobs += 1


async def check(memory: Memory, id: str, acknowledged: Set[str], tally: "Tally") -> None:
    """Hold every blob that is listed or attached to being readable, and to being repairable."""
    owner = memory.for_owner(id)
    tally.broken += [f"{id}: {what}" for what in await unreadable(owner, acknowledged)]
    damages = (await memory.admin.verify()).damages
    tally.expect(not damages, f"{id}: {damages}")
    for data in DATA:
        blob = await owner.blobs.put(data)
        tally.expect(await owner.blobs.read(blob.digest) == data, f"{id}: another blob was read")
    store, scope = memory.store, Scope(owner=id)
    for days in (2, 4):
        await sweep(store, id, days)
    tally.broken += [f"{id}, swept: {what}" for what in await unreadable(owner, acknowledged)]
    entries = await store.scan(scope, BLOB)
    chunks = await store.scan(scope, BLOB_CHUNK)
    uploads = {chunk.key.partition(":")[0] for chunk in chunks}
    tally.expect(len(uploads) == len(entries), f"{id}: chunks of no blob are left")


async def sweep(store: Store, owner: str, days: float) -> None:
    """Remove what blobs have left, as a process does whose clock is days ahead."""
    options = Options(counter=Estimator(), blob_sizes=SIZES, clock=lambda: time.time() + days * DAY)
    await Memory(store, options)._services.blobs(owner).sweep()


async def unreadable(owner: OwnerMemory, acknowledged: Set[str]) -> list[str]:
    """Return the blobs of an owner that are listed or attached, and cannot be read.

    A message that was stored in a session that began again, and was not acknowledged because its
    writer ended, may lack its blob.
    """
    digests = {blob.digest: True for blob in await owner.blobs.list(limit=1000)}
    for id in ("blobs", "texts"):
        with suppress(SessionNotFound):
            for message in await (await owner.get_session(id)).messages(limit=10_000):
                for digest in blobs_of(message) if message.state == "live" else ():
                    promised = message.id in acknowledged
                    digests[digest] = digests.get(digest, False) or promised
    wrong: list[str] = []
    for digest, promised in digests.items():
        try:
            await owner.blobs.read(digest)
        except KeepthreadError as error:
            if promised or not isinstance(error, NotFound):
                wrong.append(f"a blob cannot be read: {error}")
    return wrong


async def _write_on(
    owner: OwnerMemory, rng: random.Random, ended: asyncio.Event, acknowledged: set[str]
) -> None:
    while not ended.is_set():
        acknowledged |= {message.id for message in await write(owner, rng)}


async def _main(url: str, id: str, seed: str) -> None:
    options = Options(counter=Estimator(), blob_sizes=SIZES)
    rng = random.Random(seed)
    async with Memory(await store_at(url)(), options) as memory:
        owner = memory.for_owner(id)
        await owner.blobs.put(DATA[0])
        os.write(1, b"r")
        await asyncio.gather(
            *(_write_on(owner, rng, asyncio.Event(), set()) for _ in range(WRITERS))
        )


if __name__ == "__main__":
    asyncio.run(_main(*sys.argv[1:]))
