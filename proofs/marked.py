"""A life with markers in everything that can be forgotten, and a search of files for them."""

import asyncio
import hashlib
import json
import random
import re
from base64 import b64encode
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

from keepthread import Compaction, Hybrid, Memory, Message, Scope, Session, Span, View
from keepthread.memory.blobs.types import BlobSizes
from keepthread.memory.facts.extraction import Extraction
from keepthread.models.tokens import Estimator
from keepthread.recall.words import words_of
from keepthread.testing.embeddings import ScriptedEmbedder
from keepthread.types import JSON, Attachment, Reply, Shortened, Tool

MARKERS: Final = 50
WEB: Final = "web:https://example.org/page"
LOOKUP: Final = "tool:lookup"
NOON: Final = 1_790_000_000.0
VIEWS: Final = {"chat": View(1000, Hybrid(step=200, verbatim_messages=4, brief_turns=5))}
SIZES: Final = BlobSizes(chunk=900, text=3000)
"""Longer texts of messages are blobs, in several chunks that a server does not compress."""
_SHORT, _CHINESE = 5, 7  # every fifth marker is under 16 bytes, every seventh is Chinese
_RARE: Final = range(0x9300, 0x9FA0)  # ideographs that no other text here has
_LEAST_STEM: Final = 6
_QUOTED: Final = re.compile(r"message (\d+), said[^\n]*\n> ([^\n]+)")


class Marker(NamedTuple):
    """A text that stands nowhere else."""

    text: str

    @property
    def stems(self) -> list[str]:
        """Return what an index would make of it, as far as that is telling."""
        return [word for word in words_of(self.text) if len(word.encode()) >= _LEAST_STEM]

    @property
    def forms(self) -> list[bytes]:
        """Return it in bytes: as it is, as an index would have it, and as a chunk of a blob."""
        return [*(form.encode() for form in {self.text, *self.stems}), *self.encoded]

    @property
    def encoded(self) -> Iterator[bytes]:
        """Yield what Base64 makes of it after 0, 1 or 2 other bytes, without what others share."""
        for before in range(3):
            data = b"\0" * before + self.text.encode()
            whole = b64encode(data[: len(data) // 3 * 3])
            yield whole[4:] if before else whole

    def is_in(self, data: bytes) -> bool:
        """Tell whether it stands in bytes, as it is or as an index would have it."""
        return any(form in data for form in self.forms)


def new_markers(rng: random.Random, count: int = MARKERS) -> list[Marker]:
    """Draw markers: long ones, some under 16 bytes, some Chinese."""
    found: list[Marker] = []
    for number in range(count):
        letters = "".join(rng.choices("bcdfghjklmnpqrstvwxz", k=8))
        if number % _SHORT == 1:
            found.append(Marker(f"zq{letters}"))
        elif number % _CHINESE == 2:
            found.append(Marker("".join(map(chr, rng.sample(_RARE, 4)))))
        else:
            # A short number would also stand in other texts of a long-lived process.
            rare_number = rng.randrange(10**15, 10**16)
            found.append(Marker(f"The zq{letters} of {rare_number} is mine"))
    return found


def _files(folders: Iterable[Path]) -> Iterator[tuple[str, bytes, bytes]]:
    """Yield the name of each file, its bytes without the zeros at its end, and their digest."""
    for folder in folders:
        for path in sorted(p for p in folder.rglob("*") if p.is_file()):
            data = b""
            with suppress(FileNotFoundError):  # a server may remove it at this moment
                data = path.read_bytes().rstrip(b"\0")
            yield str(path.relative_to(folder)), data, hashlib.sha256(data).digest()


def contents(folders: Iterable[Path]) -> frozenset[bytes]:
    """Return digests of all that is in files now: nothing of it has a marker that is made later."""
    return frozenset(digest for _, _, digest in _files(folders))


def in_files(
    folders: Iterable[Path], markers: Sequence[Marker], older: Set[bytes] = frozenset()
) -> dict[Marker, list[str]]:
    """Return which markers are in which files, as bytes or as stems.

    Most of what a server keeps is as `older` as the server, or is there twice: it is not searched.
    """
    found: dict[Marker, list[str]] = {}
    forms = {marker: marker.forms for marker in markers}
    searched: dict[bytes, list[Marker]] = {digest: [] for digest in older}
    for name, data, digest in _files(folders):
        if digest not in searched:
            searched[digest] = [m for m in markers if any(form in data for form in forms[m])]
        for marker in searched[digest]:
            found.setdefault(marker, []).append(name)
    return found


# --- who is asked: a summarizer and a model that repeat whatever they read, slowly ---


class Echo:
    """Proposes as facts, and as summaries, the words it reads."""

    name = "echo"

    def __init__(self, rng: random.Random | None = None) -> None:
        self._rng = rng

    async def _pause(self) -> None:
        if self._rng:
            await asyncio.sleep(self._rng.uniform(0, 0.02))

    async def shorten(self, text: str, *, limit: int) -> Shortened:
        await self._pause()
        return Shortened(text.encode()[:limit].decode("utf-8", "ignore"))

    async def complete(
        self,
        messages: Sequence[Message],
        *,
        system: str = "",
        tools: Sequence[Tool] = (),
        schema: Mapping[str, JSON] | None = None,
        max_tokens: int | None = None,
    ) -> Reply:
        await self._pause()
        facts = [
            {
                "source": int(number),
                "subject": "user",
                "attribute": "likes",
                "value": said[:60],
                "many": True,
                "ended": False,
                "text": said[:200],
            }
            for number, said in _QUOTED.findall(messages[-1].content)
        ]
        return Reply(content=json.dumps({"facts": facts}))

    def stream(self, *_: Any, **__: Any) -> Any:
        raise NotImplementedError


def settings(
    *, finds: bool, embeds: bool = False, rng: random.Random | None = None
) -> dict[str, Any]:
    """Return how the memory is opened: with everything on that leaves something behind."""
    echo = Echo(rng)
    found: dict[str, Any] = {
        "counter": Estimator(),
        "views": VIEWS,
        "recall": "owner",
        "compaction": Compaction(
            summarizer=echo,
            turns=2,
            batch_size=1,
            answer_bytes=120,
            digest_bytes=100,
            summary_bytes=600,
            compressed_bytes=500,
        ),
        "keep_why": 5,
    }
    if finds:
        found["extraction"] = Extraction(echo)
    if finds and embeds:
        found["embedder"] = ScriptedEmbedder(name="proof")
    return found


# --- what is said ---


class Life:
    """Says every marker somewhere, each time elsewhere."""

    def __init__(self, memory: Memory, markers: Iterable[Marker], *, finds: bool) -> None:
        self.memory = memory
        self.finds = finds
        self._markers: Iterator[Marker] = iter(markers)
        self._left = True

    def mark(self) -> str:
        """Return the next marker, or nothing of note once all are said."""
        for marker in self._markers:
            return marker.text
        self._left = False
        return "nothing of note"

    async def talk(self, id: str, *, owner: str, author: str | None = None) -> Session:
        """Say a few things in a session: its record, its turns, its tools."""
        session = await self.memory.session(
            id,
            owner=owner,
            title=self.mark(),
            tags=[self.mark()],
            system_prompt=self.mark(),
            meta={"note": self.mark()},
        )
        for number in range(4):
            await self.turn(session, number, author=author)
        await session.compact()
        return session

    async def turn(
        self, session: Session, number: int, *, author: str | None = None, marked: bool = True
    ) -> None:
        mark = self.mark if marked else lambda: "nothing of note"
        attachments = [Attachment(media_type="text/plain", name=mark())] if number == 1 else []
        asked = session.turn(f"{mark()}, please", author=author, attachments=attachments)
        async with asked as turn:
            await turn.context()
            if number == 0:
                said = mark()
                await turn.tool("look", {"for": mark()}, lambda **_: said, cache_turns=3)
            await turn.finish(f"{mark()}. " + "It is so. " * (20 * number))

    async def branch(self, session: Session, id: str) -> Session:
        """Fork a session, and go on in the fork."""
        fork = await session.fork(id=id)
        await self.turn(fork, 9, marked=False)
        return fork

    async def delegate(self, session: Session) -> None:
        """Send a sub-agent with a task and a snippet."""
        async with session.turn("Ask around") as turn:
            await turn.context()
            async with turn.delegate(self.mark(), snippet=self.mark()) as child:
                await child.context()
                await child.finish(self.mark())
            await turn.finish("Done")

    async def note(self, session: Session) -> None:
        await session.add_note("screen", self.mark())
        await session.pin((await session.messages(limit=1))[0].id)

    async def say_at_length(self, session: Session) -> None:
        """Say a text that is too long for the log, and attach bytes: both are blobs."""
        around = random.Random(session.id).randbytes(1500).hex()  # a server would compress words
        await session.append(Message(role="user", content=f"{around} {self.mark()} {around}"))
        blobs = self.memory.for_owner(session.owner).blobs
        stored = await blobs.put(f"{around[:700]} {self.mark()} {around[:700]}".encode())
        attached = Attachment(media_type="text/plain", uri=stored.uri)
        await session.append(Message(role="user", content="See there", attachments=[attached]))

    async def know(self, session: Session) -> None:
        """Know facts of messages, and have other records made of them on other shelves."""
        (first,) = await session.messages(limit=1)
        span = Span(session=session.key, first=1, last=1)
        store, owner = self.memory.store, session.owner
        if self.finds:
            facts = self.memory.for_owner(owner).facts
            await facts.remember(self.mark(), session=session.id, messages=[first.id])
            await facts.extract(session.id)
        for scope in (Scope(owner=owner), Scope()):
            value = {"text": self.mark()}
            await store.put(scope, "mine", session.key, value, made_of=[span])

    async def hear(self, session: Session, source: str, at: float = 0.0) -> None:
        """Hear from somewhere else."""
        await session.append(
            Message(role="user", content="Look there"),
            Message(role="tool", content=self.mark(), source=source, origin="web", created_at=at),
            Message(role="assistant", content=f"There it says {self.mark()}"),
        )

    @property
    def all_said(self) -> bool:
        """Tell whether there are more places than markers."""
        self.mark()
        return not self._left


if __name__ == "__main__":
    raise SystemExit("python -m proofs P9 tells it")
