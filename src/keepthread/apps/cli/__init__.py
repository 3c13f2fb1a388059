"""The `keepthread` command; it needs the extra `cli`."""

import codecs
import gc
import signal
import sys
from importlib import import_module
from importlib.util import find_spec
from io import TextIOWrapper
from typing import Final

_NEEDED: Final = ("typer", "rich", "platformdirs", "prompt_toolkit", "yaml")
_ERRORS: Final = "keepthread-similar"
"""Names the way to write characters that an encoding lacks."""
_SIMILAR: Final = {
    "█": "#",
    "■": "#",
    "░": ".",
    "·": "-",
    "│": "|",
    "├": "|",
    "└": "|",
    "─": "-",
    "━": "-",
    "→": "->",
    "✓": "ok",
    "✗": "x",
    "×": "x",
    "…": "...",
    "–": "-",
    "—": "-",
    "•": "*",
    "“": '"',
    "”": '"',
    "‘": "'",
    "’": "'",
    "╸": "-",
    "╺": "-",
}
"""Characters that the command prints, each with a replacement for encodings that lack it."""
_HOOK: Final = "hook"
_COLLECT_AFTER: Final = 200_000
"""New objects after which Python looks for unused ones.

By default it does so hundreds of times while modules load, finds none, and takes an eighth of the
time to the first line to type.
"""


def main() -> int:
    """Run the command, or say what must be installed first."""
    if sys.argv[1:2] == [_HOOK]:
        return _hook()
    return _command()


def _hook() -> int:
    """Run a hook, which must not load the command; a mistake in its options is status 1.

    Status 2 would make an agent discard the prompt.
    """
    done: int | None = import_module("keepthread.apps.hooks.client").run(sys.argv[2:])
    return min(1, _command()) if done is None else done


def _command() -> int:
    missing = [name for name in _NEEDED if find_spec(name) is None]
    if missing:
        sys.stderr.write(
            f"error: the command needs {', '.join(missing)}: pip install 'keepthread[cli]',"
            " or 'keepthread[chat]' to chat as well\n"
        )
        return 2
    write_anything()
    gc.set_threshold(_COLLECT_AFTER)
    before = signal.signal(signal.SIGINT, signal.SIG_DFL)  # nothing was begun: it may just end
    try:
        from keepthread.apps.cli.app import run  # noqa: PLC0415 - what the extra brings, in one place
    finally:
        signal.signal(signal.SIGINT, before)
    return run()


def write_anything() -> None:
    """Let output that is not UTF-8, as often on Windows, take every character.

    Our own signs become similar ones, and all else that the encoding lacks is written out.
    """
    codecs.register_error(_ERRORS, _similar)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper) and codecs.lookup(stream.encoding).name != "utf-8":
            stream.reconfigure(errors=_ERRORS)


def _similar(error: UnicodeError) -> tuple[str | bytes, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    lacking = error.object[error.start : error.end]
    shown = (_SIMILAR.get(c) or c.encode("ascii", "backslashreplace").decode() for c in lacking)
    return "".join(shown), error.end
