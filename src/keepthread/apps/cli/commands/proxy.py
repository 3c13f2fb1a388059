"""Give memory to programs that only change their base URL."""

import hashlib
import logging
import os
import sys
from contextlib import asynccontextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from keepthread.apps.cli.commands.serve import open_memory, proxy_settings
from keepthread.apps.cli.invocation import Call
from keepthread.apps.cli.settings.fields import default_path
from keepthread.apps.cli.settings.load import config_file
from keepthread.apps.cli.stores import is_server, place_of
from keepthread.apps.proxy.settings import upstream_of
from keepthread.errors import InvalidInput
from keepthread.types import Message

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from keepthread.apps.proxy.types import MemoryOfProxy
    from keepthread.types import JSON

KEPT_IN: Final = "proxy-token"
"""The file beside the settings that holds the token of the address."""

_WORD: Final = Message(role="user", content="word")


async def proxy(
    call: Call,
    more: Annotated[
        list[str] | None,
        typer.Argument(metavar="NAME=URL", help="Additional upstreams, in the form of --upstream."),
    ] = None,
    upstream: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=URL",
            help="Where requests go: openai=URL or anthropic=URL"
            " (default: api.openai.com and api.anthropic.com).",
        ),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(metavar="N", help="The port on this machine (default: 8766)."),
    ] = None,
    strict: Annotated[
        bool,
        typer.Option("--strict", help="Refuse requests while the memory is unavailable."),
    ] = False,
    owner: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="The owner of the memory (default: memory.owner)."),
    ] = None,
) -> None:
    """Give memory to programs that only change their base URL.

    Prints the base URL, and relays requests to the provider until Ctrl-C. Earlier messages and
    facts are added to questions, and conversations are recorded. Keys of providers are never
    stored.
    """
    flags: dict[str, JSON] = {
        "proxy.port": port,
        "proxy.strict": strict or None,
        "memory.owner": owner,
    }
    for each in (*(upstream or ()), *(more or ())):
        name, url = upstream_of(each)
        flags[f"proxy.{name}"] = url
    call = call.with_flags(flags)
    local, build, memories = _loaded()
    settings = call.config.settings.proxy
    if not call.store:
        call.config.make_room()

    @asynccontextmanager
    async def opened() -> "AsyncGenerator[MemoryOfProxy]":
        async with open_memory(call, outbox=_outbox(call)) as memory:
            memory.counter.count(_WORD)  # its vocabulary takes longer than the memory may
            mine = memory.for_owner(call.owner)
            tables = memory.store.server_tables()
            yield memories(tables).of(mine, call.tenant, local.CREDENTIAL)

    work = local.Local(
        build=build,
        open_memory=opened,
        settings=proxy_settings(settings),
        token=local.kept_token(config_file(os.environ).with_name(KEPT_IN)),
        port=settings.port,
    )

    def announce(url: str) -> None:
        typer.echo(url)
        sys.stdout.flush()
        if sys.stderr.isatty():
            call.say(f"memory: {place_of(call.url)}, owner {call.owner}")
            call.say(f"OpenAI API: the base URL above; requests go to {settings.openai}")
            call.say(
                f"Anthropic API: the base URL without /v1; requests go to {settings.anthropic}"
            )
            call.say("keep this URL secret: it gives access to the memory. Ctrl-C stops the proxy")

    await local.run(work, announce)


def _outbox(call: Call) -> str | None:
    """Return the file that takes answers while a server is away; a file is never away."""
    if not is_server(call.url):
        return None
    place = hashlib.sha256(f"{call.url} {call.tenant}".encode()).hexdigest()[:12]
    path = default_path().with_name(f"proxy-outbox-{place}.db")
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    return str(path)


def _loaded() -> tuple[Any, Any, Any]:
    """Return the modules of the server; their logs hold no text of messages, and go to stderr."""
    try:
        local = import_module("keepthread.apps.proxy.local")
        assembly = import_module("keepthread.apps.proxy.assembly")
    except ModuleNotFoundError as error:
        raise InvalidInput(
            f"the proxy needs {error.name}: pip install 'keepthread[server]'"
        ) from None
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="keepthread: %(message)s")
    for name in ("httpx2", "httpcore2", "uvicorn"):
        logging.getLogger(name).setLevel(logging.CRITICAL)  # they would log addresses
    return local, assembly.build, assembly.Memories
