"""Text that gives no orders: what a tool, the web or an old message said, shown as a quotation."""

from dataclasses import replace

from keepthread.context.harmless import harmless
from keepthread.context.notes import is_note
from keepthread.context.trust import LOWEST_ORIGIN, trust_in
from keepthread.protocols import TokenCounter
from keepthread.tokens.counting import attachment_note, label, named_origin
from keepthread.types import Message


def speaker(message: Message) -> str:
    """Return who says it, as a person would read it: `User`, `User (bob)`, `User (web, bob)`.

    A name is one word. Text from elsewhere names its origin, so that it can't pose as the user's.
    """
    if is_note(message):
        return f"Note {label(message.name)}" if message.name else "Note"
    who, author = message.role.capitalize(), message.author
    if message.role == "tool":
        who, author = f"Tool {label(message.name)}" if message.name else "Tool", None
    details = [named_origin(message), label(author) if author else None]
    told = ", ".join(filter(None, details))
    return f"{who} ({told})" if told else who


def flat(text: str) -> str:
    """Return a text in one line."""
    return " ".join(text.splitlines())


def is_order(message: Message) -> bool:
    """Tell whether a message of the system role may speak with the operator's voice."""
    return message.role == "system" and message.origin in ("operator", None)


def quotation(message: Message) -> str:
    """Return a message as quoted text, each line marked."""
    lines = [f"> {line}" for line in harmless(message.content).splitlines()] or [">"]
    calls = [
        f"> (called {label(c.name)} with {harmless(flat(c.arguments))})" for c in message.tool_calls
    ]
    attached = [f"> {attachment_note(a)}" for a in message.attachments]
    return "\n".join([f"{speaker(message)} said:", *lines, *calls, *attached])


def in_short(text: str) -> str:
    """Return what a model made of an answer as a quotation: nobody said it in these words."""
    return "\n".join(["In short:", *(f"> {line}" for line in harmless(text).splitlines())])


def as_quotation(message: Message) -> Message:
    """Return a message of the user role that quotes another."""
    return replace(
        message,
        role="user",
        content=quotation(message),
        tool_calls=(),
        tool_call_id=None,
        name=None,
        author=None,
        origin="user",  # it is our own word that somebody said this
        meta={**message.meta, LOWEST_ORIGIN: trust_in(message)},
        native=None,
        attachments=(),
    )


def quoted(message: Message, counter: TokenCounter) -> Message:
    """Return a message of the user role that quotes another, counted anew."""
    quote = as_quotation(message)
    return replace(quote, tokens=counter.count(quote))
