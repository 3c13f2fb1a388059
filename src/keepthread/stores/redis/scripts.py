"""The scripts of the `lua` folder, read once."""

import hashlib
import pkgutil
from typing import Final, NamedTuple


class Script(NamedTuple):
    """A script, and the name by which a server knows it once it has seen it."""

    text: bytes
    sha: str
    writes: bool


def _read(name: str) -> bytes:
    data = pkgutil.get_data(__package__ or "", f"lua/{name}.lua")
    if data is None:  # pragma: no cover - only loaders without files answer None
        raise FileNotFoundError(name)
    return data


def _script(text: bytes, *, writes: bool) -> Script:
    return Script(text, hashlib.sha1(text, usedforsecurity=False).hexdigest(), writes)


_READING: Final = ("gather", "get", "look", "read", "scan", "shelf", "tail")
_WRITING: Final = (
    *("append", "create", "delete", "drop", "erase", "extend", "mend", "put"),
    *("recount", "settle", "stage", "update"),
)
_INDEXING: Final = ("announce", "clear", "list", "register", "sweep")
_COMMON: Final = _read("common")

LUA: Final = (
    {name: _script(_COMMON + _read(name), writes=False) for name in _READING}
    | {name: _script(_COMMON + _read(name), writes=True) for name in _WRITING}
    | {name: _script(_read(f"index/{name}"), writes=True) for name in _INDEXING}
    | {"due": _script(_read("index/due"), writes=False)}
)
