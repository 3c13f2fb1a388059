"""A context: what a model will see, its cost and reasons, rendered as text or for three APIs."""

from collections.abc import Sequence
from functools import cached_property, lru_cache
from typing import Any

from keepthread.context.quoting import flat, sanitize, sendable, speaker
from keepthread.context.rendering import attachment_note, indented, is_quoted, label
from keepthread.context.why import Why
from keepthread.context.wires import anthropic, openai_chat, openai_responses
from keepthread.errors import InvalidInput
from keepthread.protocols import TokenCounter
from keepthread.types import Message, Selection


def render_text(selection: Selection) -> str:
    """Return the conversation line by line; later lines are indented, tool results quoted."""
    return sendable("\n".join(line(message) for message in selection.messages))


def line(message: Message) -> str:
    """Return one message; only its first line starts at the margin."""
    quoted = is_quoted(message)
    # The whole text may go out in one role, so only the user and the operator say what they like.
    made = sanitize if quoted or message.role == "assistant" else str
    body = indented(made(message.content), quoted=quoted)
    margin = " > " if quoted else "  "
    parts = [f"{speaker(message)}: {body}".rstrip()]
    parts += [
        f"{margin}[calls {label(c.name)} with {made(flat(c.arguments))}]"
        for c in message.tool_calls
    ]
    parts += [margin + attachment_note(a) for a in message.attachments]
    return "\n".join(parts)


class TextCounter:
    """Counts the tokens of a message's lines in a context rendered as text."""

    def __init__(self, counter: TokenCounter) -> None:
        """Take the counter of messages."""
        self.name = f"{counter.name}, as text"
        self._counter = counter
        self._frame = counter.count(Message(role="user"))

    def count(self, message: Message) -> int:
        """Return the tokens of the message's lines."""
        lines = Message(role="user", content=f"{line(message)}\n")
        return max(1, self._counter.count(lines) - self._frame)


@lru_cache(maxsize=16)
def text_counter(counter: TokenCounter) -> TextCounter:
    """Return the text counter of a counter: always the same, so that caches find its counts."""
    return TextCounter(counter)


class Context:
    """The selection of a strategy, with a rendering for each API."""

    def __init__(self, selection: Selection, *, is_text: bool = False) -> None:
        """Wrap a selection; nothing is rendered yet."""
        self.selection = selection
        self.is_text = is_text
        """Whether its tokens are those of `text`; an API would add to them."""

    def __repr__(self) -> str:
        """Return its size, and where its parts are explained."""
        count, budget = len(self.messages), self.selection.budget
        messages = f"{count:,} {'message' if count == 1 else 'messages'}"
        return f"<Context: {messages}, {self.tokens:,} of {budget:,} tokens; print(context.why)>"

    @property
    def messages(self) -> Sequence[Message]:
        """Return the messages shown, in the order of the prompt."""
        return self.selection.messages

    @property
    def system(self) -> str:
        """Return the system prompt, empty if there is none."""
        return self.selection.system

    @property
    def tokens(self) -> int:
        """Return its cost in tokens, by the memory's counter."""
        return self.selection.tokens

    @cached_property
    def truncated(self) -> frozenset[int]:
        """Return the positions of messages shown with their middle left out."""
        cut = [reference for _, reference in self.selection.made if reference.how == "cut"]
        return frozenset(seq for reference in cut for seq in reference.seqs)

    @property
    def truncated_newest(self) -> bool:
        """Return whether the newest user message is shown with its middle left out."""
        shown = [m.seq for m in self.messages if m.role == "user" and m.seq]
        return bool(shown) and max(shown) in self.truncated

    @cached_property
    def why(self) -> Why:
        """Return what is included, what is left out, and the reason for each."""
        return Why(self.selection)

    @cached_property
    def text(self) -> str:
        """Return the conversation as `User: …` lines, without the system prompt."""
        return render_text(self.selection)

    def to_openai_chat(self, provider: str = "") -> dict[str, Any]:
        """Return `messages` for OpenAI's chat completions and compatible servers.

        Pass the host you send them to as `provider`: items it returned earlier, such as
        `reasoning_content`, are sent back only to it; other servers refuse them.
        """
        return openai_chat.render(self._for_api(), provider)

    def to_openai_responses(self, provider: str = "") -> dict[str, Any]:
        """Return `instructions` and `input` for OpenAI's responses.

        With a `provider`, items that are known to come from another host are left out.
        """
        return openai_responses.render(self._for_api(), provider)

    def to_anthropic(self, provider: str = "") -> dict[str, Any]:
        """Return `system` and `messages` for Anthropic's messages.

        With a `provider`, blocks that are known to come from another host are left out.
        """
        return anthropic.render(self._for_api(), provider)

    def _for_api(self) -> Selection:
        if self.is_text:
            raise InvalidInput(
                "this context was built with text=True, so its budget does not include API "
                "overhead; call context() without text=True"
            )
        return self.selection
