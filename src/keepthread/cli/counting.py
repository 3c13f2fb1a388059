"""The counter that the command uses: the exact one if it can be had, else the estimator."""

from keepthread.cli.call import Call
from keepthread.errors import Unavailable
from keepthread.protocols import TokenCounter
from keepthread.tokens import Estimator, Tiktoken


def best_counter() -> tuple[TokenCounter, str]:
    """Return a counter, and what keeps it from being the exact one."""
    try:
        return Tiktoken(), ""
    except Unavailable as error:
        if error.__cause__ is None:  # it is not installed
            return Estimator(), str(error)
        return Estimator(), (
            "tiktoken cannot load its vocabulary: it downloads it once; offline, put it into a"
            f" folder and name that by TIKTOKEN_CACHE_DIR ({type(error.__cause__).__name__})"
        )


def current_counter(call: Call) -> TokenCounter:
    """Return the counter; say so if it estimates."""
    counter, reason = best_counter()
    if reason:
        call.warn(f"counting by estimate: {reason}")
    return counter
