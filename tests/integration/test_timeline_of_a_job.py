"""`--timeline` of a job with a kill and a revocation: one trace, in the right order."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from tests.harness.faults import Fault
from tests.harness.job import Event, Job, assert_same_weights

STEP = "elastic_train_step"
GATE = Fault("gate", "train", 0, step=14, size=3, action="wait")
FIRST_AFTER_KILL = Fault("first_after_kill", "train", 0, step=6, size=3, action="wait")
FIRST_AFTER_REVOCATION = Fault("first_after_revocation", "train", 0, step=15, size=2, action="wait")


def train(job: Job) -> None:
    """Trains in rounds of 4 workers (6 steps), 3 (9 steps) and 2 (9 steps).

    Gates make sure that no step of a new round ends before `round_running` is written. Workers do
    not wait for that.
    """
    job.wait_for_fault("first_after_kill")
    job.wait_for_round(3)
    job.plan.open_gate("first_after_kill")
    job.wait_for_fault("gate")
    # One of the two revoked slots is the killed worker's, so one worker leaves.
    job.ctl("revoke", "--slots=2")
    job.wait_for("round_opened", lambda e: e["round"] == 3)
    job.plan.open_gate("gate")
    job.wait_for_fault("first_after_revocation")
    job.wait_for_round(2)
    job.plan.open_gate("first_after_revocation")
    job.finish()
    assert job.plan.happened("kill")


def steps_of(trace: list[Event], round_number: int) -> list[float]:
    """Returns when the allreduces of a round's steps began (microseconds).

    Only the first tensor of each step counts.
    """
    name = f"round-{round_number:06d} {STEP}"
    rows = {
        e["pid"]
        for e in trace
        if e.get("name") == "process_name" and e["args"]["name"].startswith(f"{name}_1of")
    }
    return [e["ts"] for e in trace if e["pid"] in rows and e.get("name") == "ALLREDUCE"]


def marks_of(trace: list[Event]) -> list[Event]:
    """Returns the changes of membership: instant events across all rows."""
    marks = [e for e in trace if e["ph"] == "i"]
    assert {e["s"] for e in marks} == {"g"}
    return marks


def moment(marks: list[Event], name: str, **fields: object) -> float:
    """Returns when the one event with these fields happened (microseconds)."""
    (found,) = (m["ts"] for m in marks if m["name"] == name and fields.items() <= m["args"].items())
    return float(found)


@pytest.mark.slow
@pytest.mark.parametrize("killed_rank", [0, 1])
def test_a_trace_shows_steps_and_changes_of_all_rounds_in_their_order(
    killed_rank: int, tmp_path: Path, expected_weights: dict[str, np.ndarray]
) -> None:
    kill = Fault("kill", "train", killed_rank, step=6, size=4)
    target = tmp_path / "trace.json"
    flags = ("--num_workers=4", "--max_restarts=0", f"--timeline={target}")
    plan = [kill, GATE, FIRST_AFTER_KILL, FIRST_AFTER_REVOCATION]
    with Job(tmp_path, *flags, plan=plan) as job:
        train(job)
        assert "timeline of 3 rounds" in job.output
        assert_same_weights(job.weights(), expected_weights)
        killed = job.events("round_running")[0]["members"][killed_rank]
        revoked = job.events("slots_revoked")[0]["workers"][0]
    trace = json.loads(target.read_text())["traceEvents"]
    first, second, third = (steps_of(trace, number) for number in (1, 2, 3))
    if killed_rank:
        assert len(first) == 6
    else:  # rank 0 writes the file, and may have been killed before it wrote the last step
        assert len(first) <= 6
    assert (len(second), len(third)) == (9, 9)
    steps = [*first, *second, *third]
    assert all(a < b for a, b in pairwise(steps))
    marks = marks_of(trace)
    times = [m["ts"] for m in marks]
    assert times == sorted(times)
    # The kill is noticed after the last step of four workers, and settled before the first step of
    # three.
    order = [
        *first,
        moment(marks, "worker_exited", worker_id=killed),
        moment(marks, "round_running", round=2, world_size=3),
        second[0],
    ]
    assert order == sorted(order)
    assert moment(marks, "round_opened", round=2) <= order[-2]
    # The revocation is requested in a step. All workers finish that step before the smaller round
    # runs.
    order = [
        *second[:-1],
        moment(marks, "slots_revoked", workers=[revoked]),
        second[-1],
        moment(marks, "round_running", round=3, world_size=2),
        *third,
    ]
    assert order == sorted(order)
    assert moment(marks, "worker_exited", worker_id=revoked) > second[-1]
