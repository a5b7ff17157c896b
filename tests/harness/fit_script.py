"""Runs a scenario in this process: `fit_script.py DIRECTORY tests/integration/test_fit.py::eager`.

A worker's results go to `WORKER.npz` and `.json` in the scenario's directory. Without a launcher,
the worker is called "alone".
"""

from __future__ import annotations

import sys
from pathlib import Path

import keras

from tests.harness.fit_scenario import find_scenario
from tests.harness.recorded_fit import Script


def run(reference: str, directory: Path) -> None:
    """Runs one scenario, from the model to the results."""
    scenario = find_scenario(reference)
    keras.utils.set_random_seed(1)
    script = Script(scenario.directory_in(directory), scenario.plain)
    scenario.train(script)
    script.write()


if __name__ == "__main__":
    run(sys.argv[2], Path(sys.argv[1]))
