"""P9 beside the log: titles, files that chats keep aside, and the memory of the process."""

import random
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from keepthread import Memory, Message
from keepthread.apps.cli.chat.delivery import bring_home
from keepthread.apps.cli.chat.offline_files import OfflineFiles
from keepthread.memory.forgetting.follow import all_sessions
from keepthread.memory.forgetting.repeats import details_of
from keepthread.models.tokens import Estimator
from keepthread.protocols import Store
from keepthread.protocols.server import KeptAnswer, RequestId
from proofs.grounds import Ground
from proofs.marked import NOON, Marker, new_markers
from proofs.process_memory import Masked, held_by_objects

if TYPE_CHECKING:
    from proofs.p09_forget import Tally

_ASIDE: Final = NOON + 7_200
WISHES: Final[Sequence[dict[str, Any]]] = (
    {"session": "aside", "owner": "kim"},
    {"owner": "kim"},
    {"author": "lee", "owner": "kim"},
    {"since": _ASIDE, "until": _ASIDE + 60, "owner": "kim"},
)
"""What is forgotten while chats keep messages aside; each chat's messages match all of it."""


async def titles(store: Store, markers: Sequence[Marker]) -> list[str]:
    """Return the markers that a title, tag, prompt or meta of a session has."""
    infos = (await all_sessions(store)).values()
    texts = [detail.text for info in infos for detail in details_of(info)]
    return [marker.text for marker in markers if any(marker.text in text for text in texts)]


_LATE: Final = RequestId("default", "key", "late")


async def kept_answers(ground: Ground, rng: random.Random) -> tuple[list[Marker], bytes]:
    """Return markers in answers that a server keeps, and the token of a request in flight."""
    markers = new_markers(rng, 3)
    async with ground.opened() as memory:
        tables = memory.store.server_tables()
        for number, marker in enumerate(markers):
            request = RequestId("default", "key", f"request {number}")
            begun = await tables.begin_request(request, bytes(32), NOON)
            answer = KeptAnswer(200, (), marker.text.encode())
            assert await tables.end_request(request, begun.token, answer)
        token = (await tables.begin_request(_LATE, bytes(32), NOON)).token
    return markers, token


async def answer_late(ground: Ground, token: bytes, marker: Marker) -> None:
    """End the request that was in flight; its worker read the marker before it was forgotten."""
    async with ground.opened() as memory:
        answer = KeptAnswer(200, (), marker.text.encode())
        assert await memory.store.server_tables().end_request(_LATE, token, answer)


# --- files that chats keep aside ---


async def asides(ground: Ground, tally: "Tally", rng: random.Random) -> None:
    """Forget what ended chats and a running chat keep aside, by each selector."""
    gone: list[Marker] = []
    for number, wish in enumerate(WISHES):
        gone += await _one_aside(ground, tally, rng, wish, running=number % 2 == 1)
    tally.gone(ground, gone, "after files of chats were forgotten")


async def _one_aside(
    ground: Ground, tally: "Tally", rng: random.Random, wish: dict[str, Any], *, running: bool
) -> list[Marker]:
    markers = new_markers(rng, 3)
    files = OfflineFiles(ground.folders[0] / "asides", ground.url, "default")
    aside = files.new()
    said = [
        Message(role="user", content=m.text, author="lee", created_at=_ASIDE + 1) for m in markers
    ]
    async with _opened(aside.address) as there:
        session = await there.session("aside", owner="kim")
        stored = await session.append(*said)
        await session.update(title=markers[0].text, title_from=stored[0].id)
    if not running:
        aside.leave()
    tally.expect(len(ground.found(markers)) == len(markers), f"{wish}: nothing was kept aside")
    async with ground.opened() as memory:
        asked = {**wish, "rewrite": True}
        stayed = await bring_home(files, _opened, memory, _quiet, forget=asked)
        tally.expect(bool(stayed) == running, f"{wish}: {stayed} stayed")
        await memory.forget(**asked)
        if running:
            aside.leave()  # the chat ends, and the next one delivers its file
            await bring_home(files, _opened, memory, _quiet)
        back = await titles(memory.store, markers)
        tally.expect(not back, f"{wish}: {back} is in a title")
        kept = await memory.store.get_session("aside", "kim")
        assert kept is not None
        states = {m.state for m in await memory.store.read(kept.key)}
        shown = [info.id for info in await memory.admin.list_sessions() if info.id == kept.id]
        tally.expect(not (shown and _is_whole(wish)), f"{wish}: the session is listed")
        tally.expect(states == {"erased"}, f"{wish}: messages kept aside are {states}")
    tally.expect(not files.left(), f"{wish}: a file is left")
    tally.asides += 1
    return markers


def _is_whole(wish: Mapping[str, Any]) -> bool:
    return set(wish) <= {"session", "owner"}


def _opened(address: str) -> Any:
    return Memory.open(address, counter=Estimator())


def _quiet(_: str) -> None:
    """Say nothing."""


# --- the memory of the process ---


async def process(ground: Ground, tally: "Tally", rng: random.Random) -> None:
    """Forget, and search every object of this process while the memory stays open."""
    async with ground.opened(embeds=False) as memory:
        masked = await _used_and_forgotten(memory, ground, rng)
        left = held_by_objects(masked)
        tally.expect(not left, f"objects of the process hold {len(left)} of {len(masked)} markers")
        tally.process += len(masked)


async def _used_and_forgotten(memory: Memory, ground: Ground, rng: random.Random) -> list[Masked]:
    markers = new_markers(rng, 12)
    masked = [Masked.of(marker) for marker in markers]
    session = await memory.session(
        "process", owner="pat", title=markers[0].text, tags=[markers[1].text]
    )
    for marker in markers[2:]:
        async with session.turn(f"{marker.text} " * 9) as turn:
            await turn.context()
            await turn.tool("look", {"for": marker.text}, lambda **_: "x", cache_turns=3)
            await turn.finish("Noted. " * 20)
        if ground.finds:
            await memory.search(marker.text, owner="pat")
    await memory.idle()
    await memory.forget(session="process", owner="pat", answers=True, rewrite=True)
    return masked
