"""A chat as its commands see it: the conversation, the settings, and the person."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from keepthread.apps.cli.chat.talk import Talk
from keepthread.apps.cli.invocation import Call
from keepthread.errors import InvalidInput, Unavailable
from keepthread.memory.session import Session
from keepthread.types import Message

if TYPE_CHECKING:
    from keepthread.apps.cli.chat.orchestrator import ChatOrchestrator
    from keepthread.apps.cli.chat.tools import ChatTools
    from keepthread.apps.cli.screen import Screen
    from keepthread.apps.cli.settings.load import Config


class Person(Protocol):
    """The person at the other end."""

    @property
    def screen(self) -> "Screen":
        """Return the screen that draws for them."""
        ...

    def say(self, text: str) -> None:
        """Show a text."""
        ...

    async def agrees(self, question: str) -> bool:
        """Ask before something that cannot be undone."""
        ...


@dataclass(slots=True, kw_only=True)
class Chat:
    """The chat that a command is given."""

    call: Call
    config: "Config"
    talk: Talk
    person: Person
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)
    over: bool = False
    """Whether it is to end."""
    ask_next: str = ""
    """A text to ask next, as if it were typed."""
    again: Message | None = None
    """A stored question that is to be asked again, next."""
    offer: str = ""
    """A text to put into the next prompt, for the person to change and send."""
    orchestrator: "ChatOrchestrator | None" = None
    """How requests are planned and carried out, if they are."""
    tools: "ChatTools | None" = None
    """The tools that the model is offered, if requests are not planned."""
    listed: Sequence[str] = ()
    """The sessions that were listed last, by which a number means one."""
    models: Sequence[str] = ()
    """The models that the service listed last."""
    waiting: list[str] = field(default_factory=list[str])
    """The keys of facts that wait to be confirmed, in the order of the numbers they were given."""

    def here(self) -> None:
        """Raise while the store is away: changes made then would not be delivered."""
        if self.talk.persistence.away:
            raise Unavailable(
                f"the memory is unavailable: {self.talk.persistence.away}; try again when it is "
                "back"
            )

    def at_home(self) -> None:
        """Raise unless the store itself can be used now."""
        self.here()
        if not self.config.settings.memory.enabled:
            raise InvalidInput(
                "memory is disabled: set memory.enabled to true and restart the chat"
            )

    async def session(self) -> Session:
        """Return the session, which must have begun."""
        found = await self.talk.known_session()
        if found is None:
            raise InvalidInput("this session has no messages yet: ask something first")
        return found
