"""Signed cursors: a client can neither read another's page with one, nor make one up.

A cursor of the library names a place in an order. Here it is signed together with whose it is and
what it is for, so a cursor of another tenant, owner or operation is refused.
"""

import base64
import binascii
import hashlib
import hmac
from typing import Final

from keepthread.apps.http.caller import Caller, Operator
from keepthread.apps.http.problems import Problem

_SIGNATURE: Final = 16
_SEPARATOR: Final = b"\x00"


def sign(caller: Caller | Operator, operation: str, cursor: str) -> str:
    """Return a cursor for the wire, from one of the library.

    `operation` names what it continues, with its filters: a cursor of one search does not continue
    another.
    """
    signed = _signature(caller, operation, cursor.encode()) + cursor.encode()
    return base64.urlsafe_b64encode(signed).decode().rstrip("=")


def unsign(caller: Caller | Operator, operation: str, text: str) -> str:
    """Return the library's cursor; one that is not this caller's is `invalid_cursor`."""
    try:
        signed = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
        signature, cursor = signed[:_SIGNATURE], signed[_SIGNATURE:]
        if hmac.compare_digest(signature, _signature(caller, operation, cursor)):
            return cursor.decode()
    except (ValueError, binascii.Error):
        pass
    raise Problem(
        400,
        "invalid_cursor",
        "This cursor is not from an earlier page of the same request; start without one.",
    )


def _signature(caller: Caller | Operator, operation: str, cursor: bytes) -> bytes:
    owner = f"of {caller.owner}" if isinstance(caller, Caller) else ""
    bound = (caller.tenant, owner, operation)
    # Each part is hashed on its own, so that no two lists of parts look alike.
    parts = [hashlib.sha256(part.encode()).digest() for part in bound]
    message = _SEPARATOR.join([*parts, cursor])
    return hmac.digest(caller.cursor_key, message, "sha256")[:_SIGNATURE]
