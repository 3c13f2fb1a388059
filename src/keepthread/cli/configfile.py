"""Writing a person's own settings: commented, private, whole or not at all."""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from keepthread.cli.settings import KEYS
from keepthread.private_files import private_file
from keepthread.types import JSON

_HEAD: Final = """\
# Settings of keepthread, written by `keepthread init`. `keepthread config` lists every setting,
# its value and where that comes from; the manual explains them, under Reference, Settings.
# Keys of services do not belong here: they come from the environment.
"""


def text_of(values: Mapping[str, JSON]) -> str:
    """Return a file that sets these values, each under its meaning."""
    import yaml  # noqa: PLC0415 - only where there is a file

    lines = [_HEAD]
    section = ""
    for key, value in values.items():
        block, _, name = key.partition(".")
        if block != section:
            lines.append(f"\n{block}:\n")
            section = block
        lines.append(f"  # {KEYS[key].metadata['meaning']}\n")
        written = yaml.safe_dump({name: value}, allow_unicode=True, width=1 << 20)
        lines.append(f"  {written}")
    return "".join(lines)


def write_private(path: Path, text: str) -> None:
    """Write a file that its owner alone can read; it appears once it is whole."""
    path = path.resolve()  # a link stays one: some keep all their settings elsewhere
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with private_file(path) as write:
        write(text.encode())
