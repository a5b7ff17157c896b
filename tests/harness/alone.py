"""Trains a model module in one process, without a launcher, to compare a job with it."""

from __future__ import annotations

from pathlib import Path


def script_of(model: Path, job_dir: Path, **config: int) -> str:
    """Returns Python code that trains a model module and saves its results in a directory.

    Args:
      config: values for `TrainingConfig`, beside the global batch of 64.
    """
    return f"""
from hvd_elastic_keras import Trainer, TrainingConfig
from hvd_elastic_keras.api.model_module import ModelModule

module = ModelModule({str(model)!r}, config=None, seed=0, data_dir="")
Trainer(
    module.model(),
    module.dataset("train"),
    validation=module.dataset("validation"),
    config=TrainingConfig(global_batch_size=64, **{config!r}),
    job_dir={str(job_dir)!r},
).fit()
"""
