"""Router, planner, executor, synthesizer: a small pipeline over chat models, with memory.

These are plain functions, to use directly or as an example of how to add memory to a pipeline. The
rest of the library does not depend on them.
"""

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
    Plan,
    Planned,
    Result,
    Route,
    Routed,
    Runnable,
    Subtask,
    Used,
)

__all__ = [
    "Answer",
    "AnswerPiece",
    "Began",
    "Ended",
    "Event",
    "Fallback",
    "Limits",
    "Models",
    "Plan",
    "Planned",
    "Result",
    "Route",
    "Routed",
    "Runnable",
    "Subtask",
    "Used",
    "orchestrate",
    "plan",
    "route",
    "run",
]
