"""Router, planner, executor, synthesizer: a small pipeline over chat models, with memory around it.

Plain functions, to be used as they are or to be read as an example of how memory is wired into a
pipeline; nothing of the library depends on them.
"""

from keepthread.orchestrator.fallback import Fallback
from keepthread.orchestrator.nouns import (
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
from keepthread.orchestrator.pipeline import orchestrate, pursue
from keepthread.orchestrator.planning import plan
from keepthread.orchestrator.routing import route

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
