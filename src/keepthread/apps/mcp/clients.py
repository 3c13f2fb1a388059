"""Clients of the MCP server: where each keeps its settings, and what an entry looks like there.

`with_entry` and `without_entry` change a text; all other entries and all comments stay as they are.
"""

import json
import os
import sys
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, cast
from urllib.parse import urlsplit

from keepthread.apps.mcp import json_edit, toml_edit
from keepthread.errors import InvalidInput

NAME: Final = "keepthread"
"""The name of the entry."""
KEY_VARIABLE: Final = "KEEPTHREAD_KEY"
"""The variable that holds the key of a server; a client reads it, and its file only names it."""


class SettingsFile(NamedTuple):
    """The settings of a client: which file, and where its servers are in it."""

    title: str
    container: str
    path: Callable[[Mapping[str, str], Path], Path]
    """Returns the file, from the environment and the home folder."""
    typed: bool = False
    """Whether an entry says that it is a program."""
    address: str = "url"
    """The field of an entry that holds the address of a server."""
    http_typed: bool = False
    """Whether an entry with an address says that it is HTTP."""
    variable: str = "${env:%s}"
    """How a header names a variable; empty if there is a field for it."""

    def is_toml(self, path: Path) -> bool:
        """Return whether the file is TOML; all others are JSON, with comments or without."""
        return path.suffix == ".toml"

    def entry(self, command: Sequence[str]) -> dict[str, Any]:
        """Return the entry of a program to start."""
        kind = {"type": "stdio"} if self.typed else {}
        return {**kind, "command": command[0], "args": list(command[1:])}

    def entry_at(self, url: str) -> dict[str, Any]:
        """Return the entry of a server at an address, whose key is in a variable."""
        if not self.variable:
            return {self.address: url, "bearer_token_env_var": KEY_VARIABLE}
        kind = {"type": "http"} if self.http_typed else {}
        key = f"Bearer {self.variable % KEY_VARIABLE}"
        return {**kind, self.address: url, "headers": {"Authorization": key}}


def _claude(environ: Mapping[str, str], home: Path) -> Path:
    return Path(environ.get("CLAUDE_CONFIG_DIR") or home) / ".claude.json"


def _codex(environ: Mapping[str, str], home: Path) -> Path:
    return Path(environ.get("CODEX_HOME") or home / ".codex") / "config.toml"


def _gemini(_: Mapping[str, str], home: Path) -> Path:
    return home / ".gemini" / "settings.json"


def _cursor(_: Mapping[str, str], home: Path) -> Path:
    return home / ".cursor" / "mcp.json"


def _code(environ: Mapping[str, str], home: Path) -> Path:
    if sys.platform == "darwin":
        folder = home / "Library" / "Application Support"
    elif os.name == "nt":
        folder = Path(environ.get("APPDATA") or home / "AppData" / "Roaming")
    else:
        folder = Path(environ.get("XDG_CONFIG_HOME") or home / ".config")
    return folder / "Code" / "User" / "mcp.json"


CLIENTS: Final[Mapping[str, SettingsFile]] = {
    "claude-code": SettingsFile(
        "Claude Code", "mcpServers", _claude, typed=True, http_typed=True, variable="${%s}"
    ),
    "codex": SettingsFile("Codex", "mcp_servers", _codex, variable=""),
    "gemini": SettingsFile("Gemini CLI", "mcpServers", _gemini, address="httpUrl", variable="$%s"),
    "vscode": SettingsFile("VS Code", "servers", _code, typed=True, http_typed=True),
    "cursor": SettingsFile("Cursor", "mcpServers", _cursor, typed=True),
}


def server_address(url: str) -> str:
    """Return the address of a server's `/mcp`; raise `InvalidInput` if it is not an address."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise InvalidInput("--url must be the URL of a server, such as http://localhost:8765/mcp")
    if parts.username or parts.password or parts.query or parts.fragment:
        raise InvalidInput(
            "the URL contains a password or a query, which must not be in a client's file: the "
            f"client sends the key from the variable {KEY_VARIABLE}"
        )
    return url if parts.path.strip("/") else f"{url.rstrip('/')}/mcp"


def snippet(client: SettingsFile, path: Path, server: Sequence[str] | str) -> str:
    """Return a settings file that has nothing but the entry."""
    return with_entry(client, path, "", server)


def with_entry(client: SettingsFile, path: Path, text: str, server: Sequence[str] | str) -> str:
    """Return the text of a settings file with the entry, new or in place of an earlier one.

    `server` is a command to start, or an address.
    """
    entry = client.entry_at(server) if isinstance(server, str) else client.entry(server)
    place = (client.container, NAME)
    edit = toml_edit if client.is_toml(path) else json_edit
    after = edit.with_value(text, place, entry)
    known = _parsed(client, path, after)
    _check(client, path, text, after)
    if known.get(client.container, {}).get(NAME) != entry:
        raise _by_hand(path)
    return after


def without_entry(client: SettingsFile, path: Path, text: str) -> str:
    """Return the text of a settings file without the entry; the same text if it has none."""
    place = (client.container, NAME)
    edit = toml_edit if client.is_toml(path) else json_edit
    after = edit.without_value(text, place)
    _check(client, path, text, after)
    if NAME in _parsed(client, path, after).get(client.container, {}):
        raise _by_hand(path)
    return after


def _check(client: SettingsFile, path: Path, before: str, after: str) -> None:
    """Refuse a change that would reach another entry."""
    kept = [_parsed(client, path, text) for text in (before, after)]
    for each in kept:
        others = {name: it for name, it in each.pop(client.container, {}).items() if name != NAME}
        each.update({client.container: others} if others else {})
    if kept[0] != kept[1]:
        raise _by_hand(path)


def _parsed(client: SettingsFile, path: Path, text: str) -> dict[str, Any]:
    """Return the settings as a value."""
    try:
        if client.is_toml(path):
            return tomllib.loads(text)
        value: Any = json.loads(json_edit.plain(text) or "{}")
    except ValueError:
        raise InvalidInput(
            f"{path} cannot be read as {'TOML' if client.is_toml(path) else 'JSON'}; repair it"
            " first, or add the entry by hand"
        ) from None
    if not isinstance(value, dict):
        raise _by_hand(path)
    found = cast("dict[str, Any]", value)
    if not isinstance(found.get(client.container, {}), dict):
        raise _by_hand(path)
    return found


def _by_hand(path: Path) -> InvalidInput:
    return InvalidInput(
        f"{path} has a form that cannot be edited safely; edit it by hand:"
        " `keepthread mcp install CLIENT` prints the entry"
    )
