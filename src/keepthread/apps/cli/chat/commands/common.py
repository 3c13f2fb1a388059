"""Helpers of the commands: parse an argument, read back in the log, name things briefly."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from keepthread.apps.cli.chat.attachments import typed_part
from keepthread.apps.cli.chat.chat import Chat
from keepthread.apps.cli.chat.persistence import IN_PROCESS
from keepthread.apps.cli.sanitize import sanitize
from keepthread.apps.cli.stores import place_of
from keepthread.context.hidden import HiddenRanges
from keepthread.errors import InvalidInput
from keepthread.memory.session import Session
from keepthread.types import Message

_PAGE: Final = 50
_BRIEF: Final = 60
_LINES: Final = 6
_LONG: Final = 600
"""Characters of the latest answer that somebody sees who continues."""
NO_ANSWER: Final = "The latest question has no answer; /retry asks it again"


def parse_number(rest: str, default: int, *, what: str = "a number") -> int:
    """Return the argument as a number from 1 on, or the default if it is empty."""
    if not rest:
        return default
    if not rest.isascii() or not rest.isdigit() or not 0 < int(rest[:10]) < 10**9:
        raise InvalidInput(f"{rest!r} is not {what}: write 1, 2, 3 …, or nothing")
    return int(rest)


def parse_path(rest: str) -> Path:
    """Return the argument as a path; quotes around it are optional."""
    quoted = len(rest) > 1 and rest[0] == rest[-1] and rest[0] in "'\""
    if not rest.isprintable():
        raise InvalidInput(f"{rest!r} is not a file name: write one without control characters")
    return Path(rest[1:-1] if quoted else rest).expanduser()


async def newest(session: Session, until: Callable[[Message], bool]) -> list[Message]:
    """Return the visible messages from the latest one of a kind on, or all; oldest first."""
    hidden = HiddenRanges(await session.hidden())
    before = (await session.refresh()).messages + 1
    found: list[Message] = []
    while span := hidden.visible_before(before):
        first, last = span
        after = max(first - 1, last - _PAGE)
        page = await session.messages(after=after, limit=last - after)
        for message in reversed(page):
            if message.state == "live":
                found.append(message)
                if until(message):
                    return found[::-1]
        before = after + 1
    return found[::-1]


async def unanswered(session: Session) -> Message | None:
    """Return the latest question, if nothing came of it."""
    found = await newest(session, lambda m: m.role in ("user", "assistant"))
    return found[0] if found and found[0].role == "user" else None


def last_turn(turn: Sequence[Message]) -> list[str]:
    """Return the latest turn in a few lines, and whether its question still waits."""
    asked = [m for m in turn if m.role == "user"]
    if not asked:
        return []
    lines = [f"You asked: {brief(typed_part(asked[0].content))}"]
    said = [m for m in turn if m.role == "assistant" and m.content]
    if not said:
        return [*lines, NO_ANSWER]
    text = said[-1].content.strip()
    shown = text[:_LONG].splitlines()[:_LINES]
    lines += [sanitize(line) for line in shown]
    if len("\n".join(shown)) < len(text):
        lines.append("… /history shows all of it")
    if said[-1].meta.get("truncated") is True:
        lines.append("That answer was cut short; /retry asks again")
    return lines


def brief(text: str) -> str:
    """Return the beginning of a text in quotation marks, on one line."""
    line = " ".join(text[: 4 * _BRIEF].split())
    return sanitize(f"“{line}”" if len(line) <= _BRIEF else f"“{line[:_BRIEF].rstrip()}…”")


def place(chat: Chat) -> str:
    """Say where the chat is kept now."""
    persistence = chat.talk.persistence
    if not persistence.kept:
        return IN_PROCESS
    if persistence.away:
        return "in a file of its own, until the store is back"
    return sanitize(place_of(chat.config.settings.address))
