"""The `keepthread` command; it needs the extra `cli`."""

import signal
import sys
from importlib.util import find_spec
from typing import Final

_NEEDED: Final = ("typer", "rich", "platformdirs", "prompt_toolkit", "yaml")


def main() -> int:
    """Run the command, or say what must be installed first."""
    missing = [name for name in _NEEDED if find_spec(name) is None]
    if missing:
        sys.stderr.write(
            f"error: the command needs {', '.join(missing)}: pip install 'keepthread[cli]',"
            " or 'keepthread[chat]' to chat as well\n"
        )
        return 2
    before = signal.signal(signal.SIGINT, signal.SIG_DFL)  # nothing was begun: it may just end
    try:
        from keepthread.apps.cli.app import run  # noqa: PLC0415 - what the extra brings, in one place
    finally:
        signal.signal(signal.SIGINT, before)
    return run()
