"""P21: kill -9 chats at any moment; what was said to a model is in its session, once.

The chats are the real command with a real store, half of them in a terminal and half in pipes; the
model is a scripted server. A message counts once the server has received it. After each kill the
store is opened: every message that counts is there once, an answer is the beginning of what the
model said to that question, and the file is sound. Each next chat goes on with `-c`.
"""

import asyncio
import random
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Final, Literal, TypeAlias

from keepthread import Memory, Message
from keepthread.errors import KeepthreadError
from keepthread.memory.memory import Opening
from keepthread.testing.server import Gate, Received, Say, ScriptedServer
from proofs import Outcome, Progress, Proof
from proofs.chatters import PATIENCE, InPipes, InTerminal, environment

KILLS_PER_HOME: Final = 10
SESSION: Final = "killed"
MOST_ASKED: Final = 3
HELD_AFTER: Final = 10

Aim: TypeAlias = Literal["starting", "asked", "answering", "keeping"]
AIMS: Final[tuple[Aim, ...]] = ("starting", "asked", "answering", "keeping")
LATER: Final[dict[Aim, float]] = {"asked": 0.02, "answering": 0.02, "keeping": 0.2}
"""At most so many seconds lie between the moment that can be seen and the kill."""


def answer_to(question: str) -> str:
    """Return what the model says to a question."""
    return f"To {question!r} I say: " + "more and more and more of it, " * 8


@dataclass(slots=True)
class Tally:
    """What was seen so far."""

    kills: int = 0
    start: float = 1.0
    """Seconds from the start of a program to its first question, as seen last."""
    terminals: int = 0
    aims: Counter[Aim] = field(default_factory=Counter)
    uncalled: int = 0
    counted: int = 0
    answers: int = 0
    lost: int = 0
    twice: int = 0
    broken: list[str] = field(default_factory=list)


class Home:
    """One store over several kills, and the model that all its chats ask."""

    def __init__(self, folder: Path, tally: Tally, rng: random.Random) -> None:
        self._folder = folder
        self._tally = tally
        self._rng = rng
        self._store = folder / "data" / "keepthread" / "memory.db"
        self._gate, self._held = Gate(), ""
        self._asked = 0
        self.server = ScriptedServer(otherwise=self._answer)

    def _answer(self, asked: Received) -> Say:
        hold = self._gate if asked.text == self._held else None
        return Say(answer_to(asked.text), hold=hold, hold_after=HELD_AFTER)

    def memory(self) -> Opening:
        """Open the store."""
        return Memory.open(f"sqlite:///{self._store}", durability="process")

    async def begin(self) -> None:
        """Make the session that every chat goes on with."""
        self._store.parent.mkdir(parents=True)
        async with self.memory() as memory:
            await memory.session(SESSION)

    # --- killing ---

    def kill_one(self, aim: Aim, *, in_terminal: bool) -> None:
        """Start a chat, wait for the moment, and kill it."""
        before, began = len(self.server.requests), time.monotonic()
        questions = self._questions(self._rng.randint(1, MOST_ASKED) if in_terminal else 1)
        self._gate, self._held = Gate(), questions[-1] if aim == "answering" else ""
        env = environment(self._folder, self.server.openai)
        victim = (
            InTerminal(self._folder, env, questions)
            if in_terminal
            else InPipes(self._folder, env, questions[0])
        )
        seen = self._moment(aim, before + len(questions))
        if aim != "starting":
            self._tally.start = (time.monotonic() - began) / len(questions)
        # What starts is killed before its question arrives, or shortly after that.
        time.sleep(self._rng.uniform(0, LATER.get(aim, 1.5 * self._tally.start)))
        words = victim.kill()
        if words or not seen:
            self._broken(f"{aim}, {'ended' if seen else 'never came'}: {words}")
        self._tally.kills += 1
        self._tally.terminals += in_terminal
        self._tally.aims[aim] += 1
        self._tally.uncalled += len(self.server.requests) == before

    def _questions(self, count: int) -> list[str]:
        self._asked += count
        numbers = range(self._asked - count, self._asked)
        return [f"Question {n} of {self._rng.getrandbits(32):x}?" for n in numbers]

    def _moment(self, aim: Aim, requests: int) -> bool:
        """Wait for the moment aimed at; tell whether it came."""
        if aim == "answering":
            return self._gate.reached.wait(PATIENCE)
        if aim != "starting":
            try:
                self.server.wait_for(requests, PATIENCE)
            except TimeoutError:
                return False
        return True

    def go_on(self) -> None:
        """Let one chat come to its end."""
        (question,) = self._questions(1)
        env = environment(self._folder, self.server.openai)
        if wrong := InPipes(self._folder, env, question).end():
            self._broken(f"the next chat failed: {wrong}")
        elif self.server.requests[-1].text != question:
            self._broken("the next chat asked nothing")

    # --- checking ---

    async def check(self) -> None:
        """Open the store, and hold it against what the model was asked."""
        try:
            async with self.memory() as memory:
                sessions = [session.id for session in await memory.list_sessions()]
                if sessions != [SESSION]:
                    self._broken(f"a chat did not go on: {sessions}")
                session = await memory.get_session(SESSION)
                self._compare(await session.messages(limit=1_000_000))
                found = await memory.admin.verify()
        except KeepthreadError as error:
            self._broken(repr(error))
        else:
            if not found.sound:
                self._broken(f"not sound: {found.damages[:3]}")

    def _compare(self, found: Sequence[Message]) -> None:
        asked = [request.text for request in self.server.requests]
        times = Counter(m.content for m in found if m.role == "user")
        for question in asked:
            if not times[question]:
                self._tally.lost += 1
                self._broken(f"lost: {question}")
        for question in [question for question, count in times.items() if count > 1]:
            self._tally.twice += 1
            self._broken(f"there twice: {question}")
        if [m.content for m in found if m.role == "user" and m.content in asked] != asked:
            self._broken("the questions are not in the order in which they were asked")
        questions = {m.turn: m.content for m in found if m.role == "user"}
        for answer in (m for m in found if m.role == "assistant"):
            if not answer_to(questions.get(answer.turn, "")).startswith(answer.content):
                self._broken(f"no answer to {questions.get(answer.turn)}: {answer.content}")
        for earlier, later in pairwise(self.server.requests):
            if earlier.text not in later.context:
                self._broken(f"{later.text} was asked as if there had been no {earlier.text}")

    async def sum_up(self) -> None:
        """Add what there is at the end."""
        async with self.memory() as memory:
            found = await (await memory.get_session(SESSION)).messages(limit=1_000_000)
        self._tally.counted += len(self.server.requests)
        self._tally.answers += sum(m.role == "assistant" for m in found)

    def _broken(self, what: str) -> None:
        self._tally.broken.append(f"kill {self._tally.kills}: {what}")


def live(kills: int, tally: Tally, rng: random.Random) -> None:
    """Take one new home through some kills, checking after each."""
    with tempfile.TemporaryDirectory() as folder:
        home = Home(Path(folder), tally, rng)
        asyncio.run(home.begin())
        with home.server:
            for _ in range(kills):
                home.kill_one(rng.choice(AIMS), in_terminal=tally.kills % 2 == 0)
                asyncio.run(home.check())
            home.go_on()
            asyncio.run(home.check())
            asyncio.run(home.sum_up())


def run(size: int, seed: int, progress: Progress) -> Outcome:
    tally, rng = Tally(), random.Random(seed)
    while tally.kills < size:
        live(min(KILLS_PER_HOME, size - tally.kills), tally, rng)
        progress(tally.kills, size)
    figures = {
        "kills": tally.kills,
        "in a terminal": tally.terminals,
        "at random while it starts": tally.aims["starting"],
        "of all, before a call was made": tally.uncalled,
        "when the call was made": tally.aims["asked"],
        "in the middle of the answer": tally.aims["answering"],
        "when the answer had been sent": tally.aims["keeping"],
        "user messages that count": tally.counted,
        "lost": tally.lost,
        "there twice": tally.twice,
        "answers stored": tally.answers,
    }
    return Outcome(figures=figures, broken=tuple(tally.broken))


PROOF: Final = Proof(
    name="P21",
    promise="a chat that is killed loses nothing that was said to the model",
    unit="kills",
    small=2,
    closing=100,
    long=1_000,
    run=run,
)
