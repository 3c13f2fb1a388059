"""One call of the command: which store, which tenant, and how to answer."""

import json
import os
import sys
from collections.abc import AsyncGenerator, Generator, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeAlias, cast

import typer

from keepthread.apps.cli.sanitize import sanitize
from keepthread.apps.cli.stores import is_server, opened, place_of, store_url
from keepthread.errors import InvalidInput, SessionNotFound
from keepthread.memory.memory import Memory
from keepthread.memory.options import Options
from keepthread.memory.owner import OwnerMemory
from keepthread.memory.session import Session
from keepthread.models.tokens import Estimator
from keepthread.protocols import Progress, TokenCounter
from keepthread.protocols.server import ServerTables
from keepthread.stores.front import every_session
from keepthread.stores.sqlite import SQLiteStore
from keepthread.types import JSON

if TYPE_CHECKING:
    from keepthread.apps.cli.screen import Screen
    from keepthread.apps.cli.settings.load import Config

_MOST_COMPARED: Final = 10_000
_NAMED: Final = 5

OwnerOption: TypeAlias = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="The session's owner (default: memory.owner)."),
]
"""The option of commands that name a session by its id."""


@dataclass(frozen=True, kw_only=True)
class Call:
    """The options of every command."""

    flags: Mapping[str, JSON] = field(default_factory=dict[str, JSON])
    """Settings from the command line, by their dotted keys."""
    json: bool = False
    pager: bool = True
    """Whether long output at a terminal may go through a pager."""

    def with_flags(self, flags: Mapping[str, JSON]) -> "Call":
        """Return the call with more set by the command line; what is empty sets nothing."""
        given = {key: value for key, value in flags.items() if value not in (None, "")}
        return replace(self, flags={**self.flags, **given})

    def at(self, store: str | None, tenant: str | None) -> "Call":
        """Return the call at the store and the tenant that the command line names, if any."""
        url = store_url(store) if store else None
        return self.with_flags({"memory.url": url, "memory.tenant": tenant})

    @cached_property
    def config(self) -> "Config":
        """Return the settings that hold here, and where each comes from."""
        from keepthread.apps.cli.settings.load import read_config  # noqa: PLC0415 - not before it is needed

        config = read_config(os.environ, Path.cwd(), self.flags)
        for note in config.notes:
            self.announce(note)
        return config

    @property
    def store(self) -> str | None:
        """Return the address that the command line names, if it does."""
        return cast("str | None", self.flags.get("memory.url"))

    @property
    def url(self) -> str:
        """Return the address of the store."""
        return self.store or self.config.settings.address

    @property
    def tenant(self) -> str:
        """Return the tenant inside the store."""
        return str(self.flags.get("memory.tenant") or self.config.settings.memory.tenant)

    @property
    def owner(self) -> str:
        """Return whose sessions and facts are meant if a command names no owner."""
        return self.config.settings.memory.owner

    @asynccontextmanager
    async def memory(
        self,
        *,
        create: bool = False,
        counter: TokenCounter | None = None,
        options: Options | None = None,
    ) -> AsyncGenerator[Memory]:
        """Open the store; a missing one is created only with `create`."""
        if create and not self.store:
            self.config.make_room()
        # Loading a vocabulary takes longer than most commands: only those that count bring one.
        async with opened(self.url, tenant=self.tenant, create=create) as store:
            yield Memory(store, options or Options(counter=counter or Estimator()))

    @asynccontextmanager
    async def tables(self, *, create: bool = False) -> AsyncGenerator[ServerTables]:
        """Open the tables of a server; a missing store is created only with `create`."""
        async with self.memory(create=create) as memory:
            yield memory.store.server_tables()

    @asynccontextmanager
    async def file(self) -> AsyncGenerator[SQLiteStore]:
        """Open the store for what only a file can do."""
        if is_server(self.url):
            raise InvalidInput(
                f"this works only for a file, and {place_of(self.url)} is a server: use its own "
                "tools, or `keepthread export` or `copy`"
            )
        async with self.memory() as memory:
            assert isinstance(memory.store, SQLiteStore)
            yield memory.store

    @asynccontextmanager
    async def open_session(
        self, id: str, owner: str | None, *, options: Options | None = None
    ) -> AsyncGenerator[Session]:
        """Open the store for one session of an owner."""
        async with self.memory(options=options) as memory:
            yield await self.session(memory, id, owner)

    async def session(self, memory: Memory, id: str, owner: str | None) -> Session:
        """Return an owner's session, or name the nearest ids, or other owners with such an id.

        Only for commands on one's own store: in a chat, other owners are not named.
        """
        owner = self.owner if owner is None else owner
        try:
            return await memory.for_owner(owner).get_session(id)
        except SessionNotFound:
            begun = await memory.store.get_session(id, owner)
            ready = [each async for each in every_session(memory.store) if each.ready]
        if begun is not None and not begun.ready and not begun.forgotten:
            raise SessionNotFound(f"session {id!r} is still being written by an import or fork")
        # Of a damaged session the owner is unknown.
        others = sorted(s.owner for s in ready if s.id == id and s.state == "live")
        if others:
            raise SessionNotFound(f"{owner} has no session {id!r}; {_who_has_one(others)}")
        mine = (each.id for each in ready if each.owner == owner)
        raise _not_found(id, mine, "`keepthread sessions`")

    # --- answering ---

    def write(self, value: Any) -> None:
        """Write one line of JSON, in characters that every terminal takes."""
        typer.echo(json.dumps(value).replace("\x7f", "\\u007f"))

    def say(self, text: str) -> None:
        """Show the outcome to a person on stderr; stdout may carry data."""
        if not self.json:
            typer.echo(sanitize(text), err=True)

    def announce(self, text: str) -> None:
        """Show what applies to this call without having been asked for, to programs too."""
        if self.json:
            typer.echo(json.dumps({"note": text}), err=True)
        else:
            typer.secho(sanitize(text), err=True, dim=True)

    def warn(self, text: str) -> None:
        """Show a warning, beside the answer."""
        if self.json:
            typer.echo(json.dumps({"warning": text}), err=True)
        else:
            typer.secho(f"warning: {sanitize(text)}", err=True, fg="yellow")

    @property
    def screen(self) -> "Screen":
        """Return what draws for people."""
        from keepthread.apps.cli.screen import Screen  # noqa: PLC0415 - loads rich, in one place

        return Screen()

    @contextmanager
    def paged(self) -> "Generator[Screen]":
        """Return what draws for people, through their pager if it is long."""
        screen = self.screen
        with screen.paged() if self.pager else nullcontext():
            yield screen

    def progress(
        self, label: str, unit: str, *, then: str = ""
    ) -> AbstractContextManager[Progress | None]:
        """Return a bar on the terminal, or nothing where nobody would see it.

        `then` is the label after the numbers begin again.
        """
        if self.json or not sys.stderr.isatty():
            return nullcontext(None)
        return self.screen.progress(label, unit, then=then)


async def find_session(
    memory: OwnerMemory, id: str, *, lists: str = "`keepthread sessions`"
) -> Session:
    """Return a session of the owner, or name the nearest ids; `lists` is the command for all."""
    try:
        return await memory.get_session(id)
    except SessionNotFound:
        known = await memory.list_sessions(limit=_MOST_COMPARED)
    raise _not_found(id, (each.id for each in known), lists)


def _not_found(id: str, ids: Iterable[str], lists: str) -> SessionNotFound:
    near = get_close_matches(id, [*ids][-_MOST_COMPARED:], cutoff=0.4)
    hint = f"there is {', '.join(near)}" if near else f"{lists} lists them"
    return SessionNotFound(f"there is no session {id!r}; {hint}")


def _who_has_one(owners: Sequence[str]) -> str:
    if len(owners) == 1:
        return f"{owners[0]} has a session with this id: --owner {owners[0]}"
    more = ", …" if len(owners) > _NAMED else ""
    return f"{', '.join(owners[:_NAMED])}{more} have sessions with this id: --owner NAME"
