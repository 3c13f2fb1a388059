"""Facts: the profile of the user, quoted before the conversation."""

from collections.abc import Sequence
from typing import Final

from keepthread.context.quoting import delimited, flat
from keepthread.context.trust import LOWEST_ORIGIN, lowest
from keepthread.context.why import WhyBuilder, facts_of
from keepthread.protocols import KnownFact, Material, TokenCounter
from keepthread.references import Reference
from keepthread.types import Message

_TITLE: Final = "Known facts about the user"
_USED_UP: Final = "profile facts left out: the facts section has reached its share of the budget"


def profile_that_fits(material: Material, room: int, account: WhyBuilder) -> Message | None:
    """Return the profile in up to `room` tokens, the most important first; None if none fits."""
    profile = [fact for fact in material.facts if fact.always]
    shown, message = len(profile), None
    while shown and message is None:
        message = facts_quotation(profile[:shown], material.counter, material.delimiter)
        if message.tokens > room:
            shown, message = min(shown - 1, shown * room // message.tokens), None
    if shown < len(profile):
        left_out = f"{len(profile) - shown} of {len(profile)} {_USED_UP}"
        account.add_range(0, 0, 0, 0, "", left_out)
    if message is not None:
        account.add_facts(profile[:shown])
        account.made.append((message, Reference("facts", facts=facts_of(profile[:shown]))))
        reason = f"{shown} profile facts" if shown > 1 else "a profile fact"
        account.add_range(0, 0, 1, message.tokens, "facts", reason)
    return message


def facts_quotation(facts: Sequence[KnownFact], counter: TokenCounter, delimiter: str) -> Message:
    """Return the message that shows a profile."""
    text = delimited("\n".join(flat(fact.text) for fact in facts), delimiter, _TITLE)
    message = Message(role="user", content=text, origin="user")
    return Message(
        role="user",
        content=text,
        origin="user",
        meta={LOWEST_ORIGIN: lowest(fact.trust for fact in facts)},
        tokens=counter.count(message),
        counter=counter.name,
    )
