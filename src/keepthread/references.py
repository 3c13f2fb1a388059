"""References: what a prompt was made of, as positions, keys and keyed digests, never as text."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple, TypeAlias, cast

How: TypeAlias = Literal[
    "whole",
    "alone",
    "cut",
    "short",
    "lines",
    "no_result",
    "cached_call",
    "facts",
    "summary",
    "recalled",
    "other",
]
"""How a message of a prompt was made.

`whole`: a message of the log. `alone`: a pinned or important one, quoted if it must be. `cut`: one
that was too large. `short`: the stored digest of a long answer. `lines`: a tool call and its
results in a line each. `no_result`: the stand-in for a result that never came. `cached_call`: the
call of a cached result. `facts`, `summary`, `recalled`: these sections. `other`: what a strategy
of the program made.
"""
SIZE: Final = 16
"""Letters of the digest of one message."""
_ERASED: Final = "-" * SIZE
_WHOLE: Final = "whole"

Covers: TypeAlias = Callable[[str, int, int], bool]
"""Whether a range of positions of a session holds a forgotten one; an empty id is the session."""


class FactReference(NamedTuple):
    """A fact by its key, and the version of it that was shown."""

    key: str
    version: int


class ChunkReference(NamedTuple):
    """A chunk of a recalled message."""

    session: str
    """The id of its session; empty for the session of the context."""
    seq: int
    part: int
    """The number of the chunk in its message, from 0."""
    segment_start: float
    """When its run of messages began, in seconds since 1970; the chunk is shown under that day."""


class SummaryReference(NamedTuple):
    """A summary, and how much of it was shown."""

    number: int
    """Number of the compaction that made it; 0 if only turns in short were shown."""
    last: int
    """The last position it covers."""
    size: int
    """Bytes that it was shortened to; 0 if it was not shown."""
    line: int = 0
    """Which of the sizes the lines of newer turns had."""
    turns: Sequence[Sequence[int]] = ()
    """The positions of each turn that had a line."""


class Reference(NamedTuple):
    """The sources of one message of a prompt."""

    how: How
    seqs: Sequence[int] = ()
    """Positions in the session's log; in a call shown as lines, 0 is a missing result."""
    digest: str = ""
    """The keyed digest of the message; empty once something it was made of was forgotten."""
    number: int = 0
    """Characters that are left of a cut text, or the number of a call in its message."""
    noted: bool = False
    """Whether a cut text ends with the number of its attachments."""
    facts: Sequence[FactReference] = ()
    chunks: Sequence[ChunkReference] = ()
    summary: SummaryReference | None = None

    def positions(self) -> list[int]:
        """Return the positions of the session's own log that it names."""
        turns = self.summary.turns if self.summary else ()
        return [seq for seq in (*self.seqs, *(seq for turn in turns for seq in turn)) if seq]

    def touched(self, covers: Covers) -> bool:
        """Return whether it was made of something that is covered."""
        return (
            any(covers("", seq, seq) for seq in self.positions())
            or any(covers(chunk.session, chunk.seq, chunk.seq) for chunk in self.chunks)
            or (self.summary is not None and covers("", 1, self.summary.last))
        )


class References(NamedTuple):
    """The sources of a context's prompt, in order."""

    session: str
    """The key of the session whose log the positions are of."""
    strategy: str
    """The strategy, with the settings that are not its defaults."""
    counter: str
    """The name of the counter of tokens."""
    is_text: bool
    """Whether the context was asked for as one text."""
    delimiter: str
    """The delimiter around quotations."""
    asked: int
    """The position of the user message to answer; 0 if there was none."""
    system: str
    """The keyed digest of the system prompt; empty without one."""
    messages: Sequence[Reference]
    key: str
    """Identifies the key of the digests; it is not the key."""
    digest: str
    """The keyed digest of the whole prompt; empty once something in it was forgotten."""

    def without_digests(self, covers: Covers) -> "References":
        """Return them without the digests of what is covered, and of the whole prompt then."""
        touched = [each.touched(covers) for each in self.messages]
        if not any(touched):
            return self
        pairs = zip(self.messages, touched, strict=True)
        kept = [each._replace(digest="") if is_touched else each for each, is_touched in pairs]
        return self._replace(messages=kept, digest="")

    # --- as a small record ---

    def to_record(self) -> dict[str, Any]:
        """Return them as plain JSON; neighbors that are shown whole share an entry."""
        value: dict[str, Any] = self._asdict()
        del value["session"]
        packed: list[Any] = []
        for each in self.messages:
            last = packed[-1] if packed else None
            if each.how != _WHOLE:
                packed.append(_packed(each))
            elif isinstance(last, list) and each.seqs[0] == last[1] + 1:
                last[1] += 1
                last[2] += each.digest or _ERASED
            else:
                packed.append([each.seqs[0], each.seqs[0], each.digest or _ERASED])
        return {**value, "messages": packed}

    @classmethod
    def from_record(cls, value: Any, session: str) -> "References | None":
        """Return the references in a record's value; None if there are none, or not ours."""
        try:
            messages = [m for entry in value["messages"] for m in _unpacked(entry)]
            if "fence" in value:  # its name before 2026-11-19, also in files that were exported
                value = {**value, "delimiter": value["fence"]}
            named: dict[str, Any] = {
                name: value[name] for name in cls._fields if name not in ("session", "messages")
            }
            return cls(session=session, messages=messages, **named)
        except (KeyError, TypeError, ValueError):
            return None

    def to_json(self) -> dict[str, Any]:
        """Return all of it as plain JSON."""
        return {**self._asdict(), "messages": [_plain(each) for each in self.messages]}


def _plain(reference: Reference) -> dict[str, Any]:
    summary = reference.summary
    return {
        **reference._asdict(),
        "seqs": list(reference.seqs),
        "facts": [fact._asdict() for fact in reference.facts],
        "chunks": [chunk._asdict() for chunk in reference.chunks],
        "summary": summary and {**summary._asdict(), "turns": [[*turn] for turn in summary.turns]},
    }


def _packed(reference: Reference) -> dict[str, Any]:
    """Return a reference without what is empty."""
    value: dict[str, Any] = {name: each for name, each in reference._asdict().items() if each}
    for name in value.keys() & {"facts", "chunks"}:
        value[name] = [list(each) for each in value[name]]
    if summary := reference.summary:
        value["summary"] = [*summary[:-1], [list(turn) for turn in summary.turns]]
    return {**value, "seqs": list(reference.seqs)}


def _unpacked(entry: Any) -> list[Reference]:
    if isinstance(entry, Mapping):
        value = cast(Mapping[str, Any], entry)
        summary = value.get("summary")
        return [
            Reference(
                how=value["how"],
                seqs=tuple(value["seqs"]),
                digest=value.get("digest", ""),
                number=value.get("number", 0),
                noted=value.get("noted", False),
                facts=tuple(FactReference(*fact) for fact in value.get("facts", ())),
                chunks=tuple(ChunkReference(*chunk) for chunk in value.get("chunks", ())),
                summary=SummaryReference(*summary) if summary else None,
            )
        ]
    first, last, digests = entry
    parts = [digests[at : at + SIZE] for at in range(0, len(digests), SIZE)]
    return [
        Reference(_WHOLE, (seq,), "" if part == _ERASED else part)
        for seq, part in zip(range(first, last + 1), parts, strict=True)
    ]
