"""The kinds of records that keepthread puts into a store.

`TOOL`, a cached tool result, is defined in `keepthread.context.tool_results`, which reads it.
"""

from typing import Final

# --- of a session ---

MARKS: Final = "marks"
"""Ranges of messages that are hidden: cleared or rewound."""
PIN: Final = "pin"
"""A message that every context shows."""
NOTE: Final = "note"
"""The newest text of the program under a key."""
FOLD: Final = "compact"
"""A summary of a range of messages."""
DIGEST: Final = "digest"
"""A long message in short."""
COSTS: Final = "costs"
"""What summaries have cost."""
EXTRACTED: Final = "extracted"
"""How far facts were extracted; an owner has one as well."""
FINISHED: Final = "finished"
"""A turn that was finished, so that finishing it again is noticed."""
DELEGATED: Final = "delegated"
"""Where a child session was sent from."""
WHY: Final = "why"
"""An explanation of a context."""
LEASE: Final = "lease"
"""Somebody is at work on something until a time."""

# --- of an owner ---

FACT: Final = "fact"

# --- of the tenant ---

FORGET: Final = "forget"
"""What was begun to be forgotten."""
VECTORS: Final = "vectors"
"""Names the models that the tenant has vectors of."""

UNDER_WAY: Final = frozenset((LEASE, FORGET, VECTORS))
"""Kinds about work in one store; they mean nothing, or do harm, in another."""
