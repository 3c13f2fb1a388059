"""The settings of the server: what it accepts, how much of it, and whose tokens it trusts."""

from collections.abc import Collection
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Final

from keepthread.apps.proxy.settings import ProxySettings
from keepthread.errors import InvalidInput

KIB: Final = 1024
MIB: Final = 1024 * KIB

LOCAL_HOSTS: Final = frozenset({"localhost", "127.0.0.1", "[::1]"})
"""The names of this machine, which no other machine can claim."""
ALGORITHMS: Final = frozenset(
    {"RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"}
)
"""Signatures that only the holder of a private key can make."""


@dataclass(frozen=True, kw_only=True)
class Issuer:
    """An identity provider whose tokens (JWT) are accepted, and where their claims lead."""

    name: str
    """The exact claim `iss`."""
    audience: str
    """The claim `aud`: this server, as the provider knows it."""
    jwks: str
    """Its public keys: an https URL, or the path of a file. Tokens cannot name another."""
    algorithms: Collection[str] = ("RS256", "ES256")
    tenant: str | None = None
    """The tenant of all its tokens; None if the claim `tenant_claim` names it."""
    tenant_claim: str = "tenant"
    owner_claim: str = "sub"
    scope_claim: str = "scope"
    leeway: float = 30.0
    """By how many seconds the clocks may differ."""

    def __post_init__(self) -> None:
        """Refuse algorithms that a holder of the public key could use as well."""
        if not self.algorithms or not ALGORITHMS.issuperset(self.algorithms):
            raise InvalidInput("algorithms of tokens: choose from " + ", ".join(sorted(ALGORITHMS)))
        if "://" in self.jwks and not _is_safe_url(self.jwks):
            raise InvalidInput(
                "jwks must be an https URL or the path of a file: over plain http the keys could "
                "be replaced in transit"
            )


@dataclass(frozen=True, kw_only=True)
class HttpSettings:
    """The settings of one worker. Limits per key count within one worker."""

    hosts: frozenset[str] = LOCAL_HOSTS
    """The names that a request may use for this server (header `Host`), without ports."""
    any_host: bool = False
    """Whether every name is accepted, as behind a reverse proxy that checks it."""
    origins: frozenset[str] = frozenset()
    """Web pages that may call the server from a browser: `https://app.example.com`."""
    issuers: tuple[Issuer, ...] = ()
    max_json: int = 4 * MIB
    """The largest body of JSON."""
    max_upload: int = 64 * MIB
    """The largest other body."""
    max_depth: int = 100
    """How deeply JSON may be nested."""
    max_items: int = 400_000
    """Values in a body of JSON, with those inside of others."""
    key_bodies: int = 64 * MIB
    """Bytes of bodies that requests of one key hold at the same time."""
    all_bodies: int = 128 * MIB
    """Bytes of bodies that all requests hold at the same time."""
    rate: float = 500.0
    """Requests per second and key, on average; 0 means any number."""
    burst: int = 1000
    """How many requests a key may send at once after a pause."""
    concurrency: int = 64
    """Requests of one key at the same time."""
    tenant_concurrency: int = 192
    """Requests of all keys of one tenant at the same time; `concurrency` if that is more."""
    max_requests: int = 512
    """Requests of all keys at the same time, without streams."""
    streams: int = 128
    """Event streams of one key at the same time."""
    tenant_streams: int = 256
    """Event streams of all keys of one tenant at the same time."""
    all_streams: int = 320
    """Event streams of all keys at the same time: others must get connections, too."""
    deadline: float = 30.0
    """Seconds from the first byte of a request until its response begins."""
    send_timeout: float = 60.0
    """Seconds that a client may take to accept a part of a response."""
    proxy: ProxySettings = field(default_factory=ProxySettings)
    """Where the memory proxy sends requests."""
    audit_days: int = 365
    """Days for which the audit log is kept; at least 30."""
    stop_delay: float = 0.0
    """Seconds between the signal to stop and the end of listening, for load balancers to notice."""
    drain: float = 20.0
    """Seconds that running requests may take to finish when the server stops."""


def is_loopback(host: str) -> bool:
    """Return whether an address can be reached from this machine only."""
    if host == "localhost":
        return True
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _is_safe_url(url: str) -> bool:
    scheme, _, rest = url.partition("://")
    host = rest.partition("/")[0].rpartition("@")[2]
    name = host.partition("]")[0] + "]" if host.startswith("[") else host.partition(":")[0]
    return scheme == "https" or (scheme == "http" and is_loopback(name))
