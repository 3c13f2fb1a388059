"""Convert Discord's messages to our own types."""

import re
from typing import Final

import discord

from keepthread.apps.discord.people import plain_name
from keepthread.apps.discord.types import DiscordUser, Heard
from keepthread.types import Attachment

_MENTION: Final = re.compile(r"<(@[!&]?|#)(\d+)>")
_EMOJI: Final = re.compile(r"<a?(:\w+:)\d+>")
_OF_PEOPLE: Final = (discord.MessageType.default, discord.MessageType.reply)


def is_of_person(message: discord.Message) -> bool:
    """Return whether a person wrote it, and not a bot, a webhook or Discord itself."""
    return message.type in _OF_PEOPLE and not message.author.bot and message.webhook_id is None


def heard_of(message: discord.Message, me: discord.ClientUser) -> Heard:
    """Return a message as it is understood."""
    thread = message.channel if isinstance(message.channel, discord.Thread) else None
    return Heard(
        id=message.id,
        channel=message.channel.id,
        person=person_of(message.author),
        text=_text(message, me),
        attachments=[_attachment(each) for each in message.attachments],
        called=_is_called(message, me),
        guild=message.guild.id if message.guild else None,
        parent=thread.parent_id if thread else None,
        title=_title(message),
        moderates=_moderates(message),
        private=message.guild is None,
        at=message.created_at.timestamp(),
    )


def person_of(user: discord.User | discord.Member) -> DiscordUser:
    """Return who somebody is."""
    return DiscordUser(user.id, plain_name(user.display_name, user.name))


def _is_called(message: discord.Message, me: discord.ClientUser) -> bool:
    replied = message.reference.resolved if message.reference else None
    to_us = isinstance(replied, discord.Message) and replied.author.id == me.id
    by_name = any(user.id == me.id for user in message.mentions)
    return to_us or by_name or _our_role(message) in message.role_mentions


def _our_role(message: discord.Message) -> discord.Role | None:
    """Return the role that Discord makes for a bot; people mention it and mean the bot."""
    return message.guild.self_role if message.guild else None


def _text(message: discord.Message, me: discord.ClientUser) -> str:
    """Return the text with mentions replaced by names, without the mention of the bot."""
    role = _our_role(message)
    ours = {f"<@{me.id}>", f"<@!{me.id}>", f"<@&{role.id}>" if role else ""}
    text = message.content.strip()
    while (found := _MENTION.match(text)) and found[0] in ours:
        text = text[found.end() :].lstrip()
    people = {user.id: person_of(user).author for user in message.mentions}

    def named(found: re.Match[str]) -> str:
        sign, id = found[1], int(found[2])
        if sign == "#":
            return f"#{_channel_name(message, id)}"
        if sign == "@&":
            role = message.guild.get_role(id) if message.guild else None
            return f"@{plain_name(role.name if role else None)}"
        return f"@{people.get(id, plain_name(None))}"

    return _EMOJI.sub(r"\1", _MENTION.sub(named, text))


def _moderates(message: discord.Message) -> bool:
    """Return whether the author may manage messages in the channel."""
    author, channel = message.author, message.channel
    if not isinstance(author, discord.Member) or not isinstance(
        channel, discord.abc.GuildChannel | discord.Thread
    ):
        return False
    try:
        return channel.permissions_for(author).manage_messages
    except discord.ClientException:  # a thread whose channel is not known
        return False


def _channel_name(message: discord.Message, id: int) -> str:
    channel = message.guild.get_channel_or_thread(id) if message.guild else None
    return channel.name if channel else "channel"


def _attachment(attachment: discord.Attachment) -> Attachment:
    # No address: Discord's end after a day, and would fail every later context.
    kind = (attachment.content_type or "application/octet-stream").partition(";")[0]
    return Attachment(media_type=kind, name=attachment.filename)


def _title(message: discord.Message) -> str:
    if message.guild is None:
        return "direct messages"
    name: str = getattr(message.channel, "name", "")
    return f"#{name} in {message.guild.name}"


def command_of(interaction: discord.Interaction[discord.Client], text: str) -> Heard:
    """Return a slash command as if it had been written."""
    channel = interaction.channel
    return Heard(
        id=interaction.id,
        channel=interaction.channel_id or 0,
        person=person_of(interaction.user),
        text=text,
        called=True,
        guild=interaction.guild_id,
        parent=channel.parent_id if isinstance(channel, discord.Thread) else None,
        moderates=interaction.permissions.manage_messages,
        private=True,
    )
