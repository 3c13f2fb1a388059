"""The facts about one owner on a server."""

from collections.abc import Sequence
from datetime import datetime
from typing import Final, Literal

from keepthread.errors import InvalidInput, NotFound, Unsupported
from keepthread.memory.facts.facts import Facts
from keepthread.memory.facts.types import Extracted, Fact, Found, Loaded
from keepthread.memory.remote.connection import ApiRequest, given, segment
from keepthread.memory.remote.requests import PAGE, Requests
from keepthread.memory.remote.values import from_json
from keepthread.stores.validation import check_count, check_id, seconds_of
from keepthread.types import JSON, Message, Page

_MARKDOWN: Final = "/documents/markdown"
_JSON: Final = "/documents/json"


class RemoteFacts(Facts):
    """The facts about one owner on a server; get it from `OwnerMemory.facts`."""

    def __init__(self, requests: Requests) -> None:
        """Take requests of the owner."""
        self._requests = requests.below("/facts")
        self._connection = requests.connection

    @property
    def owner(self) -> str:
        """Return whose facts they are."""
        return self._requests.owner

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
        """Note a fact and return it; one that is already noted is returned unchanged."""
        body = {
            "text": text,
            "subject": subject,
            "attribute": attribute,
            "value": value,
            "many": many,
            "messages": [m.id if isinstance(m, Message) else m for m in messages],
            "agent": agent,
            "by": by,
            "source": source,
            **given(
                session=session,
                since=seconds_of(since, "since"),
                until=seconds_of(until, "until"),
            ),
        }
        return from_json(Fact, await self._requests.json("POST", "", body))

    async def list(
        self,
        *,
        all: bool = False,  # noqa: A002 - what people would say
        at: float | datetime | None = None,
        limit: int | None = None,
        cursor: str | None = None,
    ) -> Page[Fact]:
        """Return the facts that hold or wait to be confirmed, oldest first, or all facts."""
        found: list[Fact] = []
        while True:
            size = PAGE if limit is None else min(PAGE, limit - len(found))
            query = {"all": all, "limit": size, **given(at=seconds_of(at, "at"), cursor=cursor)}
            page = await self._connection.page(Fact, self._requests.route("GET", "", query=query))
            found += page
            cursor = page.next
            if cursor is None or (limit is not None and len(found) >= limit):
                return Page(found, cursor=cursor)

    async def get(self, key: str) -> Fact | None:
        """Return one fact, or None."""
        try:
            return from_json(Fact, await self._requests.json("GET", _path(key)))
        except NotFound:
            return None

    async def history(self, key: str) -> Found:
        """Return all facts of a fact's slot, oldest first, with their earlier wordings."""
        try:
            route = self._requests.route("GET", f"{_path(key)}/history")
            return await self._connection.page(Fact, route)
        except NotFound:
            return []

    async def search(self, query: str, *, limit: int = 10) -> Found:
        """Return the facts that share words with a question, the best first."""
        limit = min(check_count(limit, "limit"), PAGE)
        if not limit:
            return []
        route = self._requests.route("POST", "/search", {"query": query, "limit": limit})
        return await self._connection.page(Fact, route)

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
        """Correct a fact by its owner's word; None leaves a field as it is."""
        body = given(
            text=text,
            subject=subject,
            attribute=attribute,
            value=value,
            since=seconds_of(since, "since"),
            until=seconds_of(until, "until"),
        )
        match = {"If-Match": "*" if version is None else f'"{version}"'}
        route = self._requests.route("PATCH", _path(key), body, headers=match)
        return await self._changed(route)

    async def confirm(self, key: str) -> Fact:
        """Take a fact out of quarantine: its owner vouches for it."""
        return await self._changed(self._requests.route("POST", f"{_path(key)}/confirm"))

    async def _changed(self, route: ApiRequest) -> Fact:
        """Send a change of a fact; one that does not exist is an input that is not valid."""
        try:
            return from_json(Fact, await self._connection.json(route))
        except NotFound as error:
            raise InvalidInput(f"{error}; list them to see their keys") from None

    async def forget(self, key: str) -> int:
        """Forget a fact in every place it was said; return how many there were."""
        try:
            return (await self._requests.json("DELETE", _path(key)))["count"]
        except NotFound:
            return 0

    # --- as documents ---

    async def to_markdown(self) -> str:
        """Return the facts that hold or wait as a document that people can edit and load again."""
        return (await self._requests.json("GET", _MARKDOWN))["text"]

    async def from_markdown(self, text: str, *, prune: bool = False) -> Loaded:
        """Apply a person's changes of the document; `prune` needs a key that may forget."""
        body = {"text": text, "prune": prune}
        return from_json(Loaded, await self._requests.json("POST", _MARKDOWN, body, once=True))

    async def to_json(self) -> JSON:
        """Return all facts, also those that no longer hold, as plain JSON."""
        return (await self._requests.json("GET", _JSON))["facts"]

    async def from_json(self, value: JSON) -> Loaded:
        """Add the facts of `to_json` that are missing; the document cannot raise their trust."""
        body = {"facts": value}
        return from_json(Loaded, await self._requests.json("POST", _JSON, body, once=True))

    # --- what needs the store ---

    async def extract(self, session: str | None = None) -> int:
        """Raise `Unsupported`: the server extracts facts by its own settings."""
        del session
        raise _not_here()

    async def extracted(self) -> Extracted:
        """Raise `Unsupported`; see `extract`."""
        raise _not_here()


def _path(key: str) -> str:
    return f"/{segment(check_id(key, 'a key'))}"


def _not_here() -> Unsupported:
    return Unsupported("the server extracts facts according to its own settings, not on request")
