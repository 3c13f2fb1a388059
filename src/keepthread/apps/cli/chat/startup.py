"""From the command line to a conversation: which model, which memory, which session."""

import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache
from importlib.util import find_spec
from typing import Any, Final, NamedTuple

from keepthread.apps.cli.chat.offline_files import offline_files_of
from keepthread.apps.cli.chat.persistence import AWAY, Persistence
from keepthread.apps.cli.chat.prompt_limits import PromptLimits
from keepthread.apps.cli.chat.talk import ONE_SHOT, Talk
from keepthread.apps.cli.invocation import find_session
from keepthread.apps.cli.settings.load import Config
from keepthread.apps.cli.wiring import memory_arguments, model_of
from keepthread.errors import Unavailable
from keepthread.memory.memory import Memory, Opening
from keepthread.memory.owner import OwnerMemory
from keepthread.models.tokens import Estimator, Tiktoken
from keepthread.models.tokens.exact import is_cached
from keepthread.protocols import TokenCounter
from keepthread.types import Message


class LateCounter:
    """A token counter that is loaded at its first use, after the first line to type is drawn.

    Tiktoken takes a third of a second, the table of the estimator some hundredths.
    """

    def __init__(self, vocabulary: str, *, exact: bool) -> None:
        """Load nothing yet; `exact` wants tiktoken, and the estimator where it cannot load."""
        self._vocabulary = vocabulary
        self._exact = exact
        self._loading = threading.Lock()
        self._counter: TokenCounter | None = None

    @property
    def name(self) -> str:
        """Name the way of counting."""
        return self.warm().name

    def count(self, message: Message) -> int:
        """Return the tokens a message takes."""
        return self.warm().count(message)

    def warm(self) -> TokenCounter:
        """Return the counter, loaded."""
        with self._loading:
            if self._counter is None:
                self._counter = self._load()
            return self._counter

    def _load(self) -> TokenCounter:
        if self._exact:
            with suppress(Unavailable):
                return Tiktoken(self._vocabulary)
        return Estimator(self._vocabulary)


def chat_counter(environ: Mapping[str, str], vocabulary: str) -> TokenCounter:
    """Return the exact counter if it can be had without a download, else the estimator."""
    exact = find_spec("tiktoken") is not None and is_cached(vocabulary, environ)
    return LateCounter(vocabulary, exact=exact)


TIMEOUT: Final = 2.0
"""Seconds that a store may be busy or silent before a chat continues without it."""


class SessionChoice(NamedTuple):
    """Which session the command line names."""

    latest: bool = False
    resume: str | None = None
    session: str | None = None
    system: str | None = None


def talk_of(
    config: Config,
    wanted: SessionChoice,
    environ: Mapping[str, str],
    notify: Callable[[str], object],
) -> Talk:
    """Return a conversation that is about to begin; nothing is opened or asked yet."""
    settings = config.settings
    model = model_of(settings.model, environ)
    counter = chat_counter(environ, settings.tokenizer)

    @cache
    def arguments() -> Mapping[str, Any]:
        return memory_arguments(settings, model, environ)

    def opened(address: str) -> Opening:
        if address == settings.address:
            config.make_room()
        return Memory.open(address, timeout=TIMEOUT, counter=counter, **arguments())

    offline_files = offline_files_of(config, environ) if settings.memory.enabled else None
    owner = settings.memory.owner
    return Talk(
        Persistence(settings.address, opened, offline_files, owner=owner, notify=notify),
        model,
        system=settings.chat.system or "",
        id=wanted.resume or wanted.session or "",
        limits=PromptLimits(settings),
    )


async def begin(talk: Talk, wanted: SessionChoice, notify: Callable[[str], object]) -> None:
    """Open the memory, find the session that is wanted, and say what differs from it."""
    await talk.persistence.begin()
    try:
        await _find(talk, wanted, notify)
        found = await talk.known_session()
        if found is not None and wanted.system is not None:
            await found.update(system_prompt=wanted.system)
        await talk.mark_used()
    except AWAY as error:
        notify(f"the session could not be looked up: {error}")


async def _find(talk: Talk, wanted: SessionChoice, notify: Callable[[str], object]) -> None:
    memory, away = talk.persistence.memory, talk.persistence.away
    if wanted.latest:
        found = None if away else await latest_session(memory, one_shots=talk.one_shot)
        if found:
            talk.move(found)
        else:
            none = _NONE_YET if found is None else _ONE_SHOTS_ONLY
            notify("earlier sessions cannot be read now; this is a new one" if away else none)
    elif wanted.resume and not away:
        await find_session(memory, wanted.resume)


async def latest_session(memory: OwnerMemory, *, one_shots: bool) -> str | None:
    """Return the latest session; those of one question count if one is asked now.

    It is empty if there are only such sessions, and None if there are none at all.
    """
    cursor: str | None = None
    found: str | None = None
    size = _FIRST_PAGE
    while True:
        page = await memory.list_sessions(limit=size, cursor=cursor)
        for session in page:
            if one_shots or ONE_SHOT not in session.tags:
                return session.id
            found = ""
        cursor = page.next
        if cursor is None:
            return found
        size = min(size * _GROWTH, _LARGEST_PAGE)


_FIRST_PAGE: Final = 20
_GROWTH: Final = 5
_LARGEST_PAGE: Final = 2_000
"""Of thousands of scripts' questions: few round trips, and no page that is large in memory."""
_NONE_YET: Final = "there is no earlier session; this is a new one"
_ONE_SHOTS_ONLY: Final = (
    "there are only one-question sessions (`-r ID` continues one); this is a new one"
)
