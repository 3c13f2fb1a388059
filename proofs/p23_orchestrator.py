"""P23: a request ends in an answer or a typed error, and a sub-agent sees its task alone.

Requests with plans by chance are answered by a program of its own, through both SDKs, by a server
on this machine that refuses whatever a provider would refuse. Models fail and write nonsense, tools
fail and hang, an MCP server dies, and the program itself is killed inside turns and started again
with the same ids. Afterwards every request has ended, its turn is whole for the reader (P6), no
prompt was invalid, and no specialist was shown a word of the conversation that its task or its
snippet does not hold, nor a fact about the owner.
"""

import asyncio
import json
import random
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from keepthread import Memory, Message, Session
from keepthread.context.blocks import is_answer
from keepthread.testing.script import Received, Say
from keepthread.testing.server import ScriptedServer
from proofs import Outcome, Progress, Proof
from proofs.errands import FACT, Errand, Mind, errand, stage_of, strangers
from proofs.p06_turns import faults

ROOT: Final = Path(__file__).resolve().parent.parent
REQUESTS_PER_KILL: Final = 6
BUDGETS: Final = (150, 500, 1000, 4096)
VIEWS: Final = ("router", "planner", "chat")
PATIENCE: Final = 600.0


class Note(NamedTuple):
    """What the program said of a request."""

    what: str
    number: int
    text: str


class Trial:
    """One file, one server, and a program that is killed and started again."""

    def __init__(self, folder: Path, size: int, seed: int) -> None:
        self.folder = folder
        self.size = size
        self.seed = seed
        self.rng = random.Random(f"{seed} kills")
        self.mind = Mind(seed)
        self.kills = 0
        self.taken_up = 0
        self.broken: list[str] = []
        self._victim: subprocess.Popen[bytes] | None = None
        self._left = 0
        self._lock = threading.Lock()

    # --- the server's side ---

    def line(self, asked: Received) -> str | Say:
        """Answer a request; when it is time, kill whoever asked, at once or a little later."""
        with self._lock:
            self._left -= 1
            victim = self._victim if self._left == 0 else None
            later = self.rng.choice((0.0, self.rng.uniform(0, 0.05)))
        if victim:
            threading.Timer(later, victim.kill).start()
        return self.mind(asked)

    # --- the program ---

    def run(self, server: ScriptedServer, progress: Progress) -> None:
        """Start the program, kill it, and start it again until every request has ended."""
        kills = -(-self.size // REQUESTS_PER_KILL)
        while numbers := self.unfinished():
            asked = {note.number for note in self.notes() if note.what == "asked"}
            self.taken_up += len(asked & set(numbers))
            deadly = self.kills < kills
            with self._lock:
                some = min(len(numbers), REQUESTS_PER_KILL)
                # A request takes three prompts or more: the first kill is surely among them.
                most = (6 if self.kills else 2) * some
                self._left = self.rng.randint(3, max(3, most)) if deadly else 0
            if not self._started(server, numbers) and not deadly:
                self.broken.append(f"the program ended with requests {self.unfinished()}")
                return
            progress(self.size - len(self.unfinished()), self.size)

    def _started(self, server: ScriptedServer, numbers: Sequence[int]) -> bool:
        """Run the program; tell whether it came to its end."""
        command = [sys.executable, "-m", "proofs.answerer", str(self.folder), str(self.seed)]
        command += [server.anthropic, *map(str, numbers)]
        with subprocess.Popen(
            command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
        ) as victim:
            self._victim = victim
            try:
                errors = victim.communicate(timeout=PATIENCE)[1].decode(errors="replace")
            finally:
                self._victim = None
                victim.kill()
        if victim.returncode < 0:
            self.kills += 1
        elif victim.returncode:
            self.broken.append(f"the program ended with {victim.returncode}: {errors[-400:]}")
        return victim.returncode == 0

    def notes(self) -> list[Note]:
        path = self.folder / "notes"
        whole = path.read_text().rpartition("\n")[0] if path.exists() else ""
        lines = [line.split(" ", 2) for line in whole.splitlines()]
        return [Note(what, int(number), text) for what, number, text in lines]

    def unfinished(self) -> list[int]:
        ended = {note.number for note in self.notes() if note.what != "asked"}
        return [number for number in range(self.size) if number not in ended]

    def deaths(self) -> int:
        """Return how often the MCP server died."""
        path = self.folder / "deaths"
        return len(path.read_text().splitlines()) if path.exists() else 0

    # --- what is left ---

    async def check(self) -> None:
        """Hold what is stored against what was said of it."""
        notes = self.notes()
        self.broken += [f"#{n.number} broke: {n.text}" for n in notes if n.what == "broke"]
        answers = {note.number: note.text for note in notes if note.what == "answered"}
        asked = {note.number for note in notes}
        async with Memory.open(f"sqlite:///{self.folder}/chat.db") as memory:
            for name in sorted({errand(self.seed, number).session for number in asked}):
                session = await memory.session(name)
                mine = {
                    n: errand(self.seed, n) for n in asked if errand(self.seed, n).session == name
                }
                log = await session.messages(limit=1_000_000)
                self.broken += [f"{name}: {fault}" for fault in wrong_in(log, mine, answers)]
                await self._look(session)
            if not (await memory.admin.verify()).sound:
                self.broken.append("verify finds damage")

    async def _look(self, session: Session) -> None:
        contexts = [await session.context(view) for view in VIEWS]
        contexts += [await session.context(budget=budget) for budget in BUDGETS]
        for context in contexts:
            self.broken += [f"{session.id}: {fault}" for fault in faults(context)]

    def check_prompts(self, server: ScriptedServer) -> int:
        """Look into every prompt; return how many a specialist got."""
        self.broken += [f"a prompt was refused: {why}" for why in server.refused]
        specialists = [asked for asked in server.requests if stage_of(asked) == "specialist"]
        others = [asked for asked in server.requests if stage_of(asked) == "synthesizer"]
        if others and not any(FACT in json.dumps(asked.body) for asked in others):
            self.broken.append("nobody was shown the owner's fact: the proof is blind to it")
        for asked in specialists:
            if found := strangers(self.mind, asked):
                self.broken.append(f"a specialist was shown {sorted(found)}: {asked.context[:300]}")
        return len(specialists)


def wrong_in(
    log: Sequence[Message], mine: dict[int, Errand], answers: dict[int, str]
) -> Iterator[str]:
    """Find what is not as it must be in the log of a session."""
    users = [message for message in log if message.role == "user"]
    if [message.turn for message in users] != list(range(1, len(users) + 1)):
        yield "user messages do not open one turn after the other"
    at = {message.id: message.turn for message in users}
    if sorted(at) != sorted(each.id for each in mine.values()) or len(at) < len(users):
        yield f"there are {sorted(at)} and not {sorted(each.id for each in mine.values())}"
    own = {at[each.id]: each for each in mine.values() if each.id in at}
    found = Counter(m.turn for m in log if is_answer(m))
    yield from (f"turn {n} has {count} answers" for n, count in found.items() if count > 1)
    for message in log:
        number = own[message.turn].number if message.turn in own else None
        if number is None:
            yield f"{message.content!r} belongs to no request"
        elif is_answer(message) and answers.get(number) != message.content:
            yield f"{message.content!r} is stored, and another answer was told"
    if missing := [n for n, each in mine.items() if n in answers and not found[at.get(each.id, 0)]]:
        yield f"no answers to {missing}"
    yield from _wrong_steps(log, own)


def _wrong_steps(log: Sequence[Message], own: dict[int, Errand]) -> Iterator[str]:
    """Find steps in another turn than their request's, and steps that were done twice."""
    done: Counter[str] = Counter()
    calls = {call.id: call for message in log for call in message.tool_calls}
    results = {message.tool_call_id: message for message in log if message.role == "tool"}
    if calls.keys() != results.keys():
        yield f"calls without results, or results without calls: {calls.keys() ^ results.keys()}"
    for id, call in calls.items():
        result = results.get(id)
        if result is None or result.turn not in own:
            continue
        if f"#{own[result.turn].number} step " not in call.arguments:
            yield f"{call.arguments} stands in the turn of #{own[result.turn].number}"
        done[call.arguments] += not result.meta.get("failed")
    yield from (f"{step} was done {times} times" for step, times in done.items() if times > 1)


def run(size: int, seed: int, progress: Progress) -> Outcome:
    with tempfile.TemporaryDirectory() as folder:
        trial = Trial(Path(folder), size, seed)
        with ScriptedServer(otherwise=trial.line) as server:
            trial.run(server, progress)
            asyncio.run(trial.check())
            specialists = trial.check_prompts(server)
        ends = Counter(note.what for note in trial.notes())
        kinds = Counter(note.text for note in trial.notes() if note.what == "failed")
        deaths = trial.deaths()
    if unended := size - ends["answered"] - ends["failed"]:
        trial.broken.append(f"{unended} requests have no end, or more than one")
    figures = {
        "requests": size,
        "answered": ends["answered"],
        "typed errors": ", ".join(f"{name} {count}" for name, count in kinds.items()) or "none",
        "kills": trial.kills,
        "taken up again after a kill": trial.taken_up,
        "deaths of the MCP server": deaths,
        "prompts": len(server.requests),
        "prompts of specialists": specialists,
        "failures of models": trial.mind.failures,
        "prompts refused": len(server.refused),
        "violations": len(trial.broken),
    }
    return Outcome(figures=figures, broken=tuple(trial.broken))


PROOF: Final = Proof(
    name="P23",
    promise="a request ends in an answer or a typed error, and a sub-agent sees its task alone",
    unit="requests",
    small=3,
    closing=100,
    long=1_000,
    run=run,
)
