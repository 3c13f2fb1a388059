"""Draw a chat that is killed and continues, as an animated SVG: a real shell, the real program.

The model is a scripted server. A reader who wants no motion sees the last picture.
"""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, NamedTuple

from keepthread.testing.server import ScriptedServer
from tests.chatting import KEEPTHREAD, Chat, home
from tests.terminal import Terminal, svg

FILE: Final = Path(__file__).parents[1] / "docs" / "assets" / "animation" / "chat.svg"
TITLE: Final = "A chat that is killed, and continues"
COLUMNS, ROWS = 84, 22
ANSWERS: Final = (
    "It is **32 °C** and sunny in Jakarta.",
    "**18 °C** and cloudy, 14 degrees cooler than Jakarta.",
)
EDGE: Final = re.compile(r'(<rect fill="[^"]+" stroke="[^"]+"[^>]* height=")([\d.]+)(")')


class Frame(NamedTuple):
    """A picture, and how long it is shown."""

    picture: str
    seconds: float


@contextmanager
def shell() -> Iterator[Terminal]:
    """Open a shell in a terminal, with a model that answers from a script."""
    with TemporaryDirectory() as place, ScriptedServer(ANSWERS) as server:
        at = home(
            Path(place),
            server,
            KEEPTHREAD_MODEL_NAME="qwen3:8b",
            TIKTOKEN_CACHE_DIR=str(Path(place) / "none"),  # the estimator is everywhere the same
        )
        path = f"{Path(KEEPTHREAD).parent}{os.pathsep}{os.environ['PATH']}"
        env = {**at.env, "PS1": "$ ", "PATH": path, "TZ": "UTC"}
        command = ["bash", "--norc", "--noprofile"]
        with Terminal(command, env=env, cwd=at.folder, columns=COLUMNS, rows=ROWS) as terminal:
            yield terminal


def frames() -> list[Frame]:
    """Chat, kill the program, continue, and ask why."""
    taken: list[Frame] = []

    def take(seconds: float) -> None:
        terminal.settle()
        taken.append(Frame(svg(terminal, TITLE), seconds))

    with shell() as terminal:
        chat = Chat(terminal)

        def run(command: str) -> None:
            chat.type(command)
            take(0.8)
            terminal.key("enter")
            chat.asked()

        def ask(question: str) -> None:
            chat.type(question)
            take(0.9)
            terminal.key("enter")
            chat.asked()
            take(1.2)

        terminal.wait_for("$")
        run("keepthread chat")
        ask("What is the weather in Jakarta?")
        kill(terminal)
        take(1.0)
        run("keepthread chat -c")
        ask("How about Tokyo?")
        chat.type("/why")
        terminal.key("enter")
        chat.asked()
        take(3.2)
    return taken


def kill(terminal: Terminal) -> None:
    """Kill the program that runs in the shell, as a crash would."""
    found = subprocess.run(  # noqa: S603
        ["/usr/bin/pgrep", "-P", str(terminal.pid)], capture_output=True, text=True, check=True
    )
    os.kill(int(found.stdout.split()[0]), signal.SIGKILL)
    terminal.wait_for("Killed")


def animated(taken: list[Frame]) -> str:
    """Show one picture after the other, all in a window of the same height, again and again."""
    sizes = [re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', frame.picture) for frame in taken]
    width = max(float(size[1]) for size in sizes if size)
    height = max(float(size[2]) for size in sizes if size)
    total = sum(frame.seconds for frame in taken)
    rules, parts, start = "", "", 0.0
    for number, frame in enumerate(taken):
        name, end = f"f{number}", start + frame.seconds
        first, last = 100 * start / total, 100 * end / total
        hidden = "0% { opacity: 0 } " if number else ""
        over = f" {last:.2f}% {{ opacity: 0 }}" if number < len(taken) - 1 else ""
        rules += (
            f"@keyframes {name} {{ {hidden}{first:.2f}% {{ opacity: 1 }}{over} }}\n"
            f".{name} {{ animation: {name} {total:g}s step-end infinite }}\n"
        )
        inner = EDGE.sub(rf"\g<1>{height - 2:g}\g<3>", frame.picture, count=1)
        inner = re.sub(r'viewBox="[^"]+"', f'width="{width:g}" height="{height:g}"', inner, count=1)
        parts += f'<g class="frame {name}">{inner.replace("terminal-", f"{name}-").strip()}</g>\n'
        start = end
    final = f"f{len(taken) - 1}"
    still = f".frame {{ animation: none; opacity: 0 }} .{final} {{ opacity: 1 }}"
    still = f"@media (prefers-reduced-motion: reduce) {{ {still} }}\n"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" role="img">\n'
        f"<title>{TITLE}</title>\n<style>\n{rules}{still}</style>\n{parts}</svg>\n"
    )


if __name__ == "__main__":
    FILE.parent.mkdir(parents=True, exist_ok=True)
    drawn = animated(frames())
    if "opening&#160;memory" in drawn:
        print("The machine was busy, and the first line says so: run it again.", file=sys.stderr)
    FILE.write_text(drawn)
    print(FILE)
