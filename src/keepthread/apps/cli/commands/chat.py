"""`keepthread chat`: what the command line says, and which kind of chat that makes."""

import os
from typing import Annotated

import typer

from keepthread.apps.cli.chat import one_shot, running, startup
from keepthread.apps.cli.invocation import Call
from keepthread.errors import InvalidInput


async def chat(
    call: Call,
    latest: Annotated[
        bool, typer.Option("--continue", "-c", help="Go on with the latest session.")
    ] = False,
    resume: Annotated[
        str | None, typer.Option("--resume", "-r", metavar="ID", help="Go on with this session.")
    ] = None,
    session: Annotated[
        str | None,
        typer.Option(metavar="ID", help="Go on with this session, made if it is not there."),
    ] = None,
    question: Annotated[
        str | None,
        typer.Option(
            "--print",
            "-p",
            metavar="QUESTION",
            help="Answer one question on the output and end; what is piped in goes behind it.",
        ),
    ] = None,
    model: Annotated[
        str | None, typer.Option(metavar="NAME", help="The model; else the settings name it.")
    ] = None,
    system: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="The system prompt; of a session that is there, too."),
    ] = None,
    orchestrate: Annotated[
        bool,
        typer.Option("--orchestrate", help="Plan what is asked, and use the tools of mcp.json."),
    ] = False,
    no_memory: Annotated[
        bool, typer.Option("--no-memory", help="Keep nothing, and remember nothing.")
    ] = False,
) -> int:
    """Chat with a model that remembers.

    Input from a pipe is a question, too. Exits with 1 if the one answer was cut short.
    """
    if sum((latest, resume is not None, session is not None)) > 1:
        raise InvalidInput("--continue, --resume and --session exclude each other; give one")
    asked = one_shot.question_of(question)
    if asked is None and call.json:
        raise InvalidInput("--json answers one question: give it as -p, or pipe it in")
    flags = {"model.name": model, "chat.system": system, "chat.orchestrate": orchestrate or None}
    call = call.with_flags(flags | {"memory.enabled": False if no_memory else None})
    wanted = startup.Wanted(latest, resume, session, system)
    return await running.run(call, wanted, asked, os.environ)
