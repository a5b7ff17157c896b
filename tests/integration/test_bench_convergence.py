"""`scripts/bench convergence --quick` trains, compares, and writes data and figures."""

from __future__ import annotations

import csv
import subprocess
import sys
from pathlib import Path

import pytest

from tests.harness.job import REPOSITORY

BENCH = REPOSITORY / "scripts" / "benchmarks" / "convergence.py"
PNG = b"\x89PNG\r\n\x1a\n"
JOBS = [("1", "1"), ("3", "2")]
MODES = ("usual", "deterministic")


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.slow
def test_the_curves_after_a_revocation_are_those_of_one_worker(tmp_path: Path) -> None:
    output = tmp_path / "results"
    result = subprocess.run(
        [
            sys.executable,
            str(BENCH),
            "--quick",
            "--deterministic",
            f"--output={output}",
        ],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.splitlines()[-1] == "all curves coincide"
    summary = rows(output / "summary.csv")
    assert [row["mode"] for row in summary] == [mode for mode in MODES for _ in JOBS]
    limits = {"usual": 1e-5, "deterministic": 0.0}
    assert all(float(row["loss diff"]) <= limits[row["mode"]] for row in summary)
    steps = rows(output / "steps.csv")
    for mode in MODES:
        for job in JOBS:
            found = [s for s in steps if (s["mode"], s["started_with"], s["left"]) == (mode, *job)]
            assert [int(s["step"]) for s in found] == list(range(30))
            assert (found[0]["workers"], found[-1]["workers"]) == job
        for name in ("curves", "wall_time"):
            assert (output / f"{name}-{mode}.png").read_bytes().startswith(PNG)
    assert len(rows(output / "epochs.csv")) == len(MODES) * len(JOBS) * 2


@pytest.mark.parametrize("left", ["a", "0"])
def test_numbers_that_make_no_sense_are_refused_without_a_traceback(
    left: str, tmp_path: Path
) -> None:
    result = subprocess.run(
        [sys.executable, str(BENCH), f"--output={tmp_path / 'results'}", f"--left={left}"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert f"--left={left} was given, expected numbers from 1 to 6." in result.stderr
    assert "Traceback" not in result.stderr
    assert result.returncode == 1
    assert not (tmp_path / "results").exists()
