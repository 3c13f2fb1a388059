"""Commands about settings: init, config."""

import json
import os
import sys
from collections.abc import Callable, Mapping
from difflib import unified_diff
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple, TypeVar, cast

import typer

from keepthread.apps.cli.invocation import Call
from keepthread.apps.cli.sanitize import sanitize
from keepthread.apps.cli.settings.fields import NAME, WEB, whole
from keepthread.apps.cli.settings.load import (
    Config,
    config_file,
    text_of,
    values_in,
    with_values,
    write_private,
)
from keepthread.apps.cli.settings.settings import ModelSettings, default_path
from keepthread.apps.cli.settings.sources import no_setting
from keepthread.apps.cli.wiring import needs_key
from keepthread.errors import InvalidInput
from keepthread.stores.url import shown
from keepthread.types import JSON

_SECONDS: Final = 2.0
_MOST: Final = 8
_LARGEST: Final = 1 << 20
_OWN: Final = {"openai": "https://api.openai.com/v1", "anthropic": "https://api.anthropic.com/v1"}


class Service(NamedTuple):
    """A service of models; None means its default."""

    name: str
    title: str
    model: str | None
    """The model that is proposed."""
    provider: str = "openai"
    base_url: str | None = None
    key_env: str | None = None

    def settings(self, model: str | None = None) -> ModelSettings:
        """Return the settings that reach it."""
        return ModelSettings(
            provider=self.provider, name=model, base_url=self.base_url, key_env=self.key_env
        )


# Others than OpenAI have variables of their own, so that they are not sent OpenAI's key.
SERVICES: Final = (
    Service("openai", "OpenAI", "gpt-6.1-terra"),
    Service("anthropic", "Anthropic", "claude-sonnet-5-5", "anthropic"),
    Service(
        "ollama",
        "Ollama, on this machine",
        "llama3.2",
        base_url="http://localhost:11434/v1",
        key_env="OLLAMA_API_KEY",
    ),
)
OTHER: Final = Service(
    "other", "another address that speaks as OpenAI does", None, key_env="MODEL_API_KEY"
)


def service_of(answer: str) -> Service:
    """Return the service of a name, a number in the list or an address."""
    for number, service in enumerate((*SERVICES, OTHER), 1):
        if answer.lower() in (service.name, str(number)):
            return service
    if "://" in answer:
        return service_at(answer)
    names = ", ".join(service.name for service in SERVICES)
    raise InvalidInput(f"{answer!r} is not a service; there are {names}, or give an address")


def service_at(address: str) -> Service:
    """Return the service at an address of its own."""
    if not WEB.fits(address) or "@" in address:
        raise InvalidInput(f"give {WEB.expected}, without a name or a password in it")
    return OTHER._replace(base_url=address.rstrip("/"))


def likely(environ: Mapping[str, str]) -> Service:
    """Return the service whose key is set, else the first."""
    keyed = [each for each in SERVICES if environ.get(each.settings().key_variable)]
    return (*keyed, *SERVICES)[0]


def models_at(service: Service, key: str | None) -> list[str]:
    """Return some names of models if the service lists them within 2 seconds, else none."""
    if service.base_url is None and key is None:
        return []
    try:
        told: list[dict[str, Any]] = json.loads(_asked(service, key))["data"]
        newest = sorted(told, key=lambda each: -each.get("created", 0))
        names = [each["id"] for each in newest if isinstance(each["id"], str)]
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return []
    return names[:_MOST]


def _asked(service: Service, key: str | None) -> bytes:
    from http.client import HTTPException  # noqa: PLC0415 - not before it is needed
    from urllib.request import HTTPRedirectHandler, Request, build_opener  # noqa: PLC0415

    class Stay(HTTPRedirectHandler):
        """Follows nobody elsewhere: the key would go along."""

        def redirect_request(self, *_: Any, **__: Any) -> None:
            return None

    headers = {"User-Agent": "keepthread"}
    if key and service.provider == "anthropic":
        headers |= {"X-Api-Key": key, "Anthropic-Version": "2023-06-01"}
    elif key:
        headers["Authorization"] = f"Bearer {key}"
    address = f"{service.base_url or _OWN[service.provider]}/models"
    request = Request(address, headers=headers)  # noqa: S310 - the scheme was checked
    try:
        with build_opener(Stay).open(request, timeout=_SECONDS) as answer:
            return answer.read(_LARGEST)
    except HTTPException as error:
        raise OSError(str(error)) from None


NEVER: Final = "never"
_Answer = TypeVar("_Answer")


class Answers(NamedTuple):
    """The answers to the questions of `init`."""

    service: Service
    model: str
    path: str
    days: int | None
    recalls: bool

    def values(self) -> dict[str, JSON]:
        """Return the settings that follow, by their dotted keys."""
        service = {
            "model.provider": self.service.provider,
            "model.name": self.model,
            "model.base_url": self.service.base_url,
            "model.key_env": self.service.key_env,
        }
        kept = {key: value for key, value in service.items() if value is not None}
        return {
            **kept,
            "memory.storage_path": self.path,
            "memory.auto_prune_days": self.days,
            "memory.recall": "owner" if self.recalls else "session",
        }

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
        self,
        service: str | None,
        model: str | None,
        path: str | None,
        days: str | None,
        recalls: bool | None,
    ) -> Answers:
        """Return the five answers."""
        chosen = self._service(service)
        return Answers(
            chosen,
            self._model(chosen, model),
            self._answer("Keep conversations in", path, short(default_path()), _path),
            self._answer(
                "Delete them automatically after how many days without activity",
                days,
                NEVER,
                _days,
            ),
            self._recalls(recalls),
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
                typer.echo(f"It offers {sanitize(', '.join(names))}", err=True)
                default = default if default in names else names[0]
        return self._answer("Model", given, default, _name)

    def _recalls(self, given: bool | None) -> bool:
        if given is None and self._ask:
            return typer.confirm("Let new chats recall older ones?", default=False, err=True)
        return bool(given)

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
                typer.secho(sanitize(str(error)), err=True, fg="yellow")


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
        raise InvalidInput(f"{answer or 'nothing'} is not a file; give one, such as ~/memory.db")
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
        raise InvalidInput(f"{answer!r} is not a number of days from 1; or say {NEVER}") from None


def short(path: Path) -> str:
    """Return a path as people write it, from their home folder on."""
    home = Path.home()
    return f"~/{path.relative_to(home)}" if path.is_relative_to(home) else str(path)


_ADDRESSES: Final = ("model.base_url", "embedder.url", "discord.base_url")


def init(
    call: Call,
    service: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Who answers: openai, anthropic, ollama or a URL."),
    ] = None,
    model: Annotated[str | None, typer.Option(metavar="NAME", help="Which model answers.")] = None,
    path: Annotated[
        str | None, typer.Option(metavar="FILE", help="Where conversations are kept.")
    ] = None,
    prune_days: Annotated[
        str | None,
        typer.Option(metavar="N", help="Delete them after N days without activity, or `never`."),
    ] = None,
    recall: Annotated[
        bool | None,
        typer.Option(help="Whether new chats recall older ones.", show_default=False),
    ] = None,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Do not ask; what is not given has its default.")
    ] = False,
) -> None:
    """Ask five questions, and write your settings."""
    given = (service, model, path, prune_days)
    alone = call.json or not sys.stdin.isatty()
    if alone and not yes and None in given:
        raise InvalidInput(
            "nobody can answer questions here: give --service, --model, --path and --prune-days,"
            " or --yes, which takes the defaults of what is not given"
        )
    file = config_file(os.environ)
    if file.exists() and not yes:
        if alone:
            raise InvalidInput(f"{file} exists already; say --yes to change it")
        if not typer.confirm(f"{file} exists already. Change it?", err=True):
            call.say("Nothing was changed")
            return
    asks = not (yes or alone)
    answers = Questions(os.environ, ask=asks).answers(*given, recall)
    if file.exists():
        decided = None if asks else _decided(*given, recall)
        _change(call, file, answers.values(), decided)
    else:
        write_private(file, text_of(answers.values()))
    _tell(call, file, answers)


_OF_SERVICE: Final = ("model.provider", "model.name", "model.base_url", "model.key_env")


def _decided(
    service: str | None,
    model: str | None,
    path: str | None,
    days: str | None,
    recall: bool | None,
) -> set[str]:
    """Return the settings that the command line decides; others keep what a file has."""
    return {
        *(_OF_SERVICE if service is not None else ()),
        *(["model.name"] if model is not None else ()),
        *(["memory.storage_path"] if path is not None else ()),
        *(["memory.auto_prune_days"] if days is not None else ()),
        *(["memory.recall"] if recall is not None else ()),
    }


def _change(call: Call, file: Path, values: Mapping[str, JSON], decided: set[str] | None) -> None:
    """Set values in a file that exists, keep a copy of it, and show the difference.

    `decided` are the settings that may be changed, None for all; the others are only added.
    """
    data = file.read_bytes()
    try:
        text = with_values(data, _new(values_in(file), values, decided), file)
    except InvalidInput as error:
        call.say(f"It could not be changed, so a new one is written: {error}")
        text = text_of(values)
    if text.encode() == data:
        call.say(f"{short(file)} has all of this already, and stays as it is")
        return
    copy = file.with_name(f"{file.name}.bak")
    write_private(copy, data.decode(errors="replace"))
    write_private(file, text)
    before = data.decode(errors="replace").splitlines()
    for line in unified_diff(before, text.splitlines(), lineterm="", n=0):
        if not line.startswith(("---", "+++", "@@")):
            call.say(f"  {line}")
    call.say(f"The file as it was is {short(copy)}")


def _new(
    known: Mapping[str, JSON], values: Mapping[str, JSON], decided: set[str] | None
) -> dict[str, JSON]:
    """Return the values to set in a file that has some already."""
    gone = {key: None for key in _OF_SERVICE if key in known and key not in values}
    wanted: dict[str, JSON] = {**gone, **values}
    if "memory.url" in known:  # it names another place
        wanted.pop("memory.storage_path", None)
    return {
        key: value
        for key, value in wanted.items()
        if key not in known or (known[key] != value and (decided is None or key in decided))
    }


def _tell(call: Call, file: Path, answers: Answers) -> None:
    steps = answers.next_steps(os.environ)
    if call.json:
        call.write({"file": str(file), "settings": answers.values(), "next": steps})
    call.say(f"Wrote {short(file)}. What to do next:")
    for step in steps:
        call.say(f"  {step}")


def config(
    call: Call,
    key: Annotated[
        str | None,
        typer.Argument(metavar="KEY", help="One setting, or a block; without it, all."),
    ] = None,
) -> None:
    """Show every setting and where its value comes from."""
    rows = {
        name: row
        for name, row in _rows(call.config).items()
        if key is None or name == key or name.startswith(f"{key}.")
    }
    if not rows and key == "agents":
        call.say(f"No agent is named; name one below `agents:` in {config_file(os.environ)}")
    elif not rows:
        raise InvalidInput(no_setting(str(key)))
    if call.json:
        call.write(
            {name: {"value": value, "from": source} for name, (value, source) in rows.items()}
        )
        return
    call.screen.settings([(name, _words(value), source) for name, (value, source) in rows.items()])
    if not (file := config_file(os.environ)).exists():
        call.say(f"There is no {file} yet; `keepthread init` writes it")


def _rows(config: Config) -> dict[str, tuple[Any, str]]:
    """Return each value as it may be shown, and its source; of keys, whether they are set."""
    settings = config.settings
    values = settings.values()
    values["memory.storage_path"] = str(settings.memory.path)
    values["model.key_env"] = settings.model.key_variable
    values["discord.token_env"] = settings.discord.token_variable
    if values["memory.url"]:
        values["memory.url"] = shown(values["memory.url"])
    for key in _ADDRESSES:
        if values[key] and set(values[key]) & set("@?#"):
            values[key] = shown(values[key])
    rows: dict[str, tuple[Any, str]] = {}
    for key, value in values.items():
        rows[key] = (value, config.sources[key])
        if key.endswith((".key_env", ".token_env")) and value:
            rows[key.removesuffix("_env")] = ("set" if os.environ.get(value) else "not set", value)
    return rows


def _words(value: Any) -> str:
    if value is None or value == ():
        return "none"
    if isinstance(value, tuple):
        return ", ".join(map(str, cast("tuple[object, ...]", value)))
    return str(value).lower() if isinstance(value, bool) else str(value)
