"""The kinds of records that keepthread puts into a store.

`TOOL`, a cached tool result, is defined in `keepthread.context.tool_results`, which reads it.
"""

from typing import Final

# --- of a session ---

MARKS: Final = "marks"
"""Ranges of messages that are hidden: cleared or rewound."""
SYSTEM: Final = "system"
"""A system message of the operator, which every context shows."""
PIN: Final = "pin"
"""A message that every context shows."""
NOTE: Final = "note"
"""A note of the program; only the newest text of each key is stored."""
FOLD: Final = "compact"
"""A summary of a range of messages."""
DIGEST: Final = "digest"
"""A shortened version of a long message."""
COSTS: Final = "costs"
"""Token costs of summaries."""
EXTRACTED: Final = "extracted"
"""The position up to which facts were extracted; owners have one as well."""
FINISHED: Final = "finished"
"""A turn that was finished, so that finishing it again is noticed."""
SHOWN: Final = "shown"
"""The positions that the last context of a suspended turn showed."""
DELEGATED: Final = "delegated"
"""The place in the parent session that started a child session."""
WHY: Final = "why"
"""An explanation of a context."""
WHY_KEY: Final = "why_key"
"""The random key of the digests in explanations; owners have one as well, for their facts."""
ADDITION: Final = "addition"
"""A quotation that was added to a turn of a prompt; made of the messages that it quotes."""
LEASE: Final = "lease"
"""A process works on a task until this time."""

# --- of an owner ---

FACT: Final = "fact"
RECEIPT: Final = "receipt"
"""What an erasure removed, without text; the tenant has receipts as well."""
BLOB: Final = "blob"
"""The description of a blob, by its digest: size, name, and where its chunks are."""
BLOB_CHUNK: Final = "blob_chunk"
"""A part of a blob's bytes. A scan of all kinds leaves it out, because it is large."""
BLOB_UPLOAD: Final = "blob_upload"
"""Chunks that no description names: they are being written or removed."""
BLOB_USE: Final = "blob_use"
"""A message that refers to a blob; a session has one for each blob that it refers to."""

OF_REFERENCES: Final = (BLOB_UPLOAD, BLOB_USE)
"""Kinds that every owner of blobs has; stores keep an index of those owners."""

# --- of the tenant ---

FORGET: Final = "forget"
"""An erasure that has begun, so that it can be completed."""
VECTORS: Final = "vectors"
"""The models that the tenant has vectors of."""
PRUNED: Final = "pruned"
"""When idle sessions were last deleted automatically."""

UNDER_WAY: Final = frozenset((LEASE, FORGET, VECTORS, PRUNED, BLOB_UPLOAD, BLOB_USE, ADDITION))
"""Kinds about work in one store; copies leave them out. Additions keep prompts as they were."""
NOT_IN_FILES: Final = UNDER_WAY | {RECEIPT}
"""Kinds that exports leave out and imports refuse: a file proves nothing about this store."""
