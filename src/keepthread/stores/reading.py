"""What every backend does alike when a view reads a log on: look whether all is as it was seen."""

from collections.abc import Iterable

from keepthread.codec import ROLES
from keepthread.errors import InvalidInput, Stale
from keepthread.recall.flags import ASSISTANT
from keepthread.recall.places import length_of, span
from keepthread.stores.details import check_epoch
from keepthread.types import MessageFilter, Sitting, Unread


def check_reading(read: Unread, upto: int, *, epoch: int, mark: int, last: int) -> None:
    """Refuse what was read before something was erased, or another has read already.

    `mark` is how far the view has read by now, `last` the end of the log.
    """
    check_epoch(epoch, read.epoch)
    if mark != read.upto:
        raise Stale(f"the view has read to {mark}, not to {read.upto}")
    if not mark <= upto <= last:
        raise InvalidInput(f"there is nothing to read from {mark} to {upto}")


def role_bits(only: MessageFilter) -> int:
    """Return the roles that a filter admits: a bit for each, by its number in a row."""
    roles = ROLES if only.roles is None else set(only.roles)
    return sum(1 << ROLES.index(role) for role in roles)


def check_readable(*, readable: bool) -> None:
    """Refuse a delegate, and a session that is not ready: no view reads them."""
    if not readable:
        raise Stale("the session is a delegate, or not ready: no view reads it")


def check_places(read: Unread, upto: int, places: Iterable[int]) -> None:
    """Refuse what does not stand in the part of the log that was read."""
    lowest, highest = span(int(read.session), read.upto + 1, upto)
    if not all(lowest <= place <= highest for place in places):
        raise InvalidInput("a place is not in the part of the log that was read")


def check_sittings(read: Unread, sittings: Iterable[Sitting]) -> None:
    """Refuse a sitting of another session."""
    if any(sitting.session != read.session for sitting in sittings):
        raise InvalidInput("a sitting is not of the session that was read")


def without(sitting: Sitting, place: int, flags: int) -> Sitting | None:
    """Return a sitting that lost a piece, or None if it was the last."""
    if sitting.parts <= 1:
        return None
    return sitting._replace(
        parts=sitting.parts - 1,
        length=sitting.length - length_of(place),
        answers=sitting.answers - (flags & ASSISTANT > 0),
    )
