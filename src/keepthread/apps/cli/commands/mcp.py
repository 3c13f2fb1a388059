"""Serve the memory to MCP clients: coding agents, editors and assistants."""

import logging
import os
import sys
from collections.abc import Sequence
from difflib import unified_diff
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple, Protocol

import typer

from keepthread.apps.cli.actions import Actions
from keepthread.apps.cli.chat.startup import chat_counter
from keepthread.apps.cli.invocation import Call, OwnerOption
from keepthread.apps.cli.settings.load import write_private
from keepthread.apps.cli.stores import file_of, is_server, place_of
from keepthread.apps.cli.wiring import context_options
from keepthread.apps.mcp.actions import ClientMemory
from keepthread.apps.mcp.clients import (
    CLIENTS,
    KEY_VARIABLE,
    SettingsFile,
    server_address,
    with_entry,
    without_entry,
)
from keepthread.apps.mcp.hook_entries import HOOK_FILES, with_hooks, without_hooks
from keepthread.errors import InvalidInput
from keepthread.stores.url import shown
from keepthread.stores.validation import check_id

_SERVER: Final = "keepthread.apps.mcp.server"
"""The module that loads the SDK, which takes a second."""


async def serve_client(
    call: Call,
    allow_forget: Annotated[
        bool, typer.Option("--allow-forget", help="Let the client erase facts: forget_fact.")
    ] = False,
    owner: OwnerOption = None,
) -> None:
    """Serve the memory to the client that started this command, over standard input and output.

    It serves the memory of one owner, and ends when the client ends.
    """
    server = _loaded()
    settings = call.config.settings
    options = context_options(settings, chat_counter(os.environ, settings.tokenizer))
    async with call.memory(create=True, options=options) as memory:
        mine = memory.for_owner(call.owner if owner is None else owner)

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


def install(  # noqa: PLR0913 - options of the command
    call: Call,
    client: Annotated[
        str, typer.Argument(metavar="CLIENT", help=f"The client: {', '.join(CLIENTS)}.")
    ],
    write: Annotated[
        bool, typer.Option("--write", help="Show the diff, and write the client's file.")
    ] = False,
    remove: Annotated[
        bool, typer.Option("--remove", help="Remove the entry from the client's file.")
    ] = False,
    file: Annotated[
        str | None,
        typer.Option(metavar="PATH", help="Write to another file, such as a project's .mcp.json."),
    ] = None,
    allow_forget: Annotated[
        bool, typer.Option("--allow-forget", help="Let the client erase facts: forget_fact.")
    ] = False,
    url: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help=f"Connect to a server's /mcp URL instead; its key is in {KEY_VARIABLE}.",
        ),
    ] = None,
    hooks: Annotated[
        bool,
        typer.Option(
            "--hooks",
            help=f"Also install hooks (recall and store), for {' and '.join(HOOK_FILES)}.",
        ),
    ] = False,
    all_projects: Annotated[
        bool,
        typer.Option("--all-projects", help="Let the hooks recall from every project's sessions."),
    ] = False,
    owner: OwnerOption = None,
) -> None:
    """Print the entry that connects a client to this memory, or write it into its settings.

    Other entries and comments of the file stay as they are. --remove also removes the hooks.
    """
    settings = CLIENTS.get(client)
    if settings is None:
        raise InvalidInput(f"{client!r} is not a known client; choose one of {', '.join(CLIENTS)}")
    if write and remove:
        raise InvalidInput("give --write to add the entry or --remove to take it out, not both")
    if hooks:
        _check_hooks(client, url=url, file=file)
    path = _named_file(file) if file else settings.path(os.environ, Path.home())
    if url is not None and owner is not None:
        raise InvalidInput("the server's key determines the owner: use --url without --owner")
    at = [] if remove or url is not None else _place(call, owner)
    place = [*_program(), "mcp", *at, *(["--allow-forget"] if allow_forget else [])]
    entry = _ClientEntry(path, settings, place if url is None else server_address(url))
    changes: list[_SettingsChange] = [entry]
    if hooks or (remove and client in HOOK_FILES and not file):
        everything = ["--all-projects"] if all_projects else []
        hook = [*_program(), "hook", client, *at, *everything]
        changes.append(_Hooks(HOOK_FILES[client].path(os.environ, Path.home()), client, hook))
    if write or remove:
        if file:
            _check_file(path)
        _change(call, client, changes, remove=remove, follow_links=not file)
    else:
        _print(call, client, changes)


def _check_hooks(client: str, *, url: str | None, file: str | None) -> None:
    if client not in HOOK_FILES:
        raise InvalidInput(f"--hooks supports only {' and '.join(HOOK_FILES)}")
    if url is not None or file is not None:
        raise InvalidInput(
            "hooks use the store on this machine and the agent's own file: use --hooks without "
            "--url and --file"
        )


class _SettingsChange(Protocol):
    """A change of a file of settings."""

    @property
    def path(self) -> Path: ...

    def added(self, text: str) -> str: ...

    def removed(self, text: str) -> str: ...


class _ClientEntry(NamedTuple):
    """The entry of the MCP server."""

    path: Path
    settings: SettingsFile
    server: Sequence[str] | str

    def added(self, text: str) -> str:
        return with_entry(self.settings, self.path, text, self.server)

    def removed(self, text: str) -> str:
        return without_entry(self.settings, self.path, text)


class _Hooks(NamedTuple):
    """The hooks of an agent."""

    path: Path
    agent: str
    command: Sequence[str]

    def added(self, text: str) -> str:
        return with_hooks(self.agent, self.path, text, self.command)

    def removed(self, text: str) -> str:
        return without_hooks(self.agent, self.path, text)


def _named_file(file: str) -> Path:
    """Return the path of --file, whose links are not followed: not even before a `..`."""
    return Path(os.path.abspath(Path(file).expanduser()))  # noqa: PTH100 - resolve follows links


def _check_file(path: Path) -> None:
    """Refuse anything but a file, and a file that a link in its project leads to.

    The project may be a cloned repository, with a link to a file that the user does not mean to
    change. Links above the project, or above the home folder, are the user's own.
    """
    if path.exists() and not path.is_file():
        raise InvalidInput(f"{path} is not a file")
    for each in (path, *path.parents):
        if each in (Path.cwd(), Path.home()):
            return
        if each.is_symlink():
            raise InvalidInput(
                f"{each} is a link to {each.readlink()}, and --file follows no links in a project;"
                f" to change that file, use --file {os.path.realpath(path)}"
            )
        if (each / ".git").exists():
            return


def _change(
    call: Call,
    client: str,
    changes: Sequence[_SettingsChange],
    *,
    remove: bool,
    follow_links: bool,
) -> None:
    """Change each file, after all changes were found possible, and report it."""
    texts = [(each.path, _text_of(each.path)) for each in changes]
    done = [
        each.removed(text) if remove else each.added(text)
        for each, (_, text) in zip(changes, texts, strict=True)
    ]
    changed = [(*each, after) for each, after in zip(texts, done, strict=True) if each[1] != after]
    for path, before, after in changed:
        _show_difference(call, path, before, after)
        write_private(path, after, follow_links=follow_links)
    title = CLIENTS[client].title
    if call.json:
        files = [str(path) for path, _, _ in changed]
        call.write({"client": client, "file": str(texts[0][0]), "changed": bool(files)})
    elif not changed:
        state = "has no such entry" if remove else "already has this entry"
        call.say(f"{' and '.join(str(path) for path, _ in texts)} {state}; it is unchanged")
    elif remove:
        call.say(f"keepthread was removed from {title}; restart it")
    else:
        call.say(f"{title} is connected; restart it. --remove undoes this")
        _say_next(call, client, changes)


def _text_of(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.exists() else ""


def _say_next(call: Call, client: str, changes: Sequence[_SettingsChange]) -> None:
    """Show what is left to do by hand."""
    if any(isinstance(each, _ClientEntry) and isinstance(each.server, str) for each in changes):
        call.say(
            f"Set {KEY_VARIABLE} to the server's key in the environment of {CLIENTS[client].title}"
        )
    if client == "codex" and any(isinstance(each, _Hooks) for each in changes):
        call.say("Codex runs new hooks only after you trust them: open /hooks in Codex")


def _program() -> list[str]:
    """Return how to start this program from anywhere: clients often have another PATH."""
    own = Path(sys.argv[0])
    if own.stem == "keepthread" and own.is_file():
        return [str(own.absolute())]
    # Without -P, Python would load modules from the folder that the client works in.
    return [sys.executable, "-P", "-m", "keepthread"]


def _place(call: Call, owner: str | None) -> list[str]:
    """Return the options that name the memory: the store only if the command line names it.

    The tenant and the owner are those of now: whatever the client is opened in later, its folder
    and the variables that are set there choose neither.
    """
    owner = check_id(call.owner if owner is None else owner, "owner")
    named = ["--tenant", call.tenant, "--owner", owner]
    if not call.store:
        return named
    if not is_server(call.store):
        return ["--store", str(file_of(call.store).absolute()), *named]
    if shown(call.store) != call.store:
        raise InvalidInput(
            "the URL contains a password, which must not be in a client's file: set memory.url in "
            "your settings and leave out --store"
        )
    return ["--store", call.store, *named]


def _print(call: Call, client: str, changes: Sequence[_SettingsChange]) -> None:
    entry, *more = [(each.path, each.added("")) for each in changes]
    if call.json:
        hooks = {"hooks": {"file": str(more[0][0]), "entry": more[0][1]}} if more else {}
        call.write({"client": client, "file": str(entry[0]), "entry": entry[1], **hooks})
        return
    for path, text in (entry, *more):
        call.say(f"Add this to {path}, or run the same command with --write:")
        typer.echo(text.rstrip("\n"))
    _say_next(call, client, changes)


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
