"""Running a chat: a memory opened, a person or a pipe answered, and all of it closed again."""

import asyncio
from collections.abc import Mapping
from contextlib import suppress

from keepthread.cli.call import Call
from keepthread.cli.chat.once import answer_once
from keepthread.cli.chat.plain import Plain, drawing_of
from keepthread.cli.chat.signals import INTERRUPTED, Signals
from keepthread.cli.chat.starting import Wanted, begin, talk_of
from keepthread.cli.chat.talk import Talk
from keepthread.errors import KeepthreadError


async def run(call: Call, wanted: Wanted, asked: str | None, environ: Mapping[str, str]) -> int:
    """Answer a question, or talk with the person at the terminal; return the exit status."""
    signals = Signals()
    signals.listen()
    if asked is None:
        return await _at_terminal(call, wanted, environ, signals)
    talk = talk_of(call.config, wanted, environ, call.warn)
    opening = asyncio.create_task(begin(call, talk, wanted, call.warn))
    try:
        with signals.during(opening.cancel):
            await opening
        markdown = call.config.settings.chat.markdown
        drawing = Plain(_nothing) if call.json else drawing_of(environ, markdown=markdown)
        return await answer_once(call, talk, asked, drawing, signals)
    except asyncio.CancelledError:
        return signals.status or INTERRUPTED
    finally:
        await _close(talk, opening, signals)


def _nothing(_: str) -> None:
    """Write nothing: the answer comes whole, as JSON."""


async def _at_terminal(
    call: Call, wanted: Wanted, environ: Mapping[str, str], signals: Signals
) -> int:
    from keepthread.cli.chat.chat import Chat  # noqa: PLC0415 - not for one question
    from keepthread.cli.chat.terminal import Terminal  # noqa: PLC0415 - as above

    person = Terminal(environ, signals)
    talk = talk_of(call.config, wanted, environ, person.tell)
    chat = Chat(call=call, config=call.config, talk=talk, person=person, environ=environ)
    opening = asyncio.create_task(begin(call, talk, wanted, person.tell))
    try:
        return await person.chat(chat, opening)
    finally:
        await _close(talk, opening, signals)


async def _close(talk: Talk, opening: "asyncio.Task[None]", signals: Signals) -> None:
    """Close what is open; Ctrl-C breaks off what is waited for, and nothing stored is lost."""
    opening.cancel()
    closing = asyncio.create_task(_closed(talk, opening))
    with signals.during(closing.cancel), suppress(asyncio.CancelledError, KeepthreadError):
        await closing


async def _closed(talk: Talk, opening: "asyncio.Task[None]") -> None:
    await asyncio.wait([opening])
    await talk.keeping.close()
    if close := getattr(talk.model, "close", None):
        await close()
