"""What tests share: where data outside the tree is, and how Hypothesis searches."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from tests.servers.postgres import postgres  # noqa: F401 - a fixture

pytest.register_assert_rewrite("keepthread.testing.contract")

settings.register_profile("here", deadline=None, print_blob=True)
settings.register_profile("ci", parent=settings.get_profile("here"), derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "here")


@pytest.fixture(scope="session")
def vocabularies(test_data: Path) -> Iterator[Path]:
    """Let tiktoken find its vocabularies without a network."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TIKTOKEN_CACHE_DIR", str(test_data / "tiktoken"))
        yield test_data / "tiktoken"


@pytest.fixture(scope="session")
def test_data() -> Path:
    """Return the folder of vocabularies, data and models, or skip with the way to get it."""
    folder = os.environ.get("KEEPTHREAD_TEST_DATA")
    if folder and Path(folder).is_dir():
        return Path(folder)
    message = "set KEEPTHREAD_TEST_DATA to the folder with tiktoken/, data/ and models/"
    if os.environ.get("CI"):
        pytest.fail(f"{message}: CI runs everything")
    pytest.skip(message)
