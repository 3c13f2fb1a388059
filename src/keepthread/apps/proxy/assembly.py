"""Assembly of the proxy: API readers and the owners' memories."""

import hmac
import json
from collections.abc import Mapping
from functools import partial
from typing import Final
from urllib.parse import urlsplit

from keepthread.apps.proxy.answers import answer_reader
from keepthread.apps.proxy.app import Proxy, Wires
from keepthread.apps.proxy.encodings import decoded
from keepthread.apps.proxy.memory import ProxyMemory
from keepthread.apps.proxy.request import read_request, splice
from keepthread.apps.proxy.sessions import Positions
from keepthread.apps.proxy.settings import ProxySettings
from keepthread.apps.proxy.types import AnswerReader, MemoryOfProxy, ReadRequest, WireName
from keepthread.memory.owner import OwnerMemory
from keepthread.protocols.server import ServerTables
from keepthread.text_caches import LeastRecent, register_object

_MEMORIES: Final = 1024


def build(settings: ProxySettings) -> Proxy:
    """Return a proxy that relays to the upstreams of the settings."""

    def host(wire: WireName) -> str:
        """Return the provider, which is kept beside what only it understands."""
        url = settings.base_of("anthropic" if wire == "anthropic" else "openai")
        return urlsplit(url).hostname or ""

    def read(
        wire: WireName, body: bytes, headers: Mapping[str, str], addition_key: bytes, /
    ) -> ReadRequest | None:
        return read_request(wire, body, headers, provider=host(wire), addition_key=addition_key)

    def reader(wire: WireName, streams: bool) -> AnswerReader:
        return answer_reader(wire, streams, provider=host(wire))

    return Proxy(settings, Wires(read, splice, reader, decoded))


class Memories:
    """The memories that were used last, by tenant, owner and credential."""

    def __init__(self, tables: ServerTables) -> None:
        """Start empty; a secret of the tables signs additions."""
        self._tables = tables
        self._known: LeastRecent[tuple[str, str, str], MemoryOfProxy] = LeastRecent(_MEMORIES)
        self._positions = Positions()
        register_object(self._known)

    def of(self, memory: OwnerMemory, tenant: str, credential: str) -> MemoryOfProxy:
        """Return the memory of an owner for a credential; sessions are the credential's own."""
        key = (tenant, memory.owner, credential)
        found = self._known.get(key)
        if found is None:
            found = ProxyMemory(
                memory,
                credential,
                positions=self._positions,
                addition_key=partial(self._addition_key, tenant, memory.owner),
            )
            self._known.put(key, found)
        return found

    async def _addition_key(self, tenant: str, owner: str) -> bytes:
        secret = await self._tables.secret("additions")
        return hmac.digest(secret, json.dumps([tenant, owner]).encode(), "sha256")
