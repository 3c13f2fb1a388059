"""`keepthread discord`: what the command line says."""

import os
from typing import Annotated

import typer

from keepthread.cli.bot import run
from keepthread.cli.call import Call


async def discord(
    call: Call,
    model: Annotated[
        str | None, typer.Option(metavar="NAME", help="The model; else the settings name it.")
    ] = None,
    orchestrate: Annotated[
        bool,
        typer.Option("--orchestrate", help="Let requests be routed and planned, with sub-agents."),
    ] = False,
    tools: Annotated[
        bool,
        typer.Option(
            "--tools", help="Do so with the tools of your mcp.json, for all who may write to it."
        ),
    ] = False,
) -> int:
    """Be a bot on Discord that remembers, until Ctrl-C.

    DISCORD_TOKEN holds the bot's token, and the setting discord.guilds says where it answers.
    """
    call = call.with_flags({"model.name": model})
    return await run(call, os.environ, orchestrated=orchestrate, with_tools=tools)
