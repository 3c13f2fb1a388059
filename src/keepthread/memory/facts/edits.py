"""Edits of facts by hand: the new form of a fact, and when it counts as said."""

from typing import Any, Final, NamedTuple

from keepthread.errors import InvalidInput, Stale
from keepthread.memory.facts.types import Fact, Noted, Wording, version_of

_TICK: Final = 1e-6


class Edit(NamedTuple):
    """The fields that an edit changes; None leaves one unchanged."""

    text: str | None = None
    subject: str | None = None
    attribute: str | None = None
    value: str | None = None
    since: float | None = None
    until: float | None = None
    version: str | None = None
    """The version of the fact that the edit is based on; None for any."""

    def check(self, known: Fact) -> None:
        """Refuse to edit a fact that another one replaced."""
        if known.state == "superseded":
            raise InvalidInput(f"fact {known.key} was superseded; edit the fact that replaced it")

    def apply(self, fact: Noted, known: Fact, now: float) -> Noted:
        """Return the edited fact; `known` is the same fact with its state before."""
        if self.version is not None and version_of(fact) != self.version:
            raise Stale(f"fact {fact.key} was changed since version {self.version}")
        given = {"subject": self.subject, "attribute": self.attribute, "until": self.until}
        changes: dict[str, Any] = {name: v for name, v in given.items() if v is not None}
        began = known.since if self.since is None else self.since
        new = fact._replace(at=now, place=None, confirmed_at=now, since=began, **changes)
        if self.until is not None and fact.until is None:
            new = new._replace(end_added=True)
        if self.text is None and self.value is None:
            return new
        says = fact.text if self.text is None else self.text
        return new._replace(
            text=says,
            value=(says if fact.many else "") if self.value is None else self.value,
            since=self.since,
            wordings=[*fact.wordings, Wording(fact.text, fact.value, known.since, now)],
        )


def moment_after(last: float, now: float) -> float:
    """Return when a fact written by hand counts as said: after the last one of its slot.

    It is the newest, even if a clock went back.
    """
    return max(now, last + _TICK)
