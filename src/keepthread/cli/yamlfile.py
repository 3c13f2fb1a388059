"""A settings file as flat entries: plain YAML, read from events, so that nothing can be built."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple, NoReturn

from keepthread.errors import InvalidInput

LARGEST: Final = 1 << 20
_DEEPEST: Final = 8


class Entry(NamedTuple):
    """One value of a file, by its dotted key."""

    key: str
    value: Any
    line: int


def entries(path: Path) -> list[Entry]:
    """Return what a file says, in its order; what is no plain block of settings is an error."""
    with path.open("rb") as file:
        data = file.read(LARGEST + 1)
    if len(data) > LARGEST:
        raise InvalidInput(f"{path} is larger than 1 MB; it is no settings file")
    if not data.strip():
        return []
    return _Reading(path).entries(data)


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
            self._refuse(0, "it is no text in UTF-8")

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
            self._refuse(self._line(more), "a second document begins; put all into one")

    def _block(self, prefix: str, depth: int) -> Iterator[Entry]:
        while not isinstance(name := self._loader.get_event(), self._yaml.MappingEndEvent):
            line = self._line(name)
            if not self._is(name, "Scalar"):
                self._refuse(line, "the name of a setting must be one word")
            self._check(name, "the name of a setting")
            key = f"{prefix}{name.value}"
            if key in self._seen:
                self._refuse(line, f"{key} is there twice; leave one")
            self._seen.add(key)
            value = self._loader.get_event()
            self._check(value, key)
            if self._is(value, "Mapping"):
                if depth == _DEEPEST:
                    self._refuse(line, f"{key} is nested too deeply; no setting is")
                yield from self._block(f"{key}.", depth + 1)
            elif self._is(value, "Scalar"):
                yield Entry(key, self._value(value), line)
            else:
                self._refuse(line, f"{key} is a list; no setting is one")

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
        except ValueError:  # it looks like a date or number, and is none
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
