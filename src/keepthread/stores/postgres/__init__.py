"""A store in a PostgreSQL database."""

from keepthread.errors import Unavailable

try:
    from keepthread.stores.postgres.store import PostgresStore
except ModuleNotFoundError as error:  # pragma: no cover - tried in an environment without it
    if (error.name or "").partition(".")[0] != "psycopg":
        raise
    raise Unavailable(
        "the PostgreSQL store needs psycopg: pip install 'keepthread[postgres]'"
    ) from None

__all__ = ["PostgresStore"]
