"""Questions: which exchange a message belongs to when the question of its own exchange is hidden.

A message gets the number of the latest exchange when it is stored. After a rewind that may be an
exchange whose question was rewound: an answer that is given again then belongs to the question
before it, as everybody sees who reads the conversation.
"""

from keepthread.context.marks import Marks
from keepthread.types import Message


def opens_exchange(message: Message) -> bool:
    """Tell whether a message is the question of an exchange."""
    return message.role == "user" and message.exchange > 0


class Questions:
    """The questions of a log that could be seen so far; give it all messages in order."""

    def __init__(self, marks: Marks | None = None) -> None:
        """Begin with no question; without marks, give it visible messages only."""
        spans = (*marks.hidden, *marks.inner) if marks else ()
        self._spans = sorted(spans, key=lambda span: span.last, reverse=True)
        self._seen: dict[int, int] = {}
        """The positions of the questions, by their exchanges."""

    def exchange(self, message: Message) -> int:
        """Return the exchange that the next message belongs to."""
        while self._spans and self._spans[-1].last < message.seq:  # it was hidden by then
            span = self._spans.pop()
            seen = self._seen.items()
            self._seen = {n: seq for n, seq in seen if not span.first <= seq <= span.last}
        if opens_exchange(message):
            self._seen.setdefault(message.exchange, message.seq)
        if message.exchange in self._seen or not self._seen:
            return message.exchange
        latest = max(self._seen, key=lambda number: self._seen[number])
        return min(latest, message.exchange)
