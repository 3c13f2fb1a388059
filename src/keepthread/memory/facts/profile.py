"""The profile: the facts about an owner that are always shown, and those related to a question."""

import time
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from math import log1p, sqrt
from typing import Final

from keepthread.memory.facts.records import all_noted
from keepthread.memory.facts.resolution import resolve, said, slot_of
from keepthread.memory.facts.types import OWNER, Fact
from keepthread.protocols import KnownFact, Store
from keepthread.recall.query import query_of
from keepthread.recall.words import characters_of, words_of
from keepthread.stores.kinds import FACT
from keepthread.types import Record, Scope

MOST: Final = 12
"""Facts in a profile at most."""
MOST_CHARACTERS: Final = 1200
"""Characters of a profile at most."""
BEARING: Final = 8
"""Other facts related to a question, at most."""
_WEIGHED: Final = 1000
"""The newest facts that are scored for a question, which limits what a context costs."""
_BY_HAND: Final = 1.0
_DOUBTED: Final = -0.6
_REPEATED: Final = 0.2
_MOST_REPEATED: Final = 3


async def known(
    store: Store, owner: str, query: str, *, now: float | None = None
) -> list[KnownFact]:
    """Return the facts that a context may show: the profile, and those related to a question."""
    return known_of(await store.scan(Scope(owner=owner), FACT), query, now=now)


def known_of(
    records: Sequence[Record],
    query: str,
    *,
    now: float | None = None,
    agents: Collection[str] = ("",),
) -> list[KnownFact]:
    """Return the same from records that were read; quarantined facts are left out.

    `agents` are those whose own facts are included; the empty name means the owner's facts.
    """
    owner = records[0].scope.owner if records else ""
    noted = [fact for fact in all_noted(records) if fact.agent in agents]
    facts = resolve(noted, time.time() if now is None else now)
    live = [fact for fact in facts if fact.state == "live"]
    chosen = profile(live, facts)
    shown = {fact.key for fact, _ in chosen}
    rest = [fact for fact in live if fact.key not in shown]
    return [
        *(_known(f, owner, True, weight, _reason(f)) for f, weight in chosen),
        *(
            _known(f, owner, False, score, f"a fact: {shared} of the question's words")
            for f, score, shared in bearing(rest, query)[:BEARING]
        ),
    ]


def _known(fact: Fact, owner: str, always: bool, score: float, reason: str) -> KnownFact:
    messages = [(each.owner or owner, each.session, each.seq) for each in fact.messages]
    return KnownFact(fact.key, fact.text, always, score, reason, fact.trust, messages)


def profile(live: Sequence[Fact], facts: Sequence[Fact]) -> list[tuple[Fact, float]]:
    """Return the most important facts about the owner, with their weights, the heaviest first.

    An agent's own facts count whatever they are about. Facts that were written or confirmed by
    hand, said again, or are new, weigh more.
    """
    times = Counter((slot_of(f), said(f)) for f in facts if f.state != "quarantined")
    own = [fact for fact in live if fact.agent or not fact.subject]
    weighed: list[tuple[float, Fact]] = []
    for age, fact in enumerate(own, start=1):
        weight = age / len(own)
        weight += _BY_HAND if fact.by == OWNER or fact.confirmed else 0
        weight += _DOUBTED if fact.trust == "assistant" else 0
        again = times[slot_of(fact), said(fact)] - 1
        weighed.append((weight + _REPEATED * min(again, _MOST_REPEATED), fact))
    weighed.sort(key=lambda each: (-each[0], each[1].key))
    chosen: list[tuple[Fact, float]] = []
    room = MOST_CHARACTERS
    for weight, fact in weighed[:MOST]:
        if len(fact.text) <= room:
            room -= len(fact.text)
            chosen.append((fact, round(weight, 3)))
    return chosen


def bearing(facts: Sequence[Fact], query: str) -> list[tuple[Fact, float, int]]:
    """Return the facts that share words with a question, each with its score and how many."""
    asked = query_of(query)
    wanted = {form: word for word, forms in asked.forms.items() for form in forms}
    wanted |= {word: word for word in asked.words}
    if not wanted:
        return []
    newest = facts[-_WEIGHED:]
    texts = [f"{fact.subject} {fact.attribute} {fact.text}" for fact in newest]
    words = [set(words_of(text)) for text in texts]
    shared = [
        {wanted[word] for word in (*each, *characters_of(text)) if word in wanted}
        for each, text in zip(words, texts, strict=True)
    ]
    often = Counter(word for each in shared for word in each)
    worth = {word: log1p(len(newest) / times) for word, times in often.items()}
    found = [
        (fact, round(_weight(same, worth, asked.faint) / sqrt(len(each)), 3), len(same))
        for fact, each, same in zip(newest, words, shared, strict=True)
        if same
    ]
    return sorted(found, key=lambda each: (-each[1], each[0].key))


def _weight(words: Iterable[str], worth: Mapping[str, float], faint: Mapping[str, float]) -> float:
    return sum(faint.get(word, 1.0) * worth[word] for word in words)


def _reason(fact: Fact) -> str:
    if fact.by == OWNER and not fact.messages:
        return "the profile: written by its owner"
    return f"the profile: {'confirmed by its owner' if fact.confirmed else fact.trust}"
