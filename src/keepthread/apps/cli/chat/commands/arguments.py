"""What stands behind a command's name, and what is wrong with it."""

from pathlib import Path

from keepthread.errors import InvalidInput


def number(rest: str, default: int, *, what: str = "a number") -> int:
    """Return the number that is given, from 1 on, or the default if none is."""
    if not rest:
        return default
    if not rest.isascii() or not rest.isdigit() or not 0 < int(rest[:10]) < 10**9:
        raise InvalidInput(f"{rest!r} is not {what}: write 1, 2, 3 …, or nothing")
    return int(rest)


def path(rest: str) -> Path:
    """Return the path that is given, with quotes around it or not."""
    quoted = len(rest) > 1 and rest[0] == rest[-1] and rest[0] in "'\""
    if not rest.isprintable():
        raise InvalidInput(f"{rest!r} is no name of a file: write one without control characters")
    return Path(rest[1:-1] if quoted else rest).expanduser()
