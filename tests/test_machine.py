"""Four stores are told the same, and answer the same."""

from pathlib import Path

from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from proofs.machine import Stores, staged
from proofs.places import file_url
from servers.postgres import PostgresServer
from servers.redis import RedisServer
from tests.seeds import examples


def test_sqlite_postgres_and_redis_answer_as_ram_does(
    tmp_path: Path, postgres: PostgresServer, redis_server: RedisServer
) -> None:
    redis_server.ask("FLUSHALL")
    with staged("ram://", file_url(tmp_path / "s.db"), postgres.empty(), redis_server.url) as stage:
        run_state_machine_as_test(
            lambda: Stores(stage),  # pyright: ignore[reportArgumentType]
            settings=settings(max_examples=examples(20), stateful_step_count=40, deadline=None),
        )
