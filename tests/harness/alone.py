"""Trains a model module in one process, without a launcher, to compare a job with it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tests.harness import warm_python

Once = Callable[[str, Callable[[Path], object]], Path]
"""Takes a name and a function that fills the directory of that name; see the fixture `once`."""
SCRIPT = """
import sys
from hvd_elastic_keras import Trainer, TrainingConfig
from hvd_elastic_keras.api.model_module import ModelModule

path, job_dir, config = sys.argv[1:]
module = ModelModule(path, config=None, seed=0, data_dir="")
Trainer(
    module.model(),
    module.dataset("train"),
    validation=module.dataset("validation"),
    config=TrainingConfig(global_batch_size=64, **eval(config)),
    job_dir=job_dir,
).fit()
"""


def train(model: Path, job_dir: Path, **config: int) -> None:
    """Trains a model module and saves its results in a directory, which has to be new.

    Args:
      config: values for `TrainingConfig`, beside the global batch of 64.
    """
    log = job_dir.with_suffix(".log")
    log.parent.mkdir(parents=True, exist_ok=True)
    warm_python.run("-c", SCRIPT, model, job_dir, repr(config), log=log)
