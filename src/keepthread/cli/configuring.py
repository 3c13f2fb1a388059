"""Commands about settings: init, config."""

import os
import sys
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from keepthread.cli.call import Call
from keepthread.cli.config import Config, config_file
from keepthread.cli.configfile import text_of, write_private
from keepthread.cli.layers import no_setting
from keepthread.cli.questions import Answers, Questions, short
from keepthread.errors import InvalidInput
from keepthread.opening import shown

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
        typer.Option(metavar="N", help="Delete them after so many days at rest, or `never`."),
    ] = None,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Do not ask; what is not given has its default.")
    ] = False,
) -> None:
    """Ask four questions, and write your settings."""
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
            raise InvalidInput(f"{file} is there already; say --yes to write it anew")
        if not typer.confirm(f"{file} is there already. Write it anew?", err=True):
            call.say("Nothing was changed")
            return
    answers = Questions(os.environ, ask=not (yes or alone)).answers(*given)
    write_private(file, text_of(answers.values()))
    _tell(call, file, answers)


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
    if not rows:
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
    if value is None:
        return "none"
    return str(value).lower() if isinstance(value, bool) else str(value)
