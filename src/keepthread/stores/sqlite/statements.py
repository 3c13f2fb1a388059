"""The statements of `statements.sql` and the migrations, read once."""

import pkgutil
import re
from typing import Final


def _read(name: str) -> str:
    data = pkgutil.get_data(__package__ or "", name)
    if data is None:  # pragma: no cover - only loaders without files answer None
        raise FileNotFoundError(name)
    return data.decode()


def _by_name(text: str) -> dict[str, str]:
    parts = re.split(r"^-- name: (\w+)\n", text, flags=re.MULTILINE)[1:]
    return {name: sql.strip() for name, sql in zip(parts[::2], parts[1::2], strict=True)}


SQL: Final = _by_name(_read("statements.sql"))

FORMAT: Final = 2
"""The newest format this keepthread reads and writes."""


def migration(number: int) -> str:
    """Return the script that leads to a format from the one before."""
    return _read(f"migrations/{number:04}.sql")
