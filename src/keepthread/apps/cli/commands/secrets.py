"""The command for secrets: keys and tokens in the system's keyring, by the names of variables."""

import os
import sys
from collections.abc import Callable, Mapping
from getpass import getpass
from typing import Annotated, Final

import typer

from keepthread.apps.cli.invocation import Call, action_of
from keepthread.apps.cli.settings.fields import VARIABLE
from keepthread.apps.cli.settings.secrets import open_keyring, source_of
from keepthread.apps.cli.settings.settings import Settings
from keepthread.errors import InvalidInput


def secrets(
    call: Call,
    action: Annotated[str, typer.Argument(metavar="ACTION", help="list, set or delete.")] = "list",
    name: Annotated[
        str | None,
        typer.Argument(metavar="NAME", help="A secret by its variable, such as OPENAI_API_KEY."),
    ] = None,
) -> None:
    """Keep keys in the system's keyring, list their names, or delete one.

    `set NAME` asks for the secret, or reads it from a pipe. A variable of the environment comes
    first, then the command that model.key_command names, then the keyring. No secret is shown.
    """
    action_of(_ACTIONS, action)(call, name)


def _list(call: Call, name: str | None) -> None:
    if name is not None:
        raise InvalidInput(f"list takes no name; {name!r} is one too many")
    rows = {each: _where(call.config.settings, each) for each in _names(call.config.settings)}
    if call.json:
        call.write({"secrets": [{"name": each, "from": rows[each] or None} for each in rows]})
        return
    call.screen.rows([(each, source or "not set") for each, source in rows.items()], "name", "from")


def _names(settings: Settings) -> list[str]:
    """Return the secrets that the settings use, and those in the keyring."""
    used = [settings.model.key_variable, settings.embedder.key_env]
    if settings.discord.guilds is not None:
        used.append(settings.discord.token_variable)
    try:
        kept = open_keyring().names()
    except InvalidInput:
        kept = ()
    return [*dict.fromkeys([*filter(None, used), *kept])]


def _where(settings: Settings, name: str) -> str:
    command = settings.model.key_command if name == settings.model.key_variable else None
    return source_of(name, os.environ, command)


def _set(call: Call, name: str | None) -> None:
    name = _checked(name, "set")
    keyring = open_keyring()
    secret = _typed(name) if sys.stdin.isatty() else sys.stdin.readline()
    if not secret.strip():
        raise InvalidInput("the secret is empty: nothing was kept")
    keyring.put(name, secret.strip())
    if call.json:
        call.write({"name": name, "from": "keyring"})
    call.say(f"{name} is kept by the {keyring.title}")
    if os.environ.get(name):
        call.warn(f"the environment has {name}, too, and comes first")


def _typed(name: str) -> str:
    """Ask for a secret; the terminal shows nothing that is typed after the question."""
    try:
        return getpass(f"{name}: ", stream=sys.stderr)
    except EOFError:
        return ""


def _delete(call: Call, name: str | None) -> None:
    name = _checked(name, "delete")
    deleted = open_keyring().drop(name)
    if call.json:
        call.write({"name": name, "deleted": deleted})
    call.say(f"{name} was deleted" if deleted else f"The keyring has no {name}")


def _checked(name: str | None, action: str) -> str:
    if name is None or not VARIABLE.fits(name):
        # It is not shown: it may be the secret itself.
        raise InvalidInput(f"{action} takes {VARIABLE.expected}; the secret itself is asked for")
    return name


_ACTIONS: Final[Mapping[str, Callable[[Call, str | None], None]]] = {
    "list": _list,
    "set": _set,
    "delete": _delete,
}
