"""Conversations with questions whose evidence is known: LoCoMo and BEAM-100K, as their files are.

Neither is part of this project; both are read from a folder that is named on the command line.
"""

import json
import re
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from keepthread import Message

LOCOMO, BEAM = "LoCoMo", "BEAM-100K"
_KINDS = {1: "multi-hop", 2: "temporal", 3: "open-domain", 4: "single-hop"}
_TURN = re.compile(r"D:?(\d+):(\d+)")
_MARK = re.compile(r"\s*->->.*$")
_DAY = 86_400.0


class Question(NamedTuple):
    """A question, and the ids of the messages that answer it."""

    text: str
    kind: str
    gold: frozenset[str]


class Talk(NamedTuple):
    """A conversation: its segments, each a list of messages, and what is asked of it."""

    name: str
    held_out: bool
    """Whether no weight was chosen on it."""
    segments: Sequence[Sequence[Message]]
    questions: Sequence[Question]


def locomo(folder: Path) -> list[Talk]:
    """Return LoCoMo's ten conversations between two friends, questions of categories 1 to 4."""
    samples = json.loads((folder / "locomo" / "locomo10.json").read_bytes())
    return [_friends(number, sample) for number, sample in enumerate(samples)]


def _friends(number: int, sample: dict[str, Any]) -> Talk:
    talk = sample["conversation"]
    names = [name for n in range(1, 100) if (name := f"session_{n}") in talk]
    segments = [_segment(talk[name], talk[f"{name}_date_time"]) for name in names]
    ids = {message.id for segment in segments for message in segment}
    questions: list[Question] = []
    for asked in sample["qa"]:
        turns = [f"D{a}:{int(b)}" for each in asked.get("evidence", ()) for a, b in _turns(each)]
        gold = ids.intersection(turns)  # some of the ids are malformed
        if gold and asked["category"] in _KINDS:
            questions.append(
                Question(asked["question"], _KINDS[asked["category"]], frozenset(gold))
            )
    return Talk(f"locomo-{number}", number >= 5, segments, questions)


def _turns(text: str) -> list[tuple[str, str]]:
    return _TURN.findall(text)


def _segment(turns: Sequence[dict[str, Any]], date: str) -> list[Message]:
    at = datetime.strptime(date, "%I:%M %p on %d %B, %Y").replace(tzinfo=UTC).timestamp()
    messages: list[Message] = []
    for number, turn in enumerate(turns):
        photo = turn.get("blip_caption")
        text = turn["text"] + (f" [shares photo: {photo}]" if photo else "")
        messages.append(
            Message(
                role="user",
                content=text,
                author=turn["speaker"],
                id=turn["dia_id"],
                created_at=at + number,
            )
        )
    return messages


def beam(folder: Path) -> list[Talk]:
    """Return BEAM's twenty chats of 100K tokens with an assistant, and what has evidence."""
    numbers = sorted(int(each.name) for each in (folder / "beam-100k").iterdir())
    return [_chat(folder / "beam-100k" / str(number), number) for number in numbers]


def _chat(folder: Path, number: int) -> Talk:
    cut = folder / "chat_trunc.json"
    batches = json.loads((cut if cut.exists() else folder / "chat.json").read_bytes())
    segments = [_batch(batch, (n + 1) * 30 * _DAY) for n, batch in enumerate(batches)]
    ids = {message.id for segment in segments for message in segment}
    asked = json.loads((folder / "questions.json").read_bytes())
    questions = [
        Question(each["question"], kind, frozenset(gold))
        for kind, some in asked.items()
        for each in some
        if (gold := ids.intersection(_numbers(each.get("source_chat_ids", ()))))
    ]
    return Talk(f"beam-{number}", number > 10, segments, questions)


def _batch(batch: dict[str, Any], at: float) -> list[Message]:
    turns = [each for turn in batch["turns"] for each in turn]
    return [
        Message(
            role=each["role"],
            content=_MARK.sub("", each["content"]),
            id=str(each["id"]),
            created_at=at + number,
        )
        for number, each in enumerate(turns)
    ]


def _numbers(nested: Any) -> Iterator[str]:
    """Yield the ids in lists and maps of whatever depth."""
    if isinstance(nested, dict):
        nested = list(nested.values())
    if isinstance(nested, list):
        for each in nested:
            yield from _numbers(each)
    elif isinstance(nested, int) or (isinstance(nested, str) and nested.isdigit()):
        yield str(int(nested))
