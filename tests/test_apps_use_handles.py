"""The apps act for a person through that owner's memory alone: the source is read to see it."""

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

APPS = Path(__file__).parents[1] / "src" / "keepthread" / "apps"

ALLOWED: Mapping[str, tuple[set[str], str]] = {
    # The places that open a memory.
    "cli/invocation.py": ({"hold", "store"}, "opens the store, and says who else has such an id"),
    "cli/chat/startup.py": ({"hold"}, "opens the memory of a chat"),
    "cli/chat/persistence.py": (
        {"hold", "store", "admin"},
        "opens and closes the memory of a chat, gives it as one owner's, and prunes the store",
    ),
    "cli/commands/discord.py": ({"hold", "admin"}, "opens the memory of a bot, and prunes it"),
    # What looks after a whole store.
    "cli/chat/delivery.py": (
        {"hold", "store", "admin", "forget"},
        "delivers the files of all owners; only `Memory.forget` can rewrite tables",
    ),
    "cli/commands/maintenance.py": ({"hold", "store", "admin"}, "prune, verify, recount, index"),
    "cli/commands/export.py": ({"hold", "store"}, "exports a store"),
    "cli/commands/import_.py": ({"hold", "store"}, "imports into a store"),
    "cli/commands/doctor.py": ({"hold", "store"}, "examines a store"),
    "cli/commands/sessions.py": ({"hold", "admin"}, "lists those of all owners without --owner"),
    "cli/commands/search.py": ({"hold", "admin"}, "searches all owners without --owner"),
    "cli/commands/forget.py": ({"hold"}, "delivers files first, and forgets of all owners"),
    "cli/commands/facts.py": ({"hold", "store"}, "names other owners if one has no facts"),
    "cli/chat/commands/files.py": ({"store"}, "writes and reads files of the chat's session"),
    # The HTTP server: handlers get an owner's memory from the caller's credential.
    "cli/commands/serve.py": ({"hold"}, "opens the memory that is served"),
    "cli/commands/mcp.py": ({"hold"}, "opens the memory that is served, and gives one owner's"),
    "cli/commands/proxy.py": (
        {"hold", "store"},
        "opens the memory that is used, gives one owner's, and reads what signs additions",
    ),
    "hooks/events.py": (
        {"hold", "store"},
        "opens the memory of the settings, recalls by one owner's, and imports session files",
    ),
    "http/app.py": ({"hold"}, "builds the application over an open memory"),
    "http/caller.py": ({"hold"}, "makes the handle of the credential's tenant and owner"),
    "http/state.py": ({"hold"}, "keeps the memory of a worker, and gives that of a tenant"),
    "http/feeds.py": (
        {"hold", "admin"},
        "reads the changes of a tenant once, for the event streams of all its owners",
    ),
    "http/worker.py": ({"hold", "store"}, "opens the memory of a worker, and the server's tables"),
    "http/serve.py": ({"store"}, "checks the store and its tables before workers start"),
    # A bot talks with many people, each with an owner of their own.
    "discord/conversations.py": (
        {"hold", "store", "admin"},
        "makes each person's handle; what a person wrote is in the sessions of all channels",
    ),
}
"""Modules that may do more than use an owner's memory: what, and why."""

OF_AN_OWNER = {
    *("session", "create_session", "get_session", "list_sessions", "delete_session"),
    *("search", "index", "facts", "forget"),
}
"""Methods of `Memory` that take an owner, or mean the default one."""


def violations(source: str) -> Iterator[str]:
    """Yield what a module does beyond using an owner's memory: `hold`, `store`, `admin`, a method.

    `hold` is to have a `Memory` at all; a method is one that is called on a `Memory` directly.
    """
    tree = ast.parse(source)
    yield from _used(tree, frozenset(_fields(tree)))


def _used(scope: ast.AST, memories: frozenset[str]) -> Iterator[str]:
    """Yield what a module or function does; `memories` are expressions that are a `Memory`."""
    inner = [*_own_nodes(scope)]
    bound = {name for node in inner for name in _bound(node)}
    memories = (memories - bound) | {name for node in inner for name in _named(node)}
    memories |= {
        ast.unparse(target)
        for node in inner
        if isinstance(node, ast.Assign) and ast.unparse(node.value) in memories
        for target in node.targets
    }
    for node in inner:
        if isinstance(node, FUNCTIONS):
            yield from _used(node, memories)
        elif isinstance(node, ast.ImportFrom):
            yield from ("hold" for each in node.names if each.name == "Memory")
        elif isinstance(node, ast.Attribute):
            yield from _of_attribute(node.attr, ast.unparse(node.value), memories)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            named = {each.arg for each in node.keywords}
            if node.func.attr in OF_AN_OWNER and "owner" in named:
                yield node.func.attr


def _of_attribute(name: str, base: str, memories: frozenset[str]) -> Iterator[str]:
    if name == "admin":
        yield "admin"
    elif name == "store" and base != "call":  # there it is an address
        yield "store"
    elif name == "for_owner" or (name, base) == ("memory", "call"):
        yield "hold"
    elif name in OF_AN_OWNER and base in memories:
        yield name


FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


def _own_nodes(scope: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of a module or function, and functions inside it without their nodes."""
    for node in ast.iter_child_nodes(scope):
        yield node
        if not isinstance(node, FUNCTIONS):
            yield from _own_nodes(node)


def _bound(node: ast.AST) -> Iterator[str]:
    """Yield the names that a node gives a meaning of its own."""
    if isinstance(node, ast.arg):
        yield node.arg
    elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        yield node.id


def _named(node: ast.AST) -> Iterator[str]:
    """Yield the expression that is a `Memory` from this node on."""
    match node:
        case ast.arg(arg=name, annotation=ast.expr() as kind) if _is_memory(kind):
            yield name
        case ast.AnnAssign(target=target, annotation=kind) if _is_memory(kind):
            yield ast.unparse(target)
        case ast.withitem(context_expr=made, optional_vars=ast.Name(id=name)) if _makes(made):
            yield name
        case ast.Assign(targets=[target], value=made) if _makes(made):
            yield ast.unparse(target)
        case _:
            pass


def _fields(tree: ast.AST) -> Iterator[str]:
    """Yield the attributes of objects of a module that are a `Memory`."""
    for scope in ast.walk(tree):
        if isinstance(scope, FUNCTIONS):
            inner = [*_own_nodes(scope)]
            names = {name for node in inner for name in _named(node)}
            yield from (name for name in names if "." in name)
            for node in inner:
                if isinstance(node, ast.Assign) and ast.unparse(node.value) in names:
                    yield from map(ast.unparse, node.targets)
        elif isinstance(scope, ast.ClassDef):
            for node in scope.body:
                yield from (f"self.{name}" for name in _named(node))
                if isinstance(node, ast.FunctionDef) and node.returns and _is_memory(node.returns):
                    yield f"self.{node.name}"  # a property


def _is_memory(kind: ast.expr) -> bool:
    return any(isinstance(n, ast.Name) and n.id == "Memory" for n in ast.walk(kind)) or (
        isinstance(kind, ast.Constant) and "Memory" in str(kind.value).replace("|", " ").split()
    )


def _makes(made: ast.expr) -> bool:
    made = made.value if isinstance(made, ast.Await) else made
    if not isinstance(made, ast.Call):
        return False
    return ast.unparse(made.func) in ("Memory", "Memory.open", "call.memory", "self.memory")


MODULES = sorted(str(path.relative_to(APPS)) for path in APPS.rglob("*.py"))


@pytest.mark.parametrize("module", MODULES)
def test_a_module_uses_an_owners_memory_alone_unless_it_is_listed(module: str) -> None:
    allowed, _ = ALLOWED.get(module, (set[str](), ""))
    assert set(violations((APPS / module).read_text())) <= allowed


@pytest.mark.parametrize("module", sorted(ALLOWED))
def test_nothing_is_allowed_that_is_not_needed(module: str) -> None:
    allowed, reason = ALLOWED[module]
    assert set(violations((APPS / module).read_text())) == allowed
    assert reason


PLANTED = {
    "await chat.talk.persistence.memory.admin.forget(author='x')": "admin",
    "await chat.talk.persistence.memory.store.tail(key)": "store",
    "await memory.session('s', owner=chat.talk.owner)": "session",
    "async def f(memory: Memory): await memory.search('x')": "search",
    "async def f(memory: 'Memory | None'): memory.facts": "facts",
    "from keepthread import Memory": "hold",
    "if TYPE_CHECKING:\n from keepthread.memory.memory import Memory": "hold",
    "async def f(call):\n async with call.memory() as all: await all.list_sessions()": (
        "hold, list_sessions"
    ),
    "class A:\n def __init__(self, memory: Memory): self._memory = memory\n"
    " async def f(self): await self._memory.forget(author='x')": "forget",
    "class A:\n memory: Memory\n async def f(self): await self.memory.get_session('s')": (
        "get_session"
    ),
    "class A:\n @property\n def whole(self) -> Memory: ...\n"
    " async def f(self): await self.whole.index()": "index",
    "async def f(opened):\n wide = Memory(opened)\n await wide.delete_session('s')": (
        "delete_session"
    ),
    "own = memory.for_owner('somebody else')": "hold",
    "async def f(memory: Memory):\n async def g(): await memory.search('x')": "search",
    "async def f(memory: Memory): ...\nasync def g(memory: OwnerMemory): memory.search('x')": "",
    "async def f(memory: OwnerMemory): await memory.search('x')": "",
    "async def f(chat): await chat.talk.persistence.memory.forget(session='s')": "",
    "if call.store: pass": "",
}


@pytest.mark.parametrize(("source", "found"), PLANTED.items())
def test_a_planted_violation_is_noticed(source: str, found: str) -> None:
    assert ", ".join(sorted(set(violations(source)))) == found
