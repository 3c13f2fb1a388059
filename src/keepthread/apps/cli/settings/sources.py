"""The layers of settings: a file, the environment, flags; each value with its source."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import Field
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final, NamedTuple, NoReturn, TypeAlias

from keepthread.apps.cli.settings.fields import FILE_ONLY, ValueKind
from keepthread.apps.cli.settings.settings import KEYS, NAMED, variable_of
from keepthread.errors import InvalidInput
from keepthread.stores.validation import show
from keepthread.types import JSON

LARGEST: Final = 1 << 20
_DEEPEST: Final = 8


class Entry(NamedTuple):
    """One value of a file, by its dotted key."""

    key: str
    value: Any
    line: int


def entries(path: Path) -> list[Entry]:
    """Return the settings of a file, in its order; anything else in it is an error."""
    with path.open("rb") as file:
        data = file.read(LARGEST + 1)
    if len(data) > LARGEST:
        raise InvalidInput(f"{path} is larger than 1 MB; it is not a settings file")
    return entries_in(data, path)


def entries_in(data: bytes, path: Path) -> list[Entry]:
    """Return the settings in what a file has, or would have."""
    return _Reading(path).entries(data) if data.strip() else []


class _Reading:
    def __init__(self, path: Path) -> None:
        import yaml  # noqa: PLC0415 - only where there is a file

        self._path = path
        self._yaml: Any = yaml
        self._seen: set[str] = set()

    def entries(self, data: bytes) -> list[Entry]:
        loader: Any = getattr(self._yaml, "CSafeLoader", self._yaml.SafeLoader)
        try:
            self._loader = loader(data)
            return list(self._document())
        except self._yaml.YAMLError as error:
            mark = getattr(error, "problem_mark", None)
            self._refuse(mark.line + 1 if mark else 0, _reason(error))
        except UnicodeDecodeError:
            self._refuse(0, "it is not UTF-8 text")

    def _document(self) -> Iterator[Entry]:
        for _ in ("the stream's start", "the document's start"):
            self._loader.get_event()
        first = self._loader.get_event()
        if self._is(first, "Mapping"):
            yield from self._block("", 1)
        elif not (self._is(first, "Scalar") and self._value(first) is None):
            self._refuse(self._line(first), "it must be blocks of settings, such as `memory:`")
        self._loader.get_event()
        more = self._loader.get_event()
        if not isinstance(more, self._yaml.StreamEndEvent):
            self._refuse(
                self._line(more), "the file has a second document; put everything into one"
            )

    def _block(self, prefix: str, depth: int) -> Iterator[Entry]:
        while not isinstance(name := self._loader.get_event(), self._yaml.MappingEndEvent):
            line = self._line(name)
            if not self._is(name, "Scalar"):
                self._refuse(line, "the name of a setting must be one word")
            self._check(name, "the name of a setting")
            key = f"{prefix}{name.value}"
            if key in self._seen:
                self._refuse(line, f"{key} appears twice; leave one")
            self._seen.add(key)
            value = self._loader.get_event()
            self._check(value, key)
            if self._is(value, "Mapping"):
                if depth == _DEEPEST:
                    self._refuse(line, f"{key} is nested too deeply to be a setting")
                yield from self._block(f"{key}.", depth + 1)
            elif self._is(value, "Scalar"):
                yield Entry(key, self._value(value), line)
            else:
                yield Entry(key, list(self._list(key)), line)

    def _list(self, key: str) -> Iterator[Any]:
        while not isinstance(entry := self._loader.get_event(), self._yaml.SequenceEndEvent):
            self._check(entry, key)
            if not self._is(entry, "Scalar"):
                self._refuse(self._line(entry), f"an entry of {key} must be a plain value")
            yield self._value(entry)

    def _check(self, event: Any, what: str) -> None:
        """Refuse what settings do without: it can grow without end, or ask for more than data."""
        if isinstance(event, self._yaml.AliasEvent) or event.anchor is not None:
            self._refuse(self._line(event), f"{what} has an anchor or alias; write the value out")
        if event.tag is not None:
            self._refuse(self._line(event), f"{what} has a tag; write the plain value")

    def _value(self, event: Any) -> Any:
        """Return what a word means: a text, a number, true, false or none."""
        tag = self._loader.resolve(self._yaml.ScalarNode, event.value, event.implicit)
        node = self._yaml.ScalarNode(tag, event.value, event.start_mark, event.end_mark)
        try:
            value = self._loader.construct_object(node)
        except ValueError:  # it looks like a date or number, but is not valid
            return event.value
        return value if isinstance(value, bool | int | float | None) else event.value

    def _is(self, event: Any, kind: str) -> bool:
        name = "ScalarEvent" if kind == "Scalar" else "MappingStartEvent"
        return isinstance(event, getattr(self._yaml, name))

    def _line(self, event: Any) -> int:
        return event.start_mark.line + 1

    def _refuse(self, line: int, reason: str) -> NoReturn:
        where = f"{self._path}, line {line}" if line else str(self._path)
        raise InvalidInput(f"{where}: {reason}")


def _reason(error: Exception) -> str:
    problem = getattr(error, "problem", None) or getattr(error, "reason", None)
    return f"it cannot be read as YAML: {problem or 'it is broken'}"


_SECTIONS: Final = {key.rpartition(".")[0] for key in KEYS} | set(NAMED)
_VARIABLES: Final = {variable_of(key): key for key in KEYS if variable_of(key) != FILE_ONLY}
_OURS: Final = tuple(f"KEEPTHREAD_{name.upper()}_" for name in _SECTIONS if "." not in name)
_SECRETS: Final = ("key", "token", "secret", "password", "auth_token", "access_token")
_KEYS: Final = ("api_key", "apikey", "api_token")


class Value(NamedTuple):
    """A value, and where it comes from: a file's path, a variable's name, a flag."""

    value: Any
    source: str


Layer: TypeAlias = dict[str, Value]


def of_file(path: Path, *, project: bool) -> Layer:
    """Return what a file says; a project's may not set everything."""
    return of_entries(entries(path), path, project=project)


def of_entries(found: Sequence[Entry], path: Path, *, project: bool) -> Layer:
    """Return what the entries of a file say; those of a project may not set everything."""
    layer: Layer = {}
    for entry in found:
        where = f"{path}, line {entry.line}"
        if _is_block(entry.key):
            if entry.value is not None:
                raise InvalidInput(f"{where}: {entry.key} is a block: write its settings below it")
            continue
        known = _known(entry.key, where)
        if project and not known.metadata["project"]:
            raise InvalidInput(
                f"{where}: a project may not set {entry.key}: put it in your own config.yaml,"
                f" which `keepthread init` writes{_or_variable(entry.key)}"
            )
        layer[entry.key] = Value(_taken(path, entry, known, where), str(path))
    return layer


def _or_variable(key: str) -> str:
    return "" if (name := variable_of(key)) == FILE_ONLY else f", or set {name}"


def _is_block(key: str) -> bool:
    return key in _SECTIONS or (key.partition(".")[0] in NAMED and key.count(".") == 1)


def _taken(path: Path, entry: Entry, known: Field[Any], where: str) -> Any:
    kind: ValueKind = known.metadata["kind"]
    given: object = entry.value
    if isinstance(given, list) and not kind.separator:
        raise InvalidInput(f"{where}: {entry.key} is a list; it must be {kind.expected}")
    try:
        value = kind.take(entry.value)
    except ValueError:
        raise InvalidInput(f"{where}: {entry.key} {_wrong(kind, entry.value)}") from None
    if kind.a_path and value is not None and not value.startswith("~"):
        return str(path.absolute().parent / value)
    return value


def value_of(key: str, text: str) -> Any:
    """Return the value of a setting that a text gives, checked; `null` means no value."""
    kind: ValueKind = _known(key, "keepthread config set").metadata["kind"]
    try:
        value = kind.take_text(text)
    except ValueError:
        raise InvalidInput(f"{key} {_wrong(kind, text)}") from None
    return [*value] if kind.separator and value is not None else value


def of_environment(environ: Mapping[str, str]) -> Layer:
    """Return what variables say; one that is empty says nothing."""
    layer: Layer = {}
    for name, text in environ.items():
        if name not in _VARIABLES and not name.startswith(_OURS):
            continue
        key = _key_of(name)
        kind: ValueKind = _known(key, name).metadata["kind"]
        if not text:
            continue
        try:
            layer[key] = Value(kind.take_text(text), name)
        except ValueError:
            raise InvalidInput(f"{name} {_wrong(kind, text)}") from None
    return layer


def _key_of(variable: str) -> str:
    """Return the key that a variable sets, or refuse one that sets none."""
    if variable in _VARIABLES:
        return _VARIABLES[variable]
    section, _, name = variable.removeprefix("KEEPTHREAD_").lower().partition("_")
    if section in NAMED:
        ends = [each for each in NAMED[section] if name.endswith(f"_{each}")]
        part = max(ends, key=len, default="")  # shared_facts also ends in facts
        first, _, last = name.rpartition("_")
        return f"{section}.{name.removesuffix(f'_{part}') if part else first}.{part or last}"
    key = f"{section}.{name}"
    _refuse_secret(key, variable)
    if key in KEYS and variable_of(key) == FILE_ONLY:
        raise InvalidInput(f"{variable}: only your own config.yaml may set {key}; unset it")
    near = [variable_of(key)] if key in KEYS else get_close_matches(variable, _VARIABLES, 1, 0)
    raise InvalidInput(f"{variable} is not a setting; did you mean {near[0]}?")


def of_flags(flags: Mapping[str, JSON]) -> Layer:
    """Return what the command line says, by dotted keys; None says nothing."""
    layer: Layer = {}
    for key, value in flags.items():
        if value is None:
            continue
        known = _known(key, "the command line").metadata
        flag = known["flag"] or "the command line"
        try:
            layer[key] = Value(known["kind"].take(value), flag)
        except ValueError:
            raise InvalidInput(f"{flag} {_wrong(known['kind'], value)}") from None
    return layer


# --- what is wrong ---


def no_setting(key: str) -> str:
    """Return the message for an unknown key: it names the nearest setting."""
    last = key.rpartition(".")[2]
    near = get_close_matches(key, KEYS, 1) or [k for k in KEYS if k.rpartition(".")[2] == last]
    hint = f"did you mean {near[0]}?" if near else "`keepthread config` lists them all"
    return f"{key} is not a setting; {hint}"


def _known(key: str, where: str) -> Field[Any]:
    """Return what is known of a key, or refuse it and name the nearest."""
    if key in KEYS:
        return KEYS[key]
    _refuse_secret(key, where)
    block, _, rest = key.partition(".")
    own, _, name = rest.rpartition(".")
    if block not in NAMED:
        reason = no_setting(key)
    elif key.startswith("views.chat."):
        reason = "the view `chat` is set by memory.max_history_tokens and memory.strategy"
    elif name in NAMED[block] and own.replace("-", "_").isidentifier():
        return NAMED[block][name]
    else:
        near = get_close_matches(name, NAMED[block], 1)
        hint = f"did you mean {block}.{own}.{near[0]}? " if near and near[0] != name else ""
        known = ", ".join(f"{block}.NAME.{each}" for each in NAMED[block])
        one = "a view" if block == "views" else "an agent"
        reason = f"{key} is not a setting; {hint}{one} has {known}"
    raise InvalidInput(f"{where}: {reason}")


def _refuse_secret(key: str, where: str) -> None:
    section, _, last = key.rpartition(".")
    name = last.lower().replace("-", "_")
    if section == "discord" and name in _SECRETS:
        raise InvalidInput(
            f"{where}: the token comes from the environment: export DISCORD_TOKEN=…, or set "
            "discord.token_env to another variable"
        )
    if name in _SECRETS or name.endswith(_KEYS):
        of = "embedder" if section == "embedder" else "model"
        raise InvalidInput(
            f"{where}: keys come from the environment: export OPENAI_API_KEY=…, or set "
            f"{of}.key_env to another variable"
        )


def _wrong(kind: ValueKind, value: object) -> str:
    if kind.private:
        return f"must be {kind.expected}; its current value may be secret and is not shown"
    return f"is {show(value)}; it must be {kind.expected}"
