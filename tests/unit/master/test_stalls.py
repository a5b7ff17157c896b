"""A worker is alive, but holds up the others or never reaches its training.

It is reported, told and replaced.
"""

from __future__ import annotations

from hvd_elastic_keras.master.machine.state import update_for
from tests.unit.master.membership_driver import PATIENT, Job, running_job


def pass_time(job: Job, seconds: float, *, waiting: str = "w0 w2", busy: str = "w1") -> None:
    """Keeps workers at step 10: some wait in the step's collective, some run other code."""
    end = job.now + seconds
    while job.now < end:
        job.heartbeat(*waiting.split(), step=10, in_collective=True)
        job.heartbeat(*busy.split(), step=10)
        job.wait(min(1.0, end - job.now))


def stalls(job: Job) -> list[str]:
    return [line for line in job.said if "for which the others wait" in line]


def test_who_holds_the_others_up_is_told_once_and_replaced_in_the_end(three: Job) -> None:
    pass_time(three, 59)
    assert stalls(three) == []
    pass_time(three, 3)
    (line,) = stalls(three)
    assert line.startswith("w1 has not come to step 10, for which the others wait, for 6")
    assert "logs/w1.log shows where. It is replaced after 1800 s" in line
    assert three.last("worker_stalled") == {"worker_id": "w1", "step": 10}
    pass_time(three, 1700)
    assert len(three.events("worker_stalled")) == 1
    assert three.killed == []
    pass_time(three, 60)
    assert three.killed == ["w1"]
    assert "within 1800 s (--stall_timeout_s)" in three.last("worker_exited")["cause"]
    assert three.launches[-1] == "w3"


def test_who_comes_to_its_step_in_the_end_was_only_slow(three: Job) -> None:
    pass_time(three, 1000)
    pass_time(three, 10, waiting="w0 w1 w2", busy="")
    pass_time(three, 1000)
    assert three.killed == []
    assert len(stalls(three)) == 2


def test_a_long_step_of_all_is_nobodys_fault(three: Job) -> None:
    pass_time(three, 5000, waiting="w0 w1 w2", busy="")
    assert (stalls(three), three.killed) == ([], [])


def test_a_long_callback_of_all_holds_nobody_up(three: Job) -> None:
    pass_time(three, 5000, waiting="", busy="w0 w1 w2")
    assert (stalls(three), three.killed) == ([], [])


def compute(job: Job, seconds: float, step: int, *, waiting: str = "w0 w2") -> None:
    """Lets w1 compute its part of a step, while the others wait for it."""
    end = job.now + seconds
    while job.now < end:
        job.heartbeat(*waiting.split(), step=step, in_collective=True)
        job.heartbeat("w1", step=step, computing=True)
        job.wait(min(1.0, end - job.now))


def test_who_hangs_inside_of_its_step_is_told_of_to_people_and_to_itself(three: Job) -> None:
    compute(three, 29, step=10)
    assert stalls(three) == []
    version = three.state.version
    compute(three, 3, step=10)
    (line,) = stalls(three)
    assert line.startswith("w1 has not computed its part of step 10, for which the others wait")
    assert "its step takes long or hangs" in line
    assert [update_for(three.state, w).stalled for w in ("w0", "w1")] == [False, True]
    assert three.state.version > version
    compute(three, 260, step=10)
    assert three.killed == []
    compute(three, 10, step=10)
    assert three.killed == ["w1"]


def test_patience_follows_from_how_long_a_part_of_a_step_has_taken() -> None:
    job = running_job(3, **PATIENT)
    for step in (10, 11):
        job.heartbeat("w0", "w1", "w2", step=step, computing=True)
        job.wait(20.0)
    compute(job, 590, step=12)
    assert job.killed == []
    compute(job, 20, step=12)
    assert job.killed == ["w1"]


def test_a_part_may_take_some_times_as_long_as_ever_whatever_is_asked_for() -> None:
    job = running_job(3, stall_timeout_s=5.0, **PATIENT)
    compute(job, 4, step=9)
    for step in (10, 11):
        job.heartbeat("w0", "w1", "w2", step=step, computing=True)
        job.wait(20.0)
    compute(job, 55, step=12)
    assert job.killed == []
    compute(job, 10, step=12)
    assert job.killed == ["w1"]


def test_who_comes_late_from_a_long_callback_of_all_held_nobody_up_before(three: Job) -> None:
    pass_time(three, 5000, waiting="", busy="w0 w1 w2")
    pass_time(three, 1700)
    assert three.killed == []


def starting(job: Job, seconds: float, phase: str = "importing") -> None:
    end = job.now + seconds
    while job.now < end:
        job.heartbeat("w0", "w1", phase=phase)
        job.wait(min(10.0, end - job.now))


def test_who_does_not_come_to_its_training_is_told_ever_less_often_and_replaced() -> None:
    job = Job(2, **PATIENT)
    starting(job, 500)
    told = [line for line in job.said if "have been starting for" in line]
    assert [line.split(" s ")[0].split("for ")[1] for line in told] == [
        "20",
        "30",
        "50",
        "90",
        "170",
        "330",
    ]
    assert told[0] == ("w0, w1 have been starting for 20 s (imports, data, model); see logs/w0.log")
    starting(job, 6690)
    assert job.killed == []
    starting(job, 20)
    assert job.killed == ["w0", "w1"]
    assert "--start_up_timeout_s" in job.last("worker_exited")["cause"]


def test_the_line_about_a_long_start_says_what_each_worker_does() -> None:
    job = Job(2, **PATIENT)
    job.heartbeat("w1", phase="tracing")
    job.wait(11.0)
    assert job.said[-1] == (
        "w0, w1 have been starting for 11 s (w0: imports, data, model; w1: tracing the step); "
        "see logs/w0.log"
    )


def test_people_are_told_later_of_a_newcomer_while_others_train() -> None:
    job = joined_by_one_that_starts()
    start = len(job.said)
    newcomer_starts(job, 55)
    assert job.said[start:] == []
    newcomer_starts(job, 60)
    (told,) = job.said[start:]
    assert "w1 has been starting for" in told
    newcomer_starts(job, 10)
    assert len(job.said) == start + 2


def test_people_are_told_once_of_a_newcomer_that_starts_when_the_training_is_over() -> None:
    job = joined_by_one_that_starts()
    newcomer_starts(job, 35)
    start = len(job.said)
    job.done("w0", step=10)
    newcomer_starts(job, 20)
    assert not [line for line in job.said[start:] if "been starting" in line]
    newcomer_starts(job, 30)
    (told,) = [line for line in job.said[start:] if "been starting" in line]
    assert "w1 has been starting for" in told


def test_who_reads_up_to_where_the_others_are_may_take_hours() -> None:
    job = Job(2, **PATIENT)
    starting(job, 20_000, phase="reading")
    assert job.killed == []


def hold_up(job: Job, seconds: float, **point: bool) -> None:
    """Keeps member w0 at step 10, while the new worker w1 waits at the entrance."""
    end = job.now + seconds
    while job.now < end:
        job.heartbeat("w0", step=10, **point)
        job.heartbeat("w1")
        job.wait(min(1.0, end - job.now))


def joined_by_one_that_starts() -> Job:
    job = running_job(1)
    job.heartbeat("w0", step=10)
    job.add("w1")
    return job


def newcomer_starts(job: Job, seconds: float) -> None:
    end = job.now + seconds
    while job.now < end:
        job.heartbeat("w0", step=10)
        job.heartbeat("w1", phase="importing")
        job.wait(min(5.0, end - job.now))


def joined_by_one() -> Job:
    job = joined_by_one_that_starts()
    job.joined("w1")
    job.enter("w1", has_state=False)
    return job


def test_who_joins_waits_for_a_long_callback_of_the_only_member() -> None:
    job = joined_by_one()
    hold_up(job, 1700)
    assert job.killed == []
    assert len(stalls(job)) == 1
    job.enter("w0", step=11)
    assert job.members == ["w0", "w1"]


def test_who_joins_waits_for_a_long_step_of_the_only_member() -> None:
    job = joined_by_one()
    hold_up(job, 290, computing=True)
    assert job.killed == []
    job.enter("w0", step=11)
    assert job.members == ["w0", "w1"]


def test_an_only_member_that_hangs_is_replaced_when_others_wait_to_join() -> None:
    job = joined_by_one()
    hold_up(job, 1803)
    assert job.killed == ["w0"]
    assert "within 1800 s (--stall_timeout_s)" in job.last("worker_exited")["cause"]
    assert job.members == ["w1"]


def test_who_joins_does_not_hurry_members_that_are_all_in_a_long_callback(three: Job) -> None:
    three.add("w3")
    three.joined("w3")
    three.enter("w3", has_state=False)
    pass_time(three, 600, waiting="", busy="w0 w1 w2 w3")
    assert three.killed == []
