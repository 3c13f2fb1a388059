"""Router, planner, executor, synthesizer: a small pipeline over chat models, with memory.

These are plain functions, to use directly or as an example of how to add memory to a pipeline, and
`Orchestrator`, which holds their parts together. Stores and memory do not depend on them.
"""

from keepthread.orchestrator.agent import Agent, Orchestrator
from keepthread.orchestrator.models import Fallback
from keepthread.orchestrator.pipeline import orchestrate, run
from keepthread.orchestrator.planner import plan
from keepthread.orchestrator.router import route
from keepthread.orchestrator.types import (
    Answer,
    AnswerPiece,
    Began,
    Ended,
    Event,
    Limits,
    Models,
    NamedAgent,
    Plan,
    Planned,
    Result,
    Route,
    Routed,
    Runnable,
    Subtask,
    ToolsRefused,
    Used,
)

__all__ = [
    "Agent",
    "Answer",
    "AnswerPiece",
    "Began",
    "Ended",
    "Event",
    "Fallback",
    "Limits",
    "Models",
    "NamedAgent",
    "Orchestrator",
    "Plan",
    "Planned",
    "Result",
    "Route",
    "Routed",
    "Runnable",
    "Subtask",
    "ToolsRefused",
    "Used",
    "orchestrate",
    "plan",
    "route",
    "run",
]
