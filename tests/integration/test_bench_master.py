"""The benchmark of the master runs as a whole: a round of simulated workers, and the store."""

from __future__ import annotations

import subprocess
import sys

from tests.harness.job import REPOSITORY


def test_a_few_simulated_workers_are_measured() -> None:
    script = REPOSITORY / "scripts" / "benchmarks" / "master.py"
    result = subprocess.run(
        [sys.executable, str(script), "--workers=3,6", "--steady_s=1"],
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert result.returncode == 0, result.stderr
    *_, head, three, six = result.stdout.splitlines()
    assert head.startswith("workers | all placed, s")
    assert three.split(" | ")[0].strip() == "3"
    assert six.split(" | ")[0].strip() == "6"
    assert "(x" in six  # the ratio to the row before
