"""What an acknowledged write survives on a server, by asking it.

`appendfsync everysec` is less than it seems: while the server syncs its log, for up to two
seconds, it acknowledges what it has not even handed to its kernel, and loses that when it is
killed. With `no` it writes before it acknowledges and leaves syncing to the kernel: what is
acknowledged survives the server's death, but not a power cut.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

from keepthread.errors import DurabilityTooLow, KeepthreadError
from keepthread.stores.records import strength
from keepthread.stores.redis.engine import Link, RedisCluster, exceptions
from keepthread.types import Durability

_SETTINGS: Final = (
    "appendonly",
    "appendfsync",
    "no-appendfsync-on-rewrite",
    "maxmemory",
    "maxmemory-policy",
)
_REPLICAS: Final = "connected_slaves"


class Promise(NamedTuple):
    """A level, and why it is no higher."""

    level: Durability
    reason: str = ""


async def require(link: Link, asked: Durability | None) -> Durability:
    """Return the level the server gives, or refuse less than was asked for."""
    promise = await learn(link)
    if asked is not None and strength(promise.level) < strength(asked):
        raise DurabilityTooLow(
            f"the Redis server gives `{promise.level}`: {promise.reason}; `{asked}` was asked for"
        )
    return promise.level


async def learn(link: Link) -> Promise:
    """Return what the server gives; of a cluster, what the weakest of its primaries gives."""
    promises = [judge(await _settings(link, node), link.replicas) for node in await nodes(link)]
    return min(promises, key=lambda promise: strength(promise.level))


def judge(settings: Mapping[str, str] | None, replicas: int) -> Promise:
    """Return what these settings give, if so many replicas are waited for."""
    if settings is None:
        return Promise("memory", "it does not tell its settings (CONFIG is forbidden)")
    promise = _alone(settings)
    if promise.level != "power":
        return promise
    if not replicas:
        return Promise("power", "no replica is waited for")
    followers = int(settings.get(_REPLICAS, "0"))
    if followers < replicas:
        return Promise("power", f"{followers} of {replicas} replicas follow it")
    return Promise("replicated")


def _alone(settings: Mapping[str, str]) -> Promise:
    """Return what a server gives without its replicas."""
    policy = settings.get("maxmemory-policy", "noeviction")
    if policy != "noeviction" and settings.get("maxmemory", "0") != "0":
        return Promise("memory", f"it drops keys when its memory is full ({policy})")
    if settings.get("appendonly") != "yes":
        return Promise("memory", "it keeps no log of what it writes (appendonly no)")
    fsync = settings.get("appendfsync", "")
    if fsync == "everysec":
        reason = "while it syncs its log it acknowledges what it has not written"
        return Promise("memory", f"{reason} (appendfsync everysec)")
    if fsync != "always":
        return Promise("process", f"it does not wait for its disk (appendfsync {fsync})")
    if settings.get("no-appendfsync-on-rewrite") == "yes":
        reason = "it does not wait for its disk while it rewrites its log"
        return Promise("process", f"{reason} (no-appendfsync-on-rewrite yes)")
    return Promise("power")


async def nodes(link: Link) -> Sequence[Mapping[str, Any]]:
    """Return what names each primary to the client."""
    if not isinstance(link.client, RedisCluster):
        return [{}]
    await link.insist(link.client.initialize)
    return [{"target_nodes": node} for node in link.client.get_primaries()]


async def _settings(link: Link, node: Mapping[str, Any]) -> dict[str, str] | None:
    """Return settings and number of replicas of a server, None if it keeps them to itself."""
    send = partial(link.client.execute_command, **node)
    found: dict[Any, Any] = {}
    try:
        for name in _SETTINGS:
            found |= await link.insist(partial(send, "CONFIG GET", name))
        found |= await link.insist(partial(send, "INFO", "replication"))
    except KeepthreadError as error:
        if is_forbidden(error.__cause__):
            return None
        raise
    return {_text(name): _text(value) for name, value in found.items()}


def is_forbidden(error: BaseException | None) -> bool:
    """Tell whether a server does not know a command, or not for us; some rename CONFIG away."""
    return isinstance(error, exceptions.NoPermissionError) or "unknown command" in str(error)


def _text(value: object) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
