"""The model of the jobs that are kept here, and how to make another one.

    python -m tests.old_jobs.train_wave tests/old_jobs/VERSION

runs a job with the version that is installed, stops it in the midst of an epoch, and keeps its
directory. Make one before the format of a file in it changes.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

FLAGS = ("--num_workers=2", "--global_batch_size=16", "--micro_batch_size=4", "--epochs=6")
SLOWLY = "TRAIN_WAVE_SLOWLY"
KEPT = ("job.json", "job.id", "journal", "events.jsonl", "checkpoints")
STOP_AT_STEP = 27
"""In the fourth epoch of 8 steps."""
LIMIT_S = 120.0


def model() -> Any:
    """A small network with state of every kind: slots, a seed, moving averages."""
    import keras

    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input((4,)),
            layers.Dense(8, "tanh"),
            layers.BatchNormalization(),
            layers.Dropout(0.2, seed=5),
            layers.Dense(1),
        ]
    )


def loss() -> str:
    """The loss."""
    return "mse"


def metrics() -> list[str]:
    """A metric."""
    return ["mae"]


def optimizer() -> Any:
    """An optimizer with slots."""
    import keras

    return keras.optimizers.Adam(0.01)


def callbacks() -> list[Any]:
    """A callback with a state, which makes steps slow while a job to keep is made."""
    import keras

    class Reduce(keras.callbacks.ReduceLROnPlateau):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if SLOWLY in os.environ:
                time.sleep(0.2)

    return [Reduce("loss", factor=0.5, patience=0, min_delta=1.0)]


def dataset(split: str) -> Any:
    """Points on a wave."""
    import numpy as np

    x = np.linspace(-3, 3, 128 * 4, dtype="float32").reshape(128, 4)
    y = np.sin(x).sum(axis=1, keepdims=True)
    return (x[:32], y[:32]) if split == "validation" else (x, y)


def keep(directory: Path) -> None:
    """Makes a job directory to keep.

    Raises:
      RuntimeError: the job could not be stopped in its midst.
    """
    with tempfile.TemporaryDirectory() as scratch:
        job_dir, own = Path(scratch, "job"), Path(__file__)
        shutil.copy(own, scratch)
        flags = (f"--model={own.name}", *FLAGS, "--job_dir=job", "--checkpoint_every_n_steps=1")
        job = subprocess.Popen(
            [sys.executable, "-m", "hvd_elastic_keras.run", *flags],
            cwd=scratch,
            env={**os.environ, SLOWLY: "1", "PYTHONPATH": str(Path.cwd())},
        )
        end = time.monotonic() + LIMIT_S
        written = job_dir / "checkpoints"
        while job.poll() is None and time.monotonic() < end:
            steps = [int(path.name[5:]) for path in written.glob("step-*")]
            if max(steps, default=0) >= STOP_AT_STEP:
                break
            time.sleep(0.05)
        job.send_signal(signal.SIGINT)
        if job.wait(LIMIT_S) != 128 + signal.SIGINT:
            raise RuntimeError(f"the job ended with {job.returncode}, expected to be stopped")
        directory.mkdir(parents=True)
        for name in KEPT:
            source = job_dir / name
            copy = shutil.copytree if source.is_dir() else shutil.copyfile
            copy(source, directory / name)


if __name__ == "__main__":
    keep(Path(sys.argv[1]))
