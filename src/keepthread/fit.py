"""The same choice for a list that nobody stores: a program that owns its history can cap it."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate

from keepthread.context.render import Context
from keepthread.context.window import Window
from keepthread.protocols import Material, Strategy, TokenCounter
from keepthread.tokens import counter as best_counter
from keepthread.types import Message


def fit(
    messages: Sequence[Message],
    budget: int,
    *,
    system_prompt: str = "",
    strategy: Strategy | None = None,
    counter: TokenCounter | None = None,
) -> Context:
    """Return a context of so many tokens from messages in order; nothing is stored.

    Positions in `why` count from 1.
    """
    measure = counter or best_counter()
    placed = [
        replace(message, seq=seq, tokens=measure.count(message), counter=measure.name)
        for seq, message in enumerate(messages, 1)
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
    )
    return Context((strategy or Window()).select(material, budget))
