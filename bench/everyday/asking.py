"""Asking: the statements in an owner's conversations, and what a new conversation recalls."""

import random
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from bench.everyday.halves import Idle, Part, Question
from keepthread import Choice, Context, Hybrid, Memory, Message, Session, View
from keepthread.stores.codec import new_id

_TOGETHER: Final = 6
"""Statements of one conversation."""
_ANSWERS: Final = ("Noted.", "Thanks for telling me!", "Good to know.", "Okay.")
_SEED: Final = 7


class Asked(NamedTuple):
    """A question, and whether the context of each budget has its answer."""

    question: Question
    found: Mapping[int, bool]


class Noise(NamedTuple):
    """A message that needs no memory, and the tokens that are recalled all the same."""

    message: Idle
    tokens: int


def views(budgets: Sequence[int]) -> dict[str, View]:
    """Return a view for each budget."""
    return {str(budget): View(budget, Hybrid()) for budget in budgets}


class Owner:
    """An owner who has said everything in a part of the data."""

    def __init__(self, memory: Memory, part: Part) -> None:
        self._memory = memory
        self._part = part
        self._places: dict[str, tuple[str, int]] = {}
        """The session and position of each statement."""

    async def fill(self, others: Sequence[Sequence[Message]]) -> None:
        """Store the statements, a few in a conversation, evenly spread among other ones."""
        chance = random.Random(_SEED)
        said = self._part.statements
        mine = [said[n : n + _TOGETHER] for n in range(0, len(said), _TOGETHER)]
        chance.shuffle(mine)
        for number, statements in enumerate(mine):
            for other in others[number :: len(mine)]:
                await (await self._new_session()).append(*other)
            session = await self._new_session()
            for statement in statements:
                message, _ = await session.append(
                    Message(role="user", content=statement.text),
                    Message(role="assistant", content=chance.choice(_ANSWERS)),
                )
                self._places[statement.id] = session.id, message.seq
        await self._memory.index(owner=self._part.language)

    async def _new_session(self) -> Session:
        return await self._memory.session(new_id(), owner=self._part.language)

    async def ask(self, budgets: Sequence[int]) -> tuple[list[Asked], list[Noise]]:
        """Ask everything, each time as the first message of a conversation."""
        session = await self._new_session()  # nothing is stored in it: it stays new
        asked: list[Asked] = []
        for question in self._part.questions:
            places = {self._places[answer] for answer in question.answers}
            found: dict[int, bool] = {}
            for budget in budgets:
                context = await session.context(str(budget), query=question.text)
                found[budget] = any(
                    (choice.session, seq) in places
                    for choice in _recalled(context)
                    for seq in range(choice.first, choice.last + 1)
                )
            asked.append(Asked(question, found))
        noise: list[Noise] = []
        for message in self._part.idle:
            context = await session.context(str(max(budgets)), query=message.text)
            noise.append(Noise(message, sum(choice.tokens for choice in _recalled(context))))
        return asked, noise


def _recalled(context: Context) -> list[Choice]:
    """Return what is shown of other sessions."""
    return [choice for choice in context.why.shown if choice.session]
