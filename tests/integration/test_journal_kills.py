"""Launchers are killed when their journals have grown past given lengths."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np

from tests.harness.faults import Fault
from tests.harness.job import LIMIT_S, REPOSITORY, Job, assert_same_weights

GATE = Fault("gate", "train", 0, step=10, action="wait")
LENGTHS = (2000, 0, 2500)
"""Bytes of the journals at which launchers are killed.

The first launcher has already written more. The second one is killed at its first line. The
third one begins to replace a worker before that.
"""


def start_chaos(job: Job, report: Path) -> subprocess.Popen[bytes]:
    kills = [{"kind": "kill", "target": "launcher", "journal_bytes": n} for n in LENGTHS]
    plan = report.with_name("plan.json")
    plan.write_text(json.dumps({"faults": kills}))
    flags = [f"--job_dir={job.job_dir}", f"--plan={plan}", f"--report={report}"]
    return subprocess.Popen(
        [sys.executable, "-m", "hvd_elastic_keras.chaos", *flags, f"--timeout_s={LIMIT_S}"],
        cwd=REPOSITORY,
    )


def test_no_step_is_lost_wherever_in_its_journal_a_launcher_is_killed(
    tmp_path: Path, expected_weights: dict[str, np.ndarray]
) -> None:
    report = tmp_path / "report.json"
    with Job(tmp_path, "--num_workers=2", "--audit", plan=[GATE]) as job:
        job.wait_for_fault("gate")
        root, other = job.wait_for_round(2)["members"]
        with start_chaos(job, report) as chaos:
            for number in range(len(LENGTHS)):
                if number == len(LENGTHS) - 1:
                    job.signal(other, signal.SIGKILL)
                assert job.process.wait(LIMIT_S) == -signal.SIGKILL
                job.start_launcher()
            job.wait_for("master_restarted", lambda e: e["term"] > len(LENGTHS))
            assert chaos.wait(LIMIT_S) == 0
        job.plan.open_gate("gate")
        job.finish()
        job.assert_audited(epochs=3)
        assert_same_weights(job.weights(), expected_weights)
        assert [e["steps_lost"] for e in job.events("round_running") if e["steps_lost"]] == []
        assert root in job.events("round_running")[-1]["members"]
        (finished,) = job.events("job_finished")
        until_last = job.events("master_restarted")[-1]["time"] - job.events()[0]["time"]
        assert sum(finished["spent_s"].values()) > until_last / 2, "not of the last launcher only"
    fired = [outcome["fired"] for outcome in json.loads(report.read_text())["outcomes"]]
    assert all(f["journal_bytes"] > n for f, n in zip(fired, LENGTHS, strict=True))
