"""Runs scenarios in this process: `fit_script.py DIRECTORY tests/integration/test_fit.py::eager`.

A worker's results go to `WORKER.npz` and `.json` in the scenario's directory. Without a launcher,
the worker is called "alone", and several scenarios may be given.
"""

from __future__ import annotations

import sys
import traceback
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


def main() -> None:
    """Runs the scenarios named; if one of several fails, the others still run."""
    directory, *references = sys.argv[1:]
    if len(references) == 1:
        run(references[0], Path(directory))
        return
    for reference in references:
        keras.utils.clear_session()
        try:
            run(reference, Path(directory))
        except Exception:  # its own tests miss its results
            traceback.print_exc()


if __name__ == "__main__":
    main()
