"""The four questions of `keepthread init`, each with a default, and what follows from them."""

import os
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

import typer

from keepthread.cli.harmless import harmless
from keepthread.cli.kinds import NAME, whole
from keepthread.cli.services import (
    OTHER,
    SERVICES,
    Service,
    likely,
    models_at,
    service_at,
    service_of,
)
from keepthread.cli.settings import default_path
from keepthread.cli.wiring import needs_key
from keepthread.errors import InvalidInput
from keepthread.types import JSON

NEVER: Final = "never"
_Answer = TypeVar("_Answer")


class Answers(NamedTuple):
    """What was answered."""

    service: Service
    model: str
    path: str
    days: int | None

    def values(self) -> dict[str, JSON]:
        """Return the settings that follow, by their dotted keys."""
        service = {
            "model.provider": self.service.provider,
            "model.name": self.model,
            "model.base_url": self.service.base_url,
            "model.key_env": self.service.key_env,
        }
        kept = {key: value for key, value in service.items() if value is not None}
        return {**kept, "memory.storage_path": self.path, "memory.auto_prune_days": self.days}

    def next_steps(self, environ: Mapping[str, str]) -> list[str]:
        """Return what is to be done before the first chat, and the chat."""
        settings = self.service.settings(self.model)
        steps: list[str] = []
        if find_spec(settings.provider) is None:
            steps.append(f"pip install 'keepthread[{settings.provider}]'")
        if not environ.get(settings.key_variable):
            export = f"export {settings.key_variable}=…"
            if needs_key(settings):
                steps.append(f"{export}  with your key, which no file holds")
            elif self.service.name == OTHER.name:
                steps.append(f"{export}  if the service asks for a key")
        return [*steps, "keepthread chat"]


class Questions:
    """Asks for what was not given, again after a wrong answer; or takes the defaults."""

    def __init__(self, environ: Mapping[str, str], *, ask: bool) -> None:
        """Know whether there is somebody to ask."""
        self._environ = environ
        self._ask = ask

    def answers(
        self, service: str | None, model: str | None, path: str | None, days: str | None
    ) -> Answers:
        """Return the four answers."""
        chosen = self._service(service)
        return Answers(
            chosen,
            self._model(chosen, model),
            self._answer("Keep conversations in", path, short(default_path()), _path),
            self._answer(
                "Delete them by themselves after how many days without activity",
                days,
                NEVER,
                _days,
            ),
        )

    def _service(self, given: str | None) -> Service:
        if self._ask and given is None:
            typer.echo("Which service answers?", err=True)
            for number, service in enumerate((*SERVICES, OTHER), 1):
                typer.echo(f"  {number}  {service.title}", err=True)
        default = likely(self._environ).name
        chosen = self._answer("Service", given, default, service_of)
        if chosen.name == OTHER.name and chosen.base_url is None:
            if not self._ask:
                raise InvalidInput("--service other has no address: give the address itself")
            chosen = self._answer("Its address", None, "http://localhost:8080/v1", service_at)
        return chosen

    def _model(self, service: Service, given: str | None) -> str:
        default = service.model
        if self._ask and given is None:
            key = self._environ.get(service.settings().key_variable)
            if names := [name for name in models_at(service, key) if NAME.fits(name)]:
                typer.echo(f"It offers {harmless(', '.join(names))}", err=True)
                default = default if default in names else names[0]
        return self._answer("Model", given, default, _name)

    def _answer(
        self, question: str, given: str | None, default: str | None, read: Callable[[str], _Answer]
    ) -> _Answer:
        if given is not None:
            return read(given)
        if not self._ask:
            if default is None:
                raise InvalidInput(f"{question}: there is no default; give --{question.lower()}")
            return read(default)
        while True:
            answer: str = typer.prompt(question, default=default, err=True)
            try:
                return read(answer.strip())
            except InvalidInput as error:
                typer.secho(harmless(str(error)), err=True, fg="yellow")


def _name(answer: str) -> str:
    if not NAME.fits(answer):
        raise InvalidInput(f"a model's name is {NAME.expected.partition(';')[0]}")
    return answer


def _path(answer: str) -> str:
    if "://" in answer:
        raise InvalidInput(
            "give the path of a file; an address is named by KEEPTHREAD_STORE or memory.url"
        )
    path = Path(answer).expanduser()
    if not answer or path.is_dir():
        raise InvalidInput(f"{answer or 'nothing'} is no file; give one, such as ~/memory.db")
    there = next(place for place in path.absolute().parents if place.exists())
    if not there.is_dir() or not os.access(there, os.W_OK):
        raise InvalidInput(f"nothing can be written into {there}; give another path")
    return answer if answer.startswith("~") else str(path.absolute())


def _days(answer: str) -> int | None:
    if answer.lower() == NEVER:
        return None
    try:
        return whole(1).take_text(answer)
    except ValueError:
        raise InvalidInput(f"{answer!r} is no number of days from 1; or say {NEVER}") from None


def short(path: Path) -> str:
    """Return a path as people write it, from their home folder on."""
    home = Path.home()
    return f"~/{path.relative_to(home)}" if path.is_relative_to(home) else str(path)
