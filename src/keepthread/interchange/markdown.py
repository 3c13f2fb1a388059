"""A conversation as Markdown that people can read, and that reads back exactly.

A message begins with a heading, `## User · by ana · 2026-11-14 09:30:12 UTC`; then comes its text
unchanged. A line of the text that looks like such a heading gets a backslash, which Markdown does
not show, and characters that a text file cannot hold are written as `&#13;`.
"""

import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple

from keepthread.errors import InvalidInput, WrongFormat
from keepthread.interchange.files import TRANSCRIPT
from keepthread.stores.validation import check_time
from keepthread.types import Attachment, Message, Role, SessionInfo, ToolCall

LATEST: Final = 253_402_300_800
"""The year 10000, the first time that is not a valid date."""
FIRST_LINE: Final = f"{TRANSCRIPT} 1 -->"

_ROLES: Final[dict[str, Role]] = {
    "System": "system",
    "User": "user",
    "Assistant": "assistant",
    "Tool": "tool",
}
_CALL: Final = "Call"
_ATTACHMENT: Final = "Attachment"
_KINDS: Final = "|".join((*_ROLES, _CALL, _ATTACHMENT))
# Compiled at first use: other commands start faster without it.
_HEADING: Final = rf"###? ({_KINDS})(?: · (.*))?"
_LOOKS_LIKE_ONE: Final = rf"(?m)^(?=\\*###? (?:{_KINDS})(?: ·|$))"
_WAS_ONE: Final = rf"(?m)^\\(?=\\*###? (?:{_KINDS})(?: ·|$))"
_UNWRITABLE: Final = "[\0-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff\ufeff]"
_NOT_IN_A_LINE: Final = "[\0-\x1f\x7f-\x9f·\u2028\u2029\ud800-\udfff\ufeff]"
_AMBIGUOUS: Final = r"&(?=(?:amp;)*#[0-9]+;)"
_WRITTEN_OUT: Final = r"&#([0-9]{1,7});|&amp;(?=(?:amp;)*#[0-9]+;)"
_HEADER: Final = r"- (session|owner|begun): (.*)"
_WHEN: Final = r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)(\.\d{1,20})? UTC"
_DATE: Final = "%Y-%m-%d %H:%M:%S"
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_GONE: Final = ("erased", "damaged")
_LABELS: Final = ("by", "from", "for", "to", "as", "of", "named")
_AT: Final = "at"
_STATE: Final = "state"


class Transcript(NamedTuple):
    """The content of a transcript; it is data, and has no trust."""

    session: str
    owner: str
    title: str
    begun: float
    messages: Sequence[Message]


# --- writing ---


def header_of(session: SessionInfo) -> str:
    """Return the beginning of a transcript."""
    title = _line(session.title.strip()) or _line(session.id)
    about = {"session": _line(session.id), "owner": _line(session.owner)}
    about["begun"] = _when(session.created_at)
    lines = [f"- {name}: {value}" for name, value in about.items()]
    return "\n".join([FIRST_LINE, f"# {title}", "", *lines, "", ""])


def markdown_of(message: Message) -> str:
    """Return one message: its heading, its text, its tool calls and its attachments."""
    kind = message.role.capitalize()
    fields = {"by": message.author, "from": message.name, "for": message.tool_call_id}
    heading = _heading("##", kind, fields)
    if message.state in _GONE:
        return f"{heading} · {message.state} · {_when(message.created_at)}\n\n"
    parts = [_part(f"{heading} · {_when(message.created_at)}", message.content)]
    for call in message.tool_calls:
        heading = _heading("###", _CALL, {"to": call.name, "as": call.id})
        parts += [_part(heading, call.arguments)]
    for given in message.attachments:
        about = {"of": given.media_type, "named": given.name}
        parts += [_part(_heading("###", _ATTACHMENT, about), "")]
    return "".join(parts)


def _heading(marks: str, kind: str, fields: Mapping[str, str | None]) -> str:
    written = [f"{name} {_line(value)}" for name, value in fields.items() if value is not None]
    return " · ".join((f"{marks} {kind}", *written))


def _part(heading: str, text: str) -> str:
    text = re.sub(_LOOKS_LIKE_ONE, r"\\", _written(text, _UNWRITABLE))
    return f"{heading}\n\n{text}\n\n" if text else f"{heading}\n\n"


def _line(text: str) -> str:
    return _written(text, _NOT_IN_A_LINE)


def _written(text: str, unwritable: str) -> str:
    text = re.sub(_AMBIGUOUS, "&amp;", text)
    return re.sub(unwritable, lambda found: f"&#{ord(found[0])};", text)


def _when(seconds: float) -> str:
    """Return a time with all its digits, so that it is read back exactly."""
    digits = repr(float(seconds))
    if "e" in digits or seconds >= LATEST:
        return f"{digits} s"
    whole, _, fraction = digits.partition(".")
    moment = _EPOCH + timedelta(seconds=int(whole))
    return f"{moment:{_DATE}}.{fraction} UTC".replace(".0 UTC", " UTC")


# --- reading ---


def read_markdown(data: bytes) -> Transcript:
    """Parse a transcript; its messages have no ids, and erased ones are left out."""
    try:
        text = data.decode("utf-8-sig").replace("\r\n", "\n")  # an editor may have made them
    except UnicodeDecodeError as error:
        raise InvalidInput(f"the transcript is not UTF-8: {error}") from None
    first, _, rest = text.partition("\n")
    if first.rstrip() != FIRST_LINE:
        why = (
            "a newer keepthread wrote it"
            if first.startswith(TRANSCRIPT)
            else "its marker is missing"
        )
        raise WrongFormat(f"this transcript cannot be read: {why}")
    lines = rest.removesuffix("\n").split("\n")
    starts = [n for n, line in enumerate(lines) if re.fullmatch(_HEADING, line)]
    about = _about(lines[: starts[0] if starts else len(lines)])
    messages: list[Message] = []
    for start, end in zip(starts, [*starts[1:], len(lines)], strict=False):
        _take(messages, lines[start], lines[start + 1 : end])
    return about._replace(messages=[each for each in messages if each.state == "live"])


def _about(lines: Sequence[str]) -> Transcript:
    found = {m[1]: m[2] for line in lines if (m := re.fullmatch(_HEADER, line))}
    titles = [_read(line[2:]) for line in lines if line.startswith("# ")]
    session = _read(found.get("session", ""))
    if not session:
        raise InvalidInput("the transcript has no session id: `- session: …` is missing")
    return Transcript(
        session=session,
        owner=_read(found.get("owner", "")),
        title=titles[0] if titles and titles[0] != session else "",
        begun=_time(found.get("begun", "")),
        messages=(),
    )


def _take(messages: list[Message], heading: str, lines: Sequence[str]) -> None:
    """Add the message of a heading, or add its part to the last message."""
    found = re.fullmatch(_HEADING, heading)
    assert found
    kind, fields = found[1], _fields(found[2] or "")
    text = _read(re.sub(_WAS_ONE, "", _between(lines)))
    if kind in _ROLES:
        message = Message(
            role=_ROLES[kind],
            content=text,
            author=fields.get("by"),
            name=fields.get("from"),
            tool_call_id=fields.get("for"),
            created_at=_time(fields.get(_AT, "")),
            state="erased" if _STATE in fields else "live",
        )
        messages.append(message)
    elif messages and kind == _CALL:
        call = ToolCall(id=fields.get("as", ""), name=fields.get("to", ""), arguments=text)
        last = messages.pop()
        messages.append(replace(last, tool_calls=(*last.tool_calls, call)))
    elif messages:
        given = Attachment(media_type=fields.get("of", ""), name=fields.get("named", ""))
        last = messages.pop()
        messages.append(replace(last, attachments=(*last.attachments, given)))


def _fields(written: str) -> dict[str, str]:
    """Return the fields of a heading: names with their values, a time, a state."""
    found: dict[str, str] = {}
    for each in written.split(" · "):
        name, _, value = each.partition(" ")
        if name in _LABELS:
            found[name] = _read(value)
        else:
            found[_STATE if each in _GONE else _AT] = each
    return found


def _between(lines: Sequence[str]) -> str:
    """Return the text between two headings, without the blank lines around it."""
    start = 1 if lines and not lines[0] else 0
    end = len(lines) - 1 if len(lines) > start and not lines[-1] else len(lines)
    return "\n".join(lines[start:end])


def _read(text: str) -> str:
    return re.sub(_WRITTEN_OUT, _sign, text)


def _sign(found: re.Match[str]) -> str:
    if found[1] is None:
        return "&"
    number = int(found[1])
    return chr(number) if number <= sys.maxunicode else found[0]


def _time(written: str) -> float:
    """Return a time in seconds since 1970; 0 if it is not a time."""
    try:
        if found := re.fullmatch(_WHEN, written):
            moment = datetime.strptime(found[1], _DATE).replace(tzinfo=UTC)
            return float(f"{(moment - _EPOCH) // timedelta(seconds=1)}{found[2] or ''}")
        return check_time(float(written.removesuffix(" s")), "a time")
    except (ValueError, OverflowError):  # not a time
        return 0.0
