"""The statements of `statements.sql` and the migrations, read once."""

import pkgutil
import re
from typing import Final

MIGRATIONS: Final = (
    "0001_tables",
    "0002_walls",
    "0003_append",
    "0004_reading",
    "0005_sessions",
    "0006_shelf",
    "0007_gather",
    "0008_changes",
    "0009_finding",
    "0010_indexing",
    "0011_searching",
    "0012_nearest",
    "0013_cleaning",
    "0014_conditions",
    "0015_filters",
)
FORMAT: Final = len(MIGRATIONS)
"""The newest format this keepthread reads and writes."""


def _read(name: str) -> bytes:
    data = pkgutil.get_data(__package__ or "", name)
    if data is None:  # pragma: no cover - only loaders without files answer None
        raise FileNotFoundError(name)
    return data


def _by_name(text: str) -> dict[str, bytes]:
    parts = re.split(r"^-- name: (\w+)\n", text, flags=re.MULTILINE)[1:]
    bodies = (re.sub(r"^--.*\n?", "", sql, flags=re.MULTILINE) for sql in parts[1::2])
    return {name: sql.strip().encode() for name, sql in zip(parts[::2], bodies, strict=True)}


SQL: Final = _by_name(_read("statements.sql").decode())


def migration(number: int) -> bytes:
    """Return the script that leads to a format from the one before."""
    return _read(f"migrations/{MIGRATIONS[number - 1]}.sql")
