"""A server on this machine that speaks the APIs of providers, and answers from a script.

It supports OpenAI's chat completions and Responses, and Anthropic's messages. It checks each
request as strictly as the provider does, and answers with the lines of a script: whole or in a
stream, slowly, with an error, or incompletely. As a program it serves until it is stopped:

    python -m keepthread.testing.server --port 8080 --script lines.json --echo
"""

import argparse
import json
import sys
import threading
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Self

from keepthread.testing.connection import Switchboard
from keepthread.testing.play import Play
from keepthread.testing.script import Gate, Line, Received, Say
from keepthread.testing.wires import is_list, is_object
from keepthread.types import ToolCall, Usage

__all__ = ["Gate", "Line", "Received", "Say", "ScriptedServer", "lines_of"]


class ScriptedServer(Play):
    """Serves a script while its block runs: a line for each request, in the order they arrive.

    A request that the provider would refuse is refused, and takes no line. `otherwise` is the
    answer after the last line; without it, the server then returns an error that says so.

    >>> with ScriptedServer(["Sunny.", Say(status=429, headers={"Retry-After": "1"})]) as server:
    ...     print(server.openai, server.anthropic)
    """

    def __init__(
        self,
        script: Iterable[Line] = (),
        *,
        key: str | None = None,
        models: Iterable[str] = (),
        otherwise: Line | None = None,
        port: int = 0,
        window: int | None = None,
    ) -> None:
        """Take the script, the required key, and the known models; if None, all are known.

        `window` is the number of tokens that its list says each model takes.
        """
        super().__init__(script, key=key, models=models, otherwise=otherwise, window=window)
        self._switchboard = Switchboard(self, port)
        self._thread = threading.Thread(target=self._switchboard.serve_forever, args=(0.02,))

    @property
    def anthropic(self) -> str:
        """Return the base URL for Anthropic's SDK."""
        return f"http://127.0.0.1:{self._switchboard.server_address[1]}"

    @property
    def openai(self) -> str:
        """Return the base URL for OpenAI's SDK."""
        return f"{self.anthropic}/v1"

    def __enter__(self) -> Self:
        """Serve."""
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop serving; answers that are being sent are cut off."""
        self.closing.set()
        self._switchboard.shutdown()
        self._thread.join()
        self._switchboard.hang_up()
        self._switchboard.server_close()


def lines_of(text: str) -> list[Line]:
    """Return the script in a JSON text: strings, and objects with the fields of `Say`."""
    lines = json.loads(text)
    if not is_list(lines):
        raise ValueError("a script is a JSON array of strings and objects")
    return [_line(line) for line in lines]


def _line(line: Any) -> Line:
    if isinstance(line, str):
        return line
    if not is_object(line):
        raise ValueError(f"a line is a string or an object, not {line!r}")
    fields = dict(line)
    known = [name for name in Say._fields if not name.startswith("hold")]
    if strange := fields.keys() - set(known):
        raise ValueError(f"a line has no {min(strange)!r}; it has {', '.join(known)}")
    if "usage" in fields:
        fields["usage"] = Usage(**fields["usage"])
    fields["tool_calls"] = tuple(_call(**call) for call in fields.get("tool_calls", ()))
    return Say(**fields)


def _call(id: str, name: str, arguments: Any = "{}") -> ToolCall:
    said = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return ToolCall(id=id, name=name, arguments=said)


def _echo(every: float, asked: Received) -> Say:
    return Say(f"You said: {asked.text}", every=every)


def main(arguments: Sequence[str] | None = None) -> None:
    """Serve, and print the URLs, until the program is stopped."""
    parser = argparse.ArgumentParser(
        prog="python -m keepthread.testing.server",
        description="A model on this machine that says what a script says.",
    )
    parser.add_argument("--port", type=int, default=0, help="0 takes a free one")
    parser.add_argument("--script", type=Path, help="a JSON array of strings and Say objects")
    parser.add_argument("--echo", action="store_true", help="say again what was asked")
    parser.add_argument("--every", type=float, default=0.0, help="seconds between echoed words")
    parser.add_argument("--key", help="the key to ask for")
    options = parser.parse_args(arguments)
    script = lines_of(options.script.read_text("utf-8")) if options.script else ()
    otherwise = partial(_echo, options.every) if options.echo else None
    server = ScriptedServer(script, key=options.key, otherwise=otherwise, port=options.port)
    with server, suppress(KeyboardInterrupt):
        sys.stdout.write(f"openai {server.openai}\nanthropic {server.anthropic}\n")
        sys.stdout.flush()
        threading.Event().wait()


if __name__ == "__main__":
    main()
