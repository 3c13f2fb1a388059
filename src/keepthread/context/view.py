"""Views: a name for a budget and a strategy, so that each stage of a program sees what it needs."""

from typing import Final, NamedTuple

from keepthread.context.strategies import Hybrid, Recall, Summarized, Window
from keepthread.protocols import Strategy


class View(NamedTuple):
    """A budget in tokens, and who chooses within it."""

    budget: int
    strategy: Strategy = Window()


DEFAULT_VIEWS: Final = {"router": View(500), "planner": View(1000), "chat": View(4096)}

STRATEGIES: Final = {
    "simple": Window,
    "summarization": Summarized,
    "hybrid": Hybrid,
    "recall": Recall,
}
"""Our strategies by the names that settings have for them."""
