"""The blocking API: the classes of `keepthread`, run on an event loop in a thread of their own.

`with Memory.open("sqlite:///chat.db") as memory` also works where an event loop already runs, as
in a notebook. Any thread may call it.
"""

import importlib
import typing

from keepthread.sync.blobs import Blobs
from keepthread.sync.memory import Admin, Facts, Memory, Outbox, OwnerMemory
from keepthread.sync.session import Session, Turn

if typing.TYPE_CHECKING:
    from keepthread.sync.orchestrator import Orchestrator

__all__ = [
    "Admin",
    "Blobs",
    "Facts",
    "Memory",
    "Orchestrator",
    "Outbox",
    "OwnerMemory",
    "Session",
    "Turn",
]


def __getattr__(name: str) -> object:
    """Import the orchestrator on first use: most programs do without it."""
    if name != "Orchestrator":
        raise AttributeError(f"module 'keepthread.sync' has no attribute {name!r}")
    value = globals()[name] = importlib.import_module("keepthread.sync.orchestrator").Orchestrator
    return value
