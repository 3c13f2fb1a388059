"""Tools for tests: the store contract, hostile inputs, a clock, scripted models and servers."""


class ManualClock:
    """A clock that moves only by `advance`, backward as well; pass it to a store as `clock`."""

    def __init__(self, now: float = 1_700_000_000.0) -> None:
        """Start at a time in seconds since 1970."""
        self.now = now

    def __call__(self) -> float:
        """Return the current time of this clock."""
        return self.now

    def advance(self, seconds: float) -> None:
        """Move the clock by `seconds`."""
        self.now += seconds
