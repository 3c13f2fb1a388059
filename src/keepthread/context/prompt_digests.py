"""The sources of the messages of a prompt, and keyed digests of them.

A digest says whether a message that was rebuilt is exactly the one that was shown. Its key depends
on the keys of everything that the message was made of: the session's own, the owner's for facts,
and those of the sessions that something was recalled from. Once one of them is dropped, the digest
says nothing about the text.
"""

import hmac
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any, Final, NamedTuple

from keepthread.context.blocks import NO_RESULT
from keepthread.context.truncate import how_cut
from keepthread.protocols import History, Material, Strategy
from keepthread.references import SIZE, Reference, References
from keepthread.types import Message, Selection

MOST_MESSAGES: Final = 8192
"""Messages of a prompt at most of which references are kept."""
_ALGORITHM: Final = "sha256"
_LONGEST: Final = 200
"""Characters of a description of a strategy."""
_LONGEST_SETTING: Final = 16
"""Characters of a text in it."""


class DigestKeyring(NamedTuple):
    """The keys of the digests of one explanation; a key that does not exist is empty."""

    session: bytes
    facts: bytes = b""
    others: Mapping[str, bytes] = {}
    """Those of the sessions that something was recalled from, by their ids."""

    @property
    def name(self) -> str:
        """Return what identifies the session's key, and says nothing about it."""
        return _digest(self.session, b"name").hex()[:SIZE]

    def of(self, reference: Reference) -> bytes:
        """Return the key for one message; empty if a part of it does not exist."""
        ids = sorted({chunk.session for chunk in reference.chunks} - {""})
        more = [self.others.get(id, b"") for id in ids]
        more += [self.facts] if reference.facts else []
        if not all(more):
            return b""
        return _digest(self.session, b"".join(more)) if more else self.session


def digest_of(message: Message, reference: Reference, keys: DigestKeyring) -> bytes:
    """Return the keyed digest of a message; empty without its key."""
    key = keys.of(reference)
    return _digest(key, _canonical(message)) if key else b""


def digest_of_system(prompt: str, keys: DigestKeyring) -> bytes:
    """Return the keyed digest of a system prompt; empty without one."""
    data = b"system\0" + prompt.encode("utf-8", "surrogatepass")
    return _digest(keys.session, data) if prompt and keys.session else b""


def digest_of_prompt(system: bytes, messages: Sequence[bytes], keys: DigestKeyring) -> str:
    """Return the keyed digest of a prompt, made of the digests in it; empty if one is missing."""
    if not keys.session or not all(messages):
        return ""
    return _digest(keys.session, b"prompt\0" + b"\0".join([system, *messages])).hex()


def short_form(digest: bytes) -> str:
    """Return as much of a digest as is kept of one message."""
    return digest.hex()[:SIZE]


def sealed(references: References, selection: Selection, keys: DigestKeyring) -> References:
    """Return references with the digests of the messages and of the prompt."""
    made = references.messages
    found = [digest_of(m, r, keys) for m, r in zip(selection.messages, made, strict=True)]
    system = digest_of_system(selection.system, keys)
    return references._replace(
        system=short_form(system),
        messages=[r._replace(digest=short_form(d)) for r, d in zip(made, found, strict=True)],
        key=keys.name,
        digest=digest_of_prompt(system, found, keys),
    )


def _digest(key: bytes, data: bytes) -> bytes:
    return hmac.digest(key, data, _ALGORITHM)


def _canonical(message: Message) -> bytes:
    """Return everything of a message that a rendering may depend on."""
    native = message.native
    value: list[Any] = [
        message.role,
        message.content,
        [[call.id, call.name, call.arguments] for call in message.tool_calls],
        message.tool_call_id,
        message.name,
        message.author,
        message.origin,
        message.source,
        [[each.media_type, each.name, each.uri] for each in message.attachments],
        native and [native.wire, list(native.items), native.provider],
        dict(message.meta),
        message.id,
        bool(message.seq),
    ]
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


# --- what a prompt was made of ---


def references_of(
    selection: Selection,
    material: Material,
    past: History,
    *,
    session: str,
    session_id: str,
    strategy: Strategy,
    counter: str,
) -> References | None:
    """Return what each message of a selection was made of, without digests.

    None if there are more messages than references are kept of.
    """
    if len(selection.messages) > MOST_MESSAGES:
        return None
    finder = _Finder(selection, material, past)
    messages = [_from_here(finder.reference(n), session_id) for n in range(len(finder.messages))]
    newest = material.newest_user
    return References(
        session=session,
        strategy=described(strategy),
        counter=counter,
        is_text=material.is_text,
        delimiter=material.delimiter,
        asked=newest.seq if newest else material.passed,
        system="",
        messages=messages,
        key="",
        digest="",
    )


def _from_here(reference: Reference, id: str) -> Reference:
    """Return a reference that does not name its own session."""
    if not reference.chunks:
        return reference
    here = [c._replace(session="") if c.session == id else c for c in reference.chunks]
    return reference._replace(chunks=tuple(here))


def described(strategy: Strategy) -> str:
    """Return a strategy's name, with the settings that are not its defaults."""
    name = type(strategy).__name__
    if not is_dataclass(strategy):
        return name
    settings: list[str] = []
    for each in fields(strategy):
        value = getattr(strategy, each.name)
        if value != each.default:
            simple = value is None or isinstance(value, bool | int | float)
            simple = simple or (isinstance(value, str) and len(value) <= _LONGEST_SETTING)
            settings.append(f"{each.name}={repr(value) if simple else '…'}")
    return f"{name}({', '.join(settings)})"[:_LONGEST]


class _Finder:
    """Finds out how each message of one selection was made."""

    def __init__(self, selection: Selection, material: Material, past: History) -> None:
        self.messages = selection.messages
        self._made = {id(message): reference for message, reference in selection.made}
        self._asked = {id(each.call): each for each in material.tool_results}
        alone = [*material.pins, *(message for message, _ in past.important)]
        self._alone = {id(message) for message in alone}
        self._whole = {message.seq: message for message in _of_log(material)}

    def reference(self, number: int) -> Reference:
        """Return what a message was made of."""
        message = self.messages[number]
        if (whole := self._whole.get(message.seq)) is message:
            return Reference("whole", (message.seq,))
        if (made := self._made.get(id(message))) is not None:
            return made
        if (cached := self._asked.get(id(message))) is not None:
            return Reference("cached_call", (cached.asked, cached.result.seq))
        if id(message) in self._alone:
            return Reference("alone", (message.seq,))
        if not message.seq:
            return self._stand_in(number) or Reference("other")
        if whole is None:
            return Reference("other", (message.seq,))
        if replace(message, tokens=whole.tokens, counter=whole.counter) == whole:
            return Reference("whole", (message.seq,))
        return how_cut(whole, message) or Reference("other", (message.seq,))

    def _stand_in(self, number: int) -> Reference | None:
        """Return the call that a stand-in answers, if it is one."""
        message = self.messages[number]
        if message.role != "tool" or message.content != NO_RESULT:
            return None
        start = next((n for n in range(number, -1, -1) if self.messages[n].tool_calls), -1)
        calls = self.messages[start].tool_calls if start >= 0 else ()
        index = number - start - 1
        is_its = 0 <= index < len(calls) and calls[index].id == message.tool_call_id
        seq = self.messages[start].seq
        return Reference("no_result", (seq,), number=index) if is_its and seq else None


def _of_log(material: Material) -> Iterator[Message]:
    yield from material.system_messages
    yield from material.notes
    yield from (each.result for each in material.tool_results)
    if material.newest_user is not None:
        yield material.newest_user
    yield from material.messages
