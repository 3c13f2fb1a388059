"""Import, export and copy, blocking: the functions of `keepthread.interchange`, without `await`.

Each takes a blocking `Memory` where the original takes a store. `progress` is called in the thread
that waits; files are read and written in the thread of the memory's event loop.
"""

from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from keepthread.interchange import agents, chats, harombe, import_, transcripts
from keepthread.interchange import copy as copies
from keepthread.interchange import export as exports
from keepthread.protocols import Progress, Store
from keepthread.sync.loop import Call
from keepthread.sync.memory import Memory

P = ParamSpec("P")
T = TypeVar("T")


def _blocking(
    function: Callable[Concatenate[Store, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Memory, P], T]:
    """Return a function that waits for a coroutine function on the store of a memory."""

    @wraps(function)
    def call(memory: Memory, /, *args: P.args, **kwargs: P.kwargs) -> T:
        loop = memory._loop  # noqa: SLF001 # pyright: ignore[reportPrivateUsage] - hidden from users only
        waiting = Call(loop)
        if callable(progress := kwargs.get("progress")):
            kwargs["progress"] = waiting.notify_caller(progress)
        return waiting.run(function, memory.store, *args, **kwargs)

    return call


export = _blocking(exports.export)
import_lines = _blocking(import_.import_lines)
import_chats = _blocking(chats.import_chats)
import_agents = _blocking(agents.import_agents)
import_harombe = _blocking(harombe.import_harombe)
import_transcript = _blocking(transcripts.import_transcript)
save_transcript = _blocking(transcripts.save_transcript)
seed = _blocking(transcripts.seed)


def copy(
    source: Memory, target: Memory, *, replace: bool = False, progress: Progress | None = None
) -> copies.Copied:
    """Copy everything of a tenant into another store, and compare both.

    See `keepthread.interchange.copy.copy`.
    """
    return _copy(source, target.store, replace=replace, progress=progress)


_copy = _blocking(copies.copy)
