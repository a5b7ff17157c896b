"""Plans of faults: read, checked and drawn; and whom a fault happens to."""

from __future__ import annotations

import msgspec
import pytest

from hvd_elastic_keras.chaos.outcome import victim, wanted_phases, what_it_waits_for
from hvd_elastic_keras.chaos.plan import KINDS, Fault, Plan, drawn
from hvd_elastic_keras.common import messages
from hvd_elastic_keras.common.control import JobStatus, WorkerStatus
from hvd_elastic_keras.common.errors import ConfigurationError


def worker(name: str, rank: int | None, phase: str = "training") -> WorkerStatus:
    return WorkerStatus(
        worker_id=name,
        phase=phase,
        rank=rank,
        host="localhost",
        pid=7,
        seniority=rank,
        training=1,
        step=0,
        heartbeat_age_s=None,
    )


WORKERS = (
    worker("w0", 1),
    worker("w1", 0, "evaluating"),
    worker("w2", None, "spare"),
    worker("w3", 2),
)


def status(step: int = 50) -> JobStatus:
    return JobStatus(
        phase="running",
        detail="",
        training=1,
        round=1,
        step=step,
        target_workers=4,
        slots=(),
        min_workers=1,
        max_workers=16,
        restarts_used=0,
        max_restarts=10,
        workers=WORKERS,
    )


def test_the_example_of_a_plan_is_one() -> None:
    plan = messages.decode(Plan.examples, Plan)
    plan.check()
    assert [fault.kind for fault in plan.faults] == ["kill", "suspend"]


@pytest.mark.parametrize(
    ("faults", "words"),
    [
        ("[]", ["No fault"]),
        ('[{"kind": "explode"}]', ["Fault 1", "'explode'", "kill, terminate"]),
        ('[{"kind": "kill"}, {"kind": "kill", "target": "disk"}]', ["Fault 2", "'disk'"]),
        ('[{"kind": "kill", "phase": "sleeping"}]', ["'sleeping'", "evaluating"]),
        ('[{"kind": "kill", "worker": "w1", "rank": 0}]', ["worker and rank"]),
        ('[{"kind": "kill", "target": "launcher", "rank": 0}]', ["launcher"]),
        ('[{"kind": "slow", "stopped_share": 1.0}]', ["stopped_share 1", "below 1"]),
        ('[{"kind": "suspend", "duration_s": 1e9}]', ["duration_s 1e+09", "3600"]),
        ('[{"kind": "kill", "after_s": -1}]', ["after_s -1"]),
        ('[{"kind": "kill", "choice": 1}]', ["choice 1"]),
        ('[{"kind": "kill", "journal_bytes": 9}]', ["journal_bytes", "target launcher"]),
        (
            '[{"kind": "kill", "target": "launcher", "journal_bytes": 9, "step": 1}]',
            ["no other condition"],
        ),
        ('[{"kind": "kill", "journal_bytes": -9}]', ["journal_bytes -9"]),
        ('[{"kind": "kill", "address": "10.0.0.7"}]', ["address", "kill"]),
        ('[{"kind": "network_cut", "address": "node7"}]', ["'node7'", "10.0.0.7"]),
        ('[{"kind": "network_cut", "target": "launcher"}]', ["another host"]),
    ],
)
def test_what_cannot_be_done_is_refused(faults: str, words: list[str]) -> None:
    plan = messages.decode(f'{{"faults": {faults}}}', Plan)
    with pytest.raises(ConfigurationError) as error:
        plan.check()
    assert all(word in str(error.value) for word in words), str(error.value)


@pytest.mark.parametrize("text", ["", "{}", '{"faults": [{"kin": "kill"}]}', '{"faults": [1]}'])
def test_a_file_that_is_no_plan_is_answered_with_an_example(text: str) -> None:
    with pytest.raises(messages.ProtocolError) as error:
        messages.decode(text, Plan)
    assert '"kind": "kill"' in str(error.value)


def test_newcomers_that_are_not_in_sync_yet_are_none_that_could_go_on_alone() -> None:
    alone = (worker("w0", 0), msgspec.structs.replace(worker("w1", 1), seniority=None))
    found = what_it_waits_for(
        Fault(kind="kill", min_members=2), msgspec.structs.replace(status(), workers=alone), 0.0
    )
    assert found == "1 worker trained, not 2"


def test_the_same_seed_draws_the_same_faults() -> None:
    plan = drawn(3, 40, 10.0, list(KINDS))
    plan.check()
    assert plan == drawn(3, 40, 10.0, list(KINDS))
    assert plan != drawn(4, 40, 10.0, list(KINDS))
    assert {fault.kind for fault in plan.faults} == set(KINDS)
    times = [fault.after_s for fault in plan.faults]
    assert times == sorted(times)
    assert 5.0 <= times[0] <= 15.0
    assert all(fault.min_members == 2 for fault in plan.faults)


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (Fault(kind="kill"), ""),
        (Fault(kind="kill", step=50), ""),
        (Fault(kind="kill", step=51), "at step 50 of 51"),
        (Fault(kind="kill", after_s=9.0), ""),
        (Fault(kind="kill", after_s=11.0), "10 s of 11 s"),
        (Fault(kind="kill", min_members=3), ""),
        (Fault(kind="kill", min_members=4), "3 workers trained"),
    ],
)
def test_a_fault_waits_for_its_conditions(fault: Fault, words: str) -> None:
    found = what_it_waits_for(fault, status(), 10.0)
    assert words in found
    assert bool(words) == bool(found)


@pytest.mark.parametrize(
    ("fault", "name"),
    [
        (Fault(kind="kill"), "w1"),
        (Fault(kind="kill", choice=0.99), "w3"),
        (Fault(kind="kill", rank=1), "w0"),
        (Fault(kind="kill", rank=-1), "w3"),
        (Fault(kind="kill", worker="w2"), "w2"),
        (Fault(kind="kill", phase="spare"), "w2"),
        (Fault(kind="kill", phase="training", choice=0.5), "w3"),
        (Fault(kind="kill", phase="evaluating", rank=0), "w1"),
    ],
)
def test_a_fault_happens_to_whom_it_names(fault: Fault, name: str) -> None:
    found = victim(fault, WORKERS)
    assert isinstance(found, WorkerStatus)
    assert found.worker_id == name


def test_who_leaves_already_is_not_chosen() -> None:
    workers = (worker("w0", 0, "leaving"), worker("w1", 1))
    found = victim(Fault(kind="terminate"), workers)
    assert isinstance(found, WorkerStatus)
    assert found.worker_id == "w1"


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (Fault(kind="kill", rank=3), "no rank 3"),
        (Fault(kind="kill", rank=-4), "no rank -4"),
        (Fault(kind="kill", worker="w9"), "no worker w9"),
        (Fault(kind="kill", worker="w0", phase="evaluating"), "w0 was not seen evaluating"),
    ],
)
def test_it_is_told_why_there_is_nobody_it_could_happen_to(fault: Fault, words: str) -> None:
    assert words in str(victim(fault, WORKERS))


@pytest.mark.parametrize(
    ("faults", "wanted"),
    [
        ([Fault(kind="kill")], {}),
        ([Fault(kind="kill", phase="syncing")], {"syncing": ()}),
        ([Fault(kind="kill", phase="syncing", after_s=11.0)], {}),
        ([Fault(kind="kill", phase="syncing", rank=0)], {"syncing": ("w1",)}),
        ([Fault(kind="kill", phase="syncing", rank=7)], {}),
        (
            [
                Fault(kind="kill", phase="syncing", rank=0),
                Fault(kind="kill", phase="syncing", worker="w1"),
            ],
            {"syncing": ("w1",)},
        ),
        (
            [
                Fault(kind="kill", phase="syncing", rank=0),
                Fault(kind="kill", phase="syncing"),
                Fault(kind="kill", phase="syncing", rank=0),
            ],
            {"syncing": ()},
        ),
    ],
)
def test_workers_are_held_at_phases_for_which_alone_a_fault_waits(
    faults: list[Fault], wanted: dict[str, tuple[str, ...]]
) -> None:
    assert wanted_phases(faults, status(), 10.0) == wanted


def test_who_is_held_at_a_phase_is_hit_there() -> None:
    fault = Fault(kind="kill", phase="checkpointing")
    assert isinstance(victim(fault, WORKERS), str)
    found = victim(fault, WORKERS, {"w3": "checkpointing", "w0": "syncing"})
    assert not isinstance(found, str)
    assert found.worker_id == "w3"
