"""Asking: a conversation in a memory, and how much of a question's evidence its contexts show."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import NamedTuple

from bench.counters import Counter
from bench.recall.corpora import Question, Talk
from keepthread import Context, Hybrid, Memory, Message, Recall, Session, View, Window
from keepthread.recall.chunks import pieces_of

WINDOW, HYBRID, RECALL = "sliding window", "hybrid", "recall"
BEST = 10
"""How many of the best are looked at for R@10."""
_LABEL = 3
"""Tokens around a piece: who says it, and the end of the line."""
_WIRE, _WIRE_MESSAGE = 3, 4
"""Tokens that OpenAI's chat completions add to a prompt, and to each message."""


class Asked(NamedTuple):
    """What contexts held of the evidence for one question, as shares by way and budget."""

    talk: Talk
    question: Question
    shares: Mapping[tuple[str, int], float]
    best: float
    """The share among the ten best messages."""


def views(budgets: Sequence[int]) -> dict[str, View]:
    """Return each strategy at each budget."""
    ways = {WINDOW: Window(step=0), HYBRID: Hybrid(), RECALL: Recall()}
    return {f"{way} {b}": View(b, strategy) for way, strategy in ways.items() for b in budgets}


class Room:
    """One conversation in a memory: a session for each segment, or all of it in one.

    Conversations with the same `owner` are searched together.
    """

    def __init__(self, memory: Memory, talk: Talk, counter: Counter, owner: str = "") -> None:
        self._memory = memory
        self._talk = talk
        self._owner = owner or talk.name
        self._counter = counter
        self._ids: dict[tuple[str, int], str] = {}
        self._costs = {m.id: self._pieces(m) for segment in talk.segments for m in segment}
        self._asking: dict[str, Session] = {}

    def _pieces(self, message: Message) -> list[int]:
        return [self._counter.measure(piece) + _LABEL for piece in pieces_of(message)]

    async def fill(self, ways: Sequence[str]) -> None:
        """Store it through the front door: for recall by segments, for other ways in one."""
        talk = self._talk
        if RECALL in ways:
            for number, segment in enumerate(talk.segments):
                await self._append(f"{talk.name}/{number}", self._owner, segment)
            self._asking[RECALL] = await self._append(f"{talk.name}/asking", self._owner, ())
        for way in (each for each in ways if each != RECALL):
            for segment in talk.segments:
                name = f"{talk.name}/{way}"
                self._asking[way] = await self._append(name, name, segment)
        for session in self._asking.values():
            await session.compact()  # in the background it would depend on the machine's speed
            await self._memory.index(owner=session.owner)

    async def _append(self, name: str, owner: str, messages: Sequence[Message]) -> Session:
        session = await self._memory.session(name, owner=owner)
        for message in await session.append(*messages) if messages else ():
            self._ids[name, message.seq] = message.id
        return session

    async def ask(self, question: Question, budgets: Sequence[int]) -> Asked:
        """Ask for a context in each way and of each budget, and look for the evidence in it."""
        shares: dict[tuple[str, int], float] = {}
        best = 0.0
        for way, session in self._asking.items():
            for budget in budgets:
                context = await session.context(f"{way} {budget}", query=question.text)
                assert self._cost(context) <= budget, (way, budget, question.text)
                shares[way, budget] = self._share(question, context, session.id)
            if way == RECALL:
                ten = set(islice(self._recalled(context), BEST))
                best = len(question.gold & ten) / len(question.gold)
        return Asked(self._talk, question, shares, best)

    def _cost(self, context: Context) -> int:
        """Return what OpenAI's chat completions would count."""
        messages = context.to_openai_chat()["messages"]
        measure = self._counter.measure
        return _WIRE + sum(_WIRE_MESSAGE + measure(message["content"]) for message in messages)

    def _share(self, question: Question, context: Context, asking: str) -> float:
        """Return how much of the evidence is there, each message by the share of its tokens."""
        window: set[str] = set()
        pieces: dict[str, list[int]] = defaultdict(list)
        for choice in context.why.shown:
            for seq in range(choice.first, choice.last + 1):
                id = self._ids.get((choice.session or asking, seq), "")
                if choice.session:
                    pieces[id].append(choice.tokens)
                else:
                    window.add(id)
        shares = [1.0 if id in window else self._part(id, pieces[id]) for id in question.gold]
        return sum(shares) / len(shares)

    def _part(self, id: str, shown: Sequence[int]) -> float:
        whole = self._costs[id]
        return 1.0 if len(shown) == len(whole) else min(1.0, sum(shown) / sum(whole))

    def _recalled(self, context: Context) -> Iterator[str]:
        """Yield the messages that were recalled, each once, the best first."""
        found: dict[str, None] = {}
        for choice in context.selection.choices:
            if choice.section and choice.session:
                place = choice.session, choice.first
                found[self._ids.get(place, f"elsewhere {place}")] = None
        yield from found
