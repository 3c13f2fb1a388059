"""What a server like Discord's knows, and how it writes it: people, guilds, channels, messages."""

import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

EPOCH = 1_420_070_400_000
"""When Discord's numbers begin, in milliseconds since 1970."""
TEXT, DIRECT, THREAD = 0, 1, 11
DEFAULT, REPLY = 0, 19
EVERYTHING = str((1 << 50) - 1)


class Numbers:
    """Discord's ids: they grow with time, and no two are alike."""

    def __init__(self) -> None:
        self._last = 0

    def __call__(self, *, at: float | None = None) -> int:
        now = int((time.time() if at is None else at) * 1000) - EPOCH
        number = now << 22
        if at is None:
            number = self._last = max(number, self._last + 1)
        return number


@dataclass(frozen=True, kw_only=True)
class User:
    id: int
    name: str
    shown: str | None = None
    bot: bool = False

    @property
    def mention(self) -> str:
        return f"<@{self.id}>"

    def to_json(self) -> dict[str, Any]:
        return {
            "id": str(self.id),
            "username": self.name,
            "global_name": self.shown,
            "discriminator": "0",
            "avatar": None,
            "bot": self.bot,
        }


@dataclass(kw_only=True)
class Channel:
    id: int
    name: str
    guild: int | None = None
    parent: int | None = None
    """The channel that it is a thread of."""
    messages: list[dict[str, Any]] = field(default_factory=list)
    typed: int = 0
    """How often somebody was seen typing."""

    @property
    def kind(self) -> int:
        return DIRECT if self.guild is None else TEXT if self.parent is None else THREAD

    def to_json(self) -> dict[str, Any]:
        last = self.messages[-1]["id"] if self.messages else None
        own = {"id": str(self.id), "type": self.kind, "last_message_id": last}
        if self.kind == TEXT:
            return {**own, "name": self.name, "position": 0, "permission_overwrites": []}
        if self.kind == DIRECT:
            return {**own, "recipients": []}
        settings = {
            "archived": False,
            "auto_archive_duration": 60,
            "archive_timestamp": moment(),
            "locked": False,
        }
        return {
            **own,
            "name": self.name,
            "guild_id": str(self.guild),
            "parent_id": str(self.parent),
            "owner_id": "1",
            "message_count": len(self.messages),
            "member_count": 1,
            "rate_limit_per_user": 0,
            "thread_metadata": settings,
        }


class World:
    """Everything there is."""

    def __init__(self) -> None:
        self.number = Numbers()
        self.me = User(id=self.number(), name="keepthread", bot=True)
        self.guilds: dict[int, str] = {}
        self.permissions = EVERYTHING
        """What everyone may do in guilds."""
        self.channels: dict[int, Channel] = {}

    # --- making ---

    def user(self, name: str, shown: str | None = None, *, bot: bool = False) -> User:
        return User(id=self.number(), name=name, shown=shown, bot=bot)

    def guild(self, name: str) -> int:
        id = self.number()
        self.guilds[id] = name
        return id

    def channel(self, guild: int | None, name: str = "", *, parent: int | None = None) -> Channel:
        channel = Channel(id=self.number(), name=name, guild=guild, parent=parent)
        self.channels[channel.id] = channel
        return channel

    def message(
        self,
        channel: Channel,
        author: User,
        content: str,
        *,
        mentions: Iterable[User] = (),
        replies_to: dict[str, Any] | None = None,
        attachments: Iterable[dict[str, Any]] = (),
        **more: Any,
    ) -> dict[str, Any]:
        """Keep a message in a channel and return it as it is written."""
        message = {
            "id": str(self.number()),
            "type": REPLY if replies_to else DEFAULT,
            "channel_id": str(channel.id),
            "content": content,
            "author": author.to_json(),
            "timestamp": moment(),
            "edited_timestamp": None,
            "tts": False,
            "mention_everyone": False,
            "mentions": [user.to_json() for user in mentions],
            "mention_roles": [],
            "attachments": list(attachments),
            "embeds": [],
            "pinned": False,
            "flags": 0,
            "components": [],
            **more,
        }
        if replies_to:
            place = {"channel_id": str(channel.id), "message_id": replies_to["id"]}
            message |= {"message_reference": place, "referenced_message": replies_to}
        channel.messages.append(message)
        return message

    # --- writing ---

    def guild_json(self, id: int) -> dict[str, Any]:
        here = [channel for channel in self.channels.values() if channel.guild == id]
        everyone = {
            "id": str(id),
            "name": "@everyone",
            "permissions": self.permissions,
            "position": 0,
            "color": 0,
            "colors": {"primary_color": 0, "secondary_color": None, "tertiary_color": None},
            "hoist": False,
            "managed": False,
            "mentionable": False,
            "flags": 0,
        }
        own = {**everyone, "id": str(id + 1), "name": "keepthread", "managed": True}
        own["permissions"] = EVERYTHING
        own["tags"] = {"bot_id": str(self.me.id)}
        empty = ("emojis", "features", "voice_states", "presences", "stage_instances", "stickers")
        none = ("verification_level", "explicit_content_filter", "mfa_level", "nsfw_level")
        zero = ("default_message_notifications", "premium_tier", "system_channel_flags")
        return {
            "id": str(id),
            "name": self.guilds[id],
            "owner_id": "1",
            "roles": [everyone, own],
            "channels": [c.to_json() for c in here if c.kind == TEXT],
            "threads": [c.to_json() for c in here if c.kind == THREAD],
            "members": [self.member(self.me, roles=[str(id + 1)])],
            "member_count": 2,
            "large": False,
            "preferred_locale": "en-US",
            "afk_timeout": 0,
            "premium_progress_bar_enabled": False,
            "guild_scheduled_events": [],
            **{key: [] for key in empty},
            **dict.fromkeys((*none, *zero), 0),
        }

    def member(self, user: User, roles: Iterable[str] = ()) -> dict[str, Any]:
        return {"user": user.to_json(), **member_of(roles)}

    def event(self, message: dict[str, Any]) -> dict[str, Any]:
        """Return what the gateway adds to a message."""
        channel = self.channels[int(message["channel_id"])]
        if channel.guild is None:
            return message
        return {**message, "guild_id": str(channel.guild), "member": member_of()}


def member_of(roles: Iterable[str] = (), permissions: str = EVERYTHING) -> dict[str, Any]:
    told = {"joined_at": moment(), "deaf": False, "mute": False, "flags": 0}
    return {"roles": list(roles), **told, "permissions": permissions}


def moment() -> str:
    return datetime.now(UTC).isoformat()
