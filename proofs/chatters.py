"""Chats to kill: the real command, in a terminal or in pipes."""

import os
import pty
import signal
import subprocess
import sysconfig
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

KEEPTHREAD: Final = Path(sysconfig.get_path("scripts")) / "keepthread"
# A session's first terminal to be opened becomes the one that controls it; a shell opens it, and
# then becomes the program.
SHELL: Final = ("/bin/sh", "-c", 'exec "$@" 0<>"$0" 1>&0 2>&0')
PROMPT: Final = b"> "
PATIENCE: Final = 60.0


def environment(folder: Path, url: str) -> dict[str, str]:
    """Return what tells a chat its home, and nothing of whoever runs it."""
    ours = {name: text for name, text in os.environ.items() if not name.startswith("KEEPTHREAD_")}
    return ours | {
        "XDG_CONFIG_HOME": str(folder / "config"),
        "XDG_DATA_HOME": str(folder / "data"),
        "XDG_STATE_HOME": str(folder / "state"),
        "KEEPTHREAD_MODEL_NAME": "scripted",
        "KEEPTHREAD_MODEL_BASE_URL": url,
        "KEEPTHREAD_MODEL_RETRIES": "0",
        "PROMPT_TOOLKIT_NO_CPR": "1",  # nobody answers where the cursor is
        "TERM": "xterm",
    }


class InPipes:
    """One question, asked by `-p`."""

    def __init__(self, folder: Path, env: Mapping[str, str], question: str) -> None:
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(
            [KEEPTHREAD, "chat", "-c", "-p", question],
            cwd=folder,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=pipe,
            stderr=pipe,
        )

    def kill(self) -> str:
        """Kill it; return its last words if it had ended badly before."""
        self._process.kill()
        _, errors = self._process.communicate()
        good = self._process.returncode in (0, -signal.SIGKILL)
        return "" if good else errors.decode(errors="replace")[-500:]

    def end(self) -> str:
        """Let it come to its end; return what was wrong with that."""
        _, errors = self._process.communicate(timeout=PATIENCE)
        return errors.decode(errors="replace")[-500:] if self._process.returncode else ""


class InTerminal:
    """A chat in a pty, by somebody who types all questions as soon as one can be typed."""

    def __init__(self, folder: Path, env: Mapping[str, str], questions: Sequence[str]) -> None:
        self._master, slave = pty.openpty()
        self._process = subprocess.Popen(
            [*SHELL, os.ttyname(slave), KEEPTHREAD, "chat", "-c"],
            cwd=folder,
            env=env,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
        )
        os.close(slave)
        self._lines = "".join(f"{question}\r" for question in questions).encode()
        self._shown = b""
        self._typing = threading.Thread(target=self._type, daemon=True)
        self._typing.start()

    def kill(self) -> str:
        """Kill it; return its last words if it had ended before."""
        self._process.kill()
        self._process.wait()
        self._typing.join()
        os.close(self._master)
        killed = self._process.returncode == -signal.SIGKILL
        return "" if killed else self._shown.decode(errors="replace")[-500:]

    def _type(self) -> None:
        """Read all that is shown until nobody is left to show it; type when asked for a line."""
        with suppress(OSError):
            while data := os.read(self._master, 65_536):
                self._shown += data
                if self._lines and PROMPT in self._shown:
                    os.write(self._master, self._lines)
                    self._lines = b""
