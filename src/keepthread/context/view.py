"""Views: a name for a budget and a strategy, so that each stage of a program sees what it needs."""

from dataclasses import dataclass, field
from typing import Final

from keepthread.context.strategies import Hybrid, Summarized, Window
from keepthread.protocols import Strategy


@dataclass(frozen=True, slots=True)
class View:
    """A budget in tokens, and who chooses within it."""

    budget: int
    strategy: Strategy = field(default_factory=Window)


DEFAULT_VIEWS: Final = {"router": View(500), "planner": View(1000), "chat": View(4096)}

STRATEGIES: Final = {"simple": Window, "summarization": Summarized, "hybrid": Hybrid}
"""Our strategies by the names that settings have for them."""
