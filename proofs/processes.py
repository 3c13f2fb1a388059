"""Processes of their own, without what it costs to load each of them.

They are forks of a process that has loaded the modules and done nothing else: they share no
connection, thread or lock with the one that starts them, as if they were started from nothing.
"""

import multiprocessing
from multiprocessing.context import ForkServerContext
from typing import Final

_LOADED: Final = [
    "__main__",
    *(f"keepthread.stores.{each}.store" for each in ("sqlite", "postgres", "redis", "outbox")),
    *("keepthread.memory.memory", "keepthread.models.tokens", "keepthread.sync"),
    *("proofs.p04_order", "proofs.p05_once", "proofs.p06_turns", "proofs.p11_damage"),
    *("proofs.p12_contexts", "proofs.p17_tools", "proofs.p18_compaction", "proofs.p38_forgets"),
]


def fresh_processes() -> ForkServerContext:
    """Return what starts them, with barriers, pipes and pools."""
    multiprocessing.set_forkserver_preload(_LOADED)  # counts before the first of them
    return multiprocessing.get_context("forkserver")
