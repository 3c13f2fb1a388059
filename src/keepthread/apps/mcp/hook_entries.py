"""Hooks in the settings of coding agents: which file, and what an entry looks like there.

Both agents have the same form: for each event a list of groups, each with a list of commands.
`with_hooks` and `without_hooks` change a text; all other hooks stay as they are.
"""

import json
import os
import shlex
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, cast

from keepthread.apps.mcp import json_edit
from keepthread.errors import InvalidInput
from keepthread.interchange.foreign import dicts, listed, text_in

TIMEOUT: Final = 5
"""Seconds after which an agent ends a hook; a hook ends itself within one."""
_HOOKS: Final = "hooks"
_COMMENTS: Final = ("//", "/*")


class HookFile(NamedTuple):
    """The hooks of an agent: which file, and for which events."""

    path: Callable[[Mapping[str, str], Path], Path]
    """Returns the file, from the environment and the home folder."""
    events: Sequence[str]


def _claude(environ: Mapping[str, str], home: Path) -> Path:
    return Path(environ.get("CLAUDE_CONFIG_DIR") or home / ".claude") / "settings.json"


def _codex(environ: Mapping[str, str], home: Path) -> Path:
    return Path(environ.get("CODEX_HOME") or home / ".codex") / "hooks.json"


_EVENTS: Final = ("SessionStart", "UserPromptSubmit", "Stop", "SubagentStop")
HOOK_FILES: Final[Mapping[str, HookFile]] = {
    "claude-code": HookFile(_claude, (*_EVENTS, "SessionEnd")),
    "codex": HookFile(_codex, _EVENTS),
}


def group_of(command: Sequence[str]) -> dict[str, Any]:
    """Return the group of one command, which an agent runs in a shell."""
    line = subprocess.list2cmdline(command) if os.name == "nt" else shlex.join(command)
    return {_HOOKS: [{"type": "command", "command": line, "timeout": TIMEOUT}]}


def with_hooks(agent: str, path: Path, text: str, command: Sequence[str]) -> str:
    """Return the text of a settings file with our hooks, new or in place of earlier ones."""
    group = group_of(command)

    def added(groups: Sequence[Any]) -> list[Any]:
        mine = [n for n, each in enumerate(groups) if _is_ours(each, agent)]
        others = [each for each in groups if not _is_ours(each, agent)]
        place = mine[0] if mine else len(others)
        return [*others[:place], group, *others[place:]]

    return _changed(agent, path, text, HOOK_FILES[agent].events, added)


def without_hooks(agent: str, path: Path, text: str) -> str:
    """Return the text of a settings file without our hooks; the same text if it has none."""
    events = _events(path, text)

    def left(groups: Sequence[Any]) -> list[Any]:
        return [each for each in groups if not _is_ours(each, agent)]

    return _changed(agent, path, text, [*events], left)


def _changed(
    agent: str,
    path: Path,
    text: str,
    names: Sequence[str],
    change: Callable[[Sequence[Any]], list[Any]],
) -> str:
    before = _events(path, text)
    after = text
    for name in names:
        groups = before.get(name, [])
        if (wanted := change(groups)) == groups:
            continue
        place = (_HOOKS, name)
        edit = json_edit.with_value if wanted else _without
        after = edit(after, place, wanted)
    _check(agent, path, (text, before), (after, _events(path, after)))
    return after


def _without(text: str, place: tuple[str, str], _: object) -> str:
    return json_edit.without_value(text, place)


def _check(
    agent: str,
    path: Path,
    before: tuple[str, Mapping[str, Any]],
    after: tuple[str, Mapping[str, Any]],
) -> None:
    """Refuse a change that would reach another hook, another setting or a comment."""
    kept = [_settings(path, text) for text, _ in (before, after)]
    others = [
        {
            name: left
            for name, groups in events.items()
            if (left := [each for each in groups if not _is_ours(each, agent)])
        }
        for _, events in (before, after)
    ]
    for each in kept:
        each.pop(_HOOKS, None)
    comments = [sum(text.count(sign) for sign in _COMMENTS) for text, _ in (before, after)]
    if kept[0] != kept[1] or others[0] != others[1] or comments[0] > comments[1]:
        raise _by_hand(path)


def _is_ours(group: Any, agent: str) -> bool:
    """Return whether a group has our command and no other."""
    hooks = listed(group, _HOOKS)
    commands = [text_in(each, "command") for each in dicts(hooks)]
    return len(hooks) == len(commands) == 1 and _is_our_command(commands[0], agent)


def _is_our_command(command: str, agent: str) -> bool:
    return "keepthread" in command and f" hook {agent}" in command


def _settings(path: Path, text: str) -> dict[str, Any]:
    try:
        value: Any = json.loads(json_edit.plain(text) or "{}")
    except ValueError:
        raise InvalidInput(
            f"{path} cannot be read as JSON; repair it first, or add the hooks by hand"
        ) from None
    if not isinstance(value, dict):
        raise _by_hand(path)
    return cast("dict[str, Any]", value)


def _events(path: Path, text: str) -> dict[str, list[Any]]:
    """Return the groups of each event."""
    found = _settings(path, text).get(_HOOKS, {})
    if not isinstance(found, dict):
        raise _by_hand(path)
    events = cast("dict[str, Any]", found)
    if not all(isinstance(groups, list) for groups in events.values()):
        raise _by_hand(path)
    return events


def _by_hand(path: Path) -> InvalidInput:
    return InvalidInput(
        f"{path} has a form that cannot be edited safely; edit it by hand:"
        " `keepthread mcp install AGENT --hooks` prints the hooks"
    )
