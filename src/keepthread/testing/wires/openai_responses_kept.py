"""Responses that OpenAI keeps: a later request continues them, and clients get and delete them."""

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import parse_qs

from keepthread.testing.script import Received
from keepthread.testing.wires import Refused, is_list, is_object
from keepthread.testing.wires.openai_responses_answer import is_sealed

PATH: Final = "/v1/responses"
_RUNNING: Final = ("queued", "in_progress")


@dataclass
class _Kept:
    """One response, and the items that the model was given."""

    response: Mapping[str, Any]
    items: Sequence[Mapping[str, Any]]
    status: str
    """Its status now: one that runs in the background is finished when somebody looks."""

    def shown(self) -> Mapping[str, Any]:
        if self.status == self.response["status"]:
            return self.response
        return {**self.response, "status": self.status, "output": [], "usage": None}


class KeptResponses:
    """The responses of a scripted server. Several threads may use it at once."""

    def __init__(self) -> None:
        """Keep nothing yet."""
        self._lock = threading.Lock()
        self._responses: dict[str, _Kept] = {}
        self._conversations: dict[str, list[Mapping[str, Any]]] = {}

    def earlier(self, request: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
        """Return the kept items that a request continues or names; refuse unknown ones.

        A conversation exists as soon as a request names it.
        """
        given = request.get("input")
        own = [item for item in given if is_object(item)] if is_list(given) else []
        with self._lock:
            found = [*self._continued(request), *self._conversation(request)]
            known = {item["id"]: item for item in self._items()}
        for item in own:
            id, kind = item.get("id"), item.get("type")
            sealed = item.get("encrypted_content")
            if sealed is not None and not is_sealed(sealed):
                code = {"code": "invalid_encrypted_content"}
                raise Refused(400, "The encrypted content could not be verified.", code)
            if kind == "item_reference" or (kind == "reasoning" and sealed is None):
                if not isinstance(id, str) or id not in known:
                    # “Items are not persisted when `store` is set to false. Try again with …”
                    raise Refused(404, f"Item with id {id!r} not found.", {"code": None})
                if kind == "item_reference":
                    found.append(known[id])
        return found

    def keep(self, asked: Received, response: Mapping[str, Any]) -> None:
        """Keep a response, unless the request says otherwise."""
        output: Sequence[Mapping[str, Any]] = response["output"]
        given = asked.messages[len(asked.earlier) :]
        items = [_listed(item, f"{response['id']}_{at}") for at, item in enumerate(given)]
        items = [item for item in items if item.get("type") != "item_reference"]
        with self._lock:
            if (conversation := _conversation_of(asked.body)) is not None:
                self._conversations.setdefault(conversation, []).extend([*items, *output])
            if asked.body.get("store") is not False:
                status = "queued" if asked.body.get("background") else response["status"]
                self._responses[response["id"]] = _Kept(response, [*asked.earlier, *items], status)

    def answer(self, method: str, path: str, query: str) -> Mapping[str, Any]:
        """Return what a request about a kept response is answered with."""
        id, _, action = path.removeprefix(f"{PATH}/").partition("/")
        with self._lock:
            kept = self._responses.get(id)
            if (method, action) not in _ACTIONS:
                raise Refused(404, f"Invalid URL ({method} {path})", {"code": None})
            if kept is None:
                raise Refused(404, f"Response with id {id!r} not found.", {"code": None})
            if method == "DELETE":
                del self._responses[id]
                return {"id": id, "object": "response", "deleted": True}
            if action == "input_items":
                return _page(kept.items, parse_qs(query))
            if action == "cancel":
                if not kept.response["background"]:
                    raise Refused(400, "Cannot cancel a synchronous response.")
                kept.status = "cancelled" if kept.status in _RUNNING else kept.status
            elif kept.status in _RUNNING:
                kept.status = kept.response["status"]
            return kept.shown()

    def _continued(self, request: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
        id = request.get("previous_response_id")
        if not isinstance(id, str) or not id:
            return ()
        if not id.startswith("resp"):
            # “Invalid 'previous_response_id': 'x'. Expected an ID that begins with 'resp'.”
            message = "Invalid 'previous_response_id'. Expected an ID that begins with 'resp'."
            raise Refused(400, message, {"param": "previous_response_id"})
        if id not in self._responses:
            code = {"param": "previous_response_id", "code": "previous_response_not_found"}
            raise Refused(400, f"Previous response with id {id!r} not found.", code)
        kept = self._responses[id]
        return [*kept.items, *kept.response["output"]]

    def _conversation(self, request: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
        id = _conversation_of(request)
        if id is not None and not id.startswith("conv"):
            message = "Invalid 'conversation'. Expected an ID that begins with 'conv'."
            raise Refused(400, message, {"param": "conversation"})
        return self._conversations.get(id or "", ())

    def _items(self) -> list[Mapping[str, Any]]:
        kept = [item for one in self._responses.values() for item in one.response["output"]]
        given = [item for one in self._responses.values() for item in one.items]
        spoken = [item for items in self._conversations.values() for item in items]
        return [item for item in (*kept, *given, *spoken) if isinstance(item.get("id"), str)]


_ACTIONS: Final = {("GET", ""), ("DELETE", ""), ("POST", "cancel"), ("GET", "input_items")}


def _conversation_of(request: Mapping[str, Any]) -> str | None:
    given = request.get("conversation")
    id = given.get("id") if is_object(given) else given
    return id if isinstance(id, str) and id else None


def _listed(item: Mapping[str, Any], id: str) -> Mapping[str, Any]:
    """Return an item as it is kept: with an id, a status, and its content in parts."""
    if item.get("type", "message") != "message":
        return {"id": id.replace("resp", "item", 1), **item}
    content = item["content"]
    if isinstance(content, str):
        kind = "output_text" if item["role"] == "assistant" else "input_text"
        content = [{"type": kind, "text": content}]
    named = {"id": id.replace("resp", "msg", 1), "type": "message", "status": "completed"}
    return {**named, **item, "content": content}


def _page(
    items: Sequence[Mapping[str, Any]], query: Mapping[str, Sequence[str]]
) -> Mapping[str, Any]:
    """Return a page of a response's input: the newest item first, unless asked otherwise."""
    limit, order = query.get("limit", ["20"])[-1], query.get("order", ["desc"])[-1]
    if not limit.isdecimal() or not 1 <= int(limit) <= 100:
        raise Refused(400, "Invalid 'limit': expected an integer from 1 to 100")
    if order not in ("asc", "desc"):
        raise Refused(400, "Invalid 'order': expected 'asc' or 'desc'")
    listed = list(items) if order == "asc" else [*reversed(items)]
    ids = [item["id"] for item in listed]
    after = query.get("after", [""])[-1]
    if after and after not in ids:
        raise Refused(400, f"Item with id {after!r} not found.")
    rest = listed[ids.index(after) + 1 if after else 0 :]
    page = rest[: int(limit)]
    return {
        "object": "list",
        "data": page,
        "first_id": page[0]["id"] if page else None,
        "last_id": page[-1]["id"] if page else None,
        "has_more": len(rest) > len(page),
    }
