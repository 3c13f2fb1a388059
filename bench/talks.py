"""Conversations fixed by a seed: people, tools and answers, of so many tokens a turn."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from bench.corpus import words
from keepthread.types import Message, ToolCall

TURNS = 300
_ASKED, _FOUND, _ANSWERED = 1.0, 2.0, 2.0  # sizes against each other, before they vary
_SPREAD = 0.6  # of the logarithm of a size
_ROUNDS = (1, 1, 1, 2, 2, 3)  # of calls in a turn with tools, to choose from
_CALLS = (1, 1, 1, 1, 2)  # in a round, two of them at the same time
_FRAME = 6  # tokens of a message beside its words, about
_CALL = 46  # tokens of a call and its result beside the words of the result, about
_SYSTEM_WORDS = 145


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """What a conversation is like."""

    tokens: int
    """In a turn, on average."""
    tools: float
    """The share of turns with tools."""

    def __str__(self) -> str:
        return f"{self.tokens} tokens a turn"


KINDS = (Kind(tokens=150, tools=0.3), Kind(tokens=350, tools=0.5), Kind(tokens=800, tools=0.6))


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """A message that calls tools, and what they answer."""

    call: Message
    results: Sequence[Message]


@dataclass(frozen=True, slots=True, kw_only=True)
class Talked:
    """One turn: what was asked, the rounds of tools, what was answered."""

    asked: str
    rounds: Sequence[Round]
    answered: str


def system_prompt(seed: int) -> str:
    """Return a system prompt of about 150 tokens."""
    return words(random.Random(seed), _SYSTEM_WORDS)


def talk(kind: Kind, seed: int, turns: int = TURNS) -> Iterator[Talked]:
    """Yield the turns of a conversation, the same ones for a seed."""
    chance = random.Random(f"{kind} {seed}")
    plans = [_plan(chance, kind) for _ in range(turns)]
    calls = sum(len(sizes) for plan in plans for sizes in plan.found)
    wanted = kind.tokens * turns - 2 * _FRAME * turns - _CALL * calls
    scale = wanted / sum(plan.size for plan in plans)
    for number, plan in enumerate(plans):
        yield _written(chance, plan, scale, number)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan:
    """The sizes of a turn, relative to each other."""

    asked: float
    found: Sequence[Sequence[float]]
    answered: float

    @property
    def size(self) -> float:
        return self.asked + self.answered + sum(map(sum, self.found))


def _plan(chance: random.Random, kind: Kind) -> _Plan:
    rounds = chance.choice(_ROUNDS) if chance.random() < kind.tools else 0
    return _Plan(
        asked=_varied(chance, _ASKED),
        found=[
            [_varied(chance, _FOUND) for _ in range(chance.choice(_CALLS))] for _ in range(rounds)
        ],
        answered=_varied(chance, _ANSWERED),
    )


def _varied(chance: random.Random, size: float) -> float:
    return size * chance.lognormvariate(0, _SPREAD)


def _written(chance: random.Random, plan: _Plan, scale: float, number: int) -> Talked:
    def some(size: float) -> str:
        return words(chance, max(1, round(size * scale)))

    def called(nth: int, sizes: Sequence[float]) -> Round:
        ids = [f"call_{number}_{nth}_{place}" for place in range(len(sizes))]
        calls = [
            ToolCall(id=id, name="search", arguments=f'{{"query":"{words(chance, 6)}"}}')
            for id in ids
        ]
        results = [
            Message(role="tool", tool_call_id=id, name="search", content=some(size))
            for id, size in zip(ids, sizes, strict=True)
        ]
        return Round(call=Message(role="assistant", tool_calls=calls), results=results)

    return Talked(
        asked=some(plan.asked),
        rounds=[called(nth, sizes) for nth, sizes in enumerate(plan.found)],
        answered=some(plan.answered),
    )
