"""The text form: `User: …` lines that no message can forge, for prompts that are one string."""

from keepthread.context.harmless import harmless, sendable
from keepthread.context.quote import flat, speaker
from keepthread.tokens.counting import attachment_note, indented, is_quoted, label
from keepthread.types import Message, Selection


def render(selection: Selection) -> str:
    """Return the conversation line by line; what goes on is indented, what tools said is quoted."""
    return sendable("\n".join(line(message) for message in selection.messages))


def line(message: Message) -> str:
    """Return one message; only its first line starts at the margin."""
    quoted = is_quoted(message)
    # The whole text may go out in one role, so only the user and the operator say what they like.
    made = harmless if quoted or message.role == "assistant" else str
    body = indented(made(message.content), quoted=quoted)
    margin = " > " if quoted else "  "
    parts = [f"{speaker(message)}: {body}".rstrip()]
    parts += [
        f"{margin}[calls {label(c.name)} with {made(flat(c.arguments))}]"
        for c in message.tool_calls
    ]
    parts += [margin + attachment_note(a) for a in message.attachments]
    return "\n".join(parts)
