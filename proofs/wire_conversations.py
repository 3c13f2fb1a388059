"""Generated conversations that move from provider to provider, for the proof of the wires.

Replies go through the adapters' own parsers, as whole or truncated streams. Every call, image and
thought carries a mark of its own, so that it can be found in a request.
"""

import base64
import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import count
from typing import Any, Final, NamedTuple

from keepthread import Attachment, Message, Native, ToolCall
from keepthread.models.anthropic import MessageStreamParser
from keepthread.models.openai import ChatStreamParser
from keepthread.types import Origin, Reply, Role, Wire
from proofs.wire_streams import (
    TEXTS,
    Answer,
    answer,
    anthropic_events,
    chat_events,
    problems_with,
)

Random = random.Random


class Provider(NamedTuple):
    """A host, and the wire that it speaks."""

    wire: Wire
    host: str


PROVIDERS: Final = (
    Provider("openai-chat", "api.openai.com"),
    Provider("openai-chat", "api.deepseek.com"),
    Provider("openai-chat", "openrouter.ai"),
    Provider("anthropic", "api.anthropic.com"),
    Provider("anthropic", "claude.example.net"),
    Provider("openai-responses", "api.openai.com"),
    Provider("openai-responses", "azure.example.net"),
)
ODD_IDS: Final = ("", "call_0", "call_0", "call_1", "a.b", "x" * 41, "ö", " ", "toolu_1", "\0", "0")
ODD_NAMES: Final = ("look", "weather.now", "", "n" * 70, "a b", "ö")
ODD_ARGUMENTS: Final = ("", "{", "[]", "null", "{}", '{"a":NaN}', "x", '{"a":"\ud83d"}')
FOREIGN: Final[tuple[Origin, ...]] = ("web", "import", "tool")


class Conversation:
    """A conversation in the making."""

    def __init__(self, rng: Random) -> None:
        """Begin with nothing said."""
        self.rng = rng
        self.messages: list[Message] = []
        self.figures: dict[str, int] = {}
        self.misread: list[str] = []
        """In what replies differ from the answers that were sent."""
        self._marks = count(1)

    def made(self) -> list[Message]:
        """Return a conversation of a few turns."""
        rng = self.rng
        provider = rng.choice(PROVIDERS)
        if rng.random() < 0.2:
            self._say("system", attachments=self._attachments(0.3))
        for _ in range(rng.randint(1, 5)):
            if rng.random() < 0.4:
                other = rng.choice(PROVIDERS)
                self._count("provider switches", other != provider)
                provider = other
            self._turn(provider)
        if rng.random() < 0.5:
            self._ask()
        return self.messages

    def _count(self, figure: str, how_many: int = 1) -> None:
        self.figures[figure] = self.figures.get(figure, 0) + how_many

    def _mark(self, kind: str) -> str:
        return f"{kind}{next(self._marks)}z"

    def _say(self, role: Role, content: str | None = None, **more: Any) -> Message:
        text = self.rng.choice(TEXTS) if content is None else content
        message = Message(role=role, content=text, id=self._id(), **more)
        self.messages.append(message)
        return message

    def _id(self) -> str:
        kind = self.rng.random()
        if kind < 0.5:
            return f"message-{len(self.messages)}"
        digits = self.rng.randbytes(16).hex()
        return digits if kind < 0.8 else f"{digits[:12]}8{digits[13:16]}8{digits[17:]}"

    # --- turns ---

    def _ask(self) -> None:
        rng = self.rng
        origin = rng.choice(FOREIGN) if rng.random() < 0.1 else None
        author = rng.choice((None, None, "bob"))
        self._say("user", attachments=self._attachments(0.3), origin=origin, author=author)

    def _turn(self, provider: Provider) -> None:
        rng = self.rng
        self._ask()
        for _ in range(rng.choice((0, 1, 1, 2, 3))):
            if rng.random() < 0.2:
                self._odd_call()
            elif provider.wire == "openai-responses":
                self._responses_call(provider)
            else:
                self._call(provider)
        if rng.random() < 0.8:
            self._say("assistant", attachments=self._attachments(0.2))

    def _call(self, provider: Provider) -> None:
        """Have a model call tools: what the adapter heard, and the results."""
        said = answer(self.rng, self._mark("call"), whole=False)
        reply, ended = self._heard(provider, said)
        if not ended:
            self._count("truncated streams")
            if reply.content:
                self._say("assistant", reply.content)
            return
        message = self._say(
            "assistant", reply.content, tool_calls=reply.tool_calls, native=reply.native
        )
        self._count("native parts", reply.native is not None)
        self._results(message)

    def _heard(self, provider: Provider, said: Answer) -> tuple[Reply, bool]:
        """Return what an adapter makes of a stream, and whether the stream came to its end."""
        rng = self.rng
        thought = self._mark("thought") + provider.host
        shows = provider.host != "api.openai.com"  # which never sends its thoughts on this wire
        said = said._replace(thinking=thought if shows and rng.random() < 0.5 else "")
        chat = provider.wire == "openai-chat"
        heard = (
            ChatStreamParser({}, provider.host) if chat else MessageStreamParser({}, provider.host)
        )
        events = (
            chat_events(rng, said)
            if chat
            else anthropic_events(rng, said, rng.choice((f"sig-{provider.host}", "sig", "")))
        )
        if said.thinking and not chat and rng.random() < 0.3:  # of another model on this host
            events[1:1] = _sealed(thought)
        end = len(events) if rng.random() < 0.85 else rng.randrange(len(events))
        for event in events[:end]:
            heard.take(event)
        reply = heard.reply()
        if end == len(events):
            calls, cut = reply.tool_calls, reply.truncated
            self.misread += problems_with(said, reply.content, calls, cut=cut)
        return reply, heard.ended

    def _responses_call(self, provider: Provider) -> None:
        rng = self.rng
        said = answer(rng, self._mark("call"))
        ids = [f"call_{next(self._marks)}" for _ in said.calls]
        calls = [
            ToolCall(id=id, name=name, arguments=arguments)
            for id, (_, name, arguments) in zip(ids, said.calls, strict=True)
        ]
        if not calls and not said.text:
            return
        known = provider.host if rng.random() < 0.8 else ""
        items = self._responses_items(said.text, calls, self._mark("thought") + known)
        native = Native(provider.wire, items, known) if rng.random() < 0.8 else None
        self._count("native parts", native is not None)
        self._results(self._say("assistant", said.text, tool_calls=calls, native=native))

    def _responses_items(self, text: str, calls: Sequence[ToolCall], thought: str) -> list[Any]:
        number = next(self._marks)
        items: list[Any] = [
            {"type": "reasoning", "id": f"rs_{number}", "summary": [], "encrypted_content": thought}
        ]
        if text:
            part = {"type": "output_text", "text": text, "annotations": []}
            message = {"type": "message", "role": "assistant", "content": [part]}
            items.append({**message, "id": f"msg_{number}", "status": "completed"})
        return items + [
            {
                "type": "function_call",
                "id": f"fc_{number}_{n}",
                "call_id": call.id,
                "name": call.name,
                "arguments": call.arguments,
            }
            for n, call in enumerate(calls)
        ]

    def _odd_call(self) -> None:
        """Have another program store calls that no adapter would give."""
        rng = self.rng
        calls = [
            ToolCall(
                id=rng.choice(ODD_IDS),
                name=rng.choice(ODD_NAMES),
                arguments=rng.choice((*ODD_ARGUMENTS, f'{{"mark":"{self._mark("call")}-0"}}')),
            )
            for _ in range(rng.randint(1, 4))
        ]
        self._count("odd ids", len(calls))
        self._results(self._say("assistant", tool_calls=calls), in_order=True)

    def _results(self, message: Message, *, in_order: bool = False) -> None:
        """Have tools answer, some of them late, some never."""
        rng = self.rng
        self._count("parallel calls", len(message.tool_calls) > 1)
        results = [
            Message(
                role="tool",
                content=_result(call),
                tool_call_id=call.id,
                name=call.name,
                id=self._id() if rng.random() < 0.7 else "",
                attachments=self._attachments(0.3),
            )
            for call in message.tool_calls
        ]
        if not in_order:
            rng.shuffle(results)
            results = [result for result in results if rng.random() < 0.9]
        for result in results:
            self.messages.append(replace(result, id=result.id or f"message-{len(self.messages)}"))

    # --- attachments ---

    def _attachments(self, chance: float) -> list[Attachment]:
        found: list[Attachment] = []
        while self.rng.random() < chance:
            mark = self._mark("pic")
            data = base64.b64encode(f"{mark:·<24}".encode()).decode()
            kind, uri = self.rng.choice(
                (
                    ("image/png", f"https://example.org/{mark}.png"),
                    ("image/webp", f"data:image/webp;base64,{data}"),
                    ("application/octet-stream", f"data:image/png;base64,{data}"),
                    ("image/png", f"http://example.org/{mark}.png"),
                    ("image/tiff", f"https://example.org/{mark}.tiff"),
                    ("image/png", f"file:///home/{mark}.png"),
                    ("application/pdf", f"https://example.org/{mark}.pdf"),
                    ("image/png", f"data:image/png;base64,{data}="),
                )
            )
            found.append(Attachment(media_type=kind, name=f"{mark}.file", uri=uri))
        self._count("attachments", len(found))
        return found


def _result(call: ToolCall) -> str:
    """Return a result that says which call it answers."""
    return f"result for {call.arguments}" if "mark" in call.arguments else "a result"


def _sealed(thought: str) -> list[Any]:
    block = {"type": "redacted_thinking", "data": thought}
    return [
        {"type": "content_block_start", "index": 99, "content_block": block},
        {"type": "content_block_stop", "index": 99},
    ]
