"""The layout of the package: few entries, no cycles, unique names.

What does not hold yet is listed in a `NOT_YET` table. An entry that no longer applies fails its
test, so the tables can only shrink.
"""

from __future__ import annotations

import ast
import tomllib
from collections import Counter, defaultdict
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "keepthread"

MAX_ENTRIES = 18
MAX_LATE_IMPORTS = 20
MAX_LAYERS = 12

NOT_YET_ACYCLIC: set[str] = set()
NOT_YET_UNIQUE: set[str] = set()


@dataclass(frozen=True)
class Import:
    """One import statement of ours: the modules it may load, and where it is written."""

    targets: tuple[str, ...]
    line: int
    late: bool


@cache
def files() -> dict[str, Path]:
    """Return every Python file of the package by its dotted name."""
    found: dict[str, Path] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def short(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


def lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines()


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def targets(node: ast.Import | ast.ImportFrom, known: dict[str, Path]) -> tuple[str, ...]:
    """Return the modules of ours that `node` names; `from a import b` means `a.b` if it exists."""
    if isinstance(node, ast.Import):
        names = [alias.name for alias in node.names]
    else:
        base = node.module or ""
        names = [
            full if (full := f"{base}.{alias.name}") in known else base for alias in node.names
        ]
    return tuple(sorted({name for name in names if name.split(".")[0] == "keepthread"}))


def imports(path: Path) -> list[Import]:
    """Return the imports of our own modules in `path`, type-only ones included."""
    known = files()
    found: list[Import] = []

    def visit(node: ast.AST, inside: bool) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Import | ast.ImportFrom):
                if named := targets(child, known):
                    found.append(Import(named, child.lineno, inside))
            else:
                function = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef)
                visit(child, inside or function)

    visit(tree(path), inside=False)
    return found


def components(graph: dict[str, set[str]]) -> list[list[str]]:
    """Return the strongly connected components with more than one member (Tarjan, iterative)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []
    for start in sorted(graph):
        if start in index:
            continue
        work = [(start, iter(sorted(graph[start])))]
        index[start] = low[start] = len(index)
        stack.append(start)
        while work:
            node, following = work[-1]
            for after in following:
                if after not in index:
                    index[after] = low[after] = len(index)
                    stack.append(after)
                    work.append((after, iter(sorted(graph[after]))))
                    break
                if after in stack:
                    low[node] = min(low[node], index[after])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == index[node]:
                    cut = stack.index(node)
                    members, stack[cut:] = stack[cut:], []
                    if len(members) > 1:
                        found.append(sorted(members))
    return found


def import_graph() -> dict[str, set[str]]:
    """Return which file imports which, at any level and for any purpose.

    A package's `__init__` that loads its parts on demand (`__getattr__`) is not counted there.
    """
    known = files()
    graph: dict[str, set[str]] = {}
    for name, path in known.items():
        graph[name] = {
            target
            for statement in imports(path)
            for target in statement.targets
            if target in known and target != name
        }
    return graph


def test_the_root_has_few_entries() -> None:
    entries = sorted(
        entry.name
        for entry in PACKAGE.iterdir()
        if entry.name not in {"py.typed", "__pycache__"} and not entry.name.startswith(".")
    )
    assert len(entries) <= MAX_ENTRIES, entries


def test_no_file_imports_itself_in_a_circle() -> None:
    circles = {" ".join(members) for members in components(import_graph())}
    assert circles == NOT_YET_ACYCLIC


def test_tarjan_finds_a_circle() -> None:
    assert components({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}) == [["a", "b", "c"]]
    assert components({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == []


def test_a_class_name_is_used_once() -> None:
    homes: defaultdict[str, list[str]] = defaultdict(list)
    for path in files().values():
        if short(path).startswith("sync/"):
            continue
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.ClassDef):
                homes[node.name].append(short(path))
    twice = {name for name, where in homes.items() if len(where) > 1}
    assert twice == NOT_YET_UNIQUE, {name: homes[name] for name in sorted(twice ^ NOT_YET_UNIQUE)}


def late_imports() -> list[tuple[str, int, bool]]:
    """Return (file, line, whether a comment gives the reason) of every late import of ours."""
    found: list[tuple[str, int, bool]] = []
    for path in files().values():
        text = lines(path)
        for statement in imports(path):
            if statement.late:
                above = text[statement.line - 2].strip()
                # "
                beside = text[statement.line - 1].partition("# noqa: PLC0415")[2].strip(" -–:")
                reason = above.startswith("#") or bool(beside)
                found.append((short(path), statement.line, reason))
    return found


def test_late_imports_are_few_and_give_their_reason() -> None:
    late = late_imports()
    per_file = Counter(name for name, _, _ in late)
    assert len(late) <= MAX_LATE_IMPORTS, per_file
    assert [f"{name}:{line}" for name, line, reason in late if not reason] == []


def test_the_import_contract_has_few_layers() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = settings["tool"]["importlinter"]["contracts"]
    assert max(len(contract["layers"]) for contract in contracts) <= MAX_LAYERS
