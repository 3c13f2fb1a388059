"""The servers of tools: a person's own `mcp.json`, in the shape that other programs have it too."""

import json
import os
import re
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from difflib import get_close_matches
from pathlib import Path
from stat import S_IWOTH
from typing import Any, Final, NamedTuple, cast

from keepthread.apps.cli.settings.fields import POSITIVE, TEXT, TRUTH, WEB, ValueKind, choice, whole
from keepthread.apps.cli.settings.load import MCP_FILE, mcp_file, project_file, write_private
from keepthread.errors import InvalidInput
from keepthread.orchestrator.mcp import Rule, Server
from keepthread.stores.validation import show

_SERVERS: Final = "mcpServers"
_LARGEST: Final = 1 << 20
_VARIABLE: Final = re.compile(r"\$\{([^$}]*)\}")
_STARTED: Final = ("command", "args", "env", "cwd")
_REACHED: Final = ("url", "headers")
_COMMON: Final = ("type", "allow", "tools", "timeout", "disabled")
_KEYS: Final = (*_STARTED, *_REACHED, *_COMMON)
_TYPES: Final = {"stdio": _STARTED, "http": _REACHED, "streamable-http": _REACHED}


def _are_texts(value: object) -> bool:
    return isinstance(value, list) and all(
        isinstance(each, str) and "\0" not in each for each in cast("list[Any]", value)
    )


def _are_names(value: object) -> bool:
    """Return whether an environment or headers can hold it."""
    if not isinstance(value, dict):
        return False
    pairs = cast("dict[str, Any]", value).items()
    return all(isinstance(text, str) and (name + text).isprintable() for name, text in pairs)


_TEXTS: Final = ValueKind("a list of texts", _are_texts)
_NAMES: Final = ValueKind("names with texts on one line each", _are_names)
_TOOL_KEYS: Final = {"cache_turns": whole(0), "side_effects": TRUTH}


class McpFile(NamedTuple):
    """The servers of a file, and notes to show about them."""

    servers: Sequence[Server] = ()
    notes: Sequence[str] = ()


def read_servers(environ: Mapping[str, str], folder: Path) -> McpFile:
    """Return the servers that a person named; a project can name none.

    A server whose variables are not set is left out with a note; a mistake in the file itself is
    an error, which shows no value: it may be secret.
    """
    own = mcp_file(environ)
    found = _read(own, environ) if own.exists() else McpFile()
    return found._replace(notes=[*found.notes, *_refused(own, folder)])


class NamedServer(NamedTuple):
    """A server as the file names it; nothing secret is in it."""

    name: str
    reached: str
    """The program or the address."""
    disabled: bool


def named_servers(environ: Mapping[str, str]) -> list[NamedServer]:
    """Return the servers of a person's file, also those that are disabled or lack a variable."""
    own = mcp_file(environ)
    entries = _entries(own) if own.exists() else {}
    return [
        NamedServer(name, str(each.get("command") or each.get("url")), bool(each.get("disabled")))
        for name, each in entries.items()
    ]


def add_server(
    environ: Mapping[str, str], name: str, entry: Mapping[str, Any], *, replace: bool = False
) -> Path:
    """Add a server to a person's file, which its owner alone can read, and return its path."""
    own = mcp_file(environ)
    entries = _entries(own) if own.exists() else {}
    if name in entries and not replace:
        raise InvalidInput(f"{own} already has a server {name}; use --replace or another name")
    with suppress(_Unset):  # it is asked for when the server starts
        _Entry(entry, f"{own}: {name}").server(name, environ)
    text = json.dumps({_SERVERS: {**entries, name: entry}}, indent=2, ensure_ascii=False)
    write_private(own, f"{text}\n")
    return own


def _refused(own: Path, folder: Path) -> list[str]:
    """Say of a project's file that it is not used: it could start any program in your name."""
    project = project_file(folder)
    places = {folder, project.parent if project else folder}
    return [
        f"{place / MCP_FILE} is not used: projects may not define servers, because that would "
        f"start programs; copy the ones you trust into {own}"
        for place in sorted(places)
        if (place / MCP_FILE).is_file() and not (own.exists() and own.samefile(place / MCP_FILE))
    ]


def _read(path: Path, environ: Mapping[str, str]) -> McpFile:
    if os.name == "posix" and path.stat().st_mode & S_IWOTH:
        raise InvalidInput(
            f"{path}: it is world-writable and starts programs; run `chmod o-w` on it"
        )
    servers: list[Server] = []
    notes: list[str] = []
    for name, given in _entries(path).items():
        where = f"{path}: {name if name.isprintable() else show(name)}"
        entry = _Entry(given, where)
        if entry.take("disabled", TRUTH):
            continue
        try:
            servers.append(entry.server(name, environ))
        except _Unset as unset:
            notes.append(f"{where} is left out: {unset} is not set; export {unset}=…")
    return McpFile(servers, notes)


def _entries(path: Path) -> dict[str, dict[str, Any]]:
    """Return what a file says of each server."""
    top = _object(_parsed(path), f"{path}: it")
    _check_keys(top, (_SERVERS,), str(path))
    entries = _object(top.get(_SERVERS, {}), f"{path}: {_SERVERS}")
    return {
        name: _object(each, f"{path}: {name if name.isprintable() else show(name)}")
        for name, each in entries.items()
    }


def _parsed(path: Path) -> Any:
    with path.open("rb") as file:
        data = file.read(_LARGEST + 1)
    if len(data) > _LARGEST:
        raise InvalidInput(f"{path} is larger than 1 MB; it is not a list of servers")
    try:
        return json.loads(data, object_pairs_hook=_once)
    except _Twice as twice:
        raise InvalidInput(f"{path}: {twice} appears twice; remove one") from None
    except UnicodeDecodeError:
        raise InvalidInput(f"{path}: it is not UTF-8 text") from None
    except json.JSONDecodeError as error:
        raise InvalidInput(f"{path}, line {error.lineno}: invalid JSON: {error.msg}") from None
    except RecursionError:
        raise InvalidInput(f"{path}: it is nested too deeply") from None


class _Twice(Exception):
    """A name that an object has twice."""


class _Unset(Exception):
    """A variable that is not set."""


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise _Twice(show(name))
        found[name] = value
    return found


class _Entry:
    """The entry of one server in the file."""

    def __init__(self, given: Mapping[str, Any], where: str) -> None:
        _check_keys(given, _KEYS, where)
        self._given = given
        self._where = where
        ways = [way for way in (_STARTED, _REACHED) if way[0] in given]
        if len(ways) != 1:
            raise InvalidInput(f"{where}: it needs either a command or a url")
        way, kind = ways[0], self.take("type", choice(*_TYPES))
        foreign = [key for key in given if key not in (*way, *_COMMON)]
        if foreign or (kind and _TYPES[kind] is not way):
            raise InvalidInput(f"{where}: {[*foreign, 'type'][0]} does not go with {way[0]}")

    def take(self, key: str, kind: ValueKind, default: Any = None) -> Any:
        """Return a value, or refuse one of another kind."""
        if key not in self._given:
            return default
        value = _taken(self._given[key], kind, f"{self._where}: {key}")
        if kind is not _NAMES and "${" in json.dumps(value):
            raise InvalidInput(
                f"{self._where}: {key} has a ${{…}}; variables are put into env and headers alone"
            )
        return value

    def server(self, name: str, environ: Mapping[str, str]) -> Server:
        """Return the server."""
        rules = _object(self._given.get("tools", {}), f"{self._where}: tools")
        return Server(
            name,
            command=_home(self.take("command", TEXT)),
            args=self.take("args", _TEXTS, ()),
            env=self._with_variables("env", environ),
            cwd=_home(self.take("cwd", TEXT)),
            url=self.take("url", WEB),
            headers=self._with_variables("headers", environ),
            allow=self.take("allow", _TEXTS),
            rules={
                tool: _rule(rule, f"{self._where}: {show(tool)}") for tool, rule in rules.items()
            },
            timeout=self.take("timeout", POSITIVE, 60.0),
        )

    def _with_variables(self, key: str, environ: Mapping[str, str]) -> dict[str, str]:
        def value_of(found: re.Match[str]) -> str:
            if found[1] not in environ:
                raise _Unset(show(found[1])[1:-1])
            return environ[found[1]]

        given: dict[str, str] = self.take(key, _NAMES, {})
        return {name: _VARIABLE.sub(value_of, text) for name, text in given.items()}


def _rule(given: Any, where: str) -> Rule:
    rule = _object(given, where)
    _check_keys(rule, _TOOL_KEYS, where)
    taken = {
        key: _taken(rule[key], kind, f"{where}: {key}")
        for key, kind in _TOOL_KEYS.items()
        if key in rule
    }
    return Rule(**taken)


def _taken(value: Any, kind: ValueKind, where: str) -> Any:
    try:
        return kind.take(value)
    except ValueError:
        raise InvalidInput(f"{where} must be {kind.expected}") from None


def _check_keys(given: Mapping[str, Any], known: Collection[str], where: str) -> None:
    """Refuse a key that is not known, and name the nearest."""
    for key in given:
        if key not in known:
            near = get_close_matches(key, known, 1)
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}"
            raise InvalidInput(f"{where}: {show(key)} is not known; {hint}")


def _object(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InvalidInput(f"{where} must be an object: {{…}}")
    return cast("dict[str, Any]", value)


def _home(path: str | None) -> str | None:
    return str(Path(path).expanduser()) if path and path.startswith("~") else path
