"""P20: of all that was said, the newest truth is known, with its history and its messages.

Scripted conversations over a SQLite file, each of one person in several sessions: statements,
corrections, contradictions by the assistant, tools, imports, the operator and other people, in an
order in which nobody reads them. A model that only reads sentences proposes facts, and some that
nobody said. People confirm, edit and forget; messages are erased; the program starts anew. A plain
model of the truth, lists and a maximum, is held against the facts, their history and the context.
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

from keepthread import Memory, Message, ToolCall
from keepthread.errors import KeepthreadError
from keepthread.facts.extracting import Extraction
from keepthread.facts.nouns import Fact
from keepthread.facts.profile import MOST, known
from keepthread.testing.clock import ManualClock
from keepthread.tokens import Estimator
from keepthread.types import Reply, Usage
from proofs import Outcome, Progress, Proof

OWNER: Final = "ana"
ONE: Final = ("city", "job", "car")
EVENTS: Final = 40
SPEAKERS: Final = {"user": 12, "assistant": 3, "tool": 3, "other": 1, "import": 1, "operator": 1}
"""Who states something, and how often."""
WHO: Final = {"assistant": "Your", "tool": "The user's", "other": "Ana's", "operator": "The user's"}
RANKS: Final = {"operator": 5, "user": 4, "assistant": 3, "tool": 2, "import": 1, "web": 0}
TAKEN: Final = 3
"""The rank below which a word is quarantined."""
FIGURES: Final = (
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
)


# --- what is said, and a reader that takes it at its word ---

MESSAGE: Final = re.compile(r"\[message (\d+), .*\n((?:> .*\n)+)")
IS: Final = re.compile(r"\b(\w+) is (V\d+)")
LIKES: Final = re.compile(r"I like (V\d+)")
LIKED: Final = re.compile(r"I no longer like (V\d+)")
NONE: Final = re.compile(r"I have no (\w+) any more")


@dataclass(frozen=True)
class Said:
    """One statement, as a sentence says it."""

    attribute: str
    value: str
    many: bool = False
    ended: bool = False

    @property
    def slot(self) -> tuple[str, str]:
        return self.attribute, self.value if self.many else ""

    def sentence(self, who: str) -> str:
        if self.many:
            return f"I {'no longer ' if self.ended else ''}like {self.value}."
        if self.ended:
            return f"I have no {self.attribute} any more."
        return f"{who} {self.attribute} is {self.value}."


def heard(text: str) -> list[Said]:
    """Return what a text states."""
    found = [Said(attribute, value) for attribute, value in IS.findall(text)]
    found += [Said("likes", value, many=True) for value in LIKES.findall(text)]
    found += [Said("likes", value, many=True, ended=True) for value in LIKED.findall(text)]
    return found + [Said(attribute, "none", ended=True) for attribute in NONE.findall(text)]


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
        return Reply(content=json.dumps({"facts": facts}), usage=Usage(input=1, output=1))

    stream: Any = None


def proposal(source: int, said: Said, who: str = "user") -> dict[str, Any]:
    return {
        "source": source,
        "subject": who,
        "attribute": said.attribute,
        "value": said.value,
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
    order: int
    """What was said before has a lower number."""
    role: str = "user"
    source: tuple[str, int, str] | None = None
    read: bool = False
    gone: bool = False
    confirmed: bool = False
    earlier: list[str] = field(default_factory=list)

    @property
    def rank(self) -> int:
        return max(RANKS[self.trust], RANKS["user"] if self.confirmed else 0)


class Truth:
    """All that was stated, by lists and a maximum alone."""

    def __init__(self) -> None:
        self.statements: list[Statement] = []
        self.orders = itertools.count()

    def state(self, said: Said, trust: str, **more: Any) -> Statement:
        statement = Statement(said, trust, next(self.orders), **more)
        self.statements.append(statement)
        return statement

    def noted(self) -> list[Statement]:
        """Return what was read and not forgotten, in the order in which it was said."""
        found = [s for s in self.statements if s.read and not s.gone]
        return sorted(found, key=lambda s: s.order)

    def holder(self, slot: tuple[str, str]) -> Statement | None:
        """Return who holds a slot: of the most trusted that are taken, the last."""
        taken = [s for s in self.noted() if s.said.slot == slot and s.rank >= TAKEN]
        most = max((s.rank for s in taken), default=0)
        return [s for s in taken if s.rank == most][-1] if taken else None

    def state_of(self, statement: Statement) -> str:
        if statement.rank < TAKEN:
            return "quarantined"
        if self.holder(statement.said.slot) is not statement:
            return "superseded"
        return "ended" if statement.said.ended else "live"

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
        self.truth = Truth()
        self.broken: list[str] = []
        self.clock = ManualClock(1_700_000_000.0)
        self.numbers = itertools.count(10)
        self.wild = rng.random() < 0.25
        """Whether the clock goes back and forth; then one session's log alone tells the order."""
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
        extraction = Extraction(self.reader, exchanges=10_000)
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
        ended = not plain and not self.wild and self.rng.random() < 0.15
        if not plain and self.rng.random() < 0.3:
            return Said("likes", value, many=True, ended=ended)
        return Said(self.rng.choice(ONE), "none" if ended else value, ended=ended)

    async def talk(self) -> None:
        """Take an exchange in which somebody states something, whoever it is."""
        kind = self.rng.choices(tuple(SPEAKERS), tuple(SPEAKERS.values()))[0]
        said = self._statement(plain=kind not in ("user", "import"))
        doubted = kind == "tool" or self.rng.random() < 0.2
        texts = {kind: said.sentence(WHO.get(kind, "My"))}
        user = Message(role="user", content=texts.get("user", "How are you?"))
        if kind == "other":
            user = replace(user, content=texts[kind], author="bob")
        if kind == "import":
            user = replace(user, content=texts[kind], origin="import")
        messages = [user]
        if kind == "operator":
            messages.append(Message(role="system", content=texts[kind]))
        if doubted:
            call = ToolCall(id="1", name="look")
            text = texts.get("tool", "Nothing.")
            messages.append(Message(role="assistant", tool_calls=[call]))
            messages.append(Message(role="tool", tool_call_id="1", content=text))
        messages.append(Message(role="assistant", content=texts.get("assistant", "I see.")))
        self.clock.advance(self.rng.uniform(-300 if self.wild else 1, 300))
        name = self.rng.choice(self.names)
        session = await self.memory.session(name, owner=OWNER)
        stored = await session.append(*messages)
        (source,) = (m for m in stored if m.content == texts[kind])
        trust = "assistant" if kind == "other" else kind
        if kind == "assistant" and (doubted or user.origin == "import"):
            trust = "tool"
        self.tally["messages"] += len(stored)
        place = (name, source.seq, source.id)
        self.truth.state(said, trust, role=source.role, source=place)

    # --- reading: late, and in any order ---

    async def read_some(self) -> None:
        await self.read(self.rng.choice(self.names))

    async def read(self, name: str) -> None:
        if await self.memory.store.get_session(name) is None:
            return
        noted = self.truth.noted()
        known = {(s.said.slot, s.said.value) for s in noted if s.rank >= TAKEN}
        newest = max((s.order for s in noted), default=-1)
        for each in self.truth.statements:
            if each.source and each.source[0] == name and not (each.read or each.gone):
                each.read = True
                each.gone = each.role == "assistant" and (each.said.slot, each.said.value) in known
                self.tally["read late"] += each.order < newest
        self.tally["facts noted"] += await self.memory.facts(OWNER).extract(name)

    # --- people and their facts ---

    async def write(self) -> None:
        """Let the owner write a fact."""
        said = self._statement(plain=True)
        self.clock.advance(1)
        await self.memory.facts(OWNER).remember(
            text_of(said), attribute=said.attribute, value=said.value
        )
        held = self.truth.holder(said.slot)
        if held is None or held.said != said or held.rank < RANKS["user"]:
            self.truth.state(said, "user", read=True)
        self.tally["said by hand"] += 1

    async def edit(self) -> None:
        if (chosen := await self._choose("live")) is None:
            return
        statement, fact = chosen
        if statement.said.many:
            return
        self.clock.advance(1)
        new = replace(statement.said, value=f"V{next(self.numbers)}")
        await self.memory.facts(OWNER).edit(fact.key, text=text_of(new), value=new.value)
        statement.earlier.append(statement.said.value)
        statement.said, statement.confirmed = new, True
        statement.order = next(self.truth.orders)
        self.tally["edited"] += 1

    async def confirm(self) -> None:
        if chosen := await self._choose("quarantined"):
            await self.memory.facts(OWNER).confirm(chosen[1].key)
            chosen[0].confirmed = True
            self.tally["confirmed"] += 1

    async def forget(self) -> None:
        """Forget a fact, wherever it was said."""
        states = ("live", "superseded", "quarantined", "ended")
        if chosen := await self._choose(self.rng.choice(states)):
            said = chosen[0].said
            await self.memory.facts(OWNER).forget(chosen[1].key)
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
            await self.memory.forget(session=name, message=id)
            statement.gone = True
            self.tally["messages erased"] += 1

    async def _choose(self, state: str) -> tuple[Statement, Fact] | None:
        """Return a statement of that state, and its fact; of by-hand ones values may be many."""
        facts = {
            (tuple(fact.messages[0]), fact.value): fact
            for fact in await self.memory.facts(OWNER).list(all=True)
            if fact.messages
        }
        found = [
            (s, facts[s.source, s.said.value])
            for s in self.truth.noted()
            if s.source and self.truth.state_of(s) == state and (s.source, s.said.value) in facts
        ]
        return self.rng.choice(found) if found else None

    # --- held against the truth ---

    async def compare(self) -> None:
        facts = self.memory.facts(OWNER)
        found = await facts.list(all=True)
        told = Counter((f.attribute, f.value, f.state) for f in found)
        wanted = Counter(
            (s.said.attribute, s.said.value, self.truth.state_of(s)) for s in self.truth.noted()
        )
        if told != wanted:
            self.broken.append(f"facts too many {told - wanted}, lacking {wanted - told}")
        for fact in found:
            await self._compare_history(fact)
            await self._trace(fact)
        await self._compare_profile(found)

    async def _compare_history(self, fact: Fact) -> None:
        history = await self.memory.facts(OWNER).history(fact.key)
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
            history = await self.memory.facts(OWNER).history(fact.key)
            values = {each.value for each in history if each.key == fact.key}
            stated = {said.value for said in heard(message.content)}
            if (message.state, message.seq) != ("live", source.seq) or not values & stated:
                self.broken.append(f"{fact.text} names {source}, which does not say so")
        self.tally["facts traced to messages"] += 1

    async def _compare_profile(self, found: Sequence[Fact]) -> None:
        """Hold the profile, and what a context shows of it, against what is true."""
        live = {f.text for f in found if f.state == "live"}
        held = [self.truth.holder(s.said.slot) for s in self.truth.noted()]
        true = {text_of(s.said) for s in held if s and not s.said.ended}
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


async def _run(size: int, seed: int, progress: Progress) -> Outcome:
    tally = Counter[str](dict.fromkeys(FIGURES, 0))
    broken: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(size):
            rng = random.Random(f"{seed} {number}")
            conversation = Conversation(Path(folder) / f"{number}.db", rng, tally)
            found = await conversation.run()
            broken += [f"conversation {number}: {what}" for what in found[:3]]
            tally["conversations"] += 1
            progress(number + 1, size)
    return Outcome(figures=dict(tally), broken=tuple(broken))


def run(size: int, seed: int, progress: Progress) -> Outcome:
    return asyncio.run(_run(size, seed, progress))


PROOF: Final = Proof(
    name="P20",
    promise="of all that was said the newest truth is known, with its history and its messages",
    unit="conversations",
    small=6,
    closing=60,
    long=2_000,
    run=run,
)
