"""The promise that one client can't stop the others, in small, and that its proof is not blind."""

import sys

import pytest

from keepthread.apps.http.settings import HttpSettings
from proofs.hostile_requests import known_requests
from proofs.p36_one_client import PROOF, hostile_requests, prove
from tests.proving import hold

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc and 127.0.0.2")


def test_one_client_cannot_stop_the_others() -> None:
    hold(PROOF)


@pytest.mark.nightly
@pytest.mark.timeout(1800)
def test_no_known_request_and_none_of_twenty_others_stops_another_client() -> None:
    hold(PROOF, size=PROOF.closing)


def test_the_proof_notices_that_two_keys_take_all_connections() -> None:
    lifted = HttpSettings(streams=1000, tenant_streams=1000, all_streams=1000)
    (streams,) = [each for each in known_requests() if each.name == "event streams"]
    outcome = prove([streams], 60, lambda done, of: None, lifted, through=False)
    assert outcome.broken  # some answers are 503, and some connections are closed


def test_a_run_is_repeated_by_its_seed() -> None:
    known = len(known_requests())
    assert PROOF.closing == known + 20
    one, two = (hostile_requests(known + 3, 7) for _ in range(2))
    assert one == two
    assert len({each.name for each in one}) == known + 3
