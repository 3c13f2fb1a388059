"""The conversations that the pictures in the docs show: a trip is planned, and much besides.

They stand in `story.txt`, session by session: id, title, owner, and how many days ago it was; then
questions, each behind a `>`, and their answers.
"""

from collections.abc import Iterator
from hashlib import sha256
from itertools import count
from pathlib import Path

from keepthread import Memory, Session
from keepthread.models.tokens import Estimator
from keepthread.testing import ManualClock

STORY = Path(__file__).with_name("story.txt")
DAY = 86_400.0
NOW = 1_794_650_400.0  # 2026-11-14 10:00 UTC
OWNER = "ana"
SYSTEM = "You plan trips with a family. Be brief, name prices in euros, and say what you assume."
FACTS = (
    "We are two adults and Mia, who is six.",
    "I cannot eat shellfish: I am allergic.",
    "I prefer trains to planes.",
)
PINNED = "The whole trip may cost 4,200 euros"


async def tell(address: str) -> None:
    """Put the conversations into a store, each at its time, and alike each time."""
    clock = ManualClock(NOW - 30 * DAY)
    numbers = count()

    def ids() -> str:
        return sha256(str(next(numbers)).encode()).hexdigest()[:32]

    async with Memory.open(address, clock=clock, ids=ids, counter=Estimator()) as memory:
        for fact in FACTS:
            await memory.for_owner(OWNER).facts.remember(fact)
        for part in STORY.read_text().removeprefix("# ").split("\n# "):
            head, *turns = part.strip().split("\n\n")
            id, title, owner, days = head.split(" | ")
            clock.now = NOW - float(days) * DAY
            system = SYSTEM if "Japan" in title else None
            session = await memory.session(id, owner=owner, title=title, system_prompt=system)
            for question, answer in _said(turns):
                await _turn(session, clock, question, answer)
            await memory.idle()


def _said(turns: list[str]) -> Iterator[tuple[str, str]]:
    for each in turns:
        lines = each.splitlines()
        asked = [line for line in lines if line.startswith("> ")]
        yield " ".join(line[2:] for line in asked), " ".join(lines[len(asked) :])


async def _turn(session: Session, clock: ManualClock, question: str, answer: str) -> None:
    clock.advance(120)
    async with session.turn(question) as turn:
        clock.advance(8)
        await turn.finish(answer)
    if question.startswith(PINNED):
        await session.pin(turn.user.id)
