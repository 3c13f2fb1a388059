"""P11 for blobs: damage to a part is noticed, costs one blob, and is repaired by its bytes."""

import random
from collections import Counter

from keepthread import Memory, Options
from keepthread.errors import Damaged
from keepthread.memory.blobs.types import BlobSizes, Described
from keepthread.models.tokens import Estimator
from keepthread.stores.kinds import BLOB, BLOB_CHUNK
from keepthread.stores.url import store_at
from keepthread.types import Scope

OWNER = "blobs"
SIZES = BlobSizes(chunk=100)
BLOBS = 3


async def damage_blobs(url: str, times: int, seed: int) -> tuple[Counter[str], list[str]]:
    """Damage a part of a blob several times; return figures and damage that was missed."""
    figures, broken = Counter({"blobs: damaged": 0, "blobs: missed": 0}), list[str]()
    rng, scope = random.Random(f"{seed}/blobs"), Scope(owner=OWNER)
    options = Options(counter=Estimator(), blob_sizes=SIZES)
    async with Memory(await store_at(url)(), options) as memory:
        blobs, store = memory.for_owner(OWNER).blobs, memory.store
        data = [rng.randbytes(rng.randrange(1, 500)) for _ in range(BLOBS)]
        digests = [(await blobs.put(each)).digest for each in data]
        for number in range(times):
            hit = number % BLOBS
            record = await store.get(scope, BLOB, digests[hit])
            assert record
            entry = Described.of(record)
            key = f"{entry.upload}:{rng.randrange(entry.chunks):06}"
            how = rng.choice(("dropped", "exchanged", "not encoded"))
            if how == "dropped":
                await store.drop(scope, BLOB_CHUNK, key)
            else:
                value = "AAAA" if how == "exchanged" else {"not": "text"}
                await store.put(scope, BLOB_CHUNK, key, value)
            wrong: list[str] = []
            for each, digest in zip(data, digests, strict=True):
                try:
                    read = await blobs.read(digest) == each
                except Damaged:
                    read = False
                if read == (digest == digests[hit]):
                    wrong.append("a read did not notice it" if read else "it cost another blob")
            damages = (await memory.admin.verify()).damages
            if len(damages) != 1:
                wrong.append(f"verify names {[damage.what for damage in damages]}")
            await blobs.put(data[hit])
            try:
                repaired = await blobs.read(digests[hit]) == data[hit]
            except Damaged:
                repaired = False
            if not repaired or not (await memory.admin.verify()).sound:
                wrong.append("its bytes did not repair it")
            figures["blobs: damaged"] += 1
            figures["blobs: missed"] += bool(wrong)
            broken += [f"blob {number}, a part was {how}: {what}" for what in wrong]
    return figures, broken
