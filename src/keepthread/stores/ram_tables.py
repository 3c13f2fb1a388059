"""The tables of a server in memory, for `RamStore`."""

import itertools
from collections.abc import Callable, Collection
from typing import NamedTuple

from keepthread.stores.backend import Claim, RequestRow
from keepthread.stores.ram_search import RamIndex, exclusive


class _Request(NamedTuple):
    """A request, and the claim of the worker that does it or did it."""

    claim: Claim
    head: bytes | None = None
    body: bytes | None = None
    forgot: bool = False
    """Whether the tenant forgot something since: the body of the answer is not kept."""


class RamTables:
    """Dictionaries, shared by all tenants."""

    def __init__(self, index: RamIndex, check_open: Callable[[], None]) -> None:
        """Start empty, with the lock of a store."""
        self.lock = index.lock
        self._check_open = check_open
        self._keys: dict[str, tuple[str, bytes]] = {}
        self._secrets: dict[str, bytes] = {}
        self._requests: dict[bytes, _Request] = {}
        self._entries: list[tuple[int, str, bytes]] = []
        self._numbers = itertools.count(1)

    # --- API keys ---

    @exclusive
    async def insert_key(self, id: str, tenant: str, data: bytes) -> bool:
        self._check_open()
        return self._keys.setdefault(id, (tenant, data)) == (tenant, data)

    @exclusive
    async def get_key(self, id: str) -> bytes | None:
        self._check_open()
        return self._keys[id][1] if id in self._keys else None

    @exclusive
    async def list_keys(
        self, tenant: str | None, after: str, limit: int
    ) -> list[tuple[str, bytes]]:
        self._check_open()
        found = [(id, data) for id, (of, data) in self._keys.items() if tenant in (None, of)]
        return sorted(each for each in found if each[0] > after)[:limit]

    @exclusive
    async def replace_key(self, id: str, old: bytes, new: bytes) -> bool:
        self._check_open()
        if id not in self._keys or self._keys[id][1] not in (old, new):
            return False
        self._keys[id] = (self._keys[id][0], new)
        return True

    # --- secrets ---

    @exclusive
    async def secret(self, name: str, new: bytes) -> bytes:
        self._check_open()
        return self._secrets.setdefault(name, new)

    # --- requests ---

    @exclusive
    async def begin(self, claim: Claim) -> RequestRow | None:
        self._check_open()
        known = self._requests.get(claim.id)
        if known is None or known.claim.at <= claim.old or self._is_lost(known, claim):
            self._requests[claim.id] = _Request(claim)
            return None
        return RequestRow(known.claim.digest, known.head, known.body)

    def _is_lost(self, known: _Request, claim: Claim) -> bool:
        same = known.head is None and known.claim.digest == claim.digest
        return same and known.claim.at <= claim.dead

    @exclusive
    async def end(self, claim: Claim, head: bytes, body: bytes | None) -> bool:
        self._check_open()
        known = self._requests.get(claim.id)
        if known is None or known.claim.token != claim.token:
            return False
        if known.head is None:
            kept = None if known.forgot else body
            self._requests[claim.id] = known._replace(head=head, body=kept)
        return True

    @exclusive
    async def renew(self, claim: Claim) -> bool:
        self._check_open()
        known = self._requests.get(claim.id)
        if known is None or known.head is not None or known.claim.token != claim.token:
            return False
        renewed = known.claim._replace(at=claim.at)
        self._requests[claim.id] = known._replace(claim=renewed)
        return True

    @exclusive
    async def abandon(self, claim: Claim) -> bool:
        self._check_open()
        known = self._requests.get(claim.id)
        if known is None or known.head is not None or known.claim.token != claim.token:
            return False
        del self._requests[claim.id]
        return True

    @exclusive
    async def purge(self, before: float) -> int:
        self._check_open()
        old = [id for id, known in self._requests.items() if known.claim.at < before]
        for id in old:
            del self._requests[id]
        return len(old)

    # --- the audit log ---

    @exclusive
    async def append(self, tenant: str, data: bytes) -> int:
        self._check_open()
        number = next(self._numbers)
        self._entries.append((number, tenant, data))
        return number

    @exclusive
    async def entries(self, tenant: str | None, after: int, limit: int) -> list[tuple[int, bytes]]:
        self._check_open()
        found = [(n, data) for n, of, data in self._entries if n > after and tenant in (None, of)]
        return found[:limit]

    @exclusive
    async def prune(self, until: int, tenants: Collection[str]) -> int:  # noqa: ARG002 - one list
        self._check_open()
        left = [each for each in self._entries if each[0] > until]
        count = len(self._entries) - len(left)
        self._entries = left
        return count

    # --- tenants ---

    def drop_answers(self, tenant: str) -> None:
        """Delete the bodies of answers, which may repeat what a tenant forgets."""
        for id, known in self._requests.items():
            if known.claim.tenant == tenant:
                self._requests[id] = known._replace(body=None, forgot=True)

    def drop(self, tenant: str) -> bool:
        """Delete the keys and requests of a tenant; return whether there were keys."""
        keys = [id for id, (of, _) in self._keys.items() if of == tenant]
        for id in keys:
            del self._keys[id]
        for id in [id for id, known in self._requests.items() if known.claim.tenant == tenant]:
            del self._requests[id]
        return bool(keys)
