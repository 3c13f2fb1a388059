"""The commands: where each is, and what the list says of it; the rest is loaded with its module."""

from typing import Final, NamedTuple


class Listed(NamedTuple):
    """Where a command is, and the first line of what it says of itself."""

    module: str
    function: str
    about: str


COMMANDS: Final = {
    "chat": Listed("chat.command", "chat", "Chat with a model that remembers."),
    "discord": Listed("discord", "discord", "Be a bot on Discord that remembers, until Ctrl-C."),
    "init": Listed("configuring", "init", "Ask four questions, and write your settings."),
    "config": Listed("configuring", "config", "Show every setting and where its value comes from."),
    "sessions": Listed("looking", "sessions", "List sessions, latest activity first."),
    "show": Listed(
        "looking", "show", "Show a session's messages, oldest first, hidden ones included."
    ),
    "search": Listed(
        "finding",
        "search",
        "Find the messages that bear most on a question, in every session or some.",
    ),
    "why": Listed("why", "why", "Draw a context: what is in, what is out, and why."),
    "export": Listed(
        "files",
        "export",
        "Write sessions as JSON lines, lossless, or as Markdown that people can read.",
    ),
    "import": Listed("arriving", "import_file", "Read conversations into the store."),
    "facts": Listed(
        "facts", "facts", "See what is known of an owner beyond one session, and correct it."
    ),
    "copy": Listed(
        "moving", "copy", "Copy everything of a tenant into another store, and compare both."
    ),
    "backup": Listed(
        "files", "backup", "Copy the whole store, every tenant in it, while it stays in use."
    ),
    "prune": Listed("care", "prune", "Delete sessions without activity for so many days."),
    "forget": Listed(
        "forgetting",
        "forget",
        "Erase messages, their copies and all that was made from them, for ever.",
    ),
    "index": Listed(
        "deriving", "index", "Read what was written since into the index, and into vectors."
    ),
    "fold": Listed(
        "deriving", "fold", "Fold old exchanges into summaries, and keep every message."
    ),
    "verify": Listed("care", "verify", "Check every row, and the file itself."),
    "recount": Listed("care", "recount", "Count tokens anew where another counter counted them."),
    "migrate": Listed("moving", "migrate", "Bring a store to this keepthread's format."),
    "spool": Listed(
        "spool",
        "spool",
        "Show what waits in a spool, what was dropped, and what was set aside and why.",
    ),
    "doctor": Listed(
        "doctor",
        "doctor",
        "Look at the store, its settings, what is below it and the token counter.",
    ),
}
