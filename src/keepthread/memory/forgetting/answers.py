"""Find answers that were written from a context with forgotten messages, where that is known.

It is known of answers in the same turn, of those whose meta says so, and of turns for which an
explanation was kept that shows it.
"""

from collections.abc import Mapping
from typing import Any, Final, cast

from keepthread.context.hidden import HiddenRanges, QuestionTracker, opens_turn
from keepthread.context.sources import RECALLED_FROM, WRITTEN_FROM
from keepthread.context.summary import COVERED, IN_SHORT
from keepthread.errors import SessionGone
from keepthread.memory.forgetting.plan import ErasurePlan
from keepthread.memory.material import marks_of
from keepthread.protocols import Store
from keepthread.stores.kinds import MARKS, WHY
from keepthread.types import Message, Scope, SessionInfo, SessionKey

_PAGE: Final = 500
_NEAR: Final = 50
"""Messages before a forgotten one that are read at once, to find its question."""


async def answers_to(
    store: Store, sessions: Mapping[SessionKey, SessionInfo], plan: ErasurePlan
) -> dict[SessionKey, list[int]]:
    """Return the positions of answers that are not yet in the plan."""
    touched = [sessions[key] for key in plan.sessions if key in sessions]
    names: dict[str, dict[str, SessionKey]] = {}  # by owner and id
    for info in touched:
        names.setdefault(info.owner, {})[info.id] = info.key
    found: dict[SessionKey, list[int]] = {}
    for info in sessions.values():
        if info.owner in names and info.key not in plan.whole:
            try:
                seqs = await _Session(store, plan, names[info.owner], info.key).answers()
            except SessionGone:
                continue
            if seqs:
                found[info.key] = seqs
    return found


class _Session:
    """One session that is read as far as it may have such answers."""

    def __init__(
        self, store: Store, plan: ErasurePlan, names: Mapping[str, SessionKey], key: SessionKey
    ) -> None:
        self._store = store
        self._plan = plan
        self._names = names
        self._key = key

    async def answers(self) -> list[int]:
        shown = await self._shown()
        begun: set[int] = set()  # turns in which a message is forgotten
        marks = marks_of(await self._store.scan(Scope(session=self._key), MARKS))
        questions = QuestionTracker(marks)
        found: list[int] = []
        gone = self._plan.reasons(self._key)
        after = await self._start(marks, min(gone, default=0))
        while page := await self._store.read(self._key, after=after, limit=_PAGE):
            for message in page:
                numbers = {questions.turn(message), message.turn} - {0}
                if message.seq in gone:
                    begun |= numbers
                    continue
                same = not numbers.isdisjoint(begun) or not numbers.isdisjoint(shown)
                is_answer = message.role == "assistant" and message.state == "live"
                if is_answer and (same or self._says_so(message)):
                    found.append(message.seq)
            after = page[-1].seq
        return found

    async def _start(self, marks: HiddenRanges, first: int) -> int:
        """Return the position to read after: answers come after what they were written from.

        A question that was never hidden, at or before the first forgotten message, is enough to
        know the turns of all that follow. An answer that was written from another session may be
        anywhere.
        """
        if {*self._names.values()} != {self._key}:
            return 0
        before = first + 1
        while page := await self._store.tail(self._key, limit=_NEAR, before=before):
            for message in reversed(page):
                seq = message.seq
                inner = any(span.first <= seq <= span.last for span in marks.inner)
                if opens_turn(message) and not (inner or marks.hides(seq)):
                    return message.seq - 1
            before = page[0].seq
        return 0

    def _says_so(self, answer: Message) -> bool:
        """Return whether an answer's own meta names forgotten messages."""
        meta = cast(Mapping[str, Any], answer.meta)
        if self._covers(self._key, meta.get(WRITTEN_FROM)):
            return True
        recalled = meta.get(RECALLED_FROM)
        if not isinstance(recalled, Mapping):
            return False
        named = cast(Mapping[str, Any], recalled)
        return any(self._covers(self._names[id], r) for id, r in named.items() if id in self._names)

    def _covers(self, session: SessionKey, ranges: Any) -> bool:
        try:
            return any(self._plan.covers(session, int(a), int(b)) for a, b in ranges or ())
        except (TypeError, ValueError):  # a program may have written something else there
            return False

    async def _shown(self) -> set[int]:
        """Return the turns for which a kept explanation shows forgotten messages."""
        turns: set[int] = set()
        for record in await self._store.scan(Scope(session=self._key), WHY):
            value = cast(Mapping[str, Any], record.value)
            if any(self._is_in(choice) for choice in value.get("choices", ())):
                turns.add(value.get("turn", 0))
        return turns - {0}

    def _is_in(self, choice: Mapping[str, Any]) -> bool:
        named = choice.get("session")
        session = self._names.get(named) if named else self._key
        held = choice.get("section") or choice.get("reason") in (COVERED, IN_SHORT)
        if not held or session is None:
            return False
        return self._plan.covers(session, choice["first"], choice["last"])
