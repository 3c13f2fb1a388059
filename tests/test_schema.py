"""The public types as JSON: real values are as their schemas say, and no type lacks one."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from jsonschema import Draft202012Validator

import keepthread
from keepthread import (
    Attachment,
    Compaction,
    Hybrid,
    Memory,
    Message,
    Native,
    Session,
    ToolCall,
    Turn,
    View,
    difference,
    types,
)
from keepthread.interchange.json_types import SCHEMAS, all_schemas, json_schema, to_json
from keepthread.memory.facts.facts import Facts
from keepthread.models.tokens import Estimator
from keepthread.testing.model import ScriptedModel
from keepthread.types import Damage, Record, Reply, Scope, Tool, Usage, Verification

VIEWS = {"chat": View(1200, Hybrid())}


async def values(url: str) -> list[object]:
    """Return values of every public type, as methods return them."""
    found: list[object] = []
    opened = Memory.open(
        *(url,),
        counter=Estimator(),
        views=VIEWS,
        keep_why=9,
        compaction=Compaction(turns=4, batch_size=2),
    )
    async with opened as memory:
        session = await memory.session("s", system_prompt="Be brief.", tags=["a"], meta={"x": [1]})
        picture = Attachment(media_type="image/png", uri="https://example.org/a.png")
        native = Native("anthropic", [{"type": "thinking", "thinking": "Hm."}])
        call = ToolCall(id="c", name="look", arguments="{}")
        for number in range(9):
            async with session.turn(f"Is the cat {number}?", attachments=[picture]) as turn:
                await turn.append(Message(role="assistant", tool_calls=[call], native=native))
                await turn.tool("look", {}, lambda: "yes", call_id="c", cache_turns=3)
                context = await turn.context()
                await turn.finish("Yes.", usage={"input": 1})
        await memory.idle()
        found += [*await session.messages(), session.info, await session.status(), call, picture]
        explanations = await session.explanations()
        found += [native, context.why, *context.why.choices, *explanations]
        found += [await session.rebuild(each) for each in explanations]
        found += [each.references for each in explanations if each.references]
        found += [*await session.cached_tools(), *await session.compactions()]
        again = await session.context("chat")
        found.append(difference(context.why, again.why))
        await session.rewind(3)
        found += await session.hidden()
        fork = await session.fork(2)
        found += [fork.info, fork.info.forked_from]
        found.append(await fork.align([Message(role="user", content="Hi.")]))
        found += await memory.search("cat", owner="default")
        fact = await memory.facts.remember("Has a cat.", session="s", messages=[turn.user.id])
        found.append(await memory.for_owner("ann").blobs.put(b"bytes"))
        found += [fact, (await session.status()).costs]
        found += [await memory.forget(session="s", dry_run=True), await memory.admin.verify()]
        found.append(await memory.forget(session="s", message=turn.user.id))
        found += await memory.admin.receipts()
        await memory.tenant("acme").session("s")
        found.append(await memory.admin.delete_tenant("acme"))
        record = Record(scope=Scope(session=session.key), kind="k", key="k", value=[1], version=1)
        spans = [span for each in await fork.compactions() for span in each.spans]
        found += [record, record.scope, *spans, *await memory.admin.changes(limit=3)]
    found.append(await ScriptedModel([Reply("Hi", usage=Usage(1, 2))]).complete([]))
    found += [Tool("look"), Usage(1, 2), Damage("row")]
    return found


async def test_real_values_are_as_their_schemas_say(tmp_path: Path) -> None:
    found = await values(f"sqlite:///{tmp_path}/chat.db")
    for value in found:
        schema = json_schema(type(value))
        plain = json.loads(json.dumps(to_json(value), allow_nan=False))
        Draft202012Validator(schema).validate(plain)
    missing = {kind.__name__ for kind in SCHEMAS} - {type(value).__name__ for value in found}
    assert missing <= {"Span"}  # a fork this short has no summary; spans are inside others


def test_the_schemas_are_valid_and_stand_alone() -> None:
    Draft202012Validator.check_schema(all_schemas())
    for kind in SCHEMAS:
        schema = json_schema(kind)
        Draft202012Validator.check_schema(schema)
        for ref in _refs(schema):
            assert ref.removeprefix("#/$defs/") in schema["$defs"], kind


def _refs(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for name, each in cast("dict[str, Any]", value).items():
            if name == "$ref":
                yield each
            yield from _refs(each)
    elif isinstance(value, list):
        for each in cast("list[Any]", value):
            yield from _refs(each)


def test_a_value_that_is_not_as_the_schema_says_is_noticed() -> None:
    validator = Draft202012Validator(json_schema(Message))
    plain: Any = to_json(Message(role="user", content="Hi", digest=b"\1\2"))
    assert plain["digest"] == "0102"
    validator.validate(plain)
    for broken in ({**plain, "role": "critic"}, {**plain, "more": 1}, {"role": "user"}):
        assert not validator.is_valid(broken)


def test_a_property_that_is_part_of_the_json_is_there() -> None:
    assert cast(Any, to_json(Verification(1, 2, 3)))["sound"] is True


def test_what_is_not_ours_has_no_json_form() -> None:
    with pytest.raises(TypeError, match="Estimator has no JSON form"):
        to_json(Estimator())


def test_fields_are_described_in_the_words_of_the_code() -> None:
    described = json_schema(Message)["properties"]["author"]["description"]
    assert described == "Who wrote it; None means the session's owner."


@pytest.mark.parametrize("kind", [Memory, Session, Turn, Facts])
def test_every_data_type_that_a_method_returns_has_a_schema(kind: type) -> None:
    known = {each.__name__ for each in SCHEMAS} | set(all_schemas()["$defs"])
    names = {name: getattr(keepthread, name) for name in keepthread.__all__} | vars(types)
    for name, method in vars(kind).items():
        if name.startswith("_") or not callable(method):
            continue
        returned = str(getattr(method, "__annotations__", {}).get("return", ""))
        for each in _data_types(returned, names):
            assert each in known, f"{kind.__name__}.{name} returns {each}"


def _data_types(annotation: str, names: dict[str, Any]) -> list[str]:
    found: list[Any] = [names[word] for word in re.findall(r"\w+", annotation) if word in names]
    marks = ("_fields", "__dataclass_fields__")
    return [kind.__name__ for kind in found if any(hasattr(kind, mark) for mark in marks)]
