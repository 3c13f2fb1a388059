"""Router, planner, executor, synthesizer: a small pipeline over chat models, with memory around it.

Plain functions, to be used as they are or to be read as an example of how memory is wired into a
pipeline; nothing of the library depends on them.
"""

from keepthread.orchestrator.models import Fallback
from keepthread.orchestrator.pipeline import orchestrate, pursue
from keepthread.orchestrator.planner import plan
from keepthread.orchestrator.router import route
from keepthread.orchestrator.types import (
    Answer,
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
    Said,
    Subtask,
    Used,
)

__all__ = [
    "Answer",
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
    "Said",
    "Subtask",
    "Used",
    "orchestrate",
    "plan",
    "pursue",
    "route",
]
