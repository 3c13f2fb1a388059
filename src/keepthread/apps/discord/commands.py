"""The bot's commands: show, store, confirm and forget what it knows about a user.

A user is identified by the number from Discord's gateway, never by text.
"""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Final, TypeAlias

from keepthread.apps.discord.conversations import Talks
from keepthread.apps.discord.types import Heard, Rules
from keepthread.context.ranges import counted
from keepthread.errors import InvalidInput, Unsupported
from keepthread.memory.facts.types import Fact

FORGET: Final = "/forget me"
CLEAR: Final = "/clear"
REMEMBER: Final = "/remember"
FACTS: Final = "/facts"

MOST_FACTS: Final = 200
"""Maximum number of facts stored per user."""
MOST_TEXT: Final = 1000
_SHOWN_KEY: Final = 8
_SHORTEST_KEY: Final = 6
_NOT_HERE: Final = "I am not active here"

RunCommand: TypeAlias = Callable[[Heard], Awaitable[str]]


class BotCommands:
    """Parses a command in a text, and runs it."""

    def __init__(self, talks: Talks, rules: Rules) -> None:
        """Take the conversations, and where they are."""
        self._talks = talks
        self._rules = rules

    def find(self, text: str) -> RunCommand | None:
        """Return the command in a text; None if the text is for the model."""
        word, *rest = text.split(maxsplit=1)[:2] or [""]
        about = rest[0].strip() if rest else ""
        match word.casefold():
            case "/forget" if about.casefold() in ("", "me"):
                return self._forget
            case "/clear" if not about:
                return self._clear
            case "/remember":
                return lambda heard: self._remember(heard, about)
            case "/facts" if not about:
                return self._facts
            case "/facts" if (key := about.casefold().split())[0] == "confirm":
                return lambda heard: self._confirm(heard, "".join(key[1:]))
            case _:
                return None

    async def _forget(self, heard: Heard) -> str:
        """Erase a user's messages and the facts about them; works everywhere."""
        done = await self._talks.forget(heard.person, heard.id)
        erased = f"{counted(done.messages, 'message')} and {counted(done.facts, 'fact')}"
        return f"Done: erased {erased} of yours. Your new messages are stored again."

    async def _clear(self, heard: Heard) -> str:
        if not self._is_allowed(heard):
            return f"{_NOT_HERE}; there is nothing to clear."
        if not await self._talks.clear(heard):
            return "Only people who may manage messages here can clear this channel."
        return "Done: I start over here."

    async def _remember(self, heard: Heard, text: str) -> str:
        if not self._is_allowed(heard):
            return f"{_NOT_HERE}; nothing was stored."
        if not text:
            return f"Write {REMEMBER} and a fact about you, such as: {REMEMBER} I am vegetarian."
        facts = self._talks.facts(heard.person)
        try:
            if len(await facts.list()) >= MOST_FACTS:
                return f"I already know {MOST_FACTS} facts about you; {FORGET} erases them all."
            noted = await self._talks.remember(heard, text)
        except InvalidInput:
            return f"I cannot store that: a fact has at most {MOST_TEXT:,} characters."
        except Unsupported:
            return "I cannot store facts: my storage does not support them."
        if not noted:
            return "You asked me to forget you in the meantime; nothing was stored."
        return f"Stored. I use it in every channel, but only when you write; {FACTS} lists it."

    async def _facts(self, heard: Heard) -> str:
        if refusal := self._refusal(heard):
            return refusal
        found: Sequence[Fact] = ()
        with suppress(Unsupported):
            found = await self._talks.facts(heard.person).list()
        if not found:
            return f"I know nothing about you; {REMEMBER} stores a fact."
        lines = [_line(fact) for fact in found]
        return "\n".join(["I know about you:", "```", *lines, "```", f"{FORGET} erases it all."])

    async def _confirm(self, heard: Heard, key: str) -> str:
        if refusal := self._refusal(heard):
            return refusal
        facts = self._talks.facts(heard.person)
        waiting = [fact for fact in await facts.list() if fact.state == "quarantined"]
        meant = [f for f in waiting if len(key) >= _SHORTEST_KEY and f.key.endswith(key)]
        if len(meant) != 1:
            return f"No waiting fact has that key; {FACTS} lists them with their keys."
        await facts.confirm(meant[0].key)
        return "Confirmed: I use it from now on."

    def _refusal(self, heard: Heard) -> str:
        """Return why facts are not shown: here, or where others would see them."""
        if not self._is_allowed(heard):
            return f"{_NOT_HERE}."
        if not heard.private:
            return (
                f"Others would see it here: use {FACTS} as a slash command; only you see its reply."
            )
        return ""

    def _is_allowed(self, heard: Heard) -> bool:
        return self._rules.allow(heard.guild, heard.channel, heard.parent)


def _line(fact: Fact) -> str:
    """Return a fact in one line that no text in it can end or format."""
    text = f"{fact.subject}: {fact.text}" if fact.subject else fact.text
    text = f"{text} (agent {fact.agent})" if fact.agent else text
    text = " ".join(text.replace("`", "'").split())
    if fact.state != "quarantined":
        return f"- {text}"
    return f"- {text} (not used yet: {FACTS} confirm {fact.key[-_SHOWN_KEY:]})"
