"""The settings of `keepthread serve` and `keepthread proxy`.

No project's file sets them: they say who may come in, and where keys of providers go.
"""

from dataclasses import dataclass
from typing import Final

from keepthread.apps.cli.settings.fields import (
    NAME,
    NAMES,
    NOT_NEGATIVE,
    PATH,
    POSITIVE,
    TEXT,
    TRUTH,
    WEB,
    optional,
    setting,
    whole,
)

_PORTS: Final = 65_535


@dataclass(frozen=True, kw_only=True)
class MemoryProxySettings:
    """Where the memory proxy listens and sends requests."""

    port: int = setting(
        8766,
        whole(0, _PORTS),
        "The port of `keepthread proxy` on this machine.",
        project=False,
        flag="--port",
    )
    openai: str = setting(
        "https://api.openai.com/v1",
        WEB,
        "The base URL of the OpenAI-compatible service, with `/v1`.",
        project=False,
        flag="--upstream openai=URL",
    )
    anthropic: str = setting(
        "https://api.anthropic.com",
        WEB,
        "The base URL of the Anthropic-compatible service, without `/v1`.",
        project=False,
        flag="--upstream anthropic=URL",
    )
    strict: bool = setting(
        False,
        TRUTH,
        "Whether requests are refused, rather than relayed without memory, while the memory is "
        "unavailable.",
        project=False,
        flag="--strict",
    )
    deadline: float = setting(
        0.3,
        POSITIVE,
        "Seconds to wait for the memory before a request is relayed without it.",
        project=False,
    )


@dataclass(frozen=True, kw_only=True)
class ServerSettings:
    """Where the HTTP server listens, what it accepts, and whose tokens it trusts."""

    host: str = setting(
        "127.0.0.1",
        NAME,
        "The address to listen on; `0.0.0.0` is every address of the machine.",
        project=False,
        flag="--host",
    )
    port: int = setting(
        8765, whole(0, _PORTS), "The port to listen on.", project=False, flag="--port"
    )
    workers: int = setting(
        1, whole(1, 256), "The number of worker processes.", project=False, flag="--workers"
    )
    tls_cert: str | None = setting(
        None,
        optional(PATH),
        "A file with the server's certificate chain, in PEM.",
        project=False,
        flag="--tls-cert",
    )
    tls_key: str | None = setting(
        None,
        optional(PATH),
        "A file with the private key of that certificate, in PEM.",
        project=False,
        flag="--tls-key",
    )
    metrics_port: int | None = setting(
        None,
        optional(whole(0, _PORTS)),
        "The port of the metrics for Prometheus, on `server.metrics_host`.",
        project=False,
        flag="--metrics-port",
        stands_for="no metrics",
    )
    metrics_host: str = setting(
        "127.0.0.1", NAME, "The address that shows the metrics.", project=False
    )
    allowed_hosts: tuple[str, ...] = setting(
        (),
        NAMES,
        "Allowed `Host` names in addition to those of this machine; `*` allows any.",
        project=False,
        flag="--allow-host",
        stands_for="none",
    )
    allowed_origins: tuple[str, ...] = setting(
        (),
        NAMES,
        "Allowed browser origins (CORS), such as `https://app.example.com`.",
        project=False,
        flag="--allow-origin",
        stands_for="none",
    )
    rate: float = setting(
        500.0,
        NOT_NEGATIVE,
        "Requests per second that a key may send to one worker; 0 means no limit.",
        project=False,
    )
    burst: int = setting(
        1000,
        whole(1),
        "The burst size: requests a key may send at once after a pause.",
        project=False,
    )
    concurrency: int = setting(
        64, whole(1), "Concurrent requests of one key per worker.", project=False
    )
    deadline: float = setting(30.0, POSITIVE, "The request timeout in seconds.", project=False)
    audit_days: int = setting(
        365,
        whole(30, 36_500),
        "Days to keep the audit log.",
        project=False,
    )
    stop_delay: float = setting(
        0.0,
        NOT_NEGATIVE,
        "Seconds to keep listening after the stop signal, while `/readyz` returns 503.",
        project=False,
    )
    drain: float = setting(
        20.0, POSITIVE, "Seconds that running requests then have to finish.", project=False
    )
    issuer: str | None = setting(
        None,
        optional(TEXT),
        "The identity provider whose tokens are accepted, exactly as in their claim `iss`.",
        project=False,
        stands_for="API keys only",
    )
    audience: str | None = setting(
        None,
        optional(TEXT),
        "The claim `aud` of its tokens for this server; for MCP clients the address of `/mcp`.",
        project=False,
    )
    jwks: str | None = setting(
        None,
        optional(TEXT),
        "Its public keys: an https address, or the path of a file.",
        project=False,
    )
    algorithms: tuple[str, ...] = setting(
        ("RS256", "ES256"), NAMES, "The algorithms of its signatures.", project=False
    )
    token_tenant: str | None = setting(
        None,
        optional(NAME),
        "The tenant of all its tokens.",
        project=False,
        stands_for="from the claim `tenant_claim`",
    )
    tenant_claim: str = setting("tenant", NAME, "The claim that names the tenant.", project=False)
    owner_claim: str = setting("sub", NAME, "The claim that names the owner.", project=False)
    scope_claim: str = setting("scope", NAME, "The claim that lists the scopes.", project=False)
