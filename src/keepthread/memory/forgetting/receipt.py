"""The receipt: what was forgotten, which answers were based on it, and what may remain."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from keepthread.context.ranges import counted
from keepthread.types import JSON, Residue

_SHOWN: Final = 20


class AffectedAnswer(NamedTuple):
    """An answer that was written from a context with forgotten messages."""

    session: str
    seq: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """The result of a `forget`, or with `dry_run` its preview. It holds no forgotten text."""

    asked: Mapping[str, JSON]
    at: float
    """When it was done, in seconds since 1970."""
    dry_run: bool = False
    sessions: int = 0
    """Sessions that are forgotten as a whole; their ids and tombstones stay."""
    messages: int = 0
    """Messages that matched."""
    copies: int = 0
    """Copies of them in forks."""
    delegates: int = 0
    """Sessions of delegated tasks that were made from them."""
    derived: int = 0
    """Messages made from them: in those sessions, and results of erased tool calls."""
    records: Mapping[str, int]
    """Dropped records by kind: compactions, digests, cached tools, facts, explanations …"""
    index: Mapping[str, int]
    """Rows of the index by kind: pieces, and vectors."""
    titles: int = 0
    """Titles of sessions that were made from them."""
    queued: int = 0
    """Messages that an outbox had set aside."""
    answers: Sequence[AffectedAnswer] = ()
    """Answers known to have been written from a context with some of the messages."""
    answers_erased: bool = False
    cleaned: Sequence[str] = ()
    """Steps of the engine to remove the bytes."""
    probes: int = 0
    """Pieces of 16 bytes or more that the files were searched for; no live message has them."""
    searched: Sequence[str] = ()
    found: int = 0
    """How many of these pieces are still in a file."""
    excluded: int = 0
    """Pieces that were not searched for, because live text has them too."""
    repeated: Sequence[str] = ()
    """Live text that repeats some of it, by place: it did not match, and stays."""
    residues: Sequence[Residue] = ()
    """Where erased bytes may remain, why, and until when."""

    @property
    def any(self) -> bool:
        """Return whether there was anything to forget."""
        counts = (
            self.sessions,
            self.messages,
            self.copies,
            self.derived,
            self.queued,
            self.titles,
        )
        return any((*counts, *self.records.values(), *self.index.values()))

    def to_json(self) -> dict[str, Any]:
        """Return it as plain JSON."""
        values: dict[str, Any] = {name: getattr(self, name) for name in self.__slots__}
        return values | {
            "asked": dict(self.asked),
            "records": dict(self.records),
            "index": dict(self.index),
            "answers": [answer._asdict() for answer in self.answers],
            "cleaned": list(self.cleaned),
            "searched": list(self.searched),
            "repeated": list(self.repeated),
            "residues": [residue._asdict() for residue in self.residues],
        }

    def __str__(self) -> str:
        """Return it for people."""
        lines = [self._head(), *(f"  {line}" for line in self._counts())]
        lines += self._answers()
        if not self.dry_run:
            lines += [f"Cleaned: {what}" for what in self.cleaned]
            lines += self._search()
        lines += self._repeated()
        if self.residues:
            lines.append("Erased bytes may remain in:")
        lines += [f"  {r.where}: {r.why}; until {r.until}" for r in self.residues]
        return "\n".join(lines)

    def _head(self) -> str:
        asked = ", ".join(f"{name} {value!r}" for name, value in self.asked.items())
        if self.dry_run:
            return f"To be forgotten: {asked}"
        moment = datetime.fromtimestamp(self.at, tz=UTC)
        return f"Forgotten on {moment:%Y-%m-%d at %H:%M:%S} UTC: {asked}"

    def _counts(self) -> list[str]:
        counts = [
            (self.messages, "message", "messages", ""),
            (self.copies, "copy", "copies", " in forks"),
            (self.derived, "message", "messages", " made from them"),
            (self.delegates, "session", "sessions", " of sub-agents"),
            (self.sessions, "session", "sessions", " as a whole"),
            (self.titles, "title", "titles", " made from them"),
            (self.queued, "message", "messages", " set aside in the outbox"),
            (sum(self.records.values()), "record", "records", _kinds(self.records)),
            (sum(self.index.values()), "row", "rows", f" of the index{_kinds(self.index)}"),
        ]
        lines = [f"{counted(n, one, many)}{rest}" for n, one, many, rest in counts if n]
        return lines or ["nothing"]

    def _answers(self) -> list[str]:
        if not self.answers:
            return []
        count = counted(len(self.answers), "answer")
        places: dict[str, list[int]] = {}
        for session, seq in self.answers[:_SHOWN]:
            places.setdefault(session, []).append(seq)
        where = "; ".join(f"{s} at {', '.join(map(str, seqs))}" for s, seqs in places.items())
        more = ", …" if len(self.answers) > _SHOWN else ""
        if self.answers_erased:
            return [f"{count} based on it, also erased: {where}{more}"]
        return [
            f"{count} based on it, kept: {where}{more}",
            "  to erase them as well, use --answers (answers=True)",
        ]

    def _search(self) -> list[str]:
        if not self.searched:
            return ["Files searched: none, because this program cannot read the engine's files"]
        if not self.probes and self.excluded:
            return [
                f"Files searched: none, because other text also contains {self._excluded()} of it"
            ]
        if not self.probes:
            return ["Files searched: none, because the erased text is too short to search for"]
        names = ", ".join(self.searched)
        left = f"{self.found:,} still found" if self.found else "none found"
        lines = [
            f"Files searched: {names}, for {counted(self.probes, 'piece')} of the text; {left}"
        ]
        if self.excluded:
            lines.append(f"Not searched for: {self._excluded()} that other text also contains")
        return lines

    def _excluded(self) -> str:
        return counted(self.excluded, "piece")

    def _repeated(self) -> list[str]:
        if not self.repeated:
            return []
        more = [f"  … and {len(self.repeated) - _SHOWN:,} more"][: len(self.repeated) > _SHOWN]
        return [
            "Other text that repeats some of it was kept:",
            *(f"  {where}" for where in self.repeated[:_SHOWN]),
            *more,
        ]


def _kinds(counts: Mapping[str, int]) -> str:
    return f": {', '.join(f'{n:,} {kind}' for kind, n in counts.items())}" if counts else ""
