"""What a file with one of everything holds, and the way to make one.

`format-1.db` and `format-2.db` were written by earlier development versions, and are refused. From
the first release on, each format has such a file, and later versions must open it as it is.
"""

import itertools
from pathlib import Path
from typing import Any

from keepthread import Message, Scope, SessionInfo, Span, SQLiteStore, ToolCall
from keepthread.protocols import Store
from keepthread.testing import ManualClock
from keepthread.testing.contract import FULL
from keepthread.testing.finding import embed, read_on

HERE = Path(__file__).parent


def settled() -> dict[str, Any]:
    """Return a clock and ids that are the same each time."""
    numbers = itertools.count(1)
    return {"clock": ManualClock(), "ids": lambda: f"{next(numbers):032x}"}


async def fill(store: Store) -> None:
    """Store one of everything."""
    main = await store.put_session(
        SessionInfo(
            delimiter="-",
            id="discord:42",
            owner="ana",
            title="A trip",
            tags=("x",),
            system_prompt="Hi",
        )
    )
    await store.append(main.key, [Message(role="user", content="Where to? สวัสดี 你好 \0 \ud800")])
    call = ToolCall(id="call_1", name="weather", arguments='{"city": ')
    await store.append(main.key, [Message(role="assistant", tool_calls=[call], tokens=9)])
    await store.append(main.key, [FULL, Message(role="user", content="secret", id="gone")])
    await store.append(main.key, [Message(role="assistant", content="late")], turn=1)
    await store.erase(main.key, [4])
    span = Span(session=main.key, first=1, last=2)
    await store.put(Scope(session=main.key), "pin", "x", None, made_of=[span])
    await store.put(Scope(owner="ana"), "fact", "1", {"likes": ["tea", 2.5, None]})
    await store.put(Scope(), "setting", "1", True)
    delegate = SessionInfo(
        delimiter="-", id="child", kind="delegate", parent="discord:42", owner="agent:x"
    )
    child = await store.put_session(delegate)
    await store.load(child.key, await store.read(main.key))
    other = await store.tenant("other").put_session(SessionInfo(delimiter="-", id="discord:42"))
    await store.tenant("other").append(other.key, [Message(role="user", content="apart")])


async def make(path: Path) -> None:
    """Write a file of this format."""
    async with await SQLiteStore.open(path, **settled()) as store:
        await fill(store)
        await read_on(store)
        await embed(store)
