"""Tool results outside their turn: cached ones that are still valid, and earlier ones in a line."""

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, Final, NamedTuple, cast

from keepthread.context.blocks import NO_RESULT, Block
from keepthread.context.digest import digest
from keepthread.context.ids import derived_id
from keepthread.context.quoting import flat, sanitize
from keepthread.context.rendering import attachment_note, label
from keepthread.context.trust import LOWEST_ORIGIN, lowest, trust_in
from keepthread.protocols import CachedResult, TokenCounter
from keepthread.text_caches import register_cache
from keepthread.types import JSON, Message, Record, Span, ToolCall

TOOL: Final = "tool"
_KINDS: Final = {
    "name": str,
    "arguments": str,
    "author": str,
    "call": str,
    "result": str,
    "last": int,
    "cache_turns": int,
    "at": float,
    "log_end": int,
    "visible_end": int,
}


class CacheEntry(NamedTuple):
    """A remembered result: the message that holds it, and the last turn in which it serves.

    It names no text but the arguments; `sources` are the call and the result it was first made
    of, and the ones that repeated it, if any: the last of them is the result it stands for.
    """

    name: str
    arguments: str
    author: str
    call: str
    """The call id."""
    result: str
    """The id of the result's message."""
    last: int
    cache_turns: int
    at: float
    log_end: int
    """The last position of its session's log when the result was recorded."""
    visible_end: int
    """The last visible position of that log then. A sub-agent's result is in another log."""
    sources: Sequence[Span]

    @classmethod
    def of(cls, record: Record) -> "CacheEntry | None":
        """Return the entry that a record keeps; None if the record is not one of ours."""
        value = record.value
        if not isinstance(value, dict) or {f: type(v) for f, v in value.items()} != _KINDS:
            return None
        return cls(**cast(dict[str, Any], value), sources=record.made_of)

    def to_json(self) -> JSON:
        """Return the value of a record."""
        return {
            "name": self.name,
            "arguments": self.arguments,
            "author": self.author,
            "call": self.call,
            "result": self.result,
            "last": self.last,
            "cache_turns": self.cache_turns,
            "at": self.at,
            "log_end": self.log_end,
            "visible_end": self.visible_end,
        }

    def used(self, turn: int) -> "CacheEntry":
        """Return the entry after a use in a turn: its lifetime starts again."""
        return self._replace(last=max(self.last, turn + self.cache_turns - 1))

    def until(self, turn: int) -> "CacheEntry":
        """Return the entry as it could be in a log that ends with a turn."""
        return self._replace(last=min(self.last, turn + self.cache_turns - 1))


def cached_results(
    records: Sequence[Record],
    sources: Sequence[Message],
    turn: int,
    author: str,
    counter: TokenCounter,
) -> list[CachedResult]:
    """Return the cached results that are valid for an author in a turn, oldest first.

    `sources` are the messages of this session that the records are made of, as far as they can be
    seen; results in other logs are skipped.
    """
    seen = {message.seq: message for message in sources if message.state == "live"}
    found: list[tuple[int, CachedResult]] = []
    for record in records:
        entry = CacheEntry.of(record) if record.kind == TOOL else None
        if entry is None or entry.last < turn or not entry.sources or entry.author != author:
            continue
        *_, asked, place = [None, *entry.sources]
        result = seen.get(place.last) if place and place.session == record.scope.session else None
        # A call may be hidden and its result not: it came after everything was cleared.
        hidden = asked and asked.session == record.scope.session and asked.last not in seen
        if result is not None and result.id == entry.result and not hidden:
            shown = _shown(record.key, entry, result, turn, counter)
            found.append((result.seq, shown._replace(asked=asked.last if asked else 0)))
    return [live for _, live in sorted(found, key=lambda pair: pair[0])]


def _shown(
    key: str, entry: CacheEntry, result: Message, turn: int, counter: TokenCounter
) -> CachedResult:
    wish = ToolCall(id=entry.call, name=entry.name, arguments=entry.arguments)
    call = call_of(key, wish, entry.result, counter)
    if result.counter != counter.name or result.tool_call_id != entry.call:
        result = replace(result, tool_call_id=entry.call, counter=counter.name)
        result = replace(result, tokens=counter.count(result))
    left = min(entry.last - turn + 1, entry.cache_turns)  # there may be no question yet
    return CachedResult(call, result, left, entry.cache_turns)


def call_of(key: str, wish: ToolCall, result: str, counter: TokenCounter) -> Message:
    """Return the call to show with a cached result, which has the id `result`."""
    return Message(
        role="assistant",
        tool_calls=(wish,),
        origin="assistant",
        id=derived_id("live", key, result),
        tokens=_cost(counter, wish),
        counter=counter.name,
    )


@lru_cache(maxsize=1024)  # every context calls this; counting is the expensive part
def _cost(counter: TokenCounter, wish: ToolCall) -> int:
    return counter.count(Message(role="assistant", tool_calls=(wish,)))


# --- earlier calls, in a line each ---

_SAID: Final = 240  # bytes of what the model said beside its calls
_ARGUMENTS: Final = 80
_RESULT: Final = 160


def as_lines(block: Block, counter: TokenCounter) -> Message:
    """Return a call and its results as one message, a line for each call.

    It is in the user role and quotes, as nobody said it in these words.
    """
    call = block.call
    lines = ["Assistant used tools:"]
    if call.content:
        lines.append(f"> {_short(call.content, _SAID)}")
    for number, each in enumerate(call.tool_calls):
        result = block.results.get(number)
        found = result.content if result else NO_RESULT
        lines.append(
            f"> {label(each.name)} {_short(each.arguments, _ARGUMENTS)}: {_short(found, _RESULT)}"
        )
    attached = [each for member in block.members() for each in member.attachments]
    lines += [f"> {attachment_note(each)}" for each in attached]
    trust = lowest([trust_in(member) for member in block.members()])
    content = "\n".join(lines)
    return replace(
        call,
        role="user",
        content=content,
        tool_calls=(),
        author=None,
        name=None,
        origin="user",  # the quotation itself is our own text
        meta={**call.meta, LOWEST_ORIGIN: trust},
        native=None,
        attachments=(),
        tokens=_cost_of_lines(counter, content),
        counter=counter.name,
    )


@lru_cache(maxsize=4096)
def _cost_of_lines(counter: TokenCounter, content: str) -> int:
    return counter.count(Message(role="user", content=content, origin="user"))


@lru_cache(maxsize=4096)  # every context asks for the same ones until the window moves
def _short(text: str, limit: int) -> str:
    return digest(flat(sanitize(text)), limit)


register_cache(_cost.cache_clear)
register_cache(_cost_of_lines.cache_clear)
register_cache(_short.cache_clear)
