"""What a soak of chats acknowledged, counted without any code that stores or delivers messages.

Every question has a mark of its own. The scripted model answers from the mark alone, and the files
are read with plain SQL: the store's, and those that chats keep while their store is away.
"""

import json
import re
import shutil
import sqlite3
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

from keepthread.testing.script import Gate, Received, Say
from keepthread.types import ToolCall
from tests.weather import STAGES, prompt, results_in

MARK: Final = re.compile(r"\bm[0-9a-f]{10}\b")
ANSWER: Final = re.compile(r"Answer (m[0-9a-f]{10}) END")
STEP: Final = re.compile(r"step (m[0-9a-f]{10}) is done")
FOUND: Final = re.compile(r"look found (m[0-9a-f]{10})")
MEGABYTES: Final = 4
"""How much the flooding tool writes into one result."""
_DELEGATE: Final = 2
_USER, _ASSISTANT, _TOOL = 1, 2, 3
_ROWS: Final = """
SELECT s.id, s.kind, m.role, m.content, m.extra
FROM messages AS m JOIN sessions AS s ON s.sid = m.sid
WHERE m.content IS NOT NULL ORDER BY m.sid, m.seq
"""


class Mind:
    """The scripted model; it notes which questions and results reached it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.asked: set[str] = set()
        self.finished_steps: set[str] = set()
        self.results: set[str] = set()
        self.gates: dict[str, Gate] = {}

    def __call__(self, asked: Received) -> Say:
        mark = MARK.findall(asked.text)[-1]
        stage = next((name for name in STAGES if prompt(name) in asked.system), "")
        with self._lock:
            self.asked.add(mark)
        if stage == "router":
            kind = "plan" if f"plan {mark}" in asked.text else "direct"
            return Say(json.dumps({"kind": kind, "why": "by its first word"}))
        if stage == "planner":
            task = f"Look for {mark}"
            step = {"id": "look", "task": task, "tools": ["look"], "needs": [], "snippet": ""}
            return Say(json.dumps({"steps": [step]}))
        if stage == "specialist":
            return self._step(mark, asked)
        return self._answer(mark, asked.text)

    def _step(self, mark: str, asked: Received) -> Say:
        results = results_in(asked)
        if not results:
            arguments = json.dumps({"mark": mark, "megabytes": MEGABYTES})
            return Say(tool_calls=[ToolCall(id="call_1", name="look", arguments=arguments)])
        with self._lock:
            self.results |= {found for text in results for found in FOUND.findall(text)}
            self.finished_steps.add(mark)
        return Say(f"The step {mark} is done.")

    def _answer(self, mark: str, text: str) -> Say:
        answer = f"Answer {mark} END"
        if f"empty {mark}" in text:
            return Say("")
        if f"error {mark}" in text:
            return Say(status=500, message="told to fail")
        if f"cut {mark}" in text:
            return Say(answer, cut_after=1)
        return Say(answer, hold=self.gates.get(mark), hold_after=1)


class Row(NamedTuple):
    """A stored message."""

    session: str
    kind: int
    role: int
    text: str
    calls: bool


def rows_of(path: Path) -> list[Row]:
    """Return the messages in a copy of a file; none if it is not a database."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "copy.db"
        for suffix in ("", "-wal"):
            beside = path.with_name(path.name + suffix)
            if beside.exists():
                shutil.copyfile(beside, copy.with_name(copy.name + suffix))
        try:
            with closing(sqlite3.connect(copy)) as db:
                return [_row(*row) for row in db.execute(_ROWS)]
        except sqlite3.DatabaseError:
            return []


def _row(session: str, kind: int, role: int, content: Any, extra: Any) -> Row:
    text = content.decode(errors="replace") if isinstance(content, bytes) else str(content)
    calls = extra is not None and "tool_calls" in json.loads(extra)
    return Row(session, kind, role, text, calls)


@dataclass(slots=True)
class Ledger:
    """What must be stored, as the model and the screen acknowledged it."""

    mind: Mind = field(default_factory=Mind)
    answered: set[str] = field(default_factory=set)
    """Questions whose whole answer was shown before the next prompt."""
    planned: set[str] = field(default_factory=set)
    """Those of them that were answered by a plan whose step was done."""
    kept: set[str] = field(default_factory=set)
    """The first messages of old sessions in which a question was answered."""

    def lost(self, rows: list[Row]) -> list[str]:
        """Return what is in none of the rows."""
        found = _counted(rows)
        return [f"{what} {mark}" for what, mark in self._due() if not found[what, mark]]

    def wrong(self, rows: list[Row]) -> list[str]:
        """Return what is not in the rows exactly once."""
        found = _counted(rows)
        due = set(self._due())
        lost = [f"{what} {mark} is lost" for what, mark in due if not found[what, mark]]
        twice = [f"{what} {mark}: {n} times" for (what, mark), n in found.items() if n > 1]
        return sorted(lost) + sorted(twice)

    def _due(self) -> Iterator[tuple[str, str]]:
        yield from (("question", mark) for mark in self.mind.asked | self.kept)
        yield from (("answer", mark) for mark in self.answered)
        yield from (("step", mark) for mark in self.planned)
        yield from (("result", mark) for mark in self.planned & self.mind.results)


def _counted(rows: list[Row]) -> Counter[tuple[str, str]]:
    """Return how often each question, answer, step and result of a tool is stored."""
    found: Counter[tuple[str, str]] = Counter()
    for row in rows:
        if row.kind == _DELEGATE:
            if row.role == _TOOL:
                found.update(("result", mark) for mark in FOUND.findall(row.text))
        elif row.role == _USER:
            found.update(("question", mark) for mark in set(MARK.findall(row.text)))
        elif row.role == _ASSISTANT and not row.calls:
            found.update(("answer", mark) for mark in ANSWER.findall(row.text))
        elif row.role == _TOOL:
            found.update(("step", mark) for mark in STEP.findall(row.text))
    return found
