"""`--audit` under chaos: whatever happens to the workers, every example is used exactly once."""

from __future__ import annotations

import json
import random
import shutil
import signal
from pathlib import Path

import numpy as np
import pytest

from hvd_elastic_keras.audit.verdict import listed
from hvd_elastic_keras.data.plan.example_ids import unpacked
from tests.harness import faults, growing
from tests.harness.faults import Fault
from tests.harness.job import FAULT_MODEL, SMALL, Job, assert_same_weights

EPOCHS, STEPS = 3, 30
COMMAND = (
    f"--model={FAULT_MODEL}",
    *("--global_batch_size=16", "--micro_batch_size=2", f"--epochs={EPOCHS}"),
)
"""Real digits: 30 steps per epoch, 8 micro-batches each."""
FIRST_WORKERS = 4
KILLS, LEAVERS, JOINS = 9, 7, 7
JOINERS = 2
"""Workers at each join.

14 workers join and 16 leave or are killed: 30 changes, and 2 workers are left.
"""


class Chaos:
    """Changes a job at steps at which a gate holds rank 0."""

    def __init__(self, job: Job, chance: random.Random, first_workers: int = FIRST_WORKERS) -> None:
        self.job = job
        self.chance = chance
        self.there = [f"w{i}" for i in range(first_workers)]
        self.next_worker = first_workers

    def happen(self, kind: str, gate: str, next_gate: str | None, dies: str = "") -> None:
        """Waits for a gate, makes a change, and opens the gate.

        Then waits for the round that results, unless the next gate is reached before that.

        Args:
          dies: name of a fault that kills a worker while that round is formed.
        """
        self.job.wait_for_fault(gate)
        if kind == "join":
            self.job.ctl("add", str(JOINERS))
            new = [f"w{self.next_worker + i}" for i in range(JOINERS)]
            self.next_worker += JOINERS
            for worker in new:
                self.job.wait_for("worker_ready", lambda e, w=worker: e["worker_id"] == w)
            last = self.job.events("round_running")[-1]["round"]
            # Otherwise no member may have been told yet.
            self.job.wait_for("round_opened", lambda e: e["round"] > last)
            self.there += new
        else:
            victim = self.chance.choice(self.there)
            if kind == "kill root":  # the gate holds the root in the middle of its step
                victim = self.job.events("round_running")[-1]["members"][0]
            self.there.remove(victim)
            if kind == "leave":
                self.job.ctl("remove", victim)
            else:
                self.job.signal(victim, signal.SIGKILL)
        self.job.plan.open_gate(gate)
        if dies:
            self.job.wait_for_fault(dies)
            self.there.remove(self.job.worker_that_had(dies))
        if next_gate is not None:
            self.job.wait(lambda: self._settled(next_gate), f"round with {self.there}")

    def _settled(self, next_gate: str) -> bool | None:
        members = self.job.events("round_running")[-1]["members"]
        return sorted(members) == sorted(self.there) or self.job.plan.happened(next_gate) or None


def plan_of_changes(chance: random.Random) -> list[str]:
    """Returns an order in which there are always at least two workers, and at most eight."""
    while True:
        kinds = ["kill"] * KILLS + ["leave"] * LEAVERS + ["join"] * JOINS
        chance.shuffle(kinds)
        sizes = [FIRST_WORKERS]
        for kind in kinds:
            sizes.append(sizes[-1] + (JOINERS if kind == "join" else -1))
        if min(sizes) >= 2 and max(sizes) <= 8:
            return kinds


@pytest.mark.slow
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


SOURCE = (f"--model={FAULT_MODEL.with_name('source_model.py')}", *SMALL)
GROWING = (
    f"--model={FAULT_MODEL.with_name('growing_model.py')}",
    *("--batch=per_worker", "--global_batch_size=24", "--batch_size_per_worker=8"),
    *("--micro_batch_size=4", "--lr_warm_up_steps=5", "--epochs=4"),
)


@pytest.mark.slow(but=("source",))
@pytest.mark.parametrize("command", [SOURCE, GROWING], ids=["source", "per_worker"])
def test_kills_of_rank_0_within_a_step_and_of_a_worker_within_a_sync(
    command: tuple[str, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    expected_weights: dict[str, np.ndarray],
) -> None:
    notes = tmp_path / "notes"
    notes.mkdir()
    monkeypatch.setenv("HVD_ELASTIC_TEST_NOTES", str(notes))
    kinds = ("kill root", "join", "leave", "kill root", "join", "kill")
    gates = [
        Fault(f"gate{i}", "train", 0, step=2 + 2 * i, action="wait") for i in range(len(kinds))
    ]
    # The first join makes four workers, only once. Three continue.
    in_sync = Fault("in_sync", "sync", 2, size=4)
    flags = ("--num_workers=3", "--max_restarts=0", "--audit")
    with Job(tmp_path, *flags, plan=[*gates, in_sync], command=command) as job:
        job.wait_for_round(3)
        chaos = Chaos(job, random.Random(7), first_workers=3)
        following = [*(gate.name for gate in gates[1:]), None]
        for kind, gate, next_gate in zip(kinds, gates, following, strict=True):
            chaos.happen(kind, gate.name, next_gate, dies="in_sync" if gate is gates[1] else "")
        job.finish()
        exits = [e["cause"] for e in job.events("worker_exited")]
        assert exits.count("was killed by SIGKILL") == 4
        assert job.plan.happened("in_sync")
        assert all(e["steps_lost"] == 0 for e in job.events("round_running"))
        job.assert_audited(len(job.events("epoch_end")))
        if command is SOURCE:
            assert_same_weights(job.weights(), expected_weights)
        else:
            sizes = growing.sizes_by_step(job)
            batches = growing.batches_by_step(job, sizes)
            assert growing.assert_every_example_once_per_epoch(sizes, batches, per_worker=8) == 4


def test_a_worker_that_reads_other_examples_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(faults.WRONG, "w1")
    with Job(tmp_path, "--num_workers=2", "--audit") as job:
        job.finish()
        exact = {e["epoch"]: e["exact"] for e in job.events("epoch_audited")}
        assert exact == {0: True, 1: False, 2: True}
        lines = job.ctl("audit", exit_code=1).splitlines()
        assert lines[1].endswith("other examples were read than planned in step 8-14"), lines
        assert_damage_is_named(job, tmp_path / "damaged", lines)


def assert_damage_is_named(job: Job, scratch: Path, lines: list[str]) -> None:
    """Damages copies of a job's ledgers, and asserts that the command names the damage.

    Args:
      lines: the command's output for the job itself.
    """
    content = (job.job_dir / "ledger" / "epoch-0001.jsonl").read_bytes().splitlines(keepends=True)
    steps = [json.loads(line) for line in content[:8]]
    ids = {n: sorted(i for t in steps[n]["ids"].values() for i in unpacked(t)) for n in (2, 3)}
    repeats = {**steps[3], "ids": steps[2]["ids"]}
    damages = {
        f"64 missing: {listed(ids[3])}; no record of step 3": content[:3] + content[4:],
        f"64 missing: {listed(ids[3])}; 64 repeated: {listed(ids[2])}": [
            *content[:3],
            json.dumps(repeats).encode() + b"\n",
            *content[4:],
        ],
    }
    for number, (verdict, damaged) in enumerate(damages.items()):
        copy = Job(scratch / str(number))
        shutil.copytree(job.job_dir, copy.job_dir)
        (copy.job_dir / "ledger" / "epoch-0001.jsonl").write_bytes(b"".join(damaged))
        found = copy.ctl("audit", exit_code=1).splitlines()
        assert found[0].endswith(f": {verdict}"), found
        assert found[1:] == lines[1:]
    (copy.job_dir / "ledger" / "epoch-0001.jsonl").unlink()
    found = copy.ctl("audit", exit_code=1).splitlines()
    assert found == [*lines[1:], "ledger: there is no ledger of epoch 1"]
