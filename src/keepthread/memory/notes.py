"""Notes: text from the program is added to the log once, without a lock or lease.

A note's id is derived from session, key, and the version of the record that names the newest note
of that key. So processes that run at the same moment write the same message, one of them updates
the record, and the next call completes what a crash left half done.
"""

from collections.abc import Awaitable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import count
from typing import NamedTuple, TypeAlias

from keepthread.context.hidden import HiddenRanges
from keepthread.context.ids import derived_id, derived_ids
from keepthread.context.trust import NOTE as SOURCE
from keepthread.context.trust import UNTIL, has_ended
from keepthread.errors import Conflict, InvalidInput, Stale
from keepthread.memory.conversation import Conversation
from keepthread.memory.history import current_turn
from keepthread.memory.material import marks_of
from keepthread.memory.tool_cache import Recorded
from keepthread.memory.tool_calls import ToolRequest, pair, text_of, tool_request
from keepthread.protocols import NoteProvider
from keepthread.stores.codec import encode
from keepthread.stores.kinds import MARKS, NOTE
from keepthread.stores.validation import check_count, check_id, check_text, show
from keepthread.types import JSON, Message, ProactiveTool, ProvidedNote, Scope, Span


async def add_note(
    conversation: Conversation,
    key: str,
    text: str,
    *,
    tools: Iterable[ProactiveTool] = (),
    once: bool = True,
    turns: int | None = None,
) -> bool:
    """Put a note into a session's log; return whether this call put it in."""
    check_id(key, "a note's key")
    check_text(text, "a note")
    if turns is not None and check_count(turns, "turns") == 0:
        raise InvalidInput("turns must be at least 1 turn")
    turn = await current_turn(conversation.store, conversation.key)
    until = {} if turns is None else {UNTIL: turn + turns - 1}
    note = Message(
        role="system",
        content=text,
        name=key,
        origin="tool",  # so that it is quoted: text on a screen must not act as instructions
        source=f"{SOURCE}{key}",
        meta=until,
    )
    encode(note, "")  # a note that is too long is refused, not shortened: its text is compared
    results = [_result(tool) for tool in tools]
    return await _Injection(conversation, key, note, results, turn).run(once)


async def add_provided(
    conversation: Conversation, providers: Mapping[str, NoteProvider], data: Mapping[str, JSON]
) -> list[str]:
    """Ask the providers of notes that a session does not have; return the keys that were added."""
    added: list[str] = []
    turn = await current_turn(conversation.store, conversation.key)
    for key, provider in providers.items():
        check_id(key, "a note's key")
        sought = Message(role="system", source=f"{SOURCE}{key}")
        if (await _Injection(conversation, key, sought, (), turn).newest()).note is not None:
            continue
        found = provider(data)
        note = await found if isinstance(found, Awaitable) else found
        if note is None:
            continue
        if type(note) is not ProvidedNote:
            raise InvalidInput(f"provider {show(key)} must return a ProvidedNote, not {show(note)}")
        if await add_note(conversation, key, note.text, tools=note.tools):
            added.append(key)
    return added


_Result: TypeAlias = tuple[ToolRequest, str, int]
"""A tool request, its result, and for how many turns the result is cached."""


def _result(tool: ProactiveTool) -> _Result:
    """Return a proactive result, checked."""
    if type(tool) is not ProactiveTool:
        raise InvalidInput(f"expected a ProactiveTool, not {show(tool)}")
    cache_turns = check_count(tool.cache_turns, "cache_turns")
    return tool_request(tool.name, tool.arguments), text_of(tool.result), cache_turns


class _Newest(NamedTuple):
    """The newest note of a key that still holds, and the version of the record that names it."""

    note: Message | None
    claimed: bool
    """False if it was named only by calls that wanted to put in another text."""
    version: int
    marks: HiddenRanges


class _Injection:
    """One note on its way into the log."""

    def __init__(
        self,
        conversation: Conversation,
        key: str,
        note: Message,
        results: Sequence[_Result],
        turn: int,
    ) -> None:
        self.conversation = conversation
        self.key = key
        self.note = note
        self.results = results
        self.turn = turn

    async def run(self, once: bool) -> bool:
        placed = ""
        while True:
            newest = await self.newest()
            held = newest.note
            if placed and (held is None or held.id != placed):
                return True  # and a newer one follows
            same = held is not None and held.content == self.note.content
            if held is not None and (newest.claimed if same else once):
                return False
            id = held.id if held is not None and same else await self._free(newest)
            stored = await self._append(id)
            mine = stored.state == "live" and stored.content == self.note.content
            if await self._name(stored, newest.version, claimed=mine) and mine:
                return True
            placed = id if mine else ""

    async def newest(self) -> _Newest:
        """Return the newest note of this key."""
        store, session = self.conversation.store, self.conversation.key
        scope = Scope(session=session)
        marks = await store.get(scope, MARKS, MARKS)
        seen = marks_of([marks] if marks else [])
        record = await store.get(scope, NOTE, self.key)
        if record is None:
            return _Newest(None, False, 0, seen)
        seqs = [span.last for span in record.made_of if span.session == session]
        held = [m for m in await store.find(session, seqs=seqs) if self._holds(m, seen)]
        claimed = not isinstance(record.value, Mapping) or record.value.get("claimed") is not False
        return _Newest(held[-1] if held else None, claimed, record.version, seen)

    def _holds(self, message: Message, marks: HiddenRanges) -> bool:
        """Return whether a message is a note of this key that contexts may show."""
        mine = message.state == "live" and message.source == self.note.source
        return mine and not marks.hides(message.seq) and not has_ended(message, self.turn)

    async def _free(self, newest: _Newest) -> str:
        """Return the note's id: the first of this version whose message is not erased or hidden."""
        # The session is part of the id: equal ids in two sessions count as copies.
        parts = ("note", self.conversation.key, self.key, str(newest.version))
        for trial in count():
            id = derived_id(*parts, str(trial))
            found = await self.conversation.store.find(self.conversation.key, ids=[id])
            if not found or self._holds(found[0], newest.marks):
                return id
        raise AssertionError

    async def _append(self, id: str) -> Message:
        """Store the note with its tools' results, or return the note that was stored first."""
        try:
            stored, *pairs = await self.conversation.append(self._messages(id))
        except Conflict:
            found = await self.conversation.store.find(self.conversation.key, ids=[id])
            if not found:
                raise
            return found[0]
        await self._remember(pairs)
        return stored

    def _messages(self, id: str) -> list[Message]:
        """Return the note, followed by its tools' calls and results."""
        messages = [replace(self.note, id=id)]
        for n, (request, text, _) in enumerate(self.results):
            messages += pair(request, text, derived_ids("proactive", id, str(n)))
        return messages

    async def _remember(self, pairs: Sequence[Message]) -> None:
        """Cache the tools' results, as if the model had called them."""
        conversation = self.conversation
        if not any(cache_turns for _, _, cache_turns in self.results):
            return
        cache, turn = conversation.cache, await conversation.tool_turn()
        calls = zip(self.results, pairs[::2], pairs[1::2], strict=True)
        for (request, _, cache_turns), call, result in calls:
            if cache_turns:
                recorded = Recorded(call.id, result)
                await cache.remember(request, None, turn, cache_turns, recorded)
        conversation.maintenance.remembers(cache.session)

    async def _name(self, note: Message, version: int, *, claimed: bool) -> bool:
        """Name a note in the record; return whether this call did."""
        session = self.conversation.key
        span = Span(session=session, first=note.seq, last=note.seq)
        value: JSON = {"id": note.id, "seq": note.seq, "claimed": claimed}
        try:
            await self.conversation.store.put(
                Scope(session=session), NOTE, self.key, value, made_of=[span], version=version
            )
        except Stale:  # another was faster
            return False
        return True
