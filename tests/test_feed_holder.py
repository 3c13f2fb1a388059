"""The transaction that holds PostgreSQL's feed back is shown: by the doctor, and as a metric."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import psycopg
import pytest
from prometheus_client import CollectorRegistry

from keepthread.apps.cli.commands.doctor import about_feed
from keepthread.apps.http.metrics import Metrics, watch_feed
from keepthread.stores import PostgresStore
from keepthread.stores.changes import FeedHolder
from keepthread.types import SessionInfo
from servers.postgres import PostgresServer
from tests.test_cli import ask

PATIENCE = 30.0


@pytest.fixture
def payroll(postgres: PostgresServer) -> Iterator[psycopg.Connection[Any]]:
    """Open a transaction that writes, in another database of the server."""
    with psycopg.connect(postgres.create_database("payroll")) as connection:
        connection.execute("SELECT pg_current_xact_id()")
        yield connection
        connection.rollback()
    postgres.execute("DROP DATABASE payroll WITH (FORCE)", database="postgres")


@pytest.fixture
async def store(postgres: PostgresServer) -> AsyncIterator[PostgresStore]:
    opened = await PostgresStore.open(postgres.empty())
    yield opened
    await opened.close()


async def test_a_transaction_of_another_database_holds_the_feed_back_and_is_named(
    store: PostgresStore, payroll: psycopg.Connection[Any]
) -> None:
    made = await store.put_session(SessionInfo(id="s", owner="ana"))
    assert await store.changes() == []
    holder = await store.feed_holder()
    assert holder is not None
    assert holder.database == "payroll"
    assert holder.seconds is not None
    assert 0 < holder.seconds < PATIENCE
    payroll.rollback()
    assert [change.key for change in await store.changes()] == [made.key]
    assert await store.feed_holder() is None


async def test_a_reader_does_not_hold_the_feed_back(
    store: PostgresStore, postgres: PostgresServer
) -> None:
    with psycopg.connect(postgres.url()) as reader:
        reader.execute("SELECT 1")
        await store.put_session(SessionInfo(id="s", owner="ana"))
        assert await store.feed_holder() is None
        assert len(await store.changes()) == 1


async def test_the_metric_shows_how_long_the_feed_is_held_back(
    store: PostgresStore, payroll: psycopg.Connection[Any]
) -> None:
    registry = CollectorRegistry()
    watching = asyncio.create_task(watch_feed(store, Metrics(registry), 0.01))

    async def shown(*, held: bool) -> None:
        async with asyncio.timeout(PATIENCE):
            while bool(registry.get_sample_value("keepthread_feed_held_seconds")) != held:  # noqa: ASYNC110 - Prometheus reads it so
                await asyncio.sleep(0.01)

    await shown(held=True)
    payroll.rollback()
    await shown(held=False)
    watching.cancel()


def test_a_transaction_whose_age_is_hidden_is_timed_from_when_it_was_first_seen(
    caplog: pytest.LogCaptureFixture,
) -> None:
    registry = CollectorRegistry()
    metrics = Metrics(registry)
    hidden = FeedHolder("7", None, None)
    metrics.note_feed_holder(hidden)
    first = registry.get_sample_value("keepthread_feed_held_seconds")
    metrics.note_feed_holder(hidden)
    assert (registry.get_sample_value("keepthread_feed_held_seconds") or 0) > (first or 0)
    assert not caplog.records
    for _ in range(2):
        metrics.note_feed_holder(FeedHolder("8", "payroll", 61.0))
    (record,) = caplog.records
    assert record.getMessage() == "a transaction holds back the feed"


def test_the_doctor_shows_what_holds_the_feed_back(
    postgres: PostgresServer, payroll: psycopg.Connection[Any]
) -> None:
    url = postgres.empty()
    asyncio.run(_create(url))
    assert payroll.info.dbname == "payroll"
    found = {each["what"]: each for each in ask("doctor", "--store", url)[0]["findings"]}
    assert found["feed"]["ok"]  # it has run for less than ten seconds
    long = about_feed(FeedHolder("7", "payroll", 3600.0))
    assert (
        long.found == "waits for transaction 7 in database payroll, which has run for 3,600 seconds"
    )
    assert not long.ok
    hidden = about_feed(FeedHolder("7", None, None))
    assert "an unknown database, which has run for an unknown time" in hidden.found
    assert not hidden.ok
    assert about_feed(None).ok


async def _create(url: str) -> None:
    await (await PostgresStore.open(url)).close()
