"""The commands of a chat, each by its name."""

from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from difflib import get_close_matches
from inspect import getdoc
from typing import Final, Literal, NamedTuple, TypeAlias

from keepthread.apps.cli.chat.chat import Chat
from keepthread.apps.cli.chat.commands import (
    context,
    costs,
    facts,
    files,
    history,
    model,
    outside,
    sessions,
)
from keepthread.errors import InvalidInput

Run: TypeAlias = Callable[[Chat, str], Awaitable[None]]


class SlashCommand(NamedTuple):
    """One command; its function's docstring is its help."""

    run: Run
    usage: str = ""
    """Its argument, such as `[N]`; in brackets, it is optional."""
    completes: Literal["", "session", "file", "command", "model"] = ""
    """The kind of completions that Tab offers."""
    stays: bool = True
    """Whether the memory must not change while the command runs."""

    @property
    def about(self) -> str:
        """Return what it does, in one line."""
        return (getdoc(self.run) or "").partition("\n")[0]


async def help(chat: Chat, rest: str) -> None:  # noqa: A001 - what people write
    """List the commands, or show more about one."""
    if not rest:
        chat.person.screen.rows(table(), "", "")
        chat.person.say("Anything else is sent to the model. Tab completes, Ctrl-D quits")
        return
    word = rest if rest.startswith(("/", "memory:")) else f"/{rest}"
    command = _found(word)
    lines = [f"{word} {command.usage}".strip(), *(getdoc(command.run) or "").splitlines()]
    chat.person.say("\n".join(lines))


COMMANDS: Final[Mapping[str, SlashCommand]] = {
    "/help": SlashCommand(help, "[COMMAND]", "command"),
    "/sessions": SlashCommand(sessions.sessions, "[N]"),
    "/resume": SlashCommand(sessions.resume, "[ID]", "session"),
    "/load": SlashCommand(sessions.resume, "[ID]", "session"),
    "/rename": SlashCommand(sessions.rename, "TITLE"),
    "/fork": SlashCommand(sessions.fork, "[ID]"),
    "/save": SlashCommand(sessions.save, stays=False),
    "/history": SlashCommand(history.history, "[N] [--tools]"),
    "/search": SlashCommand(facts.search, "WORDS"),
    "/remember": SlashCommand(facts.remember, "TEXT"),
    "/facts": SlashCommand(facts.facts, "[confirm N]"),
    "/context": SlashCommand(context.context),
    "/why": SlashCommand(context.why, "[N]"),
    "/status": SlashCommand(history.status),
    "memory:status": SlashCommand(history.status),
    "/cost": SlashCommand(costs.cost),
    "/plan": SlashCommand(model.plan),
    "/tools": SlashCommand(model.tools),
    "/pin": SlashCommand(context.pin, "[N]"),
    "/rewind": SlashCommand(context.rewind, "[N]"),
    "/compact": SlashCommand(context.compact),
    "/undo": SlashCommand(context.undo),
    "/clear": SlashCommand(context.clear),
    "memory:clear": SlashCommand(context.clear),
    "/delete": SlashCommand(sessions.delete, "[ID]", "session"),
    "/forget": SlashCommand(sessions.forget, "[last]"),
    "/export": SlashCommand(files.export, "[FILE]", "file"),
    "/import": SlashCommand(files.import_file, "FILE", "file"),
    "/model": SlashCommand(model.model, "[NAME]", "model"),
    "/retry": SlashCommand(model.retry),
    "/edit": SlashCommand(outside.edit, "[TEXT]"),
    "/copy": SlashCommand(outside.copy, "[N]"),
    "/quit": SlashCommand(model.quit),
    "/exit": SlashCommand(model.quit),
}


def table() -> list[tuple[str, str]]:
    """Return each command as it is written, its other names with it, and what it does."""
    names: dict[Run, list[str]] = {}
    for name, command in COMMANDS.items():
        names.setdefault(command.run, []).append(f"{name} {command.usage}".strip())
    return [(", ".join(written), SlashCommand(run).about) for run, written in names.items()]


def is_command(line: str) -> bool:
    """Return whether a line is a command, though perhaps misspelled.

    A line that begins with a blank is not, so that any text can be sent to the model.
    """
    word = line.split(maxsplit=1)[0] if line.strip() and not line[0].isspace() else ""
    return word.startswith(("/", "memory:")) and "/" not in word[1:]


async def run(chat: Chat, line: str) -> None:
    """Run the command in a line; an unknown name raises an error with the nearest known one."""
    word, *others = line.split(maxsplit=1)
    command, rest = _found(word), others[0].strip() if others else ""
    if rest and not command.usage:
        raise InvalidInput(f"{word} takes no argument; write {word} alone")
    if not rest and command.usage and not command.usage.startswith("["):
        raise InvalidInput(f"an argument is missing: write {word} {command.usage}")
    async with AsyncExitStack() as stack:
        if command.stays:
            await stack.enter_async_context(chat.talk.persistence.using())
        await command.run(chat, rest)


def _found(word: str) -> SlashCommand:
    found = COMMANDS.get(word)
    if found is not None:
        return found
    begun = [name for name in COMMANDS if name.startswith(word)] if len(word) > 1 else []
    near = begun or get_close_matches(word, COMMANDS, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]}?" if near else "/help lists them."
    raise InvalidInput(
        f"unknown command {word}; {hint} To send it to the model, start with a space"
    )
