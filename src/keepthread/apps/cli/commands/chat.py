"""`keepthread chat`: its options, and which kind of chat they start."""

import os
from typing import Annotated

import typer

from keepthread.apps.cli.chat import one_shot, running, startup
from keepthread.apps.cli.chat.notices import Debug, Log, logged
from keepthread.apps.cli.invocation import Call
from keepthread.errors import InvalidInput


async def chat(  # noqa: PLR0913 - options of the command
    call: Call,
    words: Annotated[
        str | None,
        typer.Argument(metavar="QUESTION", help="One question to answer, as with -p."),
    ] = None,
    latest: Annotated[
        bool,
        typer.Option(
            "--continue",
            "-c",
            help="Continue the latest chat; with a question, the latest session.",
        ),
    ] = False,
    resume: Annotated[
        str | None, typer.Option("--resume", "-r", metavar="ID", help="Continue this session.")
    ] = None,
    session: Annotated[
        str | None,
        typer.Option(metavar="ID", help="Continue this session; create it if it does not exist."),
    ] = None,
    question: Annotated[
        str | None,
        typer.Option(
            "--print",
            "-p",
            metavar="QUESTION",
            help="Answer one question and exit; piped input is added after it.",
        ),
    ] = None,
    attach: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FILE", help="Attach a text file or image to the first question; repeatable."
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            "--model", "-m", metavar="NAME", help="The model (default: from the settings)."
        ),
    ] = None,
    system: Annotated[
        str | None,
        typer.Option(
            "--system",
            "-s",
            metavar="TEXT",
            help="The system prompt; it replaces that of an existing session.",
        ),
    ] = None,
    orchestrate: Annotated[
        bool,
        typer.Option(
            "--orchestrate", help="Plan requests with sub-agents, and use the tools of mcp.json."
        ),
    ] = False,
    no_memory: Annotated[
        bool, typer.Option("--no-memory", help="Do not read or write any memory.")
    ] = False,
    log: Log = None,
    debug: Debug = False,
) -> int:
    """Chat with a model that remembers.

    With a question it answers and exits; piped input is a question, too. Exits with 1 if the one
    answer was cut short. A chat continues such a session by its id: `keepthread chat -r ID`.
    """
    if sum((latest, resume is not None, session is not None)) > 1:
        raise InvalidInput("--continue, --resume and --session exclude each other; give one")
    if words is not None and question is not None:
        raise InvalidInput("there are two questions: give one, with -p or without")
    asked = one_shot.question_of(question if words is None else words)
    if asked is None and call.json:
        raise InvalidInput("--json needs a question: give it with -p, or pipe it in")
    flags = {"model.name": model, "chat.system": system, "chat.orchestrate": orchestrate or None}
    call = call.with_flags(flags | {"memory.enabled": False if no_memory else None})
    wanted = startup.SessionChoice(latest, resume, session, system)
    with logged(log, debug=debug):
        return await running.run(call, wanted, asked, attach or (), os.environ)
