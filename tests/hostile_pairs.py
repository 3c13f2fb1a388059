"""Pairs that a careless comparison takes for one: every wall is tried with them."""

from typing import Final

NAMES: Final = (
    ("bob", "BOB"),
    ("bob", "Bob"),
    ("bob", "bob "),
    ("bob", " bob"),
    ("bob", "bob2"),
    ("bob", "bo"),
    ("bob", "bob/x"),
    ("bob", "bob:x"),
    ("bob", "bob%"),
    ("bob", "b_b"),
    ("bob", "b*b"),
    ("bob", "b\u043eb"),  # a Cyrillic o
    ("caf\u00e9", "cafe\u0301"),  # one letter, or a letter and its accent
    ("stra\u00dfe", "strasse"),
    ("kim", "\u212aim"),  # the sign of kelvin
    ("\ufb01n", "fin"),  # a ligature
    ("0", "00"),
    ("1", "\u0661"),  # an Arabic digit
    ("a:b", "a"),
    ("default", "Default"),
)
"""Owners, tenants, authors, sessions: two names that are valid, and two different ones."""

SIBLINGS: Final = (
    ("projects", "projects-evil"),
    ("projects", "projects2"),
    ("projects", "project"),
    ("projects", "Projects"),
    ("projects", "projects.bak"),
)
"""Folders: what is in the second one is not in the first."""

FALSY: Final = (0, 0.0, "", (), None, False)
"""Values that `if value` or `a or b` takes for absent."""
