"""Choose a context from a list of messages, for programs that store their own history."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate

from keepthread.context.context import Context
from keepthread.context.ids import derived_id
from keepthread.context.strategies import Window
from keepthread.context.views import plan_of
from keepthread.models.tokens import counter as best_counter
from keepthread.protocols import History, Material, Strategy, TokenCounter
from keepthread.stores.validation import check_message
from keepthread.types import Message


def fit(
    messages: Sequence[Message],
    budget: int,
    *,
    system_prompt: str = "",
    strategy: Strategy | None = None,
    counter: TokenCounter | None = None,
) -> Context:
    """Return a context of up to `budget` tokens from messages in order; nothing is stored.

    Positions in `why` count from 1.
    """
    for message in messages:
        check_message(message)
    measure = counter or best_counter()
    asked = accumulate(message.role == "user" for message in messages)
    placed = [
        replace(
            message,
            seq=seq,
            turn=turn,
            tokens=measure.count(message),
            counter=measure.name,
        )
        for seq, (message, turn) in enumerate(zip(messages, asked, strict=True), 1)
    ]
    system = Message(role="system", content=system_prompt)
    users = [message for message in placed if message.role == "user"]
    material = Material(
        counter=measure,
        system_prompt=system_prompt,
        system_tokens=measure.count(system) if system_prompt else 0,
        messages=placed,
        totals=list(accumulate(message.tokens for message in placed)),
        newest_user=users[-1] if users else None,
        delimiter=derived_id("delimiter", *(message.content for message in placed[:1]))[:12],
    )
    plan = plan_of(strategy or Window(), material, budget)
    start = plan.window_start
    before = [message for message in placed if start and message.seq < start.first]
    return Context(plan.finish(History(gap=before)))
