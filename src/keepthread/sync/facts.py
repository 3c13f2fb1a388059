"""Facts, blocking."""

from keepthread.memory.facts.facts import Facts as AsyncFacts
from keepthread.sync.derive import Wrapper, blocking


class Facts(Wrapper[AsyncFacts]):
    """The facts about one owner; get it from `Memory.facts`.

    The methods are those of `keepthread.memory.facts.facts.Facts`, without `await`.
    """

    @property
    def owner(self) -> str:
        """Return whose facts they are."""
        return self._wrapped.owner

    # --- writing ---

    remember = blocking(AsyncFacts.remember)
    edit = blocking(AsyncFacts.edit)
    confirm = blocking(AsyncFacts.confirm)
    forget = blocking(AsyncFacts.forget)

    # --- reading ---

    list = blocking(AsyncFacts.list)
    get = blocking(AsyncFacts.get)
    history = blocking(AsyncFacts.history)
    search = blocking(AsyncFacts.search)

    # --- documents ---

    to_markdown = blocking(AsyncFacts.to_markdown)
    from_markdown = blocking(AsyncFacts.from_markdown)
    to_json = blocking(AsyncFacts.to_json)
    from_json = blocking(AsyncFacts.from_json)

    # --- extraction ---

    extract = blocking(AsyncFacts.extract)
    extracted = blocking(AsyncFacts.extracted)
