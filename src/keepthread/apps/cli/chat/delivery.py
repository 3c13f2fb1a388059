"""Bring the files of an outage into their store: each message once, in order.

A file that cannot be delivered is reported, kept and passed over: it must stop neither the chat
that finds it nor the files after it. Only a store that is away itself ends a delivery.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from time import time
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias, TypeVar, cast

from keepthread.apps.cli.chat.offline_files import OfflineFile, OfflineFiles
from keepthread.apps.cli.report_types import counted
from keepthread.context.blocks import is_answer
from keepthread.context.full_text import blobs_of
from keepthread.context.sources import RECALLED_FROM, WRITTEN_FROM
from keepthread.errors import (
    Damaged,
    KeepthreadError,
    MessageNotFound,
    NotFound,
    SessionExists,
    SessionGone,
    SessionNotFound,
    StoreClosed,
    Unavailable,
)
from keepthread.memory.blobs.blobs import Blobs
from keepthread.memory.memory import Memory, Opening
from keepthread.memory.owner import OwnerMemory
from keepthread.memory.session import Session
from keepthread.stores.kinds import DELEGATED
from keepthread.stores.validation import MAX_COUNT
from keepthread.types import JSON, Message, Scope, SessionInfo, SessionKey, Span

if TYPE_CHECKING:
    from keepthread.memory.forgetting.receipt import Receipt

T = TypeVar("T")

Open: TypeAlias = Callable[[str], Opening]
"""Opens a memory by its address."""
Notify: TypeAlias = Callable[[str], object]

_STORE_AWAY: Final = (Unavailable, StoreClosed, OSError)
_PAGE: Final = 500
_OF_AN_OWNER: Final = ("owner", "session", "message")


class Delivered(NamedTuple):
    """The result of a delivery."""

    messages: int = 0
    """How many messages were new to the store."""
    sessions: Sequence[SessionInfo] = ()
    """The sessions that the store now has completely."""
    failed: str = ""
    """Why others were not delivered; empty if all were."""


class _Undeliverable(Exception):
    """The file, or one of its sessions, cannot be delivered; the text says why."""


async def bring_home(
    offline_files: OfflineFiles,
    opened: Open,
    store: Memory,
    notify: Notify,
    *,
    forget: Mapping[str, Any] | None = None,
) -> list[Path]:
    """Deliver the files of chats that ended, and return those that stay.

    A file stays if a running chat owns it or it cannot be delivered. With `forget`, the process
    that delivers it later is asked to forget the messages so far; see `forget_as_asked`.
    """
    stayed: list[Path] = []
    request: dict[str, Any] | None = None
    if forget is not None:
        request = {**forget, "until": min(time(), forget.get("until") or MAX_COUNT)}
    for path in await asyncio.to_thread(offline_files.left):
        if await _brought_home(path, offline_files, opened, store, notify):
            continue
        if path.exists():
            stayed.append(path)
            if request is not None:
                await asyncio.to_thread(offline_files.request, path, request)
    return stayed


async def _brought_home(
    path: Path, offline_files: OfflineFiles, opened: Open, store: Memory, notify: Notify
) -> bool:
    """Deliver one file, and return whether it is gone."""
    offline_file = await asyncio.to_thread(offline_files.take, path)
    if offline_file is None:
        return False
    try:
        done = await deliver_file(offline_file, opened, store)
    except BaseException:
        offline_file.leave()
        raise
    if done.messages:
        words = ("message of an earlier chat was", "messages of an earlier chat were")
        notify(f"{counted(done.messages, *words)} delivered")
    if done.failed:
        offline_file.leave()
        notify(f"{path} cannot be delivered: {done.failed}; the earlier chat in it is kept there")
        return False
    offline_file.remove()
    return True


async def deliver_file(offline_file: OfflineFile, opened: Open, store: Memory) -> Delivered:
    """Deliver a file that this process owns; what is delivered of one that stays is removed."""
    try:
        memory = await opened(offline_file.address)
    except (KeepthreadError, OSError) as error:
        return Delivered(failed=_reason(error))
    async with memory:
        done = await deliver(memory, store, offline_file)
        if done.failed:
            # Else a session that is deleted from the store would be delivered again.
            for info in done.sessions:
                with suppress(KeepthreadError):
                    await memory.for_owner(info.owner).delete_session(info.id)
    return done


async def deliver(
    memory: Memory, store: Memory, offline_file: OfflineFile | None = None
) -> Delivered:
    """Bring what was said elsewhere into its store, each message once.

    Then forget what others asked for while the file was owned.
    """
    try:
        # First of all: nothing arrives that could not be forgotten again.
        requests = await asyncio.to_thread(_requests_of, offline_file)
        sessions = [info async for info in _sessions(memory)]
    except _Undeliverable as error:
        return Delivered(failed=str(error))
    count = 0
    whole: list[SessionInfo] = []
    stay: set[str] = set()  # ids alone: whose a damaged session is, is unknown
    failed: list[str] = []
    for info in sessions:
        if info.parent in stay:  # what it belongs to is not in the store
            stay.add(info.id)
            continue
        try:
            async for messages in _delivered(info, memory, store):
                count += messages
            whole.append(info)
        except _STORE_AWAY:
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is, later chats must start
            stay.add(info.id)
            failed.append(f"session {info.id}: {_reason(error)}")
    failed += [reason async for reason in _forgetting(requests, store)]
    if any(map(_is_of_sessions, requests)):
        for info in whole:
            await _hide_if_empty(store.for_owner(info.owner), info.id)
    return Delivered(count, whole, "; ".join(failed))


async def _forgetting(requests: Sequence[Mapping[str, Any]], store: Memory) -> AsyncIterator[str]:
    """Forget what was asked for, and yield why something could not be."""
    for request in requests:
        try:
            await forget_as_asked(store, request)
        except (SessionNotFound, MessageNotFound):
            pass  # what never reached this store needs no forgetting
        except _STORE_AWAY:
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is, later chats must start
            yield f"a request to forget: {_reason(error)}"


async def forget_as_asked(memory: Memory, request: Mapping[str, Any], **how: Any) -> "Receipt":
    """Forget what a request names; without an owner and a session, in the sessions of all owners.

    A request holds arguments of `Memory.forget`, and so does `how`.
    """
    if any(request.get(name) is not None for name in _OF_AN_OWNER):
        # Not by the owner's memory: only this can rewrite the tables of a server.
        return await memory.forget(**request, **how)
    given = {name: value for name, value in request.items() if name not in _OF_AN_OWNER}
    return await memory.admin.forget(**given, **how)


def _is_of_sessions(request: Mapping[str, Any]) -> bool:
    """Return whether a request was to forget whole sessions, before it got a time."""
    given = {name for name, value in request.items() if value not in (None, False)}
    return given <= {"session", "owner", "until", "answers", "rewrite"}


async def _hide_if_empty(store: OwnerMemory, id: str) -> None:
    """Forget a session as a whole of which a request left only tombstones."""
    with suppress(SessionNotFound, SessionGone):
        session = await store.get_session(id)
        if not session.info.messages:
            return
        async for turn in _turns(session):
            if any(message.state != "erased" for message in turn):
                return
        await store.forget(session=id)


async def _sessions(memory: Memory) -> AsyncIterator[SessionInfo]:
    """Yield all sessions in the order they were made: a parent before its children."""
    after: SessionKey | None = None
    while page := await _read(memory.store.scan_sessions(after=after, limit=_PAGE)):
        for info in page:
            if info.ready:
                yield info
        after = page[-1].key


def _requests_of(offline_file: OfflineFile | None) -> Sequence[Mapping[str, Any]]:
    try:
        return offline_file.requests() if offline_file else ()
    except (OSError, json.JSONDecodeError) as error:
        raise _Undeliverable(f"a request to forget cannot be read: {_reason(error)}") from error


async def _delivered(info: SessionInfo, memory: Memory, store: Memory) -> AsyncIterator[int]:
    """Deliver a session part by part, and yield how many messages of each were new."""
    if info.state == "damaged":
        raise Damaged("its record is damaged")
    here = await _read(memory.for_owner(info.owner).get_session(info.id))
    async for turn in _turns(here):  # first, so that no part of a damaged session arrives
        if any(message.state == "damaged" for message in turn):
            raise Damaged("some of its messages are damaged")
    if info.kind == "delegate":
        await _deliver_child(here, memory, store)
        return
    title = None if info.title_seq else info.title
    there = await store.for_owner(info.owner).session(
        info.id, system_prompt=info.system_prompt, title=title, tags=info.tags
    )
    users: dict[int, Message] = {}
    async for turn in _turns(here):
        live = [message for message in turn if message.state == "live"]
        users |= {message.turn: message for message in live if message.role == "user"}
        blobs = store.for_owner(info.owner).blobs
        new = await _bring_blobs(live, memory.for_owner(info.owner).blobs, blobs)
        yield await _bring(live, users.get(turn[0].turn), there, store)
        for digest in new:  # from now on, it goes with the last message that refers to it
            await blobs.delete(digest)
    await _entitle(here, there)


async def _deliver_child(here: Session, memory: Memory, store: Memory) -> None:
    """Copy the session of a delegated task, and link it to the turn it was made for."""
    info = here.info
    parent = await store.store.get_session(info.parent or "", info.owner)
    link = await _read(memory.store.get(Scope(session=here.key), DELEGATED, DELEGATED))
    if parent is None or link is None or not link.made_of:
        return  # nothing refers to it
    origin = link.made_of[0]
    asked = await _read(memory.store.find(origin.session, seqs=[origin.first]))
    found = await store.store.find(parent.key, ids=[message.id for message in asked])
    if not found or found[0].state != "live":  # what was made from it goes with it
        return
    number = {"turn": found[0].turn}
    meta = {**info.meta, "parent_turn": found[0].turn}
    new = replace(info, key=SessionKey(""), meta=meta, ready=True)
    with suppress(SessionExists):  # an earlier delivery broke off
        await store.store.put_session(new)
    there = await store.for_owner(info.owner).get_session(info.id)
    scope = Scope(session=there.key)
    span = Span(session=parent.key, first=found[0].seq, last=found[0].seq)
    value = {**cast(dict[str, JSON], link.value), **number}
    await store.store.put(scope, DELEGATED, DELEGATED, value, made_of=[span])
    async for turn in _turns(here):
        await store.store.load(there.key, turn)


async def _entitle(here: Session, there: Session) -> None:
    """Give a session the title that was made elsewhere from a message it has now."""
    if there.info.title or not here.info.title_seq:
        return
    made_from = await _read(here.messages(after=here.info.title_seq - 1, limit=1))
    with suppress(MessageNotFound):  # it is forgotten
        await there.update(title=here.info.title, title_from=made_from[0].id)


async def _turns(session: Session) -> AsyncIterator[list[Message]]:
    """Yield a session's messages turn by turn."""
    held: list[Message] = []
    after = 0
    while page := await _read(session.messages(after=after, limit=_PAGE)):
        for message in page:
            if held and message.turn != held[0].turn:
                yield held
                held = []
            held.append(message)
        after = page[-1].seq
    if held:
        yield held


async def _bring(
    turn: Sequence[Message], user: Message | None, session: Session, store: Memory
) -> int:
    """Append what the store does not have yet of a turn, and return how much that was."""
    ids = [message.id for message in turn]
    known = {m.id for m in await store.store.find(session.key, ids=ids)}
    new = [_bare(message) for message in turn if message.id not in known]
    if user is None:  # said before the first question
        if new:
            await session.append(*new)
        return len(new)
    rest = [message for message in new if message.id != user.id]
    if len(rest) < len(new):
        await session.append(_bare(user))
    if rest:
        await _continue(session, user, rest)
    return len(new)


async def _bring_blobs(turn: Sequence[Message], here: Blobs, there: Blobs) -> list[str]:
    """Store the blobs that messages refer to, and return the digests of those that were new."""
    new: list[str] = []
    for digest in dict.fromkeys(digest for message in turn for digest in blobs_of(message)):
        try:
            await there.info(digest)
        except NotFound:
            blob, data = await _read(here.info(digest)), await _read(here.read(digest))
            await there.put(data, media_type=blob.media_type, name=blob.name)
            new.append(digest)
    return new


async def _continue(session: Session, user: Message, rest: Sequence[Message]) -> None:
    """Append calls, results and the answer to the turn of a user message."""
    opened = session.turn(
        user.content, id=user.id, author=user.author, attachments=user.attachments
    )
    async with opened as turn:
        for answers, some in groupby(rest, key=is_answer):
            if answers:
                for answer in some:  # the store may have it under another id
                    await turn.finish(answer)
            else:
                await turn.append(*some)


def _bare(message: Message) -> Message:
    """Return a message as it was said; positions it names are those of the file it comes from."""
    meta = {k: v for k, v in message.meta.items() if k not in (WRITTEN_FROM, RECALLED_FROM)}
    return replace(message, meta=meta, seq=0, turn=0, total=0, digest=b"")


async def _read(reading: Awaitable[T]) -> T:
    """Read from the file; an error of the file must not look like one of the store."""
    try:
        return await reading
    except (KeepthreadError, OSError) as error:
        raise _Undeliverable(_reason(error)) from error


def _reason(error: Exception) -> str:
    text = " ".join(str(error).split())
    if isinstance(error, (KeepthreadError, _Undeliverable)) and text:
        return text
    return f"{type(error).__name__}: {text}"
