"""The optional driver: redis-py, and how a client is made from a URL."""

from typing import Any, Final, cast
from urllib.parse import urlsplit, urlunsplit

from keepthread.errors import InvalidInput, Unavailable

try:
    import redis.asyncio as driver
    from redis import exceptions
    from redis.asyncio.cluster import ClusterNode, PipelineCommand, RedisCluster
    from redis.asyncio.retry import Retry
    from redis.backoff import NoBackoff
except ImportError:  # pragma: no cover - tried by hand, in an environment without it
    raise Unavailable("a store on Redis needs redis-py: pip install 'keepthread[redis]'") from None

__all__ = [
    "Client",
    "PipelineCommand",
    "RedisCluster",
    "close_client",
    "drop_idle",
    "exceptions",
    "make_client",
]

Client = Any
"""A client of a server or of a cluster; redis-py's own types do not tell what answers are."""

_SCHEMES: Final = ("redis", "rediss", "redis+cluster", "rediss+cluster")
_CLUSTER: Final = "+cluster"
_PORT: Final = 6379


def make_client(url: str, *, connect: float, answer: float, connections: int) -> Client:
    """Return a client that is not connected yet; trying again is left to us."""
    parts = urlsplit(url)
    if parts.scheme not in _SCHEMES or not parts.hostname:
        known = ", ".join(f"{scheme}://HOST:PORT" for scheme in _SCHEMES)
        raise InvalidInput(f"the URL of a Redis store is one of {known}")
    options: dict[str, Any] = {
        "socket_connect_timeout": connect,
        "socket_timeout": answer,
        "max_connections": connections,
        "protocol": 2,
        "retry": Retry(NoBackoff(), 0),
    }
    try:
        if not parts.scheme.endswith(_CLUSTER):
            return cast(Any, driver.Redis).from_url(url, **options)
        first, *others = parts.netloc.rpartition("@")[2].split(",")
        nodes = [_node(host) for host in others]
        user, at, _ = parts.netloc.rpartition("@")
        plain = (parts.scheme.removesuffix(_CLUSTER), user + at + first, *parts[2:])
        if nodes:
            options["startup_nodes"] = nodes
        return RedisCluster.from_url(urlunsplit(plain), **options)
    except (ValueError, TypeError) as error:
        raise InvalidInput(f"the URL of the Redis store is not right: {error}") from error


async def close_client(client: Client) -> None:
    """Let go of every connection."""
    await client.aclose()
    if isinstance(client, RedisCluster):  # it takes itself for closed once a node was lost
        await client.nodes_manager.aclose()
        await client.nodes_manager.aclose("startup_nodes")


async def drop_idle(client: Client) -> None:
    """Close the lines that wait to be used; a cluster's client looks for its nodes by itself."""
    if not isinstance(client, RedisCluster):
        await client.connection_pool.disconnect(inuse_connections=False)


def _node(host: str) -> ClusterNode:
    name, _, port = host.rpartition(":")
    return ClusterNode(name or port, int(port) if name else _PORT)
