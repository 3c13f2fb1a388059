"""A context: what a model will see, what it costs and why, ready for text and three wires."""

from collections.abc import Sequence
from functools import cached_property
from typing import Any

from keepthread.context import anthropic, openai_chat, openai_responses, text
from keepthread.context.why import Why
from keepthread.types import Message, Selection


class Context:
    """What a strategy selected, with a rendering for whoever asks."""

    def __init__(self, selection: Selection) -> None:
        """Wrap a selection; nothing is rendered yet."""
        self.selection = selection

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
        """Return what it costs, by our own counter."""
        return self.selection.tokens

    @cached_property
    def why(self) -> Why:
        """Return what is in, what is out, and the reason for each."""
        return Why(self.selection)

    @cached_property
    def text(self) -> str:
        """Return the conversation as `User: …` lines, without the system prompt."""
        return text.render(self.selection)

    def to_openai_chat(self, provider: str = "") -> dict[str, Any]:
        """Return `messages` for OpenAI's chat completions and servers that are compatible.

        Pass the host you send them to as `provider`: items that it gave itself, such as
        `reasoning_content`, go back to it alone. Other servers refuse them.
        """
        return openai_chat.render(self.selection, provider)

    def to_openai_responses(self, provider: str = "") -> dict[str, Any]:
        """Return `instructions` and `input` for OpenAI's responses.

        With a `provider`, items that are known to come from another host are left out.
        """
        return openai_responses.render(self.selection, provider)

    def to_anthropic(self, provider: str = "") -> dict[str, Any]:
        """Return `system` and `messages` for Anthropic's messages.

        With a `provider`, blocks that are known to come from another host are left out.
        """
        return anthropic.render(self.selection, provider)
