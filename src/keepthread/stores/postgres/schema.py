"""The statements of `statements.sql` and the schema in `ddl`."""

import pkgutil
import re
from typing import Final

_FILES: Final = (
    "tables",
    "security",
    "server",
    "changes",
    "log",
    "sessions",
    "links",
    "records",
    "maintenance",
    "tenants",
    "indexing",
    "search",
    "vectors",
    "views",
)
FORMAT: Final = 27
"""The format this keepthread reads and writes; every edit of the schema raises it."""
READERS: Final = (
    "06bc1be",
    "97169f4",
    "3738533",
    "342397a",
    "7883e92",
    "06d9ea0",
    "0bb6d60",
    "4b0347d",
    "3b81ce5",
    "91fb2ee",
    "4763f5a",
)
"""The last commits that read the formats before this one, that of the newest last."""


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


def schema() -> bytes:
    """Return the script that creates the schema in an empty database."""
    return b"\n".join(_read(f"ddl/{name}.sql") for name in _FILES)
