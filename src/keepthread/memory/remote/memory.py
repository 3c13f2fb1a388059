"""The memory of a server: `Memory.open("https://…", key=…)`."""

from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, NoReturn

from keepthread.errors import InvalidInput, Unsupported
from keepthread.memory.admin import Admin
from keepthread.memory.memory import DEFAULT_OWNER, Memory
from keepthread.memory.owner import OwnerMemory
from keepthread.memory.remote.connection import ApiRequest, ServerConnection
from keepthread.memory.remote.owner import RemoteOwner
from keepthread.memory.remote.requests import Requests
from keepthread.protocols import Progress
from keepthread.stores.validation import check_id

if TYPE_CHECKING:
    from keepthread.memory.forgetting.receipt import Receipt

_OF_A_STORE: Final = ("store", "counter", "views", "compaction", "extraction")


class RemoteMemory(Memory):
    """The memory of a server; the server's settings say how contexts are built."""

    def __init__(self, connection: ServerConnection, owner: str | None) -> None:
        """Take the connection, and the owner that the key is bound to, if it is bound."""
        self._connection = connection
        self._bound = owner
        self.outbox = None

    def __getattr__(self, name: str) -> NoReturn:
        """Say where the attributes of an opened store are."""
        if name in _OF_A_STORE:
            raise Unsupported(f"`{name}` is not available over HTTP: it belongs to the server")
        raise AttributeError(name)

    async def close(self) -> None:
        """Close the connections."""
        await self._connection.close()

    async def idle(self) -> None:
        """Return immediately: the server does all background work."""

    # --- owners ---

    def tenant(self, name: str) -> Memory:
        """Raise `Unsupported`: the key decides which tenant it is."""
        del name
        raise Unsupported("the key decides the tenant; open another memory with another key")

    def for_owner(self, name: str) -> OwnerMemory:
        """Return the memory of one owner, through which nothing of another can be reached."""
        return RemoteOwner(self._requests(name))

    @property
    def admin(self) -> Admin:
        """Raise `Unsupported`: calls over all owners are made where the store is opened."""
        raise Unsupported(
            "operations across all owners are not available over HTTP; open the store directly"
        )

    async def forget(  # noqa: PLR0913 - each names one way to choose
        self,
        *,
        session: str | None = None,
        message: str | None = None,
        owner: str | None = None,
        author: str | None = None,
        source: str | None = None,
        since: float | datetime | None = None,
        until: float | datetime | None = None,
        answers: bool = False,
        rewrite: bool = False,
        dry_run: bool = False,
        progress: Progress | None = None,
    ) -> "Receipt":
        """Erase an owner's messages, their copies and everything made from them, permanently."""
        if rewrite:
            raise Unsupported(
                "rewriting tables is not available over HTTP; open the store directly"
            )
        given = (session, message, author, source, since, until)
        if owner is None and all(value is None for value in given):
            raise InvalidInput(
                "specify what to forget: a session, a message in a session, an owner, …"
            )
        return await self.for_owner(owner or DEFAULT_OWNER).forget(
            session=session,
            message=message,
            author=author,
            source=source,
            since=since,
            until=until,
            everything=all(value is None for value in given),
            answers=answers,
            dry_run=dry_run,
            progress=progress,
        )

    def _requests(self, owner: str) -> Requests:
        """Return requests of an owner; `default` is the owner of a key that is bound to one."""
        check_id(owner, "owner")
        bound = self._bound is not None and owner == DEFAULT_OWNER
        return Requests(self._connection, self._bound or owner if bound else owner)


async def open_remote(
    url: str, key: str | None, seconds: float | None, settings: Mapping[str, Any]
) -> Memory:
    """Connect to a server, and check that it accepts the key.

    `settings` are arguments of `Memory.open` that only a store can take; a given one is refused.
    """
    for name, value in settings.items():
        if value is not None:
            raise Unsupported(
                f"`{name}` is a setting of the server; Memory.open takes it with a store's own URL"
            )
    connection = ServerConnection(url, key or "", timeout=seconds)
    try:
        identity = await connection.json(ApiRequest("GET", "/identity"))
    except BaseException:
        await connection.close()
        raise
    return RemoteMemory(connection, identity["owner"])
