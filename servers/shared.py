"""Servers that all tests of a process share: one that ends is started again, once."""

from typing import Protocol


class Server(Protocol):
    """A server, or several, that can be started again in the same place."""

    def ending(self) -> str | None:
        """Return how it ended and the end of its log, or None while it runs."""
        ...

    def start_again(self) -> None:
        """Start it again, so that its URL stays valid."""
        ...

    def close(self) -> None:
        """Stop it and remove all it had."""
        ...


class SharedServers:
    """The servers that run, and those that ended for good."""

    def __init__(self) -> None:
        self.lost: dict[str, str] = {}
        """Servers that are not started again, by name, each with the reason."""
        self._running: dict[str, Server] = {}
        self._restarted: set[str] = set()

    def add(self, name: str, server: Server) -> None:
        """Watch a server."""
        self._running[name] = server

    def remove(self, name: str) -> None:
        """Stop watching a server, because it is about to be closed."""
        self._running.pop(name, None)

    def restart(self) -> list[str]:
        """Start servers again that ended since the last call; return a report of each."""
        return [
            self._restart(name, server, text)
            for name, server in list(self._running.items())
            if (text := server.ending())
        ]

    def _restart(self, name: str, server: Server, ending: str) -> str:
        if name in self._restarted:
            return self._lose(name, "it ended a second time", ending)
        self._restarted.add(name)
        try:
            server.start_again()
        except Exception as error:  # noqa: BLE001 - every test that needs it reports it
            return self._lose(name, f"it ended, and a restart failed: {error}", ending)
        return f"{name} was started again: it {ending}"

    def _lose(self, name: str, reason: str, ending: str) -> str:
        del self._running[name]
        self.lost[name] = f"{name} is not started again: {reason}"
        return f"{self.lost[name]}; it {ending}"
