"""The command for secrets: keys and tokens in the system's keyring, by the names of variables."""

import os
import sys
from getpass import getpass
from typing import Annotated, Final, TypeAlias

import typer

from keepthread.apps.cli.actions import Actions
from keepthread.apps.cli.invocation import Call
from keepthread.apps.cli.settings.fields import VARIABLE
from keepthread.apps.cli.settings.secrets import open_keyring, source_of
from keepthread.apps.cli.settings.settings import Settings
from keepthread.errors import InvalidInput

_Name: TypeAlias = Annotated[
    str,
    typer.Argument(metavar="NAME", help="A secret by its variable, such as OPENAI_API_KEY."),
]


def list_secrets(call: Call) -> None:
    """List the secrets that the settings use, and where each comes from."""
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


def set_secret(call: Call, name: _Name) -> None:
    """Store a secret in the keyring; it is prompted for, or read from a pipe."""
    _check(name, "set")
    keyring = open_keyring()
    secret = _typed(name) if sys.stdin.isatty() else sys.stdin.readline()
    if not secret.strip():
        raise InvalidInput("the secret is empty: nothing was stored")
    keyring.put(name, secret.strip())
    if call.json:
        call.write({"name": name, "from": "keyring"})
    call.say(f"{name} is stored in the {keyring.title}")
    if os.environ.get(name):
        call.warn(f"the environment also sets {name} and takes precedence")


def _typed(name: str) -> str:
    """Ask for a secret; the terminal shows nothing that is typed after the question."""
    try:
        return getpass(f"{name}: ", stream=sys.stderr)
    except EOFError:
        return ""


def delete_secret(call: Call, name: _Name) -> None:
    """Delete a secret from the keyring."""
    _check(name, "delete")
    deleted = open_keyring().drop(name)
    if call.json:
        call.write({"name": name, "deleted": deleted})
    call.say(f"{name} was deleted" if deleted else f"The keyring has no {name}")


def _check(name: str, action: str) -> None:
    if not VARIABLE.fits(name):
        # It is not shown: it may be the secret itself.
        raise InvalidInput(
            f"{action} takes {VARIABLE.expected}; the command asks for the secret itself"
        )


secrets: Final = Actions(
    """Store API keys in the system's keyring, list their names, or delete one.

    A variable of the environment comes first, then the command that model.key_command names, then
    the keyring. No secret is shown.
    """,
    {"list": list_secrets, "set": set_secret, "delete": delete_secret},
)
