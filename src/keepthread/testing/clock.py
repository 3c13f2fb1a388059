"""A clock that stands still until it is told to move."""


class ManualClock:
    """Give it to a store as `clock`; move it with `advance`, back as well."""

    def __init__(self, now: float = 1_700_000_000.0) -> None:
        """Start at a moment, in seconds since 1970."""
        self.now = now

    def __call__(self) -> float:
        """Return the moment it shows."""
        return self.now

    def advance(self, seconds: float) -> None:
        """Move by so many seconds."""
        self.now += seconds
