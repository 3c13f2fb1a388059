"""Find each place in the library that can wait: for a lock, a thread, a task, a queue, a process.

What names a timeout in the call has a deadline, and is left out.
"""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

SOURCE: Final = Path(__file__).resolve().parent.parent / "src" / "keepthread"

_ALWAYS: Final = frozenset(
    {
        *("accept", "acquire", "communicate", "flock", "lockf", "recv", "recv_into", "recvfrom"),
        *("readline", "run_forever", "run_until_complete", "serve_forever", "wait"),
        *("wait_for", "shield", "sleep", "to_thread", "wrap_future", "run_in", "input"),
    }
)
"""Calls that wait, by the last part of their name."""
_WITHOUT_ARGUMENTS: Final = frozenset({"get", "join", "result"})
"""Calls that wait if they are given nothing, or only a time: else they are of text or of a dict."""
_BY_OWNER: Final = {"gather": "asyncio", "read": "os", "waitpid": "os", "run": "subprocess"}
"""Calls that wait if they are of this module."""
_LOCKS: Final = ("Lock", "RLock", "Semaphore", "Condition", "TaskGroup")
_SHOWN: Final = 90


_TESTS: Final = ("testing/contract.py", "testing/finding.py", "testing/tables.py")
"""Files that are tests themselves, run within pytest's time limit."""


class Wait(NamedTuple):
    """One place that can wait."""

    file: str
    what: str


def waits() -> set[Wait]:
    """Return all of them."""
    files = {path.relative_to(SOURCE).as_posix(): path for path in sorted(SOURCE.rglob("*.py"))}
    trees = {file: ast.parse(path.read_text()) for file, path in files.items()}
    locks = {name for tree in trees.values() for name in _lock_names(tree) if name}
    return {
        Wait(file, what)
        for file, tree in trees.items()
        if file not in _TESTS
        for what in _in(tree, locks)
    }


def _lock_names(tree: ast.AST) -> Iterator[str]:
    """Yield the names that are given to locks, and those of functions that return one."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.returns and _is_lock(node.returns):
            yield node.name
        value = getattr(node, "value", None)
        if isinstance(value, ast.Call) and _is_lock(value.func):
            targets = getattr(node, "targets", None) or [getattr(node, "target", value)]
            yield from (_last(target) for target in targets)


def _is_lock(node: ast.expr) -> bool:
    return _last(node) in _LOCKS


def _last(node: ast.expr) -> str:
    """Return the last part of a dotted name."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def _in(tree: ast.AST, locks: set[str]) -> Iterator[str]:
    """Yield the text of each place that can wait."""
    for node in ast.walk(tree):
        bare = isinstance(node, ast.Await) and not isinstance(node.value, ast.Call)
        if bare or (isinstance(node, ast.Call) and _waits(node)):
            yield _text(node)
        elif isinstance(node, ast.With | ast.AsyncWith):
            for item in node.items:
                if _holds(item.context_expr, locks):
                    yield f"with {_text(item.context_expr)}"


def _waits(call: ast.Call) -> bool:
    name = _last(call.func)
    if any(keyword.arg == "timeout" for keyword in call.keywords):
        return False  # it has a deadline
    if name in _WITHOUT_ARGUMENTS:
        return isinstance(call.func, ast.Attribute) and not call.args
    if name == "select":  # a strategy's takes more
        return len(call.args) <= 1
    return name in _ALWAYS or (name in _BY_OWNER and _owner(call.func) == _BY_OWNER[name])


def _owner(node: ast.expr) -> str:
    return _last(node.value) if isinstance(node, ast.Attribute) else ""


def _holds(node: ast.expr, locks: set[str]) -> bool:
    return _last(node.func if isinstance(node, ast.Call) else node) in locks | set(_LOCKS)


def _text(node: ast.AST) -> str:
    text = ast.unparse(node)
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…"
