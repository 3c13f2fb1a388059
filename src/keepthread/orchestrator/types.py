"""Data types of the pipeline: agents, routes, plans, results, and events while it runs."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeAlias

from keepthread.errors import InvalidInput
from keepthread.protocols import ChatModel
from keepthread.stores.validation import check_text, show
from keepthread.types import JSON, Message, Tool, Usage

AGENT_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")


@dataclass(frozen=True, kw_only=True, slots=True)
class NamedAgent:
    """A named specialist to which the planner can assign steps.

    It sees its task, its own prompt and its own facts: those that were noted for it or by it, for
    the owner whose request it is. No other owner and no other agent sees these.
    """

    name: str
    description: str = ""
    """Its purpose: the planner chooses by it."""
    system_prompt: str = ""
    model: ChatModel | None = None
    """The model that answers; None is that of all specialists."""
    tools: Sequence[str] = ()
    """The names of the only tools it gets; empty: those that the planner gives to the step."""
    facts: bool = False
    """Whether it sees the owner's facts, too."""
    shared_facts: Sequence[str] = ()
    """Facts that it knows for every owner. Your program writes them, never a model or a user."""

    def __post_init__(self) -> None:
        """Refuse an agent that could not be named or stored."""
        if type(self.name) is not str or not AGENT_NAME.fullmatch(self.name):
            raise InvalidInput(
                f"{show(self.name)} is not an agent's name: give 1 to 64 letters, digits, '_', '-'"
                " and '.'"
            )
        for field in ("description", "system_prompt"):
            check_text(getattr(self, field), f"the {field} of agent {self.name}")
        for field in ("tools", "shared_facts"):
            value = getattr(self, field)
            if isinstance(value, str):
                raise InvalidInput(f"{field} of agent {self.name} must be a list of texts")
            for each in value:
                check_text(each, f"{field} of agent {self.name}")
        if type(self.facts) is not bool:
            raise InvalidInput(f"facts must be True or False, not {show(self.facts)}")


class Route(NamedTuple):
    """Whether a request is answered at once, or needs a plan; and why."""

    direct: bool
    why: str = ""

    def to_json(self) -> JSON:
        """Return it as a model writes it."""
        return {"kind": "direct" if self.direct else "plan", "why": self.why}


class Subtask(NamedTuple):
    """One step of a plan, for a specialist that sees nothing else."""

    id: str
    task: str
    tools: Sequence[str] = ()
    needs: Sequence[str] = ()
    """The steps whose results it gets."""
    snippet: str = ""
    """The parts of the conversation that it must know, in the planner's words."""
    agent: str = ""
    """The agent that carries it out; empty for an ordinary specialist."""


class Plan(NamedTuple):
    """Steps, each after those it needs."""

    subtasks: Sequence[Subtask]

    def to_json(self) -> JSON:
        """Return it as a model writes it."""
        return {"steps": [subtask._asdict() for subtask in self.subtasks]}


class Result(NamedTuple):
    """The result of a step; `failed` says why there is none."""

    subtask: Subtask
    text: str = ""
    failed: str = ""
    truncated: bool = False
    """Whether the model was cut off or refused to continue: the text is only a beginning."""


class Answer(NamedTuple):
    """The answer to a request, and how it was found."""

    text: str
    route: Route | None = None
    """None if the answer was already stored: the request was delivered twice."""
    plan: Plan | None = None
    results: Sequence[Result] = ()
    message: Message | None = None
    """The answer as stored."""
    usage: Usage | None = None
    """The usage of all models together; None if none of them reported it."""
    truncated: bool = False
    """Whether the answer was cut off."""


class Runnable(NamedTuple):
    """A tool, and the function that runs it."""

    tool: Tool
    run: Callable[..., Any]
    """Takes the arguments by name, may be asynchronous, and returns a text or other JSON."""
    cache_turns: int = 0
    """Turns for which a result is cached; 0: none."""
    side_effects: bool = False
    """Whether it changes something; then it is run each time, and its result is not cached."""


class Models(NamedTuple):
    """The model of each stage; each may be a `Fallback` of several."""

    router: ChatModel
    planner: ChatModel
    specialist: ChatModel
    synthesizer: ChatModel

    @classmethod
    def all(cls, model: ChatModel) -> "Models":
        """Use one model for everything."""
        return cls(model, model, model, model)


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of the pipeline; seconds are wall time."""

    subtasks: int = 8
    """Maximum number of steps in a plan."""
    at_once: int = 8
    """Maximum number of specialists that run concurrently."""
    rounds: int = 5
    """Maximum rounds of tool calls of a specialist."""
    calls: int = 8
    """Tools that it may call in one round; further calls are refused."""
    stage_seconds: float = 120.0
    """For the router, the planner, and the answer."""
    subtask_seconds: float = 300.0
    tool_seconds: float = 60.0
    prompt_tokens: int = 16_000
    """Tokens of a specialist's prompt."""
    answer_prompt_tokens: int | None = None
    """Tokens of the prompt of the answer; None means the budget of the view `chat`."""

    def __post_init__(self) -> None:
        """Refuse limits that are too low to run anything."""
        for name in ("subtasks", "at_once", "calls", "prompt_tokens"):
            if getattr(self, name) < 1:
                raise InvalidInput(f"Limits.{name} must be at least 1, not {getattr(self, name)}")
        if self.rounds < 0:
            raise InvalidInput(f"Limits.rounds must be 0 or more, not {self.rounds}")
        for name in ("stage_seconds", "subtask_seconds", "tool_seconds"):
            if not getattr(self, name) > 0:
                raise InvalidInput(f"Limits.{name} must be above 0, not {getattr(self, name)}")


# --- events ---


class Routed(NamedTuple):
    """The router has decided."""

    route: Route


class Planned(NamedTuple):
    """There is a plan; or None, and the request is answered directly."""

    plan: Plan | None
    problem: str = ""
    """Why there is none; or which agents it names that do not exist."""


class Began(NamedTuple):
    """A step has begun."""

    subtask: Subtask


class Used(NamedTuple):
    """A step has used a tool."""

    subtask: Subtask
    tool: str
    arguments: Mapping[str, JSON]
    remembered: bool = False
    """Whether the result came from the cache, so that the tool was not run."""
    failed: str = ""


class ToolsRefused(NamedTuple):
    """The model's service does not take tools, and was asked again without them."""

    reason: str


class Ended(NamedTuple):
    """A step has ended."""

    result: Result


class AnswerPiece(NamedTuple):
    """A piece of the answer."""

    text: str


Event: TypeAlias = Routed | Planned | Began | Used | ToolsRefused | Ended | AnswerPiece
"""What `on_event` gets: a route, a plan, a step that begins or ends, a tool, a piece of text."""
EventHandler: TypeAlias = Callable[[Event], object]


def noop(_: object) -> None:
    """Ignore an event or a note."""
