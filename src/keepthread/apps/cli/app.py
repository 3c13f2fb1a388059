"""The commands put together, and what becomes of their errors."""

import inspect
import json
import re
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import replace
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple, TypeAlias, cast

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

import keepthread
from keepthread.apps.cli.sanitize import sanitize
from keepthread.errors import KeepthreadError

if TYPE_CHECKING:
    from keepthread.apps.cli.invocation import Call


class Listed(NamedTuple):
    """Where a command is, and the first line of what it says of itself."""

    module: str
    function: str
    about: str


GROUPS: Final[Mapping[str, Mapping[str, Listed]]] = {
    "Chat": {
        "chat": Listed("chat", "chat", "Chat with a model that remembers."),
        "discord": Listed("discord", "discord", "Run a Discord bot with memory, until Ctrl-C."),
        "init": Listed("config", "init", "Ask five questions, and write your settings."),
        "config": Listed(
            "config", "config", "Show every setting and where its value comes from, or change one."
        ),
        "models": Listed("doctor", "models", "List the models that the service offers."),
        "secrets": Listed(
            "secrets",
            "secrets",
            "Store API keys in the system's keyring, list their names, or delete one.",
        ),
        "tools": Listed(
            "tools", "tools", "List MCP servers, add one, or test them with their tools."
        ),
    },
    "Serve": {
        "serve": Listed("serve", "serve", "Serve the memory over HTTP, until Ctrl-C."),
        "proxy": Listed(
            "proxy", "proxy", "Give memory to programs that only change their base URL."
        ),
        "keys": Listed(
            "keys",
            "keys",
            "Create and manage the API keys of the HTTP server, and read its audit log.",
        ),
        "mcp": Listed(
            "mcp",
            "mcp",
            "Serve the memory to coding agents and assistants, over the Model Context Protocol.",
        ),
        "hook": Listed(
            "hook", "hook", "Recall before a prompt of a coding agent, and store after its answer."
        ),
    },
    "Browse": {
        "sessions": Listed("sessions", "sessions", "List sessions, latest activity first."),
        "show": Listed(
            "sessions",
            "show",
            "Show a session's messages, oldest first, hidden ones included.",
        ),
        "search": Listed(
            "search",
            "search",
            "Find the messages most relevant to a question, in every session or some.",
        ),
        "why": Listed("why", "why", "Show a context: what is included, what is left out, and why."),
        "facts": Listed(
            "facts",
            "facts",
            "Show and edit the facts known about an owner.",
        ),
        "help": Listed("help", "show_help", "Read the guides in the terminal."),
    },
    "Manage": {
        "rename": Listed("sessions", "rename", "Rename a session."),
        "delete": Listed(
            "forget", "delete", "Delete a session with its messages, and keep facts and forks."
        ),
        "forget": Listed(
            "forget",
            "forget",
            "Permanently erase messages, their copies and everything made from them.",
        ),
        "prune": Listed("maintenance", "prune", "Delete sessions without activity for N days."),
        "import": Listed("import_", "import_file", "Read conversations into the store."),
        "export": Listed(
            "export",
            "export",
            "Export sessions as lossless JSON Lines or as readable Markdown.",
        ),
        "copy": Listed(
            "copy", "copy", "Copy a tenant's data into another store, and compare both."
        ),
        "backup": Listed(
            "export",
            "backup",
            "Copy the whole store, every tenant in it, while it stays in use.",
        ),
    },
    "Maintain": {
        "doctor": Listed(
            "doctor",
            "doctor",
            "Check the store, its file and disk, the token counter, and the model.",
        ),
        "verify": Listed("maintenance", "verify", "Check every row, and the file itself."),
        "index": Listed(
            "maintenance",
            "index",
            "Index new messages for search, by words and by vectors.",
        ),
        "compact": Listed(
            "maintenance", "compact", "Compact old turns into summaries, and keep every message."
        ),
        "recount": Listed(
            "maintenance", "recount", "Recompute token counts after changing the tokenizer."
        ),
        "migrate": Listed("copy", "migrate", "Create the tables of a PostgreSQL database."),
        "outbox": Listed(
            "outbox",
            "outbox",
            "Show an outbox: waiting and dropped messages, and those set aside with the reason.",
        ),
        "completion": Listed(
            "completion",
            "completion",
            "Print a shell completion script.",
        ),
    },
}
"""The commands as the help groups them."""
COMMANDS: Final = {name: each for group in GROUPS.values() for name, each in group.items()}


STORE_VARIABLE: Final = "KEEPTHREAD_STORE"
Store: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--store",
        metavar="URL",
        help="The store: a file's path, sqlite:///path, postgresql://… or redis://…"
        f" (default: {STORE_VARIABLE}, or from the settings).",
    ),
]
Tenant: TypeAlias = Annotated[
    str | None,
    typer.Option("--tenant", metavar="NAME", help="The tenant (default: from the settings)."),
]
Json: TypeAlias = Annotated[bool, typer.Option("--json", help="Print results and errors as JSON.")]
NoPager: TypeAlias = Annotated[
    bool, typer.Option("--no-pager", help="Do not use a pager for long output.")
]
Version: TypeAlias = Annotated[
    bool, typer.Option("--version", "-V", help="Show the version and exit.")
]

COMMON: Final = (
    "Options of every command: --store, --tenant, --json and --no-pager; see keepthread --help."
)
"""The end of each command's help, in place of their repetition."""
INTERRUPTED: Final = 130
_CONTINUES: Final = "stopped: completed work is kept; run the same command to continue"
STOPPED: Final = {
    **dict.fromkeys(("import", "copy", "index", "compact", "recount"), _CONTINUES),
    "forget": "stopped: erased data stays erased; run the same command to erase the rest",
    "prune": "stopped: deleted data stays deleted; run the same command to delete the rest",
    "export": "stopped: no partial file is left; run the same command to start over",
    "backup": "stopped: no partial file is left; run the same command to start over",
    "verify": "stopped: nothing was changed; run the same command to start over",
}
"""The message after Ctrl-C: the result so far, and whether running it again continues."""


class StoppedByUser(Exception):
    """Ctrl-C ended a command; the text says what is left of it."""


class _AsItIs:
    """Takes a text or a truth as it is. Typer would load pydantic to do so, and for `None`, too."""

    def coerce(self, value: object, **_: object) -> object:
        return value

    def take(self, parameters: list[Any]) -> list[Any]:
        """Return the parameters, of which those that need no more are taken so."""
        for each in parameters:
            plain = each.type_descriptor.annotation in (str, bool) and not each.multiple
            # There is no other way to say so.
            each._runtime_param = self if plain else _WHEN_GIVEN  # noqa: SLF001
        return parameters


class _WhenGiven:
    """Lets Typer load what checks a value once there is a value: most options are not given."""

    def coerce(self, value: object, *, param: Any, ctx: object) -> object:
        if value is None:
            return () if param.multiple or param.nargs == -1 else None
        param._runtime_param = None  # noqa: SLF001 - Typer makes its own
        return param.get_runtime_param().coerce(value, param=param, ctx=ctx)


_AS_IT_IS: Final = _AsItIs()
_WHEN_GIVEN: Final = _WhenGiven()


class Command(TyperCommand):
    """One command. Its help leaves out the options of every command."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Return what it takes."""
        return _AS_IT_IS.take(super().get_params(ctx))

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments; those too many are not shown, for they may be a secret."""
        ctx.allow_extra_args = True
        if super().parse_args(ctx, args):
            arguments = " ".join(self._arguments(ctx))
            hint = " and nothing after it; put a text of several words in quotes"
            ctx.fail(f"{ctx.info_name} takes {arguments + hint if arguments else 'no argument'}")
        return []

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return the usage: `SESSION` is required, `[SESSION]` is not."""
        return ["[OPTIONS]", *self._arguments(ctx)]

    def _arguments(self, ctx: Any) -> list[str]:
        return [*filter(None, map(usage_of, self.get_params(ctx)))]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write arguments and options, each with the name of what it takes."""
        rows: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
        for each in self.get_params(ctx):
            if record := each.get_help_record(ctx):
                argument = each.param_type_name == "argument"
                name = each.display_name_raw if argument else record[0]
                rows["Arguments" if argument else "Options"].append((name, _bounds(record[1])))
        for title, written in rows.items():
            if written:
                with formatter.section(title):
                    formatter.write_dl(written)


def _bounds(meaning: str) -> str:
    """Return a help text whose bounds are words: `[x>=1]` becomes `[at least 1]`."""
    meaning = re.sub(r"(?<!\d)(\d+)<=x<=(\d+)", r"\1 to \2", meaning)
    return re.sub(r"x>=(\d+)", r"at least \1", meaning)


def usage_of(parameter: Any) -> str:
    """Return an argument as a usage line has it, or nothing for an option."""
    if parameter.param_type_name != "argument":
        return ""
    name = parameter.display_name_raw
    several = "..." if parameter.nargs != 1 else ""
    return f"{name if parameter.required else f'[{name}]'}{several}"


class Program(TyperGroup):
    """All commands, each of them loaded when it is asked for."""

    def __init__(self, **given: Any) -> None:
        """Know where the commands are."""
        super().__init__(**given)
        self.commands = Loading()  # type: ignore[assignment]

    def get_params(self, ctx: Any) -> list[Any]:
        """Return what it takes before the name of a command."""
        return _AS_IT_IS.take(super().get_params(ctx))

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002 - typer's
        """Return their names, in the order of the help."""
        return list(COMMANDS)

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002 - typer's
        """Write what each is about, by groups."""
        width = max(map(len, COMMANDS))
        for title, commands in GROUPS.items():
            with formatter.section(title):
                formatter.write_dl(
                    [(name.ljust(width), each.about) for name, each in commands.items()]
                )


class Loading(Mapping[str, Any]):
    """The commands by their names, loaded as they are looked up."""

    def __getitem__(self, name: str) -> Any:
        return _loaded(name)

    def __iter__(self) -> Iterator[str]:
        return iter(COMMANDS)

    def __len__(self) -> int:
        return len(COMMANDS)


app = typer.Typer(
    name="keepthread",
    cls=Program,
    help="Chat with a model that remembers, and manage what is stored.\n\n"
    "Begin with `keepthread init`, then `keepthread chat`.",
    rich_markup_mode=None,  # help in color would double the time of the start
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback(invoke_without_command=True)
def options(
    context: typer.Context,
    *,
    store: Store = None,
    tenant: Tenant = None,
    json: Json = False,
    no_pager: NoPager = False,
    version: Version = False,
) -> None:
    """Take the options that hold for every command, before its name."""
    if version:
        typer.echo(f"keepthread {keepthread.__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
        raise typer.Exit
    from keepthread.apps.cli.invocation import Call  # noqa: PLC0415 - not for the help

    context.obj = Call(json=json, pager=not no_pager).at(store, tenant)


@cache
def _loaded(name: str) -> Any:
    """Load a command, or the group of its actions."""
    listed = COMMANDS[name]
    found = getattr(import_module(f"keepthread.apps.cli.commands.{listed.module}"), listed.function)
    if callable(found):
        return _command(name, found, stopped=STOPPED.get(name, "stopped"))
    return found.group(name, _command)


def _command(name: str, function: Callable[..., Any], *, stopped: str = "stopped") -> Command:
    """Make a function a command that takes these options after its name as well."""
    _, *own = inspect.signature(function).parameters.values()
    common = list(inspect.signature(options).parameters.values())
    parameters = [common[0], *own, *common[1:-1]]

    def run_command(**given: Any) -> int | None:
        call: Call = given.pop("context").obj
        call = call.at(given.pop("store"), given.pop("tenant"))
        call = replace(
            call,
            json=given.pop("json") or call.json,
            pager=call.pager and not given.pop("no_pager"),
        )
        try:
            answer: Awaitable[int | None] | int | None = function(call, **given)
            return _awaited(answer) if isinstance(answer, Awaitable) else answer
        except KeyboardInterrupt:
            raise StoppedByUser(stopped) from None

    run_command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run_command.__annotations__ = {p.name: p.annotation for p in parameters}
    alone = typer.Typer(rich_markup_mode=None, add_completion=False)
    alone.command(name, cls=Command, help=inspect.getdoc(function), epilog=COMMON)(run_command)
    command = cast("Command", get_command(alone))
    shared: list[Any] = command.params[len(own) :]
    for each in shared:
        each.hidden = True
    return command


def _awaited(answer: Awaitable[int | None]) -> int | None:
    import asyncio  # noqa: PLC0415 - not for the help

    async def finish() -> int | None:
        return await answer

    return asyncio.run(finish())


def run() -> int:
    """Run what the command line says and return the exit status."""
    try:
        status = app(prog_name="keepthread", standalone_mode=False) or 0
    except KeepthreadError as error:
        return _fail(type(error).__name__, "; ".join([str(error), *_notes(error)]))
    except typer.TyperException as error:
        return _fail("Usage", _usage(error))
    except OSError as error:
        return _fail(type(error).__name__, f"{error.filename or 'a file'}: {error.strerror}")
    except StoppedByUser as stopped:
        _fail("Interrupted", str(stopped))
        return INTERRUPTED
    except typer.Abort:
        return _fail("Aborted", "stopped before anything was done")
    if status == INTERRUPTED:
        _fail("Interrupted", "stopped")
    return status


def _usage(error: typer.TyperException) -> str:
    """Return what is wrong with the command line, and where it is explained."""
    message = error.format_message()
    meaning = getattr(getattr(error, "param", None), "help", None)
    if meaning and message.startswith("Missing argument"):
        message = f"{message.removesuffix('.')}: {meaning[0].lower()}{meaning[1:]}"
    for theirs, ours in _PLAIN.items():
        message = message.replace(theirs, ours)
    if message.endswith("?"):  # it names what was probably meant
        return message
    path = getattr(getattr(error, "ctx", None), "command_path", "keepthread")
    return f"{message.rstrip('.')}; see `{path} --help`"


_PLAIN: Final = {
    "Input should be a valid integer, unable to parse string as an integer": "not a whole number",
    "Input should be": "it should be",
}
"""Phrases of the parser, in plain words."""


def _notes(error: Exception) -> list[str]:
    return getattr(error, "__notes__", [])


def _fail(kind: str, message: str) -> int:
    """Say what went wrong in one line, and never with a traceback."""
    if "--json" in sys.argv:
        typer.echo(json.dumps({"error": kind, "message": message}), err=True)
    else:
        typer.secho(f"error: {sanitize(message)}", err=True, fg="red")
    return 2
