"""Memory, blocking: open a store, get sessions from it."""

from collections.abc import Generator
from contextlib import suppress
from typing import Self

from keepthread.context.views import View
from keepthread.errors import StoreClosed
from keepthread.memory.admin import Admin as AsyncAdmin
from keepthread.memory.facts.extraction import Extraction
from keepthread.memory.facts.facts import Facts as AsyncFacts
from keepthread.memory.memory import Memory as AsyncMemory
from keepthread.memory.options import Options
from keepthread.memory.owner import OwnerMemory as AsyncOwnerMemory
from keepthread.memory.summaries import Compaction
from keepthread.protocols import Store, TokenCounter
from keepthread.stores.outbox.store import Outbox as AsyncOutbox
from keepthread.sync.blobs import Blobs
from keepthread.sync.derive import Wrapper, blocking, blocking_open, blocking_wrapped, stepped
from keepthread.sync.loop import Loop
from keepthread.sync.session import Session


class Facts(Wrapper[AsyncFacts]):
    """The facts about one owner; get it from `Memory.facts`.

    The methods are those of `keepthread.memory.facts.facts.Facts`, without `await`.
    """

    @property
    def owner(self) -> str:
        """Return whose facts they are."""
        return self._wrapped.owner

    # --- writing ---

    remember = blocking(AsyncFacts.remember)
    edit = blocking(AsyncFacts.edit)
    confirm = blocking(AsyncFacts.confirm)
    forget = blocking(AsyncFacts.forget)

    # --- reading ---

    list = blocking(AsyncFacts.list)
    get = blocking(AsyncFacts.get)
    history = blocking(AsyncFacts.history)
    search = blocking(AsyncFacts.search)

    # --- documents ---

    to_markdown = blocking(AsyncFacts.to_markdown)
    from_markdown = blocking(AsyncFacts.from_markdown)
    to_json = blocking(AsyncFacts.to_json)
    from_json = blocking(AsyncFacts.from_json)

    # --- extraction ---

    extract = blocking(AsyncFacts.extract)
    extracted = blocking(AsyncFacts.extracted)


class OwnerMemory(Wrapper[AsyncOwnerMemory]):
    """The sessions, messages and facts of one owner; get it from `Memory.for_owner`.

    The methods are those of `keepthread.OwnerMemory`, without `await`.
    """

    @property
    def owner(self) -> str:
        """Return the owner's name."""
        return self._wrapped.owner

    session = blocking_wrapped(AsyncOwnerMemory.session, Session)
    create_session = blocking_wrapped(AsyncOwnerMemory.create_session, Session)
    get_session = blocking_wrapped(AsyncOwnerMemory.get_session, Session)
    list_sessions = blocking(AsyncOwnerMemory.list_sessions)
    delete_session = blocking(AsyncOwnerMemory.delete_session)

    def join(self, session: Session) -> Session:
        """See `keepthread.OwnerMemory.join`."""
        wrapped = session._wrapped  # noqa: SLF001 # pyright: ignore[reportPrivateUsage] - hidden from users only
        return Session(self._loop, self._wrapped.join(wrapped))

    search = blocking(AsyncOwnerMemory.search)
    index = blocking(AsyncOwnerMemory.index)
    changes = blocking(AsyncOwnerMemory.changes)

    def export(self, *, session: str | None = None) -> Generator[bytes]:
        """Yield everything of this owner as lines of JSON; see `keepthread.OwnerMemory.export`."""
        yield from stepped(self._loop, self._wrapped.export(session=session))

    @property
    def blobs(self) -> Blobs:
        """Return the owner's blobs: bytes and long texts, stored beside the log."""
        return Blobs(self._loop, self._wrapped.blobs)

    @property
    def facts(self) -> Facts:
        """Return the facts about the owner."""
        return Facts(self._loop, self._wrapped.facts)

    forget = blocking(AsyncOwnerMemory.forget)
    receipts = blocking(AsyncOwnerMemory.receipts)


class Admin(Wrapper[AsyncAdmin]):
    """Calls over all owners of a tenant; get it from `Memory.admin`.

    The methods are those of `keepthread.Admin`, without `await`.
    """

    list_sessions = blocking(AsyncAdmin.list_sessions)
    search = blocking(AsyncAdmin.search)
    index = blocking(AsyncAdmin.index)
    changes = blocking(AsyncAdmin.changes)
    forget = blocking(AsyncAdmin.forget)
    receipts = blocking(AsyncAdmin.receipts)
    verify = blocking(AsyncAdmin.verify)
    prune = blocking(AsyncAdmin.prune)
    list_tenants = blocking(AsyncAdmin.list_tenants)
    delete_tenant = blocking(AsyncAdmin.delete_tenant)


class Memory(Wrapper[AsyncMemory]):
    """Durable conversation memory: `with Memory.open("sqlite:///chat.db") as memory`.

    The methods are those of `keepthread.Memory`, without `await`. A `progress` callback runs in
    the thread that waits.
    """

    def __init__(self, store: Store, options: Options | None = None) -> None:
        """Wrap an open store; `open` is the usual way."""
        memory = AsyncMemory(store, options)
        super().__init__(Loop(memory.close), memory)
        self._owns_loop = True

    @staticmethod
    def _over(loop: Loop, memory: AsyncMemory, *, owns_loop: bool = True) -> "Memory":
        made = object.__new__(Memory)
        made._loop, made._wrapped, made._owns_loop = loop, memory, owns_loop
        return made

    open = staticmethod(blocking_open(AsyncMemory.open, _over, "Memory"))

    @property
    def store(self) -> Store:
        """Return the store, whose methods are asynchronous."""
        return self._wrapped.store

    @property
    def outbox(self) -> "Outbox | None":
        """Return what waits to be delivered, if the memory was opened with an outbox."""
        outbox = self._wrapped.outbox
        return None if outbox is None else Outbox(self._loop, outbox)

    @property
    def counter(self) -> TokenCounter:
        """Return what counts tokens."""
        return self._wrapped.counter

    @property
    def compaction(self) -> Compaction:
        """Return how old turns become a summary."""
        return self._wrapped.compaction

    @property
    def extraction(self) -> Extraction | None:
        """Return how facts are extracted, or None if they are not."""
        return self._wrapped.extraction

    @property
    def views(self) -> dict[str, View]:
        """Return the views by name."""
        return self._wrapped.views

    def tenant(self, name: str) -> "Memory":
        """See `keepthread.Memory.tenant`."""
        return Memory._over(self._loop, self._wrapped.tenant(name), owns_loop=False)

    def close(self) -> None:
        """Finish pending work, close the store, and end the event loop."""
        if self._owns_loop:
            self._loop.end()
        else:
            with suppress(StoreClosed):  # closed with the memory it came from
                self._loop.run(self._wrapped.close)

    def __enter__(self) -> Self:
        """Return the memory itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close it."""
        self.close()

    # --- owners ---

    def for_owner(self, name: str) -> OwnerMemory:
        """See `keepthread.Memory.for_owner`."""
        return OwnerMemory(self._loop, self._wrapped.for_owner(name))

    @property
    def admin(self) -> Admin:
        """Return the calls over all owners of the tenant."""
        return Admin(self._loop, self._wrapped.admin)

    session = blocking_wrapped(AsyncMemory.session, Session)
    create_session = blocking_wrapped(AsyncMemory.create_session, Session)
    get_session = blocking_wrapped(AsyncMemory.get_session, Session)
    list_sessions = blocking(AsyncMemory.list_sessions)
    delete_session = blocking(AsyncMemory.delete_session)
    search = blocking(AsyncMemory.search)
    index = blocking(AsyncMemory.index)

    @property
    def facts(self) -> Facts:
        """See `keepthread.Memory.facts`."""
        return Facts(self._loop, self._wrapped.facts)

    forget = blocking(AsyncMemory.forget)
    idle = blocking(AsyncMemory.idle)


class Outbox(Wrapper[AsyncOutbox]):
    """Messages that wait for the server; get it from `Memory.outbox`."""

    survey = blocking(AsyncOutbox.survey)
    deliver = blocking(AsyncOutbox.deliver)
    clear = blocking(AsyncOutbox.clear)
