"""P31: whatever was said with whichever provider, every provider takes it; no stream is misread.

Conversations of several turns move between providers of three wires: native parts, images,
parallel calls, odd ids, truncated streams. Each is rendered for several hosts, held against strict
rules for each wire, and searched for results at the wrong call and images or thoughts that are
lost or sent to strangers. For every five conversations two streams are fed to the adapters, cut
in two at every byte, byte by byte, and ended early. They go through the SDKs' own decoders by a
response in this process; whole requests go through the models and a transport in this process.
"""

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any, Final, NamedTuple

import anthropic as anthropic_sdk
import httpx2
import openai as openai_sdk

from keepthread import Context, Message, fit
from keepthread.errors import BudgetTooSmall, ModelCut, ModelError
from keepthread.models import AnthropicModel, OpenAIModel
from keepthread.models.anthropic import MessageStreamParser
from keepthread.models.limits import bound
from keepthread.models.openai import ChatStreamParser
from keepthread.models.request import Question
from keepthread.models.tokens import Estimator
from keepthread.testing.wires import anthropic_request, openai_chat_request, openai_responses
from keepthread.types import Reply, Wire
from proofs import Outcome, Progress, Proof
from proofs.responses_rules import refused
from proofs.wire_conversations import PROVIDERS, Conversation, Provider
from proofs.wire_laws import faults
from proofs.wire_streams import (
    Answer,
    answer,
    anthropic_events,
    chat_events,
    encoded,
    problems_with,
)

Random = random.Random

COUNTER: Final = Estimator()
ROOM: Final = 1_000_000
LONGEST: Final = 650
"""Bytes of a stream that is cut everywhere."""
ENDS: Final = 6
"""Places where a stream is ended early."""
ASKED: Final = [Message(role="user", content="Go on.")]
WIRES: Final[Sequence[Wire]] = ("openai-chat", "openai-responses", "anthropic")
HOSTS: Final = (*PROVIDERS, *(Provider(wire, "") for wire in WIRES))
EXTRA: Final = "reasoning_content"
FIGURES: Final = (
    *(f"invalid for {wire}" for wire in WIRES),
    *("results lost", "wrong result", "attachments missing", "charged wrongly"),
    *("thoughts to strangers", "thoughts lost", "under-counted"),
    *("misread", "misread when cut", "misread when ended early", "failures"),
)


# --- conversations ---


def conversation_faults(rng: Random, figures: Counter[str]) -> Iterator[tuple[str, str]]:
    """Yield what is wrong with the requests of one conversation."""
    made = Conversation(rng)
    messages = made.made()
    figures.update(made.figures)
    yield from (("misread", problem) for problem in made.misread)
    whole = rng.random() < 0.6
    try:
        context = fit(
            messages,
            ROOM if whole else rng.randint(60, 6000),
            system_prompt=rng.choice(("", "Be brief.")),
            counter=COUNTER,
        )
    except BudgetTooSmall:
        figures["budgets refused"] += 1
        return
    figures["contexts"] += 1
    given = sum(message.role == "tool" for message in messages)
    shown = sum(message.role == "tool" and bool(message.id) for message in context.messages)
    if whole and given != shown:
        yield "results lost", f"{given} are in the log, {shown} are chosen"
    for to in HOSTS:
        request = request_for(context, to)
        figures["requests"] += 1
        yield from ((f"invalid for {to.wire}", p) for p in invalid(request, to))
        yield from faults(context, to, request, COUNTER)


def request_for(context: Context, to: Provider) -> dict[str, Any]:
    """Return a request as the adapters make it; for a host that is not known, as a program does."""
    question = Question(context.selection)
    if to.wire == "openai-responses":
        return context.to_openai_responses(to.host)
    if to.wire == "openai-chat":
        model = OpenAIModel("m", key="k", base_url=f"https://{to.host}/v1") if to.host else None
        return model._request(question) if model else {"model": "m", **context.to_openai_chat()}
    claude = AnthropicModel("m", key="k", base_url=f"https://{to.host or 'example.org'}")
    request = claude._request(question)
    return request if to.host else request | context.to_anthropic()


def invalid(request: dict[str, Any], to: Provider) -> list[str]:
    """Return what a provider would refuse."""
    if to.wire == "openai-responses":
        return [*refused(request), *openai_responses.check(request)]
    if to.wire == "anthropic":
        return anthropic_request.check(request)
    if to.host not in ("", "api.openai.com"):  # whose the field is, is for the laws to say
        plain = [{k: v for k, v in m.items() if k != EXTRA} for m in request["messages"]]
        request = {**request, "messages": plain}
    return openai_chat_request.check(request)


# --- streams ---


class _Body(httpx2.AsyncByteStream):
    """A response's body in chunks."""

    def __init__(self, *chunks: bytes) -> None:
        self._chunks = chunks

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for chunk in self._chunks:
            yield chunk


class _Transport(httpx2.AsyncBaseTransport):
    """Answers every request with what it was given."""

    body: _Body

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        headers = {"content-type": "text/event-stream"}
        return httpx2.Response(200, headers=headers, stream=self.body)


class _ChatModel(OpenAIModel):
    transport: _Transport

    def _connected(self, sdk: Any, **settings: Any) -> Any:
        return super()._connected(sdk, **settings | _client(sdk, self.transport))


class _ClaudeModel(AnthropicModel):
    transport: _Transport

    def _connected(self, sdk: Any, **settings: Any) -> Any:
        return super()._connected(sdk, **settings | _client(sdk, self.transport))


def _client(sdk: Any, transport: _Transport) -> dict[str, Any]:
    hooks = {"response": [bound]}
    return {"http_client": sdk.DefaultAsyncHttpxClient(transport=transport, event_hooks=hooks)}


class Heard(NamedTuple):
    """What arrived of an answer."""

    pieces: Sequence[str]
    reply: Reply


class Adapter:
    """One adapter, with its SDK and a server in this process."""

    def __init__(self, wire: Wire) -> None:
        """Make the model; its SDK is loaded when it is first asked."""
        self.chat = wire == "openai-chat"
        self._sdk: Any = openai_sdk if self.chat else anthropic_sdk
        made = openai_sdk.AsyncOpenAI if self.chat else anthropic_sdk.AsyncAnthropic
        self._client = made(api_key="k", base_url="http://127.0.0.1")
        self._request = httpx2.Request("POST", "http://127.0.0.1/")
        kind = _ChatModel if self.chat else _ClaudeModel
        self._model = kind("m", base_url="http://127.0.0.1:1", retries=0)
        self._model.transport = _Transport()

    def stream(self, rng: Random, said: Answer) -> bytes:
        """Return an answer as a stream."""
        events = chat_events(rng, said) if self.chat else anthropic_events(rng, said)
        return encoded(rng, events, chat=self.chat)

    async def decoded(self, *chunks: bytes) -> Heard:
        """Return what the SDK's decoder and the adapter's parser make of a response."""
        response = httpx2.Response(200, stream=_Body(*chunks), request=self._request)
        await bound(response)
        events = self._sdk.AsyncStream[object](
            cast_to=object, response=response, client=self._client
        )
        heard = ChatStreamParser({}, "host") if self.chat else MessageStreamParser({}, "host")
        pieces = [piece async for event in events if (piece := heard.take(event))]
        if rest := heard.said.rest():
            pieces.append(rest)
        return Heard(pieces, heard.reply())

    async def asked(self, *chunks: bytes) -> Heard:
        """Return what the model makes of a whole turn over HTTP."""
        self._model.transport.body = _Body(*chunks)
        got: list[Any] = [piece async for piece in self._model.stream(ASKED)]
        return Heard(got[:-1], got[-1])

    async def close(self) -> None:
        """Close both clients."""
        await self._client.close()
        await self._model.close()


async def stream_faults(
    rng: Random, adapter: Adapter, figures: Counter[str]
) -> AsyncIterator[tuple[str, str]]:
    """Yield what is wrong with how an adapter reads one answer, however it is cut."""
    said, data = _short_stream(rng, adapter)
    whole = await adapter.decoded(data)
    reply = whole.reply
    for problem in problems_with(said, reply.content, reply.tool_calls, cut=reply.truncated):
        yield "misread", problem
    if "".join(whole.pieces) != said.text:
        yield "misread", f"the pieces are {whole.pieces}"
    for at in range(1, len(data)):
        if await adapter.decoded(data[:at], data[at:]) != whole:
            yield "misread when cut", f"at byte {at} of {data!r}"
            break
    figures["cuts"] += len(data) - 1
    asked = await adapter.asked(data)
    drops = await adapter.asked(*(data[at : at + 1] for at in range(len(data))))
    if not (_same(asked, whole) and _same(drops, whole)):
        yield "misread when cut", f"over HTTP, {drops} is not {whole}"
    for _ in range(ENDS):
        at = rng.randrange(len(data))
        figures["early ends"] += 1
        if problem := await _ended_early(adapter, data[:at], said, asked):
            yield "misread when ended early", f"at byte {at} of {data!r}: {problem}"


def _same(one: Heard, other: Heard) -> bool:
    """Tell whether two read the same; only the host that thoughts are of may differ."""
    return one.pieces == other.pieces and one.reply[:4] == other.reply[:4]


def _short_stream(rng: Random, adapter: Adapter) -> tuple[Answer, bytes]:
    while True:
        said = answer(rng, "call1z", whole=False, most_calls=2)
        data = adapter.stream(rng, said)
        if len(data) <= LONGEST:
            return said, data


async def _ended_early(adapter: Adapter, data: bytes, said: Answer, whole: Heard) -> str:
    """Return what is wrong with how a stream is read that breaks off: it is whole, or an error."""
    try:
        heard = await adapter.asked(data)
    except ModelCut as error:
        units = said.text.encode("utf-16-le")  # it may end with half a character
        begun = units.startswith(error.partial.encode("utf-16-le", "surrogatepass"))
        return "" if begun else f"{error.partial!r} is not its beginning"
    except ModelError:
        return ""
    same = heard.pieces == whole.pieces and heard.reply._replace(usage=None) == (
        whole.reply._replace(usage=None)
    )
    return "" if same else f"{heard} is not {whole}"


# --- the proof ---


def _run(size: int, seed: int, progress: Progress) -> Outcome:
    figures: Counter[str] = Counter()
    broken: list[str] = []

    def note(name: str, found: Sequence[tuple[str, str]]) -> None:
        for figure, problem in found:
            figures[figure] += 1
            broken.append(f"{name}: {figure}: {problem[:600]}")

    for number in range(size):
        rng = Random(f"{seed} conversation {number}")
        try:
            note(f"conversation {number}", list(conversation_faults(rng, figures)))
        except Exception as error:  # noqa: BLE001 - whatever it is, it is the proof's to report
            note(f"conversation {number}", [("failures", repr(error))])
        progress(number // 2, size)

    async def streams() -> None:
        adapters = [Adapter("openai-chat"), Adapter("anthropic")]
        for number in range(max(2, size * 2 // 5)):
            rng = Random(f"{seed} stream {number}")
            found = stream_faults(rng, adapters[number % 2], figures)
            try:
                note(f"stream {number}", [each async for each in found])
            except Exception as error:  # noqa: BLE001
                note(f"stream {number}", [("failures", repr(error))])
            figures["streams"] += 1
            progress(min(size, size // 2 + number), size)
        for adapter in adapters:
            await adapter.close()

    asyncio.run(streams())
    return Outcome(
        figures={**figures, **{name: figures[name] for name in FIGURES}}, broken=tuple(broken)
    )


PROOF: Final = Proof(
    name="P31",
    promise="every provider takes what was said with any other, and no stream is misread",
    unit="conversations",
    small=15,
    closing=5_000,
    long=100_000,
    run=_run,
)
