"""Facts about one owner, as programs use them: remember, list, correct, confirm, forget."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from math import inf
from typing import Final, Literal, cast

from keepthread.context.trust import lowest
from keepthread.errors import InvalidInput, NotFound, Stale
from keepthread.memory.facts import documents, markdown
from keepthread.memory.facts.edits import Edit, moment_after
from keepthread.memory.facts.extraction import Extractor, costs
from keepthread.memory.facts.loading import load_markdown
from keepthread.memory.facts.records import checked
from keepthread.memory.facts.repository import FactRepository
from keepthread.memory.facts.resolution import in_order, order_of, said, slot_of
from keepthread.memory.facts.types import (
    OWNER,
    Extracted,
    Fact,
    Found,
    Loaded,
    Noted,
)
from keepthread.stores.cursors import check_position, decode_cursor, encode_cursor
from keepthread.stores.validation import check_count, check_time, seconds_of, show
from keepthread.types import JSON, Message, Origin, Page

_CURRENT: Final = ("live", "quarantined")
_MOST: Final[Mapping[str, Origin]] = {OWNER: "operator", "model": "tool"}
"""The highest trust of a fact, by who stored it."""
_NO_MODEL: Final = (
    "fact extraction is not enabled; open the memory with extraction=Extraction(model)"
)
_FORGOTTEN: Final = (
    "this fact was forgotten and cannot be restored from these messages; remember it without "
    "messages"
)


class Facts:
    """The facts about one owner; get it from `Memory.facts`."""

    def __init__(self, repository: FactRepository, extractor: Extractor | None = None) -> None:
        """Take the owner's repository of facts, and the extractor if there is one."""
        self._repository = repository
        self._extractor = extractor

    @property
    def owner(self) -> str:
        """Return whose facts they are."""
        return self._repository.owner

    # --- remembering ---

    async def remember(  # noqa: PLR0913 - all that can be said about a fact
        self,
        text: str,
        *,
        subject: str = "",
        attribute: str = "",
        value: str = "",
        many: bool = False,
        session: str | None = None,
        messages: Sequence[Message | str] = (),
        since: float | datetime | None = None,
        until: float | datetime | None = None,
        agent: str = "",
        by: Literal["owner", "model"] = "owner",
        source: str = "",
    ) -> Fact:
        """Store a fact and return it; one that is already stored is returned unchanged.

        Without messages it counts as the owner's own statement, unless it was stored `by="model"`:
        then it is quarantined until the owner confirms it. `source` says where it came from, such
        as
        `mcp:CLIENT`, and `memory.forget(source=…)` erases all facts from there. With `messages`,
        given by their ids, it has the lowest trust among them, and is quarantined if that is a
        tool's, the web's or an import's. Facts of one subject (empty: the owner) and attribute
        replace each other, unless `many` values are possible. `since` and `until` say when it is
        true, in seconds since 1970: it does not hold before its `since`, and with an `until` in the
        past it ends only its own value. A fact with an `agent` is shown to the agent of that name
        alone, when it works for this owner: see `Turn.delegate`.
        """
        fact = Noted(
            key="",
            text=text,
            at=self._repository.clock(),
            subject=subject,
            attribute=attribute,
            value=value,
            many=many,
            since=seconds_of(since, "since"),
            until=seconds_of(until, "until"),
            agent=agent,
            source=source,
        )
        if by not in (OWNER, "model"):
            raise InvalidInput(f"by must be 'owner' or 'model', not {show(by)}")
        if by == "model":
            fact = fact._replace(by=by, origin="tool", trust="tool")
        if session is None:
            if messages:
                raise InvalidInput("name the session that the messages are in: session=ID")
            return await self._write(fact)
        while True:
            read = await self._repository.read(session, [_id(message) for message in messages])
            origin, trust = await self._repository.trust(read, subject)
            fact = fact._replace(origin=origin, trust=lowest((trust,), _MOST[by]))
            try:
                key, _ = await self._repository.add(fact, read)
            except Stale:
                continue  # a message was erased, possibly one of these
            if not key:
                raise InvalidInput(_FORGOTTEN)
            return await self._remembered(key)

    async def _write(self, fact: Noted) -> Fact:
        """Store a fact without messages, unless it is already current or waiting."""
        fact = checked(fact, self.owner)
        noted, facts = (await self._repository.index()).slot(slot_of(fact))
        timed = fact.since is not None or fact.until is not None
        for known in facts:
            alike = (known.text, known.value) == (fact.text, fact.value)
            certain = known.state == "live" and known.trust != "assistant"
            repeated = fact.by == "model" and known.state in _CURRENT
            if alike and not timed and (certain or repeated):
                return known
        key, _ = await self._repository.add(fact._replace(at=_moment(noted, fact.at)))
        return await self._remembered(key)

    async def _remembered(self, key: str) -> Fact:
        fact = await self._repository.fact(key)
        if fact is None:
            raise NotFound("the fact was stored, and erased at the same time")
        return fact

    # --- looking ---

    async def list(
        self,
        *,
        all: bool = False,  # noqa: A002 - what people would say
        at: float | datetime | None = None,
        limit: int | None = None,
        cursor: str | None = None,
    ) -> Page[Fact]:
        """Return current and waiting facts, oldest first; with `all`, every fact.

        `at` is a time in seconds since 1970: return the facts valid then, as known today. With a
        `limit` the page's `next` is the `cursor` of the next one, or None.
        """
        time = seconds_of(at, "at")
        of = ("facts", self.owner, all, time)
        last = None if cursor is None else _place(decode_cursor(of, cursor))
        most = None if limit is None else check_count(limit, "limit") + 1
        if time is None:
            current = (await self._repository.index()).facts(
                current=not all, after=last, limit=most
            )
        else:
            facts = await self._repository.facts(check_time(time, "at"))
            current = [fact for fact in facts if all or fact.state in _CURRENT]
            current = [f for f in current if last is None or order_of(f) > last][:most]
        if limit is None or len(current) <= limit:
            return Page(current)
        page = current[:limit]
        return Page(page, cursor=encode_cursor(of, order_of(page[-1])) if page else None)

    async def get(self, key: str) -> Fact | None:
        """Return one fact, or None."""
        return await self._repository.fact(key)

    async def history(self, key: str) -> Found:
        """Return all facts of a fact's slot, oldest first, with their earlier wordings."""
        index = await self._repository.index()
        mine = index.stored(key)
        if mine is None:
            return []
        noted, facts = index.slot(slot_of(mine))
        by_key = {fact.key: fact for fact in facts}
        return [each for one in in_order(noted) for each in _with_wordings(one, by_key[one.key])]

    async def search(self, query: str, *, limit: int = 10) -> Found:
        """Return the facts that share words with a question, the best first.

        Facts that wait to be confirmed are included.
        """
        check_count(limit, "limit")
        return (await self._repository.index()).search(query, limit)

    # --- correcting ---

    async def edit(
        self,
        key: str,
        *,
        text: str | None = None,
        subject: str | None = None,
        attribute: str | None = None,
        value: str | None = None,
        since: float | datetime | None = None,
        until: float | datetime | None = None,
        version: str | None = None,
    ) -> Fact:
        """Edit a fact on its owner's behalf, and return it; None leaves a field unchanged.

        From now on it counts as stated by its owner, and it stays linked to its messages.
        With the `version` of the fact that the correction is based on, it is refused with `Stale`
        if its words were changed since.
        """
        edit = Edit(
            text=text,
            subject=subject,
            attribute=attribute,
            value=value,
            since=seconds_of(since, "since"),
            until=seconds_of(until, "until"),
            version=version,
        )
        known = await self._known(key)
        edit.check(known)
        now = self._repository.clock()
        index = await self._repository.index()

        def change(fact: Noted) -> Noted:
            new = edit.apply(fact, known, now)
            return new._replace(at=_moment(index.slot(slot_of(new))[0], now))

        await self._repository.change(key, change)
        return await self._known(key)

    async def confirm(self, key: str) -> Fact:
        """Release a fact from quarantine: its owner confirms it."""
        known = await self._known(key)
        if known.state == "quarantined":
            now = self._repository.clock()
            await self._repository.change(key, lambda fact: fact._replace(confirmed_at=now))
        return await self._known(key)

    async def forget(self, key: str) -> int:
        """Forget a fact with all its sources; return their number, or 0 if there is no such fact.

        The fact it had replaced becomes current again. The messages stay; see `Memory.forget` to
        erase them.
        """
        index = await self._repository.index()
        mine = index.stored(key)
        if mine is None:
            return 0
        alike = [fact for fact in index.slot(slot_of(mine))[0] if said(fact) == said(mine)]
        return sum([await self._repository.forget(fact.key) for fact in alike])

    # --- as documents ---

    async def to_markdown(self) -> str:
        """Return current and waiting facts as a Markdown document to edit and load again."""
        return markdown.write(self.owner, await self.list(), self._repository.clock())

    async def from_markdown(self, text: str, *, prune: bool = False) -> Loaded:
        """Apply a person's changes of the document: new lines, changed ones, ticked boxes.

        `prune` also forgets the facts whose lines are gone.
        """
        return await load_markdown(self._repository, text, prune=prune)

    async def to_json(self) -> JSON:
        """Return all facts, including ones that are not current, as plain JSON."""
        return documents.to_json(self.owner, await self._repository.noted())

    async def from_json(self, value: JSON) -> Loaded:
        """Add the facts of `to_json` that are missing here; the document cannot raise their trust.

        A plain list is accepted, too: `[{"fact": "Likes tea.", "updated": "2026-11-16"}]`.
        Facts that the owner wrote are remembered. A fact from messages that are stored here is
        noted again; one from other messages waits to be confirmed.
        """
        return await documents.load_json(self._repository, value)

    # --- extracting ---

    async def extract(self, session: str | None = None) -> int:
        """Extract facts from unread messages, of one session or all; return how many are new."""
        if self._extractor is None:
            raise InvalidInput(_NO_MODEL)
        await self._repository.check()
        return await self._extractor.extract_all(self.owner, session)

    async def extracted(self) -> Extracted:
        """Return the cost and results of extraction so far."""
        return await costs(self._repository.store, self.owner)

    async def _known(self, key: str) -> Fact:
        fact = await self._repository.fact(key)
        if fact is None:
            raise InvalidInput(f"there is no fact {key!r}; list them to see their keys")
        return fact


def _moment(slot: Sequence[Noted], now: float) -> float:
    """Return when a fact that is written by hand now counts as said."""
    return moment_after(max([other.at for other in slot], default=-inf), now)


def _place(position: Sequence[object]) -> tuple[float, int, str]:
    """Return where a page of facts begins, from a cursor."""
    check_position(position, (float, int, str))
    since, seq, key = position
    return cast(float, since), cast(int, seq), cast(str, key)


def _id(message: Message | str) -> str:
    return message.id if isinstance(message, Message) else message


def _with_wordings(noted: Noted, fact: Fact) -> Found:
    """Return the earlier wordings of a fact, followed by the fact."""
    earlier = [
        fact._replace(
            text=wording.text,
            value=wording.value,
            state="superseded",
            since=wording.since,
            until=wording.until,
            replaced_by=fact.key,
            replaces="",
        )
        for wording in noted.wordings
    ]
    return [*earlier, fact]
