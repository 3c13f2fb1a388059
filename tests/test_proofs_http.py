"""The promise that nothing is lost over HTTP, in small, and that its proof is not blind."""

import asyncio
import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx2
import pytest

from keepthread import Message
from keepthread.types import SessionInfo
from proofs.http_clients import Documented
from proofs.http_faults import Relay
from proofs.http_journal import Found, Journal, Person, compare
from proofs.p24_http import PROOF
from servers import postgres
from tests.conftest import started
from tests.proving import hold

DOCUMENT = Path(__file__).parents[1] / "docs/reference/openapi.json"
ANN, BOB = Person("acme", "ann"), Person("acme", "bob")
ASKS, ANSWERED = "1 asks", "1 is answered"


def test_nothing_is_lost_doubled_or_given_to_another_owner_over_http() -> None:
    assert hold(PROOF).figures["kills"] == 1


@pytest.mark.nightly
def test_nothing_is_lost_while_the_database_restarts() -> None:
    started(postgres.find_programs)
    hold(PROOF, PROOF.on["postgres"])


# --- what the proof sees ---


def log_of(*texts: str, turn: int = 1) -> list[Message]:
    return [
        Message(role="user", content=text, id=text, seq=n, turn=turn)
        for n, text in enumerate(texts, 1)
    ]


def found(person: Person, log: Sequence[Message], id: str = "talk", title: str = "talk") -> Found:
    return Found(person, SessionInfo(id=id, title=title, owner=person.owner), log)


def told() -> Journal:
    """Return the journal of a turn that was acknowledged at 1 and 2."""
    journal = Journal()
    journal.sessions = {(person, "talk"): "talk" for person in (ANN, BOB)}
    for seq, text in enumerate((ASKS, ANSWERED), 1):
        sent = journal.begin(ANN, "talk", "1", text)
        journal.acknowledge(sent, {"seq": seq, "id": text, "content": text})
    return journal


@pytest.mark.parametrize(
    ("store", "broken"),
    [
        ([found(ANN, log_of(ASKS, ANSWERED)), found(BOB, [])], ""),
        ([found(ANN, log_of(ASKS)), found(BOB, [])], "acknowledged, and is not stored"),
        ([found(ANN, log_of(ASKS, ANSWERED, ANSWERED)), found(BOB, [])], "stored twice"),
        ([found(ANN, log_of(ANSWERED, ASKS)), found(BOB, [])], "is at 2"),
        ([found(ANN, []), found(BOB, log_of(ASKS, ANSWERED))], "is stored for"),
        ([found(ANN, log_of(ASKS, ANSWERED, "2 asks")), found(BOB, [])], "nobody sent"),
        (
            [found(ANN, [*log_of(ASKS), *log_of("", ANSWERED, turn=2)[1:]]), found(BOB, [])],
            "its turn is 1",
        ),
        (
            [found(ANN, log_of(ASKS, ANSWERED)), found(BOB, []), found(BOB, [], "other")],
            "exists 2 times",
        ),
        (
            [found(ANN, log_of(ASKS, ANSWERED)), found(BOB, [], "b", "mine"), found(BOB, [])],
            "nobody created",
        ),
        ([found(ANN, log_of(ASKS, ANSWERED), id="t"), found(BOB, [])], "was created as talk"),
    ],
)
def test_the_proof_sees_what_is_lost_twice_moved_or_given_away(
    store: list[Found], broken: str
) -> None:
    verdict = compare(told(), store)
    assert bool(verdict.broken) is bool(broken)
    assert broken in "\n".join(verdict.broken)


def test_the_proof_sees_a_message_before_one_that_was_acknowledged_earlier() -> None:
    journal = told()
    later = journal.begin(ANN, "talk", "2", "2 asks")
    journal.acknowledge(later, None)
    verdict = compare(journal, [found(ANN, log_of("2 asks", ASKS, ANSWERED)), found(BOB, [])])
    assert verdict.moved == 3


def test_a_message_that_was_not_acknowledged_may_be_missing() -> None:
    journal = told()
    journal.begin(ANN, "talk", "2", "2 asks")
    assert not compare(journal, [found(ANN, log_of(ASKS, ANSWERED)), found(BOB, [])]).broken


def test_an_acknowledgment_of_another_text_is_noted() -> None:
    journal = told()
    sent = journal.begin(ANN, "talk", "2", "2 asks")
    journal.acknowledge(sent, {"seq": 3, "id": "x", "content": "3 asks"})
    assert "was acknowledged as '3 asks'" in journal.broken[0]


PROBLEM = {"title": "a", "detail": "b", "retryable": True}


@pytest.mark.parametrize(
    ("status", "body", "fault"),
    [
        (503, PROBLEM | {"status": 503, "type": "unavailable"}, None),
        (409, PROBLEM | {"status": 409, "type": "request_in_flight"}, None),
        (500, PROBLEM | {"status": 500, "type": "internal_error"}, "500 internal_error"),
        (503, PROBLEM | {"status": 503, "type": "tired"}, "not documented for 503"),
        (418, PROBLEM | {"status": 418, "type": "teapot"}, "418, which is not documented"),
        (401, PROBLEM | {"status": 401, "type": "invalid_key", "retryable": False}, "401"),
        (503, {"type": "unavailable"}, "another shape"),
    ],
)
def test_the_proof_sees_responses_that_are_not_documented(
    status: int, body: dict[str, Any], fault: str | None
) -> None:
    documented = Documented(json.loads(DOCUMENT.read_text("utf-8")))
    response = httpx2.Response(
        status,
        json=body,
        headers={"Content-Type": "application/problem+json"},
        request=httpx2.Request("POST", "http://127.0.0.1/v1/sessions/talk/turns"),
    )
    seen = documented.fault(response)
    assert (seen is None) is (fault is None)
    assert (fault or "") in (seen or "")


async def test_the_relay_cuts_in_both_directions() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1000):
            writer.write(data)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    relay = Relay(server.sockets[0].getsockname()[1], random.Random(1), 12_000)
    async with server, relay.listening():
        while not all(relay.cuts[what] for what in ("requests", "responses")):
            reader, writer = await asyncio.open_connection("127.0.0.1", relay.port)
            writer.write(bytes(20_000))
            writer.write_eof()
            try:
                got = await reader.read()
            except ConnectionError:
                continue
            finally:
                writer.transport.abort()
            assert len(got) <= 20_000
