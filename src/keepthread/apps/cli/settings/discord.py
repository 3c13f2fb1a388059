"""The settings of `keepthread discord`."""

from dataclasses import dataclass

from keepthread.apps.cli.settings.fields import (
    NOT_NEGATIVE,
    NUMBERS,
    TOOLS,
    TRUTH,
    VARIABLE,
    WEB,
    choice,
    optional,
    setting,
)


@dataclass(frozen=True, kw_only=True)
class DiscordSettings:
    """Where a bot on Discord answers, and to what."""

    token_env: str | None = setting(
        None,
        optional(VARIABLE),
        "The environment variable that holds the bot's token; the token itself is never in a file.",
        project=False,
        stands_for="`DISCORD_TOKEN`",
    )
    guilds: str | int | None = setting(
        None,
        optional(NUMBERS),
        "The guilds in which the bot answers, by their ids; elsewhere it is silent.",
        project=False,
    )
    channels: str | int | None = setting(
        None,
        optional(NUMBERS),
        "The channels of these guilds in which it answers, by id; includes their threads.",
        project=False,
        stands_for="all that it can see",
    )
    reply: str = setting(
        "mention",
        choice("mention", "always"),
        "Which messages it answers in guilds: mentions of it and replies to it, or all.",
    )
    direct: bool = setting(
        False,
        TRUTH,
        "Whether it answers direct messages: anyone who shares a guild with it can send them.",
        project=False,
    )
    listen: bool = setting(
        False,
        TRUTH,
        "Whether it also stores what people say to each other in these channels.",
        project=False,
    )
    session: str = setting(
        "channel",
        choice("channel", "channel_and_user"),
        "Whether a channel is one conversation, or one for each person in it.",
        project=False,  # a cloned repository must not join what people said apart
    )
    catch_up: float = setting(
        300.0,
        NOT_NEGATIVE,
        "How many seconds back it looks for missed messages after a pause.",
    )
    allowed_tools: str | None = setting(
        None,
        optional(TOOLS),
        "Tools with side effects that anyone who can write to the bot can trigger.",
        project=False,
    )
    base_url: str | None = setting(
        None,
        optional(WEB),
        "The base URL of a Discord-compatible API, including the version.",
        project=False,
        stands_for="Discord's own",
    )

    @property
    def token_variable(self) -> str:
        """Return the name of the variable that holds the token."""
        return self.token_env or "DISCORD_TOKEN"
