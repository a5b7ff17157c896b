"""The story of a job, from its events."""

from __future__ import annotations

from hvd_elastic_keras.common import events
from hvd_elastic_keras.observe.job_history import Timed, changes, explain, runs, timed

STARTED = events.JobStarted(job_dir="jobs/x", model="digits", num_workers=3, training={})
KILLED = events.WorkerExited(
    worker_id="w1", pid=7, cause="was killed by SIGKILL", failed=True, step=10
)
FINISHED = events.JobFinished(
    status="finished", reason="finished", training=1, step=90, spent_s={"training": 4.0}
)


def running(number: int, *members: str, training: int = 1, lost: int = 0) -> events.RoundRunning:
    return events.RoundRunning(
        round=number,
        training=training,
        world_size=len(members),
        members=list(members),
        micro_batches=[],
        reason="start" if number == 1 else "w1 was killed by SIGKILL",
        step=10 * (number - 1),
        stall_s=0.5 * number,
        noticed_s=0.25,
        entered_s=0.125,
        synced_s=0.125,
        steps_lost=lost,
    )


def history(*entries: events.AnyEntry) -> list[Timed]:
    return [Timed(1000.0 + number, entry) for number, entry in enumerate(entries)]


JOB = history(
    STARTED,
    running(1, "w0", "w1", "w2"),
    KILLED,
    events.RoundOpened(round=2, reason="w1 was killed by SIGKILL"),
    running(2, "w0", "w2", lost=1),
    FINISHED,
)


def test_a_change_is_told_with_its_reason_and_the_parts_of_its_stall() -> None:
    told = "\n".join(explain(JOB))
    assert "0:00:02.0  w1 was killed by SIGKILL, at step 10" in told
    assert "round 2: 3 → 2 workers (w0, w2) from step 10: w1 was killed by SIGKILL" in told
    assert "stalled 1.00 s: 0.25 s until it was noticed, 0.12 s until all had come" in told
    assert told.count("stalled") == 2, "not of the first round; once more in the summary"
    assert "1 change and 1 failure in 0:00:05.0; 1 step repeated" in told
    assert "  of 4.0 s: training 4.0 s (100 %)" in told
    assert told.endswith("1.00 s at worst (round 2: w1 was killed by SIGKILL)")


def test_a_job_that_was_not_disturbed_has_no_changes() -> None:
    *_, last = explain(history(STARTED, running(1, "w0"), FINISHED))
    assert last == "no change of the workers in 0:00:02.0"


def test_the_first_round_of_each_training_is_no_change() -> None:
    first, second = running(1, "w0", "w1"), running(2, "w0", "w1", training=2)
    assert changes([first, second]) == []
    third = running(3, "w0", training=2)
    (change,) = changes([first, second, KILLED, third])
    assert (change.running, change.size_before) == (third, 2)


def test_each_run_of_a_job_is_told_by_itself() -> None:
    both = [*JOB[:-1], *JOB]
    assert [len(run) for run in runs(both)] == [5, 6]
    assert sum("the job starts (digits, 3 workers)" in line for line in explain(both)) == 2
    assert next(iter(explain(JOB[1:]))).endswith("the beginning is missing")


def test_what_is_no_entry_is_left_out() -> None:
    stopping: dict[str, object] = {"event": "job_stopping", "reason": "x"}
    times: list[dict[str, object]] = [{"time": 1.0}, {"time": "now"}, {}]
    found = timed([*({**stopping, **time} for time in times), {"time": 1.0}])
    assert found == [Timed(1.0, events.JobStopping(reason="x"))]
