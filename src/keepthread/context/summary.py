"""The summary section: the running summary, then newer turns in short, as one quotation."""

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from itertools import groupby
from typing import Final, NamedTuple, TypeAlias

from keepthread.context.digest import extract, turn_line
from keepthread.context.hidden import QuestionTracker
from keepthread.context.quoting import fenced
from keepthread.context.trust import LOWEST_ORIGIN, lowest, trust_in
from keepthread.protocols import History, TokenCounter
from keepthread.text_caches import register_cache
from keepthread.types import Message, Origin

COVERED: Final = "covered by the summary"
IN_SHORT: Final = "shown in short"
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
    """The message with the summary, and the first position that is shown in short after it."""

    message: Message | None = None
    since: int = 0
    summarized: bool = False


def render_summary(
    past: History, room: int, counter: TokenCounter, fence: str, turns: int
) -> SummarySection:
    """Return the past in up to `room` tokens; of the gap, the newest turns."""
    gap = _Gap(past.gap, turns)
    text = past.summary.text if past.summary else ""
    summed_up = past.summary.origin if past.summary else "operator"
    block = _fit(counter, fence, text, gap, room, _SOURCES.get(summed_up, ""))
    if block is None:
        return SummarySection()
    shown: list[Origin] = [trust_in(m) for m in past.gap if block.since and m.seq >= block.since]
    message = Message(
        role="user",
        content=block.content,
        origin="user",
        meta={LOWEST_ORIGIN: lowest(shown, summed_up if block.summarized else "operator")},
        tokens=block.tokens,
    )
    return SummarySection(message, block.since, block.summarized)


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

    def lines(self, user: int, answer: int) -> "_Lines":
        """Return a line for each turn that has text, and where it begins."""
        lines = [(g[0].seq, turn_line(g, user=user, answer=answer)) for g in self.groups]
        return [(since, line) for since, line in lines if line]


_Lines: TypeAlias = Sequence[tuple[int, str]]


class _SummaryBlock(NamedTuple):
    content: str
    tokens: int
    since: int
    summarized: bool


@lru_cache(maxsize=512)  # between two steps it is the same block, and counting is what it costs
def _fit(
    counter: TokenCounter, fence: str, text: str, gap: _Gap, room: int, source: str
) -> _SummaryBlock | None:
    """Return the block that fits.

    A summary that fits whole goes before lines of older turns, as long as the newest have an
    eighth of the room. If it must be cut, lines take up to half of the room, the summary the rest.
    """
    size = len(text.encode("utf-8", "surrogatepass"))

    def block(lines: _Lines, limit: int) -> _SummaryBlock:
        summary = [extract(text, limit)] if limit else []
        title = _TITLE + source if limit else _TITLE
        content = fenced("\n".join([*summary, *(line for _, line in lines)]), fence, title)
        tokens = counter.count(Message(role="user", content=content))
        return _SummaryBlock(content, tokens, lines[0][0] if lines else 0, bool(limit))

    lines = gap.lines(*_SIZES[0])
    whole = block(lines, size)
    if whole.tokens <= room:
        return whole if size or lines else None
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
    return block(lines, limit) if lines or limit else None


def _lines_that_fit(gap: _Gap, fits: Callable[[_Lines], bool]) -> _Lines:
    """Return lines for all turns if any size lets them fit, else the newest in the smallest."""
    for sizes in _SIZES:
        lines = gap.lines(*sizes)
        if fits(lines):
            return lines
    lines = gap.lines(*_SIZES[-1])
    end = len(lines)
    return lines[end - _most(end, lambda n: fits(lines[end - n :])) :]


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
