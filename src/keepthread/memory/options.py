"""The options of a memory: one frozen value that a memory and its tenants share."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from keepthread.context.views import View
from keepthread.errors import InvalidInput
from keepthread.memory.blobs.types import BlobSizes
from keepthread.memory.summaries import Compaction
from keepthread.protocols import Embedder, NoteProvider, RecallScope, TokenCounter, Tracer
from keepthread.stores.codec import new_id
from keepthread.stores.validation import check_count, show

if TYPE_CHECKING:
    from keepthread.memory.facts.extraction import Extraction  # loaded when facts are used


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Options of a memory; `Memory.open` takes the same as keyword arguments."""

    views: Mapping[str, View] | None = None
    """Views by name, in addition to `router`, `planner` and `chat`."""
    counter: TokenCounter | None = None
    """Counts tokens; None takes the best counter that is installed."""
    compaction: Compaction | None = None
    """How old turns become a summary."""
    embedder: Embedder | None = None
    """Makes vectors, so that search also finds other words for the same thing."""
    extraction: "Extraction | None" = None
    """How facts are extracted from conversations; None extracts none."""
    recall: RecallScope = "session"
    """The scope of recall and `search_memory`: the current session, or all of the owner's."""
    keep_why: int = 0
    """How many explanations of contexts each session keeps."""
    providers: Mapping[str, NoteProvider] | None = None
    """Functions that `session.provide` asks for notes, by the notes' keys."""
    tracer: Tracer | None = None
    """Gets a span for each append, context, compact and tool."""
    blob_sizes: BlobSizes | None = None
    """Sizes that decide how blobs are stored; tests use small ones."""
    clock: Callable[[], float] = time.time
    """Returns the time in seconds since 1970."""
    ids: Callable[[], str] = new_id
    """Returns a new unique id."""

    def __post_init__(self) -> None:
        """Refuse options of the wrong kind."""
        check_count(self.keep_why, "keep_why")
        for key, provider in dict[str, object](self.providers or {}).items():
            if not callable(provider):
                raise InvalidInput(f"provider {show(key)} must be a function, not {show(provider)}")
        if self.recall not in ("session", "owner"):
            raise InvalidInput(f"recall must be session or owner, not {show(self.recall)}")
        for name, view in dict[str, object](self.views or {}).items():
            if not isinstance(view, View):
                raise InvalidInput(
                    f"view {show(name)} must be a View(budget, strategy), such as View(4000),"
                    f" not {show(view)}"
                )
