"""Vectors: read on in pages, whole at any moment, and never waited for."""

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from keepthread import Memory, SessionInfo, SessionKey
from keepthread.errors import Unavailable
from keepthread.memory.search.vectors import Vectors
from keepthread.models.embedders import OnnxEmbedder
from keepthread.protocols import Searchable, Store
from keepthread.recall.chunks import parts_of, pieces_of
from keepthread.stores.postgres import PostgresStore
from keepthread.stores.ram import RamStore
from keepthread.stores.sqlite import SQLiteStore
from keepthread.testing.contract import user
from keepthread.testing.embeddings import ScriptedEmbedder
from keepthread.types import Embedding

LONG = "Never mind what they said about it last year. " * 60


@pytest.fixture(params=["ram", "sqlite", "postgres"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Store]:
    opened: Store
    match request.param:
        case "ram":
            opened = RamStore()
        case "sqlite":
            opened = await SQLiteStore.open(tmp_path / "s.db", durability="process")
        case _:
            opened = await PostgresStore.open(request.getfixturevalue("postgres").empty())
    yield opened
    await opened.close()


async def finder_of(store: Store) -> Searchable:
    finder = await store.finder()
    assert finder is not None
    return finder


async def talk(store: Store, id: str, *texts: str, owner: str = "ana") -> SessionKey:
    session = await store.get_session(id, owner)
    session = session or await store.put_session(SessionInfo(id=id, owner=owner))
    await store.append(session.key, [user(text, author="Ana") for text in texts])
    return session.key


async def expected(store: Store, embedder: ScriptedEmbedder) -> dict[int, Embedding]:
    """Return the vectors that there must be in the end."""
    texts: dict[int, str] = {}
    for session in await store.scan_sessions():
        for message in await store.read(session.key, limit=10_000):
            parts = parts_of(int(session.key), message)
            pieces = pieces_of(message)
            texts |= {p.place: f"Ana: {t}" for p, t in zip(parts, pieces, strict=True)}
    return dict(zip(texts, await embedder.embed(list(texts.values())), strict=True))


async def kept(store: Store, vectors: Vectors) -> dict[int, Embedding]:
    """Return the vectors that there are."""
    places = list(await expected(store, ScriptedEmbedder()))
    await vectors.expect(store)
    return await (await finder_of(store)).vectors(vectors.view, places)


def given(embedder: ScriptedEmbedder) -> list[str]:
    """Return all texts that were embedded."""
    return [text for call in embedder.calls for text in call]


# --- reading on ---


@pytest.mark.parametrize("by_token", [False, True], ids=["pooled", "by token"])
async def test_every_piece_gets_vectors_at_its_place_once(store: Store, by_token: bool) -> None:
    await talk(store, "a", "The cat sat", "", LONG, owner="ana")
    await talk(store, "b", *(f"And day {n} was fine" for n in range(150)), owner="ben")
    embedder = ScriptedEmbedder(by_token=by_token)
    vectors = Vectors(embedder)
    finder = await finder_of(store)
    assert await vectors.catch_up(store, finder, owner="nobody") == 0
    assert embedder.calls == []
    assert await vectors.catch_up(store, finder) == 0
    assert "Ana: The cat sat" in given(embedder)
    texts = len(given(embedder))
    assert texts > 153  # the long one in pieces
    assert await kept(store, vectors) == await expected(store, ScriptedEmbedder(by_token=by_token))

    assert await vectors.catch_up(store, finder) == 0
    await talk(store, "a", "One more")
    assert await vectors.catch_up(store, finder, owner="ben") == 0
    assert len(given(embedder)) == texts
    assert await vectors.catch_up(store, finder, owner="ana") == 0
    assert given(embedder)[texts:] == ["Ana: One more"]


async def test_short_sessions_share_a_call_of_the_embedder(store: Store) -> None:
    for n in range(40):
        await talk(store, f"s{n}", "Good morning")
    embedder = ScriptedEmbedder()
    assert await Vectors(embedder).catch_up(store, await finder_of(store)) == 0
    assert len(embedder.calls) == 1


async def test_a_part_of_the_work_can_be_done_and_is_told(store: Store) -> None:
    await talk(store, "a", *(f"Day {n}" for n in range(100)))
    await talk(store, "b", *(f"Night {n}" for n in range(100)))
    vectors, finder = Vectors(ScriptedEmbedder()), await finder_of(store)
    told: list[tuple[int, int]] = []

    async def go_on(limit: int | None = None) -> int:
        return await vectors.catch_up(
            store, finder, limit=limit, progress=lambda *so_far: told.append(so_far)
        )

    assert await go_on(70) == 130
    assert told == [(64, 200), (70, 200)]
    assert await go_on(0) == 130
    told.clear()
    assert await go_on() == 0
    assert told[-1] == (130, 130)
    assert await kept(store, vectors) == await expected(store, ScriptedEmbedder())


async def test_a_huge_message_gets_vectors_for_its_beginning(store: Store) -> None:
    key = await talk(store, "a", LONG * 40)
    (message,) = await store.read(key)
    assert len(parts_of(int(key), message)) > 64
    vectors = Vectors(ScriptedEmbedder())
    assert await vectors.catch_up(store, await finder_of(store)) == 0
    assert len(await kept(store, vectors)) == 64


async def test_broken_off_anywhere_it_goes_on_from_there(store: Store) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    for n in range(4):
        await talk(store, f"s{n}", *(f"Day {n} {m}" for m in range(chance.randrange(60, 200))))
    finder = await finder_of(store)
    tries, done = 0, False
    while not done:
        tries += 1
        vectors = Vectors(ScriptedEmbedder([0.002] * 100))
        work = asyncio.create_task(vectors.catch_up(store, finder))
        await asyncio.wait([work], timeout=chance.uniform(0, 0.01 * tries))
        done = work.done()
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)
    print(f"begun {tries} times")
    assert tries > 1
    assert await kept(store, vectors) == await expected(store, ScriptedEmbedder())


async def test_several_can_be_at_it(store: Store) -> None:
    for n in range(5):
        await talk(store, f"s{n}", *(f"Day {n} {m}" for m in range(100)))
    embedders = [ScriptedEmbedder([0.001 * n] * 100) for n in range(3)]
    finder = await finder_of(store)
    left = await asyncio.gather(*(Vectors(each).catch_up(store, finder) for each in embedders))
    assert left == [0, 0, 0]
    assert await kept(store, Vectors(embedders[0])) == await expected(store, ScriptedEmbedder())


class Held(ScriptedEmbedder):
    """Embeds when it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.begun, self.let_go = asyncio.Event(), asyncio.Event()

    async def embed(self, texts: Sequence[str]) -> Sequence[Embedding]:
        self.begun.set()
        await self.let_go.wait()
        return await super().embed(texts)


async def test_what_is_erased_or_deleted_meanwhile_gets_no_vectors(store: Store) -> None:
    key = await talk(store, "a", "The secret is 42", "Good morning")
    gone = await talk(store, "b", "Another secret")
    held, finder = Held(), await finder_of(store)
    vectors = Vectors(held)
    before = await expected(store, ScriptedEmbedder())
    work = asyncio.create_task(vectors.catch_up(store, finder))
    await held.begun.wait()
    await store.erase(key, [1])
    await store.delete_session(gone)
    held.let_go.set()
    assert await work == 0
    after = await finder.vectors(vectors.view, list(before))
    assert after == await expected(store, ScriptedEmbedder())
    assert len(after) == 1


async def test_an_embedder_that_fails_is_an_error_and_nothing_is_lost(store: Store) -> None:
    await talk(store, "a", *(f"Day {n}" for n in range(100)))
    embedder = ScriptedEmbedder([0, Unavailable("try later")])
    vectors, finder = Vectors(embedder), await finder_of(store)
    with pytest.raises(Unavailable, match="try later"):
        await vectors.catch_up(store, finder)
    assert len(await kept(store, vectors)) == 64
    assert await vectors.catch_up(store, finder) == 0
    assert len(given(embedder)) == 64 + 36 + 36


async def test_a_real_model_is_there_after_reopening(test_data: Path, tmp_path: Path) -> None:
    folder = test_data / "models" / "all-MiniLM-L6-v2-int8"
    first = Vectors(OnnxEmbedder(folder))
    async with await SQLiteStore.open(tmp_path / "s.db") as store:
        await talk(store, "a", "We adopted a kitten last May", "The meeting is on Tuesday")
        assert await first.catch_up(store, await finder_of(store)) == 0
        made = await kept(store, first)
    async with await SQLiteStore.open(tmp_path / "s.db") as store:
        again = Vectors(OnnxEmbedder(folder))
        assert await kept(store, again) == made
        assert {(each.dimensions, len(each.vectors) // 128) for each in made.values()} == {
            (128, len(each.ids)) for each in made.values()
        }
    asked = await first.asked("When did we get the cat?", within=5)
    assert asked is not None
    assert asked.ids


# --- one model after another ---


async def test_another_model_embeds_anew_and_the_old_vectors_go_when_it_is_done(
    store: Store,
) -> None:
    await talk(store, "a", *(f"Day {n}" for n in range(100)), owner="ana")
    await talk(store, "b", "Good night", owner="ben")
    finder = await finder_of(store)
    old, new = Vectors(ScriptedEmbedder(name="old")), Vectors(ScriptedEmbedder(name="new"))
    assert old.view != new.view
    await old.catch_up(store, finder)
    assert await new.catch_up(store, finder, owner="ana", limit=64) == 36
    assert await new.catch_up(store, finder, owner="ana") == 0
    assert (len(await kept(store, old)), len(await kept(store, new))) == (101, 100)
    assert await new.catch_up(store, finder) == 0
    assert (len(await kept(store, old)), len(await kept(store, new))) == (0, 101)

    # A restart with the same model finds everything done, one with the old begins anew.
    again = ScriptedEmbedder(name="new")
    assert await Vectors(again).catch_up(store, finder) == 0
    assert again.calls == []
    back = Vectors(ScriptedEmbedder(name="old"))
    assert await back.catch_up(store, finder) == 0
    assert (len(await kept(store, back)), len(await kept(store, new))) == (101, 0)


async def test_the_same_model_with_other_dimensions_embeds_everything_again(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    await talk(store, "a", *(f"Day {n}" for n in range(100)))
    finder = await finder_of(store)
    large = Vectors(ScriptedEmbedder(name="same", dimensions=64))
    small = Vectors(ScriptedEmbedder(name="same", dimensions=16))
    await large.catch_up(store, finder)
    assert await small.catch_up(store, finder) == 0  # nothing is new: it takes them for its own
    asked = await small.asked("Day 7", within=60)
    assert asked is not None
    assert asked.dimensions == 16
    assert await kept(store, small) == {}
    assert "returns vectors with 16 dimensions instead of 64" in caplog.text
    assert await small.catch_up(store, finder) == 0
    assert {each.dimensions for each in (await kept(store, small)).values()} == {16}
    assert (len(await kept(store, large)), len(await kept(store, small))) == (0, 100)

    # A message that is new shows it as well.
    other = Vectors(ScriptedEmbedder(name="same", dimensions=32))
    await talk(store, "b", "Good night")
    assert await other.catch_up(store, finder) == 0
    assert {each.dimensions for each in (await kept(store, other)).values()} == {32}
    assert (len(await kept(store, small)), len(await kept(store, other))) == (0, 101)


async def test_a_question_is_embedded_again_after_the_dimensions_changed() -> None:
    vectors = Vectors(ScriptedEmbedder(name="same", dimensions=64))
    first = await vectors.asked("Day 7", within=60)
    vectors.embedder = ScriptedEmbedder(name="same", dimensions=16)
    other = await vectors.asked("Day 8", within=60)
    again = await vectors.asked("Day 7", within=60)
    assert [each and each.dimensions for each in (first, other, again)] == [64, 16, 16]


@pytest.mark.parametrize("by_token", [False, True])
async def test_a_search_is_by_words_until_vectors_of_other_dimensions_are_made(
    tmp_path: Path, by_token: bool
) -> None:
    url = f"sqlite:///{tmp_path}/chat.db"
    orders: list[list[str]] = []
    for dimensions in (64, 48, 64):
        embedder = ScriptedEmbedder(name="same", dimensions=dimensions, by_token=by_token)
        async with Memory.open(url, embedder=embedder) as memory:
            session = await memory.session("s", owner="ana")
            if not orders:
                for text in ("My dog is called Rex", "The car is red", "We met on Tuesday"):
                    await session.add_message("user", text)
                await memory.index(owner="ana")
            hits = await memory.search("dog called", owner="ana")
            orders.append([hit.message.content for hit in hits][:1])
            await memory.idle()
            hits = await memory.search("dog called", owner="ana")
            orders.append([hit.message.content for hit in hits][:1])
    assert orders == [["My dog is called Rex"]] * 6


async def test_an_embedder_that_mixes_dimensions_is_refused(store: Store) -> None:
    class Mixed(ScriptedEmbedder):
        async def embed(self, texts: Sequence[str]) -> Sequence[Embedding]:
            return [Embedding(bytes(n + 3), n + 3) for n, _ in enumerate(texts)]

    await talk(store, "a", "one", "two")
    with pytest.raises(Unavailable, match="with 3 and 4 dimensions in one call"):
        await Vectors(Mixed()).catch_up(store, await finder_of(store))


async def test_two_processes_with_different_models_do_not_undo_each_others_work(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    await talk(store, "a", *(f"Day {n}" for n in range(100)))
    finder = await finder_of(store)
    first, later = ScriptedEmbedder(name="first"), ScriptedEmbedder(name="later")
    one, two = Vectors(first), Vectors(later)
    for _ in range(3):
        await one.catch_up(store, finder)
        await two.catch_up(store, finder)
    assert (len(given(first)), len(given(later))) == (100, 100)
    assert len(await kept(store, two)) == 100
    assert "another embedding model has replaced first: open the memory again" in caplog.text


async def test_the_later_of_two_models_wins_whichever_is_done_first(store: Store) -> None:
    await talk(store, "a", *(f"Day {n}" for n in range(100)))
    finder = await finder_of(store)
    one, two = Vectors(ScriptedEmbedder(name="first")), Vectors(ScriptedEmbedder(name="later"))
    assert await one.catch_up(store, finder, limit=50) == 50
    assert await two.catch_up(store, finder, limit=50) == 50
    assert await one.catch_up(store, finder) == 0
    assert (len(await kept(store, one)), len(await kept(store, two))) == (100, 50)
    assert await two.catch_up(store, finder) == 0
    assert (len(await kept(store, one)), len(await kept(store, two))) == (0, 100)
    assert await one.catch_up(store, finder) == 100

    # A model that was tried and given up leaves nothing behind when the other begins again.
    tried = Vectors(ScriptedEmbedder(name="tried"))
    assert await tried.catch_up(store, finder, limit=50) == 50
    again = Vectors(ScriptedEmbedder(name="later"))
    await talk(store, "a", "Another day")
    assert await again.catch_up(store, finder) == 0
    assert (len(await kept(store, tried)), len(await kept(store, again))) == (0, 101)


async def test_a_model_that_is_overtaken_in_the_midst_of_it_stops(store: Store) -> None:
    await talk(store, "a", *(f"Day {n}" for n in range(100)))
    held, finder = Held(), await finder_of(store)
    overtaken = Vectors(held)
    work = asyncio.create_task(overtaken.catch_up(store, finder))
    await held.begun.wait()
    later = Vectors(ScriptedEmbedder(name="later"))
    assert await later.catch_up(store, finder) == 0
    held.let_go.set()
    assert await work == 36
    assert (len(await kept(store, overtaken)), len(await kept(store, later))) == (0, 100)


async def test_tenants_have_vectors_of_their_own(store: Store) -> None:
    other = store.tenant("other")
    await talk(store, "a", "Good morning")
    await talk(other, "a", "Good night")
    embedder = ScriptedEmbedder()
    vectors = Vectors(embedder)
    assert await vectors.catch_up(store, await finder_of(store)) == 0
    assert given(embedder) == ["Ana: Good morning"]
    assert await vectors.catch_up(other, await finder_of(other)) == 0
    assert given(embedder) == ["Ana: Good morning", "Ana: Good night"]
    await Vectors(ScriptedEmbedder(name="new")).catch_up(store, await finder_of(store))
    assert len(await kept(other, vectors)) == 1
    assert len(await kept(store, vectors)) == 0


# --- questions ---


async def test_a_question_is_embedded_once() -> None:
    embedder = ScriptedEmbedder()
    vectors = Vectors(embedder)
    made = await vectors.asked("Where is the cat?")
    assert made == (await ScriptedEmbedder().embed(["Where is the cat?"]))[0]
    assert await vectors.asked(" Where is the cat?\n") == made
    assert embedder.calls == [("Where is the cat?",)]
    for n in range(300):
        await vectors.asked(f"Question {n}")
        await vectors.asked("Where is the cat?")
    assert len(embedder.calls) == 301
    await vectors.asked("Question 0")
    assert len(embedder.calls) == 302


async def test_a_question_without_text_has_no_vectors() -> None:
    embedder = ScriptedEmbedder(by_token=True)
    vectors = Vectors(embedder)
    assert await vectors.asked(" \n") is None
    assert embedder.calls == []
    assert await vectors.asked("…") is None  # not a word in it
    assert (await vectors.asked("long " * 100_000)) is not None
    assert len(embedder.calls[1][0]) == 4000


class HeldEmbedder(ScriptedEmbedder):
    """Works on each call until it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.let_go = asyncio.Event()

    async def embed(self, texts: Sequence[str]) -> Sequence[Embedding]:
        made = await super().embed(texts)
        await self.let_go.wait()
        return made


async def test_a_slow_model_is_not_waited_for_and_is_ready_the_next_time() -> None:
    embedder = HeldEmbedder()
    vectors = Vectors(embedder)
    # It works until it is let go: who waited for it would wait for ever.
    assert await vectors.asked("Where is the cat?", within=0.05) is None
    embedder.let_go.set()
    assert await vectors.asked("Where is the cat?", within=30) is not None
    assert embedder.calls == [("Where is the cat?",)]


async def test_what_nobody_waits_for_does_not_pile_up() -> None:
    embedder = ScriptedEmbedder([60] * 100)
    vectors = Vectors(embedder)
    asked = [await vectors.asked(f"Question {n}", within=0) for n in range(50)]
    await asyncio.sleep(0)
    assert asked == [None] * 50
    assert len(embedder.calls) == 8
    await vectors.close()
    assert len(asyncio.all_tasks()) == 1


async def test_a_model_that_fails_is_logged_once_and_is_no_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    script = [Unavailable("host is away: try later"), KeyError("private"), OSError(), 0, OSError()]
    vectors = Vectors(ScriptedEmbedder(script))
    assert [await vectors.asked("cat") for _ in range(3)] == [None] * 3
    assert [each.getMessage() for each in caplog.records] == [
        "scripted failed to embed a question: host is away: try later"
    ]
    assert await vectors.asked("cat")
    assert await vectors.asked("dog") is None
    assert caplog.records[-1].getMessage().endswith("OSError")
    assert len(caplog.records) == 2
