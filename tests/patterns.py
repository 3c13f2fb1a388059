"""The regular expressions of the package, and texts that make a slow one take long.

`patterns` reads the source for every use of `re`. `pumped` builds texts from the syntax tree of an
expression: what a repeat may match, many times, before something that ends the match. `slowest`
times them: a text that is twice as long must not take much more than twice the time.
"""

import ast
import importlib
import math
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any, Final, NamedTuple

parser: Any = importlib.import_module("re._parser")
codes: Any = importlib.import_module("re._constants")

PACKAGE: Final = Path(__file__).resolve().parents[1] / "src" / "keepthread"
STEEP: Final = 1.5
"""A linear pattern has the exponent 1, a quadratic one 2."""
_SIZES: Final = (8, 12, 16, 20, 24, 28, 32, 40, 56, 96, 192, 384, 768, 1536)
"""Small steps first: an exponential pattern would never end."""
_LONGEST: Final = 1 << 14
_ENOUGH: Final = 0.02
"""Seconds after which a text is not made longer."""
_REPEATS: Final = (codes.MAX_REPEAT, codes.MIN_REPEAT, codes.POSSESSIVE_REPEAT)
_MANY: Final = 16
"""A repeat that ends before this number cannot take long by itself."""
_KINDS: Final = 20
"""The number of characters that one place of a pattern is tried with."""
_MOST: Final = 800
"""The number of texts that a pattern is tried with; of more, every second or third is taken."""
_ENDS: Final = ("", "\n", "\0", "x")
"""What follows the pumped part: a pattern refuses some of them."""
_SEARCHES: Final = ("finditer", "findall", "sub", "subn", "split")
_METHODS: Final = ("match", "fullmatch", "search", *_SEARCHES)
_MAY_USE: Final = re.compile(r"import (?:re|regex)\b|from (?:re|regex)\b|LazyPattern")
_COMPILE: Final = ("compile", "LazyPattern")
_PLACE_OF_FLAGS: Final = {"compile": 1, "LazyPattern": 1, "sub": 4, "subn": 4, "split": 3}
_HARMLESS: Final = {"escape", "error", "Match", "Pattern", *re.RegexFlag.__members__}
"""Names of `re` that compile nothing."""
_CATEGORIES: Final = {
    codes.CATEGORY_DIGIT: r"\d",
    codes.CATEGORY_NOT_DIGIT: r"\D",
    codes.CATEGORY_SPACE: r"\s",
    codes.CATEGORY_NOT_SPACE: r"\S",
    codes.CATEGORY_WORD: r"\w",
    codes.CATEGORY_NOT_WORD: r"\W",
}

Place = tuple[str, str]
"""A file of the package, and the expression in it that gives a pattern its text."""


class Use(NamedTuple):
    """A regular expression of the package, and the methods that it is used with."""

    place: Place
    pattern: "re.Pattern[Any]"
    methods: frozenset[str]


class Slow(NamedTuple):
    """A kind of text whose time grows faster than its length."""

    method: str
    text: str
    exponent: float


# --- the patterns of the package ---


def patterns(
    local: Mapping[Place, Sequence[Mapping[str, object]]], package: Path = PACKAGE
) -> tuple[list[Use], list[str]]:
    """Return the patterns, and the uses of `re` whose pattern cannot be reached.

    `local` has values of the local names in expressions that a function gives `re`.
    """
    uses: list[Use] = []
    unreachable: list[str] = []
    sources = {
        path.relative_to(package).as_posix(): path.read_text("utf-8")
        for path in sorted(package.rglob("*.py"))
    }
    trees = {file: ast.parse(text) for file, text in sources.items() if _MAY_USE.search(text)}
    for file, tree in trees.items():
        unreachable += [f"{file}: {each}" for each in _hidden(tree)]
        for call, function, targets in _calls(tree):
            text = call.args[0] if call.args else call
            place = (file, ast.unparse(text))
            public = any(not name.startswith(("_", ".")) for name in targets)
            users = sources.values() if public else [sources[file]]
            methods = _methods(targets, users) if function in _COMPILE else {function}
            try:
                flags = _flags(call, function, file)
                texts = [_value(text, file, names) for names in local.get(place, [{}])]
                compiled = [re.compile(each, flags) for each in texts]
            except (NameError, AttributeError, TypeError) as error:
                unreachable.append(f"{file}: {place[1]} ({error})")
            else:
                uses += [Use(place, each, frozenset(methods)) for each in compiled]
    return uses, unreachable


def _calls(tree: ast.Module) -> Iterator[tuple[ast.Call, str, Sequence[str]]]:
    """Yield calls that take a pattern, the function, and the names that the result is given."""
    names: dict[ast.AST, list[str]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names[node.value] = [each.id for each in targets if isinstance(each, ast.Name)]
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Call):
            names[node.value] = [f".{node.attr}"]
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and (function := _function(node.func)) is not None:
            yield node, function, names.get(node, ())


def _function(node: ast.AST) -> str | None:
    if isinstance(node, ast.Name) and node.id == "LazyPattern":
        return node.id
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        takes_pattern = node.value.id == "re" and node.attr not in _HARMLESS
        return node.attr if takes_pattern else None
    return None


def _hidden(tree: ast.Module) -> Iterator[str]:
    """Yield the ways to `re` on which `_calls` would miss a pattern."""
    called = {node.func for node in ast.walk(tree) if isinstance(node, ast.Call)}
    modules = {node.value for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module in {"re", "regex"}:
            yield f"from {node.module} import"
        elif isinstance(node, ast.Import):
            for name in node.names:
                if name.name == "regex" or (name.name == "re" and name.asname):
                    yield f"import {name.name} as {name.asname}"
        elif isinstance(node, ast.Attribute) and _function(node) and node not in called:
            yield f"{ast.unparse(node)} without a call"
        elif isinstance(node, ast.Name) and node.id == "re" and node not in modules:
            yield "the module as a value"


def _methods(names: Sequence[str], sources: Iterable[str]) -> set[str]:
    """Return the methods that patterns of these names are used with; all if none is seen."""
    seen = {name.removeprefix(".") for name in names if name.startswith(".")}
    for name in names:
        use = re.compile(rf"\b{re.escape(name)}\.(\w+)")
        seen |= {method for source in sources for method in use.findall(source)}
    return seen & set(_METHODS) or set(_METHODS)


def _value(node: ast.expr, file: str, local: Mapping[str, object] | None = None) -> Any:
    if isinstance(node, ast.Constant):
        return node.value
    name = f"keepthread.{file.removesuffix('.py').replace('/', '.')}".removesuffix(".__init__")
    names = {**vars(importlib.import_module(name)), **(local or {})}
    return eval(ast.unparse(node), names)  # our own source


def _flags(call: ast.Call, function: str, file: str) -> int:
    place = _PLACE_OF_FLAGS.get(function, 2)
    nodes = [each.value for each in call.keywords if each.arg == "flags"] + call.args[place:]
    return _value(nodes[0], file) if nodes else 0


# --- texts that take long ---


def pumped(pattern: "re.Pattern[Any]") -> list[Callable[[int], Any]]:
    """Return functions that build a text of about a length."""
    tree = parser.parse(pattern.pattern, pattern.flags & ~re.DEBUG)
    samples = _Samples(tree, pattern.flags)
    everything = {samples.of(tree, choice) for choice in range(4)}
    parts = {("", unit, end) for unit in everything for end in _ENDS}
    for before, units, after in samples.repeats(tree, ("", ""), ()):
        ends = {*_ENDS, *(samples.of(after, choice) for choice in range(2))}
        parts |= set(product(before, units, ends))
        starts = {start + unit for start, unit in product(before, units)} | {*before}
        parts |= set(product([""], starts, ends))
    as_bytes = isinstance(pattern.pattern, bytes)
    chosen = sorted(part for part in parts if part[1])
    return [_maker(*part, as_bytes) for part in chosen[:: 1 + len(chosen) // _MOST]]


def _maker(before: str, unit: str, end: str, as_bytes: bool) -> Callable[[int], Any]:
    def make(length: int) -> Any:
        text = before + unit * max(1, length // len(unit)) + end
        return text.encode("latin-1", "replace") if as_bytes else text

    return make


class _Samples:
    """Texts that parts of a pattern match, mostly."""

    def __init__(self, tree: Any, flags: int) -> None:
        self._flags = flags
        classes = {str(node): node for node in _nodes(tree) if _is_class(node)}
        self._letters: list[str] = []
        seen: set[tuple[bool, ...]] = set()
        for letter in dict.fromkeys(
            _letters(tree)
        ):  # of those that the pattern never tells apart, one is enough
            kind = tuple(self._accepts(node, letter) for node in classes.values())
            if kind not in seen:
                seen.add(kind)
                self._letters.append(letter)

    def of(self, nodes: Any, choice: int, groups: dict[int, str] | None = None) -> str:
        """Return a text; `choice` varies the alternatives and the numbers of repetitions."""
        groups = {} if groups is None else groups
        return "".join(self._one(node, choice, groups) for node in nodes)

    def _one(self, node: Any, choice: int, groups: dict[int, str]) -> str:
        op, value = node
        if op == codes.LITERAL:
            return chr(value)
        if _is_class(node):
            letters = self._accepted(node)
            return letters[choice % len(letters)] if letters else ""
        if op in _REPEATS:
            least, most, item = value
            times = least if choice % 2 == 0 else max(least, min(most, 1))
            return self.of(item, choice, groups) * min(times, 64)
        if op == codes.BRANCH:
            return self.of(value[1][choice % len(value[1])], choice, groups)
        if op == codes.SUBPATTERN:
            text = self.of(value[3], choice, groups)
            groups[value[0]] = text
            return text
        if op == codes.ATOMIC_GROUP:
            return self.of(value, choice, groups)
        return groups.get(value, "") if op == codes.GROUPREF else ""

    def _accepted(self, node: Any) -> list[str]:
        return [letter for letter in self._letters if self._accepts(node, letter)]

    def _accepts(self, node: Any, letter: str) -> bool:
        op, value = node
        if op == codes.ANY:
            return letter != "\n" or bool(self._flags & re.DOTALL)
        if op == codes.NOT_LITERAL:
            return not self._is_in([(codes.LITERAL, value)], letter)
        if op == codes.LITERAL and not self._flags & re.IGNORECASE:
            return value == ord(letter)
        items = value if op == codes.IN else [node]
        return self._is_in(items, letter) != (items[0][0] == codes.NEGATE)

    def _is_in(self, items: Any, letter: str) -> bool:
        cases = {letter, letter.lower(), letter.upper()[:1]}
        return any(
            (op == codes.LITERAL and value == ord(each))
            or (op == codes.RANGE and value[0] <= ord(each) <= value[1])
            or (op == codes.CATEGORY and re.match(_CATEGORIES[value], each, self._flags & re.ASCII))
            for each in (cases if self._flags & re.IGNORECASE else {letter})
            for op, value in items
        )

    def repeats(
        self, nodes: Any, before: tuple[str, str], after: Sequence[Any]
    ) -> Iterator[tuple[set[str], set[str], Sequence[Any]]]:
        """Yield each repeat: what comes before it, what it repeats, and the nodes after it."""
        for at, (op, value) in enumerate(nodes):
            inner: Sequence[Any] = ()
            if _is_class((op, value)):
                continue
            first, second = (before[n] + self.of(nodes[:at], n) for n in range(2))
            rest = [*nodes[at + 1 :], *after]
            if op in _REPEATS:
                inner = [value[2]]
                if value[1] >= _MANY:
                    yield {first, second}, self._units(value[2]), rest
            elif op == codes.BRANCH:
                inner = value[1]
            elif op in (codes.SUBPATTERN, codes.ATOMIC_GROUP, codes.ASSERT, codes.ASSERT_NOT):
                inner = [value if op == codes.ATOMIC_GROUP else value[-1]]
            for each in inner:
                yield from self.repeats(each, (first, second), rest)

    def _units(self, item: Any) -> set[str]:
        if len(item) == 1 and _is_class(item[0]):
            return set(self._accepted(item[0])[:_KINDS])
        units = {self.of(item, choice) for choice in range(8)} - {""}
        return units | {"".join(sorted(units)[:2])}


def _is_class(node: Any) -> bool:
    """Return whether a part of a pattern matches one character."""
    return node[0] in (codes.LITERAL, codes.NOT_LITERAL, codes.ANY, codes.IN)


def _nodes(nodes: Any) -> Iterator[Any]:
    for node in nodes:
        yield node
        op, value = node
        if op in _REPEATS:
            yield from _nodes(value[2])
        elif op == codes.BRANCH:
            for each in value[1]:
                yield from _nodes(each)
        elif op in (codes.SUBPATTERN, codes.ASSERT, codes.ASSERT_NOT):
            yield from _nodes(value[-1])
        elif op == codes.ATOMIC_GROUP:
            yield from _nodes(value)


def _letters(tree: Any) -> Iterator[str]:
    """Yield characters of every kind that a pattern tells apart."""
    yield from "a 0\n\t!_.\0xA\u0301\u3042\ud800"
    for op, value in _nodes(tree):
        for item, of in value if op == codes.IN else [(op, value)]:
            if item in (codes.LITERAL, codes.NOT_LITERAL):
                yield chr(of)
            elif item == codes.RANGE:
                yield from (chr(of[0]), chr(of[1]))


# --- time ---


class Clock:
    """Finds texts that take a pattern long."""

    def __init__(self) -> None:
        """Measure what a linear pattern takes on this machine."""
        run = _runner(re.compile("."), "finditer")
        self._usual = min(_seconds(run, "a" * _SIZES[-1]) for _ in range(20))

    def slowest(self, use: Use) -> Slow | None:
        """Return the kind of text whose time grows fastest, or None if the pattern is linear."""
        found: list[Slow] = []
        for method in sorted(use.methods):
            if method in _SEARCHES[1:] and "finditer" in use.methods:
                continue
            run = _runner(use.pattern, method)
            for make in pumped(use.pattern):
                if (size := self._suspicious(run, make)) is not None:
                    exponent = min(_exponent(run, make, size) for _ in range(2))
                    if exponent > STEEP:
                        found.append(Slow(method, repr(make(24)), round(exponent, 1)))
                        break
        return max(found, key=lambda each: each.exponent, default=None)

    def _suspicious(self, run: Callable[[Any], object], make: Callable[[int], Any]) -> int | None:
        """Return a length at which a text takes much longer than usual."""
        for size in _SIZES:
            if (seconds := _seconds(run, text := make(size))) > 3 * self._usual:
                if len(text) < 4 * size and seconds < _ENOUGH:  # perhaps it is only slow
                    half = min(_seconds(run, make(size // 2)) for _ in range(3))
                    if min(_seconds(run, text) for _ in range(3)) < 2.5 * half:
                        continue
                return size
        return None


def _runner(pattern: "re.Pattern[Any]", method: str) -> Callable[[Any], object]:
    if method not in _SEARCHES:
        return getattr(pattern, method)
    return lambda text: [None for _ in pattern.finditer(text)]


def _seconds(run: Callable[[Any], object], text: Any) -> float:
    start = time.process_time()
    run(text)
    return time.process_time() - start


def _exponent(run: Callable[[Any], object], make: Callable[[int], Any], size: int) -> float:
    """Return the power of its length that the time for a text grows with."""
    points: list[tuple[int, float]] = []
    while size <= _LONGEST and (len(points) < 2 or points[-1][1] < _ENOUGH):
        text = make(size)
        points.append((len(text), min(_seconds(run, text) for _ in range(3))))
        size += max(2, size // 8)
    (length, seconds), (longer, more) = points[0], points[-1]
    return math.log(more / seconds) / math.log(longer / length)
