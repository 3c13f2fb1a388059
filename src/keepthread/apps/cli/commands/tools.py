"""The command for tools over MCP: list the servers of `mcp.json`, add one, and try them."""

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Final, cast

import typer

from keepthread.apps.cli.actions import Actions
from keepthread.apps.cli.invocation import Call
from keepthread.apps.cli.report_types import counted
from keepthread.apps.cli.sanitize import sanitize
from keepthread.apps.cli.settings.load import mcp_file
from keepthread.apps.cli.settings.mcp import add_server, named_servers, read_servers
from keepthread.errors import InvalidInput, ToolError
from keepthread.orchestrator.mcp import Server, Servers
from keepthread.orchestrator.types import Runnable

_LONGEST: Final = 100


async def list_servers(call: Call) -> int:
    """List the servers of mcp.json."""
    found = named_servers(os.environ)
    if call.json:
        for each in found:
            call.write(each._asdict())
    elif found:
        rows = [(each.name, each.reached, "disabled" if each.disabled else "") for each in found]
        call.screen.rows(rows, "server", "command or url", "")
    else:
        call.say(f"There are no servers in {mcp_file(os.environ)}; {_HOW}")
    return 0


_HOW: Final = "add one: keepthread tools add NAME -- PROGRAM ARGUMENT …"


async def add_to_servers(
    call: Call,
    name: Annotated[str, typer.Argument(metavar="NAME", help="A name for the server.")],
    command: Annotated[
        list[str] | None,
        typer.Argument(metavar="PROGRAM", help="After --: the program, and its arguments."),
    ] = None,
    url: Annotated[str | None, typer.Option(metavar="URL", help="The URL of a server.")] = None,
    env: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="A variable that the program gets; repeatable."),
    ] = None,
    header: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TEXT", help="A header such as 'Authorization: Bearer ${KEY}'; repeatable."
        ),
    ] = None,
    allow: Annotated[
        list[str] | None, typer.Option(metavar="TOOL", help="Use this tool only; repeatable.")
    ] = None,
    replace: Annotated[
        bool, typer.Option("--replace", help="Replace the server of this name.")
    ] = False,
) -> int:
    """Add a server: a program after --, or a URL with --url."""
    command = command or []
    if bool(command) == bool(url):
        raise InvalidInput(
            "give a name and a program, or a name and a URL:"
            " keepthread tools add NAME -- PROGRAM ARGUMENT …, or add NAME --url URL"
        )
    entry: dict[str, Any] = {"url": url} if url else {"command": command[0]}
    if command[1:]:
        entry["args"] = command[1:]
    if env:
        entry["env"] = {each: f"${{{each}}}" for each in map(_variable, env)}
    if header:
        entry["headers"] = dict(map(_header, header))
    if allow:
        entry["allow"] = list(allow)
    path = add_server(os.environ, name, entry, replace=replace)
    if call.json:
        call.write({"file": str(path), "server": name})
    call.say(f"Added {name} to {path}; `keepthread tools test {name}` tests it")
    return 0


def _variable(name: str) -> str:
    if "=" in name or not name.isprintable() or not name:
        raise InvalidInput(
            "--env takes the name of a variable, without its value: that stays in the environment"
        )
    return name


def _header(text: str) -> tuple[str, str]:
    name, colon, value = text.partition(":")
    if not colon or not name.strip() or not value.strip():
        raise InvalidInput("--header must be like 'Authorization: Bearer ${KEY}'")
    return name.strip(), value.strip()


# --- trying ---


async def try_servers(
    call: Call,
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME", help="The server to test (default: all).", show_default=False
        ),
    ] = "",
    tool: Annotated[
        str,
        typer.Argument(metavar="TOOL", help="A tool of this server to call.", show_default=False),
    ] = "",
    arguments: Annotated[
        str,
        typer.Argument(metavar="JSON", help="The arguments, as a JSON object.", show_default=False),
    ] = "",
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Call the tool without asking.")] = False,
) -> int:
    """Start the servers and list their tools, or call one tool.

    It asks first if the tool may have side effects. Exits with 1 if a server or a tool failed.
    """
    found = read_servers(os.environ, Path.cwd())
    for note in found.notes:
        call.warn(note)
    servers = [each for each in found.servers if name in ("", each.name)]
    if not servers:
        known = ", ".join(each.name for each in named_servers(os.environ))
        hint = f"mcp.json has {known}" if known else _HOW
        raise InvalidInput(f"there is no server {name!r}; {hint}" if name else _HOW)
    if tool:
        return await _call(call, servers, tool, _parsed(arguments), yes=yes)
    return await _try(call, servers)


async def _try(call: Call, servers: Sequence[Server]) -> int:
    async with Servers(servers, on_event=call.warn) as running:
        states = running.states
        by_name = {each.tool.name: each for each in running.tools}
    for state in states:
        if call.json:
            call.write(state._asdict() | {"tools": list(state.tools), "running": not state.problem})
        elif not state.problem:
            call.say(f"{state.name}: {counted(len(state.tools), 'tool')}")
            call.screen.rows([_row(by_name[each]) for each in state.tools], "", "", "")
    return 1 if any(state.problem for state in states) else 0


def _row(tool: Runnable) -> tuple[str, str, str]:
    about = " ".join(tool.tool.description.split())
    short = about if len(about) <= _LONGEST else f"{about[: _LONGEST - 1]}…"
    return tool.tool.name, "may change something" if tool.side_effects else "only reads", short


async def _call(
    call: Call, servers: Sequence[Server], name: str, arguments: dict[str, Any], *, yes: bool
) -> int:
    async with Servers(servers, on_event=call.warn) as running:
        found = {each.tool.name: each for each in running.tools}
        if name not in found:
            known = ", ".join(found) or "none"
            raise InvalidInput(f"there is no tool {name!r}; there are {known}")
        tool = found[name]
        if tool.side_effects and not yes and not _agrees(name, arguments):
            call.say("Nothing was called")
            return 1
        try:
            result = await tool.run(**arguments)
        except ToolError as error:
            call.warn(f"{name} failed: {error}")
            return 1
    if call.json:
        call.write({"tool": name, "result": result})
    else:
        typer.echo(sanitize(str(result), lines=True))
    return 0


def _agrees(name: str, arguments: dict[str, Any]) -> bool:
    """Ask before a tool is called that may change something."""
    if not sys.stdin.isatty():
        raise InvalidInput(
            f"{name} may have side effects, and there is no terminal to ask: use --yes"
        )
    given = sanitize(json.dumps(arguments, ensure_ascii=False))
    return typer.confirm(f"{sanitize(name)} may have side effects. Call it with {given}?", err=True)


def _parsed(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text or "{}")
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise InvalidInput("""the arguments must be one JSON object, such as '{"city": "Lima"}'""")
    return cast("dict[str, Any]", value)


tools: Final = Actions(
    """List MCP servers, add one, or test them with their tools.

    They are listed in mcp.json next to your settings file.
    """,
    {"list": list_servers, "add": add_to_servers, "test": try_servers},
)
