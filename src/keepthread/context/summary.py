"""The summary section: the running summary, then newer turns in short, as one quotation."""

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from itertools import groupby
from typing import Final, NamedTuple

from keepthread.context.digest import extract, turn_line
from keepthread.context.hidden import QuestionTracker
from keepthread.context.quoting import delimited
from keepthread.context.trust import LOWEST_ORIGIN, lowest, trust_in
from keepthread.protocols import History, TokenCounter
from keepthread.references import Reference, SummaryReference
from keepthread.text_caches import register_cache
from keepthread.types import Message, Origin, Summary

COVERED: Final = "covered by the summary"
IN_SHORT: Final = "one line per turn"
_TITLE: Final = "Earlier conversation, in short"
_SOURCES: Final[Mapping[Origin, str]] = {
    "web": ", partly from the web",
    "import": ", partly imported",
}
"""Added to the title of a summary of such text, because its lines may not name the origin."""
_SIZES: Final = ((160, 240), (100, 140), (60, 80))
"""Bytes of question and answer in the line of a turn; smaller ones if not all fit."""
_LEAST_LINES: Final = 8  # lines of the newest turns keep an eighth of the room
_LEAST_BYTES: Final = 60  # of a summary that are worth a quotation


class SummarySection(NamedTuple):
    """The message with the summary, and the first position that is one line per turn after it."""

    message: Message | None = None
    since: int = 0
    summarized: bool = False
    reference: Reference = Reference("summary")


def render_summary(
    past: History, room: int, counter: TokenCounter, delimiter: str, turns: int
) -> SummarySection:
    """Return the past in up to `room` tokens; of the gap, the newest turns."""
    gap = _Gap(past.gap, turns)
    text = past.summary.text if past.summary else ""
    summed_up = past.summary.origin if past.summary else "operator"
    block = _fit(counter, delimiter, text, gap, room, _SOURCES.get(summed_up, ""))
    if block is None:
        return SummarySection()
    since = block.since
    groups = [_live(group) for group in gap.groups if since and group[0].seq >= since]
    shown: list[Origin] = [trust_in(m) for group in groups for m in group]
    trust = lowest(shown, summed_up if block.summarized else "operator")
    message = _message(block.content, trust, block.tokens)
    positions = [[m.seq for m in group] for group in groups if group]
    summary = past.summary if block.summarized else None
    number, last = (summary.number, summary.last) if summary else (0, 0)
    reference = SummaryReference(number, last, block.limit, block.line, positions)
    made = Reference("summary", summary=reference)
    return SummarySection(message, block.since, block.summarized, made)


def _live(messages: Sequence[Message]) -> list[Message]:
    """Return the messages that have a text to show."""
    return [message for message in messages if message.state == "live"]


def _message(content: str, trust: Origin, tokens: int) -> Message:
    meta = {LOWEST_ORIGIN: trust}
    return Message(role="user", content=content, origin="user", meta=meta, tokens=tokens)


def summary_quotation(
    shown: SummaryReference,
    summary: Summary | None,
    turns: Sequence[Sequence[Message]],
    counter: TokenCounter,
    delimiter: str,
) -> Message:
    """Return the message that showed a summary and turns in short."""
    trust: Origin = summary.origin if summary else "operator"
    user, answer = _SIZES[shown.line]
    lines = [turn_line(turn, user=user, answer=answer) for turn in turns]
    text = [extract(summary.text, shown.size)] if summary else []
    title = _TITLE + _SOURCES.get(trust, "") if summary else _TITLE
    content = delimited("\n".join([*text, *filter(None, lines)]), delimiter, title)
    tokens = counter.count(Message(role="user", content=content))
    return _message(content, lowest([trust_in(m) for t in turns for m in t], trust), tokens)


class _Gap:
    """Turns to show in short; equal if their messages are equal."""

    def __init__(self, messages: Sequence[Message], turns: int) -> None:
        groups = [list(group) for _, group in groupby(messages, key=QuestionTracker().turn)]
        self.groups = groups[max(0, len(groups) - turns) :]
        self.key = tuple(m.digest or m.content for group in self.groups for m in group)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Gap) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)

    def lines(self, number: int) -> "_Lines":
        """Return a line for each turn that has text, in one of the sizes, and where it begins."""
        user, answer = _SIZES[number]
        lines = [(g[0].seq, turn_line(g, user=user, answer=answer)) for g in self.groups]
        return _Lines(number, [(since, line) for since, line in lines if line])


class _Lines(NamedTuple):
    size: int
    """The number of the size."""
    each: Sequence[tuple[int, str]]
    """Where a turn begins, and its line."""

    def newest(self, count: int) -> "_Lines":
        return self._replace(each=self.each[len(self.each) - count :])


class _SummaryBlock(NamedTuple):
    content: str
    tokens: int
    since: int
    summarized: bool
    limit: int
    """Bytes that the summary was shortened to."""
    line: int
    """The number of the size of the lines."""


@lru_cache(maxsize=512)  # between two steps it is the same block; counting is the expensive part
def _fit(
    counter: TokenCounter, delimiter: str, text: str, gap: _Gap, room: int, source: str
) -> _SummaryBlock | None:
    """Return the block that fits.

    A summary that fits whole goes before lines of older turns, as long as the newest have an
    eighth of the room. If it must be cut, lines take up to half of the room, the summary the rest.
    """
    size = len(text.encode("utf-8", "surrogatepass"))

    def block(lines: _Lines, limit: int) -> _SummaryBlock:
        summary = [extract(text, limit)] if limit else []
        title = _TITLE + source if limit else _TITLE
        content = delimited(
            "\n".join([*summary, *(line for _, line in lines.each)]), delimiter, title
        )
        tokens = counter.count(Message(role="user", content=content))
        since = lines.each[0][0] if lines.each else 0
        return _SummaryBlock(content, tokens, since, bool(limit), limit, lines.size)

    lines = gap.lines(0)
    whole = block(lines, size)
    if whole.tokens <= room:
        return whole if size or lines.each else None
    newest = _lines_that_fit(gap, lambda some: block(some, 0).tokens <= room // _LEAST_LINES)
    if size and block(newest, size).tokens <= room:
        lines = _lines_that_fit(gap, lambda some: block(some, size).tokens <= room)
        return block(lines, size)
    lines = _lines_that_fit(
        gap, lambda some: block(some, 0).tokens <= (room // 2 if size else room)
    )
    limit = _most(size, lambda n: block(lines, n).tokens <= room, step=max(8, size // 32))
    if limit < _LEAST_BYTES:
        limit = 0
    return block(lines, limit) if lines.each or limit else None


def _lines_that_fit(gap: _Gap, fits: Callable[[_Lines], bool]) -> _Lines:
    """Return lines for all turns if any size lets them fit, else the newest in the smallest."""
    lines = gap.lines(0)
    for number in range(len(_SIZES)):
        lines = gap.lines(number)
        if fits(lines):
            return lines
    return lines.newest(_most(len(lines.each), lambda n: fits(lines.newest(n))))


def _most(upto: int, fits: Callable[[int], bool], step: int = 1) -> int:
    """Return about the largest number that fits, by bisection; 0 if none does."""
    low, high = 0, upto
    while high - low >= max(1, step):
        middle = (low + high + 1) // 2
        if fits(middle):
            low = middle
        else:
            high = middle - 1
    return low


register_cache(_fit.cache_clear)
