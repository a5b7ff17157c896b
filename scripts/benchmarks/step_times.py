"""Runs jobs of `timed_model.py`, or a plain Horovod loop, and reads how long their steps took."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

HERE = Path(__file__).resolve().parent
MODEL, PLAIN_LOOP = HERE / "timed_model.py", HERE / "plain_loop.py"
LIMIT_S = 300.0
PINNED = {"BENCH_PIN": "1"}
"""Environment variables that give each worker a processor for itself."""


def epoch_means(
    network: str, flags: Sequence[str], environment: Mapping[str, str], skip: int = 1
) -> list[float]:
    """Returns seconds per step of one job, a mean per epoch and worker; see `epochs_of`."""
    return [seconds for seconds, _ in epochs_of(network, flags, environment, skip)]


def epochs_of(
    network: str, flags: Sequence[str], environment: Mapping[str, str], skip: int = 1
) -> list[tuple[float, float]]:
    """Runs one job.

    Args:
      network: a name in `timed_model.NETWORKS`.
      flags: options for `hvd_elastic_keras.run`.
      environment: further environment variables.
      skip: number of epochs at the beginning that do not count.

    Returns:
      Seconds and received bytes per step, as a mean for each epoch on each worker.

    Raises:
      SystemExit: if the job fails.
    """
    with tempfile.TemporaryDirectory() as directory:
        command = [
            *(sys.executable, "-m", "hvd_elastic_keras.run", f"--model={MODEL}"),
            *(f"--job_dir={directory}/job", "--global_batch_size=64", *flags),
        ]
        return _epochs_of(command, network, environment, skip)


def plain_epochs_of(
    network: str, workers: int, epochs: int, environment: Mapping[str, str], parts: int = 0
) -> list[tuple[float, float]]:
    """Does the same for a plain Horovod loop of `workers` workers, without its first epoch.

    Args:
      parts: the number of parts of the global batch; 0 stands for one part per worker.
    """
    command = [
        *(sys.executable, "-m", "horovod.runner.launch", "--gloo", "-np", str(workers)),
        *("-H", f"localhost:{workers}", "--network-interfaces", "lo"),
        *(sys.executable, str(PLAIN_LOOP), str(epochs), str(parts or workers)),
    ]
    return _epochs_of(command, network, environment, skip=1)


def _epochs_of(
    command: Sequence[str], network: str, environment: Mapping[str, str], skip: int
) -> list[tuple[float, float]]:
    with tempfile.TemporaryDirectory() as times:
        result = subprocess.run(
            command,
            env={
                **os.environ,
                "TF_CPP_MIN_LOG_LEVEL": "3",
                "BENCH_STEP_TIMES": times,
                "BENCH_MODEL": network,
                **environment,
            },
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
        if result.returncode:
            raise SystemExit(f"the job failed:\n{result.stdout[-2000:]}{result.stderr[-2000:]}")
        files = [file.read_text().splitlines() for file in Path(times).iterdir()]
    epochs = [line.split() for lines in files for line in lines[skip:]]
    return [(float(seconds), float(received)) for seconds, received in epochs]
