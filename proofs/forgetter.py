"""A process that forgets one session, to be killed meanwhile: `python -m proofs.forgetter`.

It says when it begins, when its intent is stored, and when it is done.
"""

import asyncio
import os
import sys
from typing import Any

from keepthread import Memory
from keepthread.stores.kinds import FORGET
from proofs.marked import settings

BEGUN, MEANT, DONE = b"b", b"m", b"d"


async def main(url: str, session: str, owner: str) -> None:
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
