"""The resources under /v1: what a client can do, and the mistakes of others that it cannot."""

import asyncio
import json
import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.convertors import CONVERTOR_TYPES

from keepthread import Memory, Message
from keepthread.apps.http.paths import decoded, segment
from keepthread.interchange.import_ import import_lines
from keepthread.models.tokens import Estimator
from tests.http_world import HttpWorld, http_world, url_of
from tests.seeds import SEED

PRINTABLE = st.text(min_size=1, max_size=255).filter(str.isprintable)


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[HttpWorld]:
    async with http_world(url_of(tmp_path)) as opened:
        yield opened


@pytest.fixture
async def ann(world: HttpWorld) -> httpx2.AsyncClient:
    return await world.of("ann")


async def said(client: httpx2.AsyncClient, session: str, *texts: str) -> list[dict[str, Any]]:
    """Append messages to a session, which is created if it does not exist."""
    assert (await client.put(f"/sessions/{session}")).status_code in (200, 201)
    body = {"messages": [{"role": "user", "content": text} for text in texts]}
    response = await client.post(f"/sessions/{session}/messages", json=body)
    assert response.status_code == 201, response.text
    return response.json()["items"]


# --- sessions that a worker knows ---


@pytest.mark.parametrize("end", ["deleted", "forgotten"])
@pytest.mark.parametrize("asked", ["messages", "context"])
async def test_a_session_that_another_process_ended_is_not_found(
    world: HttpWorld, ann: httpx2.AsyncClient, end: str, asked: str
) -> None:
    """The worker used the session before, and knows it; the answer is as if it did not."""
    await said(ann, "s", "before")
    message = {"role": "user", "content": "again", "id": "m"}
    body: dict[str, Any] = {"messages": [message]} if asked == "messages" else {}
    for _ in range(2):
        assert (await ann.post(f"/sessions/s/{asked}", json=body)).status_code in (200, 201)
    memory = world.memory.for_owner("ann")
    if end == "deleted":
        await memory.delete_session("s")
    else:
        await memory.forget(session="s")
    for _ in range(2):  # also for a message that was stored before
        answer = await ann.post(f"/sessions/s/{asked}", json=body)
        assert (answer.status_code, answer.json()["type"]) == (404, "session_not_found")
        assert "; PUT /v1/sessions/{session} creates it" in answer.json()["detail"]
    new = await memory.create_session("s")
    await new.add_message("user", "in the new one")
    shown = (await ann.post("/sessions/s/context", json={})).json()["messages"]
    assert [each["content"] for each in shown] == ["in the new one"]


async def test_a_known_session_is_not_that_of_another_owner_or_tenant(world: HttpWorld) -> None:
    ann = await world.of("ann")
    await said(ann, "s", "quetzal")
    body = {"messages": [{"role": "user", "content": "x"}]}
    for other in (await world.of("bob"), await world.of("ann", tenant="acme")):
        answer = await other.post("/sessions/s/messages", json=body)
        assert (answer.status_code, answer.json()["type"]) == (404, "session_not_found")
    assert len((await ann.get("/sessions/s/messages")).json()["items"]) == 1


# --- paths ---


@given(PRINTABLE)
def test_every_id_of_the_library_is_one_segment_of_a_path(id: str) -> None:
    path = decoded(f"/v1/sessions/{segment(id)}/messages".encode())
    name = path.removeprefix("/v1/sessions/").removesuffix("/messages")
    assert "/" not in name
    assert CONVERTOR_TYPES["id"].convert(name) == id


@pytest.mark.parametrize("id", ["a/b", "100%", "a%2Fb", "a b?c#d", "ж/é", "%", "a/messages"])
async def test_a_session_may_have_any_id(ann: httpx2.AsyncClient, id: str) -> None:
    made = await ann.put(f"/sessions/{quote(id, safe='')}")
    assert (made.status_code, made.json()["id"]) == (201, id)
    found = await ann.get(made.headers["location"].removeprefix("/v1"))
    assert found.json() == made.json()


# --- sessions and versions ---


async def test_a_session_that_is_put_again_stays_as_it_is(ann: httpx2.AsyncClient) -> None:
    responses = await asyncio.gather(*(ann.put("/sessions/s", json={"title": t}) for t in "abc"))
    assert sorted(each.status_code for each in responses) == [200, 200, 201]
    assert len({each.text for each in responses}) == 1
    again = await ann.post("/sessions", json={"id": "s"})
    assert (again.status_code, again.json()["type"]) == (409, "session_exists")


async def test_of_two_changes_of_one_version_the_second_is_refused(ann: httpx2.AsyncClient) -> None:
    tag = (await ann.put("/sessions/s")).headers["etag"]
    assert (await ann.patch("/sessions/s", json={"title": "x"})).status_code == 428
    changes = [ann.patch("/sessions/s", json={"title": t}, headers={"If-Match": tag}) for t in "xy"]
    codes = [each.status_code for each in await asyncio.gather(*changes)]
    assert sorted(codes) == [200, 412]
    now = (await ann.get("/sessions/s")).headers["etag"]
    weak = await ann.patch("/sessions/s", json={"title": "z"}, headers={"If-Match": f"W/{now}"})
    assert weak.status_code == 412
    several = {"If-Match": f'"other", {now}'}
    assert (await ann.patch("/sessions/s", json={"tags": ["t"]}, headers=several)).is_success
    anyway = await ann.patch("/sessions/s", json={"title": "w"}, headers={"If-Match": "*"})
    assert (anyway.json()["title"], anyway.json()["tags"]) == ("w", ["t"])
    assert (await ann.patch("/sessions/no", json={}, headers={"If-Match": "*"})).status_code == 404


async def test_a_client_that_has_the_version_gets_no_body(ann: httpx2.AsyncClient) -> None:
    tag = (await ann.put("/sessions/s")).headers["etag"]
    await said(ann, "s", "A message does not change the version.")
    same = await ann.get("/sessions/s", headers={"If-None-Match": tag})
    assert (same.status_code, same.content, same.headers["etag"]) == (304, b"", tag)
    assert (await ann.get("/sessions/s", headers={"If-None-Match": '"x"'})).status_code == 200


# --- pages ---


@pytest.mark.parametrize("order", ["oldest", "newest"])
@pytest.mark.parametrize(
    ("after", "before"), [(0, None), (3, 12), (5, None), (0, 9), (16, 17), (2, 3)]
)
async def test_pages_follow_their_order_and_show_each_message_once(
    ann: httpx2.AsyncClient, order: str, after: int, before: int | None
) -> None:
    """Cursors ran against the sort order elsewhere, so messages came twice: letta-python#63."""
    rng = random.Random(SEED)
    stored = await said(ann, "s", *(str(n) for n in range(17)))
    wanted = [m["seq"] for m in stored if after < m["seq"] and (not before or m["seq"] < before)]
    params: dict[str, Any] = {"order": order, "after": after}
    params |= {"before": before} if before else {}
    got: list[int] = []
    while True:
        params["limit"] = rng.randint(1, 6)
        page = (await ann.get("/sessions/s/messages", params=params)).json()
        got += [message["seq"] for message in page["items"]]
        if page["next"] is None:
            break
        params["cursor"] = page["next"]
        if order == "newest":  # what is added behind the reader shifts nothing
            await said(ann, "s", "another")
    assert got == (wanted if order == "oldest" else wanted[::-1])


async def test_a_cursor_belongs_to_its_owner_operation_order_and_filters(world: HttpWorld) -> None:
    ann, bob = await world.of("ann"), await world.of("bob")
    for client in (ann, bob):
        await said(client, "s", "one", "two", "three")
        await said(client, "t", "one", "two", "three")
    page = (await ann.get("/sessions/s/messages?limit=1")).json()
    listed = (await ann.get("/sessions?limit=1")).json()
    mine, sessions = page["next"], listed["next"]
    assert (await ann.get(f"/sessions/s/messages?limit=1&cursor={mine}")).is_success
    refused = [
        ann.get(f"/sessions/s/messages?limit=1&order=newest&cursor={mine}"),
        ann.get(f"/sessions/s/messages?limit=1&after=1&cursor={mine}"),
        ann.get(f"/sessions/t/messages?limit=1&cursor={mine}"),
        ann.get(f"/sessions?limit=1&cursor={mine}"),
        ann.get(f"/sessions?limit=1&tag=x&cursor={sessions}"),
        ann.get(f"/sessions/s/messages?limit=1&cursor={mine[:-2]}AA"),
        bob.get(f"/sessions/s/messages?limit=1&cursor={mine}"),
        bob.get(f"/sessions?limit=1&cursor={sessions}"),
    ]
    for number, response in enumerate(await asyncio.gather(*refused)):
        assert response.status_code in (400, 422), (number, response.text)


# --- turns ---


async def test_a_turn_is_continued_by_later_requests(ann: httpx2.AsyncClient) -> None:
    await said(ann, "s", "I am vegetarian.")
    begun = await ann.post("/sessions/s/turns", json={"text": "What to cook?", "id": "q1"})
    assert (begun.status_code, begun.json()["answer"]) == (201, None)
    turn = "/sessions/s/turns/q1"
    context = await ann.post(f"{turn}/context", json={"budget": 500, "format": "anthropic"})
    shown = [m["content"] for m in context.json()["rendered"]["messages"]]
    assert "vegetarian" in str(shown)
    call = {"role": "assistant", "tool_calls": [{"id": "c", "name": "fridge", "arguments": "{}"}]}
    assert (await ann.post(f"{turn}/messages", json={"messages": [call]})).status_code == 201
    # A request that fails does not close the open call.
    wrong = {"messages": [{"role": "user", "content": "other", "id": "q1"}]}
    assert (await ann.post(f"{turn}/messages", json=wrong)).status_code == 409
    result = {"role": "tool", "tool_call_id": "c", "content": "lentils"}
    stored = await ann.post(f"{turn}/messages", json={"messages": [result]})
    assert stored.json()["items"][0]["content"] == "lentils"
    done = await ann.post(f"{turn}/finish", json={"text": "Soup.", "usage": {"input": 9}})
    assert done.json()["meta"]["written_from"] == [[1, 2]]
    again = await ann.post(f"{turn}/finish", json={"text": "Stew."})
    assert again.json() == done.json()
    assert (await ann.get(turn)).json()["answer"] == done.json()
    begun = await ann.post("/sessions/s/turns", json={"text": "What to cook?", "id": "q1"})
    assert begun.json()["answer"] == done.json()


async def test_an_answer_is_a_text_or_a_message(ann: httpx2.AsyncClient) -> None:
    await ann.put("/sessions/s")
    await ann.post("/sessions/s/turns", json={"text": "?", "id": "q"})
    for body in ({}, {"text": "a", "message": {"role": "assistant", "content": "a"}}):
        assert (await ann.post("/sessions/s/turns/q/finish", json=body)).status_code == 422
    message = {"message": {"role": "assistant", "content": "a", "meta": {"model": "m"}}}
    done = await ann.post("/sessions/s/turns/q/finish", json=message)
    assert (done.json()["content"], done.json()["meta"]) == ("a", {"model": "m"})


# --- mistakes of others ---


async def test_the_server_never_fetches_an_address_that_a_client_sends(
    ann: httpx2.AsyncClient,
) -> None:
    """An image's URL made a server fetch it elsewhere (SSRF): CVE-2026-4964."""
    visits: list[bytes] = []
    heard = asyncio.Event()

    async def visited(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        visits.append(await reader.read(100))
        writer.close()
        heard.set()

    listener = await asyncio.start_server(visited, "127.0.0.1", 0)
    uri = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}/secret.png"
    picture = {"media_type": "image/png", "name": uri, "uri": uri}
    await ann.put("/sessions/s", json={"meta": {"avatar": uri}, "system_prompt": uri})
    native = {"wire": "openai-chat", "items": [{"image_url": {"url": uri}}], "provider": uri}
    message = {"role": "user", "content": uri, "source": f"web:{uri}", "attachments": [picture]}
    for body in (message, {"role": "assistant", "content": uri, "native": native}):
        posted = await ann.post("/sessions/s/messages", json={"messages": [body]})
        assert posted.status_code == 201, posted.text
    turn = {"text": uri, "id": "q", "attachments": [picture]}
    assert (await ann.post("/sessions/s/turns", json=turn)).status_code == 201
    for form in ("messages", "text", "openai-chat", "openai-responses", "anthropic"):
        body = {"budget": 4000, "format": form, "query": uri, "provider": uri}
        assert (await ann.post("/sessions/s/turns/q/context", json=body)).is_success
    assert (await ann.post("/search", json={"query": uri})).is_success
    assert (await ann.post("/facts", json={"text": uri, "source": uri})).is_success
    assert (await ann.post(f"/blobs?name={quote(uri)}", content=uri.encode())).is_success
    assert (await ann.post("/sessions/s/notes", json={"key": uri, "text": uri})).is_success
    assert (await ann.get("/export")).is_success
    assert (await ann.post("/forget", json={"source": f"web:{uri}", "dry_run": False})).is_success
    # The listener would have heard of a visit by now: it hears of this one.
    _, writer = await asyncio.open_connection(*listener.sockets[0].getsockname())
    writer.write(b"ours")
    await writer.drain()
    await heard.wait()
    writer.close()
    listener.close()
    await listener.wait_closed()
    assert visits == [b"ours"]


async def test_a_conversations_id_opens_it_to_its_owner_alone(world: HttpWorld) -> None:
    """voltagent#1315; the grid tries every operation."""
    ann, bob = await world.of("ann"), await world.of("bob")
    await said(ann, "diary", "A secret.")
    assert (await bob.get("/sessions/diary/messages")).status_code == 404
    mine = await said(bob, "diary", "Bob's own.")
    assert (await bob.get("/sessions/diary/messages")).json()["items"] == mine
    assert (await bob.post("/forget", json={"session": "diary", "dry_run": False})).is_success
    kept = (await ann.get("/sessions/diary/messages")).json()["items"]
    assert [each["content"] for each in kept] == ["A secret."]


# --- facts, forgetting, blobs, export ---


async def test_a_fact_of_a_model_waits_until_its_owner_confirms_it(
    ann: httpx2.AsyncClient,
) -> None:
    fact = (await ann.post("/facts", json={"text": "Likes tea.", "by": "model"})).json()
    assert fact["state"] == "quarantined"
    assert (await ann.post(f"/facts/{fact['key']}/confirm")).json()["state"] == "live"
    read = await ann.get(f"/facts/{fact['key']}")
    path, tag = f"/facts/{fact['key']}", {"If-Match": read.headers["etag"]}
    edits = [ann.patch(path, json={"text": text}, headers=tag) for text in ("Mint.", "Green.")]
    codes = [each.status_code for each in await asyncio.gather(*edits)]
    assert sorted(codes) == [200, 412]
    assert (await ann.patch(path, json={"text": "x"})).status_code == 428
    history = (await ann.get(f"{path}/history")).json()["items"]
    assert [each["state"] for each in history] == ["superseded", "live"]
    assert (await ann.delete(path)).json() == {"changed": True, "count": 1}
    assert (await ann.delete(path)).status_code == 404


async def test_forget_reports_and_erases_only_if_told_so(ann: httpx2.AsyncClient) -> None:
    await said(ann, "s", "My PIN is 9876.")
    planned = (await ann.post("/forget", json={"session": "s"})).json()
    assert (planned["dry_run"], planned["messages"]) == (True, 1)
    assert (await ann.get("/sessions/s")).is_success
    done = (await ann.post("/forget", json={"session": "s", "dry_run": False})).json()
    assert (done["dry_run"], done["messages"], done["found"]) == (False, 1, 0)
    assert (await ann.get("/sessions/s")).status_code == 404
    receipts = (await ann.get("/receipts")).json()["items"]
    assert [each["receipt"]["messages"] for each in receipts] == [1]
    assert "9876" not in json.dumps(receipts)
    assert (await ann.post("/forget", json={})).status_code == 422


@pytest.mark.parametrize("media_type", ["text/html", "application/json", "image/png"])
async def test_a_blob_is_stored_as_it_is_and_comes_back_as_a_download(
    ann: httpx2.AsyncClient, media_type: str
) -> None:
    data = b'<script>alert("x")</script>{"a": 1, "a": 2'
    sent = await ann.post("/blobs?name=x", content=data, headers={"Content-Type": media_type})
    assert (sent.status_code, sent.json()["media_type"]) == (201, media_type)
    back = await ann.get(f"{sent.headers['location'].removeprefix('/v1')}/content")
    assert back.content == data
    assert back.headers["content-type"] == "application/octet-stream"
    assert back.headers["content-disposition"] == "attachment"
    assert back.headers["x-content-type-options"] == "nosniff"


async def test_an_export_has_everything_of_its_owner_and_nothing_else(
    world: HttpWorld, tmp_path: Path
) -> None:
    ann, bob = await world.of("ann"), await world.of("bob")
    await said(ann, "s", "Ann's words.", "More of them. \N{SNOWMAN}")
    await said(ann, "t", "Others.")
    await said(bob, "s", "A quetzal.")
    await ann.post("/facts", json={"text": "Likes tea."})
    await ann.post("/blobs", content=b"x" * 700_000)
    lines = (await ann.get("/export")).content
    assert b"quetzal" not in lines
    assert json.loads(lines.splitlines()[-1])["end"]["messages"] == 3
    path = tmp_path / "export.jsonl"
    path.write_bytes(lines)
    async with Memory.open(f"sqlite:///{tmp_path}/other.db", counter=Estimator()) as memory:
        with path.open("rb") as file:
            await import_lines(memory.store, file)
        copy = [line async for line in memory.for_owner("ann").export()]
    assert len(copy) == len(lines.splitlines())
    one = (await ann.get("/export?session=t")).content
    assert [*json.loads(one.splitlines()[1])] == ["session"]
    assert b"Ann's words" not in one
    assert (await ann.get("/export?session=none")).status_code == 404


async def test_a_text_that_utf8_does_not_have_can_be_read(world: HttpWorld) -> None:
    session = await world.memory.for_owner("ann").session("s")
    await session.append(Message(role="user", content="broken \ud800 é"))
    response = await (await world.of("ann")).get("/sessions/s/messages")
    assert json.loads(response.content)["items"][0]["content"] == "broken \ud800 é"


# --- keys ---


async def test_a_key_is_shown_once_and_makes_no_stronger_one(world: HttpWorld) -> None:
    """Administrators' tokens without an end were a mistake of Honcho."""
    operator = world.client(await world.key(None, frozenset({"admin", "read"})))
    strong = (await world.key(None)).split("_")[1]
    body: dict[str, Any] = {"name": "app", "scopes": ["read"], "owner": "ann"}
    made = (await operator.post("/keys", json=body)).json()
    assert (await world.client(made["text"]).get("/sessions")).is_success
    secret = made["text"].split("_", 2)[2]
    everything = [await operator.get(path) for path in ("/keys", "/audit")]
    everything.append(await operator.get(f"/keys/{made['key']['id']}"))
    assert all(secret not in each.text and "digest" not in each.text for each in everything)
    for refused in (["write"], ["read", "forget"]):
        response = await operator.post("/keys", json={**body, "scopes": refused})
        assert (response.status_code, response.json()["type"]) == (403, "scope_required")
    assert (await operator.post(f"/keys/{strong}/rotate")).status_code == 403
    forever = await operator.post("/keys", json={"name": "x", "scopes": ["admin"]})
    assert forever.status_code == 422
    rotated = (await operator.post(f"/keys/{made['key']['id']}/rotate")).json()
    assert (await world.client(made["text"]).get("/sessions")).status_code == 401
    assert (await world.client(rotated["text"]).get("/sessions")).is_success
    assert (await operator.delete(f"/keys/{rotated['key']['id']}")).status_code == 204
    assert (await world.client(rotated["text"]).get("/sessions")).status_code == 401
    audit = (await operator.get("/audit")).json()["items"]
    last = [each["action"] for each in audit][-3:]
    assert last == ["keys.create", "keys.rotate", "keys.revoke"]


async def test_an_operator_pages_through_the_keys_of_one_tenant(world: HttpWorld) -> None:
    made = {(await world.key("ann")).split("_")[1] for _ in range(5)}
    await world.key("ann", tenant="acme")
    operator = await world.key(None)
    made.add(operator.split("_")[1])
    client, found, cursor = world.client(operator), list[str](), ""
    while True:
        page = (await client.get(f"/keys?limit=2{cursor}")).json()
        found += [each["id"] for each in page["items"]]
        if page["next"] is None:
            break
        cursor = f"&cursor={page['next']}"
    assert len(found) == len(made)
    assert {*found} == made
