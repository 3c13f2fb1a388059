"""A write that replicas have before it is acknowledged.

WAIT speaks of the writes of its own connection, so it must follow the script on the same one. A
script that is repeated writes nothing when its first attempt did; a write of no meaning between
the two makes WAIT speak of all that the server has written until then.
"""

from typing import Any

from keepthread.stores.redis.driver import Client, PipelineCommand, RedisCluster, exceptions
from keepthread.stores.redis.faults import TooFewReplicas

_FIRST_KEY = 3


async def run_and_wait(client: Client, command: Any, replicas: int, seconds: float) -> Any:
    """Run a script and return its answer once so many replicas have what it wrote."""
    key: str = command[_FIRST_KEY]
    commands = (
        command,
        ("SET", f"{key}:written", "", "PX", 1),
        ("WAIT", replicas, max(1, round(seconds * 1000))),
    )
    if isinstance(client, RedisCluster):
        reply, written, reached = await _on_its_node(client, key, commands)
    else:
        pipeline = client.pipeline(transaction=False)
        for one in commands:
            pipeline.execute_command(*one)
        reply, written, reached = await pipeline.execute(raise_on_error=False)
    for answer in (reply, written, reached):
        if isinstance(answer, Exception):
            raise answer
    if reached < replicas:
        raise TooFewReplicas(f"{reached} of {replicas} replicas have it")
    return reply


async def _on_its_node(client: Any, key: str, commands: Any) -> list[Any]:
    """Run commands on one connection to the node that has a key."""
    await client.initialize()
    node = client.get_node_from_key(key)
    if node is None:
        raise exceptions.ClusterDownError("no node has this key")
    sent = [PipelineCommand(number, *command) for number, command in enumerate(commands)]
    try:
        await node.execute_pipeline(sent)
    except exceptions.ConnectionError:
        await client.aclose()  # it looks for the nodes anew when it is used again
        raise
    first = sent[0].result
    if isinstance(first, exceptions.AskError):  # the key has moved, or is moving
        await client.execute_command(*commands[0])  # in doing so the client learns where to
        raise exceptions.TryAgainError("the key has moved")
    if isinstance(first, exceptions.ConnectionError):
        await client.aclose()
    return [one.result for one in sent]
