"""One call of the command: which store, which tenant, and how to answer."""

import json
import os
import sys
from collections.abc import AsyncGenerator, Mapping
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

import typer

from keepthread.apps.cli.sanitize import sanitize
from keepthread.apps.cli.stores import is_server, opened, place_of
from keepthread.errors import InvalidInput, SessionNotFound
from keepthread.memory.memory import Memory
from keepthread.memory.options import Options
from keepthread.memory.session import Session
from keepthread.models.tokens import Estimator
from keepthread.protocols import Progress, TokenCounter
from keepthread.stores.front import every_session
from keepthread.stores.sqlite import SQLiteStore
from keepthread.types import JSON

if TYPE_CHECKING:
    from keepthread.apps.cli.screen import Screen
    from keepthread.apps.cli.settings.load import Config

_MOST_COMPARED: Final = 10_000


@dataclass(frozen=True, kw_only=True)
class Call:
    """The options of every command."""

    flags: Mapping[str, JSON] = field(default_factory=dict[str, JSON])
    """Settings from the command line, by their dotted keys."""
    json: bool = False

    def with_flags(self, flags: Mapping[str, JSON]) -> "Call":
        """Return the call with more set by the command line; what is empty sets nothing."""
        given = {key: value for key, value in flags.items() if value not in (None, "")}
        return replace(self, flags={**self.flags, **given})

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
    async def file(self) -> AsyncGenerator[SQLiteStore]:
        """Open the store for what only a file can do."""
        if is_server(self.url):
            raise InvalidInput(
                f"only a file can do this, and {place_of(self.url)} is a server:"
                " use its own tools, or `keepthread export` or `copy`"
            )
        async with self.memory() as memory:
            assert isinstance(memory.store, SQLiteStore)
            yield memory.store

    async def session(
        self,
        memory: Memory,
        id: str,
        *,
        owner: str | None = None,
        lists: str = "`keepthread sessions`",
    ) -> Session:
        """Return a session, of an owner if one is given, or name the nearest ids."""
        try:
            return await memory.get_session(id, owner=owner)
        except SessionNotFound:
            begun = await memory.store.get_session(id)
            ids = [
                session.id
                async for session in every_session(memory.store)
                if session.ready and owner in (None, session.owner)
            ]
        if begun is not None and not begun.ready and not begun.forgotten:
            raise SessionNotFound(f"session {id!r} is still being filled, by an import or a fork")
        near = get_close_matches(id, ids[-_MOST_COMPARED:], cutoff=0.4)
        hint = f"there is {', '.join(near)}" if near else f"{lists} lists them"
        raise SessionNotFound(f"there is no session {id!r}; {hint}")

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

    def progress(self, label: str, unit: str) -> AbstractContextManager[Progress | None]:
        """Return a bar on the terminal, or nothing where nobody would see it."""
        if self.json or not sys.stderr.isatty():
            return nullcontext(None)
        return self.screen.progress(label, unit)
