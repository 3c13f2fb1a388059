"""Draw the pictures in the docs: the real program, in a real terminal, seen by its own colours.

They are the same from run to run: the conversations and their times are made up, the model is a
scripted server, and what is said while the pictures are taken is shown without its time.
"""

import asyncio
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from keepthread.testing.server import ScriptedServer
from scripts.story import OWNER, tell
from tests.chatting import KEEPTHREAD, Chat, Home, home
from tests.terminal import Terminal, svg

FOLDER = Path(__file__).parents[1] / "docs" / "assets"
COLUMNS = 90
RAIN = "It will rain on our second day in Kyoto. What do we do with Mia?"
ADDED = "Add it up for the three of us, in Python."
SOUP = "What went into my soup with kombu? Will I find it in Kyoto?"
ANSWERS = (
    """A day under roofs, with something to touch in each place:

- **Railway Museum**: she may drive a train in the simulator.
- **Nishiki Market**: a roof over 130 kitchens. Pass those with the *red prawn*.
- **Manga Museum**: picture books, and a lawn if it clears up.

| when | where | euros |
|---|---|---:|
| 10:00 | Railway Museum | 22 |
| 13:00 | Nishiki Market | 30 |
| 15:30 | Manga Museum | 14 |
""",
    """That leaves room in the 4,200:

```python
costs = {"Railway Museum": 22, "Nishiki Market": 30, "Manga Museum": 14}
print(sum(costs.values()), "euros")  # 66 euros
```
""",
    "Dried mushrooms, and miso. Temple kitchens make it just so: ask for *shojin ryori*.",
)


def pictures() -> dict[str, str]:
    """Tell the story, and take the pictures."""
    with TemporaryDirectory() as place, ScriptedServer(ANSWERS) as server:
        at = home(
            Path(place),
            server,
            KEEPTHREAD_MEMORY_OWNER=OWNER,
            KEEPTHREAD_MEMORY_MAX_HISTORY_TOKENS="2000",
            KEEPTHREAD_MODEL_NAME="qwen3:8b",
            TIKTOKEN_CACHE_DIR=str(Path(place) / "none"),  # the estimator is everywhere the same
            TZ="UTC",
        )
        at.store.parent.mkdir(parents=True)
        asyncio.run(tell(f"sqlite:///{at.store}"))
        at.run("index")
        return {"sessions": of_command(at, "sessions"), **of_chat(at)}


def main() -> None:
    """Write the pictures, and say where they are."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    for name, picture in pictures().items():
        (folder / f"{name}.svg").write_text(picture)
        print(folder / f"{name}.svg")


def of_command(at: Home, *arguments: str) -> str:
    """Draw a command and all that it shows."""
    with Terminal([KEEPTHREAD, *arguments], env=at.env, cwd=at.folder, columns=COLUMNS) as terminal:
        assert terminal.exit_code() == 0, terminal.transcript
        return svg(terminal, f"keepthread {' '.join(arguments)}", whole=True)


def of_chat(at: Home) -> dict[str, str]:
    """Draw a chat, and what some of its commands show."""
    with at.chat("--continue", columns=COLUMNS, rows=29) as chat:
        for question in (RAIN, ADDED):
            chat.say(question)
            at.run("index")  # else chance decides whether the next question finds it there
        chat.type("/c")
        chat.terminal.key("tab")
        chat.terminal.wait_for("/context")
        found = {"chat": pictured(chat)}
        chat.terminal.key("ctrl-c")
        found["search"] = alone(chat, "/search which dishes hide shellfish", rows=26)
        chat.say(SOUP)
        at.run("index")
        found["context"] = alone(chat, "/context", rows=24)
        found["why"] = alone(chat, "/why", rows=35)
        chat.leave()
    return found


def alone(chat: Chat, command: str, *, rows: int) -> str:
    """Draw what a command shows, on a screen of its own."""
    chat.terminal.key("ctrl-l")
    chat.terminal.resize(COLUMNS, rows)
    chat.say(command)
    assert chat.terminal.screen[0] == f"> {command}", f"give {command} more rows"
    return pictured(chat)


def pictured(chat: Chat) -> str:
    """Draw the screen when it has come to rest."""
    chat.terminal.settle()
    return svg(chat.terminal, "keepthread chat --continue")


if __name__ == "__main__":
    main()
