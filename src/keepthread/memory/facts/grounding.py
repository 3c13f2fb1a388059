"""Grounding: does a message state, in its own words, a fact that a model proposes?

A model may be persuaded by any text in its prompt, so its claim that a person said something is not
enough. Only what can be found in a person's message counts as the person's word.
"""

import string
from typing import Final

from keepthread.context.digest import sentences
from keepthread.context.quoting import flat
from keepthread.errors import InvalidInput
from keepthread.memory.facts.records import MOST_TEXT, one_line
from keepthread.memory.facts.resolution import same
from keepthread.memory.facts.types import Noted
from keepthread.recall.words import STOP, words_of

_ANYBODYS: Final = frozenset(words_of(" ".join(("user", "owner", *STOP))))
"""Words that add nothing to a fact."""
_WORD_SIGNS: Final = frozenset(string.ascii_lowercase + string.digits)


def grounded(fact: Noted, message: str) -> Noted | None:
    """Return a fact as a message states it; None if its value is not in the message word for word.

    The value of a fact without one is its text. A fact that ended may be named by its attribute
    alone: "I have no car any more"; the attribute is then its value, and it ends every value. Where
    the fact's text uses other words than the message, the message's sentence replaces it: a value
    that was said must not bring along something that was not said.
    """
    named = [fact.value or fact.text]
    if fact.until is not None and fact.attribute:
        named.append(fact.attribute)
    found = next((each for each in named if says(message, each)), None)
    if found is None:
        return None
    if found != named[0]:  # the message does not say which value ended
        fact = fact._replace(value=found)
    if {*words_of(fact.text)} <= {*words_of(message), *words_of(fact.subject), *_ANYBODYS}:
        return fact
    try:
        return fact._replace(text=one_line(_sentence(message, found), "a fact's text", MOST_TEXT))
    except InvalidInput:  # a message may hold characters that a fact may not, such as NUL
        return None


def says(message: str, words: str) -> bool:
    """Return whether a message has these words, ignoring case and spaces."""
    return last_position(message, words) >= 0


def last_position(message: str, words: str) -> int:
    """Return the last position at which a message has these words; -1 if it does not."""
    wanted = same(words).strip(".!?…。！？ ")
    if not wanted:
        return -1
    text = same(message)
    # Without `re`, whose cache of patterns would keep the words after they are forgotten.
    start = text.rfind(wanted)
    while start >= 0:
        end = start + len(wanted)
        before, after = text[max(0, start - 1) : start], text[end : end + 1]
        if _is_edge(wanted[0], before) and _is_edge(wanted[-1], after):
            return start
        start = text.rfind(wanted, 0, end - 1)
    return -1


def _is_edge(sign: str, neighbor: str) -> bool:
    """Return whether a word that begins or ends with this character ends before its neighbor."""
    return not (sign.isalnum() and neighbor and neighbor in _WORD_SIGNS)


def _sentence(message: str, words: str) -> str:
    """Return the sentence of a message that has these words."""
    found = (flat(each).strip() for each in sentences(message) if says(each, words))
    return next(found, flat(message).strip())[:MOST_TEXT]
