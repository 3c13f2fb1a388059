"""The nouns of a pipeline: routes, plans, results, and what is told while it runs."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from keepthread.errors import InvalidInput
from keepthread.protocols import ChatModel
from keepthread.types import JSON, Message, Tool, Usage


class Route(NamedTuple):
    """Whether a request is answered at once, or needs a plan; and why."""

    direct: bool
    why: str = ""

    def to_json(self) -> JSON:
        """Return it as a model writes it."""
        return {"kind": "direct" if self.direct else "plan", "why": self.why}


class Subtask(NamedTuple):
    """One step of a plan, for a specialist that sees nothing but this."""

    id: str
    task: str
    tools: Sequence[str] = ()
    needs: Sequence[str] = ()
    """The steps whose results it is given."""
    snippet: str = ""
    """What it must know of the conversation, in the planner's words."""


class Plan(NamedTuple):
    """Steps, each behind those it needs."""

    subtasks: Sequence[Subtask]

    def to_json(self) -> JSON:
        """Return it as a model writes it."""
        return {"steps": [subtask._asdict() for subtask in self.subtasks]}


class Result(NamedTuple):
    """What came of a step; `failed` says why nothing did."""

    subtask: Subtask
    text: str = ""
    failed: str = ""
    truncated: bool = False
    """Whether the model was cut off or refused to continue: the text is only a beginning."""


class Answer(NamedTuple):
    """What a request came to."""

    text: str
    route: Route | None = None
    """None if the answer was there already: the request was delivered twice."""
    plan: Plan | None = None
    results: Sequence[Result] = ()
    message: Message | None = None
    """The answer as stored."""
    usage: Usage | None = None
    """What all models took together; None if none of them told."""
    truncated: bool = False
    """Whether it was broken off."""


class Runnable(NamedTuple):
    """A tool, and what runs it."""

    tool: Tool
    run: Callable[..., Awaitable[JSON]]
    """Takes the arguments by name, and gives a text or other JSON."""
    cache_turns: int = 0
    """Turns in which a result is remembered; 0: not at all."""
    side_effects: bool = False
    """Whether it changes something; then it is run each time, and nothing is remembered."""


class Models(NamedTuple):
    """Who does what; each may be a `Fallback` of several."""

    router: ChatModel
    planner: ChatModel
    specialist: ChatModel
    synthesizer: ChatModel

    @classmethod
    def all(cls, model: ChatModel) -> "Models":
        """Let one model do everything."""
        return cls(model, model, model, model)


@dataclass(frozen=True, slots=True)
class Limits:
    """How much of everything; seconds are of wall time."""

    subtasks: int = 8
    """In a plan."""
    at_once: int = 8
    """Specialists side by side."""
    rounds: int = 5
    """Times that a specialist may call tools."""
    calls: int = 8
    """Tools that it may call at once; it is told of the rest that they were not run."""
    stage_seconds: float = 120.0
    """For the router, the planner, and the answer."""
    subtask_seconds: float = 300.0
    tool_seconds: float = 60.0
    prompt_tokens: int = 16_000
    """What a prompt of a specialist may cost."""

    def __post_init__(self) -> None:
        """Refuse limits under which nothing could ever run."""
        for name in ("subtasks", "at_once", "calls", "prompt_tokens"):
            if getattr(self, name) < 1:
                raise InvalidInput(f"Limits.{name} must be at least 1, not {getattr(self, name)}")
        if self.rounds < 0:
            raise InvalidInput(f"Limits.rounds must be 0 or more, not {self.rounds}")
        for name in ("stage_seconds", "subtask_seconds", "tool_seconds"):
            if not getattr(self, name) > 0:
                raise InvalidInput(f"Limits.{name} must be above 0, not {getattr(self, name)}")


# --- what is told while it runs ---


class Routed(NamedTuple):
    """The router has decided."""

    route: Route


class Planned(NamedTuple):
    """There is a plan; or none, and the request is answered at once."""

    plan: Plan | None
    problem: str = ""


class Began(NamedTuple):
    """A step has begun."""

    subtask: Subtask


class Used(NamedTuple):
    """A step has used a tool."""

    subtask: Subtask
    tool: str
    arguments: Mapping[str, JSON]
    remembered: bool = False
    """Whether its result was remembered, so that it was not run."""
    failed: str = ""


class Ended(NamedTuple):
    """A step has ended."""

    result: Result


class Said(NamedTuple):
    """A piece of the answer."""

    text: str


Event: TypeAlias = Routed | Planned | Began | Used | Ended | Said
Tell: TypeAlias = Callable[[Event], object]


def untold(_: Event) -> None:
    """Tell nobody."""
