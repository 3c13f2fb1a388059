"""The tables of a server over any backend: check arguments, encode rows, detect damage.

Each row of a key, of an answer and of the audit log begins with a checksum over its place and its
content, so that a damaged or misplaced row is an error and never a wrong answer.
"""

import os
from hashlib import sha256
from typing import Any, Final

from keepthread.errors import Damaged, InvalidInput
from keepthread.protocols.server import (
    KEPT,
    LEASE,
    ApiKey,
    AuditEntry,
    Begun,
    KeptAnswer,
    RequestId,
)
from keepthread.stores.backend import Claim, RequestRow, TableBackend
from keepthread.stores.codec import dumps, loads
from keepthread.stores.validation import (
    MAX_BYTES,
    check_count,
    check_date,
    check_id,
    check_text,
    show,
)
from keepthread.types import JSON

DIGEST: Final = 32
TOKEN: Final = 16
_SECRET: Final = 32
_CHECK: Final = 8
_SALT: Final = 16
"""Random bytes before a stored body: without them, the digest in the head says nothing of it."""
_STATUSES: Final = range(100, 600)


class CheckedTables:
    """The `ServerTables` of a store."""

    def __init__(self, backend: TableBackend) -> None:
        """Use the tables of an engine."""
        self._backend = backend

    # --- API keys ---

    async def add_key(self, key: ApiKey) -> None:
        _check_key(key)
        if not await self._backend.insert_key(key.id, key.tenant, _encode_key(key)):
            raise InvalidInput(f"API key {key.id!r} already exists")

    async def get_key(self, id: str) -> ApiKey | None:
        data = await self._backend.get_key(check_id(id, "a key's id"))
        return None if data is None else _decode_key(id, data)

    async def list_keys(
        self, *, tenant: str | None = None, after: str | None = None, limit: int = 100
    ) -> list[ApiKey]:
        if tenant is not None:
            check_id(tenant, "tenant")
        first = "" if after is None else check_id(after, "after")
        found = await self._backend.list_keys(tenant, first, check_count(limit, "limit"))
        return [_decode_key(id, data) for id, data in found]

    async def revoke_key(self, id: str, at: float) -> bool:
        end = check_date(at, "at")
        check_id(id, "a key's id")
        while (data := await self._backend.get_key(id)) is not None:
            key = _decode_key(id, data)
            if key.revoked_at is not None and key.revoked_at <= end:
                return False
            new = _encode_key(key._replace(revoked_at=end))
            if await self._backend.replace_key(id, data, new):
                return True
        return False

    # --- secrets ---

    async def secret(self, name: str) -> bytes:
        found = await self._backend.secret(check_id(name, "name"), os.urandom(_SECRET))
        if len(found) != _SECRET:
            raise Damaged(f"the secret {name!r} of the server's tables is damaged")
        return found

    # --- requests that may be retried ---

    async def begin_request(self, request: RequestId, digest: bytes, at: float) -> Begun:
        if type(digest) is not bytes or len(digest) != DIGEST:
            raise InvalidInput(f"digest must be {DIGEST} bytes, not {show(digest)}")
        now = check_date(at, "at")
        id, token = _place(request), os.urandom(TOKEN)
        claim = Claim(id, request.tenant, digest, token, now, now - LEASE, now - KEPT)
        known = await self._backend.begin(claim)
        if known is None:
            return Begun("new", token)
        if known.digest != digest:
            return Begun("mismatch")
        if known.head is None:
            return Begun("in_flight")
        return Begun("done", answer=_decode_answer(id, known))

    async def renew_request(self, request: RequestId, token: bytes, at: float) -> bool:
        return await self._backend.renew(_claimed(request, token, check_date(at, "at")))

    async def end_request(self, request: RequestId, token: bytes, answer: KeptAnswer) -> bool:
        claim = _claimed(request, token)
        keeps = answer.body is not None and len(answer.body) <= MAX_BYTES
        body = os.urandom(_SALT) + (answer.body or b"") if keeps else None
        return await self._backend.end(claim, _encode_answer(claim.id, answer, body), body)

    async def abandon_request(self, request: RequestId, token: bytes) -> bool:
        return await self._backend.abandon(_claimed(request, token))

    async def purge_requests(self, before: float) -> int:
        return await self._backend.purge(check_date(before, "before"))

    # --- the audit log ---

    async def audit(self, entry: AuditEntry) -> int:
        check_id(entry.caller, "caller")
        check_id(entry.tenant, "tenant")
        check_id(entry.action, "action")
        if entry.owner is not None:
            check_id(entry.owner, "owner")
        value: JSON = {
            "at": check_date(entry.at, "at"),
            "caller": entry.caller,
            "tenant": entry.tenant,
            "owner": entry.owner,
            "action": entry.action,
            "targets": [check_id(target, "a target") for target in entry.targets],
        }
        data = dumps(value, "an entry of the audit log")
        return await self._backend.append(entry.tenant, _seal(b"audit", data))

    async def list_audit(
        self, *, tenant: str | None = None, after: int = 0, limit: int = 100
    ) -> list[AuditEntry]:
        if tenant is not None:
            check_id(tenant, "tenant")
        check_count(after, "after")
        found = await self._backend.entries(tenant, after, check_count(limit, "limit"))
        return [_decode_entry(number, data) for number, data in found]

    async def prune_audit(self, before: float, *, limit: int = 1000) -> int:
        end = check_date(before, "before")
        found = await self._backend.entries(None, 0, check_count(limit, "limit") + 1)
        old: list[AuditEntry] = []
        for number, data in found[:-1]:
            if not is_sound_entry(data):
                continue  # it is deleted with the intact entries around it
            entry = _decode_entry(number, data)
            if entry.at >= end:
                break
            old.append(entry)
        if not old:
            return 0
        return await self._backend.prune(old[-1].number, {entry.tenant for entry in old})


def _place(request: RequestId) -> bytes:
    """Return the name of a request in the tables: a digest, because clients choose its parts."""
    check_id(request.tenant, "tenant")
    check_id(request.caller, "caller")
    if not check_text(request.key, "the idempotency key"):
        raise InvalidInput("the idempotency key must not be empty")
    return sha256(dumps(list(request), "a request's id")).digest()


def _claimed(request: RequestId, token: bytes, at: float = 0.0) -> Claim:
    if type(token) is not bytes or len(token) != TOKEN:
        raise InvalidInput("the token must be the one that `begin_request` returned")
    return Claim(_place(request), request.tenant, b"", token, at, 0.0, 0.0)


# --- rows ---


def _seal(place: bytes, data: bytes) -> bytes:
    return sha256(b"%d:%b%b" % (len(place), place, data)).digest()[:_CHECK] + data


def _is_sound(place: bytes, data: object) -> bool:
    return isinstance(data, bytes) and _seal(place, data[_CHECK:]) == data


def _unseal(place: bytes, data: bytes, what: str) -> Any:
    if not _is_sound(place, data):
        raise Damaged(f"{what} of the server's tables is damaged")
    return loads(data[_CHECK:])


def _check_key(key: ApiKey) -> None:
    check_id(key.id, "a key's id")
    check_id(key.tenant, "tenant")
    check_id(key.name, "name")
    if key.owner is not None:
        check_id(key.owner, "owner")
    for scope in key.scopes:
        check_id(scope, "a scope")
    if type(key.digest) is not bytes or len(key.digest) != DIGEST:
        raise InvalidInput(f"the digest of a key must be {DIGEST} bytes")
    check_date(key.created_at, "created_at")
    for end in (key.expires_at, key.revoked_at):
        if end is not None:
            check_date(end, "the end of a key")


def _encode_key(key: ApiKey) -> bytes:
    value: JSON = {
        **key._asdict(),
        "digest": key.digest.hex(),
        "scopes": [*sorted(key.scopes)],
    }
    return _seal(b"key:" + key.id.encode(), dumps(value, "a key"))


def is_sound_key(id: object, data: object) -> bool:
    """Return whether the row of a key is what was written; damage can change types as well."""
    return isinstance(id, str) and _is_sound(b"key:" + id.encode("utf-8", "replace"), data)


def is_sound_entry(data: object) -> bool:
    """Return whether an entry of the audit log is what was written."""
    return _is_sound(b"audit", data)


def _decode_key(id: str, data: bytes) -> ApiKey:
    value = _unseal(b"key:" + id.encode(), data, f"the API key {id!r}")
    value |= {"digest": bytes.fromhex(value["digest"]), "scopes": frozenset(value["scopes"])}
    return ApiKey(**value)


def _encode_answer(id: bytes, answer: KeptAnswer, body: bytes | None) -> bytes:
    if answer.status not in _STATUSES:
        raise InvalidInput(f"status must be from 100 to 599, not {show(answer.status)}")
    digest = None if body is None else sha256(body).hexdigest()
    value: JSON = {
        "status": answer.status,
        "headers": [[name, text] for name, text in answer.headers],
        "body": digest,
    }
    return _seal(b"answer:" + id, dumps(value, "the head of an answer"))


def _decode_answer(id: bytes, row: RequestRow) -> KeptAnswer:
    assert row.head is not None
    value = _unseal(b"answer:" + id, row.head, "the answer to a request")
    if row.body is not None and sha256(row.body).hexdigest() != value["body"]:
        raise Damaged("the answer to a request of the server's tables is damaged")
    headers = tuple((name, text) for name, text in value["headers"])
    return KeptAnswer(value["status"], headers, None if row.body is None else row.body[_SALT:])


def _decode_entry(number: int, data: bytes) -> AuditEntry:
    value = _unseal(b"audit", data, f"entry {number} of the audit log")
    value |= {"targets": tuple(value["targets"]), "number": number}
    return AuditEntry(**value)
