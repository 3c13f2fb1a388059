"""A home to chat in: a long log in a store, settings, and what a model will answer."""

import json
import os
import random
import time
from collections.abc import Sequence
from itertools import cycle, islice
from pathlib import Path
from typing import NamedTuple

from bench.recall.corpora import locomo
from bench.search import Language
from keepthread import Memory, Message
from keepthread.apps.cli.chat.startup import SessionChoice, begin, talk_of
from keepthread.apps.cli.chat.talk import Talk
from keepthread.apps.cli.settings.load import read_config
from keepthread.apps.cli.wiring import memory_arguments
from keepthread.models.tokens import counter
from keepthread.types import Role

MODEL = "scripted"
_ASKED, _ANSWERED = (40, 200), (100, 600)
"""Bytes of what a person says, and of what a model does."""
_QUESTIONS = 500
_PAGE = 20
_ROLES: Sequence[Role] = ("user", "assistant")
_STRANGE = ("KEEPTHREAD_", "OPENAI_", "ANTHROPIC_", "COVERAGE_", "PYTHON")
"""What would set something else, or keep Python from persistence what it compiled."""
_APART = 600.0


class Said(NamedTuple):
    """What a log is made of, what is asked then, and what is answered."""

    of: str
    texts: Sequence[str]
    questions: Sequence[str]
    answers: Sequence[str]


def by_chance(number: int, answers: int) -> Said:
    """Return texts of made-up words, as frequent and as rare as words are."""
    language, chance = Language(number), random.Random(number)
    sizes = (_ASKED, _ANSWERED)
    texts = [language.text(chance.randint(*sizes[n % 2])) for n in range(number)]
    said = [language.text(chance.randint(*_ANSWERED)) for _ in range(answers)]
    questions = [f"{language.question()}?" for _ in range(_QUESTIONS)]
    return Said("words by chance", texts, questions, said)


def of_friends(folder: Path, number: int, answers: int) -> Said:
    """Return what friends said to each other in LoCoMo, again from the start if that is too few."""
    talks = locomo(folder)
    said = [message.content for talk in talks for each in talk.segments for message in each]
    questions = [question.text for talk in talks for question in talk.questions]
    random.Random(number).shuffle(questions)
    texts = islice(cycle(said), number + answers)
    return Said("LoCoMo", list(islice(texts, number)), questions, list(texts))


class Home(NamedTuple):
    """A folder with settings, a store and a state of its own."""

    folder: Path
    config: Path
    env: dict[str, str]

    def speak(self, provider: str, url: str) -> None:
        """Have the model asked on a provider's wire."""
        settings = {
            "model": {"provider": provider, "name": MODEL, "base_url": url},
            "memory": {"storage_path": "memory.db"},
        }
        self.config.write_text(json.dumps(settings))  # which is YAML as well

    async def fill(self, texts: Sequence[str], sessions: int) -> None:
        """Store texts in turns, as many in each session; compact and index them as chats do."""
        settings = read_config(self.env, self.folder).settings
        each = len(texts) // sessions
        at = time.time() - len(texts) * _APART
        messages = [
            Message(role=_ROLES[number % 2], content=text, created_at=at + number * _APART)
            for number, text in enumerate(texts)
        ]
        given = memory_arguments(settings, None, self.env)
        async with Memory.open(settings.address, counter=counter(), **given) as memory:
            for number in range(sessions):
                session = await memory.session(f"s{number}", owner=settings.memory.owner)
                said = messages[number * each : (number + 1) * each]
                for start in range(0, each, _PAGE):
                    await session.append(*said[start : start + _PAGE])
                    await memory.idle()  # so that compactions are made on the way
            await memory.index(owner=settings.memory.owner)

    async def talk(self) -> Talk:
        """Return the chat that `keepthread chat -c` holds, begun, without its terminal."""
        told: list[str] = []
        wanted = SessionChoice(latest=True)
        talk = talk_of(read_config(self.env, self.folder), wanted, self.env, told.append)
        await begin(talk, wanted, told.append)
        assert not told, told
        return talk


def home(folder: Path, url: str) -> Home:
    """Make a home whose model is a server that speaks as OpenAI does."""
    folder.mkdir()
    others = {name: value for name, value in os.environ.items() if not name.startswith(_STRANGE)}
    config = folder / "config.yaml"
    env = {"KEEPTHREAD_CONFIG": str(config), "KEEPTHREAD_STATE": str(folder / "state")}
    made = Home(folder, config, others | env)
    made.speak("openai", url)
    return made
