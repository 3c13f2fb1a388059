"""The provider of P26: it answers as it was told, notes what it was asked, and cuts streams."""

import asyncio
import json
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple, TypeAlias

Wire: TypeAlias = Literal["chat", "anthropic", "responses"]
ReplyKind: TypeAlias = Literal["whole", "stream", "cut", "error"]
KINDS: Final[Sequence[ReplyKind]] = ("whole", "stream", "cut", "error")
PATHS: Final[Mapping[Wire, str]] = {
    "chat": "/chat/completions",
    "anthropic": "/messages",
    "responses": "/responses",
}
PROOF_ID: Final = "x-proof"
_PIECES: Final = 4


class Reply(NamedTuple):
    """How a request is answered."""

    kind: ReplyKind
    text: str
    delay: float = 0.0
    """Seconds before the first byte, and between the pieces of a stream."""


@dataclass
class Provider:
    """A provider on this machine."""

    replies: dict[str, Reply] = field(default_factory=dict[str, Reply])
    """By the id of the request."""
    asked: dict[str, bytes] = field(default_factory=dict[str, bytes])
    given: dict[str, bytes] = field(default_factory=dict[str, bytes])
    """Bodies that were sent to their end."""
    repeated: list[str] = field(default_factory=list[str])
    """Requests that came more than once."""
    port: int = 0

    @asynccontextmanager
    async def serving(self) -> AsyncGenerator["Provider"]:
        """Serve while the block runs."""
        server = await asyncio.start_server(self._answer, "127.0.0.1", 0, limit=1 << 24)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            server.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.IncompleteReadError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            headers = {
                name.lower(): value.strip()
                for name, _, value in (line.partition(":") for line in head[1:] if line)
            }
            body = await reader.readexactly(int(headers.get("content-length", "0")))
            id, path = headers[PROOF_ID], head[0].split()[1]
            if id in self.asked:
                self.repeated.append(id)
            self.asked[id] = body
            await self._reply(writer, id, _wire_of(path), self.replies[id])
        with suppress(OSError):
            writer.close()

    async def _reply(self, writer: asyncio.StreamWriter, id: str, wire: Wire, reply: Reply) -> None:
        await asyncio.sleep(reply.delay)
        if reply.kind in ("whole", "error"):
            is_error = reply.kind == "error"
            body = error_of(reply.text) if is_error else whole(wire, reply.text)
            status = "429 Too Many Requests" if is_error else "200 OK"
            head = f"HTTP/1.1 {status}\r\ncontent-type: application/json\r\nx-odd:  kept \r\n"
            head += f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
            writer.write(head.encode() + body)
            await writer.drain()
            self.given[id] = body
            return
        head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"
        writer.write(f"{head}transfer-encoding: chunked\r\nconnection: close\r\n\r\n".encode())
        events = [*stream(wire, reply.text)]
        sent = events if reply.kind == "stream" else events[: len(events) // 2]
        for event in sent:
            writer.write(f"{len(event):x}\r\n".encode() + event + b"\r\n")
            await writer.drain()
            await asyncio.sleep(reply.delay / 10)
        if reply.kind == "stream":
            writer.write(b"0\r\n\r\n")
            await writer.drain()
            self.given[id] = b"".join(events)


# --- the APIs ---


def _wire_of(path: str) -> Wire:
    if path.partition("?")[0].endswith(PATHS["chat"]):
        return "chat"
    return "anthropic" if path.partition("?")[0].endswith(PATHS["anthropic"]) else "responses"


def error_of(text: str) -> bytes:
    """Return the body of an error."""
    return json.dumps({"error": {"message": text, "type": "rate_limit"}}).encode()


def whole(wire: Wire, text: str) -> bytes:
    """Return an answer in one piece, with white space that a program would not write."""
    return json.dumps(_answer(wire, text), indent=1).encode()


def _answer(wire: Wire, text: str) -> dict[str, Any]:
    if wire == "chat":
        message = {"role": "assistant", "content": text}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        return {"id": "c", "object": "chat.completion", "model": "m", "choices": [choice]}
    if wire == "anthropic":
        return {
            "id": "msg",
            "type": "message",
            "role": "assistant",
            "model": "m",
            "content": [{"type": "text", "text": text}],
            "stop_reason": "end_turn",
            "usage": {"input_tokens": 1, "output_tokens": 1},
        }
    return {"id": "r", "object": "response", "status": "completed", "output": [_item(text)]}


def _item(text: str) -> dict[str, Any]:
    part = {"type": "output_text", "text": text, "annotations": []}
    return {
        "type": "message",
        "id": "m1",
        "role": "assistant",
        "status": "completed",
        "content": [part],
    }


def stream(wire: Wire, text: str) -> Iterator[bytes]:
    """Yield the events of an answer in a stream."""
    pieces = _pieces(text)
    if wire == "chat":
        for piece in pieces:
            yield _event({"choices": [{"index": 0, "delta": {"content": piece}}]})
        yield _event({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
        yield b"data: [DONE]\n\n"
    elif wire == "anthropic":
        yield from _anthropic(pieces)
    else:
        yield from _responses(text, pieces)


def _anthropic(pieces: Sequence[str]) -> Iterator[bytes]:
    message = {**_answer("anthropic", ""), "content": [], "stop_reason": None}
    yield _named({"type": "message_start", "message": message})
    block = {"type": "text", "text": ""}
    yield _named({"type": "content_block_start", "index": 0, "content_block": block})
    for piece in pieces:
        delta = {"type": "text_delta", "text": piece}
        yield _named({"type": "content_block_delta", "index": 0, "delta": delta})
    yield _named({"type": "content_block_stop", "index": 0})
    end = {"stop_reason": "end_turn"}
    yield _named({"type": "message_delta", "delta": end, "usage": {"output_tokens": 1}})
    yield _named({"type": "message_stop"})


def _responses(text: str, pieces: Sequence[str]) -> Iterator[bytes]:
    begun = {"id": "r", "object": "response", "status": "in_progress", "output": []}
    where = {"output_index": 0, "item_id": "m1", "content_index": 0}
    yield _named({"type": "response.created", "response": begun})
    item = {**_item(""), "status": "in_progress", "content": []}
    yield _named({"type": "response.output_item.added", "output_index": 0, "item": item})
    part = {"type": "output_text", "text": "", "annotations": []}
    yield _named({"type": "response.content_part.added", **where, "part": part})
    for piece in pieces:
        yield _named({"type": "response.output_text.delta", **where, "delta": piece})
    yield _named({"type": "response.output_text.done", **where, "text": text})
    yield _named({"type": "response.output_item.done", "output_index": 0, "item": _item(text)})
    yield _named({"type": "response.completed", "response": _answer("responses", text)})


def _pieces(text: str) -> list[str]:
    size = max(1, len(text) // _PIECES)
    return [text[at : at + size] for at in range(0, len(text), size)]


def _event(value: Mapping[str, Any]) -> bytes:
    return f"data: {json.dumps(value)}\n\n".encode()


def _named(value: Mapping[str, Any]) -> bytes:
    return f"event: {value['type']}\n".encode() + _event(value)


def heard(wire: Wire, body: bytes) -> str:
    """Return the text of a stream as far as it came."""
    found: list[str] = []
    for line in body.decode("utf-8", "ignore").split("\n"):
        with suppress(ValueError, KeyError, IndexError, TypeError):
            event = json.loads(line.removeprefix("data: ")) if line.startswith("data: {") else {}
            if wire == "chat":
                found.append(event["choices"][0]["delta"].get("content", ""))
            elif event["type"] == "content_block_delta":
                found.append(event["delta"]["text"])
            elif event["type"] == "response.output_text.delta":
                found.append(event["delta"])
    return "".join(found)
