"""One question from the command line or a pipe, and its answer on the output."""

import os
import signal
import sys
from collections.abc import Sequence
from contextlib import aclosing, suppress
from typing import Any, Final, NamedTuple

from keepthread.apps.cli.chat.attachments import AttachedFile, with_files
from keepthread.apps.cli.chat.notices import one_shot_hint, pruned
from keepthread.apps.cli.chat.plain import Drawing, Parts
from keepthread.apps.cli.chat.signals import INTERRUPTED, Signals
from keepthread.apps.cli.chat.talk import Answered, Talk
from keepthread.apps.cli.invocation import Call
from keepthread.errors import InvalidInput, KeepthreadError

CUT: Final = 1
"""The exit status if the answer is not whole, or empty."""


class OneQuestion(NamedTuple):
    """A question, and the files that go with it."""

    text: str
    files: Sequence[AttachedFile] = ()


def question_of(given: str | None) -> str | None:
    """Return what is asked: an argument, the input, or both; None if a person is to type it."""
    if sys.stdin is not None and sys.stdin.isatty():
        if given is None and sys.stdout.isatty():
            return None
        parts = [given or ""]
    else:
        parts = [given or "", _input()]
    question = "\n\n".join(part for part in parts if part.strip())
    if not question:
        raise InvalidInput(
            "there is no question: give one as -p 'How is the weather?', or pipe a text in;"
            " to chat, run it in a terminal"
        )
    return question


def _input() -> str:
    """Read all of the input; Ctrl-C ends that."""
    if sys.stdin is None:  # it was closed
        return ""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        return sys.stdin.buffer.read().decode().strip("\r\n")
    except UnicodeDecodeError:
        raise InvalidInput("the input is not UTF-8 text") from None
    finally:
        signal.signal(signal.SIGINT, before)


class OneShotDisplay:
    """Shows on stderr which tools are called; nobody can be asked."""

    def __init__(self, call: Call, drawing: Parts) -> None:
        """Take the command, and what draws its answer."""
        self._call = call
        self._drawing = drawing

    async def working(self, lines: Sequence[str]) -> None:
        """Show what is being done, where that can be shown."""
        await self._drawing.working(lines)

    async def called(self, line: str) -> None:
        """Show a call in one line."""
        async with self._drawing.between():
            self._call.announce(line)


async def answer_once(
    call: Call, talk: Talk, question: OneQuestion, drawing: Drawing, signals: Signals
) -> int:
    """Ask, show the answer as it arrives, and return the exit status."""
    text, files = question
    for file in files:
        call.announce(file.about(talk.persistence.counter))
    if over := await talk.too_long(with_files(text, files)):
        raise InvalidInput(
            f"{over}. Shorten it, use a model with a larger context window (--model NAME), or "
            "correct model.context_window"
        )
    with signals.during(talk.stop):
        async with drawing, aclosing(talk.ask(text, files=files)) as pieces:
            async for piece in pieces:
                try:
                    drawing.add(piece)
                except BrokenPipeError:
                    _let_go_of_the_output()
                    talk.stop()
        stopped = INTERRUPTED if signals.presses else 0
    answered = talk.last
    assert answered is not None, "it was asked"
    if answered.failure and not answered.text:
        answered.failure.add_note(one_shot_hint(answered.failure, call.config.settings.model))
        raise answered.failure
    if call.json:
        call.write(_record(talk, answered))
    if answered.truncated:
        call.warn(f"the answer was cut short: {answered.failure or 'it was stopped'}")
    elif not answered.text.strip():
        call.warn("the model returned an empty answer; the question is stored")
    await _prune(call, talk)
    whole = answered.text.strip() and not answered.truncated
    return signals.status or stopped or (0 if whole else CUT)


async def _prune(call: Call, talk: Talk) -> None:
    """Delete idle sessions once a day, if the settings say so."""
    days = call.config.settings.memory.auto_prune_days
    if days is None:
        return
    with suppress(KeepthreadError, OSError):
        if deleted := await talk.persistence.prune(days):
            call.warn(pruned(deleted, days))


def _let_go_of_the_output() -> None:
    """Discard further output: the reader has closed the pipe."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _record(talk: Talk, answered: Answered) -> dict[str, Any]:
    context = answered.context
    return {
        "session": talk.id,
        "answer": answered.text,
        "model": talk.model.name,
        "truncated": answered.truncated,
        "usage": answered.usage._asdict() if answered.usage else None,
        "context": {
            "tokens": context.tokens,
            "budget": context.selection.budget,
            "sections": context.why.sections,
            "truncated_newest": context.truncated_newest,
        },
        "kept": talk.persistence.kept,
        "seconds": round(answered.seconds, 3),
        "first": round(answered.first, 3),
    }
