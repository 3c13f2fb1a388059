"""An exchange whose number is not given yet."""


class AwaitedExchange(int):
    """The exchange that a spooled user message opens; it gets its number at delivery."""

    opened_by: str
    """The id of the user message."""

    def __new__(cls, opened_by: str) -> "AwaitedExchange":
        """Name it by its user message; as a number it is 0."""
        self = super().__new__(cls, 0)
        self.opened_by = opened_by
        return self
