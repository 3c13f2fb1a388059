"""Commands about settings: init, config."""

import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches, unified_diff
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple, TypeVar, cast

import typer

from keepthread.apps.cli.invocation import Call
from keepthread.apps.cli.sanitize import sanitize
from keepthread.apps.cli.services import (
    OTHER,
    SERVICES,
    Service,
    likely,
    models_at,
    service_at,
    service_of,
)
from keepthread.apps.cli.settings.fields import NAME, whole
from keepthread.apps.cli.settings.load import (
    Config,
    check_file,
    config_file,
    read_config,
    text_of,
    values_in,
    with_values,
    write_private,
)
from keepthread.apps.cli.settings.secrets import secret_of, source_of
from keepthread.apps.cli.settings.settings import default_path
from keepthread.apps.cli.settings.sources import KEYS, NAMED, no_setting, value_of
from keepthread.apps.cli.wiring import needs_key
from keepthread.errors import InvalidInput
from keepthread.stores.url import shown
from keepthread.types import JSON

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
        if not source_of(settings.key_variable, environ):
            export = f"export {settings.key_variable}=…"
            if needs_key(settings):
                steps.append(f"{export}  (your API key; it is stored in no file)")
            elif self.service.name == OTHER.name:
                steps.append(f"{export}  (if the service requires a key)")
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
                raise InvalidInput('--service other needs a URL: give the URL instead of "other"')
            chosen = self._answer("Its URL", None, "http://localhost:8080/v1", service_at)
        return chosen

    def _model(self, service: Service, given: str | None) -> str:
        default = service.model
        if self._ask and given is None:
            key = secret_of(service.settings().key_variable, self._environ)
            found = models_at(service, key)
            if found.problem:
                typer.secho(sanitize(found.note), err=True, fg="yellow")
            if names := [name for name in found.names if NAME.fits(name)]:
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
            "give the path of a file; to use a URL, set KEEPTHREAD_STORE or memory.url"
        )
    path = Path(answer).expanduser()
    if not answer or path.is_dir():
        raise InvalidInput(f"{answer or 'nothing'} is not a file; give one, such as ~/memory.db")
    there = next(place for place in path.absolute().parents if place.exists())
    if not there.is_dir() or not os.access(there, os.W_OK):
        raise InvalidInput(f"{there} is not writable; give another path")
    return answer if answer.startswith("~") else str(path.absolute())


def _days(answer: str) -> int | None:
    if answer.lower() == NEVER:
        return None
    try:
        return whole(1).take_text(answer)
    except ValueError:
        raise InvalidInput(f"{answer!r} is not a number of days (1 or more) or {NEVER}") from None


def short(path: Path) -> str:
    """Return a path as people write it, from their home folder on."""
    home = Path.home()
    return f"~/{path.relative_to(home)}" if path.is_relative_to(home) else str(path)


_ADDRESSES: Final = ("model.base_url", "embedder.url", "discord.base_url")


def init(
    call: Call,
    service: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="The service: openai, anthropic, ollama or a URL."),
    ] = None,
    model: Annotated[str | None, typer.Option(metavar="NAME", help="The model.")] = None,
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
        bool,
        typer.Option("--yes", "-y", help="Do not ask; use the defaults for missing answers."),
    ] = False,
) -> None:
    """Ask five questions, and write your settings."""
    given = (service, model, path, prune_days)
    alone = call.json or not sys.stdin.isatty()
    if alone and not yes and None in given:
        raise InvalidInput(
            "there is no terminal to ask questions: give --service, --model, --path and "
            "--prune-days, or --yes to use the defaults"
        )
    file = config_file(os.environ)
    if file.exists() and not yes:
        if alone:
            raise InvalidInput(f"{file} already exists; use --yes to change it")
        if not typer.confirm(f"{file} already exists. Change it?", err=True):
            call.say("Nothing was changed")
            return
    asks = not (yes or alone)
    answers = Questions(os.environ, ask=asks).answers(*given, recall)
    if file.exists():
        decided = None if asks else _decided(*given, recall)
        _change(call, file, answers.values(), decided)
    else:
        write_private(file, text_of(answers.values()))
    _report(call, file, answers)
    if not asks and answers.service.base_url:
        key = secret_of(answers.service.settings().key_variable, os.environ)
        if found := models_at(answers.service, key).note:
            call.warn(found)


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
        call.say(f"It could not be edited, so a new file is written: {error}")
        text = text_of(values)
    if text.encode() == data:
        call.say(f"{short(file)} already has these settings; it is unchanged")
        return
    copy = file.with_name(f"{file.name}.bak")
    write_private(copy, data.decode(errors="replace"))
    write_private(file, text)
    before = data.decode(errors="replace").splitlines()
    for line in unified_diff(before, text.splitlines(), lineterm="", n=0):
        if not line.startswith(("---", "+++", "@@")):
            call.say(f"  {line}")
    call.say(f"The previous version was saved as {short(copy)}")


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


def _report(call: Call, file: Path, answers: Answers) -> None:
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
        typer.Argument(
            metavar="KEY", help="A setting or block (default: all), or set, edit or path."
        ),
    ] = None,
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="For `set`: the setting.")
    ] = None,
    value: Annotated[
        str | None, typer.Argument(metavar="VALUE", help="For `set`: its value.")
    ] = None,
) -> None:
    """Show every setting and where its value comes from, or change one.

    `set KEY VALUE` writes it into your settings file, whose comments stay; `edit` opens the file in
    $VISUAL or $EDITOR, and checks it; `path` prints where it is.
    """
    given = [word for word in (name, value) if word is not None]
    if key in _ACTIONS:
        _ACTIONS[key](call, given)
        return
    if given:
        raise InvalidInput(_instead_of(str(key), given))
    _show(call, key)


def _instead_of(key: str, words: Sequence[str]) -> str:
    """Return what to write instead of `config KEY WORDS`, where nothing like it exists."""
    setting = words[0]
    if key in ("get", "show"):
        known = any(f"{each}.".startswith(f"{setting}.") for each in (*KEYS, *NAMED))
        what = "" if known else f"{no_setting(setting)}; "
        return f"{what}to show a setting, write `keepthread config {setting if known else 'KEY'}`"
    if near := get_close_matches(key, _ACTIONS, 1):
        return f"{key} is not an action; did you mean `keepthread config {near[0]}`?"
    if key not in KEYS and key.partition(".")[0] not in NAMED:
        return no_setting(key)
    return f"to change a setting, write `keepthread config set {key} {shlex.quote(setting)}`"


def _path_of_settings(call: Call, words: Sequence[str]) -> None:
    _none(words, "path")
    file = config_file(os.environ)
    if call.json:
        call.write({"file": str(file), "exists": file.exists()})
    else:
        typer.echo(sanitize(str(file)))


def _set(call: Call, words: Sequence[str]) -> None:
    if len(words) != 2:
        raise InvalidInput("set takes a setting and its value: set model.name gpt-6.1-terra")
    key, text = words
    file = config_file(os.environ)
    value = value_of(key, text)
    data = file.read_bytes() if file.exists() else b""
    with_new = with_values(data, {key: value}, file).encode()
    check_file(with_new, file)
    write_private(file, with_new.decode())
    source = _source(key)
    if call.json:
        call.write({"file": str(file), "key": key, "value": value, "from": source})
    call.say(f"{key} is {_words(value)} in {short(file)}")
    if source != str(file):
        call.warn(f"{source} also sets it and takes precedence here")


def _source(key: str) -> str:
    """Return where the value of a setting comes from now."""
    return read_config(os.environ, Path.cwd()).sources[key]


def _edit(call: Call, words: Sequence[str]) -> None:
    _none(words, "edit")
    if call.json or not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise InvalidInput("edit needs a terminal; use `keepthread config set` instead")
    file = config_file(os.environ)
    if not file.exists():
        write_private(file, text_of({}))
    before = file.read_bytes()
    while True:
        _open_editor(file)
        try:
            check_file(file.read_bytes(), file)
        except InvalidInput as error:
            call.warn(str(error))
            if typer.confirm("Edit it again?", default=True, err=True):
                continue
            call.say(f"{short(file)} stays as you wrote it; commands fail until it is corrected")
            raise typer.Exit(2) from None
        break
    changed = file.read_bytes() != before
    call.say(f"{short(file)} {'was changed and is valid' if changed else 'was not changed'}")


def _open_editor(file: Path) -> None:
    own = "vi" if os.name == "posix" else "notepad"
    command = os.environ.get("VISUAL") or os.environ.get("EDITOR") or own
    try:
        words = [*shlex.split(command, posix=os.name == "posix"), str(file)]
        done = subprocess.run(words, check=False)  # noqa: S603 - the user's own editor
    except (OSError, ValueError) as error:
        raise InvalidInput(
            f"the editor {command!r} cannot be started: {error}; set VISUAL or EDITOR to another "
            "one"
        ) from None
    if done.returncode:
        raise InvalidInput(f"the editor {command!r} ended with status {done.returncode}")


_ACTIONS: Final = {"path": _path_of_settings, "set": _set, "edit": _edit}


def _none(words: Sequence[str], action: str) -> None:
    if words:
        raise InvalidInput(f"{action} takes no argument; remove {words[0]!r}")


def _show(call: Call, key: str | None) -> None:
    rows = {
        name: row
        for name, row in _rows(call.config).items()
        if key is None or name == key or name.startswith(f"{key}.")
    }
    if not rows and key == "agents":
        call.say(f"No agents are defined; add one under `agents:` in {config_file(os.environ)}")
    elif not rows:
        raise InvalidInput(no_setting(str(key)))
    if call.json:
        call.write(
            {name: {"value": value, "from": source} for name, (value, source) in rows.items()}
        )
        return
    with call.paged() as screen:
        screen.settings([(name, _words(value), source) for name, (value, source) in rows.items()])
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
            command = settings.model.key_command if key == "model.key_env" else None
            found = source_of(value, os.environ, command)
            where = value if found in ("", "environment") else f"the {found}"
            rows[key.removesuffix("_env")] = ("set" if found else "not set", where)
    return rows


def _words(value: Any) -> str:
    if value is None or value == ():
        return "none"
    if isinstance(value, tuple):
        return ", ".join(map(str, cast("tuple[object, ...]", value)))
    return str(value).lower() if isinstance(value, bool) else str(value)
