"""What is public, and what importing it costs."""

import subprocess
import sys
import types
from pathlib import Path

import pytest

import keepthread
from tests.spent import ENGINES, least_ratio

SOURCE = Path(keepthread.__file__).parents[1]


def test_all_names_just_what_is_public() -> None:
    values = {name: getattr(keepthread, name) for name in dir(keepthread)}
    public = {
        name
        for name, value in values.items()
        if not name.startswith("_") and not isinstance(value, types.ModuleType)
    }
    assert public == set(keepthread.__all__)
    assert list(keepthread.__all__) == sorted(keepthread.__all__)


def test_everything_public_is_documented() -> None:
    for name in keepthread.__all__:
        assert getattr(keepthread, name).__doc__, name


def test_public_names_can_be_read_without_any_driver() -> None:
    code = (
        "import asyncio, inspect, sys\n"
        "for driver in ('psycopg', 'redis'):\n"
        "    sys.modules[driver] = None  # as if it were not installed\n"
        "import keepthread, keepthread.stores\n"
        "from keepthread import *\n"
        "for module in (keepthread, keepthread.stores):\n"
        "    members = dict(inspect.getmembers(module))\n"
        "    assert all(hasattr(module, name) for name in module.__all__)\n"
        "assert set(keepthread.__all__) <= members.keys() | set(dir(keepthread))\n"
        "assert not isinstance(RamStore(), (PostgresStore, RedisStore))\n"
        "for store in (PostgresStore, RedisStore):\n"
        "    try:\n"
        "        asyncio.run(store.open('postgresql://localhost/none'))\n"
        "    except keepthread.KeepthreadError as error:\n"
        "        print(type(error).__name__, error)\n"
    )
    command = [sys.executable, "-c", code]
    result = subprocess.run(command, check=False, capture_output=True, text=True)
    assert result.stdout.splitlines() == [
        "Unavailable the PostgreSQL store needs psycopg: pip install 'keepthread[postgres]'",
        "Unavailable the Redis store needs redis-py: pip install 'keepthread[redis]'",
    ], result.stderr


@pytest.mark.serial
def test_importing_costs_little_beside_its_engines() -> None:
    """Compare CPU above an empty interpreter, in one run: a machine's speed cancels out.

    `bench import` measures milliseconds; here twice as much as usual still passes.
    """

    def cpu(imports: str) -> float:
        code = (
            f"import sys; sys.path.insert(0, {str(SOURCE)!r});"
            f"from time import process_time as t; a = t(); {imports}; print(t() - a)"
        )
        # Without site: what is installed here may hook into every start, as coverage does.
        command = [sys.executable, "-I", "-S", "-c", code]
        return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)

    ratio = least_ratio(
        lambda: cpu("import keepthread; keepthread.Memory"), lambda: cpu(ENGINES), 4
    )
    print(f"import keepthread; keepthread.Memory: {ratio:.2f} times import asyncio, sqlite3")
    assert ratio <= 4


def test_importing_pulls_in_nothing_but_the_standard_library() -> None:
    code = (
        "import sys; before = set(sys.modules); import keepthread.memory.memory;"
        "new = {name.partition('.')[0] for name in set(sys.modules) - before};"
        "print(*sorted(new - set(sys.stdlib_module_names) - {'keepthread'}))"
    )
    command = [sys.executable, "-I", "-c", code]
    assert subprocess.run(command, check=True, capture_output=True, text=True).stdout == "\n"
