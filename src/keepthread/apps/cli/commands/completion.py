"""The command that prints a completion script for a shell, made from the command line's parser."""

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import PurePath
from typing import Annotated, Any, Final, NamedTuple

import typer
from typer.main import get_command

from keepthread.apps.cli.app import COMMANDS, app
from keepthread.apps.cli.invocation import Call
from keepthread.apps.cli.settings.settings import KEYS
from keepthread.errors import InvalidInput

_PROGRAM: Final = "keepthread"
_WORDS: Final[Mapping[str, Sequence[str]]] = {
    "config": ("set", "edit", "path", *KEYS),
    "completion": ("bash", "zsh", "fish"),
}
"""Arguments that are one of a few words."""


class ShellOption(NamedTuple):
    """An option: its names, what it does, and whether a value follows it."""

    names: Sequence[str]
    about: str
    takes_value: bool


def completion(
    call: Call,
    shell: Annotated[
        str | None,
        typer.Argument(metavar="SHELL", help="bash, zsh or fish (default: from $SHELL)."),
    ] = None,
) -> None:
    """Print a shell completion script.

    bash: `eval "$(keepthread completion bash)"` in ~/.bashrc; zsh: the same with zsh in ~/.zshrc,
    after compinit; fish: write it to ~/.config/fish/completions/keepthread.fish.
    """
    name = shell or PurePath(os.environ.get("SHELL", "")).name
    if name not in _SHELLS:
        raise InvalidInput(
            f"there is no completion for {name or 'no shell'!r}; choose bash, zsh or fish"
        )
    script = _SHELLS[name]()
    if call.json:
        call.write({"shell": name, "script": script})
    else:
        typer.echo(script, nl=False)


def _words(name: str) -> Sequence[str]:
    """Return the words that may follow a command: its actions, or a few known ones."""
    program: Any = get_command(app)
    return [*getattr(program.commands[name], "commands", _WORDS.get(name, ()))]


def _options(name: str | None = None) -> list[ShellOption]:
    """Return the options of a command and of its actions, or those before its name."""
    program: Any = get_command(app)
    around = program.context_class(program, info_name=_PROGRAM, **program.context_settings)
    commands = [program]
    if name is not None:
        command = program.commands[name]
        commands = [*getattr(command, "commands", {"": command}).values()]
    found = {
        (*each.opts, *each.secondary_opts): each
        for command in commands
        for each in command.get_params(
            around if command is program else command.context_class(command, parent=around)
        )
        if each.param_type_name == "option"
    }
    return [ShellOption(names, each.help or "", not each.is_flag) for names, each in found.items()]


def _bash() -> str:
    before = _options()
    valued = "|".join(n for each in before if each.takes_value for n in each.names)
    lines = [
        f"_{_PROGRAM}() {{",
        "    local word=${COMP_WORDS[COMP_CWORD]} command= words= i",
        "    COMPREPLY=()",
        "    for ((i = 1; i < COMP_CWORD; i++)); do",
        "        case ${COMP_WORDS[i]} in",
        f"            {valued}) ((i++)) ;;",
        "            -*) ;;",
        "            *) command=${COMP_WORDS[i]}; break ;;",
        "        esac",
        "    done",
        '    case "$command ${COMP_WORDS[COMP_CWORD - 1]}" in',
        f"        {'|'.join(_valued_after())}) return ;;",
        "    esac",
        "    case $command in",
        f"        '') words='{' '.join([*COMMANDS, *_names(before)])}' ;;",
    ]
    for name in COMMANDS:
        known = [*_words(name), *_names(_options(name))]
        lines.append(f"        {name}) words='{' '.join(known)}' ;;")
    return "\n".join(
        [
            *lines,
            "    esac",
            '    COMPREPLY=($(compgen -W "$words" -- "$word"))',
            "}",
            f"complete -o bashdefault -o default -F _{_PROGRAM} {_PROGRAM}",
            "",
        ]
    )


def _valued_after() -> list[str]:
    """Return each command with each option after which a value is typed, as patterns."""
    return [
        f'"{name} {option}"'
        for name in COMMANDS
        for each in _options(name)
        if each.takes_value
        for option in each.names
    ]


def _names(options: Sequence[ShellOption]) -> list[str]:
    return [name for each in options for name in each.names]


def _zsh() -> str:
    # zsh runs the functions of bash once `bashcompinit` is loaded.
    return f"autoload -U +X bashcompinit && bashcompinit\n{_bash()}"


def _fish() -> str:
    # fish's own `__fish_use_subcommand` takes the value of an option for a command.
    first = f"__{_PROGRAM}_needs_command"
    seen = " ".join(COMMANDS)
    lines = [f"function {first}", f"    not __fish_seen_subcommand_from {seen}", "end"]
    lines += [
        f"complete -c {_PROGRAM} -n {first} -f -a {name} -d {_quoted(each.about)}"
        for name, each in COMMANDS.items()
    ]
    lines += _fish_options(_options(), first)
    for name in COMMANDS:
        when = f"'__fish_seen_subcommand_from {name}'"
        if words := _words(name):
            lines.append(f"complete -c {_PROGRAM} -n {when} -a {_quoted(' '.join(words))}")
        lines += _fish_options(_options(name), when)
    return "\n".join([*lines, ""])


def _fish_options(options: Sequence[ShellOption], when: str) -> list[str]:
    lines: list[str] = []
    for each in options:
        names = [f"-l {n[2:]}" if n.startswith("--") else f"-s {n[1:]}" for n in each.names]
        value = " -r" if each.takes_value else ""
        about = _quoted(each.about)
        lines.append(f"complete -c {_PROGRAM} -n {when} {' '.join(names)}{value} -d {about}")
    return lines


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


_SHELLS: Final[Mapping[str, Callable[[], str]]] = {"bash": _bash, "zsh": _zsh, "fish": _fish}
