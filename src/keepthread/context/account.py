"""The account of a choice, kept while it is made: messages that share a fate become one line."""

from collections.abc import Sequence

from keepthread.protocols import Known
from keepthread.types import Choice, Hidden, Message


class Account:
    """Collects choices; its size grows with what is shown, not with the log."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self.choices: list[Choice] = []
        self.facts: list[tuple[str, int]] = []
        """The session and position of each message that a fact comes from which is shown."""

    def add_facts(self, facts: Sequence[Known]) -> None:
        """Note which messages the facts come from that are shown."""
        self.facts += [place for fact in facts for place in fact.messages]

    def add(self, messages: Sequence[Message], section: str, reason: str) -> None:
        """Note what became of messages, neighbours on one line."""
        start = 0
        while start < len(messages):
            end = _run(messages, start)
            run = messages[start:end]
            tokens = sum([m.tokens for m in run])
            self.add_range(run[0].seq, run[-1].seq, len(run), tokens, section, reason)
            start = end

    def add_range(
        self, first: int, last: int, messages: int, tokens: int, section: str, reason: str
    ) -> None:
        """Note what became of a range of positions."""
        self.choices.append(Choice(first, last, messages, tokens, section, reason))

    def add_hidden(self, hidden: Sequence[Hidden]) -> None:
        """Note what the session's marks hide."""
        for span in hidden:
            count = span.last - span.first + 1
            self.add_range(span.first, span.last, count, span.tokens, "", span.reason)


def _run(messages: Sequence[Message], start: int) -> int:
    """Return the end of a run of neighbouring positions; mostly it is all there is."""
    if messages[-1].seq - messages[start].seq == len(messages) - 1 - start:
        return len(messages)
    end = start + 1
    while end < len(messages) and messages[end].seq == messages[end - 1].seq + 1:
        end += 1
    return end
