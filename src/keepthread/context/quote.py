"""Text that gives no orders: what a tool, the web or an old message said, shown as a quotation."""

from dataclasses import replace

from keepthread.context.harmless import harmless
from keepthread.context.notes import is_note
from keepthread.protocols import TokenCounter
from keepthread.tokens.counting import label
from keepthread.types import Attachment, Message


def speaker(message: Message) -> str:
    """Return who says it, as a person would read it; a name is one word."""
    if message.role == "tool":
        return f"Tool {label(message.name)}" if message.name else "Tool"
    if is_note(message):
        return f"Note {label(message.name)}" if message.name else "Note"
    who = {"user": "User", "assistant": "Assistant", "system": "System"}[message.role]
    return f"{who} ({label(message.author)})" if message.author else who


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


def attachment_note(attachment: Attachment) -> str:
    """Return what stands for a thing that a model is not shown."""
    return f"[attached: {label(attachment.name or attachment.media_type)}]"


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
        native=None,
        attachments=(),
    )


def quoted(message: Message, counter: TokenCounter) -> Message:
    """Return a message of the user role that quotes another, counted anew."""
    quote = as_quotation(message)
    return replace(quote, tokens=counter.count(quote))
