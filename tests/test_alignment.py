"""Histories that clients send again with every request: the log continues with them."""

import asyncio
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from keepthread import Memory, Message, Options, Session, ToolCall
from keepthread.memory.alignment import find_match, normalized
from keepthread.protocols import Store
from keepthread.testing.contract import Letters
from tests.every_store import store
from tests.seeds import MORE, SEED

__all__ = ["store"]

EDITS = 600 * MORE
"""Edits in one run of the model; at night and in a run of its own there are more."""


def user(text: str) -> Message:
    return Message(role="user", content=text)


def assistant(text: str, *calls: str) -> Message:
    called = [ToolCall(id=call, name="look", arguments="{}") for call in calls]
    return Message(role="assistant", content=text, tool_calls=called)


def result(call: str, text: str) -> Message:
    return Message(role="tool", content=text, tool_call_id=call)


def over(store: Store) -> Memory:
    return Memory(store, Options(counter=Letters()))


async def shown(session: Session) -> list[str]:
    hidden = {seq for h in await session.hidden() for seq in range(h.first, h.last + 1)}
    return [m.content for m in await session.messages() if m.seq not in hidden]


async def test_a_client_continues_edits_and_regenerates(store: Store) -> None:
    session = await over(store).session("s")
    first = [user("Hi."), assistant("Hello.")]
    done = await session.align(first)
    assert (done.kept, done.hidden, [m.seq for m in done.appended]) == (0, (), [1, 2])
    done = await session.align([*first, user("Where is Oslo?")])
    assert (done.kept, [m.content for m in done.appended]) == (2, ["Where is Oslo?"])
    assert await session.align([*first, user("Where  is\nOslo?  ")]) == (3, (), (), 3)
    await session.append(assistant("In Norway."))
    done = await session.align([*first, user("Where is Rome?")])
    assert [(h.first, h.last, h.reason) for h in done.hidden] == [(3, 4, "rewound")]
    assert await shown(session) == ["Hi.", "Hello.", "Where is Rome?"]
    assert len(await session.messages()) == 5
    done = await session.align([user("Hi.")])
    assert (done.kept, [(h.first, h.last) for h in done.hidden]) == (1, [(2, 5)])
    assert await session.align([]) == (0, (), (), 0)


async def test_a_result_is_known_by_its_call_and_a_note_is_not_compared(store: Store) -> None:
    session = await over(store).session("s")
    history = [user("Look."), assistant("", "c1"), result("c1", "a long result")]
    await session.align(history)
    await session.add_note("place", "Oslo")
    await session.cache_tool("look", {}, "seen", 3)
    shortened = [*history[:2], result("c1", "[cleared]")]
    done = await session.align([*shortened, assistant("Seen."), user("And now?")])
    assert (done.kept, done.hidden, len(done.appended)) == (3, (), 2)
    other = [history[0], assistant("", "c2"), result("c2", "a long result")]
    assert (await session.align(other)).kept == 1


async def test_erased_text_does_not_come_back(store: Store) -> None:
    memory = over(store)
    session = await memory.session("s")
    history = [user("Hi."), assistant("Hello."), user("My number is 555-0199."), assistant("Ok.")]
    stored = (await session.align(history)).appended
    await memory.forget(session="s", message=stored[2].id)
    done = await session.align([*history, user("Bye.")])
    assert (done.kept, done.hidden, [m.content for m in done.appended]) == (4, (), ["Bye."])
    assert "555-0199" not in str(await session.messages())


@pytest.mark.parametrize(
    ("log", "given", "known", "end"),
    [
        ("abcd", "cde", {0, 1}, 4),  # the oldest were dropped
        ("abcd", "cx", set(), 4),  # one message alone is no proof
        ("abcd", "bcx", {0, 1}, 3),
        ("abcd", "de", {0}, 4),  # unless the log ends with it
        ("abcd", "Scde", {1, 2}, 4),  # a summary stands for the oldest
        ("abcdSe", "Scdefg", {0, 1, 2, 3}, 6),  # and was appended when it came
        ("abcdS", "Scde", {0, 1, 2}, 5),
        ("abcdSe", "Scdx", {0, 1, 2}, 5),
        ("abcd", "Sx", set(), 4),
        ("abab", "abx", {0, 1}, 2),  # a history that begins as the log does was edited
        ("", "a", set(), 0),
    ],
)
def test_where_a_history_continues(log: str, given: str, known: set[int], end: int) -> None:
    summary = Message(role="user", content="S", meta={"client_summary": True})
    stored = [summary if text == "S" else user(text) for text in log]
    match = find_match(stored, [user(text) for text in given])
    assert (match.known, match.end) == (known, end)


def test_spaces_and_composed_letters_are_equal() -> None:
    assert normalized(" cafe\u0301\r\n au  lait ") == normalized("caf\u00e9 au lait")


def test_in_a_log_of_equal_messages_few_places_are_tried() -> None:
    log = [user("ok") for _ in range(20_000)]
    assert find_match(log, [user("S"), *log[:3000]]).end == len(log)


@dataclass
class Client:
    """A client, and what the log must have: each of its texts once, and those it dropped hidden."""

    random: random.Random
    history: list[Message] = field(default_factory=list[Message])
    written: int = 0
    dropped: set[str] = field(default_factory=set[str])
    summaries: set[str] = field(default_factory=set[str])
    least: int = 1
    """Messages at the beginning that must stay, so that the rest can be found."""

    def act(self) -> None:
        """Do what clients do between two requests."""
        action = self.random.choices(
            [self.go_on, self.edit, self.trim, self.sum_up, lambda: None], [6, 3, 1, 1, 1]
        )[0]
        action()

    def go_on(self) -> None:
        for _ in range(self.random.randrange(1, 4)):
            self.history.append(self.new())

    def edit(self) -> None:
        """Replace a message and all after it; without a new one, an answer is generated again."""
        if len(self.history) <= self.least:
            return
        at = self.random.randrange(self.least, len(self.history))
        self.dropped |= {message.content for message in self.history[at:]}
        del self.history[at:]
        if self.random.random() < 0.7 or not self.history:
            self.history.append(self.new())

    def trim(self) -> None:
        if len(self.history) > 3:
            del self.history[: self.random.randrange(1, len(self.history) - 2)]
            self.least = 2

    def sum_up(self) -> None:
        """Put a summary in the place of the oldest messages."""
        if len(self.history) > 3:
            kept = self.random.choice([0, 2, 3])
            summary = self.new()
            self.summaries.add(summary.content)
            self.history = [summary, *self.history[len(self.history) - kept :]]
            self.least = max(2, len(self.history))

    def new(self) -> Message:
        self.written += 1
        text = f"text {self.written}"
        return user(text) if self.written % 2 else assistant(text)


async def check(session: Session, client: Client) -> None:
    log = [message.content for message in await session.messages()]
    assert Counter(log) == Counter(f"text {n + 1}" for n in range(client.written))
    visible = await shown(session)
    hidden = set(log) - set(visible)
    assert client.dropped <= hidden
    assert hidden - client.dropped <= client.summaries  # which stand behind what was dropped


async def run_client(session: Session, edits: int, seed: int) -> None:
    client = Client(random.Random(seed))
    client.go_on()
    await session.align(client.history)
    for number in range(edits):
        client.act()
        copies = 3 if number % 7 == 0 else 1  # a client that sends a request again, at once
        await asyncio.gather(*(session.align(client.history) for _ in range(copies)))
        if number % 10 == 0 or number == edits - 1:
            await check(session, client)


async def test_what_clients_do_against_a_plain_model() -> None:
    async with Memory.open("ram://", counter=Letters()) as memory:
        for run in range(EDITS // 30):
            await run_client(await memory.session(f"s{run}"), 30, SEED + run)


async def test_every_store_agrees_with_the_model(store: Store) -> None:
    memory = over(store)
    for run in range(2):
        await run_client(await memory.session(f"s{run}"), 15, SEED + run)


@pytest.mark.nightly
@pytest.mark.timeout(1800)
async def test_twenty_thousand_edits() -> None:
    async with Memory.open("ram://", counter=Letters()) as memory:
        for run in range(500):
            await run_client(await memory.session(f"s{run}"), 40, SEED + run)


async def test_two_clients_at_once_lose_nothing(store: Store) -> None:
    memory = over(store)
    session = await memory.session("s")
    begin = [user("Hi."), assistant("Hello.")]
    await session.align(begin)

    async def send(name: str) -> Sequence[Message]:
        history = list(begin)
        for number in range(5):
            history.append(user(f"{name} {number}"))
            await session.align(history)
        return history

    histories = await asyncio.gather(send("a"), send("b"))
    stored = {message.content for message in await session.messages()}
    assert stored == {message.content for history in histories for message in history}
    assert await shown(session) in [[m.content for m in history] for history in histories]
