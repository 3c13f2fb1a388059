"""The cost of answers: tokens in, out and cached, and the price where it is set."""

from collections.abc import Iterable
from functools import reduce
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from keepthread.apps.cli.chat.chat import Chat
from keepthread.apps.cli.chat.talk import Answered
from keepthread.apps.cli.report_types import counted
from keepthread.apps.cli.wiring import cost_of
from keepthread.memory.session import Session
from keepthread.protocols import TokenCounter
from keepthread.types import Message, Usage

if TYPE_CHECKING:
    from keepthread.apps.cli.settings.settings import ModelSettings

_PAGE: Final = 500


class Cost(NamedTuple):
    """The usage of one answer, and its model."""

    usage: Usage
    model: str


async def cost(chat: Chat, _: str) -> None:
    """Show the cost of answers in tokens, and in money if prices are set.

    For the latest answer, for all since this chat began, and for the whole session.
    """
    settings = chat.config.settings.model
    counter = chat.talk.persistence.counter
    session = await chat.talk.known_session()
    last = [] if chat.talk.last is None else [chat.talk.last]
    parts = {
        "latest answer": [_of_answered(each, counter) for each in last],
        "since the start": [_of_answered(each, counter) for each in chat.talk.answered],
        "this session": [] if session is None else await _of_session(session),
    }
    if session is not None and (spent := (await session.status()).costs).calls:
        usage = Usage(spent.input, spent.output, spent.cached)
        parts["summaries"] = [Cost(usage, _summarizer(chat))]
    known = settings.price.input is not None and settings.price.output is not None
    columns = ("", ">in", ">cached", ">out", *((">price",) if known else ()))
    rows = [_row(name, costs, settings, priced=known) for name, costs in parts.items()]
    chat.person.screen.rows(rows, *columns)
    if not known:
        chat.person.say(
            "No price is set: set model.price.input and model.price.output, per million tokens"
        )
    others = sum(each.model != settings.name for each in parts["this session"])
    if known and others:
        chat.person.say(
            f"Not counted: {counted(others, 'answer')} of models other than {settings.name}"
        )
    if any(each.usage is None and each.text for each in chat.talk.answered):
        chat.person.say(
            "Stopped answers report no usage: it is estimated for this run, and missing from the "
            "session total"
        )
    if chat.talk.persistence.away:
        chat.person.say("The memory is unavailable: only the messages of this chat are counted")


def _row(
    name: str, costs: Iterable[Cost], settings: "ModelSettings", *, priced: bool
) -> tuple[str, ...]:
    costs = list(costs)
    total = reduce(Usage.plus, (each.usage for each in costs), Usage())
    cells = (name, f"{total.input:,}", f"{total.cached:,}", f"{total.output:,}")
    if not priced:
        return cells
    own = (each.usage for each in costs if each.model == settings.name)
    ours = reduce(Usage.plus, own, Usage())
    return (*cells, f"{cost_of(ours, settings.price) or 0:,.4f}")


def _of_answered(answered: Answered, counter: TokenCounter) -> Cost:
    """Return the usage that was reported, or for an answer that was stopped an estimate."""
    model = answered.answer.meta.get("model") if answered.answer else ""
    usage = answered.usage
    if usage is None and answered.text:
        said = Message(role="assistant", content=answered.text)
        usage = Usage(answered.context.tokens, counter.count(said))
    return Cost(usage or Usage(), str(model))


async def _of_session(session: Session) -> list[Cost]:
    """Return the usage of a session's answers, as stored with them."""
    found: list[Cost] = []
    after = 0
    while page := await session.messages(after=after, limit=_PAGE):
        found += [cost for message in page if (cost := _of_message(message))]
        after = page[-1].seq
    return found


def _of_message(message: Message) -> Cost | None:
    """Return the cost stored with an answer; other programs may store anything there."""
    said = message.meta.get("usage")
    if not isinstance(said, dict):
        return None
    counts = [cast(dict[str, Any], said).get(name, 0) for name in Usage._fields]
    if not all(isinstance(each, int) and each >= 0 for each in counts):
        return None
    return Cost(Usage(*counts), str(message.meta.get("model", "")))


def _summarizer(chat: Chat) -> str:
    settings = chat.config.settings
    return settings.summarizer.name or settings.model.name or ""
