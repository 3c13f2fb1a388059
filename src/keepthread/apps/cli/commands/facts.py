"""The command for facts: see what is known of an owner, and correct it."""

import json
import re
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple, TypeAlias

import typer

from keepthread.apps.cli.actions import Actions
from keepthread.apps.cli.invocation import Call
from keepthread.apps.cli.sanitize import sanitize
from keepthread.errors import InvalidInput
from keepthread.interchange.json_types import to_json
from keepthread.protocols import Store
from keepthread.stores.private_files import private_file
from keepthread.stores.validation import check_id

if TYPE_CHECKING:
    from keepthread.memory.facts.facts import Facts
    from keepthread.memory.facts.types import Fact, Loaded

_SHORT: Final = 8
"""The digits at a key's end by which a person names it."""
_FEWEST: Final = 4
_MARKDOWN: Final = re.compile(r"^[^\S\n]*[-*] ", re.MULTILINE)
"""An entry of a list in Markdown, which may itself begin with a bracket."""


class _Given(NamedTuple):
    """The arguments after the action."""

    words: Sequence[str] = ()
    every: bool = False
    text: Mapping[str, Any] = {}
    many: bool = False
    output: Path | None = None
    prune: bool = False
    agent: str | None = None


_Owner: TypeAlias = Annotated[
    str | None,
    typer.Option("--owner", metavar="NAME", help="Whose facts (default: memory.owner)."),
]
_Subject: TypeAlias = Annotated[
    str | None, typer.Option(metavar="NAME", help="The subject of the fact (default: the owner).")
]
_Attribute: TypeAlias = Annotated[
    str | None,
    typer.Option(
        metavar="NAME", help="The property, such as city; a new value replaces the old one."
    ),
]
_Value: TypeAlias = Annotated[
    str | None, typer.Option(metavar="TEXT", help="Only the value, such as Oslo.")
]
_Key: TypeAlias = Annotated[
    str, typer.Argument(metavar="KEY", help="The fact's key, or its last digits.")
]
_Keys: TypeAlias = Annotated[
    list[str], typer.Argument(metavar="KEY", help="Keys of facts, or their last digits.")
]


async def list_facts(
    call: Call,
    owner: _Owner = None,
    every: Annotated[
        bool,
        typer.Option(
            "--all", help="Also list facts that were replaced, have ended or start later."
        ),
    ] = False,
    agent: Annotated[
        str | None, typer.Option(metavar="NAME", help="Only facts private to this agent.")
    ] = None,
) -> None:
    """List current facts, and those that wait for confirmation, oldest first."""
    await _run(call, owner, _Run.list, _Given(every=every, agent=agent))


async def search_facts(
    call: Call,
    words: Annotated[list[str], typer.Argument(metavar="WORD", help="The query.")],
    owner: _Owner = None,
) -> None:
    """List the facts that share words with these."""
    await _run(call, owner, _Run.search, _Given(words))


async def add_fact(
    call: Call,
    text: Annotated[str, typer.Argument(metavar="TEXT", help="The fact in quotes.")],
    owner: _Owner = None,
    subject: _Subject = None,
    attribute: _Attribute = None,
    value: _Value = None,
    many: Annotated[
        bool, typer.Option("--many", help="The attribute can have several values at a time.")
    ] = False,
    agent: Annotated[
        str | None, typer.Option(metavar="NAME", help="Make it private to this agent.")
    ] = None,
) -> None:
    """Store a fact as the owner's statement.

    Facts of one subject and attribute replace each other, unless there can be --many values.
    """
    named = _named(subject, attribute, value)
    await _run(call, owner, _Run.add, _Given([text], text=named, many=many, agent=agent))


async def edit_fact(
    call: Call,
    key: _Key,
    text: Annotated[
        str | None, typer.Argument(metavar="TEXT", help="Its new text in quotes.")
    ] = None,
    owner: _Owner = None,
    subject: _Subject = None,
    attribute: _Attribute = None,
    value: _Value = None,
) -> None:
    """Correct a fact; options that are not given stay."""
    words = [key] if text is None else [key, text]
    named = _named(subject, attribute, value)
    await _run(call, owner, _Run.edit, _Given(words, text=named))


async def confirm_facts(call: Call, keys: _Keys, owner: _Owner = None) -> None:
    """Release facts from quarantine, so that prompts may contain them."""
    await _run(call, owner, _Run.confirm, _Given(keys))


async def forget_facts(call: Call, keys: _Keys, owner: _Owner = None) -> None:
    """Forget facts in every place they came from.

    Facts that they had replaced become current again, and the messages stay.
    """
    await _run(call, owner, _Run.forget, _Given(keys))


async def show_history(call: Call, key: _Key, owner: _Owner = None) -> None:
    """Show what a fact replaced, oldest first."""
    await _run(call, owner, _Run.history, _Given([key]))


async def export_facts(
    call: Call,
    owner: _Owner = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="FILE", help="Write to this file instead of stdout."
        ),
    ] = None,
) -> None:
    """Write Markdown that can be edited and imported; with --json, everything as JSON."""
    await _run(call, owner, _Run.write, _Given(output=output))


async def import_facts(
    call: Call,
    file: Annotated[
        str, typer.Argument(metavar="FILE", help="A file that export wrote, or - for stdin.")
    ],
    owner: _Owner = None,
    prune: Annotated[
        bool, typer.Option("--prune", help="Forget facts whose lines were removed.")
    ] = False,
) -> None:
    """Apply the changes in a file of either kind.

    --prune is for Markdown, and forgets only facts noted before the document was written.
    """
    await _run(call, owner, _Run.read, _Given([file], prune=prune))


def _named(subject: str | None, attribute: str | None, value: str | None) -> Mapping[str, str]:
    named = {"subject": subject, "attribute": attribute, "value": value}
    return {name: each for name, each in named.items() if each is not None}


async def _run(
    call: Call,
    owner: str | None,
    action: Callable[["_Run", _Given], Awaitable[None]],
    given: _Given,
) -> None:
    async with call.memory() as memory:
        book = memory.for_owner(call.owner if owner is None else owner).facts
        await action(_Run(call, book, memory.store), given)


class _Run(NamedTuple):
    """One call of the command, on an owner's facts."""

    call: Call
    book: "Facts"
    store: Store

    # --- looking ---

    async def list(self, given: _Given) -> None:
        found = await self.book.list(all=given.every)
        if given.agent is not None:
            found = [fact for fact in found if fact.agent == given.agent]
        if found or self.call.json:
            self._show(found)
            return
        owners = [name for name in await self.store.owners() if name != self.book.owner]
        hint = f"; owners with facts: {', '.join(owners[:5])} (--owner NAME)" if owners else ""
        self.call.say(f"No facts about {self.book.owner}{hint}")

    async def search(self, given: _Given) -> None:
        self._show(await self.book.search(" ".join(given.words)))

    async def history(self, given: _Given) -> None:
        self._show(await self.book.history(await self._key(given.words[0])))

    # --- changing ---

    async def add(self, given: _Given) -> None:
        named = {} if given.agent is None else {"agent": check_id(given.agent, "--agent")}
        self._show(
            [await self.book.remember(given.words[0], many=given.many, **named, **given.text)]
        )

    async def edit(self, given: _Given) -> None:
        key = await self._key(given.words[0])
        text = given.words[1] if len(given.words) > 1 else None
        self._show([await self.book.edit(key, text=text, **given.text)])

    async def confirm(self, given: _Given) -> None:
        keys = [await self._key(word) for word in given.words]
        self._show([await self.book.confirm(key) for key in keys])

    async def forget(self, given: _Given) -> None:
        keys = [await self._key(word) for word in given.words]
        before = {fact.key for fact in await self.book.list()}
        forgotten = sum([await self.book.forget(key) for key in keys])
        revived = [fact for fact in await self.book.list() if fact.key not in before]
        if self.call.json:
            keys_of = [fact.key for fact in revived]
            self.call.write({"forgotten": forgotten, "revived": keys_of})
        self.call.say(f"Forgot {forgotten:,}; the messages stay (`keepthread forget` erases them)")
        for fact in revived:
            self.call.say(f"Current again: {fact.text}")

    # --- documents ---

    async def write(self, given: _Given) -> None:
        if self.call.json:
            text = json.dumps(await self.book.to_json(), indent=1) + "\n"
        else:
            text = await self.book.to_markdown()
        if given.output is not None:
            _save(text, given.output)
            self.call.say(f"Wrote the facts about {self.book.owner} to {given.output}")
        elif sys.stdout.isatty():
            typer.echo(sanitize(text, lines=True), nl=False)
        else:
            sys.stdout.buffer.write(text.encode())

    async def read(self, given: _Given) -> None:
        text, value = _document(given.words[0])
        if value is None:
            done = await self.book.from_markdown(text, prune=given.prune)
        elif given.prune:
            raise InvalidInput("--prune is for Markdown; JSON only adds")
        else:
            done = await self.book.from_json(value)
        self._report(done)

    def _report(self, done: "Loaded") -> None:
        if self.call.json:
            self.call.write({name: list(keys) for name, keys in done._asdict().items()})
        counts = [f"{len(keys):,} {name}" for name, keys in done._asdict().items() if keys]
        nothing = "Nothing was changed: every fact in the document is known already"
        self.call.say(", ".join(counts) if counts else nothing)
        if done.passed:
            self.call.warn("skipped: forgotten or replaced since the document was written")

    # --- inside ---

    async def _key(self, word: str) -> str:
        """Return the key that a word means: all of it, or its last digits."""
        facts = await self.book.list(all=True)
        found = [f.key for f in facts if len(word) >= _FEWEST and f.key.endswith(word.lower())]
        if len(found) == 1:
            return found[0]
        if found:
            raise InvalidInput(f"{len(found)} keys end in {word!r}; give more digits")
        raise InvalidInput(
            f"no key of {self.book.owner}'s facts ends in {word!r}; `keepthread facts` lists them"
        )

    def _show(self, found: "Sequence[Fact]") -> None:
        if self.call.json:
            for fact in found:
                self.call.write(to_json(fact))
        else:
            with self.call.paged() as screen:
                screen.facts([(fact.state, *columns_of(fact)) for fact in found])
        waiting = sum(fact.state == "quarantined" for fact in found)
        if waiting:
            self.call.say(f"{waiting:,} in quarantine: `keepthread facts confirm KEY` releases it")


facts: Final = Actions(
    """Show and edit the facts known about an owner.

    A key may be given by its last digits. A fact that waits for confirmation is in no prompt.
    """,
    {
        "list": list_facts,
        "search": search_facts,
        "add": add_fact,
        "edit": edit_fact,
        "confirm": confirm_facts,
        "forget": forget_facts,
        "history": show_history,
        "export": export_facts,
        "import": import_facts,
    },
)


def columns_of(fact: "Fact") -> tuple[str, str, str]:
    """Return a fact for people: the end of its key, what it says, and where from."""
    shown = f"{fact.subject}: {fact.text}" if fact.subject else fact.text
    agent = f"agent {fact.agent}" if fact.agent else ""
    parts = [agent, fact.attribute, _dates(fact)]
    parts.append("" if fact.state == "live" else fact.state)
    parts += [f"{source.session} {source.seq}" for source in fact.messages[:3]]
    parts.append("" if fact.messages else "manually added")
    parts.append(fact.origin if fact.origin != "user" else "")
    return fact.key[-_SHORT:], shown, " · ".join(filter(None, parts))


def _dates(fact: "Fact") -> str:
    since = _day(fact.since)
    if fact.until is None:
        return f"since {since}"
    until = _day(fact.until)
    return since if since == until else f"{since} to {until}"


def _day(seconds: float) -> str:
    try:
        return f"{datetime.fromtimestamp(seconds, tz=UTC).astimezone():%Y-%m-%d}"
    except (OverflowError, OSError, ValueError):
        return "?"


def _document(name: str) -> tuple[str, Any]:
    """Return the text of a document, and its JSON if it is JSON."""
    try:
        data = sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
        text = data.decode()
    except ValueError:
        raise InvalidInput(f"{name} is neither Markdown nor JSON in UTF-8") from None
    try:
        return text, json.loads(text) if text.lstrip().startswith(("{", "[")) else None
    except (ValueError, RecursionError):
        if _MARKDOWN.search(text):
            return text, None
        raise InvalidInput(f"{name} is neither Markdown nor valid JSON") from None


def _save(text: str, path: Path) -> None:
    with private_file(path) as write:  # facts about people are private
        write(text.encode())
