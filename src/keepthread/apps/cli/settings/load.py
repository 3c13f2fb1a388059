"""Load the settings: defaults, two files, the environment, flags; the later wins."""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from stat import S_IWOTH
from typing import Any, Final

from keepthread.apps.cli.settings.fields import AllowedTool, tools_of, tools_text
from keepthread.apps.cli.settings.settings import KEYS, Settings, settings_of
from keepthread.apps.cli.settings.sources import (
    Layer,
    Value,
    entries_in,
    of_entries,
    of_environment,
    of_file,
    of_flags,
)
from keepthread.errors import InvalidInput
from keepthread.stores.private_files import private_file
from keepthread.stores.validation import show
from keepthread.types import JSON

CONFIG_VARIABLE: Final = "KEEPTHREAD_CONFIG"
PROJECT_FILE: Final = "keepthread.yaml"
MCP_FILE: Final = "mcp.json"
DEFAULT: Final = "default"
_PRIVATE: Final = 0o600
_EITHER: Final = (("memory.url", "memory.storage_path"), ("embedder.url", "embedder.folder"))


@dataclass(frozen=True, kw_only=True)
class Config:
    """The settings, and for each dotted key where its value comes from."""

    settings: Settings
    sources: Mapping[str, str]
    """`default`, the path of a file, the name of a variable, or a flag."""
    notes: Sequence[str] = ()
    """Messages for the user: which settings a project's file sets, or why it is not used."""

    def make_room(self) -> None:
        """Create the folder of the file that keeps conversations, if it is missing."""
        if self.settings.memory.url is None:
            self.settings.memory.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)


def read_config(
    environ: Mapping[str, str], folder: Path, flags: Mapping[str, JSON] | None = None
) -> Config:
    """Return what holds in a folder; flags are given by dotted key, None for what is not given."""
    found: Layer = {}
    project = project_file(folder)
    trusted = project if project and _is_own(project) else None
    for layer in _layers(environ, trusted, flags or {}):
        for pair in _EITHER:
            _choose(pair, layer, found)
        found |= layer
    _check_named(found)
    settings = settings_of({key: each.value for key, each in found.items()})
    default = Value(None, DEFAULT)
    sources = {key: found.get(key, default).source for key in settings.values()}
    return Config(settings=settings, sources=sources, notes=_notes(project, trusted, found))


def check_file(data: bytes, path: Path) -> None:
    """Raise unless a person's own settings file may have this content."""
    layer = of_entries(entries_in(data, path), path, project=False)
    for pair in _EITHER:
        _choose(pair, layer, {})
    _check_named(layer)


def _layers(
    environ: Mapping[str, str], project: Path | None, flags: Mapping[str, JSON]
) -> Iterator[Layer]:
    own = config_file(environ)
    if own.exists():
        yield of_file(own, project=False)
    elif environ.get(CONFIG_VARIABLE):
        raise InvalidInput(
            f"{CONFIG_VARIABLE} names {own}, which does not exist; `keepthread init` writes it"
        )
    if project is not None:
        yield of_file(project, project=True)
    yield of_environment(environ)
    yield of_flags(flags)


def config_file(environ: Mapping[str, str]) -> Path:
    """Return where a person's own settings are, or would be."""
    if named := environ.get(CONFIG_VARIABLE):
        return Path(named).expanduser()
    import platformdirs  # noqa: PLC0415 - what the extra brings

    return platformdirs.user_config_path("keepthread", appauthor=False) / "config.yaml"


def mcp_file(environ: Mapping[str, str]) -> Path:
    """Return where a person's own servers of tools are named, or would be: beside the settings."""
    return config_file(environ).with_name(MCP_FILE)


def project_file(folder: Path) -> Path | None:
    """Return the project's settings: here or above, up to the home folder or the repository's."""
    home = Path.home().resolve()
    for place in (folder, *folder.parents):
        # Where everybody may write, a stranger's file would speak for all that is below.
        if place != folder and os.name == "posix" and place.stat().st_mode & S_IWOTH:
            return None
        if (place / PROJECT_FILE).is_file():
            return place / PROJECT_FILE
        if place == home or (place / ".git").exists():
            return None
    return None


def _is_own(path: Path) -> bool:
    """Return whether a file, and the link that leads to it, belongs to the current user."""
    if not hasattr(os, "geteuid"):  # Windows
        return True
    return {path.stat().st_uid, path.lstat().st_uid} == {os.geteuid()}


def _notes(project: Path | None, trusted: Path | None, found: Layer) -> list[str]:
    """Return what to show about a project's file: nobody may have read it yet."""
    if project is None:
        return []
    if trusted is None:
        return [f"{project} is not used: it belongs to another user"]
    values = {key: each.value for key, each in found.items() if each.source == str(project)}
    listed = ", ".join(f"{key} = {show(value)}" for key, value in values.items())
    return [f"{project} sets {listed}"] if listed else []


def _choose(pair: tuple[str, str], layer: Layer, found: Layer) -> None:
    """Let what a layer names take the place of its counterpart in an earlier one."""
    named = [key for key in pair if key in layer and layer[key].value is not None]
    if len(named) > 1:
        where = " and ".join(dict.fromkeys(layer[key].source for key in named))
        raise InvalidInput(f"{where}: {' and '.join(named)} exclude each other; remove one")
    if named:
        for key in pair:
            found.pop(key, None)


_MUST: Final = {
    "views": ("tokens", "how many tokens may it show?"),
    "agents": ("description", "what is the agent for?"),
}


def _check_named(found: Layer) -> None:
    """Refuse a new view without a budget, and an agent without a description or of two prompts."""
    known = {f"views.{name}" for name in Settings().views}
    named = {".".join(key.split(".")[:2]): each for key, each in found.items()}
    for place, given in named.items():
        part, question = _MUST.get(place.partition(".")[0], ("", ""))
        if part and place not in known and f"{place}.{part}" not in found:
            raise InvalidInput(f"{given.source}: {place}.{part} is missing: {question}")
        both = [found.get(f"{place}.{part}") for part in ("system", "system_file")]
        if place.startswith("agents.") and all(each and each.value for each in both):
            raise InvalidInput(
                f"{given.source}: {place}.system and {place}.system_file exclude each other; "
                "remove one"
            )


_HEAD: Final = """\
# Settings of keepthread, written by `keepthread init`. `keepthread config` lists every setting,
# its value and where that comes from; the manual explains them, under Reference, Settings.
# Keys of services do not belong here: they come from the environment.
"""


def text_of(values: Mapping[str, JSON]) -> str:
    """Return a file that sets these values, each under its meaning."""
    import yaml  # noqa: PLC0415 - only where there is a file

    lines = [_HEAD]
    section = ""
    for key, value in values.items():
        block, _, name = key.partition(".")
        if block != section:
            lines.append(f"\n{block}:\n")
            section = block
        lines.append(f"  # {KEYS[key].metadata['meaning']}\n")
        written = yaml.safe_dump({name: value}, allow_unicode=True, width=1 << 20)
        lines.append(f"  {written}")
    return "".join(lines)


def write_private(path: Path, text: str, *, follow_links: bool = True) -> None:
    """Write a file that its owner alone can read; it appears once it is whole.

    A file that its owner could not write stays so. A person's own file may be a link, since some
    keep all their settings elsewhere; without `follow_links`, the file takes the link's place.
    """
    path = path.resolve() if follow_links else path
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    mode = _PRIVATE & (path.lstat().st_mode if os.path.lexists(path) else _PRIVATE)
    with private_file(path, mode) as write:
        write(text.encode())


_ALLOWED: Final = "chat.allowed_tools"


def allow_tool(path: Path, tool: AllowedTool) -> None:
    """Add a tool to those that run without a question, in a person's own settings.

    It takes the place of its earlier versions.
    """
    data = path.read_bytes() if path.exists() else b""
    allowed = tools_of(values_in(path).get(_ALLOWED))
    if tool in allowed or AllowedTool(tool.name) in allowed:
        return
    value = tools_text([*(each for each in allowed if each.name != tool.name), tool])
    write_private(path, with_values(data, {_ALLOWED: value}, path))


def values_in(path: Path) -> dict[str, JSON]:
    """Return the values that a settings file sets, by their dotted keys."""
    data = path.read_bytes() if path.exists() else b""
    return {entry.key: entry.value for entry in entries_in(data, path)}


def with_values(data: bytes, values: Mapping[str, JSON], path: Path) -> str:
    """Return a settings file with some values set; comments and all other text stay as they are."""
    import yaml  # noqa: PLC0415 - only where there is a file

    before = {entry.key: entry.value for entry in entries_in(data, path)}
    text, after = data.decode(), {}
    try:
        for key, value in values.items():
            text = _with_value(text, key, value)
            for end in (at for at, char in enumerate(key) if char == "."):
                before.pop(key[:end], None)  # the block was empty
        after = {entry.key: entry.value for entry in entries_in(text.encode(), path)}
    except (InvalidInput, yaml.YAMLError):
        after = {}
    if after != {**before, **values}:
        by_hand = ", ".join(f"{key}: {value}" for key, value in values.items())
        raise InvalidInput(f"{path} cannot be edited automatically; add {by_hand} by hand")
    return text


def _with_value(text: str, key: str, value: JSON) -> str:
    """Return the text of a settings file with one value set; its other text stays as it is."""
    import yaml  # noqa: PLC0415 - only where there is a file

    parts = key.split(".")
    written = json.dumps(value, ensure_ascii=False)  # JSON is YAML, too
    reader: Any = yaml
    block: Any = reader.compose(text, reader.SafeLoader)
    if block is None:
        return f"{text.rstrip()}\n\n{_lines(parts, written, 0)}\n".lstrip("\n")
    for depth, part in enumerate(parts):
        found = next((pair for pair in block.value if pair[0].value == part), None)
        if found is None:
            return _inserted(text, block, parts[depth:], written, top=not depth)
        name, block = found
        if depth == len(parts) - 1:
            start, end = block.start_mark.index, _end_of(block, text)
            return f"{text[:start]}{'' if start < end else ' '}{written}{text[end:]}"
        if block.id == "scalar":  # it is empty
            at, column = name.end_mark.index + 1, name.start_mark.column + 2
            return f"{text[:at]}\n{_lines(parts[depth + 1 :], written, column)}{text[at:]}"
    raise AssertionError("the last part returns")


def _end_of(value: Any, text: str) -> int:
    """Return where a value ends: before the comments and blank lines that follow it."""
    if value.id != "scalar" and not value.flow_style and value.value:
        last = value.value[-1]
        return _end_of(last if value.id == "sequence" else last[1], text)
    start, end = value.start_mark.index, value.end_mark.index
    return start + len(text[start:end].rstrip())


def _inserted(text: str, block: Any, parts: Sequence[str], written: str, *, top: bool) -> str:
    """Return the text with a new entry: at the end of the file, or last in its block."""
    if top:
        return f"{text.rstrip()}\n\n{_lines(parts, written, 0)}\n"
    if block.flow_style:
        nested = written
        for part in reversed(parts[1:]):
            nested = f"{{{part}: {nested}}}"
        at = block.start_mark.index + 1
        return f"{text[:at]}{parts[0]}: {nested}{', ' if block.value else ''}{text[at:]}"
    at = text.find("\n", _end_of(block, text))  # a comment may follow on the line
    at = len(text) if at < 0 else at
    lines = _lines(parts, written, block.value[0][0].start_mark.column)
    return f"{text[:at]}\n{lines}{text[at:]}"


def _lines(parts: Sequence[str], written: str, column: int) -> str:
    """Return an entry on lines of its own, each part below the one before."""
    lines = [f"{' ' * (column + 2 * depth)}{part}:" for depth, part in enumerate(parts)]
    return "\n".join(lines) + f" {written}"
