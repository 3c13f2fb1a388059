"""The digest: a text in fewer bytes, made of its own sentences, without a model."""

import re
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Final
from zlib import crc32

from keepthread.context.blocks import is_answer
from keepthread.context.quoting import flat, speaker
from keepthread.types import Message

GAP: Final = " … "
"""Marks where text was left out."""

_GAP_SIZE: Final = 5
_LEAST: Final = 60
"""A shorter piece of a text, in bytes, is not worth showing."""
_LINE: Final = 150
"""A shorter line for a turn, in bytes, is not worth showing."""
_NEAR: Final = 24
"""Characters that may be dropped to avoid cutting a word."""
_BEGINNING: Final = 40
"""Characters that identify a line after it was cut."""
_SHORT: Final = 12
"""A sentence of fewer characters is joined to the next one: `Yes.`, `2. `, `e.g. `."""
_WEIGHED: Final = 50_000
"""With more sentences than this only some are weighed, to limit the time."""
_TOOLS: Final = 5
"""Tools that are named before the others are only counted."""
_NAME_SIZE: Final = 60
_BULLET: Final = "- "
_BAR: Final = " | "
_JOINER: Final = "\u200d"
_CLUSTER: Final = 16
"""Code points that may form one character; longer sequences of accents are cut."""

# Compiled when first used. After a title or before lower case, no sentence ends. No part of it
# repeats, so that a text takes time in proportion to its length.
_END: Final = (
    r"[.!?](?<!\bDr\.)(?<!\bMr\.)(?<!\bMrs\.)(?<!\bMs\.)(?<!\bNo\.)[\"'”’»)\]*]?(?: …)? (?![a-z])"
    r"|…[\"'”’»)\]*]? "
    r"|[。！？][」』”’）]?(?![。！？])"
)
_BULLETS: Final = "0123456789.)*+->`=_# \n"
_FIGURE: Final = r"\d"
_NAME: Final = r"[^\s.!?:*#>-] [A-ZÀ-ÖØ-ÞΑ-ΩА-Я][^\W\d_]"
_WEIGHTY: Final = (
    "agreed always avoid because cannot chose decided decision deadline don't must need never "
    "only prefer required therefore entschieden immer muss nie nur weil "
    "décidé doit jamais préfère toujours debe decidido nunca prefiero siempre"
)
_WEIGHTY_CJK: Final = "决定 決定 必须 必須 因为 喜欢 不要 好き 絶対 から"

_WORDS: Final = frozenset(_WEIGHTY.split())
_CJK_WORDS: Final = tuple(_WEIGHTY_CJK.split())


def digest(text: str, limit: int) -> str:
    """Return a text in at most `limit` bytes: its ends, and the sentences that matter most."""
    if size(text) <= limit:
        return text
    if limit <= 0:
        return ""
    pieces = sentences(text)
    whole = "".join(pieces).rstrip()
    if size(whole) <= limit:
        return whole
    ends = size(_trimmed(pieces[0])) + _GAP_SIZE + size(_trimmed(pieces[-1]))
    if len(pieces) == 1 or ends > limit < _LEAST:
        return _around(whole, limit)
    kept, room = _ends(pieces, limit)
    if room > _GAP_SIZE:
        kept |= _middle(pieces, room)
    return _joined(pieces, kept)


def extract(text: str, limit: int) -> str:
    """Return a text in at most `limit` bytes, a running summary line by line."""
    return compressed(text, limit) if text.startswith(_BULLET) else digest(text, limit)


def size(text: str) -> int:
    """Return how many bytes a text takes."""
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


def sentences(text: str) -> list[str]:
    """Return a text's sentences and lines; each ends with what parts it from the next."""
    pieces: list[str] = []
    end = re.compile(_END)
    for line in text.splitlines():
        line = " ".join(line.split())  # noqa: PLW2901 - the same line, tidy
        start = 0
        for found in end.finditer(line) if len(line) > _SHORT else ():
            if found.end() - start > _SHORT:
                pieces.append(line[start : found.end()])
                start = found.end()
        if start < len(line):
            pieces.append(line[start:] + "\n")
        elif line:
            pieces[-1] += "\n"
    return pieces


def _trimmed(piece: str) -> str:
    return piece.removesuffix(GAP).rstrip()


def _ends(pieces: Sequence[str], limit: int) -> tuple[dict[int, str], int]:
    """Return the first and the last piece, cut if they must be, and the bytes that are left."""
    first, last = _trimmed(pieces[0]), _trimmed(pieces[-1])
    room = limit - _GAP_SIZE
    share = max(room // 2, room - size(last))
    first = _around(first, share)
    last = _around(last, room - size(first))
    return {0: first, len(pieces) - 1: last}, room - size(first) - size(last)


def _middle(pieces: Sequence[str], room: int) -> dict[int, str]:
    """Return the most important pieces between the ends that fit; one is cut to fill the rest."""
    kept: dict[int, str] = {}
    step = 1 + len(pieces) // _WEIGHED
    content = [n for n in range(1, len(pieces) - 1, step) if pieces[n].strip(_BULLETS)]
    order = sorted(content, key=lambda n: -_weight(pieces[n]))
    for n in order:
        needed = len(pieces[n]) + _GAP_SIZE
        if needed <= room and (needed := size(pieces[n]) + _GAP_SIZE) <= room:
            kept[n] = _trimmed(pieces[n])
            room -= needed
        elif room <= _GAP_SIZE:
            break
    best = next((n for n in order if n not in kept), None)
    if best is not None and room >= _LEAST:
        kept[best] = _around(_trimmed(pieces[best]), room - _GAP_SIZE)
    return kept


def _weight(piece: str) -> int:
    """Return how much a sentence seems to matter: figures, names, words of decision."""
    bare = piece.lstrip(_BULLETS)
    if not bare or piece.startswith("#") or piece.endswith(("**\n", "**:\n")):
        return -1  # a heading
    weight = bool(re.search(_FIGURE, bare)) + bool(re.search(_NAME, bare))
    if not _WORDS.isdisjoint(piece.lower().split()):
        return weight + 2
    if not piece.isascii() and any(word in piece for word in _CJK_WORDS):
        return weight + 2
    return weight


def _joined(pieces: Sequence[str], kept: Mapping[int, str]) -> str:
    parts: list[str] = []
    before = 0
    for n in sorted(kept):
        if n > before + 1:
            parts.append(GAP if not kept[before].endswith("…") else " ")
        elif n:
            parts.append(pieces[before][len(_trimmed(pieces[before])) :])
        parts.append(kept[n])
        before = n
    return "".join(parts)


# --- cutting ---


def _around(text: str, room: int) -> str:
    """Return a text that fits: its head and tail around a gap, or its head if room is scarce."""
    if size(text) <= room:
        return text
    if room < _LEAST:
        mark = GAP.strip()
        return _head(text, room - size(mark)) + mark if room > _GAP_SIZE else _head(text, room)
    tail = _tail(text, (room - _GAP_SIZE) // 3)
    return f"{_head(text, room - _GAP_SIZE - size(tail))}{GAP}{tail}"


def _head(text: str, room: int) -> str:
    """Return the beginning of a text, up to a space if one is near."""
    raw = text[:room].encode("utf-8", "surrogatepass")
    end = min(room, len(raw))
    while end < len(raw) and raw[end] & 0xC0 == 0x80:
        end -= 1
    end = len(raw[:end].decode("utf-8", "surrogatepass"))
    for _ in range(_CLUSTER):
        end -= 0 < end < len(text) and _clings(text, end)
    space = text.rfind(" ", end - min(end // 2, _NEAR), end + 1)
    return text[: space if space > 0 else end].rstrip()


def _tail(text: str, room: int) -> str:
    """Return the end of a text, from after a space if one is near."""
    raw = text[-room:].encode("utf-8", "surrogatepass")
    start = len(raw) - room
    while raw[start] & 0xC0 == 0x80:
        start += 1
    start = len(text) - len(raw[start:].decode("utf-8", "surrogatepass"))
    for _ in range(_CLUSTER):
        start += start < len(text) and _clings(text, start)
    space = text.find(" ", start - 1, start + min((len(text) - start) // 2, _NEAR))
    return text[space + 1 if space >= 0 else start :].lstrip()


def _clings(text: str, at: int) -> bool:
    """Return whether a code point belongs to the one before: an accent, a joiner, a skin tone."""
    sign, before = text[at], text[at - 1]
    return (
        sign == _JOINER
        or before == _JOINER
        or unicodedata.category(sign)[0] == "M"
        or "\U0001f3fb" <= sign <= "\U0001f3ff"
    )


# --- running summaries ---


def turn_line(
    messages: Sequence[Message],
    *,
    user: int,
    answer: int,
    digests: Mapping[int, str] | None = None,
) -> str:
    """Return one turn in one line: what was asked, what was answered, which tools were used.

    The questions take `user` bytes together, the answer `answer`; of an answer in `digests`, by
    its position, the digest is used. A turn without text gives an empty line.
    """
    live = [message for message in messages if message.state == "live"]
    asked = [message for message in live if message.role == "user" and message.content.strip()]
    parts = [_part(message, message.content, user // len(asked)) for message in asked]
    for message in reversed(live):
        if is_answer(message):
            text = (digests or {}).get(message.seq, message.content)
            parts.append(_part(message, text, answer))
            break
    parts.append(_used(live))
    said = _BAR.join(filter(None, parts))
    return f"- {said}" if said else ""


def _part(message: Message, text: str, limit: int) -> str:
    said = _bare(text, limit)
    return f"{_bare(speaker(message), _NAME_SIZE)}: {said}" if said else ""


def _used(messages: Sequence[Message]) -> str:
    calls = (call for message in messages for call in message.tool_calls)
    names = list(dict.fromkeys(filter(None, (_bare(call.name, _NAME_SIZE) for call in calls))))
    if not names:
        return ""
    more = f" and {len(names) - _TOOLS} more" if len(names) > _TOOLS else ""
    return f"used {', '.join(names[:_TOOLS])}{more}"


def _bare(text: str, limit: int) -> str:
    """Return a text in one line that cannot pass for two parts of it."""
    return flat(digest(text.replace("|", "¦"), limit)).strip()


def compressed(text: str, limit: int) -> str:
    """Return a text of lines in at most `limit` bytes: its ends, and lines from all of its length.

    Long lines are cut before short ones.
    """
    if size(text) <= limit:
        return text
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if not lines or limit < 3 * _LEAST:  # pieces of several would join what was said apart
        return _shorter(lines[-1], limit) if lines else ""
    lines = _thinned([*lines[: -1 : 1 + len(lines) // _WEIGHED], lines[-1]], limit)
    level = _level([size(line) for line in lines], limit - len(lines) + 1)
    return "\n".join(_shorter(line, level) for line in lines)


def _shorter(line: str, limit: int) -> str:
    """Return a line that fits; each voice in it keeps its name, and its share of the room."""
    if size(line) <= limit:
        return line
    parts = line.split(_BAR)
    level = _level([size(part) for part in parts], limit - len(_BAR) * (len(parts) - 1))
    if level < _LEAST // 2:
        return digest(parts[0], limit)  # rather one voice than words under another's name
    return _BAR.join(digest(part, level) for part in parts)


def _thinned(lines: Sequence[str], limit: int) -> Sequence[str]:
    """Return the ends, and as many lines between them as can still be useful.

    The least important lines are dropped, but never two neighbors at once: a summary that is
    thinned repeatedly keeps lines from all of its length, and more of the newer ones.
    """
    needed = sum(min(size(line), _LINE) + 1 for line in lines)
    most = max(len(lines) * limit // needed, 3)
    while len(lines) > most:
        gone: set[int] = set()
        for n in sorted(range(1, len(lines) - 1), key=lambda n: _line_rank(lines[n])):
            if len(lines) - len(gone) > most and n - 1 not in gone and n + 1 not in gone:
                gone.add(n)
        lines = [line for n, line in enumerate(lines) if n not in gone]
    return lines


def _line_rank(line: str) -> tuple[int, int]:
    """Return the sort key of a line: its weight, then a checksum of its beginning as tie-break."""
    return _weight(line), crc32(line[:_BEGINNING].encode("utf-8", "surrogatepass"))


def _level(sizes: Sequence[int], room: int) -> int:
    """Return the size to cut to so that all fit together; smaller ones leave their share."""
    left = len(sizes)
    for each in sorted(sizes):
        if each * left > room:
            return room // left
        room -= each
        left -= 1
    return max(sizes)
