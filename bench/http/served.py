"""The two servers, each in processes of its own, and how to ask them."""

import json
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import count, cycle
from pathlib import Path
from typing import NamedTuple

from bench.corpus import texts, tokens_of
from bench.http.client import Address
from bench.postgres.fill import Filled
from bench.rates import TASKS, children
from bench.tasks import READ
from keepthread.apps.http.keys import KeyRights, create_key
from servers import free_port

WORKERS = 1
ROOT = Path(__file__).parents[2]
_SECONDS_TO_START = 300.0


class Served(NamedTuple):
    """Both servers over one database."""

    bare: Address
    ours: Address
    processes: Sequence["subprocess.Popen[bytes]"]

    def pids(self) -> list[int]:
        """Return the processes of both, without the database's."""
        return [pid for each in self.processes for pid in descendants(each.pid)]


def descendants(pid: int) -> list[int]:
    """Return a process and all below it."""
    found = children(pid)
    return [pid, *(each for child in found[1:] for each in descendants(child))]


@contextmanager
def served(filled: Filled, key: str) -> Iterator[Served]:
    """Start both servers; end them at the end."""
    with ExitStack() as stack:
        ports = {name: free_port() for name in ("bare", "ours")}
        processes = [
            stack.enter_context(_process(f"bench.http.{name}", filled.url, port))
            for name, port in ports.items()
        ]
        bare = Address(ports["bare"], {})
        ours = Address(ports["ours"], {"Authorization": f"Bearer {key}"})
        for port, path in ((bare.port, "/openapi.json"), (ours.port, "/readyz")):
            _wait_for(f"http://127.0.0.1:{port}{path}")
        yield Served(bare, ours, processes)


@contextmanager
def _process(module: str, url: str, port: int) -> Iterator["subprocess.Popen[bytes]"]:
    command = [sys.executable, "-m", module, url, str(port), str(WORKERS)]
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.DEVNULL) as process:
        try:
            yield process
        finally:
            process.terminate()


def _wait_for(url: str) -> None:
    until = time.monotonic() + _SECONDS_TO_START
    while True:
        try:
            with urllib.request.urlopen(url, timeout=5) as answer:
                assert answer.status == 200
                return
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(0.1)


async def new_key(filled: Filled) -> str:
    """Return the text of a key that acts for any owner."""
    rights = KeyRights("default", frozenset({"read", "write"}), "bench")
    made = await create_key(filled.store.server_tables(), rights, by="bench", at=time.time())
    return made.text


# --- requests ---


class Requests:
    """Requests to both servers, made before anything is measured."""

    def __init__(self, filled: Filled, served: Served) -> None:
        size = filled.tasks.size
        self._bare, self._ours = served.bare, served.ours
        self._tenant = filled.tenant
        self._sids = filled.used
        self._names = [session.id for session in filled.tasks.used]
        self._texts = cycle(texts(size))
        self._tokens = tokens_of(size)
        self._seq = count(1)

    def bare_appends(self, number: int) -> list[bytes]:
        """Return requests that insert a row each, into sessions of their own."""
        return [self._bare_append(place % TASKS) for place in range(number)]

    def _bare_append(self, task: int) -> bytes:
        body = {
            "role": "user",
            "content": next(self._texts),
            "seq": next(self._seq),
            "tokens": self._tokens,
        }
        return self._bare.request("POST", f"/sessions/{self._tenant}/-{1 + task}/messages", body)

    def bare_reads(self, number: int) -> list[bytes]:
        """Return requests that read the last rows of a session each."""
        paths = cycle(f"/sessions/{self._tenant}/{sid}/newest" for sid in self._sids)
        return [self._bare.request("GET", next(paths)) for _ in range(number)]

    def appends(self, number: int) -> list[bytes]:
        """Return requests that append a message each, to many sessions."""
        names = cycle(self._names)
        return [self.append(next(names), "default") for _ in range(number)]

    def append(self, session: str, owner: str) -> bytes:
        """Return a request that appends a message to a session."""
        body = {"messages": [{"role": "user", "content": next(self._texts)}]}
        return self._of(owner, "POST", f"/v1/sessions/{session}/messages", body)

    def contexts(self, number: int) -> list[bytes]:
        """Return requests that ask for a context each, of many sessions."""
        names = cycle(self._names)
        body = {"budget": READ * self._tokens}
        return [
            self._of("default", "POST", f"/v1/sessions/{next(names)}/context", body)
            for _ in range(number)
        ]

    def session(self, owner: str) -> bytes:
        """Return a request that makes an owner's session."""
        return self._of(owner, "PUT", "/v1/sessions/mine", {})

    def events(self, owner: str) -> bytes:
        """Return a request for the event stream of an owner."""
        return self._of(owner, "GET", "/v1/events")

    def _of(self, owner: str, method: str, path: str, body: object = None) -> bytes:
        return self._ours.request(method, path, body, **{"Keepthread-Owner": owner})


def check(answer: bytes) -> None:
    """Stop if a response is not one of success."""
    assert answer[9:10] == b"2", answer[:2000]


def size_of(answer: bytes) -> int:
    """Return the bytes of a response's body, which must be JSON."""
    body = answer.partition(b"\r\n\r\n")[2]
    json.loads(body)
    return len(body)
