"""From the command line to a conversation: which model, which memory, which session."""

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, Final, NamedTuple

from keepthread.apps.cli.chat.counter import chat_counter
from keepthread.apps.cli.chat.offline_files import offline_files_of
from keepthread.apps.cli.chat.persistence import AWAY, Persistence
from keepthread.apps.cli.chat.talk import Talk
from keepthread.apps.cli.invocation import Call
from keepthread.apps.cli.settings.load import Config
from keepthread.apps.cli.wiring import memory_arguments, model_of
from keepthread.memory.memory import Memory, Opening

PATIENCE: Final = 2.0
"""Seconds that a store may be busy or silent before a chat continues without it."""


class Wanted(NamedTuple):
    """Which session the command line names."""

    latest: bool = False
    resume: str | None = None
    session: str | None = None
    system: str | None = None


def talk_of(
    config: Config, wanted: Wanted, environ: Mapping[str, str], tell: Callable[[str], object]
) -> Talk:
    """Return a conversation that is about to begin; nothing is opened or asked yet."""
    settings = config.settings
    model = model_of(settings.model, environ)
    counter = chat_counter(environ)

    @cache
    def arguments() -> Mapping[str, Any]:
        return memory_arguments(settings, model, environ)

    def opened(address: str) -> Opening:
        if address == settings.address:
            config.make_room()
        return Memory.open(address, patience=PATIENCE, counter=counter, **arguments())

    offline_files = offline_files_of(config, environ) if settings.memory.enabled else None
    return Talk(
        Persistence(settings.address, opened, offline_files, tell=tell),
        model,
        owner=settings.memory.owner,
        system=settings.chat.system or "",
        id=wanted.resume or wanted.session or "",
    )


async def begin(call: Call, talk: Talk, wanted: Wanted, tell: Callable[[str], object]) -> None:
    """Open the memory, find the session that is wanted, and say what differs from it."""
    await talk.persistence.begin()
    try:
        await _find(call, talk, wanted, tell)
        found = await talk.known_session()
        if found is not None and wanted.system is not None:
            await found.update(system_prompt=wanted.system)
        await talk.mark_used()
    except AWAY as error:
        tell(f"the session could not be looked up: {error}")


async def _find(call: Call, talk: Talk, wanted: Wanted, tell: Callable[[str], object]) -> None:
    memory, away = talk.persistence.memory, talk.persistence.away
    if wanted.latest:
        found = [] if away else await memory.list_sessions(owner=talk.owner, limit=1)
        if found:
            talk.move(found[0].id)
        else:
            tell("no earlier session can be seen now; this is a new one" if away else _NONE_YET)
    elif wanted.resume and not away:
        await call.session(memory, wanted.resume, owner=talk.owner)


_NONE_YET: Final = "there is no earlier session; this is a new one"
