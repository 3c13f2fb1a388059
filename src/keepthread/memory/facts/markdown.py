"""Facts as Markdown: one line each, its key in a comment, so that people can edit them."""

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Final, NamedTuple

from keepthread.errors import InvalidInput
from keepthread.memory.facts.records import MOST_TEXT, check_number
from keepthread.memory.facts.types import Fact

_HELP: Final = """\
Change a line to correct a fact, add a line to add one. The comments are the facts' keys: leave
them as they are. A fact in quarantine is used only after you tick its box: `[x]`."""
_WAITING: Final = "Waiting to be confirmed"
_ITSELF: Final = "About "
_AGENT: Final = ", known to agent "
"""In a heading, before the name of the agent that alone is shown the facts below."""
_HEAD: Final = re.compile(r"<!-- keepthread facts, as of (\S+) -->")
_ITEM: Final = re.compile(r"\s*[-*] +(?:\[([ xX]?)\] +)?")
_KEY: Final = re.compile(r"<!-- ?([0-9a-f]{32}) ?-->")
_LABEL: Final = re.compile(r"\*\*(?!\*)([^*]+):\*\*\s+(.*)")
_LONGEST: Final = 10 * MOST_TEXT
"""Characters of the longest line that is read as a fact, with marks and comment."""
_ENTITY: Final = re.compile(r"&(lt|amp);")
_LIKE_BOX: Final = re.compile(r"\\*\[")
"""Start of a text that could be taken for a box; it gets one more backslash in a document."""


class Line(NamedTuple):
    """One fact in a document."""

    text: str
    attribute: str = ""
    subject: str = ""
    key: str = ""
    """Empty if a person added the line."""
    ticked: bool = False
    raw: str = ""
    """The line as it is in the document."""
    heading: str = ""
    """The heading that it is under, as it is in the document."""
    agent: str = ""
    """The agent that the heading names."""


class Document(NamedTuple):
    """The content of a document."""

    at: float | None
    """When it was written, in seconds since 1970; None if it does not say."""
    lines: Sequence[Line]


def write(owner: str, facts: Sequence[Fact], now: float) -> str:
    """Return facts as a document."""
    written = datetime.fromtimestamp(now, tz=UTC).isoformat()
    parts = [f"# Facts about {_escaped(owner)}", f"<!-- keepthread facts, as of {written} -->"]
    parts.append(_HELP)
    live = [fact for fact in facts if fact.state == "live"]
    places = {(fact.agent, fact.subject) for fact in live} | {("", "")}
    for agent, subject in sorted(places, key=lambda each: [name.casefold() for name in each]):
        lines = [line_of(f) for f in live if (f.agent, f.subject) == (agent, subject)]
        parts.append("\n".join([heading_of(subject, owner, agent), "", *lines]).strip())
    waiting = [fact for fact in facts if fact.state == "quarantined"]
    for agent in sorted({fact.agent for fact in waiting}):
        lines = [line_of(fact) for fact in waiting if fact.agent == agent]
        parts.append("\n".join([_heading(_WAITING, agent), "", *lines]))
    return "\n\n".join(parts) + "\n"


def heading_of(subject: str, owner: str, agent: str = "") -> str:
    """Return the heading for the facts about a subject, known to one agent or to all."""
    return _heading(f"{_ITSELF}{subject or owner}", agent)


def _heading(title: str, agent: str) -> str:
    return f"## {_escaped(title)}{_AGENT + _escaped(agent) if agent else ''}".rstrip()


def line_of(fact: Fact) -> str:
    """Return the line of a fact."""
    label = f"**{_escaped(fact.attribute)}:** " if _labels(fact.attribute) else ""
    box = "[ ] " if fact.state == "quarantined" else ""
    text = f"{label}{_escaped(fact.text)}"
    guard = "\\" if _LIKE_BOX.match(text) else ""
    return f"- {box}{guard}{text} <!-- {fact.key} -->"


def read(text: str, owner: str) -> Document:
    """Parse a document; lines that are not list entries are for people."""
    head = _HEAD.search(text)
    subject = heading = agent = ""
    lines: list[Line] = []
    for raw in text.splitlines():
        if raw.startswith("#"):
            title = _plain(raw.lstrip("#").strip())
            title, _, agent = title.rpartition(_AGENT) if _AGENT in title else (title, "", "")
            nobody = title == _WAITING or raw.startswith("# ")
            subject = "" if nobody else title.removeprefix(_ITSELF)
            subject = "" if subject == owner else subject
            heading = raw.rstrip()
        elif len(raw) <= _LONGEST and (item := _ITEM.match(raw)):
            line = _read_line(raw.rstrip(), subject, item)
            if line.text:
                lines.append(line._replace(heading=heading, agent=agent))
                check_number(len(lines))
    return Document(_time(head[1]) if head else None, lines)


def _read_line(raw: str, subject: str, item: "re.Match[str]") -> Line:
    rest = raw[item.end() :]
    comment = _KEY.fullmatch(rest, max(rest.rfind("<!--"), 0))
    if comment:
        rest = rest[: comment.start()].rstrip()
    if rest.startswith("\\") and _LIKE_BOX.match(rest):
        rest = rest[1:]
    label = _LABEL.fullmatch(rest)
    attribute, text = (_plain(label[1]), label[2]) if label else ("", rest)
    key = comment[1] if comment else ""
    return Line(_plain(text), attribute, subject, key, item[1] in ("x", "X"), raw)


def without_box(raw: str) -> str:
    """Return a line with its box unticked."""
    return re.sub(r"^(\s*[-*] +)\[[xX]\]", r"\1[ ]", raw)


def _labels(attribute: str) -> bool:
    return bool(attribute) and "*" not in attribute


def _escaped(text: str) -> str:
    """Return a text that cannot begin a comment, and so cannot imitate a key."""
    return re.sub(r"&(?=(?:lt|amp);)", "&amp;", text).replace("<!", "&lt;!")


def _plain(text: str) -> str:
    signs: Mapping[str, str] = {"lt": "<", "amp": "&"}
    return _ENTITY.sub(lambda found: signs[found[1]], text)


def _time(text: str) -> float:
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        raise InvalidInput(f"the document has an invalid timestamp: {text[:40]!r}") from None
