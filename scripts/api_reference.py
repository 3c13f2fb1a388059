"""Write the API reference from signatures, docstrings and examples: docs/reference/api/.

Signatures and defaults are read from the source, as their authors wrote them. The examples are in
`scripts/api_examples.md`; a public name without an example, or without a page, is an error.
"""

import ast
import inspect
import re
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import is_dataclass
from functools import cache, cached_property
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

EXAMPLES = Path(__file__).with_name("api_examples.md")
HEADING = re.compile(r"^## (keepthread[a-z.]*): (.+)$", re.MULTILINE)
WIDTH = 96
BLOCKING = "Memory OwnerMemory Session Turn Facts Blobs Admin Outbox Orchestrator"


class ApiPage(NamedTuple):
    """A page: its title, what it is about, and the names on it by their modules."""

    title: str
    about: str
    names: Mapping[str, str]
    """The names of each module, separated by blanks; `*` are all public ones."""


PAGES = {
    "memory": ApiPage(
        "Memory and sessions",
        "Open a memory, keep sessions in it, and take turns.",
        {
            "keepthread": "Memory Options OwnerMemory Admin Session Turn Status SessionInfo"
            " SessionKey ForkPoint Page Change KeepthreadError"
        },
    ),
    "contexts": ApiPage(
        "Contexts and strategies",
        "Choose what a model sees within a token budget, and read why.",
        {
            "keepthread": "View Window Summarized Hybrid Recall Section WindowPlan WindowRules"
            " Compaction Costs Context Why Choice Explanation References Reference Rebuilt"
            " PromptChange difference Difference fit"
        },
    ),
    "messages": ApiPage(
        "Messages and tools",
        "Messages, tool calls and their results, and the formats of providers.",
        {
            "keepthread": "Message ToolCall Attachment Native CachedTool ProactiveTool"
            " ProvidedNote from_openai_chat from_openai_responses from_anthropic"
        },
    ),
    "facts": ApiPage(
        "Search, facts, files and forgetting",
        "Find messages, keep facts and files beyond one session, and erase them.",
        {"keepthread": "Hit Fact Extraction Blob Receipt StoredReceipt"},
    ),
    "stores": ApiPage(
        "Stores",
        "The backends. `Memory.open` chooses one by its URL; most programs need no more.",
        {
            "keepthread": "SQLiteStore PostgresStore RedisStore RamStore Scope Record Span"
            " Verification Damage",
            "keepthread.stores.redis": "Timeouts",
        },
    ),
    "sync": ApiPage(
        "The blocking API",
        "The same classes without `await`, for scripts, notebooks and threads.",
        {"keepthread.sync": BLOCKING},
    ),
    "orchestrator": ApiPage(
        "Agents and orchestration",
        "An agent with tools, a pipeline of router, planner and specialists, and tools over MCP.",
        {
            "keepthread.orchestrator": "*",
            "keepthread.orchestrator.mcp": "Server Servers Rule State",
        },
    ),
    "models": ApiPage(
        "Models, embedders and token counters",
        "Adapters for chat models, vectors for search by meaning, and token counting.",
        {
            "keepthread.models": "OpenAIModel AnthropicModel",
            "keepthread.models.embedders": "OnnxEmbedder EndpointEmbedder",
            "keepthread.models.tokens": "counter Estimator Tiktoken VOCABULARIES MESSAGE_FRAME"
            " AUTHOR_FRAME CALL_FRAME ATTACHMENT_COST",
        },
    ),
    "testing": ApiPage(
        "Testing",
        "A server on your machine that imitates the providers and answers from a script.",
        {"keepthread.testing.server": "ScriptedServer Say Gate Line Received lines_of"},
    ),
}


class Example(NamedTuple):
    """A program, what it prints, and the names that it shows."""

    module: str
    names: Sequence[str]
    text: str
    """The blocks of the program and of its output, in Markdown."""


@cache
def examples() -> Sequence[Example]:
    """Return the examples in the order of their file."""
    source = EXAMPLES.read_text(encoding="utf-8")
    found = [*HEADING.finditer(source)]
    ends = [*(each.start() for each in found[1:]), len(source)]
    return [
        Example(each[1], each[2].split(", "), source[each.end() : end].strip())
        for each, end in zip(found, ends, strict=True)
    ]


def example_of(module: str, name: str) -> Example:
    """Return the example of a public name."""
    for each in examples():
        if each.module == module and name in each.names:
            return each
    raise SystemExit(f"{EXAMPLES.name} has no example of {module}.{name}")


def names_of(page: ApiPage) -> Iterator[tuple[str, str]]:
    """Yield module and name of each entry of a page."""
    for module, names in page.names.items():
        every = import_module(module).__all__
        for name in every if names == "*" else names.split():
            yield module, name


def page_of(module: str, name: str) -> str:
    """Return the page of a public name."""
    return next(key for key, page in PAGES.items() if (module, name) in names_of(page))


# --- from the source ---


class Source(NamedTuple):
    """The source of a class or function as a tree, and the names that it can see."""

    tree: Any
    names: Mapping[str, Any]

    @classmethod
    def of(cls, thing: Any) -> "Source":
        """Read the source of a class or function; of a wrapper, that of what it wraps."""
        thing = inspect.unwrap(thing)
        (tree,) = ast.parse(textwrap.dedent(inspect.getsource(thing))).body
        return cls(tree, vars(sys.modules[thing.__module__]))

    def value(self, default: ast.expr) -> str:
        """Return a default as text: of a constant its value."""
        known = self.names.get(default.id) if isinstance(default, ast.Name) else None
        return repr(known) if isinstance(known, str | int | float) else ast.unparse(default)

    def parameters(self) -> Iterator[str]:
        """Yield each parameter of a function, with its type and default."""
        arguments = self.tree.args
        plain = [*arguments.posonlyargs, *arguments.args]
        defaults = [*[None] * (len(plain) - len(arguments.defaults)), *arguments.defaults]
        for number, (each, default) in enumerate(zip(plain, defaults, strict=True)):
            if number or each.arg not in ("self", "cls"):
                yield self._parameter(each, default)
        if arguments.vararg:
            yield f"*{self._parameter(arguments.vararg, None)}"
        elif arguments.kwonlyargs:
            yield "*"
        for each, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
            yield self._parameter(each, default)
        if arguments.kwarg:
            yield f"**{self._parameter(arguments.kwarg, None)}"

    def _parameter(self, each: ast.arg, default: ast.expr | None) -> str:
        kind = f": {written(each.annotation)}" if each.annotation else ""
        equals = " = " if kind else "="
        return f"{each.arg}{kind}" + (f"{equals}{self.value(default)}" if default else "")


def written(annotation: ast.expr) -> str:
    """Return a type as it is written, without the quotes around names that come later."""
    if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
        return annotation.value
    for node in ast.walk(annotation):
        if isinstance(node, ast.Subscript) and ast.unparse(node.value) != "Literal":
            node.slice = _without_quotes(node.slice)
    return ast.unparse(annotation)


def _without_quotes(node: ast.expr) -> ast.expr:
    if isinstance(node, ast.Tuple):
        node.elts = [_without_quotes(each) for each in node.elts]
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return ast.parse(node.value, mode="eval").body
    return node


def signature(function: Any, name: str) -> str:
    """Return how a function is called, on one line if it fits."""
    source = Source.of(function)
    begin = "async def" if isinstance(source.tree, ast.AsyncFunctionDef) else "def"
    if source.tree.name == "__init__":
        begin = "class"
    returns = source.tree.returns
    end = f" -> {written(returns)}" if returns and begin != "class" else ""
    parameters = [*source.parameters()]
    line = f"{begin} {name}({', '.join(parameters)}){end}"
    if len(line) <= WIDTH:
        return line
    rows = "".join(f"    {each},\n" for each in parameters)
    return f"{begin} {name}(\n{rows}){end}"


def constant_doc(module: Any, name: str) -> str:
    """Return the text after the assignment of a name, in the module that makes it."""
    tree = ast.parse(inspect.getsource(module))
    for statement, after in pairwise(tree.body):
        targets = getattr(statement, "targets", [getattr(statement, "target", None)])
        if any(isinstance(each, ast.Name) and each.id == name for each in targets):
            if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
                return inspect.cleandoc(str(after.value.value))
            return ""
    for statement in ast.walk(tree):
        if isinstance(statement, ast.ImportFrom) and name in {
            each.name for each in statement.names
        }:
            return constant_doc(import_module(str(statement.module)), name)
    return ""


# --- entries ---


class Entry(NamedTuple):
    """A public name, and all that the reference says of it."""

    module: str
    name: str

    @property
    def thing(self) -> Any:
        """Return what the name means."""
        return getattr(import_module(self.module), self.name)

    def text(self) -> str:
        """Return the entry as Markdown."""
        parts = [f"## {self.name}", f"`from {self.module} import {self.name}`"]
        if inspect.isclass(self.thing):
            parts += self._of_class()
        elif _is_function(self.thing):
            parts += [_doc(self.thing), _code(signature(self.thing, self.name))]
        else:
            parts += [self._of_constant()]
        shown = example_of(self.module, self.name)
        if shown.names[0] == self.name:
            example = ["**Example**", shown.text]
        else:
            first = shown.names[0]
            page = page_of(self.module, first)
            here = page == page_of(self.module, self.name)
            target = f"{'' if here else f'{page}.md'}#{first.lower()}"
            example = [f"**Example**: that of [`{first}`]({target})."]
        at = next((n for n, part in enumerate(parts) if part.startswith("### ")), len(parts))
        return "\n\n".join(filter(None, [*parts[:at], *example, *parts[at:]]))

    def _of_constant(self) -> str:
        told = constant_doc(import_module(self.module), self.name)
        if isinstance(self.thing, str | int | float | tuple):
            value = repr(self.thing).replace("'", '"')
            return f"{told or 'A constant.'}\n\n{_code(f'{self.name} = {value}')}"
        if not told:
            raise SystemExit(f"{self.module}.{self.name} has no text after its assignment")
        return told

    def _of_class(self) -> Iterator[str]:
        kind = self.thing
        yield _doc(kind)
        if fields := [*_fields(kind)]:
            yield _table(("field", "type", "default", "meaning"), fields)
        elif "__init__" in vars(kind) and not self._is_wrapper():
            yield _code(signature(kind.__init__, self.name))
        members = [*_members(kind)]
        if self._is_wrapper():
            rows = [(f"`{name}`", _doc(thing).partition("\n")[0]) for name, thing in members]
            yield _table(("method", "what it does"), rows)
            return
        for name, thing in members:
            yield f"### {self.name}.{name}"
            if isinstance(thing, property | cached_property):
                getter = thing.fget if isinstance(thing, property) else thing.func
                returns = Source.of(getter).tree.returns
                yield _code(f"{name}: {written(returns)}  # property")
                yield _doc(getter)
            else:
                yield _code(signature(thing, name))
                yield _doc(thing)

    def _is_wrapper(self) -> bool:
        return self.module == "keepthread.sync"


def _is_function(thing: Any) -> bool:
    """Return whether it is a function, also one whose results are cached."""
    return inspect.isfunction(inspect.unwrap(thing))


def _doc(thing: Any) -> str:
    """Return a docstring without the example at its end, which has a place of its own."""
    return (inspect.getdoc(thing) or "").partition(">>>")[0].strip()


def _fields(kind: type) -> Iterator[Sequence[str]]:
    """Yield the fields of a dataclass or named tuple: name, type, default and meaning."""
    if not (is_dataclass(kind) or hasattr(kind, "_fields")):
        return
    for each in reversed(kind.__mro__):
        if not each.__module__.startswith("keepthread."):
            continue
        source = Source.of(each)
        for field, after in pairwise([*source.tree.body, None]):
            if not isinstance(field, ast.AnnAssign) or not isinstance(field.target, ast.Name):
                continue
            if field.target.id.startswith("_") or "ClassVar" in ast.unparse(field.annotation):
                continue
            told = ""
            if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
                told = " ".join(str(after.value.value).split())
            yield (
                f"`{field.target.id}`",
                f"`{written(field.annotation)}`",
                f"`{_default(source, field.value)}`" if field.value else "",
                told,
            )


def _default(source: Source, value: ast.expr) -> str:
    """Return a field's default; what `field` makes, without the call."""
    if isinstance(value, ast.Call) and ast.unparse(value.func) == "field":
        given = {each.arg: each.value for each in value.keywords}
        if "default" in given:
            return source.value(given["default"])
        return f"{ast.unparse(given['default_factory'])}()" if "default_factory" in given else "…"
    return source.value(value)


def _members(kind: type) -> Iterator[tuple[str, Any]]:
    """Yield the public methods and properties of a class, in the order of its source."""
    seen: dict[str, Any] = {}
    for each in kind.__mro__:
        if not each.__module__.startswith("keepthread."):
            continue
        for name, thing in vars(each).items():
            if name.startswith("_") or name in seen:
                continue
            plain = thing.__func__ if isinstance(thing, staticmethod | classmethod) else thing
            known = inspect.isfunction(plain) or isinstance(plain, property | cached_property)
            if known and _doc(plain):  # else it is documented by its protocol
                seen[name] = plain
    yield from seen.items()


def _code(text: str) -> str:
    return f"```py\n{text}\n```"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    cells = ([each.replace("|", "\\|").replace("\n", " ") for each in line] for line in lines)
    return "\n".join(f"| {' | '.join(line)} |" for line in cells)


# --- pages ---


def page_text(page: ApiPage) -> str:
    """Return a page of the reference."""
    entries = (Entry(module, name).text() for module, name in names_of(page))
    return "\n\n".join([f"# {page.title}", f"{page.about} {INTRODUCTION}", *entries]) + "\n"


INTRODUCTION = (
    "[All names](index.md). Examples with `await` at their top level run in `python -m asyncio`"
    " and in notebooks."
)


def index_text() -> str:
    """Return the page that lists every public name."""
    about = (
        "Every public name, with its signature and an example that a test runs. The"
        " [public types](../types.md) have JSON Schemas, too, and [errors](../errors.md) have a"
        " page of their own. `help(keepthread.Memory)` shows the same text in a Python shell."
    )
    parts = ["# API", about]
    for key, page in PAGES.items():
        rows = []
        for module, name in names_of(page):
            thing = getattr(import_module(module), name)
            told = _doc(thing) if inspect.isclass(thing) or _is_function(thing) else ""
            told = told or constant_doc(import_module(module), name)
            if not told:
                raise SystemExit(f"{module}.{name} has no description")
            link = f"[`{name}`]({key}.md#{name.lower()})"
            rows.append((link, " ".join(told.partition("\n\n")[0].split())))
        parts.append(f"## [{page.title}]({key}.md)")
        parts.append(_table(("name", "what it is"), rows))
    return "\n\n".join(parts) + "\n"


FILES: Mapping[str, Callable[[], str]] = {
    "api/index.md": index_text,
    **{f"api/{key}.md": lambda page=page: page_text(page) for key, page in PAGES.items()},
}
"""The files of the reference, and what makes them."""
