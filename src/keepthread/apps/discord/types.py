"""People, messages and rules of a channel: who wrote what, and when it is answered."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Literal, NamedTuple, TypeAlias

from keepthread.memory.session import Session
from keepthread.types import Attachment


class DiscordUser(NamedTuple):
    """A user: a permanent number, and a name that may change."""

    id: int
    name: str

    @property
    def author(self) -> str:
        """Return the stored author; it differs for two people with the same name."""
        return f"{self.name} ({self.id})"

    @property
    def owner(self) -> str:
        """Return the owner of the facts about this person, in whatever channel they write."""
        return f"discord:user:{self.id}"


class Heard(NamedTuple):
    """A message of a person, as it arrived."""

    id: int
    """Ids increase over time."""
    channel: int
    person: DiscordUser
    text: str
    attachments: Sequence[Attachment] = ()
    called: bool = False
    """Whether it mentions us, or replies to us."""
    guild: int | None = None
    """None in direct messages."""
    parent: int | None = None
    """The channel that a thread is in."""
    title: str = ""
    """The place's name, for people."""
    moderates: bool = False
    """Whether the person may manage messages in this place."""
    private: bool = False
    """Whether only the person sees the reply: in direct messages, and to slash commands."""
    at: float = 0.0
    """When it was written, in seconds since 1970."""


class DiscordQuestion(NamedTuple):
    """A message to answer; it is stored already, under this id."""

    session: Session
    """The channel's conversation; its contexts show the facts about who wrote the message."""
    text: str
    author: str | None
    id: str
    attachments: Sequence[Attachment] = ()


AnswerFunction: TypeAlias = Callable[[DiscordQuestion], Awaitable[str]]
"""Answers within a turn of that id, so that what was answered before is found again."""


Reply: TypeAlias = Literal["mention", "always"]
Verdict: TypeAlias = Literal["answer", "keep"]


class Rules(NamedTuple):
    """Where to answer, and what."""

    guilds: frozenset[int] = frozenset()
    """The allowed guilds; messages in others are ignored."""
    channels: frozenset[int] = frozenset()
    """The channels of these guilds that are allowed, their threads with them; none: all."""
    reply: Reply = "mention"
    """In guilds: answer mentions and replies only, or every message."""
    direct: bool = False
    """Whether direct messages are answered."""
    listen: bool = False
    """Whether messages to others in allowed channels are stored for later contexts."""

    def allow(self, guild: int | None, channel: int, parent: int | None = None) -> bool:
        """Return whether anything may be posted in a place."""
        if guild is None:
            return self.direct
        named = not self.channels or channel in self.channels or parent in self.channels
        return guild in self.guilds and named

    def verdict(self, heard: Heard) -> Verdict | None:
        """Return what to do with a message of a person."""
        if not self.allow(heard.guild, heard.channel, heard.parent):
            return None
        if not heard.text and not heard.attachments and not heard.called:
            return None  # a sticker, a poll, or a text that we may not read
        if heard.guild is None or heard.called or self.reply == "always":
            return "answer"
        return "keep" if self.listen else None
