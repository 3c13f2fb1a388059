"""Rules for the values of a request's fields, each with its description."""

from collections.abc import Callable, Collection, Mapping
from math import inf
from typing import Any, Final, NamedTuple

from keepthread.testing.wires import NAME, is_list, is_object


class FieldRule(NamedTuple):
    """A rule for a value: its description and its test."""

    words: str
    holds: Callable[[Any], bool]


def anything(_: object) -> bool:
    """Accept any value."""
    return True


def is_flag(value: object) -> bool:
    """Return whether a value is a boolean."""
    return isinstance(value, bool)


def is_name(value: object) -> bool:
    """Return whether a value is a valid name of a tool."""
    return isinstance(value, str) and NAME.fullmatch(value) is not None


def is_string(value: object) -> bool:
    """Return whether a value is a string, which may be empty."""
    return isinstance(value, str)


def is_text(value: object) -> bool:
    """Return whether a value is a string that is not empty."""
    return isinstance(value, str) and bool(value)


def are_texts(value: Any) -> bool:
    """Return whether a value is an array of strings."""
    return is_list(value) and all(is_text(text) for text in value)


ANYTHING: Final = FieldRule("anything", anything)
FLAG: Final = FieldRule("a boolean", is_flag)
LIST: Final = FieldRule("an array", is_list)
NAMED: Final = FieldRule("a string of 1 to 64 letters, numbers, underscores or dashes", is_name)
OBJECT: Final = FieldRule("an object", is_object)
STRING: Final = FieldRule("a string", is_string)
TEXT: Final = FieldRule("a string that is not empty", is_text)
TEXTS: Final = FieldRule("an array of strings", are_texts)


def whole(least: int, most: float = inf) -> FieldRule:
    """Require an integer."""

    def holds(value: Any) -> bool:
        return type(value) is int and least <= value <= most

    return FieldRule(f"an integer from {least} to {most}", holds)


def number(least: float, most: float) -> FieldRule:
    """Require a number."""

    def holds(value: Any) -> bool:
        return type(value) in (int, float) and least <= value <= most

    return FieldRule(f"a number from {least} to {most}", holds)


def one_of(*values: str) -> FieldRule:
    """Require one of some words."""

    def holds(value: Any) -> bool:
        return value in values

    return FieldRule(f"one of {', '.join(map(repr, values))}", holds)


def either(*rules: FieldRule) -> FieldRule:
    """Require that one of several rules accepts the value."""

    def holds(value: Any) -> bool:
        return any(rule.holds(value) for rule in rules)

    return FieldRule(" or ".join(rule.words for rule in rules), holds)


def or_null(rule: FieldRule) -> FieldRule:
    """Accept null as well."""

    def holds(value: Any) -> bool:
        return value is None or rule.holds(value)

    return FieldRule(f"{rule.words} or null", holds)


def wrong(values: Mapping[str, Any], rules: Mapping[str, FieldRule]) -> dict[str, str]:
    """Return the invalid fields, each with its rule."""
    known = {name: rules[name] for name in values if name in rules}
    return {name: rule.words for name, rule in known.items() if not rule.holds(values[name])}


def unknown(values: Mapping[str, Any], known: Collection[str]) -> list[str]:
    """Return the names of fields that do not exist."""
    return sorted(name for name in values if name not in known)
