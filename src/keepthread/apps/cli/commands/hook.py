"""Run a hook of a coding agent; see `keepthread.apps.hooks`."""

import sys
from typing import Annotated, Final

import typer

from keepthread.apps.cli.invocation import Call, OwnerOption
from keepthread.apps.cli.report_types import counted
from keepthread.apps.hooks.client import AGENTS, run
from keepthread.apps.hooks.events import anything_waits, refusals
from keepthread.errors import InvalidInput

_SHOWN: Final = 3
"""The latest refused session files that are shown."""


def hook(
    call: Call,
    agent: Annotated[str, typer.Argument(metavar="AGENT", help=f"The agent: {', '.join(AGENTS)}.")],
    all_projects: Annotated[
        bool,
        typer.Option("--all-projects", help="Recall from every session, not only this project's."),
    ] = False,
    owner: OwnerOption = None,
) -> None:
    """Recall before a prompt of a coding agent, and store after its answer.

    Agents start it: it reads the hook's JSON from standard input, and answers within a second.
    `keepthread mcp install AGENT --hooks` connects one.
    """
    if agent not in AGENTS:
        raise InvalidInput(
            f"hooks for {agent!r} are not supported; choose one of {', '.join(AGENTS)}"
        )
    tenant = str(call.flags.get("memory.tenant") or "")
    place = {"store": call.store or "", "tenant": tenant, "owner": owner or ""}
    given = [word for name, value in place.items() if value for word in (f"--{name}", value)]
    if not sys.stdin.isatty():
        run([agent, *given, *(["--all-projects"] if all_projects else [])])
        return
    call.say(
        "A coding agent starts this command, and sends it what happens:"
        f" `keepthread mcp install {agent} --hooks` connects it"
    )
    options = {name: value for name, value in place.items() if value}
    for line in refusals(options)[-_SHOWN:]:
        call.warn(line)
    if waiting := anything_waits(options):
        call.say(
            f"{counted(waiting, 'session waits', 'sessions wait')} to be stored at the next hook"
        )
