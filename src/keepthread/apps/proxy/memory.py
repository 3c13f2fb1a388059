"""The memory of the proxy: it records requests and answers, and decides what is added."""

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from types import MappingProxyType
from typing import Final, NamedTuple

from keepthread.apps.proxy.additions import as_history, sources_of
from keepthread.apps.proxy.quoted import signed_addition
from keepthread.apps.proxy.sessions import LogEnd, Positions, ProxySessions
from keepthread.apps.proxy.types import Prepared, ProviderAnswer, ReadRequest, UserTurn
from keepthread.context.ids import derived_id
from keepthread.context.trust import LOWEST_ORIGIN, origin_of
from keepthread.errors import InvalidInput, KeepthreadError, Stale, Unavailable
from keepthread.memory.additions import Addition
from keepthread.memory.alignment import CUT, SLICE, chain
from keepthread.memory.owner import OwnerMemory
from keepthread.memory.session import Session, entitle
from keepthread.stores.codec import new_id
from keepthread.stores.validation import MAX_COUNT, MAX_ID
from keepthread.types import JSON, Message

RECALL_TOKENS: Final = 300
ADDED_TOKENS: Final = 6000
"""The most tokens of all additions of a request."""
_FULL: Final = f"earlier additions use up the limit of {ADDED_TOKENS:,} tokens"
CONTEXT_TOKENS: Final = 8000
_SKIPPED: Final = 20
"""Maximum number of hidden messages skipped at the end of a log."""
_MOST_RUNNING: Final = 8
_KEY_BYTES: Final = 32
_WAIT: Final = 0.2
"""Seconds that a turn of a thread waits for the answer before it, which is being recorded."""


class _Recording(NamedTuple):
    """Where and how the answer to a request is recorded."""

    session: Session
    last: int
    """The position of the newest message of the request."""
    nonce: str
    """Determines the ids of the answer, so that recording it again is safe."""
    position: LogEnd | None
    sources: Mapping[str, JSON]
    """The meta of the answer: what it was written from."""
    made: str | None = None
    """The turn that an addition was made for."""
    resends: bool = True
    """Whether the client sends its whole history again."""
    is_new: bool = False
    """Whether the session began with this request."""


class _Added(NamedTuple):
    """The additions of a request, by turn."""

    by_turn: Mapping[str, Addition] = MappingProxyType({})
    made: str | None = None
    """The newest turn, if it has one."""
    reason: str = ""
    """Why there is none for the newest turn."""

    @property
    def tokens(self) -> int:
        """Return what they take together."""
        return sum(each.tokens for each in self.by_turn.values())


class ProxyMemory:
    """The memory of one owner, for the requests of one credential."""

    def __init__(
        self,
        memory: OwnerMemory,
        credential: str,
        *,
        positions: Positions | None = None,
        addition_key: Callable[[], Awaitable[bytes]] | None = None,
        recall_tokens: int = RECALL_TOKENS,
        context_tokens: int = CONTEXT_TOKENS,
    ) -> None:
        """Take the owner's memory.

        `positions` is shared by all requests of a process. `addition_key` loads what signs
        additions; without it, only this object recognizes them. Up to `recall_tokens` are added
        to a turn; a context that is built for a client has up to `context_tokens`.
        """
        self._positions = Positions() if positions is None else positions
        self._under_way: dict[str, dict[str, asyncio.Event]] = {}
        """Requests of threads that are not recorded yet, by session."""
        self._recording: set[str] = set()
        """Requests whose answers are being recorded."""
        self._sessions = ProxySessions(memory, credential, self._positions)
        self._load_key = addition_key
        self._key = b"" if addition_key else secrets.token_bytes(_KEY_BYTES)
        self._recall_tokens = recall_tokens
        self._context_tokens = context_tokens

    async def addition_key(self) -> bytes:
        """Return what signs additions for this owner; it is always the same."""
        if not self._key and self._load_key:
            self._key = await self._load_key()
        return self._key

    async def prepare(self, request: ReadRequest, *, records: bool = True) -> Prepared:
        """Record the newest messages of a request, and decide what is added to it.

        A store that fails raises nothing: the request is relayed, and the response says so. Without
        `records` no message is stored, and only known sessions get additions.
        """
        if request.mode == "off":
            return _not_recorded(request, "the memory is off for this request")
        try:
            await self.addition_key()
            if not records:
                return await self._counted(request)
            return await self._prepare(request)
        except InvalidInput as error:
            return _not_recorded(request, f"it cannot be stored: {error.code}")
        except KeepthreadError as error:
            return Prepared(mode=request.mode, state="unavailable", reason=error.code)

    async def record(self, prepared: Prepared, answer: ProviderAnswer | None) -> None:
        """Record an answer after the message that it answers; recording it again does nothing.

        While the store is away, it goes to the outbox of the memory, if there is one.
        """
        recording = prepared.recording
        if isinstance(recording, _Recording):
            self._recording.add(recording.nonce)
            try:
                await self._record(prepared, recording, answer)
            finally:
                self._end(recording)

    async def _record(
        self, prepared: Prepared, recording: _Recording, answer: ProviderAnswer | None
    ) -> None:
        session = recording.session
        if prepared.state == "unavailable" and recording.made:  # it was too late to be added
            with suppress(KeepthreadError):
                await session.drop_addition(recording.made)
        if recording.is_new and not session.info.title:
            await _entitle(session)
        if answer is None or not answer.messages:
            return
        messages = _named(recording, answer)
        try:
            stored = await session.add_answer(
                *messages, after=recording.last, hide_late=recording.resends
            )
        except Unavailable:
            self._positions.put(session, None)
            await session.append(*messages)  # without a condition, an outbox accepts it
            return
        position = recording.position
        if position is None or stored[0].seq != position.head + 1:
            self._positions.put(session, None)
        else:
            so_far = chain(answer.messages, position.chain)
            count = position.messages + len(answer.messages)
            end = position._replace(messages=count, chain=so_far, head=stored[-1].seq)
            self._positions.put(session, end)

    # --- inside ---

    async def _prepare(self, request: ReadRequest) -> Prepared:
        chosen = await self._sessions.choose(request)
        session = chosen.session
        if session is None:
            return _not_recorded(request, chosen.reason)
        is_new = not session.info.messages
        messages, resends = _labeled(request), request.mode == "alongside"
        if resends:
            last, position, added = await self._align_and_recall(session, request, messages)
        else:
            await self._earlier(session)
            user, position = await _append_once(session, messages, is_late=request.is_late), None
            last = user.seq
            self._positions.put(session, None)
            if request.mode == "thread" and last > len(messages):
                return await self._thread(request, session, user)
            added = _Added()
            if request.mode == "thread":  # a first turn: the client's bytes stay
                request, resends = replace(request, mode="alongside"), False
                added = await self._added(session, request, last)
        recording = self._begin(
            _Recording(
                session,
                last,
                new_id(),
                position,
                sources_of(added.by_turn.values(), messages),
                added.made,
                resends,
                is_new=is_new,
            )
        )
        return replace(self._with_additions(request, session, added), recording=recording)

    def _begin(self, recording: _Recording) -> _Recording:
        """Register a running request of a thread."""
        if not recording.resends:
            running = self._under_way.setdefault(recording.session.id, {})
            running[recording.nonce] = asyncio.Event()
        return recording

    def _end(self, recording: _Recording) -> None:
        self._recording.discard(recording.nonce)
        running = self._under_way.get(recording.session.id, {})
        if event := running.pop(recording.nonce, None):
            event.set()
        if not running:
            self._under_way.pop(recording.session.id, None)

    async def _earlier(self, session: Session) -> None:
        """Wait for the answers to earlier requests of a session to be recorded.

        A client sends its next turn as soon as it has the answer, and does not send that again. An
        answer that is still on its way is waited for only a moment.
        """
        running = dict(self._under_way.get(session.id, {}))
        with suppress(TimeoutError):
            async with asyncio.timeout(_WAIT):
                for event in running.values():
                    await event.wait()
        for nonce, event in running.items():
            if nonce in self._recording:
                await event.wait()
        if len(running) > _MOST_RUNNING:  # some were never recorded: the client had left
            self._under_way.pop(session.id, None)

    async def _counted(self, request: ReadRequest) -> Prepared:
        """Return the additions that a request gets, for one that only counts its tokens."""
        session = (await self._sessions.choose(request, create=False)).session
        if session is None or request.mode != "alongside":
            return _not_recorded(request, "the tokens are counted without the memory")
        end = (await session.refresh()).messages
        added = await self._added(session, request, end + 1)
        return replace(
            self._with_additions(request, session, added), state="not-recorded", reason=""
        )

    async def _align_and_recall(
        self, session: Session, request: ReadRequest, messages: Sequence[Message]
    ) -> tuple[int, LogEnd | None, _Added]:
        """Store what is new in a history; return where it ends, and the additions of the request.

        Usually a history continues where the log ended: then the log is not read, and the memory
        recalls while the messages are stored.
        """
        known = self._positions.continued(session, messages)
        if known is not None:
            rest = [replace(message, id="") for message in messages[known.messages :]]
            last = known.head + len(rest)
            added, stored = await asyncio.gather(
                self._added(session, request, last, known.added),
                _append(session, rest, known.head),
                return_exceptions=True,
            )
            if isinstance(added, BaseException):
                raise added
            if not isinstance(stored, BaseException):
                end = LogEnd(len(messages), chain(rest, known.chain), last, added.tokens)
                self._positions.put(session, end)
                return last, end, added
            if not isinstance(stored, Stale):
                raise stored
            self._positions.put(session, None)  # another writer continued the log
        aligned = await session.align(messages)
        added = await self._added(session, request, aligned.last)
        end = None
        if aligned.appended:
            end = LogEnd(len(messages), chain(messages), aligned.last, added.tokens)
        self._positions.put(session, end)
        return aligned.last, end, added

    async def _added(
        self, session: Session, request: ReadRequest, last: int, so_far: int | None = None
    ) -> _Added:
        """Return the additions of a request: earlier ones again, and one for a new turn.

        `so_far` are the tokens of earlier ones, if they are known. The messages are stored, so an
        error becomes a reason.
        """
        turns = [turn for turn in request.turns if turn.place is not None]
        newest = turns[-1] if turns and request.turns[-1] is turns[-1] else None
        asks = newest is not None and request.ends_with_user and bool(newest.text.strip())
        try:
            if so_far is None or newest is None or not asks:
                earlier = _of_turns(await session.additions(), turns)
                so_far = sum(each.tokens for each in earlier.values())
                if newest is None or not asks or newest.digest in earlier:
                    return _Added(earlier, newest.digest if newest and asks else None)
            room = min(self._recall_tokens, ADDED_TOKENS - so_far)
            if room <= 0:
                earlier = _of_turns(await session.additions(), turns)
                return _Added(earlier, reason=_FULL)
            found = await session.recall(
                newest.digest,
                newest.text,
                budget=room,
                shown_from=max(1, last - len(request.messages) + 1),
                wait=False,
            )
        except KeepthreadError as error:
            return _Added(reason=f"nothing was recalled: {error.code}")
        if found.made is None:
            reason = _FULL if room < self._recall_tokens else ""
            return _Added(_of_turns(found.earlier, turns), reason=reason)
        return _Added(_of_turns([*found.earlier, found.made], turns), newest.digest)

    async def _thread(self, request: ReadRequest, session: Session, user: Message) -> Prepared:
        """Build the context of a client that sends its newest turn alone."""
        async with session.resume_turn(user.id) as turn:
            context = await turn.context(budget=self._context_tokens)
        return Prepared(
            mode="thread",
            session=session.id,
            history=as_history(context, request.wire),
            tokens_added=max(0, context.tokens - user.tokens),
            why=session.id,
            recording=self._begin(_Recording(session, user.seq, new_id(), None, {}, None, False)),
        )

    def _with_additions(self, request: ReadRequest, session: Session, added: _Added) -> Prepared:
        additions = {
            digest: signed_addition(each.text, self._key) for digest, each in added.by_turn.items()
        }
        return Prepared(
            mode=request.mode,
            session=session.id,
            additions=additions,
            tokens_added=added.tokens,
            why=session.id if added.made else None,
            reason=added.reason,
        )


async def _append(session: Session, messages: Sequence[Message], head: int) -> None:
    """Append messages to a log that ends at a position, a slice at a time: others continue."""
    for start in range(0, len(messages), SLICE):
        await session.append(*messages[start : start + SLICE], expect=head + start)


def _of_turns(additions: Sequence[Addition], turns: Sequence[UserTurn]) -> dict[str, Addition]:
    """Return the additions of turns that a request has."""
    known = {each.key: each for each in additions}
    return {turn.digest: known[turn.digest] for turn in turns if turn.digest in known}


async def _entitle(session: Session) -> None:
    """Title a new session after its first question."""
    with suppress(KeepthreadError):
        first = await session.messages(limit=_SKIPPED)
        if asked := [message for message in first if origin_of(message) == "user"]:
            await entitle(session, asked[0])


async def _append_once(session: Session, messages: Sequence[Message], *, is_late: bool) -> Message:
    """Append messages, unless the log ends with them: then the client sends them again.

    An answer after them that was cut off does not count, as the client asks again for it. If other
    requests were recorded in the meantime, theirs may be the same messages, with an answer.
    """
    since = 0 if is_late else MAX_COUNT
    while True:
        newest = await session.messages(limit=len(messages) + _SKIPPED, before=MAX_COUNT)
        end = newest[-1].seq if newest else 0
        hidden = await session.hidden()
        newest = [m for m in newest if not any(h.first <= m.seq <= h.last for h in hidden)]
        if found := _last_like(messages, [m for m in newest if m.seq > since]):
            return found
        if newest and newest[-1].meta.get(CUT) is True:
            newest = newest[:-1]
        if found := _last_like(messages, newest[-len(messages) :]):
            return found
        try:
            given = [replace(message, id="") for message in messages]
            return (await session.append(*given, expect=end))[-1]
        except Stale:  # another writer appended in the meantime
            since = min(since, end)


def _last_like(messages: Sequence[Message], log: Sequence[Message]) -> Message | None:
    """Return the last of the messages in a part of a log that has them in a row."""
    wanted, number = chain(messages), len(messages)
    for end in range(len(log), number - 1, -1):
        if chain(log[end - number : end]) == wanted:
            return log[end - 1]
    return None


def _labeled(request: ReadRequest) -> list[Message]:
    """Return the messages of a request as they are recorded.

    The user's have the name that the client gives them. They are trusted no more than a tool's:
    clients also put texts of others into the user's role, in forms that nobody can know.
    """
    user = request.identity.user
    if not user or len(user) > MAX_ID or not user.isprintable():
        user = None
    return [
        replace(message, author=message.author or user, meta={LOWEST_ORIGIN: "tool"})
        if origin_of(message) == "user"
        else message
        for message in request.messages
    ]


def _named(recording: _Recording, answer: ProviderAnswer) -> list[Message]:
    """Return the messages of an answer as they are stored."""
    meta = dict(recording.sources)
    named = [
        replace(
            message,
            id=derived_id("proxy answer", recording.nonce, str(number)),
            meta={**message.meta, **meta},
        )
        for number, message in enumerate(answer.messages)
    ]
    if not answer.complete:
        named[-1] = replace(named[-1], meta={**named[-1].meta, CUT: True})
    return named


def _not_recorded(request: ReadRequest, reason: str) -> Prepared:
    return Prepared(mode=request.mode, state="not-recorded", reason=reason)
