"""Keys and tokens: from the environment, from a command of yours, or from the system's keyring.

Nothing here writes a secret to a file, a log or an error.
"""

import json
import os
import shlex
import subprocess
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import import_module
from typing import Any, Final, cast

from keepthread.errors import InvalidInput

SERVICE: Final = "keepthread"
"""The name under which the keyring keeps our secrets."""
_NAMES: Final = "the names of all secrets"  # a keyring cannot list its entries
_SECONDS: Final = 60.0  # a person may have to unlock a vault
_ELSE: Final = "export the variable, or set model.key_command in your settings"


def secret_of(name: str, environ: Mapping[str, str], command: str | None = None) -> str | None:
    """Return a secret: a variable of the environment, else what a command prints, else the keyring.

    `command` may come from a person's own settings file only.
    """
    if found := environ.get(name, "").strip():
        return found
    if command:
        return _printed_by(command)
    keyring = _load()
    return keyring.find(name) if keyring else None


def source_of(name: str, environ: Mapping[str, str], command: str | None = None) -> str:
    """Return where a secret comes from, without reading it; nothing if there is none."""
    if environ.get(name, "").strip():
        return "environment"
    if command:
        return "command"
    keyring = _load()
    return "keyring" if keyring and name in keyring.names() else ""


@cache
def _printed_by(command: str) -> str:
    """Run a command without a shell, and return what it prints; its own messages are shown."""
    advice = "run it yourself to see why, or change model.key_command in your settings"
    try:
        words = shlex.split(command, posix=os.name == "posix")
        done = subprocess.run(words, stdout=subprocess.PIPE, timeout=_SECONDS, check=False)  # noqa: S603 - a person's own settings name it
    except subprocess.TimeoutExpired:
        raise InvalidInput(
            f"model.key_command did not finish within {_SECONDS:g} seconds; {advice}"
        ) from None
    except (OSError, ValueError, IndexError):
        raise InvalidInput(f"model.key_command cannot be started; {advice}") from None
    secret = done.stdout.decode(errors="replace").strip()
    if done.returncode or not secret or not secret.isprintable():
        ended = f"ended with status {done.returncode}" if done.returncode else "printed no key"
        raise InvalidInput(f"model.key_command {ended}; {advice}")
    return secret


class Keyring:
    """Our entries in the system's keyring."""

    def __init__(self, package: Any) -> None:
        """Take the package `keyring`."""
        self._package = package

    @property
    def title(self) -> str:
        """Return which keyring it is."""
        return str(getattr(self._package.get_keyring(), "name", "system's keyring"))

    def find(self, name: str) -> str | None:
        """Return a secret, or None if it is missing or the keyring cannot be used."""
        try:
            return self._package.get_password(SERVICE, name) or None
        except self._package.errors.KeyringError:
            return None

    def names(self) -> Sequence[str]:
        """Return the names of the secrets, sorted."""
        try:
            names: object = json.loads(self.find(_NAMES) or "[]")
        except ValueError:
            return []
        listed = cast("list[object]", names) if isinstance(names, list) else []
        return sorted(str(name) for name in listed)

    def put(self, name: str, secret: str) -> None:
        """Keep a secret in place of the one before; a keyring that is a plain file is refused."""
        keyring: Any = self._package.get_keyring()
        first: Any = next(iter(getattr(keyring, "backends", ())), keyring)  # it may be a chain
        kind: type[object] = first.__class__
        if kind.__module__.startswith("keyrings.alt.") and "Encrypted" not in kind.__name__:
            raise InvalidInput(
                f"this system's keyring is a plaintext file ({kind.__name__}), which is not safe "
                f"for secrets; {_ELSE}"
            )
        self._write(name, secret)
        self._write(_NAMES, json.dumps(sorted({*self.names(), name})))

    def drop(self, name: str) -> bool:
        """Delete a secret, and return whether it existed."""
        existed = self.find(name) is not None
        if existed:
            try:
                self._package.delete_password(SERVICE, name)
            except self._package.errors.KeyringError as error:
                raise _unusable(error) from None
        if name in self.names():
            self._write(_NAMES, json.dumps([each for each in self.names() if each != name]))
        return existed

    def _write(self, name: str, text: str) -> None:
        try:
            self._package.set_password(SERVICE, name, text)
        except self._package.errors.KeyringError as error:
            raise _unusable(error) from None


def open_keyring() -> Keyring:
    """Return the system's keyring, or say what is missing."""
    if found := _load():
        return found
    raise InvalidInput(
        "the system's keyring needs the package keyring: pip install 'keepthread[keyring]';"
        f" or {_ELSE}"
    )


def _load() -> Keyring | None:
    try:
        import_module("keyring.errors")
        return Keyring(import_module("keyring"))
    except ImportError:
        return None


def _unusable(error: Exception) -> InvalidInput:
    return InvalidInput(f"this system has no usable keyring ({type(error).__name__}): {_ELSE}")
