"""Serve the memory to MCP clients: coding agents, editors and assistants."""

import logging
import os
import sys
from difflib import unified_diff
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from keepthread.apps.cli.actions import Actions
from keepthread.apps.cli.chat.startup import chat_counter
from keepthread.apps.cli.invocation import Call
from keepthread.apps.cli.settings.load import write_private
from keepthread.apps.cli.stores import file_of, is_server, place_of
from keepthread.apps.cli.wiring import context_options
from keepthread.apps.mcp.actions import ClientMemory
from keepthread.apps.mcp.clients import CLIENTS, snippet, with_entry, without_entry
from keepthread.errors import InvalidInput
from keepthread.stores.url import shown

_SERVER: Final = "keepthread.apps.mcp.server"
"""The module that loads the SDK, which takes a second."""


async def serve_client(
    call: Call,
    allow_forget: Annotated[
        bool, typer.Option("--allow-forget", help="Let the client erase facts: forget_fact.")
    ] = False,
) -> None:
    """Serve the memory to the client that started this command, over standard input and output.

    It serves the memory of the setting memory.owner, and ends when the client ends.
    """
    server = _loaded()
    settings = call.config.settings
    options = context_options(settings, chat_counter(os.environ, settings.tokenizer))
    async with call.memory(create=True, options=options) as memory:
        mine = memory.for_owner(call.owner)

        def memory_of(request: Any) -> ClientMemory:
            name = server.client_of(request)
            return ClientMemory(memory=mine, client=name, may_forget=allow_forget)

        if sys.stdin.isatty():
            call.say(
                f"Serving the memory in {place_of(call.url)}. MCP clients start this command:"
                " `keepthread mcp install CLIENT` connects one; Ctrl-D ends it"
            )
        await server.serve_streams(memory_of)


def _loaded() -> Any:
    """Return the module of the server; its logs hold no text of messages, and go to stderr."""
    try:
        server = import_module(_SERVER)
    except ModuleNotFoundError as error:
        raise InvalidInput(
            f"the MCP server needs {error.name}: pip install 'keepthread[cli,mcp]'"
        ) from None
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="keepthread: %(message)s")
    logging.getLogger("mcp").setLevel(logging.CRITICAL)  # it would log what clients send
    return server


# --- connecting a client ---


def install(
    call: Call,
    client: Annotated[
        str, typer.Argument(metavar="CLIENT", help=f"The client: {', '.join(CLIENTS)}.")
    ],
    write: Annotated[
        bool, typer.Option("--write", help="Show the difference, and write the client's file.")
    ] = False,
    remove: Annotated[
        bool, typer.Option("--remove", help="Take the entry out of the client's file again.")
    ] = False,
    file: Annotated[
        str | None,
        typer.Option(metavar="PATH", help="Another file, such as a project's .mcp.json."),
    ] = None,
    allow_forget: Annotated[
        bool, typer.Option("--allow-forget", help="Let the client erase facts: forget_fact.")
    ] = False,
) -> None:
    """Print the entry that connects a client to this memory, or write it into its settings.

    Other entries and comments of the file stay as they are.
    """
    settings = CLIENTS.get(client)
    if settings is None:
        raise InvalidInput(f"{client!r} is not a known client; choose one of {', '.join(CLIENTS)}")
    if write and remove:
        raise InvalidInput("give --write to add the entry or --remove to take it out, not both")
    path = Path(file).expanduser() if file else settings.path(os.environ, Path.home())
    command = [*_program(), "mcp", *_place(call), *(["--allow-forget"] if allow_forget else [])]
    if not write and not remove:
        _print(call, client, path, snippet(settings, path, command))
        return
    before = path.read_text(encoding="utf-8") if path.exists() else ""
    if remove:
        after = without_entry(settings, path, before)
    else:
        after = with_entry(settings, path, before, command)
    changed = after != before
    if changed:
        _show_difference(call, path, before, after)
        write_private(path, after)
    if call.json:
        call.write({"client": client, "file": str(path), "changed": changed})
    elif not changed:
        state = "has no such entry" if remove else "has this entry already"
        call.say(f"{path} {state}, and stays as it is")
    elif remove:
        call.say(f"keepthread was removed from {settings.title}; restart it")
    else:
        call.say(f"{settings.title} is connected; restart it. --remove undoes this")


def _program() -> list[str]:
    """Return how to start this program from anywhere: clients often have another PATH."""
    own = Path(sys.argv[0])
    if own.stem == "keepthread" and own.is_file():
        return [str(own.absolute())]
    return [sys.executable, "-m", "keepthread"]


def _place(call: Call) -> list[str]:
    """Return the options that name the store and the tenant, as far as the command line does."""
    tenant = call.flags.get("memory.tenant")
    named = ["--tenant", str(tenant)] if tenant else []
    if not call.store:
        return named
    if not is_server(call.store):
        return ["--store", str(file_of(call.store).absolute()), *named]
    if shown(call.store) != call.store:
        raise InvalidInput(
            "the address holds a password, which must not be in a client's file: set memory.url in"
            " your settings, and leave out --store"
        )
    return ["--store", call.store, *named]


def _print(call: Call, client: str, path: Path, text: str) -> None:
    if call.json:
        call.write({"client": client, "file": str(path), "entry": text})
        return
    call.say(f"Add this to {path}, or run `keepthread mcp install {client} --write`:")
    typer.echo(text.rstrip("\n"))


def _show_difference(call: Call, path: Path, before: str, after: str) -> None:
    call.say(f"{path}:")
    for line in unified_diff(before.splitlines(), after.splitlines(), lineterm="", n=1):
        if not line.startswith(("---", "+++", "@@")):
            call.say(f"  {line}")


mcp: Final = Actions(
    """Serve the memory to coding agents and assistants, over the Model Context Protocol.

    Clients start `keepthread mcp` themselves; `keepthread mcp install CLIENT` connects one.
    """,
    {"serve": serve_client, "install": install},
)
