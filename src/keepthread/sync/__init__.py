"""The blocking API: the classes of `keepthread`, run on an event loop in a thread of their own.

`with Memory.open("sqlite:///chat.db") as memory` also works where an event loop already runs, as
in a notebook. Any thread may call it.
"""

from keepthread.sync.memory import Facts, Memory, Outbox
from keepthread.sync.session import Session, Turn

__all__ = ["Facts", "Memory", "Outbox", "Session", "Turn"]
