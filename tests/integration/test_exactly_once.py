"""`--audit` under chaos: whatever happens to the workers, every example is used exactly once."""

from __future__ import annotations

import random
import signal
from pathlib import Path

import pytest

from tests.harness import faults
from tests.harness.faults import Fault
from tests.harness.job import FAULT_MODEL, Job, assert_same_weights

EPOCHS, STEPS = 3, 30
COMMAND = (
    f"--model={FAULT_MODEL}",
    *("--global_batch_size=16", "--micro_batch_size=2", f"--epochs={EPOCHS}"),
)
"""Real digits: 30 steps per epoch, 8 micro-batches each."""
FIRST_WORKERS = 4
KILLS, LEAVERS, JOINS = 9, 7, 7
JOINERS = 2
"""At each join, so that 14 workers join and 16 go: 30 changes, and 2 workers are left."""


class Chaos:
    """Lets changes happen to a job at steps at which a gate holds rank 0."""

    def __init__(self, job: Job, chance: random.Random) -> None:
        self.job = job
        self.chance = chance
        self.there = [f"w{i}" for i in range(FIRST_WORKERS)]
        self.next_worker = FIRST_WORKERS

    def happen(self, kind: str, gate: str, next_gate: str | None) -> None:
        """Waits for a gate, lets something happen and opens the gate.

        Then waits for the round that follows from it, unless the next gate is reached before.
        """
        self.job.wait_for_fault(gate)
        size = len(self.there)
        if kind == "join":
            self.job.ctl("add", str(JOINERS))
            new = [f"w{self.next_worker + i}" for i in range(JOINERS)]
            self.next_worker += JOINERS
            for worker in new:
                self.job.wait_for("worker_ready", lambda e, w=worker: e["worker_id"] == w)
            self.there += new
        else:
            victim = self.there.pop(self.chance.randrange(size))
            if kind == "kill":
                self.job.signal(victim, signal.SIGKILL)
            else:
                self.job.ctl("remove", victim)
        self.job.plan.open_gate(gate)
        if next_gate is not None:
            self.job.wait(lambda: self._settled(next_gate), f"round with {self.there}")

    def _settled(self, next_gate: str) -> bool | None:
        members = self.job.events("round_running")[-1]["members"]
        return sorted(members) == sorted(self.there) or self.job.plan.happened(next_gate) or None


def plan_of_changes(chance: random.Random) -> list[str]:
    """An order in which there are always two workers at least, and eight at most."""
    while True:
        kinds = ["kill"] * KILLS + ["leave"] * LEAVERS + ["join"] * JOINS
        chance.shuffle(kinds)
        sizes = [FIRST_WORKERS]
        for kind in kinds:
            sizes.append(sizes[-1] + (JOINERS if kind == "join" else -1))
        if min(sizes) >= 2 and max(sizes) <= 8:
            return kinds


@pytest.mark.timeout(600)
def test_thirty_kills_leaves_and_joins_at_random_steps(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    with Job(tmp_path / "one", "--num_workers=1", command=COMMAND) as job:
        job.finish()
        expected = job.weights()
    chance = random.Random(5)
    kinds = plan_of_changes(chance)
    steps = sorted(chance.sample(range(1, EPOCHS * STEPS - 1), len(kinds)))
    gates = [Fault(f"gate{i}", "train", 0, step=s, action="wait") for i, s in enumerate(steps)]
    flags = (f"--num_workers={FIRST_WORKERS}", "--max_restarts=0", "--audit")
    with Job(tmp_path, *flags, plan=gates, command=COMMAND) as job:
        job.wait_for_round(FIRST_WORKERS)
        chaos = Chaos(job, chance)
        following = [*(gate.name for gate in gates[1:]), None]
        for kind, gate, next_gate in zip(kinds, gates, following, strict=True):
            chaos.happen(kind, gate.name, next_gate)
        job.finish()
        exits = [e["cause"] for e in job.events("worker_exited")]
        assert exits.count("was killed by SIGKILL") == KILLS
        assert all(e["steps_lost"] == 0 for e in job.events("round_running"))
        job.assert_audited(EPOCHS)
        assert_same_weights(job.weights(), expected)


def test_a_worker_that_reads_other_examples_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(faults.WRONG, "w1")
    with Job(tmp_path, "--num_workers=2", "--audit") as job:
        job.finish()
        exact = {e["epoch"]: e["exact"] for e in job.events("epoch_audited")}
        assert exact == {0: True, 1: False, 2: True}
        second = job.ctl("audit", exit_code=1).splitlines()[1]
        assert second.endswith("other examples were read than planned in step 8-14"), second
