"""Views: a budget and a strategy, built-in or custom."""

from dataclasses import dataclass, field
from typing import Final, cast, get_args

from keepthread.context.strategies import Window
from keepthread.errors import InvalidInput
from keepthread.protocols import (
    ContextPlan,
    History,
    Material,
    Need,
    Recalled,
    RecallRequest,
    Strategy,
    WindowStart,
)
from keepthread.types import Selection

_NOTHING: Final[frozenset[Need]] = frozenset()


class SelectPlan:
    """The plan of a strategy that has only `select`: its window is all messages that were read."""

    missing = 0

    def __init__(self, strategy: Strategy, material: Material, budget: int) -> None:
        """Take what `select` will be called with."""
        self.strategy = strategy
        self.material = material
        self.budget = budget

    @property
    def window_start(self) -> WindowStart | None:
        """Return where the messages start, if there are earlier ones."""
        messages = self.material.messages
        if not messages or not self.material.earlier:
            return None
        return WindowStart(messages[0].seq, messages[-1].seq)

    @property
    def recall(self) -> RecallRequest | None:
        """Return what to recall: a fifth of the budget, as the other strategies do at most."""
        messages = self.material.messages
        return RecallRequest(
            self.budget // 5,
            messages[0].seq if messages else 0,
            everywhere=self.material.recall_scope == "owner",
        )

    def finish(self, past: History, recalled: Recalled | None = None) -> Selection:
        """Let the strategy select from all that was read."""
        material = self.material._replace(past=past, recalled=recalled or Recalled())
        return self.strategy.select(material, self.budget)


def plan_of(strategy: Strategy, material: Material, budget: int) -> ContextPlan:
    """Return the plan of a strategy, even of one that has only `select`."""
    plan = getattr(strategy, "plan", None)
    return plan(material, budget) if plan else SelectPlan(strategy, material, budget)


def strategy_needs(strategy: Strategy) -> frozenset[Need]:
    """Return what must be read for a strategy; nothing if it does not say."""
    return cast(frozenset[Need], getattr(strategy, "needs", _NOTHING))


_WINDOW: Final = Window()


@dataclass(frozen=True, slots=True)
class View:
    """A budget in tokens, and the strategy that chooses what fits into it."""

    budget: int
    strategy: Strategy = _WINDOW
    needs: frozenset[Need] = field(init=False, repr=False, compare=False)
    """The material that is read for the strategy, a copy of the strategy's own `needs`."""

    def __post_init__(self) -> None:
        """Refuse a budget that is not a number, a class in place of its instance, and the like."""
        budget: object = self.budget
        if type(budget) is not int or budget < 0:
            hint = f"; did you mean {budget}?" if str(budget).isdecimal() else ""
            raise InvalidInput(
                f"a view's budget must be a whole number of tokens, not {budget!a:.60}{hint}"
            )
        strategy: object = self.strategy
        if isinstance(strategy, type):
            name = strategy.__name__
            raise InvalidInput(
                f"a view needs a strategy, not the class {name}; did you mean {name}()?"
            )
        if not callable(getattr(strategy, "select", None)):
            raise InvalidInput(
                f"a view needs a strategy, such as Window() or Hybrid(), not {strategy!a:.60}"
            )
        known: tuple[str, ...] = get_args(Need)
        needs: object = getattr(strategy, "needs", _NOTHING)
        if not isinstance(needs, frozenset) or not cast(frozenset[object], needs) <= {*known}:
            raise InvalidInput(
                f"`needs` of a strategy must be a frozenset of names among {', '.join(known)};"
                f" not {needs!a:.60}"
            )
        object.__setattr__(self, "needs", needs)


_CONVERSATION: Final = Window(tool_calls="none")

DEFAULT_VIEWS: Final = {
    "router": View(500, _CONVERSATION),
    "planner": View(1000, _CONVERSATION),
    "chat": View(4096, Window(tool_calls="recent")),
}
