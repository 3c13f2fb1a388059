"""Where a chat is stored: its store; while that is away, a file of its own; else this process.

All three are memories, so a chat continues and only shows a notice. The store is retried, and
once it is back, everything is delivered to it.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, Final

from keepthread.apps.cli.chat.attachments import Images
from keepthread.apps.cli.chat.delivery import Delivered, Open, bring_home, deliver, deliver_file
from keepthread.apps.cli.chat.offline_files import OfflineFile, OfflineFiles
from keepthread.apps.cli.report_types import counted
from keepthread.errors import Damaged, KeepthreadError, StoreClosed, Unavailable, WrongFormat
from keepthread.memory.memory import Memory
from keepthread.memory.owner import OwnerMemory
from keepthread.protocols import Store, TokenCounter
from keepthread.types import Message, SessionInfo

AWAY: Final = (Unavailable, Damaged, WrongFormat, StoreClosed, OSError)
"""Errors that say that a store cannot be used now, and nothing about the request."""
IN_PROCESS: Final = "only in this process's memory"
_FIRST_PAUSE: Final = 1.0
_LONGEST_PAUSE: Final = 30.0
_LAST_TRY: Final = 2.0


class Persistence:
    """A chat's memory; `memory` is the one to use now, and it is one owner's."""

    def __init__(
        self,
        address: str,
        opened: Open,
        offline_files: OfflineFiles | None,
        *,
        owner: str = "default",
        notify: Callable[[str], object] = lambda _: None,
    ) -> None:
        """Take the store, the offline files and the owner; without files nothing is kept at all."""
        self._address = address
        self._opened = opened
        self._offline_files = offline_files
        self.owner = owner
        """Whose chat it is."""
        self.notify = notify
        """Shows a notice to the user."""
        self._memory: Memory | None = None
        self._owned: OwnerMemory | None = None
        self._offline_file: OfflineFile | None = None
        self._watching: asyncio.Task[None] | None = None
        self._using = asyncio.Lock()
        self._reason = ""
        self.away = ""
        """Why the store cannot be used now; nothing if it can."""
        self.kept = offline_files is not None
        """Whether messages survive the end of this process."""

    @property
    def stores_now(self) -> bool:
        """Return whether the store itself keeps what is noted now."""
        return self.kept and not self.away

    @property
    def memory(self) -> OwnerMemory:
        """Return the owner's memory that keeps the chat now; another object after a change."""
        assert self._owned is not None, "it was not begun"
        return self._owned

    @property
    def store(self) -> Store:
        """Return the store that keeps the chat now, for what is written to and read from files."""
        return self._whole.store

    @property
    def counter(self) -> TokenCounter:
        """Return what counts tokens."""
        return self._whole.counter

    @property
    def _whole(self) -> Memory:
        assert self._memory is not None, "it was not begun"
        return self._memory

    def _use(self, memory: Memory) -> None:
        self._memory, self._owned = memory, memory.for_owner(self.owner)

    async def begin(self) -> None:
        """Open the store and deliver what earlier chats left, or say why that is impossible."""
        if self._offline_files is None:
            self._use(await self._opened("ram://"))
            return
        try:
            self._use(await self._opened(self._address))
        except AWAY as error:
            await self._go_aside(error)
            return
        with suppress(*AWAY):
            await bring_home(self._offline_files, self._opened, self._whole, self.notify)

    async def close(self) -> None:
        """Deliver what can be delivered, and close."""
        if self._watching:
            self._watching.cancel()
        if self.away and self._memory is not None:
            with suppress(KeepthreadError, OSError, TimeoutError):
                async with asyncio.timeout(_LAST_TRY):
                    await self.come_back()
        if self._memory is not None:
            await self._memory.close()
        if self._offline_file:
            self._offline_file.leave()

    async def idle(self) -> None:
        """Wait until the background work is done."""
        await self._whole.idle()

    async def prune(self, days: int) -> int:
        """Delete idle sessions of all owners once a day; return how many."""
        return await self._whole.admin.prune(days, daily=True) if self.stores_now else 0

    @asynccontextmanager
    async def using(self) -> AsyncGenerator[None]:
        """Keep the same memory while the block runs, except for `leave`."""
        async with self._using:
            yield

    # --- away ---

    async def leave(
        self,
        error: Exception,
        session: SessionInfo | None,
        said: Sequence[Message],
        images: Images | None = None,
    ) -> None:
        """Continue elsewhere, with the messages so far; there `session` has the same id."""
        await self._go_aside(error)
        if session is None:
            return
        try:
            await self._copy(session, said, images or Images())
        except AWAY as another:
            if not self.kept:
                raise
            await self._go_aside(another)  # the disk of the file is full, for example
            await self._copy(session, said, images or Images())

    async def _copy(self, session: SessionInfo, said: Sequence[Message], images: Images) -> None:
        other = await self.memory.session(
            session.id,
            system_prompt=session.system_prompt,
            title=None if session.title_seq else session.title,
            tags=session.tags,
        )
        for message in said:
            await images.keep(self.memory, message.attachments)
        await other.append(*said)
        made_from = [message for message in said if message.seq == session.title_seq]
        if made_from:
            await other.update(title=session.title, title_from=made_from[0].id)

    async def _go_aside(self, error: Exception) -> None:
        """Open a file of our own; if that fails or has failed, a memory in this process."""
        self.away = " ".join(str(error).split()) or type(error).__name__
        if self._memory is not None:
            with suppress(*AWAY):
                await self._memory.close()
        in_file = None if self._offline_file else await self._in_file()
        self.kept = in_file is not None
        self._use(in_file or await self._opened("ram://"))
        where = "in a file until it is available again" if self.kept else IN_PROCESS
        self.notify(f"the memory is unavailable: {self.away}; new messages are kept {where}")
        if self._watching is None or self._watching.done():
            self._watching = asyncio.create_task(self._watch())

    async def _in_file(self) -> Memory | None:
        if self._offline_files is None:
            return None
        try:
            offline_file = await asyncio.to_thread(self._offline_files.new)
        except OSError:
            return None
        try:
            memory = await self._opened(offline_file.address)
        except AWAY:
            offline_file.remove()
            return None
        self._offline_file = offline_file
        return memory

    # --- back ---

    async def _watch(self) -> None:
        """Retry until the store is back."""
        pause = _FIRST_PAUSE
        while self.away:
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)
            with suppress(KeepthreadError, OSError):
                await self.come_back()

    async def come_back(self) -> int:
        """Deliver what was kept elsewhere to the store, and continue there; return the messages.

        If the store refuses it, the chat continues in its file and says so once.
        """
        async with self._using:
            if not self.away or self._offline_files is None:
                return 0
            store = await self._opened(self._address)
            try:
                await bring_home(self._offline_files, self._opened, store, self.notify)
                done = await self._deliver(store)
            except BaseException:
                await store.close()
                raise
            if done.failed:
                await store.close()
                self._refused(done.failed)
                return done.messages
            await self._whole.close()
            if self._offline_file:
                self._offline_file.remove()
            self._use(store)
            self._offline_file, self.away, self.kept = None, "", True
        self.notify(
            "the memory is available again: "
            f"{counted(done.messages, 'message was', 'messages were')} delivered"
        )
        return done.messages

    async def _deliver(self, store: Memory) -> Delivered:
        """Deliver the file of this chat, and what is kept in this process since it failed."""
        if self.kept or self._offline_file is None:
            return await deliver(self._whole, store, self._offline_file)
        file = await deliver_file(self._offline_file, self._opened, store)
        rest = await deliver(self._whole, store)
        if file.failed and not rest.failed:  # the chat itself is home; a later one tries the file
            self.notify(
                f"{self._offline_file.path} cannot be delivered: {file.failed}; it is kept there"
            )
            self._offline_file.leave()
            self._offline_file = None
        return rest._replace(messages=file.messages + rest.messages)

    def _refused(self, reason: str) -> None:
        if reason != self._reason:
            where = (
                str(self._offline_file.path)
                if self.kept and self._offline_file
                else "this process's memory"
            )
            self.notify(
                f"the memory is available again but refuses this chat: {reason}; it is "
                f"kept in {where}"
            )
        self._reason = reason

    async def before_forget(self, **forget: Any) -> None:
        """Deliver what other chats keep in files, or ask them to forget it too.

        It takes what `OwnerMemory.forget` takes.
        """
        if self._offline_files is not None:
            request = {**forget, "owner": self.owner}
            await bring_home(
                self._offline_files, self._opened, self._whole, self.notify, forget=request
            )
