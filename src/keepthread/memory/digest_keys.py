"""The random keys of the digests in explanations: one for each session, one for an owner's facts.

A digest of a short text could be guessed by anyone who reads the database if it had no key. The
keys are records, so a session's key is deleted with the session, and an owner's key is dropped
whenever a fact is forgotten: the digests it covered then reveal nothing.
"""

import secrets
from collections.abc import Iterable
from typing import Final

from keepthread.context.prompt_digests import DigestKeyring
from keepthread.errors import Damaged, SessionGone, Stale
from keepthread.protocols import Store
from keepthread.stores.kinds import WHY_KEY
from keepthread.types import Scope, SessionInfo, SessionKey

_SIZE: Final = 32


async def find_key(store: Store, scope: Scope) -> bytes:
    """Return the key of a scope; empty if there is none."""
    try:
        record = await store.get(scope, WHY_KEY, WHY_KEY)
    except (Damaged, SessionGone):
        return b""
    try:
        return bytes.fromhex(record.value) if record and isinstance(record.value, str) else b""
    except ValueError:  # another program wrote something else
        return b""


async def make_key(store: Store, scope: Scope) -> bytes:
    """Return the key of a scope, a new one if there is none; empty if its session is gone."""
    if key := await find_key(store, scope):
        return key
    key = secrets.token_bytes(_SIZE)
    try:
        await store.put(scope, WHY_KEY, WHY_KEY, key.hex(), version=0)
    except Stale:  # another process made one in the meantime
        return await find_key(store, scope)
    except SessionGone:
        return b""
    return key


async def drop_facts_key(store: Store, owner: str) -> None:
    """Drop the key of the digests that cover an owner's facts: one of them is forgotten."""
    await store.drop(Scope(owner=owner), WHY_KEY, WHY_KEY)


async def keyring(
    store: Store,
    session: SessionKey,
    facts_of: str | None,
    others: Iterable[SessionInfo],
    *,
    make: bool,
) -> DigestKeyring:
    """Return the keys for one explanation; `make` makes those that do not exist.

    `facts_of` is the owner whose facts are shown, if any are.
    """
    take = make_key if make else find_key
    return DigestKeyring(
        session=await take(store, Scope(session=session)),
        facts=b"" if facts_of is None else await take(store, Scope(owner=facts_of)),
        others={info.id: await take(store, Scope(session=info.key)) for info in others},
    )
