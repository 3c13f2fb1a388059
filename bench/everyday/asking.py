"""Asking: the statements in an owner's conversations, and what a new conversation recalls."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from bench.everyday.halves import Idle, Part, Question
from keepthread import Choice, Context, Hybrid, Memory, Message, Session, View

_TOGETHER: Final = 6
"""Statements of one conversation."""
_ANSWERS: Final = ("Noted.", "Thanks for telling me!", "Good to know.", "Okay.")
_SEED: Final = 7
_START: Final = 1_700_000_000.0
_DAY: Final = 86_400.0


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
        self._sessions = 0

    async def fill(self, others: Sequence[Sequence[Message]]) -> None:
        """Store the statements, a few in a conversation, evenly spread among other ones."""
        chance = random.Random(_SEED)
        every = self._part.statements
        mine = [every[n : n + _TOGETHER] for n in range(0, len(every), _TOGETHER)]
        chance.shuffle(mine)
        for number, statements in enumerate(mine):
            for other in others[number :: len(mine)]:
                await self._append(other)
            said = [Message(role="user", content=each.text) for each in statements]
            answers = [Message(role="assistant", content=chance.choice(_ANSWERS)) for _ in said]
            pairs = [each for pair in zip(said, answers, strict=True) for each in pair]
            places = await self._append(pairs)
            for statement, place in zip(statements, places[::2], strict=True):
                self._places[statement.id] = place
        await self._memory.index(owner=self._part.language)

    async def _append(self, messages: Sequence[Message]) -> list[tuple[str, int]]:
        """Store a conversation a day after the one before; return where its messages are."""
        day = _START + self._sessions * _DAY
        session = await self.new_session()
        # Ids and times are the same in every run, and so is the order of equal matches.
        timed = [
            replace(message, id=f"{session.id}-{n}", created_at=day + n)
            for n, message in enumerate(messages)
        ]
        return [(session.id, message.seq) for message in await session.append(*timed)]

    async def new_session(self) -> Session:
        """Begin a conversation."""
        self._sessions += 1
        return await self._memory.session(f"{self._sessions:04}", owner=self._part.language)

    async def ask(
        self, session: Session, budgets: Sequence[int]
    ) -> tuple[list[Asked], list[Noise]]:
        """Ask everything in a new session; nothing is stored in it, so that it stays new."""
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
