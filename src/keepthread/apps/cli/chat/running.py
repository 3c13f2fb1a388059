"""Run a chat: open the memory, answer a person or a pipe, and close everything again."""

import asyncio
import errno
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from keepthread.apps.cli.chat.attachments import checked, read_file
from keepthread.apps.cli.chat.notices import show_warnings
from keepthread.apps.cli.chat.one_shot import OneQuestion, OneShotDisplay, answer_once
from keepthread.apps.cli.chat.plain import Parts, Plain, drawing_of, is_dumb
from keepthread.apps.cli.chat.signals import HUNG_UP, INTERRUPTED, Signals
from keepthread.apps.cli.chat.startup import SessionChoice, begin, talk_of
from keepthread.apps.cli.chat.talk import Talk
from keepthread.apps.cli.chat.tools import ChatTools
from keepthread.apps.cli.invocation import Call
from keepthread.apps.cli.settings.load import mcp_file
from keepthread.errors import InvalidInput, KeepthreadError

if TYPE_CHECKING:
    from keepthread.apps.cli.chat.orchestrator import ChatOrchestrator, Tools
    from keepthread.apps.cli.chat.tool_calls import Ask


async def run(
    call: Call,
    wanted: SessionChoice,
    asked: str | None,
    attach: Sequence[str],
    environ: Mapping[str, str],
) -> int:
    """Answer a question, or talk with the person at the terminal; return the exit status."""
    signals = Signals()
    signals.listen()
    files = checked([read_file(path) for path in attach])
    if asked is None:
        if attach and is_dumb(environ):
            raise InvalidInput(
                "--attach does not work on a dumb terminal: write @FILE in your message"
            )
        offer = "".join(f'@"{path}" ' if " " in path else f"@{path} " for path in attach)
        return await _at_terminal(call, wanted, environ, signals, offer)
    talk = talk_of(call.config, wanted, environ, call.warn)
    talk.one_shot = True
    answering = _answering(call, talk, environ, call.warn)
    opening = asyncio.create_task(begin(talk, wanted, call.warn))
    markdown = call.config.settings.chat.markdown
    drawing = Parts(
        lambda: Plain(_nothing) if call.json else drawing_of(environ, markdown=markdown)
    )
    if shown := answering.tools or answering.orchestrator:
        shown.display = OneShotDisplay(call, drawing)
    try:
        with show_warnings(call.warn), signals.during(opening.cancel):
            await opening
            return await answer_once(call, talk, OneQuestion(asked, files), drawing, signals)
    except asyncio.CancelledError:
        return signals.status or INTERRUPTED
    finally:
        await _close(talk, opening, signals, answering)


def _nothing(_: str) -> None:
    """Write nothing: the answer comes whole, as JSON."""


async def _at_terminal(
    call: Call, wanted: SessionChoice, environ: Mapping[str, str], signals: Signals, offer: str
) -> int:
    from keepthread.apps.cli.chat.terminal import Chat, Terminal  # noqa: PLC0415 - not for one question

    person = Terminal(environ, signals)
    talk = talk_of(call.config, wanted, environ, person.notify)
    answering = _answering(call, talk, environ, person.notify, person.permits)
    chat = Chat(
        call=call,
        config=call.config,
        talk=talk,
        person=person,
        environ=environ,
        offer=offer,
        orchestrator=answering.orchestrator,
        tools=answering.tools,
    )
    if shown := answering.tools or answering.orchestrator:
        shown.display = person
    opening = asyncio.create_task(begin(talk, wanted, person.notify))
    try:
        with show_warnings(person.notify):
            return await person.chat(chat, opening)
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        return signals.status or HUNG_UP  # the terminal is gone, and nobody is left to read it
    finally:
        await _close(talk, opening, signals, answering)


class _Answering(NamedTuple):
    """The orchestrator or the model's tools, and the servers of these tools."""

    orchestrator: "ChatOrchestrator | None" = None
    tools: ChatTools | None = None
    servers: "Tools | None" = None


def _answering(
    call: Call,
    talk: Talk,
    environ: Mapping[str, str],
    notify: Callable[[str], object],
    ask: "Ask | None" = None,
) -> _Answering:
    """Let the orchestrator answer, or the model with tools; these start in the background."""
    settings = call.config.settings
    orchestrated = settings.chat.orchestrate
    offers = settings.memory.tools and settings.memory.enabled
    if not (orchestrated or mcp_file(environ).exists()):
        return _Answering(tools=ChatTools(talk, memory=True)) if offers else _Answering()
    # Only here: both are slow to load, and few chats have such tools.
    from keepthread.apps.cli.chat.orchestrator import (  # noqa: PLC0415
        ChatOrchestrator,
        agents_of,
        tools_in_chat,
    )

    agents = agents_of(settings, environ) if orchestrated else []
    try:
        servers = tools_in_chat(settings.chat.allowed_tools, environ, notify, ask)
    except InvalidInput as error:
        if orchestrated:
            raise
        notify(f"the tools of mcp.json cannot be used: {error}")
        servers = None
    if orchestrated and servers:
        answers = ChatOrchestrator(talk, servers, agents, memory_tools=offers)
        return _Answering(orchestrator=answers, servers=servers)
    return _Answering(tools=ChatTools(talk, memory=offers, servers=servers), servers=servers)


async def _close(
    talk: Talk, opening: "asyncio.Task[None]", signals: Signals, answering: _Answering
) -> None:
    """Close what is open, which takes a few seconds at most: no signal breaks that off."""
    opening.cancel()
    with signals.during(_wait), suppress(KeepthreadError):
        await asyncio.shield(asyncio.create_task(_closed(talk, opening)))
        if answering.orchestrator:
            await answering.orchestrator.close()
        elif answering.servers:
            await answering.servers.close()


def _wait() -> None:
    """Do nothing: closing ends without help."""


async def _closed(talk: Talk, opening: "asyncio.Task[None]") -> None:
    await asyncio.wait([opening])
    await talk.persistence.close()
    if close := getattr(talk.model, "close", None):
        await close()
