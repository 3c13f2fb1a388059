"""Determine what acknowledged writes survive on a server.

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
from keepthread.stores.redis.engine import RedisCluster, RedisLink, exceptions
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
    """A durability, and what prevents a higher one."""

    level: Durability
    reason: str = ""


async def require(link: RedisLink, asked: Durability | None) -> Durability:
    """Return the server's durability; raise `DurabilityTooLow` if it is below the requested one."""
    promise = await learn(link)
    if asked is not None and strength(promise.level) < strength(asked):
        raise DurabilityTooLow(
            f"the Redis server provides only `{promise.level}`: {promise.reason}; `{asked}` was "
            "requested"
        )
    return promise.level


async def learn(link: RedisLink) -> Promise:
    """Return the server's durability; for a cluster, that of its weakest primary."""
    promises = [judge(await _settings(link, node), link.replicas) for node in await nodes(link)]
    return min(promises, key=lambda promise: strength(promise.level))


def judge(settings: Mapping[str, str] | None, replicas: int) -> Promise:
    """Return the durability of these settings if writes wait for `replicas` replicas."""
    if settings is None:
        return Promise("memory", "it does not show its settings (CONFIG is forbidden)")
    promise = _alone(settings)
    if promise.level != "power":
        return promise
    if not replicas:
        return Promise("power", "writes do not wait for a replica")
    followers = int(settings.get(_REPLICAS, "0"))
    if followers < replicas:
        return Promise("power", f"only {followers} of {replicas} replicas are connected")
    return Promise("replicated")


def _alone(settings: Mapping[str, str]) -> Promise:
    """Return the durability of a server without its replicas."""
    policy = settings.get("maxmemory-policy", "noeviction")
    if policy != "noeviction" and settings.get("maxmemory", "0") != "0":
        return Promise("memory", f"it evicts keys when its memory is full ({policy})")
    if settings.get("appendonly") != "yes":
        return Promise("memory", "it does not log writes (appendonly no)")
    fsync = settings.get("appendfsync", "")
    if fsync == "everysec":
        reason = "while syncing its log it acknowledges writes before logging them"
        return Promise("memory", f"{reason} (appendfsync everysec)")
    if fsync != "always":
        return Promise("process", f"it does not wait for its disk (appendfsync {fsync})")
    if settings.get("no-appendfsync-on-rewrite") == "yes":
        reason = "it does not wait for its disk while it rewrites its log"
        return Promise("process", f"{reason} (no-appendfsync-on-rewrite yes)")
    return Promise("power")


async def nodes(link: RedisLink) -> Sequence[Mapping[str, Any]]:
    """Return the arguments that select each primary."""
    if not isinstance(link.client, RedisCluster):
        return [{}]
    await link.insist(link.client.initialize)
    return [{"target_nodes": node} for node in link.client.get_primaries()]


async def _settings(link: RedisLink, node: Mapping[str, Any]) -> dict[str, str] | None:
    """Return settings and number of replicas of a server, None if that is forbidden."""
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
    """Return whether a command is unknown or forbidden; some servers rename CONFIG."""
    return isinstance(error, exceptions.NoPermissionError) or "unknown command" in str(error)


def _text(value: object) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
