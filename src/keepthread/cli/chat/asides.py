"""Files that take a conversation while its store is away, and how they come home.

Each is a store of its own, owned by one process at a time. Which store it belongs to is in its
folder's name, so that nothing is ever delivered to another.
"""

import hashlib
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Final, TypeAlias

from keepthread.checks import MAX_COUNT
from keepthread.context.sources import RECALLED_FROM, WRITTEN_FROM
from keepthread.ids import new_id
from keepthread.memory import Memory, Opening
from keepthread.session import Session
from keepthread.stores.sqlite.lock import FileLock
from keepthread.types import Message

Open: TypeAlias = Callable[[str], Opening]
"""Opens a memory by its address."""

_SUFFIX: Final = ".db"
_BESIDE: Final = ("-wal", "-shm", "-lock", "-owner", "")
_PAGE: Final = 500


class Aside:
    """One such file, owned by this process."""

    def __init__(self, path: Path, lock: FileLock) -> None:
        """Take a file whose lock is held."""
        self.path = path
        self._lock = lock

    @property
    def address(self) -> str:
        """Return where it is, as a memory is opened."""
        return f"sqlite:///{self.path}"

    def remove(self) -> None:
        """Take it away with all that stands beside it, once it is closed and delivered."""
        self._lock.release()
        for suffix in _BESIDE:
            with suppress(OSError):
                self.path.with_name(self.path.name + suffix).unlink()

    def leave(self) -> None:
        """Let another process have it."""
        self._lock.release()


class Asides:
    """The files of one store and tenant."""

    def __init__(self, folder: Path, target: str, tenant: str) -> None:
        """Know the folder; it is made when it is first needed."""
        name = hashlib.sha256(f"{target}\n{tenant}".encode()).hexdigest()[:16]
        self._folder = folder / name

    def new(self) -> Aside:
        """Return a file that is not there yet; `OSError` if there is no place for it."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = self._folder / f"{new_id()}{_SUFFIX}"
        lock = FileLock(path.with_name(f"{path.name}-owner"))
        lock.take()
        return Aside(path, lock)

    def left(self) -> list[Path]:
        """Return all that are there, oldest first: what chats could not deliver yet."""
        return sorted(self._folder.glob(f"*{_SUFFIX}"))

    def take(self, path: Path) -> Aside | None:
        """Own one of them, unless another process does or it is gone."""
        lock = FileLock(path.with_name(f"{path.name}-owner"))
        with suppress(OSError):
            if lock.take():
                aside = Aside(path, lock)
                if path.exists():
                    return aside
                aside.remove()  # its owner delivered it at this moment
        return None


async def deliver(aside: Memory, store: Memory) -> int:
    """Bring what was said elsewhere into its store, each message once; return how many were new."""
    count = 0
    for info in reversed(await aside.list_sessions(limit=MAX_COUNT)):
        here = await aside.get_session(info.id)
        there = await store.session(
            info.id, owner=info.owner, system_prompt=info.system_prompt, title=info.title
        )
        async for said in _pages(here):
            count += await _bring(said, there, store)
    return count


async def _pages(session: Session) -> AsyncIterator[Sequence[Message]]:
    """Give a session's messages, no exchange in two parts."""
    messages = await session.messages(limit=_PAGE)
    while messages:
        rest = await session.messages(after=messages[-1].seq, limit=_PAGE)
        cut = len(messages)
        while rest and cut > 1 and messages[cut - 1].exchange == rest[0].exchange:
            cut -= 1
        yield messages[:cut]
        messages = [*messages[cut:], *rest]


async def _bring(messages: Sequence[Message], session: Session, store: Memory) -> int:
    ids = [message.id for message in messages]
    known = {m.id for m in await store.store.find(session.key, ids=ids)}
    for _, exchange in groupby(messages, key=lambda message: message.exchange):
        user, *answers = exchange
        if {user.id, *(answer.id for answer in answers)} <= known:
            continue
        if user.id not in known:
            await session.append(_bare(user))
        async with session.exchange(user.content, id=user.id, author=user.author) as turn:
            for answer in answers:
                await turn.finish(_bare(answer))
    return len(ids) - len(known)


def _bare(message: Message) -> Message:
    """Return a message as it was said; positions it names are those of the file it comes from."""
    meta = {k: v for k, v in message.meta.items() if k not in (WRITTEN_FROM, RECALLED_FROM)}
    return replace(message, meta=meta, seq=0, exchange=0, total=0, digest=b"")
