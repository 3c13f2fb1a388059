"""Generated sequences of what people and programs do with facts, compared with the plain model.

Hypothesis invents them: facts written by hand or drawn from messages, several from one, in random
order, of the past, the present and the future; edits, confirmations, facts and messages that are
forgotten, rewinds, clears and forks. After each sequence the facts are asked for at many times. A
difference is reported with the shortest sequence that shows it.
"""

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from keepthread import Memory, Message, Session, ToolCall
from keepthread.models.tokens import Estimator
from keepthread.testing import ManualClock
from proofs import Progress
from proofs.fact_model import RANKS, Shelf, Statement

BATCH: Final = 100
"""Sequences over one memory."""
TICK: Final = 0.001
TIMES: Final = (-40, -7, 0, 7, 40)
SPEAKERS: Final = ("user", "user", "user", "assistant", "operator", "tool")


class Claim(NamedTuple):
    """One fact as somebody states it; times count from when it is said."""

    attribute: str
    value: str
    since: int | None
    until: int | None

    @property
    def text(self) -> str:
        return f"It is {self.value}"

    @property
    def many(self) -> bool:
        return self.attribute == "likes"


class Step(NamedTuple):
    """One thing that is done."""

    kind: str
    claims: Sequence[Claim] = ()
    speaker: str = "user"
    number: int = 0
    """Which fact, session or message is meant, of those there are."""
    time: int = 0
    """By how much the clock is moved first."""
    order: int = 0
    """The order in which the facts of one message are noted."""


ATTRIBUTES: Final = ("city", "car", "likes")
BOUNDS: Final = st.sampled_from((None, None, None, *TIMES))
CLAIMS: Final = st.builds(
    lambda attribute, value, since, until: Claim(attribute, value or attribute, since, until),
    st.sampled_from(ATTRIBUTES),
    st.sampled_from(("V1", "V2", "V3", "")),
    BOUNDS,
    BOUNDS,
)
KINDS: Final = (
    *("write", "write", "say", "say", "say", "say", "edit", "end", "begin", "confirm"),
    *("forget", "erase", "rewind", "clear", "fork"),
)
STEPS: Final = st.builds(
    Step,
    st.sampled_from(KINDS),
    st.lists(CLAIMS, min_size=1, max_size=3, unique_by=lambda claim: claim.value),
    st.sampled_from(SPEAKERS),
    st.integers(0, 7),
    st.sampled_from((1, 3, 30)),
    st.integers(0, 5),
)
SEQUENCES: Final = st.lists(STEPS, min_size=2, max_size=10)


class Player:
    """Acts out one sequence for an owner of its own, and in the model."""

    def __init__(self, memory: Memory, clock: ManualClock, owner: str) -> None:
        self.memory = memory
        self.clock = clock
        self.owner = owner
        self.facts = memory.for_owner(owner).facts
        self.shelf = Shelf()
        self.orders = 0
        self.sessions: list[Session] = []
        self.erased: set[str] = set()

    async def play(self, step: Step) -> None:
        self.clock.advance(step.time)
        self.orders += 1
        await getattr(self, f"_{step.kind}")(step)

    # --- saying ---

    async def _write(self, step: Step) -> None:
        claim = step.claims[0]
        since, until = self._times(claim)
        at = self._moment((claim.attribute, claim.value if claim.many else ""))
        slot = (claim.attribute, claim.value if claim.many else "")
        held = self.shelf.slot(slot).holder(self.shelf.present(slot, at))
        fact = await self.facts.remember(
            claim.text,
            attribute=claim.attribute,
            value=claim.value,
            many=claim.many,
            since=since,
            until=until,
        )
        same = held is not None and held.value == claim.value and held.rank >= RANKS["user"]
        if since is None and until is None and same:
            return  # it is what holds already
        self._state(fact.key, claim, "user", at, (at, self.orders, 0))

    async def _say(self, step: Step) -> None:
        session = await self._session(step.number)
        text = ". ".join(claim.text for claim in step.claims)
        messages = _messages(step.speaker, text)
        stored = (await session.append(*messages))[-1]
        await self._note(session, stored, step)

    async def _note(self, session: Session, stored: Message, step: Step) -> None:
        at = stored.created_at
        claims = list(enumerate(step.claims))
        for place, claim in claims[step.order % len(claims) :] + claims[: step.order % len(claims)]:
            since, until = self._times(claim)
            fact = await self.facts.remember(
                claim.text,
                attribute=claim.attribute,
                value=claim.value,
                many=claim.many,
                session=session.id,
                messages=[stored],
                since=since,
                until=until,
            )
            order = (at, self.orders, place)
            self._state(fact.key, claim, step.speaker, at, order, (session.id, stored.id))

    def _state(
        self,
        key: str,
        claim: Claim,
        trust: str,
        at: float,
        order: tuple[float, int, int],
        source: tuple[str, str] | None = None,
    ) -> None:
        since, until = self._times(claim)
        stated = Statement(key, claim.attribute, claim.value, trust, order, at, since, until)
        stated.many, stated.source = claim.many, source
        if stated.closing:  # of one message, what has ended comes first
            stated.order = (order[0], order[1], order[2] - 10)
        self.shelf.statements[key] = stated

    def _times(self, claim: Claim) -> tuple[float | None, float | None]:
        now = self.clock.now
        since = None if claim.since is None else now + claim.since
        return since, None if claim.until is None else now + claim.until

    def _moment(self, slot: tuple[str, str]) -> float:
        said = [s.at + TICK for s in self.shelf.statements.values() if s.slot == slot]
        return max([self.clock.now, *said])

    async def _session(self, number: int) -> Session:
        if number % 3 >= len(self.sessions):
            name = f"{self.owner}-{len(self.sessions)}"
            self.sessions.append(await self.memory.session(name, owner=self.owner))
        return self.sessions[number % 3 % len(self.sessions)]

    # --- correcting ---

    async def _chosen(self, number: int, *states: str) -> tuple[Statement, Any] | None:
        known = [fact for fact in await self.facts.list(all=True) if fact.state in states]
        if not known:
            return None
        fact = known[number % len(known)]
        return self.shelf.statements[fact.key], fact

    async def _edit(self, step: Step) -> None:
        """Say it in other words, of another value."""
        chosen = await self._chosen(step.number, "live", "future", "ended", "quarantined")
        if chosen is None:
            return
        stated, fact = chosen
        value = f"E{self.orders}"
        stated.value, stated.since = value, None
        await self.facts.edit(fact.key, text=f"{stated.attribute} {value}", value=value)
        self._edited(stated)

    async def _end(self, step: Step) -> None:
        chosen = await self._chosen(step.number, "live", "future", "quarantined")
        if chosen is None:
            return
        stated, fact = chosen
        until = self.clock.now + (step.claims[0].until or 0)
        await self.facts.edit(fact.key, until=until)
        stated.end_added = stated.end_added or stated.until is None
        stated.since, stated.until = fact.since, until
        self._edited(stated)

    async def _begin(self, step: Step) -> None:
        chosen = await self._chosen(step.number, "live", "future", "ended", "quarantined")
        if chosen is None:
            return
        stated, fact = chosen
        stated.since = self.clock.now + (step.claims[0].since or 0)
        await self.facts.edit(fact.key, since=stated.since)
        self._edited(stated)

    def _edited(self, stated: Statement) -> None:
        stated.confirmed = True
        stated.at = 0  # it moves by a tick only if another of its slot is as new
        stated.at = self._moment(stated.slot)
        stated.order = (stated.at, self.orders, 0)

    async def _confirm(self, step: Step) -> None:
        if chosen := await self._chosen(step.number, "quarantined"):
            await self.facts.confirm(chosen[1].key)
            chosen[0].confirmed = True

    async def _forget(self, step: Step) -> None:
        states = ("live", "future", "ended", "superseded", "quarantined")
        if chosen := await self._chosen(step.number, *states):
            stated, fact = chosen
            await self.facts.forget(fact.key)
            alike = (stated.slot, stated.value)
            self._drop(lambda s: (s.slot, s.value) == alike)

    async def _erase(self, step: Step) -> None:
        """Forget a message, and so what was drawn from it."""
        sources = sorted({s.source for s in self.shelf.statements.values() if s.source})
        if sources:
            session, id = sources[step.number % len(sources)]
            await self.memory.forget(session=session, owner=self.owner, message=id)
            self._drop(lambda s: s.source == (session, id))

    def _drop(self, gone: Any) -> None:
        left = {key: s for key, s in self.shelf.statements.items() if not gone(s)}
        self.shelf.statements = left

    # --- what changes no fact ---

    async def _rewind(self, step: Step) -> None:
        session = await self._session(step.number)
        await session.rewind(min(step.number, (await session.refresh()).messages))

    async def _clear(self, step: Step) -> None:
        await (await self._session(step.number)).clear()

    async def _fork(self, step: Step) -> None:
        session = await self._session(step.number)
        await session.fork(id=f"{self.owner}-fork{self.orders}")

    # --- asking ---

    async def differences(self, asked: Sequence[int]) -> list[str]:
        edges = {t for s in self.shelf.statements.values() for t in (s.begins[0], s.until) if t}
        now = self.clock.now
        found: list[str] = []
        for time in (None, *sorted(edges), *(now + each for each in asked)):
            known = {f.key: f.state for f in await self.facts.list(all=True, at=time)}
            wanted = self.shelf.states(now, time)
            if known != wanted:
                told = [(s, known.get(s.key)) for s in self.shelf.statements.values()]
                found.append(f"at {time}, now {now}: {told}, wanted {wanted}")
        return found


def _messages(speaker: str, text: str) -> list[Message]:
    """Return messages, the last of which states a text in somebody's name."""
    hello = Message(role="user", content="Hello?")
    if speaker == "user":
        return [Message(role="user", content=text)]
    if speaker == "operator":
        return [hello, Message(role="system", content=text)]
    if speaker == "assistant":
        return [hello, Message(role="assistant", content=text, meta={"lowest_origin": "user"})]
    call = Message(role="assistant", tool_calls=[ToolCall(id="1", name="look")])
    return [hello, call, Message(role="tool", tool_call_id="1", content=text)]


def compare(size: int, number: int, tally: Counter[str], progress: Progress) -> list[str]:
    """Try generated sequences; return how the facts differ from the model's."""
    broken: list[str] = []
    done = 0
    while done < size and not broken:
        count = min(BATCH, size - done)
        broken = _batch(count, number + done, tally)
        done += count
        progress(done, size)
    tally["sequences"] += done
    return broken


def _batch(count: int, number: int, tally: Counter[str]) -> list[str]:
    """Try some sequences over one memory."""
    clock = ManualClock()
    played = Counter[str]()
    with asyncio.Runner() as runner:
        memory = runner.run(_open(clock))

        async def one(steps: Sequence[Step], asked: Sequence[int]) -> None:
            played["owners"] += 1
            player = Player(memory, clock, f"owner{played['owners']}")
            for step in steps:
                await player.play(step)
            assert (await player.differences(asked)) == []
            tally["steps of sequences"] += len(steps)
            tally["times asked"] += len(asked) + 1

        @seed(number)
        @settings(
            max_examples=count,
            deadline=None,
            database=None,
            phases=[Phase.generate, Phase.shrink],
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
        )
        @given(SEQUENCES, st.lists(st.integers(-60, 60), max_size=4))
        def law(steps: Sequence[Step], asked: Sequence[int]) -> None:
            runner.run(one(steps, asked))

        try:
            law()
        except Exception as error:  # noqa: BLE001 - an error that is not ours is a difference too
            return ["\n".join((repr(error), *getattr(error, "__notes__", ())))]
        finally:
            runner.run(memory.close())
    return []


async def _open(clock: ManualClock) -> Memory:
    return await Memory.open("ram://", counter=Estimator(), clock=clock)
