"""Commands that copy a store elsewhere and prepare a database: copy, migrate."""

from typing import Annotated, Final

import typer

from keepthread.apps.cli.invocation import Call
from keepthread.apps.cli.report_types import counted
from keepthread.apps.cli.stores import TIMEOUT, is_server, opened, place_of, store_url
from keepthread.errors import InvalidInput
from keepthread.interchange.copy import Comparison, Copied, Copying
from keepthread.stores.url import POSTGRES, scheme_of, store_at

_SHOWN: Final = 20
_PARTITIONS: Final = 16
_MOST_PARTITIONS: Final = 1024


async def copy(
    call: Call,
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="The store to copy from.")],
    target: Annotated[str, typer.Argument(metavar="TARGET", help="The store to copy into.")],
    to_tenant: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="The tenant in the target (default: the same)."),
    ] = None,
    replace: Annotated[
        bool,
        typer.Option(
            "--replace", help="Overwrite records that differ in the target, even undamaged ones."
        ),
    ] = False,
) -> int:
    """Copy a tenant's data into another store, and compare both.

    The target is created if it does not exist. An interrupted copy resumes when it is run again.
    Exits with 1 if anything differs in the end.
    """
    if call.store:
        raise InvalidInput("copy takes both stores as arguments: leave out --store")
    source, target = store_url(source), store_url(target)
    tenant = to_tenant or call.tenant
    if (place_of(source), source, call.tenant) == (place_of(target), target, tenant):
        raise InvalidInput("source and target are the same")
    async with (
        opened(source, tenant=call.tenant) as old,
        opened(target, tenant=tenant, create=True) as new,
    ):
        copying = Copying(old, new, replace=replace)
        with call.progress("Preparing", "sessions") as progress:
            await copying.prepare(progress)
        with call.progress("Copying", "messages") as progress:
            await copying.run(progress)
        with call.progress("Comparing", "messages") as progress:
            await Comparison(copying).run(progress)
    done = copying.done
    _report(call, done, place_of(source), place_of(target))
    return 1 if done.differences or done.damaged else 0


def _report(call: Call, done: Copied, source: str, target: str) -> None:
    counts = {name: getattr(done, name) for name in ("sessions", "messages", "moved")}
    counts |= {"records": done.records, "erased": done.erased}
    differences = [difference._asdict() for difference in done.differences]
    if call.json:
        found = {"damaged": done.damaged, "differences": differences}
        call.write({"same": not differences} | counts | found)
        return
    for what in done.damaged[:_SHOWN]:
        call.warn(f"damaged: {what}")
    for what, session, _ in done.differences[:_SHOWN]:
        call.warn(f"session {session!r}: {what}" if session else what)
    for count, kind in ((len(done.damaged), "damaged"), (len(differences), "different")):
        if count > _SHOWN:
            call.warn(f"{count - _SHOWN:,} more are {kind}; --json names them all")
    call.say(f"Copied {counted(done.moved, 'message')} from {source} to {target}")
    if done.erased:
        erased = counted(done.erased, "message was", "messages were")
        call.say(f"{erased} erased at the source since, and now at the target")
    totals = {"session": done.sessions, "message": done.messages, "record": done.records}
    seen = ", ".join(counted(count, one) for one, count in totals.items())
    call.say(f"Compared {seen}: {'not all' if differences else 'all'} the same in both")
    if differences:
        call.say("Run it again when the source is idle; --replace overwrites the target's records")


async def migrate(
    call: Call,
    partitions: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=_MOST_PARTITIONS,
            metavar="N",
            help="Partitions of a new database (default: 16).",
        ),
    ] = None,
) -> None:
    """Create the tables of a PostgreSQL database.

    If several processes run it at once, one creates them and the others wait. Other stores need
    no such step.
    """
    url = call.url
    before, after = await _formats(call, url, partitions or _PARTITIONS)
    if call.json:
        call.write({"store": place_of(url), "from": before, "to": after})
    if before < after:
        call.say(f"{place_of(url)} was empty and has format {after} now")
    else:
        named = f" has format {after}" if after else " needs no format"
        call.say(f"{place_of(url)}{named}: nothing to do")
    if partitions and before:
        call.warn("partitions are set when a database is created and cannot be changed later")


async def _formats(call: Call, url: str, partitions: int) -> tuple[int, int]:
    """Create what is missing; return the format that the store had, and the one it has."""
    if not is_server(url):
        async with call.file() as store:
            return (found := (await store.facts()).format), found
    store_at(url)  # refuses an address that cannot be right
    if scheme_of(url) not in POSTGRES:
        return 0, 0
    from keepthread.stores.postgres.server import FORMAT, PgServer  # noqa: PLC0415 - an extra

    server = PgServer(url, timeout=TIMEOUT)
    return await server.begin(migrate=True, partitions=partitions), FORMAT
