"""Which events wake the workers' long polls, and which change nothing at all."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from hvd_elastic_keras.common import protocol
from hvd_elastic_keras.launchers.base import WorkerExit
from hvd_elastic_keras.master.machine import actions as act
from tests.unit.master.membership_driver import SIGKILL, Job


def test_a_heartbeat_is_no_news_for_anybody(three: Job) -> None:
    """Every new version wakes the long poll of every worker."""
    before = three.state.version
    three.later(1.0)
    three.heartbeat("w0", step=10)
    assert three.state.version == before


def test_a_change_of_the_round_is_news(three: Job) -> None:
    at_first = three.state.version
    three.sigterm("w1")
    after_sigterm = three.state.version
    three.kill("w2")
    after_death = three.state.version
    three.interrupt()
    assert at_first < after_sigterm < after_death < three.state.version


@pytest.mark.parametrize(
    "event",
    [
        protocol.Heartbeat(worker_id="w9", training=1, round=1, step=99, progress=99, phase="x"),
        protocol.Joined(worker_id="w9", training=1, pid=1, num_micro_batches=1, warm_up_s=0.0),
        protocol.Running(worker_id="w9", round=1, step=99),
        protocol.Leaving(worker_id="w9", reason="SIGTERM"),
        protocol.Done(worker_id="w9", training=1, step=99),
        WorkerExit("w9", SIGKILL),
        act.RemoveWorker("w9"),
    ],
    ids=lambda event: type(event).__name__,
)
def test_a_message_of_an_unknown_worker_changes_nothing(three: Job, event: act.Event) -> None:
    before = three.state
    assert three.send(event) == []
    assert replace(three.state, spent=before.spent) == before


@pytest.mark.parametrize("refused", [False, True])
def test_an_event_that_is_none_of_membership_is_an_error(three: Job, refused: bool) -> None:
    if refused:
        three.send(protocol.Refused(worker_id="w0", message="x"))
    assert three.state.ended == refused
    with pytest.raises(TypeError, match="expected an event of membership"):
        three.send(protocol.Console(worker_id="w0", text="x"))  # type: ignore[arg-type]
