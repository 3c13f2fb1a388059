"""What a store's address names, without who calls: a spool belongs to one such place."""

from pathlib import Path
from typing import Final
from urllib.parse import parse_qsl, urlencode, urlsplit

from keepthread.errors import InvalidInput

_PLACES: Final = frozenset(("host", "hostaddr", "port", "dbname", "db"))
_SAME: Final = {"postgres": "postgresql"}


def target_of(url: str) -> str:
    """Return scheme, hosts, ports and database of an address: no user, no password."""
    scheme, _, rest = url.partition("://")
    if scheme == "ram":
        raise InvalidInput("a store in memory is never away; leave the spool out")
    if scheme == "sqlite":
        return f"sqlite:///{Path(rest.removeprefix('/')).absolute()}"
    parts = urlsplit(url)
    hosts = parts.netloc.rpartition("@")[2].lower()
    query = [(name, value) for name, value in parse_qsl(parts.query) if name in _PLACES]
    suffix = f"?{urlencode(sorted(query))}" if query else ""
    return f"{_SAME.get(scheme, scheme)}://{hosts}{parts.path.rstrip('/')}{suffix}"
