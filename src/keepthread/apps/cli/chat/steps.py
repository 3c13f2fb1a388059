"""The steps of the orchestrator for an answer, as a small tree that grows while it works."""

import json
from collections.abc import Sequence
from typing import Final

from keepthread.apps.cli.sanitize import sanitize
from keepthread.orchestrator.types import Began, Ended, Event, Planned, Result, Routed, Used

_LONGEST: Final = 60
_LONGEST_REASON: Final = 200


class Steps:
    """The route, the plan and its steps; `lines` shows their state."""

    def __init__(self) -> None:
        """Begin with nothing decided."""
        self._routed: Routed | None = None
        self._planned: Planned | None = None
        self._began: set[str] = set()
        self._used: dict[str, list[str]] = {}
        self._ended: dict[str, Result] = {}

    def take(self, event: Event, left: str = "") -> None:
        """Take note of what happened; `left` says how long a remembered result still serves."""
        match event:
            case Routed():
                self._routed = event
            case Planned():
                self._planned = event
            case Began():
                self._began.add(event.subtask.id)
            case Used():
                self._used.setdefault(event.subtask.id, []).append(used_line(event, left))
            case Ended():
                self._ended[event.result.subtask.id] = event.result
            case _:
                pass

    def lines(self) -> list[str]:
        """Return what to show, harmless: the route, and the plan as a tree with its state."""
        if self._routed is None:
            return []
        route = self._routed.route
        kind = "directly" if route.direct else "with a plan"
        found = [f"answered {kind}{f': {_short(route.why)}' if route.why else ''}"]
        if self._planned is None:
            return found
        if self._planned.plan is None:
            return [
                *found,
                f"planning failed: {_short(self._planned.problem, _LONGEST_REASON)}",
            ]
        if self._planned.problem:
            found.append(_short(self._planned.problem, _LONGEST_REASON))
        steps = self._planned.plan.subtasks
        for number, step in enumerate(steps, 1):
            last = number == len(steps)
            needs = f" (needs {', '.join(map(sanitize, step.needs))})" if step.needs else ""
            state = self._state(step.id)
            branch = "└" if last else "├"
            name = f"{step.id} by {step.agent}" if step.agent else step.id
            found.append(f"{branch} {state} {sanitize(name)}: {_short(step.task)}{needs}")
            found += [f"{' ' if last else '│'}     {line}" for line in self._below(step.id)]
        return found

    def _state(self, id: str) -> str:
        ended = self._ended.get(id)
        if ended is not None:
            return "✗" if ended.failed or ended.truncated else "✓"
        return "…" if id in self._began else "·"

    def _below(self, id: str) -> Sequence[str]:
        """Return the tools that a step used, and why it failed."""
        lines = self._used.get(id, [])
        ended = self._ended.get(id)
        if ended is None or not (ended.failed or ended.truncated):
            return lines
        why = ended.failed or "its result was truncated: only the beginning arrived"
        return [*lines, _short(why, _LONGEST_REASON)]


def used_line(used: Used, left: str = "") -> str:
    """Return a call in one line, harmless: the tool, its arguments, and how it went."""
    how = ""
    if used.failed:
        how = f"  failed: {_short(used.failed)}"
    elif used.remembered:
        how = f"  cached{left}"
    return f"{sanitize(used.tool)} {_short(json.dumps(used.arguments, ensure_ascii=False))}{how}"


def _short(text: str, longest: int = _LONGEST) -> str:
    line = sanitize(" ".join(text.split()))
    return line if len(line) <= longest else f"{line[: longest - 1]}…"
