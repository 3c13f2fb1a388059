"""Stored receipts: which erasures took place, without any of the erased text.

A receipt outlives what it reports, so it stores ids, counts and places alone. Ids of sessions and
messages stay in the store anyway, in tombstones. Names of authors and sources do not, and a source
may be a whole URL: the receipt only notes that one was given.
"""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final, NamedTuple, cast

from keepthread.errors import Stale
from keepthread.memory.forgetting.receipt import AffectedAnswer, Receipt
from keepthread.protocols import Store
from keepthread.stores.kinds import RECEIPT
from keepthread.stores.listing import record_page
from keepthread.types import JSON, Page, Record, Residue, Scope

MAX_PLACES: Final = 1000
"""Answers, and places of repeated text, that a stored receipt names."""
_PAGE: Final = 100
_TEXTS: Final = frozenset(("author", "source"))
_LISTS: Final = ("cleaned", "searched", "repeated")


class StoredReceipt(NamedTuple):
    """The receipt of an erasure, as it is stored: it holds no erased text.

    In `receipt.asked`, an author or a source that was given is null.
    """

    id: str
    began: float
    """When the erasure began, in seconds since 1970; `receipt.at` is when it was done."""
    receipt: Receipt
    resumed: bool = False
    """Whether another process completed it; the counts are then those that were planned."""
    shortened: bool = False
    """Whether only the first 1,000 answers, or places of repeated text, are named."""


def without_text(receipt: Receipt, *, places: int = MAX_PLACES) -> Receipt:
    """Return a receipt as it may be stored: no names of authors and sources, and not too long."""
    asked = {name: None if name in _TEXTS else value for name, value in receipt.asked.items()}
    return replace(
        receipt,
        asked=asked,
        answers=tuple(receipt.answers[:places]),
        repeated=tuple(receipt.repeated[:places]),
    )


async def keep(store: Store, owner: str | None, kept: StoredReceipt) -> None:
    """Store a receipt for the owner who reads it, or for the tenant.

    One that exists is replaced by the process that erased, which counted, and by no other.
    """
    long = max(len(kept.receipt.answers), len(kept.receipt.repeated)) > MAX_PLACES
    value: dict[str, JSON] = {
        "id": kept.id,
        "began": kept.began,
        "receipt": without_text(kept.receipt).to_json(),
        "resumed": kept.resumed,
        "shortened": long,
    }
    # Latest first means by time: a program may make ids that do not sort.
    key = f"{int(kept.began * 1000):015}:{kept.id}"
    with suppress(Stale):
        version = 0 if kept.resumed else None
        await store.put(_scope(owner), RECEIPT, key, value, version=version)


async def read_receipts(
    store: Store, owner: str | None, *, limit: int, cursor: str | None
) -> Page[StoredReceipt]:
    """Return the receipts of an owner or, without one, of the tenant, latest first."""
    of = ("receipts", owner)
    page = await record_page(store, _scope(owner), RECEIPT, of, limit, cursor)
    return Page(map(_stored, page), cursor=page.next)


async def find_receipt(store: Store, owner: str | None, id: str) -> StoredReceipt | None:
    """Return the receipt of one erasure, or None; the latest ones are read first."""
    cursor: str | None = None
    while True:
        page = await read_receipts(store, owner, limit=_PAGE, cursor=cursor)
        for stored in page:
            if stored.id == id:
                return stored
        cursor = page.next
        if cursor is None:
            return None


def receipt_from_json(value: Mapping[str, Any]) -> Receipt:
    """Return the receipt that `Receipt.to_json` wrote."""
    lists: dict[str, Any] = {name: tuple(value[name]) for name in _LISTS}
    lists["answers"] = tuple(AffectedAnswer(**answer) for answer in value["answers"])
    lists["residues"] = tuple(Residue(**residue) for residue in value["residues"])
    return Receipt(**{**value, **lists})


def _stored(record: Record) -> StoredReceipt:
    value = dict(cast(Mapping[str, Any], record.value))
    return StoredReceipt(receipt=receipt_from_json(value.pop("receipt")), **value)


def _scope(owner: str | None) -> Scope:
    return Scope() if owner is None else Scope(owner=owner)
