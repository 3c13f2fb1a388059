"""Reads again what an earlier prompt was made of: this session, its owner's sessions and facts.

References are data that a program hands in, so they are resolved like any other request: a position
means this session's log, an id a session of this owner, and a key a fact that this session may see.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple, cast

from keepthread.context.hidden import HiddenRanges
from keepthread.context.prompt_digests import DigestKeyring
from keepthread.errors import SessionGone
from keepthread.memory.digest_keys import keyring
from keepthread.memory.facts.records import is_gone, noted_of
from keepthread.memory.facts.resolution import standing
from keepthread.memory.material import marks_of, position_key, summary_of
from keepthread.protocols import KnownFact, Store
from keepthread.references import Reference, References
from keepthread.stores.kinds import DIGEST, FACT, FOLD, MARKS
from keepthread.types import Digest, Message, Scope, SessionInfo, SessionKey, Summary

_PAGE: Final = 500


class NamedMessages(NamedTuple):
    """The messages of one session that references name, by position."""

    messages: dict[int, Message]
    marks: HiddenRanges


class StoredFact(NamedTuple):
    """A fact as it is now; without `known` if it was forgotten."""

    version: int
    known: KnownFact | None


class RebuildSources(NamedTuple):
    """Everything that the references of one explanation name, as far as it exists."""

    system_prompt: str
    own: NamedMessages
    others: dict[str, NamedMessages]
    """Sessions that something was recalled from, by id."""
    facts: dict[str, StoredFact]
    summaries: dict[int, Summary]
    """By the last position that each covers."""
    digests: dict[int, Digest]
    keys: DigestKeyring

    def log(self, id: str) -> NamedMessages | None:
        """Return the log of a session; the empty id is the session itself."""
        return self.others.get(id) if id else self.own


class SourceReader:
    """Reads what references name, as the session that rebuilds may see it."""

    def __init__(
        self,
        store: Store,
        session: SessionKey,
        *,
        owner: str,
        facts_of: str,
        agents: Sequence[str],
        alone: bool,
    ) -> None:
        """Take whose data may be read.

        `agents` are those whose own facts it sees, the empty name for the owner's; an `alone`
        session sees no other.
        """
        self._store = store
        self._session = session
        self._owner = owner
        self._facts_of = facts_of
        self._agents = agents
        self._alone = alone

    async def read(self, references: References) -> RebuildSources:
        """Return all of it that exists."""
        made = references.messages
        info = await self._store.describe(self._session)
        chunks = [chunk for each in made for chunk in each.chunks]
        found = {id: await self._other(id) for id in {chunk.session for chunk in chunks} - {""}}
        infos = {id: other for id, other in found.items() if other is not None}
        others = {
            id: await self._log(other.key, {c.seq for c in chunks if c.session == id})
            for id, other in infos.items()
        }
        seqs = {seq for each in made for seq in each.positions()} | {references.asked} - {0}
        seqs |= {chunk.seq for chunk in chunks if not chunk.session}
        keys = {fact.key for each in made for fact in each.facts}
        return RebuildSources(
            system_prompt=info.system_prompt or "",
            own=await self._log(self._session, seqs) or NamedMessages({}, HiddenRanges()),
            others={id: log for id, log in others.items() if log is not None},
            facts=await self._facts(keys),
            summaries=await self._summaries(made),
            digests=await self._digests(made),
            keys=await keyring(
                self._store,
                self._session,
                self._facts_of if keys else None,
                infos.values(),
                make=False,
            ),
        )

    async def _other(self, id: str) -> SessionInfo | None:
        """Return another session of the owner, if this one may see it."""
        if self._alone:
            return None
        found = await self._store.get_session(id, self._owner)
        return found if found is not None and found.ready else None

    async def _log(self, session: SessionKey, seqs: Iterable[int]) -> NamedMessages | None:
        wanted = sorted(seqs)
        messages: dict[int, Message] = {}
        try:
            for start in range(0, len(wanted), _PAGE):
                page = await self._store.find(session, seqs=wanted[start : start + _PAGE])
                messages |= {message.seq: message for message in page}
            marks = marks_of(await self._store.scan(Scope(session=session), MARKS))
        except SessionGone:
            return None
        return NamedMessages(messages, marks)

    async def _facts(self, keys: Iterable[str]) -> dict[str, StoredFact]:
        found: dict[str, StoredFact] = {}
        for key in sorted(keys):
            record = await self._store.get(Scope(owner=self._facts_of), FACT, key)
            noted = noted_of(record) if record else None
            if record is None or (noted is None and not is_gone(record)):
                continue
            if noted is None:
                found[key] = StoredFact(record.version, None)
            elif noted.agent in self._agents:
                known = KnownFact(key, noted.text, False, 0, "", standing(noted))
                found[key] = StoredFact(record.version, known)
        return found

    async def _summaries(self, made: Sequence[Reference]) -> dict[int, Summary]:
        found: dict[int, Summary] = {}
        for last in {each.summary.last for each in made if each.summary} - {0}:
            scope = Scope(session=self._session)
            record = await self._store.get(scope, FOLD, position_key(last))
            if record is not None:
                found[last] = summary_of(record)
        return found

    async def _digests(self, made: Sequence[Reference]) -> dict[int, Digest]:
        found: dict[int, Digest] = {}
        for each in made:
            if each.how == "short":
                scope = Scope(session=self._session)
                record = await self._store.get(scope, DIGEST, position_key(each.seqs[0]))
                if record is not None:
                    found[each.seqs[0]] = Digest(*cast(list[Any], record.value))
        return found
