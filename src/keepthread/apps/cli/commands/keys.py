"""The command for API keys of the HTTP server: make, list, replace and revoke; the audit log."""

import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Annotated, Any, Final, TypeAlias

import typer

from keepthread.apps.cli.actions import Actions
from keepthread.apps.cli.invocation import Call
from keepthread.apps.cli.report_types import counted
from keepthread.apps.http.keys import (
    SCOPES,
    KeyRights,
    NewKey,
    create_key,
    id_in,
    revoke_key,
    rotate_key,
)
from keepthread.errors import InvalidInput
from keepthread.protocols.server import ApiKey, AuditEntry, ServerTables

_BY: Final = "cli"
"""Who made a change, in the audit log."""
_PAGE: Final = 500
_DAY: Final = 86_400.0
_HOUR: Final = 3_600.0

_Id: TypeAlias = Annotated[
    str, typer.Argument(metavar="ID", help="The key's id; `keepthread keys` lists them.")
]
_Ids: TypeAlias = Annotated[
    list[str], typer.Argument(metavar="ID", help="Ids of keys; `keepthread keys` lists them.")
]


async def list_keys(call: Call) -> None:
    """List the keys of the tenant, oldest first; the keys themselves are stored nowhere."""
    now = time.time()
    async with call.tables() as tables:
        found = [key async for key in _every_key(tables, call.tenant)]
    if call.json:
        for key in found:
            call.write(_shown(key, now))
        return
    if not found:
        call.say(f"The tenant {call.tenant} has no keys; `keepthread keys create NAME` makes one")
        return
    rows = [_row(key, now) for key in found]
    with call.paged() as screen:
        screen.rows(rows, "id", "name", "owner", "scopes", "made", "state")


async def create(
    call: Call,
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="A name for the key, such as the program's name.")
    ],
    scopes: Annotated[
        list[str] | None,
        typer.Option(
            "--scope",
            metavar="SCOPE",
            help=f"Scopes: {', '.join(SCOPES)}; several with commas (default: read,write).",
        ),
    ] = None,
    owner: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="The only owner it may act for (default: any)."),
    ] = None,
    days: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Days until it expires (default: never)."),
    ] = None,
) -> None:
    """Create a key for the HTTP server, and print it once.

    A key without --owner is for a program that serves many people: it names the owner of each
    request in a header. A key with the scope admin needs --days.
    """
    now = time.time()
    asked = frozenset(",".join(scopes).split(",") if scopes else ("read", "write"))
    if "admin" in asked and days is None:
        raise InvalidInput("a key with the scope admin manages other keys: give it --days N")
    end = None if days is None else now + days * _DAY
    rights = KeyRights(call.tenant, asked, name, owner, end)
    async with call.tables(create=True) as tables:
        new = await create_key(tables, rights, by=_BY, at=now)
    _show_once(call, new, now)


async def rotate(
    call: Call,
    id: _Id,
    grace: Annotated[
        int, typer.Option(min=0, metavar="HOURS", help="Hours for which the old key stays valid.")
    ] = 0,
) -> None:
    """Replace a key with a new one that has the same rights, and print it once.

    The old key expires at once, or after --grace hours so that programs can switch.
    """
    now = time.time()
    async with call.tables() as tables:
        new = await rotate_key(tables, call.tenant, id_in(id), by=_BY, at=now, grace=grace * _HOUR)
    _show_once(call, new, now)
    when = f"in {counted(grace, 'hour')}" if grace else "now"
    call.say(f"The old key {id_in(id)} expires {when}")


async def revoke(call: Call, ids: _Ids) -> None:
    """Revoke keys: from now on they are refused.

    A whole key is also accepted, for example one that was leaked.
    """
    async with call.tables() as tables:
        for id in map(id_in, ids):
            done = await revoke_key(tables, call.tenant, id, by=_BY, at=time.time())
            if call.json:
                call.write({"id": id, "revoked": done})
            call.say(f"{id} was revoked" if done else f"{id} was already revoked")


async def audit(
    call: Call,
    days: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Only the last N days (default: all entries)."),
    ] = None,
) -> None:
    """List the audit log of the tenant, oldest first: who did what to which ids, and when.

    It has changes of keys, erasures and exports. The server keeps it for `server.audit_days` days.
    """
    since = 0.0 if days is None else time.time() - days * _DAY
    async with call.tables() as tables:
        entries = _every_entry(tables, call.tenant)
        found = [entry async for entry in entries if entry.at >= since]
    if call.json:
        for entry in found:
            call.write(entry._asdict())
        return
    if not found:
        call.say(f"The audit log of the tenant {call.tenant} has no entries")
        return
    rows = [
        (_moment(each.at), each.caller, each.action, each.owner or "-", ", ".join(each.targets))
        for each in found
    ]
    with call.paged() as screen:
        screen.rows(rows, "time", "key", "action", "owner", "ids")


async def _every_entry(tables: ServerTables, tenant: str) -> AsyncIterator[AuditEntry]:
    last = 0
    while page := await tables.list_audit(tenant=tenant, after=last, limit=_PAGE):
        for entry in page:
            yield entry
        last = page[-1].number


async def _every_key(tables: ServerTables, tenant: str) -> AsyncIterator[ApiKey]:
    last: str | None = None
    while page := await tables.list_keys(tenant=tenant, after=last, limit=_PAGE):
        for key in page:
            yield key
        last = page[-1].id


def _show_once(call: Call, new: NewKey, now: float) -> None:
    if call.json:
        call.write({**_shown(new.key, now), "key": new.text})
        return
    typer.echo(new.text)
    key = new.key
    whose = f"owner {key.owner}" if key.owner else "any owner"
    call.say(
        f"Key {key.id} of tenant {key.tenant}, {whose}: {', '.join(_in_order(key))};"
        f" {_state(key, now)}"
    )
    call.say("It is shown only once: store it in a safe place")


def _shown(key: ApiKey, now: float) -> dict[str, Any]:
    """Return a key as JSON, without its digest."""
    known = {name: value for name, value in key._asdict().items() if name != "digest"}
    return {**known, "scopes": _in_order(key), "valid": key.is_valid(now)}


def _in_order(key: ApiKey) -> list[str]:
    return [scope for scope in SCOPES if scope in key.scopes]


def _row(key: ApiKey, now: float) -> tuple[str, ...]:
    scopes, made = ", ".join(_in_order(key)), _day(key.created_at)
    return key.id, key.name, key.owner or "any", scopes, made, _state(key, now)


def _state(key: ApiKey, now: float) -> str:
    if key.revoked_at is not None and key.revoked_at <= now:
        return f"revoked {_day(key.revoked_at)}"
    ends = [end for end in (key.expires_at, key.revoked_at) if end is not None]
    if not ends:
        return "valid"
    return f"{'valid until' if key.is_valid(now) else 'expired'} {_day(min(ends))}"


def _day(seconds: float) -> str:
    return _moment(seconds).partition(" ")[0]


def _moment(seconds: float) -> str:
    try:
        return f"{datetime.fromtimestamp(seconds, tz=UTC).astimezone():%Y-%m-%d %H:%M:%S}"
    except (OverflowError, OSError, ValueError):
        return "?"


keys: Final = Actions(
    """Create and manage the API keys of the HTTP server, and read its audit log.

    A key belongs to one tenant: --tenant chooses it. It is shown when it is made, and never again.
    """,
    {"list": list_keys, "create": create, "rotate": rotate, "revoke": revoke, "audit": audit},
)
