"""Ids that look alike are different: nothing of one session or owner is ever of another."""

import unicodedata

from keepthread import Memory, Message, Options
from keepthread.protocols import Store
from tests.every_store import store

__all__ = ["store"]

NAMES = [
    *("a", "A", "é", unicodedata.normalize("NFD", "é"), "ß", "SS", "İ", "i̇", "ﬁ", "fi", "Ⅳ", "😀"),
    *("a:b", "a;b", "a{b}", "{a}", "a/b", "a,b", "[a]", "a?b", "*", "..", ".", " ", "a ", "a'--"),
    *("%00", "0", "00", "1", "-1", "null", "default:0", "x" * 255, "x" * 254 + "y"),
]
"""They differ by case, normalization, or characters that a path, a key or a query could read."""
SESSIONS = NAMES[:4]


async def test_owners_with_similar_names_share_nothing(store: Store) -> None:
    async with Memory(store, Options()) as memory:
        starts = {owner: (await memory.for_owner(owner).changes(limit=0)).next for owner in NAMES}
        for owner in NAMES:
            own = memory.for_owner(owner)
            for name in SESSIONS:
                session = await own.session(name)
                await session.append(Message(role="user", content=f"{owner}|{name}", id="m"))
            await own.blobs.put(f"file of {owner}".encode(), name="n")
        await _wait_for_feeds(memory, starts)
        for owner in NAMES:
            own = memory.for_owner(owner)
            assert {s.id for s in await own.list_sessions(limit=100)} == set(SESSIONS)
            assert len(await own.blobs.list()) == 1
            assert await _texts(memory, owner) == [f"{owner}|{name}" for name in SESSIONS]
            page = await own.changes(after=starts[owner], limit=1000)
            assert {change.owner for change in page} == {owner}
            assert sum(change.kind == "messages_added" for change in page) == len(SESSIONS)


async def test_sessions_with_similar_ids_share_nothing(store: Store) -> None:
    async with Memory(store, Options()) as memory:
        for name in NAMES:
            session = await memory.session(name)
            await session.append(Message(role="user", content=name, id="m"))
        for name in NAMES[::2]:
            await memory.delete_session(name)
        left = NAMES[1::2]
        assert {session.id for session in await memory.list_sessions(limit=100)} == set(left)
        for name in left:
            (message,) = await (await memory.get_session(name)).messages().read()
            assert message.content == name


async def test_forgetting_an_owner_leaves_owners_with_similar_names_alone(store: Store) -> None:
    async with Memory(store, Options()) as memory:
        for owner in NAMES:
            own = memory.for_owner(owner)
            session = await own.session("s")
            await session.append(Message(role="user", content=f"{owner}|s", id="m"))
            await own.blobs.put(b"the same bytes", name="n")
        for owner in NAMES[::2]:
            assert (await memory.for_owner(owner).forget(everything=True)).messages == 1
        for owner in NAMES[1::2]:
            own = memory.for_owner(owner)
            (message,) = await (await own.get_session("s")).messages().read()
            assert (message.state, message.content) == ("live", f"{owner}|s")
            assert len(await own.blobs.list()) == 1
        assert (await memory.admin.verify()).sound


async def _texts(memory: Memory, owner: str) -> list[str]:
    own = memory.for_owner(owner)
    texts: list[str] = []
    for name in SESSIONS:
        messages = await (await own.get_session(name)).messages().read()
        texts += [message.content for message in messages]
    return texts


async def _wait_for_feeds(memory: Memory, starts: dict[str, str | None]) -> None:
    """Wait until the last owner's last change is shown: Redis shows a second once it is over."""
    owner, after = NAMES[-1], starts[NAMES[-1]]
    count = 0
    while count < len(SESSIONS):
        page = await memory.for_owner(owner).changes(after=after, wait=5)
        count += sum(change.kind == "messages_added" for change in page)
        after = page.next
