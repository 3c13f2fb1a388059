"""Commands about asking: which model answers, asking again, and the end."""

from keepthread.apps.cli.chat.chat import Chat
from keepthread.apps.cli.chat.commands.log import brief, unanswered
from keepthread.apps.cli.sanitize import harmless
from keepthread.apps.cli.wiring import model_of
from keepthread.errors import InvalidInput


async def model(chat: Chat, rest: str) -> None:
    """Tell which model answers, or let another of the same service answer."""
    settings = chat.config.settings.model
    if not rest:
        chat.person.say(
            f"{harmless(chat.talk.model.name)} answers ({settings.provider});"
            " /model NAME lets another answer"
        )
        return
    # The one before stays open: it may be the one that writes the summaries.
    chat.talk.model = model_of(settings, chat.environ, name=rest)
    chat.person.say(f"{harmless(rest)} answers from now on, in this chat")


async def retry(chat: Chat, _: str) -> None:
    """Ask the latest question again, if nothing came of it."""
    question = chat.talk.unanswered or await unanswered(chat, await chat.session())
    if question is None:
        raise InvalidInput(
            "the latest question has an answer; /rewind hides both, and offers the question again"
        )
    chat.again = question
    chat.person.say(f"Asking again: {brief(question.content)}")


async def quit(chat: Chat, _: str) -> None:  # noqa: A001 - what people write
    """End the chat; there is nothing to save by hand."""
    chat.over = True
