"""The token counters there are here: the estimator always, the exact one where it can be loaded."""

import os
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TypeAlias

from keepthread.errors import Unavailable
from keepthread.models.tokens import Estimator, Tiktoken

Counter: TypeAlias = Tiktoken | Estimator

EXACT = "tiktoken"
ESTIMATE = "the estimator"
ABSENT = "tiktoken or its vocabulary is missing"


@cache
def counters() -> Mapping[str, Counter]:
    """Return the estimator, and before it the exact counter where its vocabulary is to be had."""
    data = os.environ.get("KEEPTHREAD_TEST_DATA")
    if data:
        os.environ.setdefault("TIKTOKEN_CACHE_DIR", str(Path(data) / "tiktoken"))
    try:
        return {EXACT: Tiktoken(), ESTIMATE: Estimator()}
    except Unavailable:
        return {ESTIMATE: Estimator()}


def best() -> Counter:
    """Return the exact counter if there is one, else the estimator."""
    return next(iter(counters().values()))
