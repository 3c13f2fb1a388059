"""Run a chat: open the memory, answer a person or a pipe, and close everything again."""

import asyncio
import errno
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from keepthread.apps.cli.chat.notices import show_warnings
from keepthread.apps.cli.chat.one_shot import answer_once
from keepthread.apps.cli.chat.plain import Plain, drawing_of
from keepthread.apps.cli.chat.signals import HUNG_UP, INTERRUPTED, Signals
from keepthread.apps.cli.chat.startup import SessionChoice, begin, talk_of
from keepthread.apps.cli.chat.talk import Talk
from keepthread.apps.cli.invocation import Call
from keepthread.errors import KeepthreadError

if TYPE_CHECKING:
    from keepthread.apps.cli.chat.orchestrator import ChatOrchestrator


async def run(
    call: Call, wanted: SessionChoice, asked: str | None, environ: Mapping[str, str]
) -> int:
    """Answer a question, or talk with the person at the terminal; return the exit status."""
    signals = Signals()
    signals.listen()
    if asked is None:
        return await _at_terminal(call, wanted, environ, signals)
    talk = talk_of(call.config, wanted, environ, call.warn)
    orchestrator = _orchestrator(call, talk, environ, call.warn)
    opening = asyncio.create_task(begin(call, talk, wanted, call.warn))
    markdown = call.config.settings.chat.markdown
    try:
        with show_warnings(call.warn), signals.during(opening.cancel):
            await opening
            drawing = Plain(_nothing) if call.json else drawing_of(environ, markdown=markdown)
            return await answer_once(call, talk, asked, drawing, signals)
    except asyncio.CancelledError:
        return signals.status or INTERRUPTED
    finally:
        await _close(talk, opening, signals, orchestrator)


def _nothing(_: str) -> None:
    """Write nothing: the answer comes whole, as JSON."""


async def _at_terminal(
    call: Call, wanted: SessionChoice, environ: Mapping[str, str], signals: Signals
) -> int:
    from keepthread.apps.cli.chat.chat import Chat  # noqa: PLC0415 - not for one question
    from keepthread.apps.cli.chat.terminal import Terminal  # noqa: PLC0415 - as above

    person = Terminal(environ, signals)
    talk = talk_of(call.config, wanted, environ, person.tell)
    orchestrator = _orchestrator(call, talk, environ, person.tell)
    chat = Chat(
        call=call,
        config=call.config,
        talk=talk,
        person=person,
        environ=environ,
        orchestrator=orchestrator,
    )
    opening = asyncio.create_task(begin(call, talk, wanted, person.tell))
    try:
        with show_warnings(person.tell):
            return await person.chat(chat, opening)
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        return signals.status or HUNG_UP  # the terminal is gone, and nobody is left to read it
    finally:
        await _close(talk, opening, signals, orchestrator)


def _orchestrator(
    call: Call, talk: Talk, environ: Mapping[str, str], tell: Callable[[str], object]
) -> "ChatOrchestrator | None":
    """Let the orchestrator answer, if that is wanted; its tools start in the background."""
    if not call.config.settings.chat.orchestrate:
        return None
    # Only here: both are slow to load, and few chats orchestrate.
    from keepthread.apps.cli.chat.orchestrator import (  # noqa: PLC0415
        ChatOrchestrator,
        Tools,
        agents_of,
    )
    from keepthread.apps.cli.settings.mcp import read_servers  # noqa: PLC0415 - as above

    agents = agents_of(call.config.settings, environ)
    found = read_servers(environ, Path.cwd())
    for note in found.notes:
        tell(note)
    return ChatOrchestrator(talk, Tools(found.servers, tell), agents)


async def _close(
    talk: Talk,
    opening: "asyncio.Task[None]",
    signals: Signals,
    orchestrator: "ChatOrchestrator | None",
) -> None:
    """Close what is open, which takes a few seconds at most: no signal breaks that off."""
    opening.cancel()
    with signals.during(_wait), suppress(KeepthreadError):
        await asyncio.shield(asyncio.create_task(_closed(talk, opening)))
        if orchestrator:
            await orchestrator.close()


def _wait() -> None:
    """Do nothing: closing ends without help."""


async def _closed(talk: Talk, opening: "asyncio.Task[None]") -> None:
    await asyncio.wait([opening])
    await talk.persistence.close()
    if close := getattr(talk.model, "close", None):
        await close()
