"""The commands that people give to a bot: what it knows of them, and what it forgets.

Who somebody is follows from the number that Discord's gateway gives, never from a text.
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
"""Facts that are kept of one person."""
MOST_TEXT: Final = 1000
_SHOWN_KEY: Final = 8
_SHORTEST_KEY: Final = 6
_NOT_HERE: Final = "I do not talk here"

RunCommand: TypeAlias = Callable[[Heard], Awaitable[str]]


class BotCommands:
    """Finds a command in a text, and carries it out."""

    def __init__(self, talks: Talks, rules: Rules) -> None:
        """Take the conversations, and where they are."""
        self._talks = talks
        self._rules = rules

    def find(self, text: str) -> RunCommand | None:
        """Return what a text asks for; None if it is said to the model."""
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
        """Erase what a person wrote and what is known of them; this works in every place."""
        done = await self._talks.forget(heard.person, heard.id)
        erased = f"{counted(done.messages, 'message')} and {counted(done.facts, 'fact')}"
        return f"Done: {erased} of yours erased. New messages of yours are kept again."

    async def _clear(self, heard: Heard) -> str:
        if not self._is_allowed(heard):
            return f"{_NOT_HERE}; there is nothing to clear."
        if not await self._talks.clear(heard):
            return "Only people who may manage messages here can clear this channel."
        return "Done: I start over here."

    async def _remember(self, heard: Heard, text: str) -> str:
        if not self._is_allowed(heard):
            return f"{_NOT_HERE}; nothing was noted."
        if not text:
            return f"Write {REMEMBER} and a fact about you, such as: {REMEMBER} I am vegetarian."
        facts = self._talks.facts(heard.person)
        try:
            if len(await facts.list()) >= MOST_FACTS:
                return f"I know {MOST_FACTS} facts about you already; {FORGET} erases them all."
            noted = await self._talks.remember(heard, text)
        except InvalidInput:
            return f"I cannot note that: a fact has up to {MOST_TEXT:,} characters."
        except Unsupported:
            return "I cannot note facts: the store that I use keeps none."
        if not noted:
            return "I was asked to forget you since; nothing was noted."
        return f"Noted. I use it in every channel, and only when you write; {FACTS} lists it."

    async def _facts(self, heard: Heard) -> str:
        if refusal := self._refusal(heard):
            return refusal
        found: Sequence[Fact] = ()
        with suppress(Unsupported):
            found = await self._talks.facts(heard.person).list()
        if not found:
            return f"I know nothing about you; {REMEMBER} notes a fact."
        lines = [_line(fact) for fact in found]
        return "\n".join(["I know about you:", "```", *lines, "```", f"{FORGET} erases it all."])

    async def _confirm(self, heard: Heard, key: str) -> str:
        if refusal := self._refusal(heard):
            return refusal
        facts = self._talks.facts(heard.person)
        waiting = [fact for fact in await facts.list() if fact.state == "quarantined"]
        meant = [f for f in waiting if len(key) >= _SHORTEST_KEY and f.key.endswith(key)]
        if len(meant) != 1:
            return f"No fact of yours waits under that key; {FACTS} lists them with their keys."
        await facts.confirm(meant[0].key)
        return "Confirmed: I use it from now on."

    def _refusal(self, heard: Heard) -> str:
        """Return why facts are not shown: here, or where others would see them."""
        if not self._is_allowed(heard):
            return f"{_NOT_HERE}."
        if not heard.private:
            return f"Others would see it here: give {FACTS} as a slash command, which only you see."
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
