"""The plan of a forgetting: which positions go and why, before anything is touched."""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, TypeAlias, cast

from keepthread.context.ranges import Range, merged
from keepthread.types import JSON, SessionInfo, SessionKey, Span

Reason: TypeAlias = Literal["chosen", "copy", "delegate", "made", "answer"]
"""Why a message goes: it was meant, or is a copy, a delegate's, made from others, an answer."""


class Plan:
    """Positions by session; it grows as what is meant is followed to what was made of it."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self.whole: dict[SessionKey, Reason] = {}
        """Sessions of which nothing stays but tombstones."""
        self.halves: set[SessionKey] = set()
        """Forks that are being made, and must be made again."""
        self.twins: dict[SessionKey, set[SessionKey]] = {}
        """Copies of whole sessions, and of which; they may say the same of themselves."""
        self.owner: str | None = None
        """Whose own shelf goes as well."""
        self._why: dict[SessionKey, dict[int, Reason]] = {}
        self._fresh: dict[SessionKey, list[int]] = {}
        self._sorted: dict[SessionKey, list[int]] = {}

    def __bool__(self) -> bool:
        """Tell whether there is anything to do."""
        return bool(self._why or self.whole or self.owner)

    @property
    def sessions(self) -> list[SessionKey]:
        """Return the sessions that are touched."""
        return list(dict.fromkeys([*self._why, *self.whole]))

    def add(self, session: SessionKey, seqs: Iterable[int], reason: Reason) -> None:
        """Take in positions; the first reason stays."""
        known = self._why.get(session, {})
        new = [seq for seq in seqs if seq not in known]
        if not new:
            return
        self._why.setdefault(session, {}).update(dict.fromkeys(new, reason))
        self._fresh.setdefault(session, []).extend(new)
        self._sorted.pop(session, None)

    def add_whole(self, session: SessionKey, messages: int, reason: Reason) -> None:
        """Take in all of a session."""
        self.whole.setdefault(session, reason)
        self.add(session, range(1, messages + 1), reason)

    def take_fresh(self) -> dict[SessionKey, list[int]]:
        """Return what was taken in since this was asked last."""
        fresh, self._fresh = self._fresh, {}
        return fresh

    def refresh(self) -> None:
        """Let everything be looked at anew."""
        self._fresh = {session: list(why) for session, why in self._why.items()}

    def positions(self, session: SessionKey) -> Sequence[int]:
        """Return the positions of a session, ascending."""
        if session not in self._sorted:
            self._sorted[session] = sorted(self._why.get(session, ()))
        return self._sorted[session]

    def reasons(self, session: SessionKey) -> Mapping[int, Reason]:
        """Return why each position of a session goes."""
        return self._why.get(session, {})

    def covers(self, session: SessionKey, first: int, last: int) -> bool:
        """Tell whether a range holds a position that goes."""
        seqs = self.positions(session)
        place = bisect_left(seqs, first)
        return place < len(seqs) and seqs[place] <= last

    def touches(self, spans: Sequence[Span]) -> bool:
        """Tell whether something is made of what goes."""
        return any(self.covers(*span) for span in spans)

    def takes_title(self, info: SessionInfo) -> bool:
        """Tell whether a session's title was made from a message that goes."""
        return info.title_seq > 0 and self.covers(info.key, info.title_seq, info.title_seq)

    def size(self) -> int:
        """Return how many positions there are."""
        return sum(map(len, self._why.values()))

    # --- as JSON, without a word of what goes ---

    def entries(self) -> Iterator[JSON]:
        """Yield the plan in small parts."""
        if self.owner is not None:
            yield {"owner": self.owner}
        for session, reason in self.whole.items():
            yield {"whole": session, "as": reason}
        for session, why in self._why.items():
            for reason in dict.fromkeys(why.values()):
                for first, last in ranges(seq for seq, its in why.items() if its == reason):
                    yield [session, first, last, reason]

    def take(self, entry: JSON) -> None:
        """Take in a part that `entries` gave."""
        if isinstance(entry, Mapping):
            part = cast(Mapping[str, Any], entry)
            if "owner" in part:
                self.owner = part["owner"]
            else:
                self.whole[SessionKey(part["whole"])] = part["as"]
            return
        session, first, last, reason = cast(tuple[str, int, int, Reason], entry)
        self.add(SessionKey(session), range(first, last + 1), reason)


def ranges(seqs: Iterable[int]) -> list[Range]:
    """Return positions as ranges."""
    return merged((seq, seq) for seq in seqs)
