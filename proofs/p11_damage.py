"""P11: corruption is noticed and stays local.

A store is built and closed; then copies of its file are damaged, one at a time. A bit flipped in
a stored value must be named by `verify` as one row and cost no more than that row. A flip anywhere
else, a cut or a page of zeros must be noticed, or every read returns what was written.

Parts of blobs are damaged as well: reading the blob and `verify` must notice it, and storing the
bytes again must repair it (`proofs.blob_damage`). That part runs on servers as well.

The other way round, `verify` must find nothing in a healthy store while other processes write to it
(`proofs.busy`). That part runs on servers as well.
"""

import asyncio
import random
import sqlite3
import struct
import tempfile
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from keepthread.errors import Damaged, KeepthreadError, SessionGone, Unavailable, WrongFormat
from keepthread.stores.sqlite import SQLiteStore
from keepthread.types import (
    Attachment,
    Damage,
    Message,
    Native,
    Scope,
    SessionInfo,
    SessionKey,
    Span,
    ToolCall,
)
from proofs import Outcome, Progress, Proof
from proofs.blob_damage import damage_blobs
from proofs.busy import verify_beside_writers
from proofs.places import file_url, new_place
from proofs.processes import fresh_processes

TENANTS = ("default", "other")
SESSIONS = {"default": ("alpha", "beta", "gamma"), "other": ("alpha", "delta")}
MESSAGES = 50
PATIENCE = 60.0
PAGE = 4096
COLUMNS = {
    "messages": (
        "sid", "seq", "id", "role", "content", "extra", "tokens", "counter", "turn",
        "turns", "total", "created_at", "digest", "guard",
    ),
    "sessions": (
        "tenant", "id", "owner", "kind", "ready", "epoch", "created_at", "details", "guard",
        "active_at", "active_guard",
    ),
    "records": ("tenant", "sid", "owner", "kind", "key", "value", "made_of", "guard"),
}  # fmt: skip

WINDOWS = ("few", "gather")
LOGS = ("read", "tail", "ids", "seqs", *WINDOWS)

Where: TypeAlias = tuple[str, str, str]
"""A tenant, a session ('' where there is none) and a way of reading."""
Part: TypeAlias = Callable[[SQLiteStore], Awaitable[Any]]


def run(size: int, seed: int, progress: Progress) -> Outcome:
    figures: Counter[str] = Counter({"values: missed": 0, "anywhere: missed": 0})
    broken: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        whole = Path(folder) / "whole.db"
        asyncio.run(_build(whole, random.Random(seed)))
        for done, part in enumerate(("values", "anywhere")):
            for number, finding in _findings(whole, part, size, seed):
                figures[f"{part}: flips"] += 1
                figures.update(f"{part}: {seen}" for seen in finding.seen)
                if finding.wrong:
                    figures[f"{part}: missed"] += 1
                    broken += [f"{part} {number}: {finding.what}: {w}" for w in finding.wrong]
                progress(done * size + number + 1, 2 * size)
        busy = _beside_writers(file_url(Path(folder) / "busy.db"), size, seed, progress)
        blobs = _blobs(file_url(Path(folder) / "blobs.db"), size, seed)
    for outcome in (busy, blobs):
        figures.update(outcome.figures)
        broken += outcome.broken
    return Outcome(figures=dict(sorted(figures.items())), broken=tuple(broken))


def run_on(kind: str, size: int, seed: int, progress: Progress) -> Outcome:
    with new_place(kind) as place:
        blobs = _blobs(place.url, size, seed)
        place.empty()
        busy = _beside_writers(place.url, size, seed, progress, sessions=10)
    figures = {**blobs.figures, **busy.figures}
    return Outcome(figures=figures, broken=(*blobs.broken, *busy.broken))


def _blobs(url: str, size: int, seed: int) -> Outcome:
    figures, broken = asyncio.run(damage_blobs(url, max(5, size // 4), seed))
    return Outcome(figures=figures, broken=tuple(broken))


def _beside_writers(
    url: str, size: int, seed: int, progress: Progress, *, sessions: int = 200
) -> Outcome:
    times = max(5, size // 4)
    figures, broken = asyncio.run(
        verify_beside_writers(url, times, seed, progress, sessions=sessions)
    )
    return Outcome(figures=figures, broken=tuple(broken))


class Finding(NamedTuple):
    """What became of one flip: who saw it, and what should not have been."""

    what: str
    seen: tuple[str, ...] = ()
    wrong: tuple[str, ...] = ()


# --- the store that is damaged ---


async def _build(path: Path, rng: random.Random) -> None:
    async with await SQLiteStore.open(path, clock=lambda: 1.7e9 + rng.random()) as store:
        for tenant in TENANTS:
            behind = store.tenant(tenant)
            await behind.put(Scope(), "kind", "tenant's", {"of": tenant})
            for id in SESSIONS[tenant]:
                await _build_session(behind, id, rng)


async def _build_session(store: SQLiteStore, id: str, rng: random.Random) -> None:
    info = SessionInfo(
        id=id,
        owner=f"owner of {id}",
        title=f"title of {id}",
        tags=("a", "b"),
        kind="fork" if id == "beta" else "main",
        meta={"session": id},
    )
    key = (await store.put_session(info)).key
    for number in range(MESSAGES):
        await store.append(key, [_message(number, rng)])
    await store.erase(key, rng.sample(range(1, MESSAGES), 3))
    spans = (Span(session=key, first=1, last=9),)
    await store.put(Scope(session=key), "kind", "session's", [id], made_of=spans)
    await store.put(Scope(session=key), "kind", "session's too", None)
    await store.put(Scope(owner=info.owner), "kind", "owner's", id, made_of=spans)


def _message(number: int, rng: random.Random) -> Message:
    letters = "".join(
        rng.choices(
            "abcdefghij é\n\ud800",
            k=rng.choice((5, 30, 100, 200, 300, 5000) if number % 10 == 0 else (5, 30, 100)),
        )
    )
    call = ToolCall(id=f"call {number}", name="look", arguments='{"at": ')
    return Message(
        id=f"text id {number}" if rng.random() < 0.3 else "",
        role=rng.choice(("system", "user", "assistant", "tool")),
        content=f"message {number}: {letters}",
        tool_calls=(call, call) if rng.random() < 0.2 else (),
        attachments=(Attachment(media_type="image/png", uri="x:y"),) if rng.random() < 0.1 else (),
        native=Native(wire="anthropic", items=[{"n": number}]) if rng.random() < 0.1 else None,
        meta={"number": number, "half": 0.5} if rng.random() < 0.2 else {},
        tokens=rng.randrange(5000),
        counter=rng.choice(("", "o200k")),
    )


# --- everything the public methods show ---


@dataclass
class Picture:
    """What each reading of a store returned, or why it was refused; and what `verify` says."""

    shown: dict[Where, Any]
    damages: dict[str, list[Damage]]

    def rows(self, tenant: str) -> list[Damage]:
        """Return the rows that `verify` names; lines about the file name none."""
        return [d for d in self.damages[tenant] if not d.what.startswith("the file")]


class Keys(NamedTuple):
    """The keys and ids that readers of the damaged store still know."""

    sessions: dict[tuple[str, str], SessionKey]
    ids: dict[tuple[str, str], list[str]]


async def _keys(store: SQLiteStore) -> Keys:
    keys = Keys({}, {})
    for tenant in TENANTS:
        for session in await store.tenant(tenant).list_sessions(limit=100):
            place = tenant, session.id
            keys.sessions[place] = session.key
            log = await store.tenant(tenant).read(session.key, limit=1000)
            keys.ids[place] = [message.id for message in log]
    return keys


def _parts(keys: Keys) -> Iterator[tuple[Where, Part]]:
    """Yield every way to read the store that its users have."""
    for tenant in TENANTS:
        yield (tenant, "", "list"), lambda s: s.list_sessions(limit=100)
        yield (tenant, "", "scan"), lambda s: s.scan(Scope())
        yield (tenant, "", "get"), lambda s: s.get(Scope(), "kind", "tenant's")
    for (tenant, id), key in keys.sessions.items():
        ids, owner, shelf = keys.ids[tenant, id], f"owner of {id}", Scope(session=key)
        parts: dict[str, Part] = {
            "session": lambda s, id=id, owner=owner: s.get_session(id, owner),
            "owned": lambda s, owner=owner: s.list_sessions(owner=owner),
            "read": lambda s, key=key: s.read(key, limit=1000),
            "tail": lambda s, key=key: s.tail(key),
            "gather": lambda s, key=key: _gathered(s, key),
            "few": lambda s, key=key: s.tail(key, tokens=9000, limit=5),
            "ids": lambda s, key=key, ids=ids: s.find(key, ids=ids),
            "seqs": lambda s, key=key: s.find(key, seqs=range(1, MESSAGES + 1)),
            "scan": lambda s, shelf=shelf: s.scan(shelf),
            "get": lambda s, shelf=shelf: s.get(shelf, "kind", "session's"),
            "get too": lambda s, shelf=shelf: s.get(shelf, "kind", "session's too"),
            "owner": lambda s, owner=owner: s.get(Scope(owner=owner), "kind", "owner's"),
        }
        yield from (((tenant, id, name), part) for name, part in parts.items())


async def _gathered(store: SQLiteStore, key: SessionKey) -> list[Message]:
    return list((await store.gather(key, tokens=9000)).messages)


async def _look(store: SQLiteStore, keys: Keys) -> Picture:
    picture = Picture({}, {})
    for tenant in TENANTS:
        behind = store.tenant(tenant)
        picture.damages[tenant] = list((await behind.verify()).damages)
        parts = {where: part for where, part in _parts(keys) if where[0] == tenant}
        shown = await asyncio.gather(*(p(behind) for p in parts.values()), return_exceptions=True)
        for error in shown:
            if isinstance(error, BaseException) and not isinstance(error, KeepthreadError):
                raise error
        picture.shown |= zip(parts, shown, strict=True)
    return picture


# --- one flip after another, in a process that may die of it ---


def _findings(whole: Path, part: str, size: int, seed: int) -> Iterator[tuple[int, Finding]]:
    """Yield what became of each flip; a flip that ends or stops the interpreter is a finding."""
    processes = fresh_processes()
    number = 0
    while number < size:
        ours, theirs = processes.Pipe(duplex=False)
        args = (whole, part, range(number, size), seed, theirs)
        worker = processes.Process(target=_flip_all, args=args)
        worker.start()
        theirs.close()
        try:
            while number < size:
                if not ours.poll(PATIENCE):
                    raise TimeoutError
                yield number, ours.recv()
                number += 1
        except (EOFError, TimeoutError) as error:
            worker.kill()
            worker.join()
            how = "stopped" if isinstance(error, TimeoutError) else f"ended, {worker.exitcode}"
            yield number, Finding("a flip", wrong=(f"the interpreter {how}",))
            number += 1
        worker.join(PATIENCE)


def _flip_all(whole: Path, part: str, numbers: range, seed: int, report: Connection) -> None:
    asyncio.run(_Flipper(whole, report.send).run(part, numbers, seed))


async def flip_here(folder: Path, part: str, numbers: range, seed: int) -> list[Finding]:
    """Flip in this process, so that a test can plant a bug and see whether it is found."""
    whole = folder / "whole.db"
    await _build(whole, random.Random(seed))
    findings: list[Finding] = []
    await _Flipper(whole, findings.append).run(part, numbers, seed)
    return findings


class _Flipper:
    """Damages copies of one file, and looks."""

    def __init__(self, whole: Path, report: Callable[[Finding], object]) -> None:
        self.data = whole.read_bytes()
        self.report = report
        self.rows = list(_rows(whole))
        self.bodies = [row for row in self.rows if self.data.count(row.body) == 1]
        self.folder = whole.parent

    async def run(self, part: str, numbers: range, seed: int) -> None:
        path = self._copy("sound", self.data)
        async with await SQLiteStore.open(path) as store:
            self.keys = await _keys(store)
            self.sound = await _look(store, self.keys)
        self.places = {int(key): place for place, key in self.keys.sessions.items()}
        for number in numbers:
            rng = random.Random(f"{seed}/{part}/{number}")
            finding = await (self._value(rng, number) if part == "values" else self._anywhere(rng))
            self.report(finding)

    def _copy(self, name: str, data: bytes) -> Path:
        for old in self.folder.glob(f"{name}.db*"):
            old.unlink()
        path = self.folder / f"{name}.db"
        path.write_bytes(data)
        return path

    # --- a stored value ---

    async def _value(self, rng: random.Random, number: int) -> Finding:
        """Flip a bit of one value, by SQL or in the file; every column has its turn."""
        by_sql = number % 2 == 0
        how, flip = ("SQL", self._flip_by_sql) if by_sql else ("the file", self._flip_in_file)
        columns = [(table, column) for table in COLUMNS for column in COLUMNS[table]]
        turn = number // 2 % len(columns)
        for table, column in columns[turn:] + columns[:turn]:  # the first that has a bit to flip
            rows = [row for row in (self.rows if by_sql else self.bodies) if row.table == table]
            for row in rng.sample(rows, len(rows)):
                if path := flip(row, column, rng):
                    what = f"{table}.{column} of {'/'.join(self._place(row))} {row.seq} in {how}"
                    return await _guarded(what, self._check_value(path, row, column))
        raise AssertionError("there is nothing to flip")

    def _flip_by_sql(self, row: "Row", column: str, rng: random.Random) -> Path | None:
        flipped = _flipped(row.values[column], rng)
        if flipped is None:
            return None
        path = self._copy("flipped", self.data)
        new = "CAST(? AS TEXT)" if isinstance(row.values[column], str) else "?"
        with closing(sqlite3.connect(path)) as db:
            try:
                sql = f"UPDATE {row.table} SET {column} = {new} WHERE rowid = ?"
                db.execute(sql, (flipped, row.rowid))
            except sqlite3.IntegrityError:
                return None  # no such row can be in a file
            db.commit()
        return path

    def _flip_in_file(self, row: "Row", column: str, rng: random.Random) -> Path | None:
        start, length = row.spans[column]
        if not length:
            return None
        at = self.data.index(row.body) + start + rng.randrange(length)
        return self._copy("flipped", _with_flip(self.data, at, rng))

    async def _check_value(self, path: Path, row: "Row", column: str) -> Finding:
        row = row._replace(claimed=_claimed(path, row))
        async with await SQLiteStore.open(path, durability="process") as store:
            picture = await _look(store, self.keys)
            wrong = [*self._misnamed(picture, row, column), *self._spread(picture, row, column)]
            if row.table == "messages":
                wrong += await self._refused_append(store, row)
        if row.table == "messages" and column not in ("sid", "seq", "id") and not _noticed(picture):
            wrong.append("no read shows it as damaged")  # those three an index answers, rightly
        named = picture.rows(self._place(row)[0])
        seen = ["rows named"] * len(named)
        seen += ["noticed by verify"] if named else []
        seen += ["noticed by a read"] if _noticed(picture) else []
        return Finding("", tuple(seen), tuple(wrong))

    def _misnamed(self, picture: Picture, row: "Row", column: str) -> Iterator[str]:
        """Find rows that `verify` should not have named, or should have."""
        tenant, session = self._place(row)
        named = [(damage.session, damage.seq) for damage in picture.rows(tenant)]
        if row.table == "messages":
            right = named == [(session, row.seq)]
        else:  # the name may be what was damaged
            right = [seq for _, seq in named] == [0]
        if not right:
            yield f"verify names {named}"
        for other in TENANTS:
            # Whose a row is may be what was damaged: then everybody is told.
            most = column == "sid" or row.table != "messages"
            if other != tenant and len(picture.rows(other)) > most:
                yield f"verify of {other} names {picture.rows(other)}"

    def _spread(self, picture: Picture, row: "Row", column: str) -> Iterator[str]:
        """Find readings that lost more than the damaged row."""
        place = self._place(row)
        # A log whose last row is damaged is counted up to the last that is sound.
        at_the_end = row.seq == MESSAGES or row.claimed == MESSAGES + 1
        for where, shown in picture.shown.items():
            sound = self.sound.shown[where]
            if shown == sound:
                continue
            if row.table != "messages":
                if not _costs_itself(where, shown, sound, row, place):
                    yield f"{where} shows {_difference(shown, sound)}"
            elif where[:2] == place and where[2] in LOGS:
                yield from (f"{where[2]} {wrong}" for wrong in self._changed(where, shown, row))
            elif not at_the_end or _uncounted(shown) != _uncounted(sound):
                yield f"{where} shows {_difference(shown, sound)}"
            elif {s.tokens for s in _sessions(shown)} - self._possible_totals(place, sound):
                yield f"{where} counts {_difference(shown, sound)}"

    def _possible_totals(self, place: tuple[str, str], sound: Any) -> set[int]:
        """Return what sessions may be said to hold: as before, or all but the last message."""
        log = self.sound.shown[(*place, "read")]
        return {s.tokens for s in _sessions(sound)} | {log[-2].total}

    def _changed(self, where: Where, shown: Any, row: "Row") -> Iterator[str]:
        """Find what a log shows that was not written, the damaged message apart."""
        if isinstance(shown, KeepthreadError):
            yield f"is refused: {shown!r}"
            return
        written = {m.seq: m for m in self.sound.shown[(*where[:2], "read")]}
        yield from (
            f"shows {m!r:.300}" for m in shown if m.state != "damaged" and m != written.get(m.seq)
        )
        places = [m.seq for m in shown if m.state != "damaged" and m.seq != row.seq]
        wanted = [m.seq for m in self.sound.shown[where] if m.seq != row.seq]
        if where[2] in WINDOWS:  # what is damaged costs no tokens and makes room
            wanted = [seq for seq in written if seq != row.seq][-len(places) :]
        if places != wanted:
            yield f"lost {sorted(set(wanted) - set(places))}"
        at_the_end = row.seq == MESSAGES and len(shown) == MESSAGES - 1
        whole = where[2] in ("read", "tail") and not at_the_end
        if whole and row.seq not in [m.seq for m in shown]:
            yield f"shows nothing at {row.seq}"

    async def _refused_append(self, store: SQLiteStore, row: "Row") -> list[str]:
        """Append to the damaged session and find what that did to it."""
        place = self._place(row)
        behind, key = store.tenant(place[0]), self.keys.sessions[place]
        try:
            [said] = await behind.append(key, [Message(role="user", content="still here")])
            log = await behind.read(key, limit=1000)
            tail = await behind.tail(key, limit=1)
        except KeepthreadError as error:
            return [f"an append costs more: {error!r}"]
        before = [m for m in log if m.seq < said.seq]
        wrong = [f"read after an append {w}" for w in self._changed((*place, "read"), before, row)]
        # A damaged row that claims the position after the last cannot be told from a damaged
        # message there, so it keeps that position.
        after = [(m.seq, m.state) for m in log if m.seq > said.seq]
        if after and after != [(row.claimed, "damaged")]:
            wrong.append(f"an append at {said.seq} is followed by {after}")
        if said not in log or tail != log[-1:]:
            wrong.append(f"an append at {said.seq} is not read back")
        if said.seq > MESSAGES + 1 + (row.claimed == MESSAGES + 1):
            wrong.append(f"an append went to {said.seq}")
        named = sorted((d.session, d.seq) for d in (await behind.verify()).damages if d.seq)
        passed_over = range(MESSAGES + 1, said.seq)  # by the append, for the row is there
        if named not in ([], [(place[1], seq) for seq in (row.seq, *passed_over)]):
            wrong.append(f"verify names {named} after an append")
        return wrong

    def _place(self, row: "Row") -> tuple[str, str]:
        return self.places.get(row.sid, (row.values.get("tenant", ""), ""))

    # --- any byte ---

    async def _anywhere(self, rng: random.Random) -> Finding:
        """Flip any bit, cut the file or clear a page."""
        at = rng.randrange(len(self.data))
        how = rng.choices(("flip", "cut", "page"), (8, 1, 1))[0]
        if how == "flip":
            if rng.random() < 0.1:
                at %= 200  # the header and the root of the schema would hardly ever be met
            data = _with_flip(self.data, at, rng)
        elif how == "cut":
            data = self.data[: max(2, at)]  # to SQLite, less is an empty file, a new store
        else:
            start = at - at % PAGE
            data = self.data[:start] + bytes(PAGE) + self.data[start + PAGE :]
        what = f"{how} at {at}"
        return await _guarded(what, self._check_anywhere(self._copy("flipped", data)))

    async def _check_anywhere(self, path: Path) -> Finding:
        try:
            async with await SQLiteStore.open(path, durability="process", busy_timeout=5) as store:
                picture = await _look(store, self.keys)
        except (Damaged, WrongFormat, Unavailable):
            return Finding("", ("noticed on opening",))
        if _noticed(picture):
            return Finding("", ("noticed by a read",))
        same = picture.shown == self.sound.shown
        if any(picture.damages.values()):
            seen = ("noticed by verify alone", "noticed by verify alone, a read changed")
            return Finding("", seen[:1] if same else seen)
        if same:
            return Finding("", ("unaffected",))
        wrong = [
            f"{where} shows {_difference(shown, self.sound.shown[where])}"
            for where, shown in picture.shown.items()
            if shown != self.sound.shown[where]
        ]
        return Finding("", wrong=tuple(wrong))


async def _guarded(what: str, check: Awaitable[Finding]) -> Finding:
    """Return a finding under its name; an error that is not ours is one."""
    try:
        return (await check)._replace(what=what)
    except Exception as error:  # noqa: BLE001 - whatever it is, it should not have come through
        return Finding(what, wrong=(f"broke: {error!r:.300}",))


def _noticed(picture: Picture) -> bool:
    """Tell whether a reader was told of damage."""
    return any(
        isinstance(shown, (Damaged, Unavailable))
        or getattr(shown, "state", "") == "damaged"
        or (isinstance(shown, list) and any(getattr(s, "state", "") == "damaged" for s in shown))
        for shown in picture.shown.values()
    )


def _sessions(shown: Any) -> list[SessionInfo]:
    """Return the sessions of a listing or of a single answer."""
    return [
        s for s in (shown if isinstance(shown, list) else [shown]) if isinstance(s, SessionInfo)
    ]


def _uncounted(shown: Any) -> Any:
    """Return sessions without their counts, and all else as it is."""
    if isinstance(shown, list):
        return [_uncounted(one) for one in shown]
    if isinstance(shown, SessionInfo):
        return replace(shown, messages=0, turns=0, tokens=0)
    return shown


def _difference(shown: Any, sound: Any) -> str:
    """Return in few words how two readings differ."""
    if isinstance(shown, list) and isinstance(sound, list) and len(shown) == len(sound):
        shown, sound = next(pair for pair in zip(shown, sound, strict=True) if pair[0] != pair[1])
    if type(shown) is not type(sound) or not is_dataclass(shown):
        return f"{shown!r:.120}"
    values = {f.name: (getattr(shown, f.name), getattr(sound, f.name)) for f in fields(shown)}
    return ", ".join(f"{n} {a!r:.60} not {b!r:.60}" for n, (a, b) in values.items() if a != b)


def _costs_itself(where: Where, shown: Any, sound: Any, row: "Row", place: tuple[str, str]) -> bool:
    """Tell whether a reading that changed lost nothing but a damaged session or record.

    A damaged record is refused, and a session that no longer says whose it is is gone; one that is
    damaged has no system prompt to gather. A list shows all others, and of the damaged one nothing,
    or that it is damaged.
    """
    if isinstance(shown, KeepthreadError):
        if row.table == "records":
            return isinstance(shown, Damaged)
        if isinstance(shown, Damaged):
            return where == (*place, "gather")
        return isinstance(shown, SessionGone) and where[:2] == place and where[2] != "owned"
    if not isinstance(sound, list):
        return shown is None or getattr(shown, "state", "") == "damaged"
    left = [one for one in shown if getattr(one, "state", "") != "damaged"]
    return all(one in sound for one in left) and len(left) >= len(sound) - 1


# --- rows, as SQL and as the file have them ---


class Row(NamedTuple):
    """One row; `body` is its record in the file, without the header, and `spans` its columns."""

    table: str
    rowid: int
    sid: int
    seq: int
    values: dict[str, Any]
    body: bytes
    spans: dict[str, tuple[int, int]]
    claimed: int = 0
    """The position that a damaged message claims instead of its own; 0: none."""


def _rows(path: Path) -> Iterator[Row]:
    with closing(sqlite3.connect(path)) as db:
        for table, columns in COLUMNS.items():
            for rowid, *values in db.execute(f"SELECT rowid, {', '.join(columns)} FROM {table}"):
                named = dict(zip(columns, values, strict=True))
                body, spans = b"", {}
                for column, value in named.items():
                    data = _in_file(value)
                    spans[column] = len(body), len(data)
                    body += data
                sid = rowid if table == "sessions" else named["sid"]
                yield Row(table, rowid, sid, named.get("seq", 0), named, body, spans)


def _claimed(path: Path, row: Row) -> int:
    """Return the position at which a damaged file's index has a message, if that is another one."""
    if row.table != "messages":
        return 0
    with closing(sqlite3.connect(path)) as db:
        found = db.execute("SELECT seq FROM messages WHERE sid = ? ORDER BY seq DESC", (row.sid,))
        last = max((seq for (seq,) in found), default=0)
    return last if last > MESSAGES else 0


def _in_file(value: Any) -> bytes:
    """Return a value as a record of SQLite's holds it."""
    if value is None:
        return b""
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, float):
        return struct.pack(">d", value)
    if isinstance(value, int):
        if value in (0, 1):
            return b""  # the record's header says it all
        width = next(w for w in (1, 2, 3, 4, 6, 8) if -(1 << 8 * w - 1) <= value < 1 << 8 * w - 1)
        return value.to_bytes(width, "big", signed=True)
    return value


def _flipped(value: Any, rng: random.Random) -> Any:
    """Return a value of the same type with one bit of it flipped, or None where there is none."""
    if isinstance(value, int):
        data = value.to_bytes(8, "big", signed=True)
        return int.from_bytes(_with_flip(data, rng.randrange(8), rng), "big", signed=True)
    data = _in_file(value)
    if not data:
        return None
    data = _with_flip(data, rng.randrange(len(data)), rng)
    if isinstance(value, float):
        (flipped,) = struct.unpack(">d", data)
        return flipped if flipped == flipped else None  # SQLite keeps no NaN
    return data


def _with_flip(data: bytes, at: int, rng: random.Random) -> bytes:
    return data[:at] + bytes([data[at] ^ 1 << rng.randrange(8)]) + data[at + 1 :]


PROOF = Proof(
    name="P11",
    promise="corruption is noticed and stays local",
    unit="flips in stored values, as many anywhere in the file, a quarter beside writers",
    small=30,
    closing=200,
    long=10_000,
    run=run,
    on={kind: partial(run_on, kind) for kind in ("postgres", "redis", "cluster")},
)
