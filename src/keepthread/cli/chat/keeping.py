"""Where a chat is kept: its store; while that is away a file of its own; else this process.

All three are memories, so a chat goes on as if nothing had happened, and says that something did.
The store is tried again and again, and once it is back everything is brought into it.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Final

from keepthread.cli.chat.asides import Aside, Asides, Open, deliver
from keepthread.errors import Damaged, KeepthreadError, StoreClosed, Unavailable, WrongFormat
from keepthread.memory import Memory
from keepthread.types import Message, SessionInfo

AWAY: Final = (Unavailable, Damaged, WrongFormat, StoreClosed, OSError)
"""What says that a store cannot be used now, and nothing about what was asked of it."""
_FIRST_PAUSE: Final = 1.0
_LONGEST_PAUSE: Final = 30.0
_LAST_TRY: Final = 2.0


class Keeping:
    """A chat's memory; `memory` is the one to use now."""

    def __init__(
        self,
        address: str,
        opened: Open,
        asides: Asides | None,
        *,
        tell: Callable[[str], object] = lambda _: None,
    ) -> None:
        """Know the store and the files beside it; without such files nothing is kept at all."""
        self._address = address
        self._opened = opened
        self._asides = asides
        self._tell = tell
        self._memory: Memory | None = None
        self._aside: Aside | None = None
        self._watching: asyncio.Task[None] | None = None
        self._using = asyncio.Lock()
        self.away = ""
        """Why the store cannot be used now; nothing if it can."""
        self.kept = asides is not None
        """Whether what is said survives the end of this process."""

    @property
    def memory(self) -> Memory:
        """Return the memory that keeps the chat now."""
        assert self._memory is not None, "it was not begun"
        return self._memory

    async def begin(self) -> None:
        """Open the store, and bring home what earlier chats left; or say why that cannot be."""
        if self._asides is None:
            self._memory = await self._opened("ram://")
            return
        try:
            self._memory = await self._opened(self._address)
        except AWAY as error:
            await self._go_aside(error)
            return
        with suppress(*AWAY):
            await self._fetch(self._asides, self._memory)

    async def close(self) -> None:
        """Bring home what can be brought, and close."""
        if self._watching:
            self._watching.cancel()
        if self.away and self._memory is not None:
            with suppress(KeepthreadError, OSError, TimeoutError):
                async with asyncio.timeout(_LAST_TRY):
                    await self.come_back()
        if self._memory is not None:
            await self._memory.close()
        if self._aside:
            self._aside.leave()

    @asynccontextmanager
    async def using(self) -> AsyncGenerator[None]:
        """Let the memory stay the same while the block runs, but for what `leave` does."""
        async with self._using:
            yield

    # --- away ---

    async def leave(
        self, error: Exception, session: SessionInfo | None, said: Sequence[Message]
    ) -> None:
        """Go on elsewhere, with what was said so far; there `session` has the same id."""
        await self._go_aside(error)
        if session is not None:
            other = await self.memory.session(
                session.id,
                owner=session.owner,
                system_prompt=session.system_prompt,
                title=session.title,
            )
            await other.append(*said)

    async def _go_aside(self, error: Exception) -> None:
        """Open a file of our own; if that fails or has failed, a memory in this process."""
        self.away = " ".join(str(error).split()) or type(error).__name__
        if self._memory is not None:
            with suppress(*AWAY):
                await self._memory.close()
        self._memory = None if self._aside else await self._in_file()
        self.kept = self._memory is not None
        if self._memory is None:
            self._memory = await self._opened("ram://")
        where = "in a file until it is back" if self.kept else "nowhere but in this program"
        self._tell(f"memory is away: {self.away}; what is said is kept {where}")
        if self._watching is None or self._watching.done():
            self._watching = asyncio.create_task(self._watch())

    async def _in_file(self) -> Memory | None:
        if self._asides is None:
            return None
        try:
            aside = await asyncio.to_thread(self._asides.new)
        except OSError:
            return None
        try:
            memory = await self._opened(aside.address)
        except AWAY:
            aside.remove()
            return None
        self._aside = aside
        return memory

    # --- back ---

    async def _watch(self) -> None:
        """Try again and again."""
        pause = _FIRST_PAUSE
        while self.away:
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)
            with suppress(KeepthreadError, OSError):
                await self.come_back()

    async def come_back(self) -> int:
        """Bring into the store what was kept elsewhere, and go on there; return how much it was."""
        async with self._using:
            if not self.away or self._asides is None:
                return 0
            store = await self._opened(self._address)
            try:
                await self._fetch(self._asides, store)
                count = await deliver(self.memory, store)
            except BaseException:
                await store.close()
                raise
            await self.memory.close()
            if self._aside:
                self._aside.remove()
            self._memory, self._aside, self.away, self.kept = store, None, "", True
        self._tell(f"memory is back: {count:,} messages were brought home")
        return count

    async def _fetch(self, asides: Asides, store: Memory) -> None:
        """Bring home what chats that ended could not."""
        for path in await asyncio.to_thread(asides.left):
            aside = await asyncio.to_thread(asides.take, path)
            if aside is None:
                continue
            try:
                memory = await self._opened(aside.address)
            except AWAY:
                aside.leave()
                self._tell(f"{aside.path} cannot be read; an earlier chat is in it")
                continue
            try:
                async with memory:
                    count = await deliver(memory, store)
            except BaseException:
                aside.leave()
                raise
            aside.remove()
            self._tell(f"{count:,} messages of an earlier chat were brought home")
