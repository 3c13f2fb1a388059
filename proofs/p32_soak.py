"""P32: chats go on while stores go away and programs die; nothing that was acknowledged is lost.

Each chat is the real command in a pseudo-terminal. Stores open slowly, are away at the start or in
the middle, or are broken; chats are killed, interrupted and resumed while old sessions are pruned;
plans use a tool server that floods; files that cannot be delivered are planted. What the model and
the screen acknowledged must be in the store, or in a file that is kept, exactly once, and every
chat must start.
"""

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

from keepthread import Memory, SessionInfo
from keepthread.models.tokens import Estimator
from keepthread.testing.script import Gate
from keepthread.testing.server import ScriptedServer
from proofs import Outcome, Progress, Proof
from proofs.chat_ledger import ANSWER, MARK, Ledger, Row, rows_of
from proofs.chat_outages import GARBAGE, OUTAGES, Outage
from tests.chatting import KEEPTHREAD, PATIENCE, Chat, flat, home

CHATS_PER_HOME: Final = 20
AT_ONCE: Final = 3
"""Homes at a time: a chat mostly waits."""
LONG_AGO: Final = 1_000_000_000.0
FLOODING: Final = Path(__file__).parent / "flooding.py"
ENDS: Final = {"leave": 5, "kill": 3, "terminate": 1, "hang up": 1}
WEIGHTS: Final = {
    "none": 4,
    "slow open": 3,
    "away at the start": 3,
    "away in the middle": 3,
    "broken file": 1,
}
KINDS: Final = {"plain": 6, "stopped": 1, "empty": 1, "error": 1, "cut": 1}
SIGNALS: Final = {
    "kill": (signal.SIGKILL, -signal.SIGKILL),
    "terminate": (signal.SIGTERM, 143),
    "hang up": (signal.SIGHUP, 129),
}


class Scene(NamedTuple):
    """What happens in one chat."""

    session: str
    """A new one, the latest, one that is known, or one without activity for years."""
    outage: str
    lasts: bool
    """Whether the outage is longer than the chat."""
    seconds: float
    """How much longer than the first prompt a slow store takes to open."""
    kinds: tuple[str, ...]
    end: str
    orchestrate: bool
    neighbor: bool
    """Whether another program asks something at the same time."""
    plants: bool
    """Whether a file that cannot be delivered is there afterwards."""
    dumb: bool


def scene_of(rng: random.Random) -> Scene:
    """Return a chat by chance."""
    orchestrate = rng.random() < 0.3
    kinds = rng.choices([*KINDS], [*KINDS.values()], k=rng.randint(0, 2))
    (outage,) = rng.choices([*WEIGHTS], [*WEIGHTS.values()])
    (end,) = rng.choices([*ENDS], [*ENDS.values()])
    return Scene(
        session=rng.choice(["new", "new", "latest", "known", "aged"]),
        outage=outage,
        lasts=outage == "broken file" or rng.random() < 0.6,
        seconds=rng.uniform(0.0, 1.2),
        kinds=("plan" if orchestrate else "plain", *kinds),
        end=end,
        orchestrate=orchestrate,
        neighbor=rng.random() < 0.2,
        plants=rng.random() < 0.15,
        dumb=rng.random() < 0.4,
    )


@dataclass(slots=True)
class Tally:
    """What was done and seen, over all homes."""

    chats: int = 0
    started: int = 0
    outages: Counter[str] = field(default_factory=Counter)
    ends: Counter[str] = field(default_factory=Counter)
    sessions: Counter[str] = field(default_factory=Counter)
    questions: int = 0
    answers: int = 0
    plans: int = 0
    resumed: int = 0
    planted: int = 0
    kept: int = 0
    neighbors: int = 0
    broken: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)


class Person:
    """One home: a store, a model, and somebody who chats again and again."""

    def __init__(self, folder: Path, tally: Tally, rng: random.Random) -> None:
        self._folder = folder
        self._tally = tally
        self._rng = rng
        self._ledger = Ledger()
        self._mind = self._ledger.mind
        self._planted: set[Path] = set()
        self._unready: set[str] = set()
        """Sessions that are not ready, so that their files cannot be delivered."""
        self._number = 0
        self._scene: Scene | None = None
        self.server = ScriptedServer(otherwise=self._mind)
        settings = {
            "KEEPTHREAD_MEMORY_AUTO_PRUNE_DAYS": "30",
            "KEEPTHREAD_CHAT_ALLOWED_TOOLS": "flooding/look",
        }
        self._home = home(folder, self.server, **settings)
        self._store = self._home.store
        self._store.parent.mkdir(parents=True)
        asyncio.run(
            self._aged("aged-0", self._mark())
        )  # the store is there before its first outage
        config = folder / "config" / "keepthread"
        config.mkdir(parents=True)
        flooding = {"command": sys.executable, "args": [str(FLOODING)], "allow": ["look"]}
        (config / "mcp.json").write_text(json.dumps({"mcpServers": {"flooding": flooding}}))

    # --- chats ---

    def chat(self, scene: Scene) -> None:
        """Have one chat, whatever happens in it."""
        self._number += 1
        self._scene = scene
        options, first = self._options(scene)
        outage = OUTAGES[scene.outage](self._store, scene.seconds)
        neighbor = None
        try:
            outage.begin()
            env = {"TERM": "dumb"} if scene.dumb else {}
            with self._home.chat(*options, **env) as chat:
                with self._tally.lock:
                    self._tally.started += 1
                neighbor = self._neighbor() if scene.neighbor else None
                outage.started()
                self._talk(chat, scene, outage, first)
                if "Traceback" in chat.seen:
                    self._broken(f"a traceback: {chat.seen[-800:]}")
        except AssertionError as error:
            self._broken(str(error))
        finally:
            if neighbor:
                self._listen(*neighbor)
            outage.end()
        self._count(scene)
        self.check()
        if scene.plants:
            asyncio.run(self._plant(options))

    def _options(self, scene: Scene) -> tuple[list[str], str]:
        """Return the command line, and the first message of an old session if there is one."""
        orchestrate = ["--orchestrate"] if scene.orchestrate else []
        known = sorted({row.session for row in rows_of(self._store) if row.kind == 0})
        known = [id for id in known if id not in self._unready]
        if scene.session == "aged":
            mark = self._mark()
            asyncio.run(self._aged(f"aged-{self._number}", mark))
            return ["-r", f"aged-{self._number}", *orchestrate], mark
        if scene.session == "known" and known and scene.outage != "broken file":
            return ["--session", self._rng.choice(known), *orchestrate], ""
        if scene.session == "latest":
            return ["-c", *orchestrate], ""
        return ["--session", f"s-{self._number}", *orchestrate], ""

    def _talk(self, chat: Chat, scene: Scene, outage: Outage, first: str) -> None:
        for number, kind in enumerate(scene.kinds):
            last = number == len(scene.kinds) - 1
            if last and scene.end != "leave":
                self._interrupted(chat, scene.end, kind)
                return
            mark = self._ask(chat, kind)
            if first and mark in self._ledger.answered and "away" not in scene.outage:
                self._ledger.kept.add(first)
            if not number:
                outage.answered()
            if not scene.lasts:
                outage.end()
        chat.leave()

    def _ask(self, chat: Chat, kind: str) -> str:
        """Ask something, and note what the screen acknowledges before the next prompt."""
        mark = self._mark()
        if kind == "stopped":
            gate = self._mind.gates[mark] = Gate()
            chat.send(f"plain {mark}")
            if not gate.reached.wait(PATIENCE):
                raise AssertionError(f"the question {mark} never reached the model")
            chat.key("ctrl-c")
            chat.asked()
            gate.open()
            return mark
        shown = flat(chat.say(f"{kind} {mark}"))
        if mark in ANSWER.findall(shown):
            self._ledger.answered.add(mark)
            if kind == "plan" and mark in self._mind.finished_steps:
                self._ledger.planned.add(mark)
        return mark

    def _interrupted(self, chat: Chat, end: str, kind: str) -> None:
        """Ask something, and end the program at any moment of the answer."""
        mark = self._mark()
        number, code = SIGNALS[end]
        gate = self._mind.gates[mark] = Gate()
        chat.send(f"{'plan' if kind == 'plan' else 'plain'} {mark}")
        if end != "kill" or self._rng.random() < 0.5:
            gate.reached.wait(PATIENCE / 4)  # then it ends before the answer, which is as good
        time.sleep(self._rng.uniform(0.0, 0.3))
        chat.terminal.signal(number)
        ended = chat.ended()
        gate.open()
        if ended != code:
            raise AssertionError(f"it ended with {ended} after {number.name}: {chat.seen[-500:]}")

    # --- beside it ---

    def _neighbor(self) -> tuple[str, "subprocess.Popen[bytes]"]:
        mark = self._mark()
        command = [KEEPTHREAD, "chat", "--session", f"n-{self._number}", "-p", f"plain {mark}"]
        env = {name: value for name, value in self._home.env.items() if value is not None}
        pipe = subprocess.PIPE
        program = subprocess.Popen(
            command,
            cwd=self._folder,
            env={**_outside(), **env},
            stdin=subprocess.DEVNULL,
            stdout=pipe,
            stderr=pipe,
        )
        return mark, program

    def _listen(self, mark: str, program: "subprocess.Popen[bytes]") -> None:
        said, errors = program.communicate(timeout=2 * PATIENCE)
        if program.returncode or f"Answer {mark} END".encode() not in said:
            self._broken(f"another program failed: {errors.decode(errors='replace')[-500:]}")
        else:
            self._ledger.answered.add(mark)

    async def _aged(self, id: str, mark: str) -> None:
        opening = Memory.open(
            f"sqlite:///{self._store}", counter=Estimator(), clock=lambda: LONG_AGO
        )
        async with opening as memory:
            await (await memory.session(id)).add_message("user", f"plain {mark}")

    async def _plant(self, options: list[str]) -> None:
        """Make a file that cannot be delivered: garbage, or of a session that is not ready."""
        for folder in self._folder.glob("state/keepthread/asides/*"):
            bad = folder / f"{self._number:032x}.db"
            bad.write_bytes(GARBAGE)
            self._planted.add(bad)
        waiting = {row.session for path in self._left() for row in rows_of(path) if not row.kind}
        id = options[1] if options[0] == "--session" else ""
        if id in waiting and id not in {row.session for row in rows_of(self._store)}:
            async with Memory.open(f"sqlite:///{self._store}", counter=Estimator()) as memory:
                await memory.store.put_session(SessionInfo(id=id, ready=False))
            self._unready.add(id)
        with self._tally.lock:
            self._tally.planted += 1

    # --- counting ---

    def check(self) -> None:
        """Look for all that was acknowledged, in the store and in files."""
        for lost in self._ledger.lost(self._rows()):
            self._broken(f"lost: {lost}")

    def close(self) -> None:
        """Have a chat while all is well; then everything is stored once, and no file is left."""
        self.chat(Scene("new", "none", False, 0.0, ("plain",), "leave", False, False, False, True))
        for wrong in self._ledger.wrong(self._rows()):
            self._broken(f"at the end: {wrong}")
        for path in self._left():
            sessions = {row.session for row in rows_of(path)}
            if path in self._planted and path.read_bytes() == GARBAGE:
                continue
            if not sessions & self._unready:
                self._broken(f"{path.name} was not delivered: {sorted(sessions)}")
        for path in self._planted:
            if not path.exists():
                self._broken(f"{path.name} was not kept")
        with self._tally.lock:
            self._tally.questions += len(self._mind.asked)
            self._tally.answers += len(self._ledger.answered)
            self._tally.plans += len(self._ledger.planned)
            self._tally.resumed += len(self._ledger.kept)
            self._tally.kept += len(self._left())

    def _rows(self) -> list[Row]:
        return [row for path in (self._store, *self._left()) for row in rows_of(path)]

    def _left(self) -> list[Path]:
        return sorted(self._folder.glob("state/keepthread/asides/*/*.db"))

    def _mark(self) -> str:
        mark = f"m{self._rng.getrandbits(40):010x}"
        assert MARK.fullmatch(mark)
        return mark

    def _count(self, scene: Scene) -> None:
        with self._tally.lock:
            self._tally.chats += 1
            self._tally.outages[scene.outage] += 1
            self._tally.ends[scene.end] += 1
            self._tally.sessions[scene.session] += 1
            self._tally.neighbors += scene.neighbor

    def _broken(self, what: str) -> None:
        with self._tally.lock:
            self._tally.broken.append(f"chat {self._number}, {self._scene}: {what}")


def _outside() -> dict[str, str]:
    return {name: text for name, text in os.environ.items() if not name.startswith("KEEPTHREAD_")}


@contextmanager
def person(tally: Tally, seed: str) -> Iterator[Person]:
    """Give a home with its model."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        made = Person(Path(folder), tally, random.Random(seed))
        with made.server:
            yield made


def live(chats: int, tally: Tally, seed: str) -> None:
    """Have chats in one home, and then look whether everything is there."""
    rng = random.Random(f"scenes of {seed}")
    with person(tally, seed) as somebody:
        for _ in range(chats):
            somebody.chat(scene_of(rng))
        somebody.close()


def run(size: int, seed: int, progress: Progress) -> Outcome:
    tally = Tally()
    homes = [min(CHATS_PER_HOME, size - at) for at in range(0, size, CHATS_PER_HOME)]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        ended = [
            pool.submit(live, chats, tally, f"{seed} {number}")
            for number, chats in enumerate(homes)
        ]
        while not all(each.done() for each in ended):
            time.sleep(0.5)
            progress(tally.chats, size + len(homes))
    for each in ended:
        if error := each.exception():
            tally.broken.append(repr(error))
    figures = {
        "chats": tally.chats,
        "chats that showed their first prompt": tally.started,
        **{f"with {name}": tally.outages[name] for name in OUTAGES if name != "none"},
        **{f"that end by {name}": tally.ends[name] for name in ENDS},
        "that resume a session idle for years": tally.sessions["aged"],
        "beside another program": tally.neighbors,
        "questions that count": tally.questions,
        "answers that were acknowledged": tally.answers,
        "plans with a flooding tool": tally.plans,
        "old sessions that must be kept": tally.resumed,
        "times that undeliverable files were planted": tally.planted,
        "files kept at the end": tally.kept,
    }
    return Outcome(figures=figures, broken=tuple(tally.broken))


PROOF: Final = Proof(
    name="P32",
    promise="chats lose nothing and always start, whatever happens to stores, tools and programs",
    unit="chats",
    small=2,
    closing=200,
    long=2_000,
    run=run,
)
