"""P20: of all that was said, the newest truth is known, with its history and its messages.

Most of it are generated sequences in memory (`proofs.fact_sequences`), in which facts are compared
with a plain model (`proofs.fact_model`) at any asked time. One in three hundred is a scripted
conversation over a SQLite file, of one person in several sessions: statements, some of them in one
message, corrections, ends, contradictions by the assistant, tools, the web, imports, the operator
and other people, in an order in which nobody reads them. Each message carries a mark of its own; an
answer counts as the lowest of the marks that its context showed, and as a tool where nobody asked
for a context. A model that only reads sentences proposes facts in random order, and some that
nobody said. People write, confirm, edit and forget; messages are erased; the program starts anew.
The plain model is compared with the facts, their history and the context.
"""

import asyncio
import itertools
import json
import random
import re
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from keepthread import Memory, Message, Session, ToolCall
from keepthread.errors import KeepthreadError
from keepthread.memory.facts.extraction import Extraction
from keepthread.memory.facts.profile import MOST, known
from keepthread.memory.facts.types import Fact
from keepthread.models.tokens import Estimator
from keepthread.testing import ManualClock
from keepthread.types import Reply, Usage
from proofs import Outcome, Progress, Proof, fact_model, fact_sequences
from proofs.fact_model import RANKS, TAKEN

OWNER: Final = "ana"
ONE: Final = ("city", "job", "car")
EVENTS: Final = 40
SPEAKERS: Final = {
    "user": 12,
    "assistant": 4,
    "tool": 2,
    "web": 1,
    "other": 1,
    "import": 1,
    "operator": 1,
}
"""Who states something, and how often."""
WHO: Final = {
    "assistant": "Your",
    "tool": "The user's",
    "web": "The user's",
    "other": "Ana's",
    "operator": "The user's",
}
SEQUENCES: Final = 300
"""Generated sequences for each conversation."""
FIGURES: Final = (
    "sequences",
    "steps of sequences",
    "times asked",
    "conversations",
    "messages",
    "facts noted",
    "said by hand",
    "edited",
    "confirmed",
    "forgotten",
    "messages erased",
    "read late",
    "started anew",
    "profiles compared",
    "histories compared",
    "facts traced to messages",
    "answers written from a context",
    "of these, trusted",
)


# --- what is said, and a reader that takes it at its word ---

MESSAGE: Final = re.compile(r"\[message (\d+), .*\n((?:> .*\n)+)")
IS: Final = re.compile(r"\b(\w+) is (V\d+)")
LIKES: Final = re.compile(r"I like (V\d+)")
LIKED: Final = re.compile(r"I no longer like (V\d+)")
WAS: Final = re.compile(r"\b(\w+) is no longer (V\d+)")
MARK: Final = re.compile(r"\bm\d+\b")
NONE: Final = re.compile(r"I have no (\w+) any more")


@dataclass(frozen=True)
class Said:
    """One statement, as a sentence says it."""

    attribute: str
    value: str
    many: bool = False
    ended: bool = False
    since: float | None = None
    until: float | None = None
    """When it is true, if the owner says that by hand."""

    @property
    def slot(self) -> tuple[str, str]:
        return self.attribute, self.value if self.many else ""

    def sentence(self, who: str) -> str:
        if self.many:
            return f"I {'no longer ' if self.ended else ''}like {self.value}."
        if self.ended and self.value == self.attribute:
            return f"I have no {self.attribute} any more."
        if self.ended:
            return f"{who} {self.attribute} is no longer {self.value}."
        return f"{who} {self.attribute} is {self.value}."


def heard(text: str) -> list[Said]:
    """Return what a text states."""
    found = [Said(attribute, value) for attribute, value in IS.findall(text)]
    found += [Said("likes", value, many=True) for value in LIKES.findall(text)]
    found += [Said("likes", value, many=True, ended=True) for value in LIKED.findall(text)]
    found += [Said(attribute, value, ended=True) for attribute, value in WAS.findall(text)]
    return found + [Said(attribute, attribute, ended=True) for attribute in NONE.findall(text)]


class Reader:
    """A model that proposes what each message states, and now and then what none does."""

    name = "reader"

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng

    async def complete(self, messages: Sequence[Message], **_: Any) -> Reply:
        facts: list[Any] = []
        for number, body in MESSAGE.findall(messages[0].content + "\n"):
            who = OWNER if "Ana's" in body else "user"
            for said in heard(body):
                facts.append(proposal(int(number), said, who))
                if self.rng.random() < 0.1:
                    facts.append(facts[-1])
        lies = [proposal(0, Said("city", "V0")), proposal(99, Said("job", "V0")), "city is V0", {}]
        facts += [lie for lie in lies if self.rng.random() < 0.2]
        self.rng.shuffle(facts)
        return Reply(content=json.dumps({"facts": facts}), usage=Usage(input=1, output=1))

    stream: Any = None


def proposal(source: int, said: Said, who: str = "user") -> dict[str, Any]:
    return {
        "source": source,
        "subject": who,
        "attribute": said.attribute,
        "value": "none" if said.ended and said.value == said.attribute else said.value,
        "many": said.many,
        "ended": said.ended,
        "text": text_of(said),
    }


def text_of(said: Said) -> str:
    return f"{said.attribute}: {said.value}{', no longer' if said.ended else ''}"


# --- the truth, plainly ---


@dataclass
class Statement:
    """A statement that was made, by whom, and what became of it."""

    said: Said
    trust: str
    order: tuple[float, int, int]
    """What was said before has a lower one; of a message, what has ended comes before the rest."""
    at: float
    role: str = "user"
    mark: str = ""
    """The mark of the message that makes it."""
    source: tuple[str, int, str] | None = None
    read: bool = False
    gone: bool = False
    confirmed: bool = False
    earlier: list[str] = field(default_factory=list)

    @property
    def rank(self) -> int:
        return self.plain().rank

    def plain(self) -> fact_model.Statement:
        """Return it as the plain model knows it; an end counts from when it was said."""
        said = self.said
        return fact_model.Statement(
            key=str(self.order),
            attribute=said.attribute,
            value=said.value,
            trust=self.trust,
            order=self.order,
            at=self.at,
            since=said.since,
            until=self.at if said.ended else said.until,
            many=said.many,
            confirmed=self.confirmed,
        )


class Truth:
    """All that was stated, and what the plain model says of it."""

    def __init__(self, clock: ManualClock) -> None:
        self.statements: list[Statement] = []
        self.orders = itertools.count()
        self.clock = clock
        self.reached = 0.0

    def state(self, said: Sequence[Said], trust: str, **more: Any) -> None:
        """State something, all of it in one message."""
        number, at = next(self.orders), self.now()
        for place, each in enumerate(said):
            order = (number, int(not each.ended), place)
            self.statements.append(Statement(each, trust, order, at, **more))

    def now(self) -> float:
        """Return the time; a clock that goes back counts as standing still."""
        self.reached = max(self.reached, self.clock.now)
        return self.reached

    def noted(self) -> list[Statement]:
        """Return what was read and not forgotten, in the order in which it was said."""
        found = [s for s in self.statements if s.read and not s.gone]
        return sorted(found, key=lambda s: s.order)

    def holder(self, slot: tuple[str, str]) -> Statement | None:
        """Return what holds in a slot now."""
        held = self.plain().slot(slot).holder(self.now())
        return next((s for s in self.noted() if held and s.plain() == held), None)

    def states(self) -> dict[str, str]:
        """Return the states of what was noted, by the keys of the plain model."""
        return self.plain().states(self.now())

    def plain(self) -> fact_model.Shelf:
        shelf = fact_model.Shelf()
        shelf.statements = {plain.key: plain for plain in (s.plain() for s in self.noted())}
        return shelf

    def told(self, slot: tuple[str, str]) -> list[str]:
        """Return all values that a slot ever had, wordings before an edit as well."""
        mine = [s for s in self.noted() if s.said.slot == slot]
        return [value for s in mine for value in (*s.earlier, s.said.value)]


# --- one conversation ---


class Conversation:
    """One person's sessions, acted out and held against the truth."""

    def __init__(
        self,
        path: Path,
        rng: random.Random,
        tally: Counter[str],
        reader: type[Reader] = Reader,
    ) -> None:
        self.path = path
        self.reader: Any = reader(rng)
        self.rng = rng
        self.tally = tally
        self.broken: list[str] = []
        self.clock = ManualClock(1_700_000_000.0)
        self.truth = Truth(self.clock)
        self.numbers = itertools.count(10)
        self.wild = rng.random() < 0.25
        """Whether the clock goes back and forth; then one session's log alone tells the order."""
        self.marks: dict[str, str] = {}
        """The trust of each message, by its mark."""
        self.shown: dict[str, set[str]] = {}
        """The marks that the context of an answer showed, by the answer's mark."""
        self.names = ["s0"] if self.wild else [f"s{n}" for n in range(rng.randint(1, 4))]
        self.memory: Memory

    async def run(self) -> list[str]:
        actions, weights = zip(*self._actions(), strict=True)
        self.memory = await self._open()
        try:
            for _ in range(EVENTS):
                await self.rng.choices(actions, weights)[0]()
                if self.rng.random() < 0.15:
                    await self.compare()
            for name in self.rng.sample(self.names, len(self.names)):
                await self.read(name)
            await self.compare()
        except KeepthreadError as error:
            self.broken.append(repr(error))
        finally:
            await self.memory.close()
        return self.broken

    def _actions(self) -> list[tuple[Callable[[], Any], int]]:
        by_hand = [] if self.wild else [(self.write, 4), (self.edit, 3)]
        return [
            (self.talk, 24),
            (self.read_some, 6),
            (self.confirm, 3),
            (self.forget, 3),
            (self.erase, 3),
            (self.restart, 1),
            *by_hand,
        ]

    async def _open(self) -> Memory:
        # It is read when the script says so.
        extraction = Extraction(self.reader, turns=10_000)
        return await Memory.open(
            f"sqlite:///{self.path}",
            counter=Estimator(),
            clock=self.clock,
            durability="process",
            extraction=extraction,
        )

    async def restart(self) -> None:
        await self.memory.close()
        self.memory = await self._open()
        self.tally["started anew"] += 1

    # --- talking ---

    def _statement(self, *, plain: bool = False) -> Said:
        """Return something to state; the same values come again now and then."""
        again = self.rng.random() < 0.5
        value = f"V{self.rng.randint(1, 4) if again else next(self.numbers)}"
        ended = not plain and self.rng.random() < 0.25
        if not plain and self.rng.random() < 0.3:
            return Said("likes", value, many=True, ended=ended)
        attribute = self.rng.choice(ONE)
        everything = ended and self.rng.random() < 0.3
        return Said(attribute, attribute if everything else value, ended=ended)

    def _statements(self, kind: str) -> list[Said]:
        """Return what a message states: several things, if a person says them."""
        plain = kind not in ("user", "import")
        count = 1 if plain else self.rng.choice((1, 1, 2, 3))
        found = [self._statement(plain=plain) for _ in range(count)]
        return list({said.value: said for said in found}.values())

    async def talk(self) -> None:
        """Take a turn in which somebody states something, whoever it is."""
        kind = self.rng.choices(tuple(SPEAKERS), tuple(SPEAKERS.values()))[0]
        said = self._statements(kind)
        doubted = kind in ("tool", "web") or self.rng.random() < 0.1
        sentences = " ".join(each.sentence(WHO.get(kind, "My")) for each in said)
        texts = {kind: f"{sentences} {self._mark(kind)}"}
        user = Message(role="user", content=texts.get("user") or f"Hello? {self._mark('user')}")
        if kind == "other":
            user = replace(user, content=texts[kind], author="bob")
        if kind == "import":
            user = replace(user, content=texts[kind], origin="import")
        between: list[Message] = []
        if kind == "operator":
            between.append(Message(role="system", content=texts[kind]))
        if doubted:
            call, origin = ToolCall(id="1", name="look"), "web" if kind == "web" else "tool"
            text = texts.get(kind) if kind in ("tool", "web") else None
            text = text or f"Nothing. {self._mark('tool')}"
            between.append(Message(role="assistant", tool_calls=[call]))
            between.append(Message(role="tool", tool_call_id="1", content=text, origin=origin))
        self.clock.advance(self.rng.uniform(-300 if self.wild else 1, 300))
        name = self.rng.choice(self.names)
        session = await self.memory.session(name, owner=OWNER)
        answer = texts.get("assistant") or f"I see. {self._mark('assistant')}"
        stored = await self._say(session, user, between, answer)
        (source,) = (m for m in stored if m.content == texts[kind])
        mark = MARK.findall(source.content)[0]
        self.tally["messages"] += len(stored)
        place = (name, source.seq, source.id)
        self.truth.state(said, self.marks[mark], role=source.role, mark=mark, source=place)

    def _mark(self, kind: str) -> str:
        mark = f"m{len(self.marks)}"
        self.marks[mark] = "assistant" if kind == "other" else kind
        return mark

    async def _say(
        self, session: Session, user: Message, between: Sequence[Message], answer: str
    ) -> list[Message]:
        """Store a turn, and learn how far its answer can be trusted; return its messages."""
        mark = MARK.findall(answer)[0]
        if user.origin is not None or self.rng.random() < 0.2:
            self.marks[mark] = "tool"
            said = Message(role="assistant", content=answer)
            return await session.append(user, *between, said)
        async with session.turn(user.content, author=user.author) as turn:
            stored = [turn.user, *(await turn.append(*between) if between else [])]
            if self.rng.random() < 0.9:
                shown = MARK.findall((await turn.context(budget=6000)).text)
                trusts = [self.marks[each] for each in shown]
                if any(m.tool_calls for m in await session.messages()):
                    trusts.append("tool")  # a call has no mark, and nobody knows what it is from
                self.marks[mark] = min([*trusts, "assistant"], key=lambda each: RANKS[each])
                self.shown[mark] = set(shown)
                self.tally["answers written from a context"] += 1
                self.tally["of these, trusted"] += self.marks[mark] == "assistant"
            else:
                self.marks[mark] = "tool"
            stored.append(await turn.finish(answer))
        return stored

    # --- reading: late, and in any order ---

    async def read_some(self) -> None:
        await self.read(self.rng.choice(self.names))

    async def read(self, name: str) -> None:
        if await self.memory.store.get_session(name, OWNER) is None:
            return
        noted = self.truth.noted()
        known = {(s.said.slot, s.said.value) for s in noted if s.rank >= TAKEN}
        newest = max((s.order for s in noted), default=(0.0, 0, 0))
        for each in self.truth.statements:
            if each.source and each.source[0] == name and not (each.read or each.gone):
                each.read = True
                each.gone = each.role == "assistant" and (each.said.slot, each.said.value) in known
                self.tally["read late"] += each.order < newest
        self.tally["facts noted"] += await self.memory.for_owner(OWNER).facts.extract(name)

    # --- people and their facts ---

    async def write(self) -> None:
        """Let the owner write a fact, at times one of the past or of the future."""
        said = self._statement(plain=True)
        self.clock.advance(1)
        if self.rng.random() < 0.3:
            bounds = [self.clock.now + self.rng.uniform(-2000, 2000) for _ in range(2)]
            since, until = (time if self.rng.random() < 0.6 else None for time in sorted(bounds))
            said = replace(said, since=since, until=until)
        await self.memory.for_owner(OWNER).facts.remember(
            text_of(said),
            attribute=said.attribute,
            value=said.value,
            since=said.since,
            until=said.until,
        )
        held = self.truth.holder(said.slot)
        timed = said.since is not None or said.until is not None
        known = held is not None and held.said.value == said.value and held.rank >= RANKS["user"]
        if timed or not known:
            self.truth.state([said], "user", read=True)
        self.tally["said by hand"] += 1

    async def edit(self) -> None:
        if (chosen := await self._choose("live")) is None:
            return
        statement, fact = chosen
        if statement.said.many:
            return
        self.clock.advance(1)
        new = replace(statement.said, value=f"V{next(self.numbers)}", since=None)
        await self.memory.for_owner(OWNER).facts.edit(fact.key, text=text_of(new), value=new.value)
        statement.earlier.append(statement.said.value)
        statement.said, statement.confirmed = new, True
        statement.order = (next(self.truth.orders), 1, 0)
        statement.at = self.truth.now()
        self.tally["edited"] += 1

    async def confirm(self) -> None:
        if chosen := await self._choose("quarantined"):
            await self.memory.for_owner(OWNER).facts.confirm(chosen[1].key)
            chosen[0].confirmed = True
            self.tally["confirmed"] += 1

    async def forget(self) -> None:
        """Forget a fact, wherever it was said."""
        states = ("live", "superseded", "quarantined", "ended")
        if chosen := await self._choose(self.rng.choice(states)):
            said = chosen[0].said
            await self.memory.for_owner(OWNER).facts.forget(chosen[1].key)
            for each in self.truth.noted():
                if (each.said.slot, each.said.value) == (said.slot, said.value):
                    each.gone = True
            self.tally["forgotten"] += 1

    async def erase(self) -> None:
        """Forget a message, read or not, and so what was made of it."""
        left = [s for s in self.truth.statements if s.source and not s.gone]
        if left:
            statement = self.rng.choice(left)
            assert statement.source
            name, _, id = statement.source
            await self.memory.forget(session=name, owner=OWNER, message=id)
            for each in self.truth.statements:
                each.gone = each.gone or each.source == statement.source
            for each in self.truth.noted():  # what an answer was written from takes its fact along
                each.gone = statement.mark in self.shown.get(each.mark, ())
            self.tally["messages erased"] += 1

    async def _choose(self, state: str) -> tuple[Statement, Fact] | None:
        """Return a statement of that state, and its fact; of by-hand ones values may be many."""
        facts: dict[tuple[object, str, str], Fact] = {
            (tuple(fact.messages[0]), fact.attribute, fact.value): fact
            for fact in await self.memory.for_owner(OWNER).facts.list(all=True)
            if fact.messages
        }
        states = self.truth.states()
        found = [
            (s, facts[place])
            for s in self.truth.noted()
            if states[s.plain().key] == state
            and (place := (s.source, s.said.attribute, s.said.value)) in facts
        ]
        return self.rng.choice(found) if found else None

    # --- held against the truth ---

    async def compare(self) -> None:
        facts = self.memory.for_owner(OWNER).facts
        found = await facts.list(all=True)
        told = Counter((f.attribute, f.value, f.state) for f in found)
        states = self.truth.states()
        wanted = Counter(
            (s.said.attribute, s.said.value, states[s.plain().key]) for s in self.truth.noted()
        )
        if told != wanted:
            self.broken.append(f"facts too many {told - wanted}, lacking {wanted - told}")
        for fact in found:
            await self._compare_history(fact)
            await self._trace(fact)
        await self._compare_profile(found)

    async def _compare_history(self, fact: Fact) -> None:
        history = await self.memory.for_owner(OWNER).facts.history(fact.key)
        values = [each.value for each in history]
        slot = (fact.attribute, fact.value if fact.many else "")
        if values != self.truth.told(slot):
            self.broken.append(f"the history of {slot} is {values}, not {self.truth.told(slot)}")
        keys = {each.key for each in history}
        if fact.state == "superseded" and fact.replaced_by not in keys:
            self.broken.append(f"{fact.text} does not say what replaced it")
        self.tally["histories compared"] += 1

    async def _trace(self, fact: Fact) -> None:
        """Look for the message that states a fact."""
        by_hand = [s for s in self.truth.noted() if s.source is None]
        if not fact.messages:
            if all(s.said.value != fact.value for s in by_hand):
                self.broken.append(f"{fact.text} names no message")
            return
        for source in fact.messages:
            session = await self.memory.get_session(source.session, owner=OWNER)
            (message,) = await self.memory.store.find(session.key, ids=[source.id])
            history = await self.memory.for_owner(OWNER).facts.history(fact.key)
            values = {each.value for each in history if each.key == fact.key}
            stated = {said.value for said in heard(message.content)}
            if (message.state, message.seq) != ("live", source.seq) or not values & stated:
                self.broken.append(f"{fact.text} names {source}, which does not say so")
        self.tally["facts traced to messages"] += 1

    async def _compare_profile(self, found: Sequence[Fact]) -> None:
        """Hold the profile, and what a context shows of it, against what is true."""
        live = {f.text for f in found if f.state == "live"}
        held = [self.truth.holder(s.said.slot) for s in self.truth.noted()]
        true = {text_of(s.said) for s in held if s}
        known_now = await known(self.memory.store, OWNER, "", now=self.clock.now)
        profile = {each.text for each in known_now if each.always}
        if live != true or not profile <= true or (len(true) <= MOST and profile != true):
            self.broken.append(f"the profile has {profile}; true is {true}")
        look = await self.memory.session("look", owner=OWNER)
        await look.append(Message(role="user", content="Hello?"))
        text = (await look.context(budget=4000)).text
        shown = set(re.findall(r"> (\w+: V\d+.*)", text))
        if shown != profile:
            self.broken.append(f"the context shows {shown}, the profile has {profile}")
        self.tally["profiles compared"] += 1


# --- all of them ---


async def converse(count: int, seed: int, tally: Counter[str]) -> list[str]:
    """Act out conversations, and return how they differ from the model."""
    broken: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(count):
            rng = random.Random(f"{seed} {number}")
            conversation = Conversation(Path(folder) / f"{number}.db", rng, tally)
            found = await conversation.run()
            broken += [f"conversation {number}: {what}" for what in found[:3]]
            tally["conversations"] += 1
    return broken


def run(size: int, seed: int, progress: Progress) -> Outcome:
    tally = Counter[str](dict.fromkeys(FIGURES, 0))
    broken = asyncio.run(converse(max(4, size // SEQUENCES), seed, tally))
    broken += fact_sequences.compare(size, seed, tally, progress)
    return Outcome(figures=dict(tally), broken=tuple(broken))


PROOF: Final = Proof(
    name="P20",
    promise="of all that was said the newest truth is known, with its history and its messages",
    unit="sequences",
    small=75,
    closing=20_000,
    long=600_000,
    run=run,
)
