"""Commands about answers: the model, asking again, the orchestrator's plan and tools, the end."""

import asyncio
from typing import TYPE_CHECKING

from keepthread.apps.cli.chat.chat import Chat
from keepthread.apps.cli.chat.commands.common import brief, newest, unanswered
from keepthread.apps.cli.report_types import counted
from keepthread.apps.cli.sanitize import sanitize
from keepthread.apps.cli.services import list_models, refusal
from keepthread.apps.cli.settings.secrets import secret_of
from keepthread.apps.cli.wiring import model_of, needs_key
from keepthread.errors import InvalidInput
from keepthread.stores.codec import new_id
from keepthread.types import Message

if TYPE_CHECKING:
    from keepthread.apps.cli.chat.orchestrator import ChatOrchestrator


async def model(chat: Chat, rest: str) -> None:
    """List the models of the service, or switch to another one."""
    settings = chat.config.settings.model
    if not rest:
        name = chat.talk.model.name
        chat.person.say(
            f"{sanitize(name)} is in use ({settings.provider}); /model NAME switches to another "
            "model"
        )
        key = secret_of(settings.key_variable, chat.environ, settings.key_command)
        if key is None and needs_key(settings):
            chat.person.say("No API key is set, so the service was not asked for its models")
            return
        found = await asyncio.to_thread(list_models, settings, key)
        chat.models = [*found.names]
        if found.problem:
            chat.person.say(sanitize(found.note))
        rows = [(each, "in use" if each == name else "") for each in chat.models]
        chat.person.screen.rows(rows, "", "")
        return
    chosen = model_of(settings, chat.environ, name=rest)
    key = secret_of(settings.key_variable, chat.environ, settings.key_command)
    if reason := await asyncio.to_thread(refusal, settings, key, rest):
        raise InvalidInput(f"{reason} /model lists them all")
    # The one before stays open: it may be the one that writes the summaries.
    chat.talk.model = chosen
    chat.person.say(f"{sanitize(rest)} is used for the rest of this chat")


async def retry(chat: Chat, _: str) -> None:
    """Ask the latest question again, if it has no answer, or one cut short.

    The cut answer is hidden from the model, together with its question.
    """
    question = chat.talk.unanswered or await unanswered(await chat.session())
    question = question or await _hide_cut_turn(chat)
    if question is None:
        raise InvalidInput(
            "the latest question has an answer; /rewind hides both and puts the question back into "
            "the prompt"
        )
    chat.again = question
    chat.person.say(f"Asking again: {brief(question.content)}")


async def _hide_cut_turn(chat: Chat) -> Message | None:
    """Hide the latest turn if its answer was cut short, and return its question with a new id."""
    session = await chat.session()
    turn = await newest(session, lambda message: message.role == "user")
    if len(turn) < 2 or not turn[-1].meta.get("truncated"):
        return None
    chat.here()
    await session.rewind(turn[0].seq - 1)
    chat.talk.unsay({message.id for message in turn})
    content, attachments = turn[0].content, turn[0].attachments
    return Message(role="user", content=content, id=new_id(), attachments=attachments)


async def quit(chat: Chat, _: str) -> None:  # noqa: A001 - what people write
    """End the chat; there is nothing to save by hand."""
    chat.over = True


async def plan(chat: Chat, _: str) -> None:
    """Show how the latest request was handled: the route, the plan and its steps."""
    lines = _orchestrator(chat).steps.lines()
    chat.person.say("\n".join(lines) if lines else "nothing was asked yet")


async def tools(chat: Chat, _: str) -> None:
    """List the tools that the model is offered, and the state of their servers."""
    found = chat.orchestrator.tools if chat.orchestrator else chat.tools and chat.tools.servers
    rows: list[tuple[str, str]] = []
    if found:
        runnable = await found.ready()
        rows = [(each.tool.name, _kept(each.cache_turns, each.side_effects)) for each in runnable]
        rows += [(state.name, state.problem) for state in found.states if state.problem]
    if chat.tools:
        rows += [(tool.name, "built-in memory tool") for tool in chat.tools.memory_tools]
    if rows:
        chat.person.screen.rows(rows, "", "")
    else:
        chat.person.say("There are no tools: list servers in mcp.json next to your settings file")


def _kept(cache_turns: int, side_effects: bool) -> str:
    if cache_turns and not side_effects:
        return f"cached for {counted(cache_turns, 'turn')}"
    return "has side effects" if side_effects else "run each time"


def _orchestrator(chat: Chat) -> "ChatOrchestrator":
    if chat.orchestrator is None:
        raise InvalidInput(
            "this chat does not plan requests: start it with `keepthread chat --orchestrate`"
        )
    return chat.orchestrator
