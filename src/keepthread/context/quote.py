"""Text that gives no orders: what a tool, the web or an old message said, shown as a quotation."""

from dataclasses import replace

from keepthread.context.harmless import harmless
from keepthread.context.notes import is_note
from keepthread.protocols import TokenCounter
from keepthread.types import Message


def speaker(message: Message) -> str:
    """Return who says it, as a person would read it."""
    if message.role == "tool":
        return f"Tool {flat(message.name)}" if message.name else "Tool"
    if is_note(message):
        return f"Note {flat(message.name)}" if message.name else "Note"
    who = {"user": "User", "assistant": "Assistant", "system": "System"}[message.role]
    return f"{who} ({message.author})" if message.author else who


def flat(text: str) -> str:
    """Return a text in one line."""
    return " ".join(text.splitlines())


def is_order(message: Message) -> bool:
    """Tell whether a message of the system role may speak with the operator's voice."""
    return message.role == "system" and message.origin in ("operator", None)


def quotation(message: Message) -> str:
    """Return a message as quoted text, each line marked."""
    lines = [f"> {line}" for line in harmless(message.content).splitlines()] or [">"]
    calls = [f"> (called {flat(c.name)} with {flat(c.arguments)})" for c in message.tool_calls]
    return "\n".join([f"{speaker(message)} said:", *lines, *calls])


def quoted(message: Message, counter: TokenCounter) -> Message:
    """Return a message of the user role that quotes another, counted anew."""
    quote = replace(
        message,
        role="user",
        content=quotation(message),
        tool_calls=(),
        tool_call_id=None,
        name=None,
        author=None,
        native=None,
        attachments=(),
    )
    return replace(quote, tokens=counter.count(quote))
