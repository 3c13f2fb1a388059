"""What tests share: where data outside the tree is, and assertions of the contract made readable."""

import os
from pathlib import Path

import pytest

pytest.register_assert_rewrite("keepthread.testing.contract")


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
