"""The data: statements of an owner, questions about them, and messages that need no memory.

Both halves have the same three files. Weights and thresholds may be chosen on the first half only.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

HALVES: Final = ("first", "second")
DATA: Final = Path(__file__).parent / "data"
ENGLISH: Final = "en"


class Statement(NamedTuple):
    """Something an owner says in passing."""

    id: str
    text: str


class Question(NamedTuple):
    """A question or request, and the ids of the statements that answer it: one is enough."""

    text: str
    answers: Sequence[str]
    shared: Sequence[str]
    """Stems that it has in common with the first of its answers."""


class Idle(NamedTuple):
    """A message that needs no memory, such as a greeting."""

    text: str
    kind: str


class Part(NamedTuple):
    """All of a half in one language: one owner."""

    language: str
    statements: Sequence[Statement]
    questions: Sequence[Question]
    idle: Sequence[Idle]

    def first(self, statements: int) -> "Part":
        """Return the first statements, their questions, and about as many idle messages."""
        some = self.statements[:statements]
        ids = {each.id for each in some}
        questions = [each for each in self.questions if ids.issuperset(each.answers)]
        step = max(1, len(self.idle) // statements)
        return Part(self.language, some, questions, self.idle[::step])


def read_half(name: str, folder: Path = DATA) -> list[Part]:
    """Return a half by languages, English first."""
    statements = read_rows(folder / name / "statements.jsonl")
    questions = read_rows(folder / name / "questions.jsonl")
    idle = read_rows(folder / name / "none.jsonl")
    return [
        Part(
            language,
            [Statement(each["id"], each["text"]) for each in _of(language, statements)],
            [
                Question(each["text"], each["answers"], each["shared"])
                for each in _of(language, questions)
            ],
            [Idle(each["text"], each["kind"]) for each in _of(language, idle)],
        )
        for language in dict.fromkeys(each["lang"] for each in statements)
    ]


def read_rows(file: Path) -> list[dict[str, Any]]:
    """Read a file with a JSON object in each line."""
    return [json.loads(line) for line in file.read_text("utf-8").splitlines()]


def _of(language: str, some: Sequence[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    return (each for each in some if each.get("lang", ENGLISH) == language)
