"""The text form: `User: …` lines that no message can forge, for prompts that are one string."""

from keepthread.context.harmless import harmless
from keepthread.context.quote import flat, speaker
from keepthread.context.wire import sendable
from keepthread.tokens.counting import indented, is_quoted
from keepthread.types import Message, Selection


def render(selection: Selection) -> str:
    """Return the conversation line by line; what goes on is indented, what tools said is quoted."""
    return sendable("\n".join(line(message) for message in selection.messages))


def line(message: Message) -> str:
    """Return one message; only its first line starts at the margin."""
    quoted = is_quoted(message)
    content = harmless(message.content) if quoted and message.role == "system" else message.content
    body = indented(content, quoted=quoted)
    parts = [f"{speaker(message)}: {body}".rstrip()]
    parts += [f"  [calls {flat(c.name)} with {flat(c.arguments)}]" for c in message.tool_calls]
    parts += [f"  [attached: {flat(a.name or a.media_type)}]" for a in message.attachments]
    return "\n".join(parts)
