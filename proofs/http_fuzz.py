"""Requests made from the OpenAPI document, valid and invalid, against a real server.

Schemathesis makes the requests. Whatever is sent, the server answers with a status and a body that
the document declares, and never fails inside. Most ids are of things that exist, so that
requests reach further than "not found".
"""

import random
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, cast

import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.errors import Unsatisfiable
from requests import Session
from schemathesis import Case, GenerationMode
from schemathesis.checks import (
    content_type_conformance,
    not_a_server_error,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from keepthread.apps.http.caller import OWNER_HEADER

CHECKS: Final = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]
KNOWN: Final = 0.8
"""How many of the ids are of things that exist."""
STREAMS: Final = frozenset({"watch_events"})
"""Operations whose response does not end by itself; tests of their own cover them."""


@dataclass
class FuzzTally:
    """What was seen so far."""

    requests: int = 0
    by_status: Counter[int] = field(default_factory=Counter)
    succeeded: Counter[str] = field(default_factory=Counter)
    """Requests with a status of success, by operation."""
    broken: list[str] = field(default_factory=list)


class HttpFuzz:
    """One run against a server that listens."""

    def __init__(self, address: str, key: str, owner: str, known: Mapping[str, str]) -> None:
        """Take where the server is, a key, an owner, and ids of things that the owner has."""
        self._address = address
        self._known = known
        self._session = Session()
        self._headers = {"Authorization": f"Bearer {key}", OWNER_HEADER: owner}
        schema = schemathesis.openapi.from_url(f"{address}/openapi.json")
        found: list[Any] = [cast(Any, each).ok() for each in schema.get_all_operations()]
        self.operations = [
            each
            for each in found
            if each.definition.raw.get("x-scope") and each.label and not _streams(each)
        ]
        self.tally = FuzzTally()

    def run(self, size: int, number: int, progress: Callable[[int, int], None]) -> FuzzTally:
        """Send `size` requests or a few more, over all operations; `number` is the seed."""
        rng = random.Random(number)
        ways = [(each, mode) for each in self.operations for mode in GenerationMode]
        rng.shuffle(ways)
        while (missing := size - self.tally.requests) > 0:
            each_way = max(1, missing // len(ways))
            for operation, mode in ways:
                self._send_some(operation, mode, each_way, rng)
                progress(self.tally.requests, max(size, self.tally.requests))
        return self.tally

    def _send_some(self, operation: Any, mode: Any, count: int, rng: random.Random) -> None:
        @seed(rng.randrange(2**32))
        @settings(
            max_examples=count,
            deadline=None,
            database=None,
            phases=[Phase.generate],
            suppress_health_check=[*cast(Any, HealthCheck)],
        )
        @given(operation.as_strategy(generation_mode=mode))
        def send(case: Case) -> None:
            self._send(case, rng)

        try:
            send()
        except Unsatisfiable:  # an operation without parameters cannot be asked in a wrong way
            return

    def _send(self, case: Case, rng: random.Random) -> None:
        is_lasting = case.method != "DELETE"  # else the others would not find it
        for name, value in self._known.items():
            if name in (case.path_parameters or {}) and is_lasting and rng.random() < KNOWN:
                case.path_parameters[name] = value
        headers = dict(self._headers)
        if case.method == "PATCH" and rng.random() < KNOWN:
            headers["If-Match"] = "*"
        response = case.call(
            base_url=self._address, session=self._session, headers=headers, timeout=300
        )
        self.tally.requests += 1
        self.tally.by_status[response.status_code] += 1
        name = case.operation.definition.raw["operationId"]
        self.tally.succeeded[name] += response.status_code < 300
        try:
            case.validate_response(response, checks=CHECKS)
        except (AssertionError, BaseExceptionGroup) as error:
            self.tally.broken.append(f"{name}: {error}")


def _streams(operation: Any) -> bool:
    return operation.definition.raw["operationId"] in STREAMS
