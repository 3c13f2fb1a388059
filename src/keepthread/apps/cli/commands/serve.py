"""Serve the memory over HTTP, for programs in any language."""

import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Annotated, Final

import typer

from keepthread.apps.cli.chat.startup import chat_counter
from keepthread.apps.cli.invocation import Call
from keepthread.apps.cli.settings.server import MemoryProxySettings, ServerSettings
from keepthread.apps.cli.stores import place_of
from keepthread.apps.cli.wiring import memory_arguments
from keepthread.apps.http.settings import LOCAL_HOSTS, HttpSettings, Issuer
from keepthread.apps.proxy.settings import ProxySettings
from keepthread.errors import InvalidInput, Unavailable
from keepthread.memory.memory import Memory
from keepthread.memory.tracing import opentelemetry
from keepthread.protocols import Tracer

_IN_PROCESS: Final = "ram://"


def serve(
    call: Call,
    host: Annotated[
        str | None,
        typer.Option(metavar="ADDRESS", help="The address to listen on (default: 127.0.0.1)."),
    ] = None,
    port: Annotated[
        int | None, typer.Option(metavar="N", help="The port to listen on (default: 8765).")
    ] = None,
    workers: Annotated[
        int | None, typer.Option(metavar="N", help="Number of worker processes (default: 1).")
    ] = None,
    tls_cert: Annotated[
        str | None, typer.Option(metavar="FILE", help="The certificate chain, in PEM.")
    ] = None,
    tls_key: Annotated[
        str | None, typer.Option(metavar="FILE", help="The certificate's private key, in PEM.")
    ] = None,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="An allowed Host name; * allows any."),
    ] = None,
    allow_origin: Annotated[
        list[str] | None,
        typer.Option(metavar="URL", help="An allowed browser origin (CORS)."),
    ] = None,
    metrics_port: Annotated[
        int | None, typer.Option(metavar="N", help="Show metrics for Prometheus on this port.")
    ] = None,
) -> int:
    """Serve the memory over HTTP, until Ctrl-C.

    Every request needs a key: `keepthread keys create NAME` creates one.
    """
    flags = {
        "server.host": host,
        "server.port": port,
        "server.workers": workers,
        "server.tls_cert": tls_cert,
        "server.tls_key": tls_key,
        "server.metrics_port": metrics_port,
        "server.allowed_hosts": list(allow_host or ()) or None,
        "server.allowed_origins": list(allow_origin or ()) or None,
    }
    return _run(call.with_flags({key: each for key, each in flags.items() if each is not None}))


def _run(call: Call) -> int:
    try:
        from keepthread.apps.http import serve as server  # noqa: PLC0415 - what the extra brings
    except ModuleNotFoundError as error:
        raise InvalidInput(
            f"the HTTP server needs {error.name}: pip install 'keepthread[server]'"
        ) from None
    settings = call.config.settings.server
    _check(call, settings)
    if not call.store:
        call.config.make_room()
    work = server.Work(
        open_memory=partial(open_memory, call),
        settings=http_settings(settings, call.config.settings.proxy),
        tls_cert=settings.tls_cert,
        tls_key=settings.tls_key,
    )
    port = settings.metrics_port
    bind = server.Bind(
        host=settings.host,
        port=settings.port,
        workers=settings.workers,
        metrics=None if port is None else (settings.metrics_host, port),
    )
    call.say(f"memory: {place_of(call.url)}")
    return server.run(work, bind, call.announce)


def _check(call: Call, settings: ServerSettings) -> None:
    """Refuse what cannot be served."""
    if call.url.startswith(_IN_PROCESS) and settings.workers > 1:
        raise InvalidInput(
            "workers cannot share an in-memory store; use a file or a database server"
        )
    if bool(settings.tls_cert) != bool(settings.tls_key):
        raise InvalidInput("TLS needs both --tls-cert and --tls-key")
    for file in filter(None, (settings.tls_cert, settings.tls_key)):
        if not Path(file).is_file():
            raise InvalidInput(f"there is no file {file}; check --tls-cert and --tls-key")


@asynccontextmanager
async def open_memory(call: Call, *, outbox: str | None = None) -> AsyncGenerator[Memory]:
    """Open the memory as the settings say; each worker does so."""
    settings = call.config.settings
    given = memory_arguments(settings)
    given["tracer"] = _tracer()
    counter = chat_counter(os.environ, settings.tokenizer)
    async with Memory.open(call.url, counter=counter, outbox=outbox, **given) as memory:
        yield memory


def _tracer() -> Tracer | None:
    """Return the tracer of OpenTelemetry if it is installed; without a setup it does nothing."""
    try:
        return opentelemetry()
    except Unavailable:
        return None


def http_settings(
    settings: ServerSettings, proxy: MemoryProxySettings | None = None
) -> HttpSettings:
    """Return the settings as the server takes them."""
    hosts = {each.lower() for each in settings.allowed_hosts}
    return HttpSettings(
        hosts=LOCAL_HOSTS | hosts,
        any_host="*" in hosts,
        origins=frozenset(each.rstrip("/") for each in settings.allowed_origins),
        issuers=_issuers(settings),
        rate=settings.rate,
        burst=settings.burst,
        audit_days=settings.audit_days,
        concurrency=settings.concurrency,
        deadline=settings.deadline,
        stop_delay=settings.stop_delay,
        drain=settings.drain,
        proxy=proxy_settings(proxy or MemoryProxySettings()),
    )


def proxy_settings(settings: MemoryProxySettings) -> ProxySettings:
    """Return the settings as the proxy takes them."""
    return ProxySettings(
        openai=settings.openai,
        anthropic=settings.anthropic,
        strict=settings.strict,
        memory_deadline=settings.deadline,
    )


def _issuers(settings: ServerSettings) -> tuple[Issuer, ...]:
    if settings.issuer is None:
        return ()
    if settings.audience is None or settings.jwks is None:
        raise InvalidInput(
            "server.issuer needs server.audience (the claim `aud` of tokens for this server) and"
            " server.jwks (where the issuer's public keys are)"
        )
    return (
        Issuer(
            name=settings.issuer,
            audience=settings.audience,
            jwks=settings.jwks,
            algorithms=settings.algorithms,
            tenant=settings.token_tenant,
            tenant_claim=settings.tenant_claim,
            owner_claim=settings.owner_claim,
            scope_claim=settings.scope_claim,
        ),
    )
