"""What is to be forgotten, as it was asked for."""

from typing import NamedTuple

from keepthread.checks import check_id, check_time
from keepthread.errors import InvalidInput
from keepthread.types import JSON, Message, SessionInfo


class Wish(NamedTuple):
    """What to look for; a message is meant if everything that is given holds for it."""

    session: str | None = None
    message: str | None = None
    """A message's id; it needs the session's."""
    owner: str | None = None
    author: str | None = None
    source: str | None = None
    since: float | None = None
    until: float | None = None

    def check(self) -> "Wish":
        """Refuse what means nothing, or everything."""
        if all(value is None for value in self):
            raise InvalidInput(
                "say what to forget: a session, a message of one, an owner, an author, a source,"
                " or a time by since and until"
            )
        if self.message is not None and self.session is None:
            raise InvalidInput("an id names a message within its session: name the session too")
        for name in ("session", "message", "owner", "author", "source"):
            value = getattr(self, name)
            if value is not None and not (name == "source" and type(value) is str and value):
                check_id(value, name)
        for name, at in (("since", self.since), ("until", self.until)):
            if at is not None:
                check_time(at, name)
        return self

    @property
    def is_whole(self) -> bool:
        """Tell whether all of a session is meant, and so what is said of it as well."""
        others = (self.message, self.author, self.source, self.since, self.until)
        return all(value is None for value in others)

    def admits(self, session: SessionInfo) -> bool:
        """Tell whether messages of a session may be meant."""
        return self.session in (None, session.id) and self.owner in (None, session.owner)

    def means(self, owner: str, message: Message) -> bool:
        """Tell whether a message of a session that may be meant is."""
        at = message.created_at
        return (
            self.message in (None, message.id)
            and self.author in (None, _author_of(owner, message))
            and self.source in (None, message.source)
            and (self.since is None or at >= self.since)
            and (self.until is None or at < self.until)
        )

    def to_json(self) -> dict[str, JSON]:
        """Return what was given."""
        return {name: value for name, value in self._asdict().items() if value is not None}

    def __str__(self) -> str:
        """Return it for people."""
        return ", ".join(f"{name} {value!r}" for name, value in self.to_json().items())


def _author_of(owner: str, message: Message) -> str | None:
    """Return who wrote a message: where nobody is named, the owner wrote what a user says."""
    if message.author is None and message.role == "user":
        return owner
    return message.author
