"""The settings of the proxy: where requests go, and how long they may take."""

from dataclasses import dataclass
from typing import Final, Literal, TypeAlias
from urllib.parse import urlsplit

from keepthread.errors import InvalidInput
from keepthread.stores.validation import show

Provider: TypeAlias = Literal["openai", "anthropic"]
"""The API of an upstream."""

OPENAI: Final = "https://api.openai.com/v1"
ANTHROPIC: Final = "https://api.anthropic.com"
MIB: Final = 1024 * 1024


@dataclass(frozen=True, kw_only=True)
class ProxySettings:
    """The upstreams, and limits. Nothing in a request can name another upstream."""

    openai: str = OPENAI
    """The base URL as OpenAI's SDK takes it, with `/v1`."""
    anthropic: str = ANTHROPIC
    """The base URL as Anthropic's SDK takes it, without `/v1`."""
    strict: bool = False
    """Whether a request is refused while the memory is unavailable, not relayed without it."""
    memory_deadline: float = 0.3
    """Seconds that the memory may take before a request is relayed without it."""
    connect_timeout: float = 10.0
    idle_timeout: float = 600.0
    """Seconds without a byte from upstream."""
    max_body: int = 64 * MIB
    """The largest body of a request that is read; providers take less."""
    drain: float = 20.0
    """Seconds that answers may take to be recorded when the proxy stops."""

    def base_of(self, provider: Provider) -> str:
        """Return the base URL of a provider, without a slash at its end."""
        return base_url(self.openai if provider == "openai" else self.anthropic, provider)

    def __post_init__(self) -> None:
        """Refuse base URLs that cannot be used."""
        self.base_of("openai")
        self.base_of("anthropic")


def base_url(text: str, provider: Provider) -> str:
    """Return a base URL in the form in which paths are added to it.

    OpenAI's has `/v1` or another path at its end, Anthropic's has not.
    """
    parts = urlsplit(text)
    is_plain = not (parts.query or parts.fragment or parts.username or parts.password)
    if parts.scheme not in ("http", "https") or not parts.hostname or not is_plain:
        raise InvalidInput(
            f"{show(text)} is not the base URL of an upstream: it must be http://HOST or"
            " https://HOST, with or without a path, and without a user, a query or a fragment"
        )
    base = text.rstrip("/")
    path = parts.path.rstrip("/")
    if provider == "anthropic":
        return base.removesuffix("/v1")
    return base if path else f"{base}/v1"


def upstream_of(text: str) -> tuple[Provider, str]:
    """Return the provider and the base URL in a text such as `openai=https://host/v1`."""
    name, is_given, url = text.partition("=")
    provider = _PROVIDERS.get(name.strip().lower())
    if provider is None or not is_given:
        raise InvalidInput(
            f"{show(text)} does not name an upstream: write openai=URL or anthropic=URL"
        )
    base_url(url.strip(), provider)
    return provider, url.strip()


_PROVIDERS: Final[dict[str, Provider]] = {"openai": "openai", "anthropic": "anthropic"}
