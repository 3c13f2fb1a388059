"""Prepare messages and rows for storage; shared by all backends."""

from collections.abc import Callable
from dataclasses import replace
from typing import Final, NamedTuple

from keepthread.errors import Conflict, Damaged, InvalidInput, Stale
from keepthread.stores.codec import (
    ROLES,
    USER,
    Body,
    GuardOf,
    PackedId,
    Row,
    decode,
    encode,
    encode_as_is,
    guard_of,
    missing,
    pack_id,
    stored,
    tombstone,
)
from keepthread.stores.validation import (
    MAX_COUNT,
    check_count,
    check_date,
    check_id,
    check_message,
    check_time,
    show,
)
from keepthread.types import Message

_NEW: Final = ("live", "queued")  # a message that an outbox acknowledged may be sent again
STATES: Final = ("live", "erased", "damaged")


class Head(NamedTuple):
    """The end of a log: its last position, number of turns and total tokens."""

    seq: int = 0
    turns: int = 0
    total: int = 0


class AwaitedTurn(int):
    """The turn of a queued user message; it gets its number on delivery."""

    opened_by: str
    """The id of the user message."""

    def __new__(cls, opened_by: str) -> "AwaitedTurn":
        """Name it by its user message; as a number it is 0."""
        self = super().__new__(cls, 0)
        self.opened_by = opened_by
        return self


class PreparedMessage(NamedTuple):
    """A message that was checked and encoded; it has an id."""

    message: Message
    id: str
    packed: PackedId
    body: Body
    tokens: int
    counter: bytes
    created_at: float

    @property
    def size(self) -> int:
        """Return roughly how many bytes it takes in a store."""
        return _ROW_BYTES + len(self.body.content or b"") + len(self.body.extra or b"")


_ROW_BYTES: Final = 200  # bytes of a message besides its text


def draft(
    message: Message, *, clock: Callable[[], float], ids: Callable[[], str]
) -> PreparedMessage:
    """Check and encode a caller's message."""
    check_message(message)
    if message.state not in _NEW:
        raise InvalidInput(f"message {show(message.id)} is {message.state}: only `load` copies it")
    id = ids() if message.id == "" else check_id(message.id, "a message id")
    return PreparedMessage(
        message,
        id,
        pack_id(id),
        encode(message, id),
        check_count(message.tokens, "tokens"),
        b"" if message.counter == "" else check_id(message.counter, "counter").encode(),
        _time(message.created_at, clock),
    )


def _time(given: float, clock: Callable[[], float]) -> float:
    """Return the time given by the caller, or now."""
    return check_time(clock(), "created_at") if given == 0 else check_date(given, "created_at")


def draft_copy(message: Message) -> PreparedMessage:
    """Encode a message that was read from a store, unchanged."""
    if type(message) is not Message or message.state not in STATES:
        raise InvalidInput(f"expected a Message read from a store, not {show(message)}")
    if message.id != "" or message.state != "damaged":
        check_id(message.id, "a message id")
    if check_count(message.seq, "seq") == 0:
        raise InvalidInput(f"message {show(message.id)} has no position; append it")
    return PreparedMessage(
        message,
        message.id,
        pack_id(message.id or f"missing:{message.seq}"),
        encode_as_is(message),
        check_count(message.tokens, "tokens"),
        b"" if message.counter == "" else check_id(message.counter, "counter").encode(),
        check_time(message.created_at, "created_at"),
    )


def check_turn(turn: int | None, head: Head) -> None:
    """Raise `InvalidInput` for a turn that was never opened."""
    if turn is not None and not 0 < check_count(turn, "turn") <= head.turns:
        raise InvalidInput(f"turn {turn} was never opened; there are {head.turns}")


def check_total(total: int) -> None:
    """Raise `InvalidInput` for a token total beyond the limit of a log."""
    if total > MAX_COUNT:
        raise InvalidInput(f"the log would count {total} tokens; it can count {MAX_COUNT} at most")


def next_row(place: int, head: Head, draft: PreparedMessage, turn: int | None) -> Row:
    """Return the row of a new message at the end of the log."""
    turns = head.turns
    if turn is None:
        if draft.body.role == USER:
            turns += 1
        turn = turns
    return _row(place, head, draft, turn, turns, head.total + draft.tokens)


def next_copy(place: int, head: Head, draft: PreparedMessage, guard_of: GuardOf = guard_of) -> Row:
    """Return the row of a copied message at the end of the log."""
    message = draft.message
    if message.seq != head.seq + 1:
        raise Stale(f"position {message.seq} cannot follow {head.seq}: load without gaps")
    if message.state == "damaged":  # its numbers cannot be trusted either
        numbers = (head.turns, head.turns, head.total)
        return _row(place, head, draft, *numbers, guard_of)
    turn = check_count(message.turn, "turn")
    if check_count(message.total, "total") < head.total + draft.tokens:
        raise InvalidInput(f"total {message.total} at position {message.seq} does not follow")
    numbers = (turn, max(head.turns, turn), message.total)
    return _row(place, head, draft, *numbers, guard_of)


def _row(
    place: int,
    head: Head,
    draft: PreparedMessage,
    turn: int,
    turns: int,
    total: int,
    guard_of: GuardOf = guard_of,
) -> Row:
    _, _, packed, body, tokens, counter, created_at = draft
    seq = head.seq + 1
    return Row(
        seq,
        packed,
        body.role,
        body.content,
        body.extra,
        tokens,
        counter,
        turn,
        turns,
        total,
        created_at,
        body.digest,
        guard_of(place, seq, tokens, counter, turn, turns, total, created_at, body.digest),
    )


def head_after(row: Row) -> Head:
    """Return the end of the log after a row."""
    return Head(row.seq, row.turns, row.total)


def as_stored(draft: PreparedMessage, row: Row) -> Message:
    """Return the stored message of a draft."""
    return stored(draft.message, draft.id, draft.body, row)


def same_body(draft: PreparedMessage, known: Message) -> Message:
    """Return the stored message with a draft's id; raise `Conflict` if the bodies differ."""
    if known.state == "live" and known.digest != draft.body.digest:
        raise Conflict(f"message id {show(draft.id)} is already stored with another body")
    return known


def same_place(draft: PreparedMessage, id: PackedId, digest: bytes) -> None:
    """Raise `Conflict` if the message stored at a copy's position is a different one."""
    erased = tombstone(draft.id, draft.body.role).digest
    if id != draft.packed or digest not in (draft.body.digest, erased):
        raise Conflict(f"another message is at position {draft.message.seq}")


def erased_row(place: int, seq: int, row: Row, guard_of: GuardOf = guard_of) -> Row:
    """Return the tombstone that replaces a row; the running totals do not change."""
    message = decode(place, row, guard_of)
    body = tombstone(message.id, ROLES.index(message.role))
    damaged = message.state == "damaged"
    turns = message.turn if damaged else row.turns
    around = (seq, 0, b"", message.turn, turns, message.total, message.created_at)
    guard = guard_of(place, *around, body.digest)
    id = pack_id(message.id)
    return Row(seq, id, body.role, None, None, *around[1:], body.digest, guard)


def recounted_row(
    place: int, row: Row, tokens: int, counter: bytes, total: int, guard_of: GuardOf = guard_of
) -> Row:
    """Return a row with another count; its digest, and so any damage, does not change."""
    check_count(tokens, "tokens")
    check_total(total)
    numbers = (row.turn, row.turns, total, row.created_at)
    guard = guard_of(place, row.seq, tokens, counter, *numbers, row.digest)
    return row._replace(tokens=tokens, counter=counter, total=total, guard=guard)


def check_positions(**values: int | None) -> None:
    """Raise `InvalidInput` for limits and positions that are not whole numbers or `None`."""
    for what, value in values.items():
        if value is not None:
            check_count(value, what)


_MAX_MISSING: Final = 1000


def without_gaps(messages: list[Message], after: int | None = None) -> list[Message]:
    """Return the messages with a damaged placeholder for each missing position."""
    if not messages:
        return messages
    before = messages[0].seq - 1 if after is None else after
    if messages[-1].seq - before == len(messages):
        return messages
    whole: list[Message] = []
    for found in messages:
        # The position in a damaged row may be wrong.
        message = replace(found, seq=before + 1) if found.state == "damaged" else found
        if message.seq - before > _MAX_MISSING:
            raise Damaged(f"positions {before + 1} to {message.seq - 1} are missing; run `verify`")
        whole += [missing(seq) for seq in range(before + 1, message.seq)]
        whole.append(message)
        before = message.seq
    return whole
