"""Data types of tool servers: where one is, what of it is used, and its state."""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from keepthread.errors import InvalidInput
from keepthread.stores.validation import check_count, check_id

_SHORTEST_SECRET: Final = 8
"""Shorter values are not secrets, and appear in any text."""


class Rule(NamedTuple):
    """How the results of a tool are treated."""

    cache_turns: int = 0
    """Turns for which a result is cached; 0: none."""
    side_effects: bool | None = None
    """Whether it changes something. None: yes, unless it has `cache_turns`.

    The server's own hint about that is not believed. A tool without side effects is called once
    more if its server dies in the meantime.
    """


@dataclass(frozen=True)
class Server:
    """An MCP server: a program to start, or an address.

    >>> Server("weather", command="weather-mcp", allow=["forecast"])
    Server(name='weather')
    """

    name: str
    command: str | None = field(default=None, repr=False)
    args: Sequence[str] = field(default=(), repr=False)
    env: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    """Variables of the program's environment, in addition to PATH, HOME and the like."""
    cwd: str | None = field(default=None, repr=False)
    url: str | None = field(default=None, repr=False)
    headers: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    allow: Collection[str] | None = field(default=None, repr=False)
    """The tools that may be used, by the server's own names; None: all."""
    rules: Mapping[str, Rule] = field(default_factory=dict[str, Rule], repr=False)
    """Rules by the server's own names of tools."""
    timeout: float = field(default=60.0, repr=False)
    """Seconds after which a call fails."""

    def __post_init__(self) -> None:
        check_id(self.name, "a server's name")
        if (self.command is None) == (self.url is None):
            raise InvalidInput(f"the server {self.name} needs either a command or a url")
        if not all(re.fullmatch("[ -~]*", value) for value in self.headers.values()):
            raise InvalidInput(f"a header of the server {self.name} is more than a line of ASCII")
        if self.timeout <= 0:
            raise InvalidInput(f"the timeout of the server {self.name} must be above 0")
        for tool, rule in self.rules.items():
            check_count(rule.cache_turns, f"the cache_turns of {tool}")
            if rule.cache_turns and rule.side_effects:
                raise InvalidInput(
                    f"{tool} of {self.name} has side_effects, so its results are not cached; "
                    "set either side_effects or cache_turns"
                )

    def without_secrets(self, text: str) -> str:
        """Return a text without this server's secrets."""
        for secret in (*self.env.values(), *self.headers.values()):
            for part in (secret, *secret.split()):  # of "Bearer KEY" the key, too
                if len(part) >= _SHORTEST_SECRET:
                    text = text.replace(part, "…")
        return text


class State(NamedTuple):
    """The state of a server."""

    name: str
    tools: Sequence[str] = ()
    """Their names as models see them."""
    problem: str = ""
    """Why it was left out."""
    running: bool = True
    """False also for one that died, until a call restarts it."""
