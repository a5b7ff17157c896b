"""Jobs in the state in which many tests of membership begin."""

import pytest

from tests.unit.master.membership_driver import Job


@pytest.fixture
def three() -> Job:
    """Returns three workers that run round 1 at step 10."""
    job = Job(3)
    job.start(step=10)
    assert job.round_number == 1
    return job
