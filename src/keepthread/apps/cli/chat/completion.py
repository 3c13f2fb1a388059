"""Tab completion: commands and their arguments (sessions, files and models), and `@path`."""

import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator
from typing import Final

from prompt_toolkit.completion import CompleteEvent, Completer, Completion, PathCompleter
from prompt_toolkit.document import Document

from keepthread.apps.cli.chat.chat import Chat
from keepthread.apps.cli.chat.commands import COMMANDS, is_command
from keepthread.apps.cli.chat.persistence import AWAY
from keepthread.apps.cli.sanitize import sanitize

_SESSIONS: Final = 100
_MENTION: Final = re.compile(r"(?<![^\s(\[{])@([^\s\"'@]*)$")
_COMMANDS: Final = tuple((name, command.about) for name, command in COMMANDS.items())


class Completing(Completer):
    """Completes commands of a chat, and in what is said to the model files after an @."""

    def __init__(self, chat: Chat, opened: Callable[[], Awaitable[bool]]) -> None:
        """Know the chat, and how to wait for its memory."""
        self._chat = chat
        self._opened = opened
        self._files = PathCompleter(expanduser=True)

    def get_completions(
        self, document: Document, complete_event: CompleteEvent
    ) -> Iterable[Completion]:
        """Yield completions before the cursor, except sessions."""
        if (path := _path_at(document)) is not None:
            return self._paths(path, complete_event)
        word, behind, begun = document.text_before_cursor.partition(" ")
        if not behind:
            return _begun_with(word, _COMMANDS if word else ())
        match _completed_by(word):
            case "file":
                return self._files.get_completions(Document(begun), complete_event)
            case "command":
                return _begun_with(begun, _COMMANDS)
            case "model":
                return _begun_with(begun, ((name, "") for name in self._models()))
            case _:
                return ()

    async def get_completions_async(
        self, document: Document, complete_event: CompleteEvent
    ) -> AsyncGenerator[Completion, None]:
        """Yield completions before the cursor."""
        word, behind, begun = document.text_before_cursor.partition(" ")
        if behind and _completed_by(word) == "session":
            found = _begun_with(begun, await self._sessions())
        else:
            found = self.get_completions(document, complete_event)
        for each in found:
            yield each

    def _paths(self, begun: str, event: CompleteEvent) -> Iterator[Completion]:
        """Yield the paths that begin so; one with a blank in it is put in quotation marks."""
        for each in self._files.get_completions(Document(begun), event):
            path = f"{begun}{each.text}"
            whole = f'"{path}"' if " " in path else path
            yield Completion(whole, -len(begun), display=sanitize(each.display_text))

    async def _sessions(self) -> list[tuple[str, str]]:
        """Return the ids of sessions with their titles, latest first."""
        talk = self._chat.talk
        if not await self._opened():
            return []
        try:
            found = await talk.persistence.memory.list_sessions(limit=_SESSIONS)
        except AWAY:
            return []
        return [(session.id, session.title) for session in found]

    def _models(self) -> list[str]:
        """Return the models that are known here, each once."""
        settings, talk = self._chat.config.settings, self._chat.talk
        used = [str(a.answer.meta.get("model", "")) for a in talk.answered if a.answer]
        known = [talk.model.name, settings.model.name, settings.summarizer.name, *used]
        return sorted({name for name in (*known, *self._chat.models) if name})


def _path_at(document: Document) -> str | None:
    """Return the path after the last @ before the cursor, unless the line is a command."""
    text = document.text_before_cursor
    found = None if is_command(text) else _MENTION.search(text)
    return found[1] if found else None


def _completed_by(word: str) -> str:
    return COMMANDS[word].completes if word in COMMANDS else ""


def _begun_with(begun: str, known: Iterable[tuple[str, str]]) -> Iterator[Completion]:
    for text, meaning in known:
        if text.startswith(begun):
            yield Completion(
                text, -len(begun), display=sanitize(text), display_meta=sanitize(meaning)
            )
