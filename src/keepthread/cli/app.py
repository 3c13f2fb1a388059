"""The commands put together, and what becomes of their errors."""

import asyncio
import inspect
import json
import sys
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Annotated, Any, Final, TypeAlias

import typer

import keepthread
from keepthread.cli import (
    arriving,
    care,
    configuring,
    deriving,
    doctor,
    facts,
    files,
    finding,
    forgetting,
    looking,
    moving,
    spool,
    why,
)
from keepthread.cli.call import STORE_VARIABLE, Call
from keepthread.cli.chat.command import chat
from keepthread.cli.harmless import harmless
from keepthread.errors import KeepthreadError

Store: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--store",
        metavar="URL",
        help="The store: sqlite:///path, postgresql://…, redis://…."
        f" Else {STORE_VARIABLE} or the settings name it.",
    ),
]
Tenant: TypeAlias = Annotated[
    str | None,
    typer.Option("--tenant", metavar="NAME", help="The tenant; else the settings name it."),
]
Json: TypeAlias = Annotated[
    bool, typer.Option("--json", help="Answer in JSON, for programs; errors too.")
]
Version: TypeAlias = Annotated[bool, typer.Option("--version", help="Show the version and exit.")]

INTERRUPTED: Final = 130

app = typer.Typer(
    name="keepthread",
    help="Look after conversations that keepthread keeps: see, move, check.",
    rich_markup_mode=None,  # help in colour would cost as much again as all else at the start
    add_completion=False,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback(invoke_without_command=True)
def options(
    context: typer.Context,
    *,
    store: Store = None,
    tenant: Tenant = None,
    json: Json = False,
    version: Version = False,
) -> None:
    """Take the options that hold for every command, before its name."""
    if version:
        typer.echo(f"keepthread {keepthread.__version__}")
        raise typer.Exit
    context.obj = Call(json=json).with_flags({"memory.url": store, "memory.tenant": tenant})


def command(function: Callable[..., Awaitable[int | None] | int | None], name: str = "") -> None:
    """Make a function a command that takes these options behind its name as well."""
    _, *own = inspect.signature(function).parameters.values()
    common = list(inspect.signature(options).parameters.values())
    parameters = [common[0], *own, *common[1:-1]]

    def run_command(**given: Any) -> int | None:
        call: Call = given.pop("context").obj
        flags = {"memory.url": given.pop("store"), "memory.tenant": given.pop("tenant")}
        call = replace(call.with_flags(flags), json=given.pop("json") or call.json)
        answer = function(call, **given)
        return asyncio.run(_finish(answer)) if isinstance(answer, Awaitable) else answer

    run_command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run_command.__annotations__ = {p.name: p.annotation for p in parameters}
    app.command(name or function.__name__, help=inspect.getdoc(function))(run_command)


async def _finish(answer: Awaitable[int | None]) -> int | None:
    return await answer


for each in (chat, configuring.init, configuring.config):
    command(each)
for each in (looking.sessions, looking.show, finding.search, why.why, files.export):
    command(each)
command(arriving.import_file, "import")
command(facts.facts)
for each in (
    moving.copy,
    files.backup,
    care.prune,
    forgetting.forget,
    deriving.index,
    deriving.fold,
    care.verify,
    care.recount,
    moving.migrate,
    spool.spool,
    doctor.doctor,
):
    command(each)


def run() -> int:
    """Run what the command line says and return the exit status."""
    try:
        status = app(prog_name="keepthread", standalone_mode=False) or 0
    except KeepthreadError as error:
        return _fail(type(error).__name__, str(error))
    except typer.TyperException as error:
        return _fail("Usage", error.format_message())
    except OSError as error:
        return _fail(type(error).__name__, f"{error.filename or 'a file'}: {error.strerror}")
    except typer.Abort:
        return _fail("Aborted", "stopped before anything was done")
    if status == INTERRUPTED:
        _fail("Interrupted", "stopped")
    return status


def _fail(kind: str, message: str) -> int:
    """Say what went wrong in one line, and never with a traceback."""
    if "--json" in sys.argv:
        typer.echo(json.dumps({"error": kind, "message": message}), err=True)
    else:
        typer.secho(f"error: {harmless(message)}", err=True, fg="red")
    return 2
