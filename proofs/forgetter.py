"""A process that forgets one session, to be killed meanwhile: `python -m proofs.forgetter`.

It says when it begins, when a part of its intent is stored, and when it is done.
"""

import asyncio
import os
import sys
from typing import Any

from keepthread import Memory
from keepthread.stores.kinds import FORGET
from proofs.interposed import store_intents_in_parts_of
from proofs.marked import settings

BEGUN, MEANT, DONE = b"b", b"m", b"d"


async def main(url: str, session: str, owner: str, entries: str) -> None:
    store_intents_in_parts_of(int(entries))
    finds = not url.startswith("redis")
    async with Memory.open(url, **settings(finds=finds)) as memory:
        put: Any = memory.store.put

        async def put_and_tell(scope: Any, kind: str, *rest: Any, **options: Any) -> int:
            version = await put(scope, kind, *rest, **options)
            if kind == FORGET:
                os.write(1, MEANT)
            return version

        memory.store.put = put_and_tell  # type: ignore[method-assign]
        os.write(1, BEGUN)
        await memory.forget(session=session, owner=owner, answers=True, rewrite=True)
        os.write(1, DONE)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
