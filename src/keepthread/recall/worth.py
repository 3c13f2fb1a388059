"""What a question is worth: the score of a piece that would hold all of its words."""

import math

from keepthread.recall.query import Query
from keepthread.types import Found


def worth(query: Query, found: Found) -> float:
    """Return what a piece of usual length would score that holds every word of a question once.

    A word that stands nowhere in the scope counts most: what lacks it lacks much of the question.
    """
    total = sum([sitting.parts for sitting in found.sittings])
    often = [len(found.places.get(word, ())) for word in query.words]
    return sum([math.log(1 + max(0.0, total - df + 0.5) / (df + 0.5)) for df in often])
