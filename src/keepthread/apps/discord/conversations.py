"""Handle a message: store it once, answer it once, and forget all of it on request.

Nothing here depends on Discord's protocol; a message has a number, a place and an author.
"""

import asyncio
import logging
from typing import Final, NamedTuple, cast

from keepthread.apps.discord.people import People
from keepthread.apps.discord.types import AnswerFunction, DiscordQuestion, DiscordUser, Heard
from keepthread.errors import Conflict, KeepthreadError, ModelBusy, ModelError, SessionNotFound
from keepthread.memory.facts.facts import Facts
from keepthread.memory.memory import Memory
from keepthread.memory.session import Session
from keepthread.stores.kinds import FACT
from keepthread.types import Message, Scope, SessionKey

POSTED: Final = "discord-posted"
_NEWEST: Final = "newest"
_MOST: Final = 200
"""Answered messages that a session remembers; older ones are not delivered again."""

BUSY: Final = "I am getting too many questions right now; please ask me again in a minute."
NO_MODEL: Final = "I cannot answer right now. Your message is saved; please ask me again later."
NO_MEMORY: Final = "I cannot reach my memory right now; please ask me again later."
NO_ANSWER: Final = "I have no answer to that; please ask me in another way."
FAILED: Final = "Something went wrong and I cannot answer; please ask me again later."

_log: Final = logging.getLogger("keepthread.discord")


class Post(NamedTuple):
    """What to post; `failed` marks an apology instead of an answer."""

    text: str
    failed: bool = False


class Erased(NamedTuple):
    """How much of a person was forgotten."""

    messages: int
    facts: int


class Talks:
    """The conversations of a bot: a session for each channel, or for each person in it."""

    def __init__(
        self, memory: Memory, answer: AnswerFunction, *, system: str = "", by_person: bool = False
    ) -> None:
        """Initialize with the memory, the answer function and the system prompt of new sessions."""
        self._memory = memory
        self._answer = answer
        self._system = system
        self._by_person = by_person
        self._people = People(memory.store)
        self._forgetting = asyncio.Lock()

    async def keep(self, heard: Heard) -> None:
        """Store a message that is not addressed to the bot."""
        await self._stored(await self._session(heard), heard)

    async def ask(self, heard: Heard) -> Post | None:
        """Store a message and return what to post; None if that was posted, or is forgotten."""
        try:
            return await self._asked(heard)
        except Exception as error:  # noqa: BLE001 - a channel must not see details of any error
            _log.warning("message %d was not answered: %s", heard.id, type(error).__name__)
            _log.debug("that was", exc_info=error)
            return Post(_excuse(error), failed=True)

    async def _asked(self, heard: Heard) -> Post | None:
        session = await self._session(heard)
        if heard.id in await self._posted(session.key):
            return None
        stored = await self._stored(session, heard)
        if stored is None:
            return None
        own = self._memory.for_owner(heard.person.owner).join(session)
        asked = DiscordQuestion(own, stored.content, stored.author, stored.id, stored.attachments)
        text = await self._answer(asked)
        return Post(text) if text.strip() else Post(NO_ANSWER, failed=True)

    async def is_posted(self, heard: Heard) -> bool:
        """Return whether a reply to a message was posted already."""
        id = self._id(heard)
        try:
            session = await self._memory.for_owner(id).get_session(id)
        except SessionNotFound:
            return False
        return heard.id in await self._posted(session.key)

    async def posted(self, heard: Heard) -> None:
        """Record that the reply to a message was posted, so that it is not posted again."""
        session = await self._session(heard)
        numbers = [*await self._posted(session.key), heard.id][-_MOST:]
        await self._memory.store.put(
            Scope(session=session.key), POSTED, _NEWEST, [str(number) for number in numbers]
        )

    async def _posted(self, session: SessionKey) -> list[int]:
        record = await self._memory.store.get(Scope(session=session), POSTED, _NEWEST)
        return [int(number) for number in cast("list[str]", record.value)] if record else []

    async def clear(self, heard: Heard) -> bool:
        """Restart a conversation: messages stay stored but are no longer shown to the model.

        A conversation that several people share is cleared only for one who may manage messages
        there; return whether it was.
        """
        shared = heard.guild is not None and not self._by_person
        if shared and not heard.moderates:
            return False
        await (await self._session(heard)).clear()
        return True

    def facts(self, person: DiscordUser) -> Facts:
        """Return the facts about a person, which hold in every channel."""
        return self._memory.for_owner(person.owner).facts

    async def remember(self, heard: Heard, text: str) -> bool:
        """Store a user's fact about themselves; return False if they have been forgotten."""
        async with self._people.alone(heard.person.id):
            if heard.id <= (await self._people.known(heard.person.id)).forgotten:
                return False
            await self.facts(heard.person).remember(text)
        return True

    async def forget(self, person: DiscordUser, upto: int) -> Erased:
        """Erase what a person wrote, in every session, and all facts about them."""
        async with self._forgetting, self._people.alone(person.id):
            authors = (await self._people.known(person.id)).authors
            # Channels have owners of their own, so what a person wrote is theirs, not the person's.
            receipts = [await self._memory.admin.forget(author=author) for author in authors]
            if await self._memory.store.scan(Scope(owner=person.owner), without="blob_chunk"):
                own = self._memory.for_owner(person.owner)
                receipts.append(await own.forget(everything=True))
            await self._people.forget(person.id, upto)
        facts = sum(receipt.records.get(FACT, 0) for receipt in receipts)
        return Erased(sum(receipt.messages for receipt in receipts), facts)

    # --- inside ---

    def _id(self, heard: Heard) -> str:
        id = f"discord:{heard.channel}"
        return f"{id}:{heard.person.id}" if self._by_person else id

    async def _session(self, heard: Heard) -> Session:
        """Return a place's session. It has an owner of its own: nothing is recalled elsewhere."""
        id = self._id(heard)
        return await self._memory.for_owner(id).session(
            id, system_prompt=self._system or None, title=heard.title
        )

    async def _stored(self, session: Session, heard: Heard) -> Message | None:
        """Return a message as it was stored first; None if it is to be forgotten."""
        async with self._people.alone(heard.person.id):
            known = await self._people.meet(heard.person)
            if heard.id <= known.forgotten:
                return None
            message = Message(
                role="user",
                content=heard.text,
                author=heard.person.author,
                attachments=tuple(heard.attachments),
                id=str(heard.id),
                created_at=heard.at,
            )
            try:
                (stored,) = await session.append(message)
            except Conflict:  # it was edited since, or its author has another name now
                (stored,) = await self._memory.store.find(session.key, ids=[message.id])
        return stored if stored.state == "live" else None


def _excuse(error: Exception) -> str:
    """Return a sentence that says what to do, without details of the error."""
    kinds: tuple[tuple[type[Exception], str], ...] = (
        (ModelBusy, BUSY),
        (ModelError, NO_MODEL),
        (KeepthreadError, NO_MEMORY),
    )
    return next((text for kind, text in kinds if isinstance(error, kind)), FAILED)
