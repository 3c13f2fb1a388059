"""Chat through a proxy, two workers and a pooled database, and say in plain words what happened.

The services are those of deploy/compose.postgres.yaml, as plain processes. `scripts/stack` calls
this.
"""

import signal
import ssl
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import httpx2

from servers import Missing
from servers.stack import NAME, WORKERS, Stack, running

USAGE: Final = "usage: scripts/stack [--stay]"
SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
INTERRUPTED: Final = 130
PATIENCE: Final = 60.0


class Steps:
    """Numbers the steps and prints them."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._number = 0

    def __call__(self, text: str) -> None:
        """Print one step."""
        self._number += 1
        print(f"{self._number:2}. {text}", flush=True)

    def end(self) -> None:
        """Print how long all of it took."""
        print(f"Everything is stopped, after {time.monotonic() - self._began:.1f} s.", flush=True)


class Chat:
    """A client of the stack: one person's program."""

    def __init__(self, stack: Stack, say: Steps) -> None:
        self._stack = stack
        self._say = say
        trusted = ssl.create_default_context(cafile=stack.certificate)
        headers = {"Authorization": f"Bearer {stack.key}", "Host": NAME}
        self.responses: list[str] = []
        """The ids of all responses."""
        self.client = httpx2.Client(
            base_url=f"{stack.url}/v1",
            headers=headers,
            verify=trusted,
            timeout=PATIENCE,
            event_hooks={"response": [self._note]},
        )

    def _note(self, answer: httpx2.Response) -> None:
        self.responses.append(answer.headers["Keepthread-Request-Id"])

    def worker(self, response: str) -> str:
        """Return which worker made a response: its log has the id, a moment later."""
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            for name in WORKERS:
                if f'"request": "{response}"' in self._stack.log(name):
                    return name
            time.sleep(0.05)
        raise RuntimeError(f"no worker has logged the request {response}")

    def post(self, path: str, body: Any, **headers: str) -> httpx2.Response:
        """Send a request, which must succeed."""
        return self.checked(self.client.post(path, json=body, headers=headers))

    def checked(self, answer: httpx2.Response) -> httpx2.Response:
        """Return a response, or fail with what the server said."""
        if not answer.is_success:
            raise RuntimeError(
                f"{answer.request.url.path} answered {answer.status_code}: {answer.text}"
            )
        return answer

    def refuses(self) -> None:
        """Show what the server does not answer."""
        codes = {
            "without a key": self.client.get("/sessions", headers={"Authorization": ""}),
            "by another name": self.client.get("/sessions", headers={"Host": "evil.example"}),
        }
        for how, answer in codes.items():
            problem = answer.json()
            self._say(f"A request {how} is refused: {answer.status_code} {problem['type']}.")
            if answer.is_success:
                raise RuntimeError(f"a request {how} was answered")

    def turn(self, number: int, text: str, answer: str) -> None:
        """Do one turn: store the question, build the context, store the answer."""
        turn = f"turns/question-{number}"
        self.post("/sessions/trip/turns", {"id": f"question-{number}", "text": text})
        asked = {"budget": 500, "format": "openai-chat"}
        context = self.post(f"/sessions/trip/{turn}/context", asked).json()
        shown = context["rendered"]["messages"]
        self.post(f"/sessions/trip/{turn}/finish", {"text": answer})
        count = f"{len(shown)} message{'s' * (len(shown) > 1)}"
        self._say(f"ana asks: {text} The model is shown {count}, and answers: {answer}")

    @contextmanager
    def watching(self, after: str | None = None) -> Iterator[Iterator[tuple[str, str]]]:
        """Open the stream of events; yield what iterates over (kind, id of the stream)."""
        headers = {"Last-Event-ID": after} if after else {}
        with self.client.stream("GET", "/events", headers=headers) as answer:
            if not answer.is_success:
                raise RuntimeError(f"/events answered {answer.status_code}")
            yield _events(answer.iter_lines())


def _events(lines: Iterator[str]) -> Iterator[tuple[str, str]]:
    """Yield the kind and the id of each event; a comment has an id, and the kind ``."""
    kind = identity = ""
    for line in lines:
        name, _, value = line.partition(": ")
        if name == "event":
            kind = value
        elif name == "id":
            identity = value
        elif not line and identity:
            yield kind, identity
            kind = identity = ""


def chat(stack: Stack, say: Steps) -> None:
    """Use every part of the stack once."""
    person = Chat(stack, say)
    person.refuses()
    made = person.checked(person.client.put("/sessions/trip", json={"title": "A trip"}))
    say(f"ana's session `trip` is created: {made.status_code}.")
    with person.watching() as events:
        next(events)  # it has begun
        person.turn(1, "I am allergic to hazelnuts.", "I will remember it.")
        kind, seen = next(each for each in events if each[0])
        say(f"An event arrives while its stream is open: `{kind}`. The proxy does not buffer it.")
    first = person.post("/sessions", {"title": "Notes"}, **{"Idempotency-Key": "notes-1"})
    say(f"A request with an Idempotency-Key has made a session: {first.status_code}.")
    gone = person.worker(person.responses[-1])
    status = stack.stop(gone)
    say(f"{gone}, which answered it, is stopped as an upgrade does: exit status {status}.")
    again = person.post("/sessions", {"title": "Notes"}, **{"Idempotency-Key": "notes-1"})
    if again.json()["id"] != first.json()["id"] or "Idempotency-Replayed" not in again.headers:
        raise RuntimeError("the repeated request was done twice")
    if person.worker(person.responses[-1]) == gone:
        raise RuntimeError(f"{gone} answered after its end")
    say("The same request again gets the same session from the other worker; it was done once.")
    person.turn(2, "May I eat Nutella?", "No, it has hazelnuts.")
    with person.watching(seen) as events:
        kind, _ = next(each for each in events if each[0])
        say(f"A stream with Last-Event-ID continues at the other worker: `{kind}`.")
    messages = person.checked(person.client.get("/sessions/trip/messages")).json()["items"]
    say(f"The log of `trip` has {len(messages)} messages: none is lost, none is stored twice.")
    counts = Counter(map(person.worker, person.responses))
    shares = ", ".join(f"{worker} {counts[worker]}" for worker in WORKERS)
    say(f"Requests by worker: {shares}.")


def _stay(stack: Stack) -> None:
    """Keep everything running until Ctrl-C."""
    key = stack.folder / "key"
    key.touch(0o600)
    key.write_text(stack.key)
    print(
        "Everything stays. In another terminal, until Ctrl-C stops it here:\n"
        f"curl --cacert {stack.certificate} {stack.url}/v1/sessions"
        f' -H "Host: {NAME}" -H "Authorization: Bearer $(cat {key})"',
        flush=True,
    )
    while True:
        signal.pause()


def _interrupt(*_: object) -> None:
    """Stop once: another signal does not keep the services from being stopped."""
    for each in SIGNALS:
        signal.signal(each, signal.SIG_IGN)
    raise KeyboardInterrupt


def main(arguments: list[str]) -> int:
    """Run it all; return the exit status."""
    if arguments not in ([], ["--stay"]):
        print(USAGE, file=sys.stderr)
        return 2
    for each in SIGNALS:
        signal.signal(each, _interrupt)
    say = Steps()
    finished = False
    try:
        with running(say) as stack:
            chat(stack, say)
            finished = True
            if arguments:
                _stay(stack)
    except KeyboardInterrupt:
        pass
    except Missing as error:
        print(error, file=sys.stderr)
        return 1
    say.end()
    return 0 if finished else INTERRUPTED


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
