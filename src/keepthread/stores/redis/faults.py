"""Redis's errors in our words, and which of them pass."""

from typing import Final

from keepthread.errors import (
    Busy,
    Damaged,
    KeepthreadError,
    ReadOnly,
    StorageFull,
    Unavailable,
)
from keepthread.stores.redis.driver import exceptions

_BY_CODE: Final = {
    "OOM": (StorageFull, "the server's memory is full"),
    "READONLY": (ReadOnly, "this server is a replica"),
    "MISCONF": (ReadOnly, "the server cannot save to its disk and refuses to write"),
    "NOREPLICAS": (Unavailable, "too few replicas follow the server"),
    "LOADING": (Unavailable, "the server is loading its data"),
    "CLUSTERDOWN": (Unavailable, "the cluster is down"),
    "MASTERDOWN": (Unavailable, "the primary is down"),
    "TRYAGAIN": (Unavailable, "the cluster is moving these keys"),
    "UNKILLABLE": (Busy, "the server is busy with a script"),
    "BUSY": (Busy, "the server is busy with a script"),
    "NOAUTH": (Unavailable, "the server wants a password"),
    "WRONGPASS": (Unavailable, "the server refuses this name and password"),
    "NOPERM": (Unavailable, "the server does not permit this"),
    "WRONGTYPE": (Damaged, "a key holds what is not ours"),
}


class TooFewReplicas(exceptions.RedisError):
    """What was written is on fewer replicas than it must be on; it stays written."""


_PASSING_CODES: Final = frozenset(("LOADING", "CLUSTERDOWN", "MASTERDOWN", "TRYAGAIN", "BUSY"))
_LASTING: Final = (exceptions.AuthenticationError, exceptions.AuthorizationError)
_LOST: Final = (
    exceptions.ConnectionError,
    exceptions.TimeoutError,
    exceptions.RedisClusterException,
    exceptions.ClusterError,
    TooFewReplicas,
    OSError,
)

KNOWN: Final = (exceptions.RedisError, exceptions.RedisClusterException, OSError)
"""What a client raises."""


def passes(error: Exception) -> bool:
    """Tell whether the same may succeed in a moment."""
    if isinstance(error, _LASTING):
        return False
    return isinstance(error, _LOST) or _code(error) in _PASSING_CODES


def translate(error: Exception) -> KeepthreadError:
    """Return our error for one of the driver's; its own words stay readable behind ours."""
    if _code(error) == "MISCONF" and "No space" in str(error):
        return StorageFull(f"the server's disk is full ({error})")
    kind, meaning = _BY_CODE.get(_code(error), (None, ""))
    if kind:
        return kind(f"Redis: {meaning} ({error})")
    if isinstance(error, _LASTING):
        return Unavailable(f"Redis: the server refuses this name and password ({error})")
    if isinstance(error, TooFewReplicas):
        return Unavailable(f"Redis: written, but {error}; the same again is stored once")
    if isinstance(error, _LOST):
        return Unavailable(f"Redis cannot be reached ({error})")
    return Damaged(f"Redis: a script met data that is not what was written ({error})")


def _code(error: Exception) -> str:
    """Return the word that a server's error begins with; redis-py takes some of them off."""
    for kind, code in _BY_KIND.items():
        if isinstance(error, kind):
            return code
    return str(error).partition(" ")[0]


_BY_KIND: Final = {
    exceptions.OutOfMemoryError: "OOM",
    exceptions.ReadOnlyError: "READONLY",
    exceptions.BusyLoadingError: "LOADING",
    exceptions.MasterDownError: "MASTERDOWN",
    exceptions.ClusterDownError: "CLUSTERDOWN",
    exceptions.TryAgainError: "TRYAGAIN",
    exceptions.NoPermissionError: "NOPERM",
}
