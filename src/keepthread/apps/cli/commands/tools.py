"""The command for tools over MCP: list the servers of `mcp.json`, add one, and try them."""

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple, cast

import typer

from keepthread.apps.cli.invocation import Call, action_of
from keepthread.apps.cli.sanitize import sanitize
from keepthread.apps.cli.settings.load import mcp_file
from keepthread.apps.cli.settings.mcp import add_server, named_servers, read_servers
from keepthread.errors import InvalidInput, ToolError
from keepthread.orchestrator.mcp import Server, Servers
from keepthread.orchestrator.types import Runnable

_LONGEST: Final = 100


class _ToolArguments(NamedTuple):
    """The arguments after the action."""

    words: Sequence[str]
    url: str | None
    env: Sequence[str]
    header: Sequence[str]
    allow: Sequence[str]
    replace: bool
    yes: bool


async def tools(
    call: Call,
    action: Annotated[str, typer.Argument(metavar="ACTION", help="list, add or test.")] = "list",
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="ARGUMENT",
            help="Of add: NAME, and the program after --. Of test: NAME, TOOL, arguments in JSON.",
        ),
    ] = None,
    url: Annotated[
        str | None, typer.Option(metavar="URL", help="Of add: the address of a server.")
    ] = None,
    env: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Of add: a variable that the program gets; repeatable."),
    ] = None,
    header: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TEXT", help="Of add: such as 'Authorization: Bearer ${KEY}'; repeatable."
        ),
    ] = None,
    allow: Annotated[
        list[str] | None,
        typer.Option(metavar="TOOL", help="Of add: use this tool only; repeatable."),
    ] = None,
    replace: Annotated[
        bool, typer.Option("--replace", help="Of add: replace the server of this name.")
    ] = False,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Of test: call a tool without a question.")
    ] = False,
) -> int:
    """List MCP servers, add one, or test them with their tools.

    They are in mcp.json beside your settings. `test` starts them and lists their tools; with a TOOL
    it calls it, and asks first if the tool may change something. Exits with 1 if one failed.
    """
    given = _ToolArguments(words or (), url, env or (), header or (), allow or (), replace, yes)
    actions = {"list": _list, "add": _add, "test": _test}
    return await action_of(actions, action)(call, given)


async def _list(call: Call, given: _ToolArguments) -> int:
    if given.words:
        raise InvalidInput("list takes no arguments; `keepthread tools test NAME` tries one server")
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


async def _add(call: Call, given: _ToolArguments) -> int:
    if not given.words or (len(given.words) == 1) == (given.url is None):
        raise InvalidInput(
            "a server is a name and a program, or a name and an address:"
            " keepthread tools add NAME -- PROGRAM ARGUMENT …, or add NAME --url URL"
        )
    name, *command = given.words
    entry: dict[str, Any] = {"url": given.url} if given.url else {"command": command[0]}
    if command[1:]:
        entry["args"] = command[1:]
    if given.env:
        entry["env"] = {each: f"${{{each}}}" for each in map(_variable, given.env)}
    if given.header:
        entry["headers"] = dict(map(_header, given.header))
    if given.allow:
        entry["allow"] = list(given.allow)
    path = add_server(os.environ, name, entry, replace=given.replace)
    if call.json:
        call.write({"file": str(path), "server": name})
    call.say(f"Added {name} to {path}; keepthread tools test {name} tries it")
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


async def _test(call: Call, given: _ToolArguments) -> int:
    name, tool, arguments = (*given.words, "", "", "")[:3]
    if len(given.words) > 3:
        raise InvalidInput("test takes NAME, TOOL and the arguments as one JSON object in quotes")
    found = read_servers(os.environ, Path.cwd())
    for note in found.notes:
        call.warn(note)
    servers = [each for each in found.servers if name in ("", each.name)]
    if not servers:
        known = ", ".join(each.name for each in named_servers(os.environ))
        hint = f"mcp.json has {known}" if known else _HOW
        raise InvalidInput(f"there is no server {name!r} to try; {hint}" if name else _HOW)
    if tool:
        return await _call(call, servers, tool, _parsed(arguments), yes=given.yes)
    return await _try(call, servers)


async def _try(call: Call, servers: Sequence[Server]) -> int:
    async with Servers(servers, on_event=call.warn) as running:
        states = running.states
        by_name = {each.tool.name: each for each in running.tools}
    for state in states:
        if call.json:
            call.write(state._asdict() | {"tools": list(state.tools), "running": not state.problem})
        elif not state.problem:
            count = len(state.tools)
            call.say(f"{state.name}: {count:,} {'tool' if count == 1 else 'tools'}")
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
        raise InvalidInput(f"{name} may change something, and nobody can be asked: give --yes")
    given = sanitize(json.dumps(arguments, ensure_ascii=False))
    return typer.confirm(f"{sanitize(name)} may change something. Call it with {given}?", err=True)


def _parsed(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text or "{}")
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise InvalidInput("""the arguments must be one JSON object, such as '{"city": "Lima"}'""")
    return cast("dict[str, Any]", value)
