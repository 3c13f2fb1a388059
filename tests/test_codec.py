"""Laws of the codec: what goes in comes out, and what changed is noticed."""

import json
from dataclasses import fields, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keepthread import Attachment, Message, Native, ToolCall
from keepthread.errors import InvalidInput
from keepthread.stores.codec import (
    ROLES,
    Row,
    decode,
    dumps,
    encode,
    guard_of,
    loads,
    new_id,
    pack_id,
    value_check,
)
from keepthread.stores.rows import Head, as_stored, draft, next_row
from keepthread.stores.validation import plain

any_text = st.text(st.characters(codec=None, exclude_categories=()), max_size=60)
printable = st.text(st.characters(exclude_categories=("C", "Z")), min_size=1, max_size=40)
ids = st.one_of(printable, st.text("0123456789abcdefABCDEF", min_size=30, max_size=33), st.just(""))
json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | any_text,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(any_text, inner, max_size=4),
    max_leaves=12,
)
calls = st.builds(ToolCall, id=any_text, name=any_text, arguments=any_text)
attachments = st.builds(Attachment, media_type=any_text, name=any_text, uri=any_text)
natives = st.builds(
    Native,
    wire=st.sampled_from(("openai-chat", "openai-responses", "anthropic")),
    items=st.lists(json_values, max_size=3).map(tuple),
    provider=st.just("") | any_text,
)
messages = st.builds(
    Message,
    role=st.sampled_from(ROLES),
    content=any_text,
    tool_calls=st.lists(calls, max_size=3).map(tuple),
    tool_call_id=st.none() | any_text,
    name=st.none() | any_text,
    author=st.none() | printable,
    origin=st.none() | st.sampled_from(("operator", "user", "assistant", "tool", "web", "import")),
    source=st.none() | any_text,
    attachments=st.lists(attachments, max_size=2).map(tuple),
    native=st.none() | natives,
    meta=st.dictionaries(any_text, json_values, max_size=3),
    id=ids,
    tokens=st.integers(0, 2**53 - 1),
    counter=st.just("") | printable,
    created_at=st.floats(0, 253_402_300_799),  # up to the year 9999
)


def row_of(message: Message, place: int = 7) -> tuple[Row, Message]:
    one = draft(message, clock=lambda: 1.0, ids=new_id)
    row = next_row(place, Head(4, 2, 0), one, None)
    return row, as_stored(one, row)


@given(messages)
def test_a_message_survives_the_round_trip(message: Message) -> None:
    row, stored = row_of(message)
    assert decode(7, row) == stored
    given_by_store = {"id", "origin", "created_at", "seq", "turn", "total", "digest"}
    for field in fields(Message):
        if field.name not in given_by_store:
            assert getattr(stored, field.name) == getattr(message, field.name), field.name
    assert stored.id == message.id or not message.id
    assert stored.origin == message.origin or message.origin is None


@given(messages, st.data())
def test_a_row_with_one_value_changed_is_damaged(message: Message, data: st.DataObject) -> None:
    row, _ = row_of(message)
    column = data.draw(st.sampled_from(Row._fields))
    changes = st.one_of(st.none(), st.integers(-5, 2**60), st.floats(0, 1e9), st.binary(), any_text)
    value = data.draw(
        changes.filter(lambda v: (type(v), v) != (type(getattr(row, column)), getattr(row, column)))
    )
    changed = row._replace(**{column: value})
    if changed != row:
        assert decode(7, changed).state == "damaged"


@given(messages, st.integers(0, 9).filter(lambda place: place != 7))
def test_a_row_in_another_session_is_damaged(message: Message, place: int) -> None:
    row, _ = row_of(message)
    assert decode(place, row).state == "damaged"


@given(messages, messages)
def test_bodies_are_equal_just_when_their_digests_are(one: Message, two: Message) -> None:
    a, b = encode(one, "x"), encode(two, "x")
    assert (a.digest == b.digest) == (a[:3] == b[:3])


@given(json_values)
def test_json_survives_the_round_trip(value: object) -> None:
    kept = plain(value, "it", ordered=True)
    back = loads(dumps(kept, "it"))
    assert back == value
    assert repr(back) == repr(value)


@given(ids.filter(bool))
def test_packed_ids_are_told_apart(id: str) -> None:
    packed = pack_id(id)
    assert (packed.hex() if isinstance(packed, bytes) else packed) == id


def test_the_order_of_keys_is_no_part_of_a_body_but_is_kept_for_a_provider() -> None:
    one = Message(role="user", meta={"a": 1, "b": {"c": 1, "d": 2}})
    two = Message(role="user", meta={"b": {"d": 2, "c": 1}, "a": 1})
    assert encode(one, "x") == encode(two, "x")
    native = Native(wire="anthropic", items=({"z": 1, "a": 2},))
    row, _ = row_of(Message(role="user", native=native))
    back = decode(7, row).native
    assert back is not None
    assert json.dumps(back.items[0]) == '{"z": 1, "a": 2}'


def test_an_origin_that_is_the_roles_own_is_no_part_of_a_body() -> None:
    assert encode(Message(role="tool", origin="tool"), "x") == encode(Message(role="tool"), "x")


def test_messages_are_frozen_however_they_were_made() -> None:
    row, stored = row_of(Message(role="user", content="a"))
    for message in (stored, decode(7, row), replace(stored, content="b")):
        assert type(message) is Message
        with pytest.raises(AttributeError):
            setattr(message, "content", "c")  # noqa: B010


def test_new_ids_are_version_7_and_ascend_by_time() -> None:
    made = [new_id() for _ in range(1000)]
    assert len(set(made)) == 1000
    assert all(len(id) == 32 and id[12] == "7" and id[16] in "89ab" for id in made)
    assert [id[:12] for id in made] == sorted(id[:12] for id in made)


def test_guards_see_types_and_lengths() -> None:
    assert value_check("ab", "c") != value_check("a", "bc")
    assert value_check(1) != value_check("1")
    assert value_check(None) != value_check(b"")
    around = (1, 2, b"x", 1, 1, 3, 4.0, b"d" * 32)
    assert guard_of(1, *around) != guard_of(2, *around)


@pytest.mark.parametrize("value", [(1,), {1}, b"x", object(), float("nan"), {1: 2}, [float("inf")]])
def test_what_json_does_not_have_is_refused(value: object) -> None:
    with pytest.raises(InvalidInput):
        plain(value, "it")
