"""The finder's contract: what every backend that finds words must do, as tests for its author.

Subclass `FinderContract`, say how to open your store, and let pytest collect the class. To see the
values of a failed assertion, call `pytest.register_assert_rewrite` with this module's name.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any, Final, TypeVar

from keepthread.errors import InvalidInput, SessionGone, Stale
from keepthread.protocols import Searchable, Store
from keepthread.recall.chunks import parts_of, segments_of
from keepthread.recall.positions import VIEW, length_of, part_of, place, seq_of
from keepthread.recall.words import words_of
from keepthread.testing import ManualClock
from keepthread.testing.contract import assistant, new_session, refused, said, span, user
from keepthread.types import (
    Embedding,
    MessageFilter,
    Part,
    Scope,
    Segment,
    SessionKey,
    Unread,
)

F = TypeVar("F", bound="FinderContract")

VECTORS: Final = "vectors:test"
NEVER: Final = Unread(SessionKey("0"), 0, 1, 0)
_MANY: Final = 1000
_HOUR: Final = 3600.0

HOSTILE: Final = (
    "",
    " ",
    '"',
    '""',
    "'; DROP TABLE messages; --",
    "tea OR coffee",
    "tea*",
    "NEAR(tea coffee)",
    "text:tea",
    "^tea",
    "-tea",
    "tea:*A",
    "tea & coffee",
    "!tea",
    "tea\\",
    "%",
    "\0",
    "tea\0",
    "\ud800",
    "{}",
    "1xtea",
    "x" * 100_000,
    "tea " * 25_000,
)
"""Words that no analyzer makes, but a caller may ask for."""


def on_finder(
    test: Callable[[F, Store, Searchable], Awaitable[None]],
) -> Callable[[F, Path], None]:
    """Run a test on a newly opened store and its finder."""

    def run(self: F, tmp_path: Path) -> None:
        async def session() -> None:
            self.clock = ManualClock()
            store = await self.open_store(tmp_path, clock=self.clock)
            try:
                finder = await store.finder()
                assert finder is not None
                await test(self, store, finder)
            finally:
                await store.close()

        asyncio.run(session())

    run.__name__, run.__doc__ = test.__name__, test.__doc__
    return run


async def read_on(store: Store, view: str = VIEW, *, limit: int = 100, **scope: Any) -> None:
    """Index what was written since, some messages at a time."""
    finder = await store.finder()
    assert finder is not None
    for read in await finder.unread(view, **scope):
        while read.until < read.last:
            messages = await store.read(read.session, after=read.until, limit=limit)
            until = messages[-1].seq
            parts = [p for message in messages for p in parts_of(int(read.session), message)]
            segments = segments_of(read, messages, parts)
            await finder.index(view, read, until, parts, segments)
            last = segments[-1] if segments else read.segment
            read = read._replace(until=until, segment=last)  # noqa: PLW2901


async def embed(store: Store, *, ids: bool = False, view: str = VECTORS) -> dict[int, Embedding]:
    """Give every piece a vector of its own, or one for each of two tokens."""
    finder = await store.finder()
    assert finder is not None
    made: dict[int, Embedding] = {}
    for read in await finder.unread(view):
        messages = await store.read(read.session, after=read.until, limit=_MANY)
        parts = [p for message in messages for p in parts_of(int(read.session), message)]
        new = {p.place: vector(seq_of(p.place), ids=ids) for p in parts}
        await finder.put_vectors(view, read, read.last, new)
        made |= new
    return made


def vector(angle: int, *, ids: bool = False) -> Embedding:
    """Return a vector of three dimensions; larger angles are farther from 0."""
    one = bytes([127 - angle, angle, 0])
    return Embedding(one * 2, 3, (7, 70_000)) if ids else Embedding(one, 3)


async def where(finder: Searchable, text: str, **scope: Any) -> list[list[int]]:
    """Return the positions of each word in a text."""
    words = words_of(text)
    found = await finder.places(VIEW, words, **scope)
    return [[seq_of(place) for place in found.places[word]] for word in words]


async def talk(store: Store, *texts: str, id: str = "s", **fields: Any) -> SessionKey:
    """Make a session in which a user says these."""
    key = await new_session(store, id, **fields)
    await store.append(key, [user(text) for text in texts])
    return key


def hand_made(session: SessionKey, seq: int, *words: str) -> Part:
    """Return a piece with words that no analyzer made."""
    return Part(place(int(session), seq, 0, len(words)), words, 5, 0)


def first_place(session: SessionKey, seq: int) -> int:
    """Return the lowest place of a message."""
    return place(int(session), seq, 0, 0)


class FinderContract:
    """Every promise of `Searchable`, tested; a subclass must only define `open_store`."""

    clock: ManualClock

    async def open_store(self, folder: Path, *, clock: Callable[[], float]) -> Store:
        """Open an empty store whose clock is `clock`."""
        raise NotImplementedError

    # --- reading on ---

    @on_finder
    async def test_what_was_never_read_is_unread_from_the_start(
        self, store: Store, finder: Searchable
    ) -> None:
        key = await talk(store, "tea", "coffee", owner="ana")
        await new_session(store, "empty", owner="ana")
        assert await finder.unread(VIEW) == [Unread(key, 0, 2, 0)]
        assert await finder.unread(VIEW, owner="ana") == [Unread(key, 0, 2, 0)]
        assert await finder.unread(VIEW, owner="bea") == []
        assert await finder.unread(VIEW, session=key) == [Unread(key, 0, 2, 0)]
        assert await finder.unread(VIEW, owner="bea", session=key) == []

    @on_finder
    async def test_a_view_remembers_how_far_it_has_read(
        self, store: Store, finder: Searchable
    ) -> None:
        key = await talk(store, "tea", "coffee")
        await read_on(store)
        assert await finder.unread(VIEW) == []
        assert [(u.until, u.last) for u in await finder.unread(VECTORS)] == [(0, 2)]
        await store.append(key, [user("water")])
        [read] = await finder.unread(VIEW)
        assert (read.session, read.until, read.last, read.epoch) == (key, 2, 3, 0)

    @on_finder
    async def test_words_are_found_where_they_stand_and_the_newest_at_once(
        self, store: Store, finder: Searchable
    ) -> None:
        key = await talk(store, "I drink tea", "coffee is not tea, tea is tea")
        await read_on(store)
        await store.append(key, [user("more Teas")])
        await read_on(store)
        messages = await store.read(key)
        expected = [p.place for m in messages for p in parts_of(int(key), m)]
        found = await finder.places(VIEW, ["tea", "tea²", "tea³", "milk"], session=key)
        assert {word: list(places) for word, places in found.places.items()} == {
            "tea": expected,
            "tea²": expected[1:2],
            "tea³": expected[1:2],
            "milk": [],
        }

    @on_finder
    async def test_words_without_spaces_between_them_are_found(
        self, store: Store, finder: Searchable
    ) -> None:
        await talk(store, "我明天去北京", "東京の天気", "สวัสดี", "Привет, мир", "naïve café")
        await read_on(store)
        assert await where(finder, "北京") == [[1]]
        assert await where(finder, "天気") == [[2]]
        assert await where(finder, "мир Cafe naive") == [[4], [5], [5]]

    @on_finder
    async def test_of_a_frequent_word_the_last_places_are_given(
        self, store: Store, finder: Searchable
    ) -> None:
        first = await talk(store, "tea", "tea", "tea", id="a", owner="ana")
        second = await talk(store, "tea", "tea", id="b", owner="bea")
        await read_on(store)
        found = await finder.places(VIEW, ["tea"], max_places=4)
        assert [seq_of(place) for place in found.places["tea"]] == [2, 3, 1, 2]
        assert await where(finder, "tea", max_places=2, session=first) == [[2, 3]]
        assert await where(finder, "tea", max_places=1, owner="bea") == [[2]]
        assert await where(finder, "tea", max_places=0, session=second) == [[]]

    @on_finder
    async def test_of_a_frequent_word_earlier_places_beside_a_rarer_one_are_given_too(
        self, store: Store, finder: Searchable
    ) -> None:
        texts = ("tea milk", "tea", "milk", "tea oat milk", "tea", "tea")
        await talk(store, *texts, owner="ana")
        await talk(store, "tea oat", id="b", owner="bea")
        await read_on(store)
        words = ["tea", "tea²", "milk", "oat", "rye"]
        for most, earlier in ((4, [1]), (3, []), (2, [4]), (1, [])):
            found = await finder.places(VIEW, words, owner="ana", max_places=most)
            older = {word: [seq_of(p) for p in each] for word, each in found.older.items() if each}
            assert older == ({"tea": earlier} if earlier else {}), most
        found = await finder.places(VIEW, words, owner="ana")
        assert not any(found.older.values())

    @on_finder
    async def test_a_filter_is_applied_before_the_last_places_are_taken(
        self, store: Store, finder: Searchable
    ) -> None:
        key = await new_session(store, "s", owner="ana")
        # An import may bring any time in any order; the first hours are one segment.
        hours = [10, 11, 12, 8, 13, 300, 301, 302, 5, 6]
        made = [assistant, user]
        await store.append(
            key, [made[n % 2]("tea tea", created_at=at * _HOUR) for n, at in enumerate(hours)]
        )
        other = await new_session(store, "t", owner="bea")
        await store.append(other, [user("tea", created_at=11 * _HOUR)])
        await read_on(store)
        filters = (
            MessageFilter(until=12 * _HOUR),
            MessageFilter(until=9 * _HOUR),
            MessageFilter(since=300 * _HOUR),
            MessageFilter(301 * _HOUR, 302 * _HOUR),
            MessageFilter(5 * _HOUR, 11 * _HOUR, ("user",)),
            MessageFilter(roles=("assistant", "tool")),
            MessageFilter(roles=("system",)),
            MessageFilter(since=400 * _HOUR),
        )
        scopes: list[dict[str, Any]] = [{"session": key}, {"owner": "ana"}]
        log = await store.read(key, limit=_MANY)
        for only, scope, most in product(filters, scopes, (0, 1, 3, 5000)):
            seqs = [message.seq for message in log if only.admits(message)]
            last = seqs[max(0, len(seqs) - most) :]
            found = await finder.places(VIEW, ["tea", "tea²"], only=only, max_places=most, **scope)
            places = [[seq_of(p) for p in found.places[word]] for word in ("tea", "tea²")]
            assert places == [last, last]
            assert {segment.session for segment in found.segments} == {key}
        everywhere = await finder.places(VIEW, ["tea"], only=MessageFilter(until=12 * _HOUR))
        assert len(everywhere.places["tea"]) == 6
        with refused(SessionGone):
            await finder.places(VIEW, ["tea"], session=NEVER.session, only=MessageFilter(since=1.0))

    @on_finder
    async def test_a_filter_is_applied_before_the_nearest_are_taken(
        self, store: Store, finder: Searchable
    ) -> None:
        key = await new_session(store, "s", owner="ana")
        texts = [user(f"tea {n}", created_at=n * _HOUR) for n in range(1, 6)]
        await store.append(key, [*texts, assistant("no", created_at=6 * _HOUR)])
        await embed(store)
        near = vector(0)
        scopes: list[dict[str, Any]] = [{}, {"owner": "ana"}, {"session": key}]
        for only, seqs in (
            (MessageFilter(since=3 * _HOUR), [3, 4]),
            (MessageFilter(since=3 * _HOUR, until=4 * _HOUR), [3]),
            (MessageFilter(roles=("assistant",)), [6]),
            (MessageFilter(roles=("tool",)), []),
        ):
            for scope in scopes:
                found = await finder.nearest(VECTORS, near, only=only, limit=2, **scope)
                assert [seq_of(place) for place in found] == seqs

    @on_finder
    async def test_segments_grow_and_begin(self, store: Store, finder: Searchable) -> None:
        key = await talk(store, "tea is fine")
        began = self.clock.now
        await read_on(store)
        self.clock.advance(_HOUR)
        await store.append(key, [assistant("it is")])
        await read_on(store)
        [segment] = (await finder.places(VIEW, [], session=key)).segments
        assert segment == Segment(key, 1, began, self.clock.now, 2, 5, 1)
        self.clock.advance(24 * _HOUR)
        await store.append(key, [user("good morning")])
        [read] = await finder.unread(VIEW)
        assert read.segment == segment
        await read_on(store)
        last = Segment(key, 3, self.clock.now, self.clock.now, 1, 2, 0)
        assert list((await finder.places(VIEW, [])).segments) == [segment, last]

    @on_finder
    async def test_another_way_of_telling_words_apart_reads_all_anew(
        self, store: Store, finder: Searchable
    ) -> None:
        key = await talk(store, "tea", "coffee")
        read = Unread(key, 0, 2, 0)
        segment = Segment(key, 1, 1.0, 2.0, 1, 1, 0)
        await finder.index("words:old", read, 1, [hand_made(key, 1, "old")], [segment])
        assert await finder.unread(VIEW) == [read]
        assert await where(finder, "old") == [[]]
        await read_on(store)
        assert await where(finder, "tea coffee old") == [[1], [2], []]
        assert [s.parts for s in (await finder.places(VIEW, [])).segments] == [2]

    @on_finder
    async def test_each_view_knows_the_sessions_it_has_not_read(
        self, store: Store, finder: Searchable
    ) -> None:
        other = store.tenant("other")
        one = await talk(store, "tea", id="a", owner="ana")
        two = await talk(store, "tea", id="b", owner="bea")
        await talk(other, "tea", id="a", owner="ana")
        for each in (store, other):
            await read_on(each)
            await embed(each)
        await store.append(one, [user("milk")])
        for view in (VIEW, VECTORS):
            [read] = await finder.unread(view, owner="ana")
            assert (read.session, read.until, read.last) == (one, 1, 2)
            assert await finder.unread(view) == [read]
            assert await finder.unread(view, owner="bea") == []
        found = await finder.places(VIEW, [], owner="ana")
        assert list(found.unread) == await finder.unread(VIEW)
        assert not (await finder.places(VIEW, [], owner="bea")).unread
        await embed(store)
        assert await finder.unread(VECTORS, owner="ana") == []
        await read_on(store, owner="ana")
        assert await finder.unread(VIEW) == await finder.unread(VECTORS) == []
        await finder.drop_view(VECTORS)
        assert {u.session: u.until for u in await finder.unread(VECTORS)} == {one: 0, two: 0}
        assert await finder.unread(VECTORS, owner="bea") == [Unread(two, 0, 1, 0)]
        assert await finder.unread(VIEW) == []
        foreign = await other.finder()
        assert foreign is not None
        assert await foreign.unread(VECTORS) == []
        await store.delete_session(one)
        assert [u.session for u in await finder.unread(VECTORS)] == [two]

    @on_finder
    async def test_what_has_changed_since_is_in_the_statistics(
        self, store: Store, finder: Searchable
    ) -> None:
        keys = [await talk(store, "tea", id=str(n), owner="ana") for n in range(5)]
        await read_on(store)

        async def parts() -> list[tuple[SessionKey, int]]:
            found = await finder.places(VIEW, [], owner="ana")
            return [(segment.session, segment.parts) for segment in found.segments]

        assert await parts() == [(key, 1) for key in keys]
        await store.append(keys[2], [user("milk"), user("tea")])
        await store.delete_session(keys[0])
        await read_on(store)
        assert await parts() == [(keys[1], 1), (keys[2], 3), (keys[3], 1), (keys[4], 1)]
        await store.erase(keys[2], [2])
        await store.erase(keys[4], [1])
        assert await parts() == [(keys[1], 1), (keys[2], 2), (keys[3], 1)]
        for n in range(100):  # more than are known one by one
            await store.append(keys[n % 3 + 1], [user("tea")])
            await read_on(store)
        assert await parts() == [(keys[1], 35), (keys[2], 35), (keys[3], 34)]
        await finder.drop_view(VIEW)
        assert await parts() == []
        await read_on(store)
        assert [count for _, count in await parts()] == [35, 35, 34]

    @on_finder
    async def test_copies_of_messages_are_fetched_from_one_session(
        self, store: Store, finder: Searchable
    ) -> None:
        one = await talk(store, id="a", owner="ana")
        messages = await store.append(one, [user("tea", id="x"), user("milk", id="y")])
        fork = await new_session(store, "b", owner="ana")
        await store.load(fork, messages)
        await read_on(store)
        await store.erase(fork, [1])
        places = (await finder.places(VIEW, ["tea", "milk"], session=one)).places
        asked = [*places["tea"], *places["milk"]]
        placed, _ = await finder.fetch(asked, copies_in=fork)
        found = [(p.session, p.message.id, p.message.state) for p in placed]
        assert found[:2] == [(one, "x", "live"), (one, "y", "live")]
        assert sorted(found[2:]) == [(fork, "x", "erased"), (fork, "y", "live")]
        placed, _ = await finder.fetch(asked, copies_in=one)
        assert len(placed) == 2
        for session in (one, fork):
            await store.put(Scope(session=session), "kind", "k", session)
        records = (await finder.fetch(asked, kinds=["kind"]))[1]
        assert [record.value for record in records] == [one]
        records = (await finder.fetch(asked, kinds=["kind"], copies_in=fork))[1]
        assert {str(record.value) for record in records} == {one, fork}

    # --- walls ---

    @on_finder
    async def test_owners_sessions_and_tenants_are_walls(
        self, store: Store, finder: Searchable
    ) -> None:
        other = store.tenant("other")
        one = await talk(store, "tea", "milk", id="a", owner="ana")
        two = await talk(store, "tea", id="b", owner="ana")
        await talk(store, "-", "tea", id="c", owner="bea")
        await talk(other, "-", "-", "tea", id="a", owner="ana")
        await read_on(store)
        await read_on(other)
        foreign = await other.finder()
        assert foreign is not None
        assert await where(finder, "tea", owner="ana") == [[1, 1]]
        assert await where(finder, "tea", owner="bea") == [[2]]
        assert await where(finder, "tea", owner="nobody") == [[]]
        assert await where(finder, "tea milk", session=one) == [[1], [2]]
        assert await where(finder, "tea milk", session=two) == [[1], []]
        assert await where(finder, "tea", session=two, owner="bea") == [[]]
        assert await where(finder, "tea") == [[1, 1, 2]]
        assert await where(foreign, "tea") == [[3]]
        assert {s.session for s in (await finder.places(VIEW, [], owner="ana")).segments} == {
            one,
            two,
        }

    @on_finder
    async def test_no_place_leads_behind_another_tenants_wall(
        self, store: Store, finder: Searchable
    ) -> None:
        key = await talk(store, "tea")
        await read_on(store)
        made = await embed(store)
        foreign = await store.tenant("other").finder()
        assert foreign is not None
        assert await foreign.parts(VIEW, list(made)) == []
        assert await foreign.fetch(list(made)) == ([], [])
        assert await foreign.vectors(VECTORS, list(made)) == {}
        assert await foreign.nearest(VECTORS, vector(0)) == []
        assert await foreign.unread(VIEW) == []
        with refused(SessionGone):
            await foreign.unread(VIEW, session=key)
        with refused(SessionGone):
            await foreign.places(VIEW, ["tea"], session=key)
        with refused(SessionGone):
            await foreign.index(VIEW, Unread(key, 1, 1, 0), 1, [], [])
        await foreign.drop_view(VECTORS)
        assert len(await finder.vectors(VECTORS, list(made))) == 1

    @on_finder
    async def test_delegates_and_what_is_not_ready_are_in_no_index(
        self, store: Store, finder: Searchable
    ) -> None:
        delegate = await talk(store, "tea", id="a", kind="delegate", parent="s")
        unready = await talk(store, "tea", id="b", ready=False)
        assert await finder.unread(VIEW) == []
        for key in (delegate, unready):
            assert await finder.unread(VIEW, session=key) == []
            with refused(Stale):
                await finder.index(VIEW, Unread(key, 0, 1, 0), 1, [], [])
            with refused(Stale):
                await finder.put_vectors(VECTORS, Unread(key, 0, 1, 0), 1, {})
        info = await store.put_session(replace(await store.describe(unready), ready=True))
        assert [read.session for read in await finder.unread(VIEW)] == [unready]
        await read_on(store)
        made = await embed(store)
        await store.put_session(replace(info, ready=False))
        assert await where(finder, "tea") == [[]]
        assert await finder.parts(VIEW, list(made)) == []
        assert await finder.vectors(VECTORS, list(made)) == {}
        assert await finder.fetch(list(made)) == ([], [])
        await store.put_session(info)
        assert await finder.unread(VIEW) == [Unread(unready, 0, 1, 0)]

    @on_finder
    async def test_only_what_was_read_is_taken(self, store: Store, finder: Searchable) -> None:
        one = await talk(store, "tea", "tea", id="a")
        two = await talk(store, "tea", id="b")
        read = Unread(one, 0, 2, 0)
        for part in (hand_made(two, 1, "tea"), hand_made(one, 2, "tea"), hand_made(one, 0, "x")):
            with refused(InvalidInput):
                await finder.index(VIEW, read, 1, [part], [])
            with refused(InvalidInput):
                await finder.put_vectors(VECTORS, read, 1, {part.place: vector(1)})
        with refused(InvalidInput):
            await finder.index(VIEW, read, 3, [], [])
        with refused(InvalidInput):
            await finder.index(VIEW, read, 2, [], [Segment(two, 1, 1.0, 1.0, 1, 1, 0)])
        assert len(await finder.unread(VIEW)) == 2

    # --- more than one reader ---

    @on_finder
    async def test_what_another_has_read_is_refused(self, store: Store, finder: Searchable) -> None:
        key = await talk(store, "tea")
        [read] = await finder.unread(VIEW)
        await read_on(store)
        with refused(Stale):
            await finder.index(VIEW, read, 1, [hand_made(key, 1, "milk")], [])
        assert await where(finder, "tea milk") == [[1], []]

    @on_finder
    async def test_of_two_readers_at_once_one_is_taken(
        self, store: Store, finder: Searchable
    ) -> None:
        key = await talk(store, *["tea"] * 20)
        [read] = await finder.unread(VIEW)
        messages = await store.read(key)
        parts = [p for message in messages for p in parts_of(int(key), message)]
        segments = segments_of(read, messages, parts)
        readers = [finder.index(VIEW, read, 20, parts, segments) for _ in range(4)]
        ends = await asyncio.gather(*readers, return_exceptions=True)
        assert [type(end) for end in ends if end] == [Stale] * 3
        assert await where(finder, "tea") == [list(range(1, 21))]
        assert [s.parts for s in (await finder.places(VIEW, [])).segments] == [20]

    @on_finder
    async def test_what_was_read_before_an_erasure_is_refused(
        self, store: Store, finder: Searchable
    ) -> None:
        key = await talk(store, "tea", "secret")
        [read] = await finder.unread(VIEW)
        await store.erase(key, [2])
        with refused(Stale):
            await finder.index(VIEW, read, 2, [hand_made(key, 2, "secret")], [])
        with refused(Stale):
            await finder.put_vectors(VECTORS, read, 2, {place(int(key), 2, 0, 1): vector(1)})
        await read_on(store)
        assert await where(finder, "tea secret") == [[1], []]

    @on_finder
    async def test_a_deleted_session_is_gone_for_readers(
        self, store: Store, finder: Searchable
    ) -> None:
        key = await talk(store, "tea")
        [read] = await finder.unread(VIEW)
        await store.delete_session(key)
        for asked in (
            finder.unread(VIEW, session=key),
            finder.places(VIEW, ["tea"], session=key),
            finder.nearest(VECTORS, vector(1), session=key),
            finder.index(VIEW, read, 1, [], []),
            finder.put_vectors(VECTORS, read, 1, {}),
        ):
            with refused(SessionGone):
                await asked

    # --- erasing ---

    @on_finder
    async def test_an_erased_message_is_in_no_view(self, store: Store, finder: Searchable) -> None:
        long = "A secret stands here. " * 60
        key = await talk(store, "tea is fine", long, "tea secret")
        await store.append(key, [assistant("the secret is safe")])
        await read_on(store)
        made = await embed(store)
        await store.erase(key, [2, 4])
        left = [place for place in made if seq_of(place) in (1, 3)]
        assert len(left) == 2 < len(made) - 2
        assert await where(finder, "tea secret stand safe here") == [[1, 3], [3], [], [], []]
        assert [part.place for part in await finder.parts(VIEW, list(made))] == left
        assert set(await finder.vectors(VECTORS, list(made))) == set(left)
        assert set(await finder.nearest(VECTORS, vector(0))) == set(left)
        assert [p.message.seq for p in (await finder.fetch(list(made)))[0]] == [1, 3]
        [segment] = (await finder.places(VIEW, [])).segments
        assert (segment.parts, segment.length, segment.answers) == (2, 5, 0)
        assert await finder.unread(VIEW) == []
        await store.append(key, [user("more tea")])
        await read_on(store)
        assert await where(finder, "tea") == [[1, 3, 5]]

    @on_finder
    async def test_what_is_erased_before_it_is_read_is_passed_over(
        self, store: Store, finder: Searchable
    ) -> None:
        key = await talk(store, "tea", "secret", "tea")
        await read_on(store)
        await store.append(key, [user("secret too"), user("milk")])
        await store.erase(key, [1, 2, 3, 4])
        await read_on(store)
        assert await where(finder, "tea secret too milk") == [[], [], [], [5]]
        assert [s.parts for s in (await finder.places(VIEW, [])).segments] == [1]

    @on_finder
    async def test_a_deleted_session_is_in_no_view(self, store: Store, finder: Searchable) -> None:
        key = await talk(store, "tea", "milk", owner="ana")
        await talk(store, "tea", id="t", owner="ana")
        await talk(store, "tea", id="u", owner="bea")
        await read_on(store)
        made = await embed(store)
        await store.delete_session(key)
        assert await where(finder, "tea milk", owner="ana") == [[1], []]
        assert await where(finder, "tea", owner="bea") == [[1]]
        left = [place for place in sorted(made) if place > first_place(key, 9)]
        assert [part.place for part in await finder.parts(VIEW, list(made))] == left
        assert sorted(await finder.vectors(VECTORS, list(made))) == left
        assert key not in {s.session for s in (await finder.places(VIEW, [])).segments}
        again = await talk(store, "water", owner="ana")
        assert await finder.unread(VIEW) == [Unread(again, 0, 1, 0)]
        assert await where(finder, "tea", session=again) == [[]]

    # --- what the index has at a position ---

    @on_finder
    async def test_a_piece_is_known_by_its_message_and_number(
        self, store: Store, finder: Searchable
    ) -> None:
        key = await new_session(store)
        long = " ".join(f"Sentence {n} is about topic{n}." for n in range(200))
        messages = [
            user("When?", name="Bea \0 \ud800"),
            assistant(long),
            user("naïve", name="Ana", origin="web", source="web:x"),
        ]
        [first, second, third] = await store.append(key, messages)
        await read_on(store)
        made = [p for m in (first, second, third) for p in parts_of(int(key), m)]
        assert len({part_of(part.place) for part in made}) > 5
        bare = [part._replace(words=()) for part in made]
        shuffled = [part.place for part in reversed(made)]
        assert await finder.parts(VIEW, shuffled) == bare
        without_length = [part.place - length_of(part.place) for part in made]
        assert await finder.parts(VIEW, without_length) == bare
        assert await finder.parts(VIEW, [place(int(key), 9, 0, 1), 5]) == []
        assert await where(finder, "topic150", session=key) == [[2]]

    @on_finder
    async def test_messages_are_fetched_once_with_their_sessions_records(
        self, store: Store, finder: Searchable
    ) -> None:
        one = await talk(store, "tea " * 400, "milk", "water", id="a", owner="ana")
        two = await talk(store, "tea", id="b", owner="bea")
        three = await talk(store, "tea", id="c")
        for key in (one, two, three):
            await store.put(Scope(session=key), "mark", "1", str(key))
            await store.put(Scope(session=key), "pin", "1", None, made_of=[span(key, 1)])
        await read_on(store)
        found = await finder.places(VIEW, ["tea", "water"])
        places = [*found.places["water"], *found.places["tea"], *found.places["tea"]]
        places = [p for p in places if p < first_place(three, 0)]
        placed, records = await finder.fetch(places, kinds=["mark"])
        assert [(p.session, p.id, p.owner, p.message.seq) for p in placed] == [
            (one, "a", "ana", 1),
            (one, "a", "ana", 3),
            (two, "b", "bea", 1),
        ]
        assert [p.message for p in placed[:2]] == await store.find(one, seqs=[1, 3])
        assert {(r.scope.session, r.kind, r.value) for r in records} == {
            (one, "mark", one),
            (two, "mark", two),
        }
        await store.erase(one, [1])
        await store.delete_session(two)
        placed, records = await finder.fetch(places, kinds=["mark", "pin"])
        assert said([p.message for p in placed]) == ["water"]
        assert [(r.scope.session, r.kind) for r in records] == [(one, "mark")]

    # --- vectors ---

    @on_finder
    async def test_vectors_come_back_as_they_were_put(
        self, store: Store, finder: Searchable
    ) -> None:
        key = await talk(store, "tea", "milk")
        many = await embed(store, ids=True)
        one = await embed(store, view="vectors:single")
        asked = [place - length_of(place) for place in many]
        found = await finder.vectors(VECTORS, [*asked, place(int(key), 7, 0, 0)])
        assert found == dict(zip(asked, many.values(), strict=True))
        assert await finder.vectors("vectors:single", list(one)) == one
        assert await finder.vectors("vectors:unknown", list(one)) == {}
        [read] = await finder.unread(VIEW)
        with refused(Stale):
            await finder.put_vectors(VECTORS, read, 2, {})
        await store.append(key, [user("water")])
        assert [(u.until, u.last) for u in await finder.unread(VECTORS)] == [(2, 3)]
        assert len(await embed(store, ids=True)) == 1

    @on_finder
    async def test_the_nearest_single_vectors_are_found_in_a_scope(
        self, store: Store, finder: Searchable
    ) -> None:
        key = await talk(store, *["tea"] * 30, id="a", owner="ana")
        await talk(store, "tea", "milk", id="b", owner="bea")
        made = await embed(store)
        own = [place for place in sorted(made) if place < first_place(key, 31)]
        assert await finder.nearest(VECTORS, vector(0), owner="ana", limit=5) == own[:5]
        assert await finder.nearest(VECTORS, vector(0), session=key) == own
        assert len(await finder.nearest(VECTORS, vector(0))) == 32
        assert await finder.nearest(VECTORS, vector(0), owner="bea", session=key) == []
        assert await finder.nearest(VECTORS, Embedding(bytes(9), 9)) == []
        await embed(store, ids=True, view="vectors:many")
        assert await finder.nearest("vectors:many", vector(0)) == []

    @on_finder
    async def test_a_dropped_view_is_read_again(self, store: Store, finder: Searchable) -> None:
        await talk(store, "tea")
        await read_on(store)
        made = await embed(store)
        await finder.drop_view(VECTORS)
        assert await finder.vectors(VECTORS, list(made)) == {}
        assert await where(finder, "tea") == [[1]]
        assert await embed(store) == made
        await finder.drop_view(VIEW)
        assert await where(finder, "tea") == [[]]
        assert await finder.parts(VIEW, list(made)) == []
        assert list((await finder.places(VIEW, [])).segments) == []
        assert await finder.vectors(VECTORS, list(made)) == made
        [read] = await finder.unread(VIEW)
        assert (read.until, read.segment) == (0, None)
        await read_on(store)
        assert await where(finder, "tea") == [[1]]
        await finder.drop_view("never:seen")

    # --- hostile words ---

    @on_finder
    async def test_hostile_words_find_nothing_and_break_nothing(
        self, store: Store, finder: Searchable
    ) -> None:
        await talk(store, "tea and coffee", owner="ana")
        await read_on(store)
        found = await finder.places(VIEW, HOSTILE, owner="ana")
        assert {word: list(places) for word, places in found.places.items()} == {
            word: [] for word in HOSTILE
        }
        assert await where(finder, "tea") == [[1]]

    @on_finder
    async def test_hostile_words_in_an_index_reach_nobody_else(
        self, store: Store, finder: Searchable
    ) -> None:
        one = await talk(store, "x", id="a", owner="ana")
        await talk(store, "tea", id="b", owner="bea")
        await read_on(store, owner="bea")
        smuggled = [f"x {number}xmilk" for number in range(5)]
        part = hand_made(one, 1, "tea", *HOSTILE, *smuggled)
        await finder.index(VIEW, Unread(one, 0, 1, 0), 1, [part], [])
        assert await where(finder, "tea milk", owner="bea") == [[1], []]
        assert await where(finder, "tea", owner="ana") == [[1]]
        await finder.drop_view(VIEW)
        await read_on(store)
        assert await where(finder, "tea x", owner="ana") == [[], [1]]

    @on_finder
    async def test_names_and_numbers_that_mean_nothing_are_refused(
        self, store: Store, finder: Searchable
    ) -> None:
        key = await talk(store, "tea")
        with refused(InvalidInput):
            await finder.unread("")
        with refused(InvalidInput):
            await finder.unread(VIEW, owner="")
        with refused(InvalidInput):
            await finder.places(VIEW, ["tea"], owner="\0")
        with refused(InvalidInput):
            await finder.places(VIEW, ["tea"], max_places=-1)
        with refused(InvalidInput):
            await finder.nearest(VECTORS, vector(1), limit=-1)
        with refused(InvalidInput):
            await finder.index(VIEW, Unread(key, 0, 1, 0), -1, [], [])
        with refused(SessionGone):
            await finder.index(VIEW, NEVER, 1, [], [])
        with refused(SessionGone):
            await finder.unread(VIEW, session=SessionKey("nonsense"))
