"""Scripts under Horovod's own launcher train as alone. Under others they are refused."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

from tests.harness import warm_python
from tests.harness.job import REPOSITORY

SCRIPT = """
import keras, numpy as np
from hvd_elastic_keras import ElasticCallback

model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
print("the script runs")
model.fit(np.ones((8, 2)), np.ones((8, 1)), callbacks=[ElasticCallback()], verbose=2)
print("trained", model.count_params())
"""
LAUNCHED = str(REPOSITORY / "tests" / "harness" / "launched_script.py")
HOROVODRUN = Path(sys.executable).with_name("horovodrun")
TWO_OF_HOROVOD = (sys.executable, str(HOROVODRUN), "--gloo", "-np", "2", "-H", "localhost:2")
LINE = "[elastic] horovodrun has started 2 processes"


def run(*command: str, **variables: str) -> subprocess.CompletedProcess[str]:
    # A test that used Horovod in this process has left HOROVOD_SIZE=1 in its environment.
    # horovodrun would pass this on to its processes, after its own value.
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("HOROVOD_")}
    return subprocess.run(
        command,
        env={**inherited, **variables},
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )


def train(output: Path, flag: str = "") -> subprocess.CompletedProcess[str]:
    """Trains with two processes of Horovod's launcher."""
    command = [*TWO_OF_HOROVOD, sys.executable, LAUNCHED, str(output), *([flag] if flag else [])]
    return run(*command)


def left(output: Path, rank: int) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    with np.load(output / f"{rank}.npz") as weights:
        return dict(weights), json.loads((output / f"{rank}.json").read_text())


def test_all_ways_to_train_end_under_horovodrun_as_they_end_alone(tmp_path: Path) -> None:
    alone, together = tmp_path / "alone", tmp_path / "together"
    warm_python.run(LAUNCHED, alone, log=tmp_path / "alone.log")
    result = train(together)
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.count(LINE) == 1
    assert "--num_workers=2" in result.stdout
    assert result.stdout.count("epoch 3/3 done") == 1
    expected, notes = left(alone, 0)
    for rank in (0, 1):
        weights, noted = left(together, rank)
        assert weights.keys() == expected.keys()
        for name, value in expected.items():
            np.testing.assert_allclose(weights[name], value, rtol=0, atol=1e-6, err_msg=name)
        for way in ("history", "trainer"):
            assert noted[way].keys() == notes[way].keys()
            for name, values in notes[way].items():
                np.testing.assert_allclose(noted[way][name], values, rtol=1e-5, err_msg=name)
        assert noted["calls"] == notes["calls"]
        assert noted["loop"] == ["returned", rank, 2]
        assert noted["is_root"] is (rank == 0)
        assert noted["after_block"] == ["block-0"]
    files = sorted(p.name for p in together.iterdir() if p.suffix in (".csv", ".keras"))
    assert files == ["best.keras", "by_root.keras", "log-0.csv", "whole.keras"]


def test_all_end_with_the_first_that_is_lost(tmp_path: Path) -> None:
    result = train(tmp_path, flag="lost")
    assert result.returncode != 0
    assert "epoch 1/3 done" in result.stdout
    assert "epoch 3/3 done" not in result.stdout
    assert not list(tmp_path.glob("*.npz"))
    assert not processes_with(str(tmp_path))


def processes_with(word: str) -> list[str]:
    found = subprocess.run(
        ["ps", "-eo", "args", "-ww"], capture_output=True, text=True, check=True
    ).stdout
    return [line for line in found.splitlines() if word in line]


def test_under_mpirun_one_message_says_what_to_run_and_nobody_trains(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    variables = {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2"}
    result = run(sys.executable, str(script), **variables)
    output = result.stdout + result.stderr
    assert result.returncode == 1, output
    assert "the script runs" in output
    assert output.count("mpirun has started 2 processes") == 1
    assert f"python -m hvd_elastic_keras.run --num_workers=2 {script}" in output
    assert "trained" not in output
