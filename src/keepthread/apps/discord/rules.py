"""When a message is answered, kept or passed over; nothing but rules."""

from typing import Literal, NamedTuple, TypeAlias

from keepthread.apps.discord.types import Heard

Reply: TypeAlias = Literal["mention", "always"]
Verdict: TypeAlias = Literal["answer", "keep"]


class Rules(NamedTuple):
    """Where to answer, and what."""

    guilds: frozenset[int] = frozenset()
    """The guilds that are allowed; no other is answered."""
    channels: frozenset[int] = frozenset()
    """The channels of these guilds that are allowed, their threads with them; none: all."""
    reply: Reply = "mention"
    """In guilds: to what mentions us or replies to us, or to everything."""
    direct: bool = True
    """Whether direct messages are answered."""
    listen: bool = False
    """Whether what is said to others in allowed channels is kept, so that it is known later."""

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
