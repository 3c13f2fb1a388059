"""One session of `RamStore`: its metadata and its log, in the rows that every store has."""

from collections.abc import Sequence
from dataclasses import replace

from keepthread.protocols import TokenCounter
from keepthread.stores.codec import PackedId, Row, decode
from keepthread.stores.records import decode_details
from keepthread.stores.rows import Head, head_after, recounted_row
from keepthread.types import Message, SessionInfo


class RamLog:
    """A session's metadata and log."""

    def __init__(self, place: int, tenant: str, info: SessionInfo, details: bytes) -> None:
        """Start with an empty log."""
        self.place = place
        self.tenant = tenant
        self.info = info
        self.details = details
        self.rows: list[Row] = []
        self.seqs: dict[PackedId, int] = {}

    @property
    def head(self) -> Head:
        """Return the end of the log."""
        return head_after(self.rows[-1]) if self.rows else Head()

    def message(self, seq: int) -> Message:
        """Return the message at a position."""
        return decode(self.place, self.rows[seq - 1])

    def described(self) -> SessionInfo:
        """Return the session with its current counts."""
        head = self.head
        counts = {"messages": head.seq, "turns": head.turns, "tokens": head.total}
        return replace(self.info, **counts, **decode_details(self.details))

    def extend(self, rows: Sequence[Row]) -> None:
        """Add rows at the end."""
        self.rows.extend(rows)
        self.seqs.update((row.id, row.seq) for row in rows)

    def recount(self, counter: TokenCounter) -> int:
        """Count messages that another counter counted; return how many."""
        rows: list[Row] = []
        total = counted = 0
        for row in self.rows:
            message = decode(self.place, row)
            tokens, name = message.tokens, message.counter
            if message.state == "live" and name != counter.name:
                tokens, name = counter.count(message), counter.name
                counted += 1
            total += tokens
            rows.append(recounted_row(self.place, row, tokens, name.encode(), total))
        self.rows = rows
        return counted
