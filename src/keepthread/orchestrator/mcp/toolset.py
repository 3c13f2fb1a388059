"""Several servers as one set of tools."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Collection, Sequence
from types import TracebackType
from typing import Final, Self

from keepthread.errors import InvalidInput, ToolError, ToolUnavailable
from keepthread.memory.delegation import DELEGATE
from keepthread.memory.facts.provenance import REMEMBER, SEARCH
from keepthread.orchestrator.mcp.listing import Offer, named, offers
from keepthread.orchestrator.mcp.results import reason, text_of
from keepthread.orchestrator.mcp.sdk import load
from keepthread.orchestrator.mcp.server import RestartingServer
from keepthread.orchestrator.mcp.types import Server, State
from keepthread.orchestrator.types import Runnable, noop
from keepthread.types import JSON

OURS: Final = (DELEGATE, REMEMBER, SEARCH)
"""Names of our own tools, which no server may use."""


class Servers:
    """MCP servers, started concurrently, and their tools.

    >>> async with Servers([Server("weather", command="weather-mcp")]) as servers:
    ...     await orchestrate(request, session, servers.tools, models)
    """

    def __init__(
        self,
        servers: Sequence[Server],
        *,
        on_event: Callable[[str], object] = noop,
        start_seconds: float = 30.0,
        taken: Collection[str] = OURS,
    ) -> None:
        """Take the servers; none is started yet. `on_event` gets what is left out, and why."""
        if len({server.name for server in servers}) < len(servers):
            raise InvalidInput("two servers have the same name")
        self._links = [RestartingServer(server, start_seconds=start_seconds) for server in servers]
        self._on_event = on_event
        self._taken = taken
        self._offers: dict[str, list[Offer]] = {}
        self._problems: dict[str, str] = {}
        self._names: dict[str, list[str]] = {}
        self.tools: list[Runnable] = []
        """The tools of all servers; a call that fails raises `ToolError`."""
        self.sources: dict[str, tuple[str, str]] = {}
        """For each of them, by its name: its server, and the server's own name for it."""

    @property
    def states(self) -> list[State]:
        """Return the state of each server, in the order given."""
        return [
            State(name, self._names.get(name, ()), self._problems.get(name, ""), link.running)
            for name, link in ((link.server.name, link) for link in self._links)
        ]

    async def __aenter__(self) -> Self:
        if not self._links:
            return self
        await asyncio.to_thread(load)
        try:
            async with asyncio.TaskGroup() as starting:
                for link in self._links:
                    starting.create_task(self._start(link))
        except BaseException:
            await self.close()
            raise
        self._name()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """End all of them; calls in progress fail."""
        await asyncio.gather(*(link.close() for link in self._links))

    # --- inside ---

    async def _start(self, link: RestartingServer) -> None:
        """Start a server; one that cannot start is reported and left out."""
        name = link.server.name
        try:
            life = await link.start()
        except ToolUnavailable as error:
            self._problems[name] = str(error)
            self._on_event(str(error))
            return
        self._offers[name], notes = offers(link.server, life.tools, life.wrong)
        for note in notes:
            self._on_event(f"{name}: {note}")

    def _name(self) -> None:
        links = {link.server.name: link for link in self._links}
        found = {name: self._offers.get(name, []) for name in links}
        own = {name: [each.tool.name for each in offered] for name, offered in found.items()}
        for (server, offered), names in zip(found.items(), named(own, self._taken), strict=True):
            for offer, name in zip(offered, names, strict=True):
                tool = offer.tool._replace(name=name)
                run = _running(links[server], offer)
                self.sources[name] = (server, offer.tool.name)
                self.tools.append(Runnable(tool, run, offer.cache_turns, offer.side_effects))
            self._names[server] = names


def _running(link: RestartingServer, offer: Offer) -> Callable[..., Awaitable[JSON]]:
    """Return the function that runs a tool; its arguments may have any names."""

    async def run(**arguments: JSON) -> JSON:
        _check(arguments)
        result = await link.call(offer.tool.name, arguments, side_effects=offer.side_effects)
        text = text_of(result)
        if result.is_error:
            raise ToolError(link.server.without_secrets(reason(text)))
        return text

    return run


def _check(arguments: dict[str, JSON]) -> None:
    """Refuse arguments that cannot be sent: a model may have written a lone surrogate."""
    try:
        json.dumps(arguments, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise ToolError("the arguments contain half a character; write them again") from None
