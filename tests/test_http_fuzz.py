"""Requests that a fuzzer makes from the OpenAPI document, at a small size."""

from pathlib import Path

from proofs.http_fuzz import HttpFuzz
from tests.http_world import listening, url_of
from tests.seeds import SEED


def test_every_answer_is_one_that_the_document_declares(tmp_path: Path) -> None:
    with listening(url_of(tmp_path)) as served:
        known = served.furnish("ann")
        fuzz = HttpFuzz(served.address, served.key(None), "ann", known)
        tally = fuzz.run(100, SEED, lambda done, total: None)
    assert tally.broken == []
    assert tally.requests > 50
