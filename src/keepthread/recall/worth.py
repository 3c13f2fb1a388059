"""What a question is worth: the score of a piece that would hold all of its words."""

from keepthread.recall.bm25 import idf
from keepthread.recall.query import Query
from keepthread.types import Found


def worth(query: Query, found: Found, parts: int) -> float:
    """Return what a piece of usual length would score that holds every word of a question once.

    A word that stands nowhere in the scope, of so many parts, counts most: what lacks it lacks much
    of the question.
    """
    often = [len(found.places.get(word, ())) for word in query.words]
    return sum([idf(parts, df) for df in often])
