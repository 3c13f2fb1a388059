"""Which session a request of the proxy belongs to.

Ids are scoped to the credential: a client that knows or guesses another credential's session id
gets its own session. Unnamed conversations are identified by their beginning.
"""

import re
from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Final, NamedTuple

from keepthread.apps.proxy.types import ReadRequest
from keepthread.errors import SessionNotFound
from keepthread.memory.alignment import CUT, chain, find_match, is_document
from keepthread.memory.owner import OwnerMemory
from keepthread.memory.session import Session
from keepthread.text_caches import LeastRecent
from keepthread.types import JSON, Message

_PLAIN: Final = re.compile(r"[A-Za-z0-9._:-]{1,100}")
_MOST_OPENINGS: Final = 8
"""Conversations of a client that begin with the same words and can be distinguished."""
_MOST_POSITIONS: Final = 10_000
_NO_TURN: Final = "the request has no user message"
_AMBIGUOUS: Final = "several conversations begin like this; name one with Keepthread-Session"


class LogEnd(NamedTuple):
    """Where the log of a session ended after a request, and a hash of what it shows."""

    messages: int
    """Messages that the log shows."""
    chain: bytes
    head: int
    """The last position of the log."""
    added: int = 0
    """Tokens of the additions of the request."""


class Positions:
    """The ends of logs that this process has seen: a history that continues there needs no reading.

    It holds hashes and numbers, no text. A log continued by another writer is detected on the next
    write.
    """

    def __init__(self) -> None:
        """Begin with none."""
        self._known: LeastRecent[tuple[str, str], LogEnd] = LeastRecent(_MOST_POSITIONS)

    def get(self, session: Session) -> LogEnd | None:
        """Return where a session's log ended."""
        return self._known.get((session.key, session.id))

    def put(self, session: Session, position: LogEnd | None) -> None:
        """Note where a session's log ends; None if that is unknown."""
        key = (session.key, session.id)
        if position is None:
            self._known.discard(key)
        else:
            self._known.put(key, position)

    def continued(self, session: Session, messages: Sequence[Message]) -> LogEnd | None:
        """Return where a log ends that a history continues with new messages, if that is known."""
        known = self.get(session)
        if known is None:
            return None if session.info.messages else LogEnd(0, b"", 0)  # the session is new
        is_longer = len(messages) > known.messages
        return known if is_longer and self.continues(session, messages) else None

    def continues(self, session: Session, messages: Sequence[Message]) -> bool:
        """Return whether a history begins with all that a session's log shows."""
        known = self.get(session)
        if known is None or not 0 < known.messages <= len(messages):
            return False
        return chain(messages[: known.messages]) == known.chain


class Chosen(NamedTuple):
    """The session of a request, or why there is none."""

    session: Session | None = None
    reason: str = ""


class ProxySessions:
    """Finds the sessions of one credential."""

    def __init__(self, memory: OwnerMemory, credential: str, positions: Positions) -> None:
        """Take the owner's memory and the credential that a client shows."""
        self._memory = memory
        self._scope = f"proxy/{_hash(credential)[:16]}"
        self._positions = positions

    async def choose(self, request: ReadRequest, *, create: bool = True) -> Chosen:
        """Return the session of a request; a new one is created, unless that is not wanted."""
        named, agent = request.identity.session, request.identity.agent
        if request.identity.is_side:
            return Chosen(reason="a request about the conversation, not part of it")
        if not request.messages:
            return Chosen(reason=_NO_TURN)
        if named is not None:
            id = f"{self._scope}/{_segment(named)}"
            if agent is None:
                return await self._known(id, create=create)
            child = f"{id}/{_segment(agent)}"
            return await self._known(child, create=create, meta={"parent": id, "agent": agent})
        if request.mode == "aside":
            return Chosen(reason="the provider keeps the history, and no session is named")
        if not request.turns:
            return Chosen(reason=_NO_TURN)
        return await self._by_opening(request, create=create)

    async def _known(
        self, id: str, *, create: bool, meta: Mapping[str, JSON] | None = None
    ) -> Chosen:
        if create:
            return Chosen(await self._memory.session(id, meta=meta))
        try:
            return Chosen(await self._memory.get_session(id))
        except SessionNotFound:
            return Chosen(reason="the conversation is new")

    async def _by_opening(self, request: ReadRequest, *, create: bool) -> Chosen:
        """Return the session of a conversation that is known by its first message alone.

        Of several that begin like this it is the one that agrees with most of the history. A
        history of one turn begins another conversation, unless a log has nothing but it.
        """
        base = f"{self._scope}/~{_hash(request.turns[0].digest)[:32]}"
        found: list[tuple[int, Session]] = []
        for number in range(1, _MOST_OPENINGS + 1):
            id = base if number == 1 else f"{base}-{number}"
            try:
                session = await self._memory.get_session(id)
            except SessionNotFound:
                if len(_spoken(request.messages)) > 1 and found:
                    break
                if best := [each for length, each in found if length == 1]:
                    return Chosen(best[0])  # the first turn repeated before it was answered
                return await self._known(id, create=create)
            length = await self._agreement(session, request.messages)
            if length:
                found.append((length, session))
        return self._best(found)

    def _best(self, found: Sequence[tuple[int, Session]]) -> Chosen:
        most = max((length for length, _ in found), default=0)
        best = [session for length, session in found if length == most]
        if len(best) != 1:
            return Chosen(reason=_AMBIGUOUS)
        return Chosen(best[0])

    async def _agreement(self, session: Session, messages: Sequence[Message]) -> int:
        """Return how many messages of a history a log agrees with; 0 if it is another's.

        A log that the history continues agrees. If they differ, it agrees if an answer is the
        same: the client has edited a later message.
        """
        spoken = _spoken(messages)
        if self._positions.continues(session, messages):
            return len(spoken)
        log = _spoken(await _shown(session))
        if not log:
            return 1
        match = find_match(log, spoken)
        if match.length >= len(log) - (log[-1].meta.get(CUT) is True):
            return match.length  # also if the client asks again for an answer that was cut off
        return match.length if match.length > 1 else 0


def _spoken(messages: Sequence[Message]) -> list[Message]:
    """Return messages without documents, which clients add to questions and drop again."""
    return [message for message in messages if not is_document(message)]


async def _shown(session: Session) -> list[Message]:
    hidden = [(each.first, each.last) for each in await session.hidden()]
    return [
        message
        for message in await session.messages()
        if message.role != "system"
        and not any(first <= message.seq <= last for first, last in hidden)
    ]


def _segment(name: str) -> str:
    """Return a client's name of something as a part of an id; an odd one becomes a hash."""
    return name if _PLAIN.fullmatch(name) else f"~{_hash(name)[:32]}"


def _hash(text: str) -> str:
    return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
