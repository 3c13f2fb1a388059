"""Cursors: opaque texts that say where in a list to continue."""

import binascii
import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Sequence
from hashlib import sha256
from typing import Any, Final, cast

from keepthread.errors import InvalidInput
from keepthread.stores.codec import dumps
from keepthread.stores.validation import MAX_COUNT, check_id
from keepthread.types import JSON

_CHECK: Final = 16
"""Hexadecimal digits that identify the list which a cursor belongs to."""


def encode_cursor(of: Sequence[JSON], position: Sequence[JSON]) -> str:
    """Return a cursor for a position in a list; `of` names the list: what, whose, which filters."""
    data = dumps([_digest(of), *position], "a cursor")
    return urlsafe_b64encode(data).rstrip(b"=").decode()


def decode_cursor(of: Sequence[JSON], cursor: str) -> list[Any]:
    """Return the position in a cursor; refuse one that belongs to another list.

    So a cursor of another owner, order or filter is as invalid as any other text.
    """
    check = position = None
    if type(cursor) is str:
        try:
            padded = cursor.encode() + b"=" * (-len(cursor) % 4)
            check, *position = cast(list[Any], json.loads(urlsafe_b64decode(padded)))
        except (ValueError, TypeError, binascii.Error, RecursionError):
            check = None
    if check != _digest(of) or position is None:
        raise InvalidInput(
            "this is not a cursor of this list; use `next` from a page with the same owner and "
            "filters"
        )
    return position


def decode_name(of: Sequence[JSON], cursor: str) -> str:
    """Return the name in a cursor of a list that is sorted by names."""
    position = decode_cursor(of, cursor)
    check_position(position, (str,))
    return check_id(position[0], "the name in the cursor")


def feed_of(tenant: str, owner: str | None) -> tuple[JSON, ...]:
    """Return the name of a feed of changes, for its cursors: of an owner, or of the tenant."""
    return ("changes", tenant, owner)


def owner_cursor(tenant: str, owner: str, cursor: str) -> str:
    """Return the cursor of an owner's feed at the place of one of the tenant's feed.

    Both feeds have the same order, so a place in one is a place in the other.
    """
    return encode_cursor(feed_of(tenant, owner), decode_cursor(feed_of(tenant, None), cursor))


def check_position(position: Sequence[object], like: Sequence[type]) -> None:
    """Refuse a position that no page returned: its values have other types, or are out of range."""
    is_like = len(position) == len(like) and all(
        type(value) is kind for value, kind in zip(position, like, strict=True)
    )
    if not is_like or any(type(v) is int and not 0 <= v <= MAX_COUNT for v in position):
        raise unreadable_cursor()


def unreadable_cursor() -> InvalidInput:
    """Return the error for a cursor whose position no page returned."""
    return InvalidInput("this cursor is invalid; use `next` from a page, unchanged")


def _digest(of: Sequence[JSON]) -> str:
    return sha256(dumps(list(of), "a list")).hexdigest()[:_CHECK]
