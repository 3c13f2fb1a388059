"""Chats as people have them: the real program, in a home of its own, with a scripted server."""

import os
import re
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

from keepthread import Memory
from keepthread.memory.summaries import Compaction
from keepthread.testing.server import ScriptedServer
from tests import preloaded
from tests.preloaded import KEEPTHREAD
from tests.terminal import Terminal

FOLDERS = {"XDG_CONFIG_HOME": "config", "XDG_DATA_HOME": "data", "XDG_STATE_HOME": "state"}
PATIENCE = 60.0  # a busy machine needs a while to load what talks to a model
_TAIL = 10


class Chat:
    """A chat in a terminal, and somebody who types, reads, and waits for the next line."""

    def __init__(self, terminal: Terminal) -> None:
        self.terminal = terminal

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.terminal.close()

    # --- typing ---

    def type(self, words: str) -> None:
        """Type words, and wait until the last of them stand before the cursor."""
        self.terminal.type(words)
        self.sees_at_cursor(words[-_TAIL:].strip())

    def key(self, name: str) -> None:
        """Press a key."""
        self.terminal.key(name)

    def send(self, words: str) -> None:
        """Type words and press the key that sends them, and wait for nothing more."""
        self.type(words)
        self.key("enter")

    def say(self, words: str, *, offer: str = "", seconds: float = PATIENCE) -> str:
        """Send words, wait for the next line, and return what was shown in between.

        The next line is empty, or has in it what is offered.
        """
        self.send(words)
        self.asked(offer, seconds)
        shown = self.seen.rpartition(f"> {words}\n")[2]
        return shown.rpartition(f"\n> {offer}".rstrip())[0]

    def answer(self, words: str) -> None:
        """Answer what a command asks before it does something; wait for the next line."""
        self.sees_at_cursor("[y/N]")
        self.terminal.type(words)
        self.key("enter")
        self.asked()

    def leave(self) -> None:
        """Leave as people do, with nothing to complain about."""
        self.key("ctrl-d")
        assert self.ended() == 0, self.seen
        assert "Traceback" not in self.seen, self.seen

    # --- reading ---

    @property
    def seen(self) -> str:
        """Return all that was shown so far."""
        return self.terminal.transcript

    def sees(self, what: str | re.Pattern[str], *, times: int = 1) -> None:
        """Wait until words were shown, on however many lines, or a pattern was."""
        if isinstance(what, str):
            what = re.compile(r"\s+".join(map(re.escape, what.split())))
        self.terminal.wait_for(what, PATIENCE, times=times)

    def sees_line(self, pattern: str) -> None:
        """Wait until a line of the screen is as the pattern says."""
        self.terminal.wait_until(
            lambda screen: any(re.fullmatch(pattern, line) for line in screen),
            PATIENCE,
            what=f"a line {pattern!r}",
        )

    def sees_at_cursor(self, words: str, seconds: float = PATIENCE) -> None:
        """Wait until words stand in the line of the cursor; it may go on from the row above."""

        def there(screen: list[str]) -> bool:
            row = screen[self._row]
            begins = row.startswith(">") or not self._row
            return words in (row if begins else screen[self._row - 1] + row)

        self.terminal.wait_until(there, seconds, what=f"{words!r} at the cursor")

    def asked(self, offer: str = "", seconds: float = PATIENCE) -> None:
        """Wait for a line to type."""
        line, column = f"> {offer}".rstrip(), len(f"> {offer}")
        self.terminal.wait_until(
            lambda screen: screen[self._row] == line and self.terminal.cursor[0] == column,
            seconds,
            what=f"{line!r} with the cursor behind it",
        )

    def recalls(self, words: str, key: str) -> None:
        """Wait for words of before; press the key again if it came too early for them."""
        for _ in range(10):
            with suppress(AssertionError):
                self.sees_at_cursor(words, PATIENCE / 20)
                return
            self.key(key)
        self.sees_at_cursor(words, 0)

    def ended(self) -> int:
        """Wait for the end, and return the exit code."""
        return self.terminal.exit_code(PATIENCE)

    @property
    def _row(self) -> int:
        return self.terminal.cursor[1]


class Home(NamedTuple):
    """A folder in which a person's programs run, keep what they keep, and find their settings."""

    folder: Path
    env: dict[str, str | None]

    @property
    def store(self) -> Path:
        """Return where conversations are, unless told otherwise."""
        return self.folder / "data" / "keepthread" / "memory.db"

    def start(
        self,
        *options: str,
        under: Sequence[str] = (),
        columns: int = 100,
        rows: int = 30,
        **env: str | None,
    ) -> Chat:
        """Start a chat in a terminal, under another command if told, and do not wait for it."""
        program = [*under, KEEPTHREAD, "chat", *options]
        whole = {**self.env, **env}
        return Chat(Terminal(program, env=whole, cwd=self.folder, columns=columns, rows=rows))

    def chat(self, *options: str, under: Sequence[str] = (), **others: Any) -> Chat:
        """Start a chat in a terminal, and wait for its first line."""
        chat = self.start(*options, under=under, **others)
        try:
            chat.asked()
        except BaseException:
            chat.terminal.close()
            raise
        return chat

    def run(
        self, *arguments: str, said: str | bytes = "", **env: str | None
    ) -> subprocess.CompletedProcess[bytes]:
        """Run the command in pipes."""
        whole = {**os.environ, **self.env, **env}
        return preloaded.run(
            [str(KEEPTHREAD), *arguments],
            {name: value for name, value in whole.items() if value is not None},
            self.folder,
            said if isinstance(said, bytes) else said.encode(),
            2 * PATIENCE,
        )

    async def fill(self, session: str, turns: int) -> None:
        """Let a session have a past, of which nothing was compacted yet."""
        self.store.parent.mkdir(parents=True, exist_ok=True)
        uncompacted = Compaction(turns=1000, answer_bytes=10_000)
        async with Memory.open(f"sqlite:///{self.store}", compaction=uncompacted) as memory:
            long = await memory.session(session)
            for n in range(turns):
                async with long.turn(f"Question {n}: {'what about it ' * 10}?") as turn:
                    await turn.finish(f"Answer {n}: {'so much about it ' * 50}.")

    async def said(self, session: str = "") -> list[str]:
        """Return what is stored of a session, or of the latest."""
        async with Memory.open(f"sqlite:///{self.store}") as memory:
            id = session or (await memory.list_sessions(limit=1))[0].id
            return [m.content for m in await (await memory.get_session(id)).messages()]


def flat(text: str) -> str:
    """Return a text in one line."""
    return " ".join(text.split())


def home(folder: Path, server: ScriptedServer, **env: str | None) -> Home:
    """Return a home whose model is the server."""
    told = {
        "KEEPTHREAD_MODEL_NAME": "scripted",
        "KEEPTHREAD_MODEL_BASE_URL": server.openai,
        "KEEPTHREAD_MODEL_RETRIES": "0",
    }
    folders = {name: str(folder / value) for name, value in FOLDERS.items()}
    return Home(folder, {**folders, **told, **env})
