"""What is found out before anything is broken, and how chaos ends."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hvd_elastic_keras.chaos.breaker import Breaker
from hvd_elastic_keras.chaos.plan import Fault, Plan
from hvd_elastic_keras.common import files
from hvd_elastic_keras.common.errors import ConfigurationError

PLAN = Plan(faults=(Fault(kind="kill", step=5), Fault(kind="kill", target="launcher", step=9)))


@pytest.fixture
def job_dir(tmp_path: Path) -> Path:
    """That of a job whose launcher, this process, answers nobody."""
    files.write_endpoint(tmp_path, "127.0.0.1:1", "token")
    return tmp_path


def test_a_process_that_writes_no_events_of_the_job_is_not_its_launcher(job_dir: Path) -> None:
    with pytest.raises(ConfigurationError) as error:
        Breaker(job_dir, PLAN, print)
    assert "does not run on this machine" in str(error.value)
    assert f"process {os.getpid()} does not belong (any more) to the launcher" in str(error.value)


def test_without_the_rights_to_cut_networks_nothing_is_broken_at_all(
    job_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    plan = Plan(faults=(*PLAN.faults, Fault(kind="network_cut", worker="w0")))
    with (
        (job_dir / files.EVENTS).open("a"),
        pytest.raises(ConfigurationError, match=r"lacks .*the program iptables"),
    ):
        Breaker(job_dir, plan, print)


def test_what_has_not_happened_within_the_time_limit_is_told_with_its_reason(
    job_dir: Path,
) -> None:
    with (job_dir / files.EVENTS).open("a"), Breaker(job_dir, PLAN, print) as breaker:
        breaker.run(timeout_s=0.0)
        report = breaker.report()
    assert report.ended == "0 s had passed (--timeout_s)"
    assert [outcome.fired for outcome in report.outcomes] == [None, None]
    told = {outcome.why_not for outcome in report.outcomes}
    assert told == {"its time had not come when 0 s had passed (--timeout_s)"}
